// Softmax on the CPU, in parallel over rows. A row is converted to its accumulation type in one
// buffer that stays in cache where it is not in that form already, then there are a few passes over
// it (max, exp, sum, scale). Short or strided rows without a mask go in tiles of neighbouring rows,
// vectorised over the rows.
#include "ops/softmax.h"

#include <limits>

#include "core/fast_math.h"
#include "core/index.h"
#include "cpu/prims/any_dtype.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"
#include "cpu/prims/row_tile.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kGrainElements = 16384;  // work worth a thread

template <class Acc>
constexpr Acc kLeftOut = -std::numeric_limits<Acc>::infinity();

// y of a row of n logits x, from v = (x - max) scale. v may be x.
template <class Acc>
void normalize(const Acc* x, Acc scale, bool log, int64_t n, Acc* v) {
  const Acc m = max_of(x, n);
  // A row that is all -inf, or holds +inf, gives inf - inf = NaN here, as documented.
  if (log) {
    const Acc log_sum =
        std::log(sum_of<Acc>(n, [&](int64_t i) { return exp_fast((x[i] - m) * scale); }));
    DLK_SIMD
    for (int64_t i = 0; i < n; ++i) v[i] = (x[i] - m) * scale - log_sum;
  } else {
    DLK_SIMD
    for (int64_t i = 0; i < n; ++i) v[i] = exp_fast((x[i] - m) * scale);
    const Acc factor = 1 / sum_of<Acc>(n, [&](int64_t i) { return v[i]; });
    DLK_SIMD
    for (int64_t i = 0; i < n; ++i) v[i] *= factor;
  }
}

template <class T>
void forward_rows(const SoftmaxForward& p) {
  using Acc = Accumulator<T>;
  const auto rows = make_index<2>({&p.x, &p.y}, ~(1u << p.axis));
  const int64_t n = p.length();
  parallel_for(rows.numel, kGrainElements / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(n);
    for (int64_t row = begin; row < end; ++row) {
      int64_t at[2];
      rows.offsets(row, at);
      const Acc* x = read_span(p.x.as<T>() + at[0], 1, n, buffer.data());
      T* y = p.y.as<T>() + at[1];
      Acc* v = begin_span(y, p.y.strides[p.axis], buffer.data());
      normalize(x, static_cast<Acc>(p.scale), p.log, n, v);
      finish_span(v, y, p.y.strides[p.axis], n);
    }
  });
}

template <class T>
void forward_tiles(const SoftmaxForward& p) {
  using Acc = Accumulator<T>;
  const int64_t n = p.length(), stride = p.y.strides[p.axis];
  const Acc scale = static_cast<Acc>(p.scale);
  const auto tiles = tiles_of(make_index<2>({&p.x, &p.y}, ~(1u << p.axis)), n);
  parallel_for(tiles.count(), kGrainElements / ((n + 1) * tiles.size() + 1),
               [&](int64_t begin, int64_t end) {
                 RowTile<T> tile(n, tiles.size());
                 TileOutput<T> result(n, tiles.size());
                 for (int64_t i = begin; i < end; ++i) {
                   const auto block = tiles[i];
                   tile.load(p.x.as<T>() + block.at[0], p.x.strides[p.axis], tiles.stride(0),
                             block.n);
                   Acc* of_row = tile.sum_exp(0, scale);
                   for (int64_t r = 0; r < block.n; ++r)
                     of_row[r] = p.log ? std::log(of_row[r]) : 1 / of_row[r];
                   const Acc* m = tile.max.data();
                   result.open(p.y.as<T>() + block.at[1], stride, tiles.stride(1), block.n);
                   for (int64_t k = 0; k < n; ++k) {
                     const Acc* x = tile.element[k];
                     result.put(k, [&](Acc* out) {
                       if (p.log) {
                         DLK_SIMD
                         for (int64_t r = 0; r < block.n; ++r)
                           out[r] = (x[r] - m[r]) * scale - of_row[r];
                       } else {
                         DLK_SIMD
                         for (int64_t r = 0; r < block.n; ++r)
                           out[r] = exp_fast((x[r] - m[r]) * scale) * of_row[r];
                       }
                     });
                   }
                 }
               });
}

// What is added to n logits: 0 or -inf for a boolean mask.
template <class Acc>
void load_mask(const Tensor& mask, int64_t at, int64_t stride, int64_t n, Acc* dst) {
  if (mask.dtype != DType::kBool) return load_any_span(mask.dtype, mask.data, at, stride, n, dst);
  const auto* src = mask.as<const uint8_t>() + at;
  for (int64_t i = 0; i < n; ++i) dst[i] = src[i * stride] ? Acc(0) : kLeftOut<Acc>;
}

template <class T>
void forward_masked(const SoftmaxForward& p) {
  using Acc = Accumulator<T>;
  const auto rows = make_index<3>({&p.x, &p.y, &p.mask}, ~(1u << p.axis));
  const int64_t n = p.length();
  const Acc scale = static_cast<Acc>(p.scale);
  parallel_for(rows.numel, kGrainElements / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(n), added(n);
    for (int64_t row = begin; row < end; ++row) {
      int64_t at[3];
      rows.offsets(row, at);
      const int64_t kept = p.kept(row);
      const Acc* x = read_span(p.x.as<T>() + at[0], p.x.strides[p.axis], kept, buffer.data());
      T* y = p.y.as<T>() + at[1];
      Acc *l = buffer.data(), *add = added.data();
      if (p.mask) load_mask(p.mask, at[2], p.mask_stride(), kept, add);
      DLK_SIMD
      for (int64_t i = 0; i < kept; ++i) {
        l[i] = add[i] == kLeftOut<Acc> ? kLeftOut<Acc> : x[i] * scale + add[i];
      }
      const Acc nothing = p.log ? kLeftOut<Acc> : Acc(0);
      if (max_of(l, kept) == kLeftOut<Acc>) {
        std::fill_n(l, n, nothing);
      } else {
        normalize(l, Acc(1), p.log, kept, l);
        std::fill(l + kept, l + n,
                  l[0] == l[0] ? nothing : l[0]);  // all of the row is NaN, or none
      }
      store_span(l, y, p.y.strides[p.axis], n);
    }
  });
}

template <class T>
void forward(const SoftmaxForward& p) {
  if (p.is_masked()) {
    forward_masked<T>(p);
  } else if (in_tiles(p.length(), p.x.strides[p.axis])) {
    forward_tiles<T>(p);
  } else {
    forward_rows<T>(p);
  }
}

// ---- Backward ----------------------------------------------------------------------------------

// The gradient from dy = g, y and the row's sum; what element (g, y) adds to that sum.
template <bool kLog, class Acc>
Acc gradient(Acc g, Acc y, Acc sum, Acc scale) {
  const Acc v = kLog ? g - exp_fast(y) * sum : y * (g - sum);
  return y == (kLog ? kLeftOut<Acc> : Acc(0)) ? Acc(0) : scale * v;
}
template <bool kLog, class Acc>
Acc summand(Acc g, Acc y) {
  return y == (kLog ? kLeftOut<Acc> : Acc(0)) ? Acc(0) : kLog ? g : g * y;
}

template <class T, bool kLog>
void backward_rows(const SoftmaxBackward& p) {
  using Acc = Accumulator<T>;
  const auto rows = make_index<3>({&p.dy, &p.y, &p.dx}, ~(1u << p.axis));
  const int64_t n = p.dy.shape[p.axis];
  const Acc scale = static_cast<Acc>(p.scale);
  parallel_for(rows.numel, kGrainElements / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(2 * n);
    for (int64_t row = begin; row < end; ++row) {
      int64_t at[3];
      rows.offsets(row, at);
      const Acc* g = read_span(p.dy.as<T>() + at[0], p.dy.strides[p.axis], n, buffer.data());
      const Acc* y = read_span(p.y.as<T>() + at[1], p.y.strides[p.axis], n, buffer.data() + n);
      T* dx = p.dx.as<T>() + at[2];
      Acc* v = begin_span(dx, p.dx.strides[p.axis], buffer.data());
      const Acc sum = sum_of<Acc>(n, [&](int64_t i) { return summand<kLog>(g[i], y[i]); });
      DLK_SIMD
      for (int64_t i = 0; i < n; ++i) v[i] = gradient<kLog>(g[i], y[i], sum, scale);
      finish_span(v, dx, p.dx.strides[p.axis], n);
    }
  });
}

template <class T, bool kLog>
void backward_tiles(const SoftmaxBackward& p) {
  using Acc = Accumulator<T>;
  const int64_t n = p.dy.shape[p.axis], stride = p.dx.strides[p.axis];
  const Acc scale = static_cast<Acc>(p.scale);
  const auto tiles = tiles_of(make_index<3>({&p.dy, &p.y, &p.dx}, ~(1u << p.axis)), n);
  parallel_for(
      tiles.count(), kGrainElements / ((n + 1) * tiles.size() + 1),
      [&](int64_t begin, int64_t end) {
        const int64_t size = tiles.size();
        TileInput<T> dy(n, size), of_y(n, size);
        TileOutput<T> result(n, size);
        std::vector<Acc> sum(size), part(kLanes * size);
        for (int64_t i = begin; i < end; ++i) {
          const auto block = tiles[i];
          dy.load(p.dy.as<T>() + block.at[0], p.dy.strides[p.axis], tiles.stride(0), block.n);
          of_y.load(p.y.as<T>() + block.at[1], p.y.strides[p.axis], tiles.stride(1), block.n);
          sum_elements(n, block.n, sum.data(), part.data(), [&](int64_t k, Acc* to) {
            const Acc *g = dy[k], *y = of_y[k];
            DLK_SIMD
            for (int64_t r = 0; r < block.n; ++r) to[r] += summand<kLog>(g[r], y[r]);
          });
          result.open(p.dx.as<T>() + block.at[2], stride, tiles.stride(2), block.n);
          for (int64_t k = 0; k < n; ++k) {
            const Acc *g = dy[k], *y = of_y[k], *s = sum.data();
            result.put(k, [&](Acc* out) {
              DLK_SIMD
              for (int64_t r = 0; r < block.n; ++r) {
                out[r] = gradient<kLog>(g[r], y[r], s[r], scale);
              }
            });
          }
        }
      });
}

template <class T, bool kLog>
void backward(const SoftmaxBackward& p) {
  if (in_tiles(p.dy.shape[p.axis], p.y.strides[p.axis])) {
    backward_tiles<T, kLog>(p);
  } else {
    backward_rows<T, kLog>(p);
  }
}

constexpr Impl<SoftmaxForward> kForward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const SoftmaxForward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { forward<T>(p); });
     }},
};
constexpr Impl<SoftmaxBackward> kBackward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const SoftmaxBackward& p, const Launch&) {
       dispatch_floating(p.dy.dtype,
                         [&]<class T>() { p.log ? backward<T, true>(p) : backward<T, false>(p); });
     }},
};

}  // namespace

template <>
ImplList<SoftmaxForward> cpu_impls<SoftmaxForward>() {
  return kForward;
}
template <>
ImplList<SoftmaxBackward> cpu_impls<SoftmaxBackward>() {
  return kBackward;
}

}  // namespace dlkern
