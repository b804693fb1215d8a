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

#include <memory>

#include "core/index.h"
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
template <class Acc>
struct Sum {
  using Value = Acc;
  using Partial = Acc;

  static Partial span(const Acc* v, int64_t n, int64_t /*first*/) {
    return sum_of<Acc>(n, [=](int64_t i) { return v[i]; });
  }
  // In pairs; the order depends on n alone.
  static Partial combine(const Partial* p, int64_t n) {
    if (n <= 2) return n == 0 ? Acc(0) : (n == 1 ? p[0] : p[0] + p[1]);
    return combine(p, n / 2) + combine(p + n / 2, n - n / 2);
  }

  // Rows [0, n) of w values each: the additions of sum_of, in the same order. Of what row() returned the last
  // kAtOnce stay valid.
  template <class Rows>
  static void columns(int64_t n, int64_t w, Rows&& row, int64_t /*first*/, Partial* out) {
    Acc lane[kLanes][kColumns];
    const int used = static_cast<int>(std::min<int64_t>(n, kLanes));
    for (int k = 0; k < used; ++k) {
      Acc* sum = lane[k];
      const Acc* v = row(k);
      DLK_SIMD for (int64_t j = 0; j < w; ++j) sum[j] = Acc(0) + v[j];
      int64_t i = k + kLanes;
      for (; i + 3 * kLanes < n; i += 4 * kLanes) {
        const Acc *a = row(i), *b = row(i + kLanes), *c = row(i + 2 * kLanes),
                  *d = row(i + 3 * kLanes);
        DLK_SIMD for (int64_t j = 0; j < w; ++j) sum[j] = sum[j] + a[j] + b[j] + c[j] + d[j];
      }
      for (; i < n; i += kLanes) {
        const Acc* a = row(i);
        DLK_SIMD for (int64_t j = 0; j < w; ++j) sum[j] += a[j];
      }
    }
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int k = 0; k < width && k + width < used; ++k) {
        DLK_SIMD for (int64_t j = 0; j < w; ++j) lane[k][j] += lane[k + width][j];
      }
    }
    std::copy_n(lane[0], w, out);
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

// Reduces T to Op's partial results. With a pivot per result, what is reduced is 1 for each element
// that equals it and 0 for the others.
template <class T, class Op>
class Reducer {
  using Acc = typename Op::Value;
  using Partial = typename Op::Partial;

 public:
  Reducer(const Reduce& p, const Tensor& pivot)
      : p_(p), pivot_(pivot), walk_(make_walk(p, pivot)) {}

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

  // One block of each result of a tile; result j's partial goes to out[j * blocks].
  void reduce_tile(int64_t tile, int64_t block, Scratch& scratch, Partial* out) const {
    const auto [result, w] = results_of(tile);
    const int64_t begin = block * kBlock, end = std::min(begin + kBlock, walk_.reduced.numel);
    if (walk_.columns) {
      reduce_columns(result, w, begin, end, scratch, out);
      return;
    }
    for (int64_t j = 0; j < w; ++j) {
      const Offsets at = offset(result, j);
      const Acc* v = read_block(p_.x.as<T>() + at[0], begin, end, scratch.values[0]);
      if (pivot_) {
        const Acc pivot = static_cast<Acc>(pivot_.as<T>()[at[2]]);
        v = mark_equal(v, &pivot, 0, end - begin, scratch.values[0]);
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
      return pivot_ ? mark_equal(v, scratch.pivots, 1, w, buffer) : v;
    };
    Op::columns(end - begin, w, row, begin, scratch.partials);
    for (int64_t j = 0; j < w; ++j) out[j * walk_.blocks] = scratch.partials[j];
  }

  static const Acc* mark_equal(const Acc* v, const Acc* pivot, int64_t pivot_stride, int64_t n,
                               Acc* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = v[i] == pivot[i * pivot_stride] ? Acc(1) : Acc(0);
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
  const Tensor& pivot_;
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

template <class T>
void sum(const Reduce& p) {
  using Acc = Accumulator<T>;
  const Acc n = static_cast<Acc>(make_index<1>({&p.x}, p.axes).numel);
  dispatch_result<T>(p.y.dtype, [&]<class Y>() {
    Y* y = p.y.as<Y>();
    Reducer<T, Sum<Acc>>(p, Tensor{}).run([=, mean = p.kind == DLK_REDUCE_MEAN](int64_t at, Acc v) {
      y[at] = static_cast<Y>(mean ? v / n : v);
    });
  });
}

template <class T, bool kMin>
void extreme(const Reduce& p) {
  using Op = typename Extreme<kMin>::template Of<Accumulator<T>>;
  dispatch_result<T>(p.y.dtype, [&]<class Y>() {
    Y* y = p.y.as<Y>();
    Reducer<T, Op>(p, Tensor{}).run([=](int64_t at, Accumulator<T> v) {
      y[at] = static_cast<Y>(v);
    });
  });
}

template <class T, bool kMin>
void arg_extreme(const Reduce& p) {
  using Op = typename ArgExtreme<kMin>::template Of<Accumulator<T>>;
  dispatch_index(p.y.dtype, [&]<class Y>() {
    Y* y = p.y.as<Y>();
    Reducer<T, Op>(p, Tensor{}).run([=](int64_t at, const typename Op::Partial& v) {
      y[at] = static_cast<Y>(v.index);
    });
  });
}

template <class T>
void forward(const Reduce& p) {
  switch (p.kind) {
    case DLK_REDUCE_SUM:
    case DLK_REDUCE_MEAN:
      return sum<T>(p);
    case DLK_REDUCE_MAX:
      return extreme<T, false>(p);
    case DLK_REDUCE_MIN:
      return extreme<T, true>(p);
    case DLK_REDUCE_ARGMAX:
      return arg_extreme<T, false>(p);
    case DLK_REDUCE_ARGMIN:
      return arg_extreme<T, true>(p);
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

template <class T>
void share(const ReduceBackward& p) {
  using Acc = Accumulator<T>;
  std::vector<Acc> shares(p.dy.numel());  // first the number of ties
  Acc* share = shares.data();
  const Tensor shares_view = contiguous_like(p.dy, p.dy.dtype, share);
  Reducer<T, Sum<Acc>>(Reduce{p.x, shares_view, p.axes, DLK_REDUCE_SUM}, p.y)
      .run([=](int64_t at, Acc ties) { share[at] = ties; });
  map_spans(
      make_index<2>({&shares_view, &p.dy}),
      [](int64_t n, Acc* share, const Acc* dy) {
        DLK_SIMD for (int64_t i = 0; i < n; ++i) share[i] = dy[i] / share[i];
      },
      InOut<Acc>{{share}}, In<T>{p.dy.as<T>()});
  map_spans(
      in_memory_order(make_index<4>({&p.dx, &p.x, &p.y, &shares_view})),
      [](int64_t n, Acc* dx, const Acc* x, const Acc* y, const Acc* share) {
        DLK_SIMD for (int64_t i = 0; i < n; ++i) {
          const Acc other = y[i] == y[i] ? Acc(0) : y[i];
          dx[i] = x[i] == y[i] ? share[i] : other;
        }
      },
      Out<T>{p.dx.as<T>()}, In<T>{p.x.as<T>()}, In<T>{p.y.as<T>()}, In<Acc>{share});
}

constexpr Impl<Reduce> kForward[] = {
    {"cpu_blocks", supports_all, nullptr,
     [](const Reduce& p, const Launch&) {
       dispatch_reducible(p.x.dtype, [&]<class T>() { forward<T>(p); });
     }},
};
constexpr Impl<ReduceBackward> kBackward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const ReduceBackward& p, const Launch&) {
       dispatch_floating(p.dy.dtype, [&]<class T>() { p.x ? share<T>(p) : spread<T>(p); });
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
