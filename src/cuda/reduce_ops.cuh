// What the reductions of reduce*.cu reduce with: Ops of prims/axis_reduce.cuh, and where results go.
#pragma once

#include <limits>

#include "core/fast_math.h"
#include "cuda/prims/axis_reduce.cuh"
#include "cuda/prims/reduce.cuh"
#include "ops/reduce.h"

namespace dlkern::gpu {

// ---- Results -----------------------------------------------------------------------------------

struct Result {
  void* y;
  DType dtype;
};
__device__ __forceinline__ void store(const Result& r, int64_t at, double v) {
  static_cast<double*>(r.y)[at] = v;
}
__device__ __forceinline__ void store(const Result& r, int64_t at, float v) {
  if (r.dtype == DType::kFloat32) {
    static_cast<float*>(r.y)[at] = v;
  } else if (r.dtype == DType::kFloat16) {
    static_cast<Half*>(r.y)[at] = Half(v);
  } else {
    static_cast<BFloat16*>(r.y)[at] = BFloat16(v);
  }
}
__device__ __forceinline__ void store(const Result& r, int64_t at, int64_t v) {
  if (r.dtype == DType::kInt64) {
    static_cast<int64_t*>(r.y)[at] = v;
  } else {
    static_cast<int32_t*>(r.y)[at] = static_cast<int32_t>(v);
  }
}

// f(v[0], v[1]), f(v[2], v[3]), ... and so on: elements of a piece as a tree.
template <class Acc, int W, class F>
__device__ __forceinline__ Acc tree(Acc (&v)[W], F&& f) {
#pragma unroll
  for (int step = 1; step < W; step *= 2) {
#pragma unroll
    for (int e = 0; e < W; e += 2 * step) v[e] = f(v[e], v[e + step]);
  }
  return v[0];
}

struct Times {
  template <class Acc>
  __device__ Acc operator()(Acc a, Acc b) const {
    return a * b;
  }
};

// A product that is rounded before it is added to anything: how compilers contract the two would
// differ from kernel to kernel.
__device__ __forceinline__ float product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
__device__ __forceinline__ double product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// ---- Sums --------------------------------------------------------------------------------------

template <class Acc>
struct SumOp {
  using State = Acc;
  static constexpr bool kPivot = false, kVector = true, kLooksUp = false;
  Result result;
  Acc divisor;  // of a mean; else 1

  __device__ State identity() const { return Acc(0); }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc /*pivot*/) const {
    Acc v[W];
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? values[e] : Acc(0);
    state += tree(v, Sum{});
  }
  __device__ State close(State state) const { return state; }
  __device__ State combine(State a, State b) const { return a + b; }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    if constexpr (std::is_floating_point_v<Acc>) state /= divisor;
    store(result, found.at, state);
  }
};

// The sum of magnitudes or that of squares: |v| times (|v| & keep | set), which is |v| or 1.
template <class Acc>
struct NormOp {
  using State = Acc;
  using Bits = std::conditional_t<sizeof(Acc) == 4, uint32_t, uint64_t>;
  static constexpr bool kPivot = false, kVector = true, kLooksUp = false;
  Result result;
  Bits keep, set;

  NormOp(const Result& result_, bool squares)
      : result(result_),
        keep(squares ? ~Bits{0} : 0),
        set(squares ? 0 : bit_cast_to<Bits>(Acc(1))) {}
  __device__ State identity() const { return Acc(0); }
  __device__ __forceinline__ Acc factor(Acc v) const {
    return bit_cast_to<Acc>((bit_cast_to<Bits>(std::abs(v)) & keep) | set);
  }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc /*pivot*/) const {
    Acc v[W], pair[W / 2];
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? std::abs(values[e]) : Acc(0);
#pragma unroll
    for (int e = 0; e < W; e += 2) {
      pair[e / 2] = std::fma(v[e], factor(v[e]), product(v[e + 1], factor(v[e + 1])));
    }
    state += tree(pair, Sum{});
  }
  __device__ State close(State state) const { return state; }
  __device__ State combine(State a, State b) const { return a + b; }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    store(result, found.at, keep ? std::sqrt(state) : state);
  }
};

// The number of elements (or magnitudes) that equal the pivot, or do not.
template <class Acc>
struct CountOp {
  using State = Acc;
  static constexpr bool kPivot = true, kVector = false, kLooksUp = false;
  Result result;
  bool magnitudes, others;

  __device__ State identity() const { return Acc(0); }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc pivot) const {
#pragma unroll
    for (int e = 0; e < W; ++e) {
      const bool equal = (magnitudes ? std::abs(values[e]) : values[e]) == pivot;
      state += e < count && equal != others ? Acc(1) : Acc(0);
    }
  }
  __device__ State close(State state) const { return state; }
  __device__ State combine(State a, State b) const { return a + b; }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    store(result, found.at, state);
  }
};

// The norm of any other order.
template <class Acc>
struct PowersOp {
  using State = Acc;
  static constexpr bool kPivot = false, kVector = false, kLooksUp = false;
  Result result;
  Acc ord;

  __device__ State identity() const { return Acc(0); }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc /*pivot*/) const {
    Acc v[W];
#pragma unroll 1  // one copy of pow
    for (int e = 0; e < W; ++e) v[e] = e < count ? std::pow(std::abs(values[e]), ord) : Acc(0);
    state += tree(v, Sum{});
  }
  __device__ State close(State state) const { return state; }
  __device__ State combine(State a, State b) const { return a + b; }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    store(result, found.at, std::pow(state, 1 / ord));
  }
};

// ---- Products ----------------------------------------------------------------------------------

template <class Acc>
struct ProdOp {
  using State = Acc;
  static constexpr bool kPivot = false, kVector = true, kLooksUp = false;
  Result result;

  __device__ State identity() const { return Acc(1); }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc /*pivot*/) const {
    Acc v[W];
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? values[e] : Acc(1);
    state *= tree(v, Times{});
  }
  __device__ State close(State state) const { return state; }
  __device__ State combine(State a, State b) const { return a * b; }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    store(result, found.at, state);
  }
};

// The product of the elements that are not 0 (a), and the number of the others (b).
template <class Acc>
struct FactorsOp {
  using State = Pair<Acc>;
  static constexpr bool kPivot = false, kVector = false, kLooksUp = false;
  Acc *products, *zeros;

  __device__ State identity() const { return {Acc(1), Acc(0)}; }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc /*pivot*/) const {
    Acc v[W];
#pragma unroll
    for (int e = 0; e < W; ++e) {
      v[e] = e < count && values[e] != 0 ? values[e] : Acc(1);
      state.b += e < count && values[e] == 0 ? Acc(1) : Acc(0);
    }
    state.a *= tree(v, Times{});
  }
  __device__ State close(const State& state) const { return state; }
  __device__ State combine(const State& a, const State& b) const { return {a.a * b.a, a.b + b.b}; }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, const State& state) const {
    products[found.at] = state.a;
    zeros[found.at] = state.b;
  }
};

// ---- Extremes ----------------------------------------------------------------------------------

// Makes every extreme a maximum: (bits & keep) ^ flip, whose second application undoes the first.
template <class Acc>
struct Transform {
  using Bits = std::conditional_t<sizeof(Acc) == 4, uint32_t, uint64_t>;
  Bits keep, flip;

  static constexpr Bits kSign = Bits{1} << (8 * sizeof(Acc) - 1);
  Transform(bool minimum, bool magnitude) : keep(~Bits{0}), flip(0) {
    if (magnitude) keep = ~kSign;
    if (minimum) flip = std::is_floating_point_v<Acc> ? kSign : ~Bits{0};
  }
  __device__ __forceinline__ Acc operator()(Acc v) const {
    return bit_cast_to<Acc>((bit_cast_to<Bits>(v) & keep) ^ flip);
  }
  __device__ __forceinline__ Acc back(Acc v) const {
    return bit_cast_to<Acc>(bit_cast_to<Bits>(v) ^ flip);
  }
};

template <class Acc>
__device__ __forceinline__ Acc lowest() {
  using Limits = std::numeric_limits<Acc>;
  if constexpr (Limits::has_infinity) return -Acc(INFINITY);
  return Limits::lowest();
}

template <class Acc>
struct ExtremeOp {
  using State = Acc;
  static constexpr bool kPivot = false, kVector = true, kLooksUp = false;
  Result result;
  Transform<Acc> transform;

  __device__ State identity() const { return lowest<Acc>(); }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc /*pivot*/) const {
    Acc v[W];
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? transform(values[e]) : lowest<Acc>();
    state = Max{}(state, tree(v, Max{}));
  }
  __device__ State close(State state) const { return state; }
  __device__ State combine(State a, State b) const { return Max{}(a, b); }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    store(result, found.at, transform.back(state));
  }
};

// The best value of a result, as an integer that grows with it, and the first piece that has it: which
// of its elements that is, is looked up at the end.
template <class Acc>
struct Candidate {
  using Key = std::conditional_t<sizeof(Acc) == 4, int32_t, int64_t>;
  Key key;
  int64_t piece;
};
template <class Acc>
__device__ __forceinline__ Candidate<Acc> shuffle_xor(const Candidate<Acc>& c, int mask) {
  return {gpu::shuffle_xor(c.key, mask), gpu::shuffle_xor(c.piece, mask)};
}

template <class Acc>
struct ArgOp {
  using State = Candidate<Acc>;
  using Key = typename State::Key;
  static constexpr bool kPivot = false, kVector = true, kLooksUp = true;
  static constexpr Key kLargest = std::numeric_limits<Key>::max();
  Result result;
  Transform<Acc> transform;

  // NaN is the largest, both zeros are one.
  __device__ __forceinline__ Key key_of(Acc v) const {
    if constexpr (std::is_floating_point_v<Acc>) {
      const Key bits = bit_cast_to<Key>(v + Acc(0));
      return v != v ? kLargest : bits ^ (bits < 0 ? kLargest : Key(0));
    } else {
      return v;
    }
  }
  __device__ State identity() const { return {std::numeric_limits<Key>::lowest(), INT64_MAX}; }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t piece, Acc /*pivot*/) const {
    Acc v[W];
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? transform(values[e]) : lowest<Acc>();
    state = combine(state, {key_of(tree(v, Max{})), piece});
  }
  __device__ State close(const State& state) const { return state; }
  __device__ __forceinline__ State combine(const State& a, const State& b) const {
    return a.key > b.key || (a.key == b.key && a.piece < b.piece) ? a : b;
  }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, const State& state) const {
    const auto is_best = [&](T v) { return key_of(transform(static_cast<Acc>(v))) == state.key; };
    int64_t i = state.piece * kPiece<T>;
    if (found.reduced.is_flat()) {  // all at once
      const int64_t step = found.reduced.stride[0][0], left = found.n - i;
      const T* p = found.row + i * step;
      int best = 0;
#pragma unroll
      for (int e = kPiece<T> - 1; e >= 0; --e) {
        if (e < left && is_best(p[e * step])) best = e;
      }
      i += best;
    } else {
      while (i + 1 < found.n && !is_best(found.row[found.reduced.offset(i)])) ++i;
    }
    store(result, found.at, i);
  }
};

// ---- Moments -----------------------------------------------------------------------------------

// Of n elements: their mean is first + mean. Of a chain: first is its first element, mean the sum of
// the differences from it, and m2 that of their squares; after it m2 is the sum of the squares of the
// differences from the mean.
//
// Nothing cancels: a chain's first element is one of its N <= 64, so that its squared distance from
// their mean is at most m2, and the sum of squares that n times that distance is taken from at most
// N + 1 times what is left.
template <class Acc>
struct MomentsState {
  Acc n, first, mean, m2;
};
template <class Acc>
__device__ __forceinline__ MomentsState<Acc> shuffle_xor(const MomentsState<Acc>& s, int mask) {
  return {gpu::shuffle_xor(s.n, mask), gpu::shuffle_xor(s.first, mask),
          gpu::shuffle_xor(s.mean, mask), gpu::shuffle_xor(s.m2, mask)};
}

template <class Acc>
struct MomentsOp {
  using State = MomentsState<Acc>;
  static constexpr bool kPivot = false, kVector = true, kLooksUp = false;
  Result result;
  Acc divisor;
  bool root;
  Acc *first, *mean;  // not null: what the gradient needs, in place of the result

  __device__ State identity() const { return {}; }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc /*pivot*/) const {
    if (state.n == 0) state.first = values[0];
    state.n += static_cast<Acc>(count < W ? count : W);
    Acc v[W], pair[W / 2];
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? values[e] - state.first : Acc(0);
#pragma unroll
    for (int e = 0; e < W; e += 2) pair[e / 2] = std::fma(v[e], v[e], product(v[e + 1], v[e + 1]));
    state.m2 += tree(pair, Sum{});
    state.mean += tree(v, Sum{});
  }
  __device__ __forceinline__ State close(const State& s) const {
    const Acc mean = s.n > 0 ? product(s.mean, reciprocal_fast(s.n)) : Acc(0);
    return {s.n, s.first, mean, std::fma(-s.mean, mean, s.m2)};
  }
  // Chan's formula.
  __device__ __forceinline__ State combine(const State& a, const State& b) const {
    const Acc total = a.n + b.n;
    const Acc share = total > 0 ? product(b.n, reciprocal_fast(total)) : Acc(0);
    const Acc delta = (b.first - a.first) + (b.mean - a.mean), spread = product(delta, share);
    const State merged{total, a.first, a.mean + spread,
                       std::fma(product(delta, spread), a.n, a.m2 + b.m2)};
    return a.n == 0 ? b : b.n == 0 ? a : merged;
  }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, const State& state) const {
    if (mean) {
      first[found.at] = state.first;
      mean[found.at] = state.mean;
      return;
    }
    const Acc variance = state.m2 / divisor;
    store(result, found.at, root ? std::sqrt(variance) : variance);
  }
};

}  // namespace dlkern::gpu
