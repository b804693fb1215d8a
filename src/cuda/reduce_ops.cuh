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
  static constexpr bool kPivot = false, kVector = true;
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
  __device__ State combine(State a, State b) const { return a + b; }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    if constexpr (std::is_floating_point_v<Acc>) state /= divisor;
    store(result, found.at, state);
  }
};

// What is summed in place of the elements.
enum class Term { kAbs, kSquare, kNonzero, kEqual, kAbsEqual };

// A norm, or the number of elements that equal the pivot.
template <class Acc>
struct TermsOp {
  using State = Acc;
  static constexpr bool kPivot = true, kVector = true;
  Result result;
  Term term;

  __device__ State identity() const { return Acc(0); }
  __device__ __forceinline__ Acc of(Acc v, Acc pivot) const {
    switch (term) {
      case Term::kAbs:
        return std::abs(v);
      case Term::kSquare:
        return product(v, v);
      case Term::kNonzero:
        return v != 0 ? Acc(1) : Acc(0);
      case Term::kEqual:
        return v == pivot ? Acc(1) : Acc(0);
      case Term::kAbsEqual:
        break;
    }
    return std::abs(v) == pivot ? Acc(1) : Acc(0);
  }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc pivot) const {
    Acc v[W];
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? of(values[e], pivot) : Acc(0);
    state += tree(v, Sum{});
  }
  __device__ State combine(State a, State b) const { return a + b; }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    store(result, found.at, term == Term::kSquare ? std::sqrt(state) : state);
  }
};

// The norm of any other order.
template <class Acc>
__device__ __noinline__ Acc power(Acc v, Acc exponent) {
  return std::pow(v, exponent);
}
template <class Acc>
struct PowersOp {
  using State = Acc;
  static constexpr bool kPivot = false, kVector = false;
  Result result;
  Acc ord;

  __device__ State identity() const { return Acc(0); }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc /*pivot*/) const {
    Acc v[W];
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? power(std::abs(values[e]), ord) : Acc(0);
    state += tree(v, Sum{});
  }
  __device__ State combine(State a, State b) const { return a + b; }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    store(result, found.at, power(state, 1 / ord));
  }
};

// ---- Products ----------------------------------------------------------------------------------

template <class Acc>
struct Product {
  Acc product, zeros;
};
template <class Acc>
__device__ __forceinline__ Product<Acc> shuffle_xor(const Product<Acc>& s, int mask) {
  return {gpu::shuffle_xor(s.product, mask), gpu::shuffle_xor(s.zeros, mask)};
}

// The product of the elements, or of those that are not 0 and the number of zeros.
template <class Acc>
struct ProdOp {
  using State = Product<Acc>;
  static constexpr bool kPivot = false, kVector = false;
  Result result;
  Acc* zeros;  // null: the plain product

  __device__ State identity() const { return {Acc(1), Acc(0)}; }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc /*pivot*/) const {
    Acc v[W];
#pragma unroll
    for (int e = 0; e < W; ++e) {
      const bool skip = zeros && values[e] == 0;
      v[e] = e < count && !skip ? values[e] : Acc(1);
      state.zeros += e < count && skip ? Acc(1) : Acc(0);
    }
    state.product *= tree(v, [](Acc a, Acc b) { return a * b; });
  }
  __device__ State combine(const State& a, const State& b) const {
    return {a.product * b.product, a.zeros + b.zeros};
  }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, const State& state) const {
    store(result, found.at, state.product);
    if (zeros) zeros[found.at] = state.zeros;
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
  static constexpr bool kPivot = false, kVector = true;
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
  __device__ State combine(State a, State b) const { return Max{}(a, b); }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    store(result, found.at, transform.back(state));
  }
};

// The best value of a result, and the first piece that has it: which of its elements that is, is
// looked up at the end.
template <class Acc>
struct Candidate {
  Acc value;
  int64_t piece;
};
template <class Acc>
__device__ __forceinline__ Candidate<Acc> shuffle_xor(const Candidate<Acc>& c, int mask) {
  return {gpu::shuffle_xor(c.value, mask), gpu::shuffle_xor(c.piece, mask)};
}

template <class Acc>
struct ArgOp {
  using State = Candidate<Acc>;
  static constexpr bool kPivot = false, kVector = true;
  Result result;
  Transform<Acc> transform;

  __device__ State identity() const { return {lowest<Acc>(), INT64_MAX}; }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t piece, Acc /*pivot*/) const {
    Acc v[W];
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? transform(values[e]) : lowest<Acc>();
    state = combine(state, {tree(v, Max{}), piece});
  }
  __device__ __forceinline__ State combine(const State& a, const State& b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool tie = a.value == b.value || (a_nan && b_nan);
    const bool better = a.value > b.value || (a_nan && !b_nan);
    return (tie ? a.piece < b.piece : better) ? a : b;
  }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, const State& state) const {
    int64_t i = state.piece * kPiece<T>;
    for (;; ++i) {
      const Acc v = transform(static_cast<Acc>(found.row[found.reduced.offset(i)]));
      if (v == state.value || v != v || i + 1 >= found.n) break;
    }
    store(result, found.at, i);
  }
};

// ---- Moments -----------------------------------------------------------------------------------

// Count, mean and sum of squared deviations of the differences from the pivot.
template <class Acc>
struct MomentsState {
  Acc n, mean, m2;
};
template <class Acc>
__device__ __forceinline__ MomentsState<Acc> shuffle_xor(const MomentsState<Acc>& s, int mask) {
  return {gpu::shuffle_xor(s.n, mask), gpu::shuffle_xor(s.mean, mask),
          gpu::shuffle_xor(s.m2, mask)};
}

template <class Acc>
struct MomentsOp {
  using State = MomentsState<Acc>;
  static constexpr bool kPivot = true, kVector = true;
  Result result;
  Acc divisor;
  bool root;
  Acc *first, *mean;  // not null: what the gradient needs, in place of the result

  __device__ State identity() const { return {}; }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc pivot) const {
    const Acc n = static_cast<Acc>(count);
    Acc v[W], square[W];
#pragma unroll
    for (int e = 0; e < W; ++e) square[e] = v[e] = e < count ? values[e] - pivot : Acc(0);
    const Acc mean = product(tree(square, Sum{}), Acc(1) / n);
#pragma unroll
    for (int e = 0; e < W; ++e) square[e] = e < count ? product(v[e] - mean, v[e] - mean) : Acc(0);
    state = combine(state, {n, mean, tree(square, Sum{})});
  }
  // Chan's formula.
  __device__ __forceinline__ State combine(const State& a, const State& b) const {
    const Acc total = a.n + b.n;
    const Acc share = total > 0 ? product(b.n, reciprocal_fast(total)) : Acc(0);
    const Acc delta = b.mean - a.mean, spread = product(delta, share);
    const State merged{total, a.mean + spread, a.m2 + b.m2 + product(product(delta, spread), a.n)};
    return a.n == 0 ? b : b.n == 0 ? a : merged;
  }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, const State& state) const {
    if (mean) {
      first[found.at] = static_cast<Acc>(*found.pivot);
      mean[found.at] = state.mean;
      return;
    }
    const Acc variance = state.m2 / divisor;
    store(result, found.at, root ? std::sqrt(variance) : variance);
  }
};

}  // namespace dlkern::gpu
