// Reductions on the CPU.
//
// The elements of one result, in the order in which they lie in memory, are cut into blocks of
// kBlock. A block is reduced in kLanes interleaved lanes, and the block results are added in pairs,
// so the rounding error grows like log n, and the bits of a result depend on its own elements and
// their order alone: not on threads, nor on which of two walks is taken. "Rows" reduces the blocks
// of one result after the other, along the reduced axes; "columns" reduces neighbouring results
// together, where they are closer in memory than the elements of one. Both are vectorised.
// argmax and argmin search a block for the index only where its value is the best so far.
#include "ops/reduce.h"

#include <cmath>
#include <memory>
#include <vector>

#include "core/index.h"
#include "core/reduce_math.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"
#include "cpu/prims/spans.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kBlock = kSumBlock;
constexpr int64_t kColumns = 512;          // results of a tile at most
constexpr int kAtOnce = 4;                 // rows read together
constexpr int64_t kPartials = 1 << 16;     // block results kept at a time
constexpr int64_t kGrainElements = 32768;  // work worth a thread

// Ops: what a block is reduced to, from contiguous values (span) and, in Columns, for w results at
// once from rows of values.

// a + b or a * b; integers modulo 2^64.
template <bool kProduct, class Acc>
inline Acc join(Acc a, Acc b) {
  using Unsigned = std::conditional_t<std::is_integral_v<Acc>, uint64_t, Acc>;
  const auto u = static_cast<Unsigned>(a), v = static_cast<Unsigned>(b);
  return static_cast<Acc>(kProduct ? u * v : u + v);
}

// Sums and products.
template <bool kProduct>
struct Chain {
  template <class Acc>
  struct Of {
    using Value = Acc;
    using Partial = Acc;
    static constexpr Acc kNeutral = kProduct ? 1 : 0;

    static Partial span(const Acc* v, int64_t n, int64_t /*first*/) {
      if constexpr (!kProduct && std::is_floating_point_v<Acc>) {
        return sum_of<Acc>(n, [v](int64_t i) { return v[i]; });
      }
      Acc lane[kLanes];
      std::fill_n(lane, kLanes, kNeutral);
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        // Without the mark gcc shuffles what it takes from several i.
        DLK_SIMD for (int k = 0; k < kLanes; ++k) lane[k] = join<kProduct>(lane[k], v[i + k]);
      }
      for (int k = 0; i < n; ++i, ++k) lane[k] = join<kProduct>(lane[k], v[i]);
      for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int k = 0; k < width; ++k) lane[k] = join<kProduct>(lane[k], lane[k + width]);
      }
      return lane[0];
    }
    // In pairs; the order depends on n alone.
    static Partial combine(const Partial* p, int64_t n) {
      if (n <= 2) return n == 0 ? kNeutral : (n == 1 ? p[0] : join<kProduct>(p[0], p[1]));
      return join<kProduct>(combine(p, n / 2), combine(p + n / 2, n - n / 2));
    }

    // Rows [0, n) of w values each: the additions of span(), in the same order. Of what row()
    // returned the last kAtOnce stay valid.
    template <class Rows>
    static void columns(int64_t n, int64_t w, Rows&& row, int64_t /*first*/, Partial* out) {
      Acc lane[kLanes][kColumns];
      const int used = static_cast<int>(std::min<int64_t>(n, kLanes));
      for (int k = 0; k < used; ++k) {
        Acc* total = lane[k];
        const Acc* v = row(k);
        DLK_SIMD for (int64_t j = 0; j < w; ++j) total[j] = join<kProduct>(kNeutral, v[j]);
        int64_t i = k + kLanes;
        for (; i + 3 * kLanes < n; i += 4 * kLanes) {
          const Acc *a = row(i), *b = row(i + kLanes), *c = row(i + 2 * kLanes),
                    *d = row(i + 3 * kLanes);
          DLK_SIMD for (int64_t j = 0; j < w; ++j) {
            const Acc two = join<kProduct>(join<kProduct>(total[j], a[j]), b[j]);
            total[j] = join<kProduct>(join<kProduct>(two, c[j]), d[j]);
          }
        }
        for (; i < n; i += kLanes) {
          const Acc* a = row(i);
          DLK_SIMD for (int64_t j = 0; j < w; ++j) total[j] = join<kProduct>(total[j], a[j]);
        }
      }
      for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int k = 0; k < width && k + width < used; ++k) {
          DLK_SIMD for (int64_t j = 0; j < w; ++j) {
            lane[k][j] = join<kProduct>(lane[k][j], lane[k + width][j]);
          }
        }
      }
      std::copy_n(lane[0], w, out);
    }
  };
};
template <class Acc>
using Sum = Chain<false>::Of<Acc>;
template <class Acc>
using Product = Chain<true>::Of<Acc>;

// Mean and sum of squared deviations: Welford's recurrence in lanes, Chan's formula between them.
template <class Acc>
struct Moments {
  using Value = Acc;
  struct Partial {
    Acc n, mean, m2;
  };

  static Partial merge(const Partial& a, const Partial& b) {
    if (a.n == 0 || b.n == 0) return a.n == 0 ? b : a;
    const Acc total = a.n + b.n, share = b.n / total, delta = b.mean - a.mean;
    return {total, a.mean + delta * share, a.m2 + b.m2 + delta * delta * share * a.n};
  }
  static void step(Acc v, Acc factor, Acc& mean, Acc& m2) {
    const Acc delta = v - mean;
    mean += delta * factor;
    m2 += delta * (v - mean);
  }
  // Lane k of n elements.
  static Acc count(int64_t n, int k) { return static_cast<Acc>((n + kLanes - 1 - k) / kLanes); }

  static Partial span(const Acc* v, int64_t n, int64_t /*first*/) {
    Acc mean[kLanes] = {}, m2[kLanes] = {};
    for (int64_t i = 0; i < n; i += kLanes) {
      const Acc factor = Acc(1) / static_cast<Acc>(i / kLanes + 1);
      if (i + kLanes <= n) {
        DLK_SIMD for (int k = 0; k < kLanes; ++k) step(v[i + k], factor, mean[k], m2[k]);
      } else {
        for (int k = 0; i + k < n; ++k) step(v[i + k], factor, mean[k], m2[k]);
      }
    }
    Partial lane[kLanes];
    for (int k = 0; k < kLanes; ++k) lane[k] = {count(n, k), mean[k], m2[k]};
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) lane[k] = merge(lane[k], lane[k + width]);
    }
    return lane[0];
  }
  static Partial combine(const Partial* p, int64_t n) {
    if (n <= 2) return n == 0 ? Partial{} : (n == 1 ? p[0] : merge(p[0], p[1]));
    return merge(combine(p, n / 2), combine(p + n / 2, n - n / 2));
  }

  template <class Rows>
  static void columns(int64_t n, int64_t w, Rows&& row, int64_t /*first*/, Partial* out) {
    const std::unique_ptr<Acc[][kColumns]> mean(new Acc[kLanes][kColumns]),
        m2(new Acc[kLanes][kColumns]);
    for (int64_t i = 0; i < n; ++i) {
      Acc *lane_mean = mean[i % kLanes], *lane_m2 = m2[i % kLanes];
      if (i < kLanes) std::fill_n(lane_mean, w, Acc(0)), std::fill_n(lane_m2, w, Acc(0));
      const Acc factor = Acc(1) / static_cast<Acc>(i / kLanes + 1);
      const Acc* v = row(i);
      DLK_SIMD for (int64_t j = 0; j < w; ++j) step(v[j], factor, lane_mean[j], lane_m2[j]);
    }
    for (int64_t j = 0; j < w; ++j) {
      Partial lane[kLanes] = {};
      for (int k = 0; k < kLanes && k < n; ++k) lane[k] = {count(n, k), mean[k][j], m2[k][j]};
      for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int k = 0; k < width; ++k) lane[k] = merge(lane[k], lane[k + width]);
      }
      out[j] = lane[0];
    }
  }
};

template <bool kMin>
struct Extreme {
  template <class Acc>
  struct Of {
    using Value = Acc;
    using Partial = Acc;

    static Partial span(const Acc* v, int64_t n, int64_t /*first*/) {
      return extreme_of<kMin>(v, n);
    }
    static Partial combine(const Partial* p, int64_t n) { return extreme_of<kMin>(p, n); }

    template <class Rows>
    static void columns(int64_t n, int64_t w, Rows&& row, int64_t /*first*/, Partial* out) {
      const auto better = [](Acc v, Acc m) { return (kMin ? v < m : v > m) || v != v ? v : m; };
      std::copy_n(row(0), w, out);
      int64_t i = 1;
      for (; i + 3 < n; i += 4) {
        const Acc *a = row(i), *b = row(i + 1), *c = row(i + 2), *d = row(i + 3);
        DLK_SIMD for (int64_t j = 0; j < w; ++j) {
          out[j] = better(d[j], better(c[j], better(b[j], better(a[j], out[j]))));
        }
      }
      for (; i < n; ++i) {
        const Acc* a = row(i);
        DLK_SIMD for (int64_t j = 0; j < w; ++j) out[j] = better(a[j], out[j]);
      }
    }
  };
};

template <bool kMin>
struct ArgExtreme {
  template <class Acc>
  struct Of {
    using Value = Acc;
    struct Partial {
      Acc value;
      int64_t index;
    };

    static Partial span(const Acc* v, int64_t n, int64_t first) {
      const Acc best = extreme_of<kMin>(v, n);
      int64_t i = 0;
      while (i + 1 < n && v[i] != best && (v[i] == v[i] || best == best)) ++i;
      return {best, first + i};
    }
    static Partial combine(const Partial* p, int64_t n) {
      Partial best = p[0];
      for (int64_t i = 1; i < n; ++i) {
        if (is_better<kMin>(p[i].value, best.value)) best = p[i];
      }
      return best;
    }

    template <class Rows>
    static void columns(int64_t n, int64_t w, Rows&& row, int64_t first, Partial* out) {
      // As wide as the values, so that both are selected by one comparison.
      using Row = std::conditional_t<sizeof(Acc) == 4, int32_t, int64_t>;
      Acc best[kColumns];
      Row at[kColumns] = {};
      std::copy_n(row(0), w, best);
      for (int64_t i = 1; i < n; ++i) {
        const Acc* v = row(i);
        DLK_SIMD for (int64_t j = 0; j < w; ++j) {
          const bool better = is_better<kMin>(v[j], best[j]);
          best[j] = better ? v[j] : best[j];
          at[j] = better ? static_cast<Row>(i) : at[j];
        }
      }
      for (int64_t j = 0; j < w; ++j) out[j] = {best[j], first + at[j]};
    }
  };
};

// How one problem is walked. Results are numbered along `kept`; tiles of `width` of them do not
// reach over the end of a row of `inner` results.
struct Walk {
  StridedIndex<3> kept;     // x, result, pivot
  StridedIndex<1> reduced;  // x
  int64_t blocks;
  int64_t inner;
  int64_t width;
  bool columns;

  int64_t tiles_per_row() const { return ceil_div(inner, width); }
  int64_t tiles() const { return inner == 0 ? 0 : kept.numel / inner * tiles_per_row(); }
};

Walk make_walk(const Reduce& p, const Tensor& pivot) {
  Walk walk;
  walk.kept = in_memory_order(make_index<3>({&p.x, &p.y, &pivot}, ~p.axes));
  walk.reduced = make_index<1>({&p.x}, p.axes);
  if (!is_arg(p.kind)) walk.reduced = in_memory_order(walk.reduced);
  const int64_t n = walk.reduced.numel;
  walk.blocks = ceil_div(n, kBlock);
  const int last = walk.kept.ndim - 1, last_reduced = walk.reduced.ndim - 1;
  const auto closer = [&] {
    return std::abs(walk.kept.stride[0][last]) < std::abs(walk.reduced.stride[0][last_reduced]);
  };
  walk.columns = last >= 0 && walk.kept.shape[last] >= 8 && (n < kLanes || closer());
  walk.inner = walk.columns ? walk.kept.shape[last] : walk.kept.numel;
  walk.width = walk.columns ? std::min(walk.inner, kColumns)
                            : std::clamp<int64_t>(kBlock / (n + 1), 1, kColumns);
  return walk;
}

// What is reduced in place of an element v, some with a pivot for each result.
enum class Term {
  kValue,
  kAbs,
  kSquare,
  kPower,     // |v|^ord
  kNonzero,   // v != 0
  kZero,      // v == 0
  kFactor,    // 1 where v is 0
  kEqual,     // v == pivot
  kAbsEqual,  // |v| == pivot
  kMinus,     // v - pivot
  kExpMinus,  // exp(v - pivot)
};

// out[i] for v[i] and the pivot at i * stride, i < n.
template <class Acc>
void map_terms(Term term, Acc ord, const Acc* v, const Acc* pivot, int64_t stride, int64_t n,
               Acc* out) {
  const auto map = [=](auto f) { DLK_SIMD for (int64_t i = 0; i < n; ++i) out[i] = f(v[i]); };
  const auto with_pivot = [=](auto f) {
    for (int64_t i = 0; i < n; ++i) out[i] = f(v[i], pivot[i * stride]);
  };
  const auto one_if = [](bool condition) { return condition ? Acc(1) : Acc(0); };
  switch (term) {
    case Term::kValue:
      return;
    case Term::kAbs:
      return map([](Acc x) { return std::abs(x); });
    case Term::kSquare:
      return map([](Acc x) { return x * x; });
    case Term::kPower:
      return map([ord](Acc x) { return static_cast<Acc>(std::pow(std::abs(x), ord)); });
    case Term::kNonzero:
      return map([=](Acc x) { return one_if(x != 0); });
    case Term::kZero:
      return map([=](Acc x) { return one_if(x == 0); });
    case Term::kFactor:
      return map([](Acc x) { return x == 0 ? Acc(1) : x; });
    case Term::kEqual:
      return with_pivot([=](Acc x, Acc p) { return one_if(x == p); });
    case Term::kAbsEqual:
      return with_pivot([=](Acc x, Acc p) { return one_if(std::abs(x) == p); });
    case Term::kMinus:
      return with_pivot([](Acc x, Acc p) { return x - p; });
    case Term::kExpMinus:
      if constexpr (std::is_floating_point_v<Acc>) {
        with_pivot([](Acc x, Acc p) { return exp_fast(x - p); });
      }
      return;
  }
}

// Reduces the terms of T to Op's partial results.
template <class T, class Op>
class Reducer {
  using Acc = typename Op::Value;
  using Partial = typename Op::Partial;

 public:
  explicit Reducer(const Reduce& p, Term term = Term::kValue, const Tensor& pivot = {})
      : p_(p), term_(term), pivot_(pivot), walk_(make_walk(p, pivot)) {}

  // finish(offset in the result, partial) for every result.
  template <class Finish>
  void run(Finish&& finish) {
    const int64_t blocks = walk_.blocks, tiles = walk_.tiles(), width = walk_.width;
    const int64_t stored = std::max<int64_t>(blocks, 1);
    const int64_t panel = std::clamp<int64_t>(kPartials / (width * stored), 1, tiles);
    const std::unique_ptr<Partial[]> partials(new Partial[panel * width * stored]);
    const bool in_one_row = walk_.columns || walk_.kept.ndim <= 1;  // all results of a tile
    const int64_t step = walk_.kept.ndim ? walk_.kept.stride[1][walk_.kept.ndim - 1] : 0;
    const int64_t tile_work = width * std::min(kBlock, walk_.reduced.numel) + 1;
    for (int64_t first = 0; first < tiles; first += panel) {
      const int64_t count = std::min(panel, tiles - first);
      parallel_for(count * blocks, kGrainElements / tile_work, [&](int64_t begin, int64_t end) {
        const std::unique_ptr<Scratch> scratch(new Scratch);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t tile = i / blocks, block = i % blocks;
          reduce_tile(first + tile, block, *scratch, &partials[tile * width * blocks + block]);
        }
      });
      parallel_for(count, kGrainElements / (width * stored), [&](int64_t begin, int64_t end) {
        for (int64_t tile = begin; tile < end; ++tile) {
          const auto [result, w] = results_of(first + tile);
          const Partial* partial = &partials[tile * width * blocks];
          const int64_t start = offset(result, 0)[1];
          for (int64_t j = 0; j < w; ++j, partial += blocks) {
            const int64_t at = in_one_row ? start + j * step : offset(result, j)[1];
            finish(at, blocks == 1 ? *partial : Op::combine(partial, blocks));
          }
        }
      });
    }
  }

 private:
  struct Scratch {
    Acc values[kAtOnce][kBlock];
    Acc pivots[kColumns];
    Partial partials[kColumns];
  };
  struct Results {
    int64_t first, count;
  };
  struct Offsets {
    int64_t at[3];
    int64_t operator[](int i) const { return at[i]; }
  };

  Results results_of(int64_t tile) const {
    const int64_t per_row = walk_.tiles_per_row();
    const int64_t begin = tile % per_row * walk_.width;
    return {tile / per_row * walk_.inner + begin, std::min(walk_.width, walk_.inner - begin)};
  }
  Offsets offset(int64_t first, int64_t j) const {
    Offsets o;
    walk_.kept.offsets(first + j, o.at);
    return o;
  }

  // Of the next result in a row.
  Offsets next(const Offsets& of) const {
    const auto& stride = walk_.kept.stride;
    return {{of.at[0] + stride[0][0], of.at[1] + stride[1][0], of.at[2] + stride[2][0]}};
  }

  // One block of each result of a tile; result j's partial goes to out[j * blocks].
  void reduce_tile(int64_t tile, int64_t block, Scratch& scratch, Partial* out) const {
    const auto [result, w] = results_of(tile);
    const int64_t begin = block * kBlock, end = std::min(begin + kBlock, walk_.reduced.numel);
    if (walk_.columns) {
      reduce_columns(result, w, begin, end, scratch, out);
      return;
    }
    const bool in_one_row = walk_.kept.ndim <= 1;
    Offsets at = offset(result, 0);
    for (int64_t j = 0; j < w; ++j) {
      if (j > 0) at = in_one_row ? next(at) : offset(result, j);
      const Acc* v = read_block(p_.x.as<T>() + at[0], begin, end, scratch.values[0]);
      if (term_ != Term::kValue) {
        const Acc pivot = pivot_ ? static_cast<Acc>(pivot_.as<T>()[at[2]]) : Acc(0);
        v = terms(v, &pivot, 0, end - begin, scratch.values[0]);
      }
      out[j * walk_.blocks] = Op::span(v, end - begin, begin);
    }
  }

  void reduce_columns(int64_t result, int64_t w, int64_t begin, int64_t end, Scratch& scratch,
                      Partial* out) const {
    const int last = walk_.kept.ndim - 1;
    const Offsets at = offset(result, 0);
    const T* x = p_.x.as<T>() + at[0];
    const int64_t stride = walk_.kept.stride[0][last];
    if (pivot_) {
      load_span(pivot_.as<T>() + at[2], walk_.kept.stride[2][last], w, scratch.pivots);
    }
    int buffers = 0;
    const auto row = [&](int64_t i) {
      int64_t offset[1];
      walk_.reduced.offsets(begin + i, offset);
      Acc* buffer = scratch.values[buffers++ % kAtOnce];
      const Acc* v = read_span(x + offset[0], stride, w, buffer);
      return term_ == Term::kValue ? v : terms(v, scratch.pivots, 1, w, buffer);
    };
    Op::columns(end - begin, w, row, begin, scratch.partials);
    for (int64_t j = 0; j < w; ++j) out[j * walk_.blocks] = scratch.partials[j];
  }

  const Acc* terms(const Acc* v, const Acc* pivot, int64_t stride, int64_t n, Acc* out) const {
    map_terms(term_, static_cast<Acc>(p_.ord), v, pivot, stride, n, out);
    return out;
  }

  // Elements [begin, end) of the result whose first element is x.
  const Acc* read_block(const T* x, int64_t begin, int64_t end, Acc* buffer) const {
    const StridedIndex<1>& r = walk_.reduced;
    if (r.ndim <= 1) {
      const int64_t stride = r.stride[0][0];
      return read_span(x + begin * stride, stride, end - begin, buffer);
    }
    const int64_t inner = r.shape[r.ndim - 1], stride = r.stride[0][r.ndim - 1];
    int64_t at[1];
    for (int64_t i = begin; i < end;) {
      const int64_t n = std::min(inner - i % inner, end - i);
      r.offsets(i, at);
      if (n == end - begin) return read_span(x + at[0], stride, n, buffer);
      load_span(x + at[0], stride, n, buffer + (i - begin));
      i += n;
    }
    return buffer;
  }

  const Reduce& p_;
  const Term term_;
  const Tensor pivot_;
  const Walk walk_;
};

// finish(T result) with the C++ type of the result's dtype.
template <class T, class F>
void dispatch_result(DType dtype, F&& f) {
  if constexpr (sizeof(T) == 2) {
    if (dtype == DType::kFloat32) return f.template operator()<float>();
  } else if constexpr (std::is_same_v<T, int32_t>) {
    if (dtype == DType::kInt64) return f.template operator()<int64_t>();
  }
  f.template operator()<T>();
}

// y = f(partial result of the terms by Op).
template <class T, class Op, class F>
void reduce_to(const Reduce& p, Term term, const Tensor& pivot, F f) {
  dispatch_result<T>(p.y.dtype, [&]<class Y>() {
    Y* y = p.y.as<Y>();
    Reducer<T, Op>(p, term, pivot).run([=](int64_t at, const typename Op::Partial& v) {
      y[at] = static_cast<Y>(f(v));
    });
  });
}

template <class T>
void sum(const Reduce& p) {
  using Acc = Accumulator<T>;
  const Acc n = static_cast<Acc>(make_index<1>({&p.x}, p.axes).numel);
  reduce_to<T, Sum<Acc>>(p, Term::kValue, {},
                         [=, mean = p.kind == DLK_REDUCE_MEAN](Acc v) { return mean ? v / n : v; });
}

template <class T, bool kMin>
void extreme(const Reduce& p, Term term) {
  using Acc = Accumulator<T>;
  reduce_to<T, typename Extreme<kMin>::template Of<Acc>>(p, term, {}, [](Acc v) { return v; });
}

template <class T, bool kMin>
void arg_extreme(const Reduce& p) {
  using Op = typename ArgExtreme<kMin>::template Of<Accumulator<T>>;
  dispatch_index(p.y.dtype, [&]<class Y>() {
    Y* y = p.y.as<Y>();
    Reducer<T, Op>(p).run(
        [=](int64_t at, const typename Op::Partial& v) { y[at] = static_cast<Y>(v.index); });
  });
}

template <class T>
void norm(const Reduce& p) {
  using Acc = Accumulator<T>;
  if (std::isinf(p.ord)) {
    return p.ord < 0 ? extreme<T, true>(p, Term::kAbs) : extreme<T, false>(p, Term::kAbs);
  }
  const Acc ord = static_cast<Acc>(p.ord);
  const auto run = [&](Term term, auto f) { reduce_to<T, Sum<Acc>>(p, term, {}, f); };
  const auto same = [](Acc v) { return v; };
  if (ord == 0) return run(Term::kNonzero, same);
  if (ord == 1) return run(Term::kAbs, same);
  if (ord == 2) return run(Term::kSquare, [](Acc v) { return std::sqrt(v); });
  run(Term::kPower, [=](Acc v) { return std::pow(v, 1 / ord); });
}

template <class T>
void variance(const Reduce& p) {
  using Op = Moments<Accumulator<T>>;
  const int64_t n = make_index<1>({&p.x}, p.axes).numel;
  const auto divisor = static_cast<Accumulator<T>>(variance_divisor(n, p.correction));
  reduce_to<T, Op>(p, Term::kMinus, first_elements(p.x, p.axes),
                   [=, root = p.kind == DLK_REDUCE_STD](const typename Op::Partial& v) {
                     return root ? std::sqrt(v.m2 / divisor) : v.m2 / divisor;
                   });
}

// m + log sum exp(x - m), m the maximum, or 0 where that is infinite.
template <class T>
void logsumexp(const Reduce& p) {
  using Acc = Accumulator<T>;
  std::vector<T> max(p.y.numel());
  std::vector<Acc> sum(p.y.numel());
  const Tensor maxima = contiguous_like(p.y, p.x.dtype, max.data());
  const Tensor sums = contiguous_like(p.y, p.x.dtype, sum.data());  // its data are not looked at
  Reducer<T, typename Extreme<false>::template Of<Acc>>(Reduce{p.x, maxima, p.axes, DLK_REDUCE_MAX})
      .run([&](int64_t at, Acc v) { max[at] = static_cast<T>(std::isinf(v) ? Acc(0) : v); });
  Reducer<T, Sum<Acc>>(Reduce{p.x, sums, p.axes, DLK_REDUCE_SUM}, Term::kExpMinus, maxima)
      .run([&](int64_t at, Acc v) { sum[at] = v; });
  dispatch_result<T>(p.y.dtype, [&]<class Y>() {
    map_spans(
        make_index<3>({&p.y, &maxima, &sums}),
        [](int64_t n, Acc* y, const Acc* m, const Acc* s) {
          for (int64_t i = 0; i < n; ++i) y[i] = m[i] + std::log(s[i]);
        },
        Out<Y>{p.y.as<Y>()}, In<T>{max.data()}, In<Acc>{sum.data()});
  });
}

template <class T>
void forward(const Reduce& p) {
  switch (p.kind) {
    case DLK_REDUCE_SUM:
    case DLK_REDUCE_MEAN:
      return sum<T>(p);
    case DLK_REDUCE_MAX:
      return extreme<T, false>(p, Term::kValue);
    case DLK_REDUCE_MIN:
      return extreme<T, true>(p, Term::kValue);
    case DLK_REDUCE_ARGMAX:
      return arg_extreme<T, false>(p);
    case DLK_REDUCE_ARGMIN:
      return arg_extreme<T, true>(p);
    case DLK_REDUCE_PROD:
      return reduce_to<T, Product<Accumulator<T>>>(p, Term::kValue, {}, [](auto v) { return v; });
    case DLK_REDUCE_VECTOR_NORM:
      if constexpr (!std::is_integral_v<T>) norm<T>(p);
      return;
    case DLK_REDUCE_VAR:
    case DLK_REDUCE_STD:
      if constexpr (!std::is_integral_v<T>) variance<T>(p);
      return;
    case DLK_REDUCE_LOGSUMEXP:
      if constexpr (!std::is_integral_v<T>) logsumexp<T>(p);
      return;
  }
}

template <class T>
void spread(const ReduceBackward& p) {
  using Acc = Accumulator<T>;
  const int64_t reduced = make_index<1>({&p.dx}, p.axes).numel;
  const Acc n = p.kind == DLK_REDUCE_MEAN ? static_cast<Acc>(reduced) : Acc(1);
  const auto index = in_memory_order(make_index<2>({&p.dx, &p.dy}));
  map_spans(
      index,
      [=](int64_t n_span, Acc* dx, const Acc* dy) {
        DLK_SIMD for (int64_t i = 0; i < n_span; ++i) dx[i] = dy[i] / n;
      },
      Out<T>{p.dx.as<T>()}, In<T>{p.dy.as<T>()});
}

// Gradients that need x. What is found out of each result first: `a` and `b`.
template <class T>
class FromElements {
  using Acc = Accumulator<T>;

 public:
  explicit FromElements(const ReduceBackward& p) : p_(p), a_(p.dy.numel()), b_(p.dy.numel()) {}

  void run() {
    const Acc ord = static_cast<Acc>(p_.ord), factor = static_cast<Acc>(deviation_factor(p_));
    switch (p_.kind) {
      case DLK_REDUCE_PROD:
        reduce<Product<Acc>>(Term::kFactor, {}, [&](int64_t at, Acc v) { a_[at] = v; });
        reduce<Sum<Acc>>(Term::kZero, {}, [&](int64_t at, Acc v) { b_[at] = v; });
        return map([](Acc dy, Acc x, Acc, Acc a, Acc b) { return product_gradient(dy, x, a, b); });
      case DLK_REDUCE_VECTOR_NORM:
        if (!std::isinf(ord)) {
          return map([=](Acc dy, Acc x, Acc y, Acc, Acc) { return norm_gradient(dy, x, y, ord); });
        }
        count(Term::kAbsEqual);
        return map([](Acc dy, Acc x, Acc y, Acc ties, Acc) {
          return sign_of(x) * share_gradient(dy, std::abs(x), y, ties);
        });
      case DLK_REDUCE_VAR:
        find_means();
        return map([=](Acc dy, Acc x, Acc, Acc a, Acc b) {
          return variance_gradient(dy, x, a, b, factor);
        });
      case DLK_REDUCE_STD:
        find_means();
        return map([=](Acc dy, Acc x, Acc y, Acc a, Acc b) {
          return deviation_gradient(dy, x, y, a, b, factor);
        });
      case DLK_REDUCE_LOGSUMEXP:
        return map([](Acc dy, Acc x, Acc y, Acc, Acc) { return logsumexp_gradient(dy, x, y); });
      default:
        count(Term::kEqual);
        return map(
            [](Acc dy, Acc x, Acc y, Acc ties, Acc) { return share_gradient(dy, x, y, ties); });
    }
  }

 private:
  template <class Op, class Finish>
  void reduce(Term term, const Tensor& pivot, Finish finish) {
    const Reduce problem{p_.x, contiguous_like(p_.dy, p_.dy.dtype, a_.data()), p_.axes,
                         DLK_REDUCE_SUM};
    Reducer<T, Op>(problem, term, pivot).run(finish);
  }
  void count(Term term) {
    reduce<Sum<Acc>>(term, p_.y, [&](int64_t at, Acc ties) { a_[at] = ties; });
  }
  void find_means() {
    const Tensor first = first_elements(p_.x, p_.axes), to = contiguous(a_);
    reduce<Moments<Acc>>(Term::kMinus, first, [&](int64_t at, const auto& v) { b_[at] = v.mean; });
    map_spans(
        make_index<2>({&to, &first}),
        [](int64_t n, Acc* out, const Acc* v) { std::copy_n(v, n, out); }, Out<Acc>{a_.data()},
        In<T>{p_.x.template as<T>()});
  }
  Tensor contiguous(std::vector<Acc>& values) const {
    return contiguous_like(p_.dy, p_.dy.dtype, values.data());
  }

  // dx = f(dy, x, y, a, b)
  template <class F>
  void map(F f) {
    const Tensor a = contiguous(a_), b = contiguous(b_);
    const Tensor& y = p_.y ? p_.y : p_.dy;
    map_spans(
        in_memory_order(make_index<6>({&p_.dx, &p_.dy, &p_.x, &y, &a, &b})),
        [f](int64_t n, Acc* dx, const Acc* dy, const Acc* x, const Acc* y_, const Acc* a_,
            const Acc* b_) {
          DLK_SIMD for (int64_t i = 0; i < n; ++i) dx[i] = f(dy[i], x[i], y_[i], a_[i], b_[i]);
        },
        Out<T>{p_.dx.template as<T>()}, In<T>{p_.dy.template as<T>()}, In<T>{p_.x.template as<T>()},
        In<T>{y.template as<T>()}, In<Acc>{a_.data()}, In<Acc>{b_.data()});
  }

  const ReduceBackward& p_;
  std::vector<Acc> a_, b_;
};

constexpr Impl<Reduce> kForward[] = {
    {"cpu_blocks", supports_all, nullptr,
     [](const Reduce& p, const Launch&) {
       dispatch_reducible(p.x.dtype, [&]<class T>() { forward<T>(p); });
     }},
};
constexpr Impl<ReduceBackward> kBackward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const ReduceBackward& p, const Launch&) {
       dispatch_floating(p.dy.dtype,
                         [&]<class T>() { p.x ? FromElements<T>(p).run() : spread<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<Reduce> cpu_impls<Reduce>() {
  return kForward;
}
template <>
ImplList<ReduceBackward> cpu_impls<ReduceBackward>() {
  return kBackward;
}

}  // namespace dlkern
