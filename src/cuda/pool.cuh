// What the kernels of pooling share: views of images, groups of neighbouring elements, how places
// are shared out, and what forward and backward do with an element.
#pragma once

#include "core/fast_div.h"
#include "core/index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/vec.cuh"
#include "ops/pool.h"

namespace dlkern::gpu {

inline constexpr int kPoolThreads = 128;

// A tensor [N, C, D, H, W].
template <class T>
struct Image {
  T* data;
  int64_t stride[2 + kMaxSpatial];

  explicit Image(const Tensor& t) : data(t.as<T>()) {
    for (int d = 0; d < 2 + kMaxSpatial; ++d) stride[d] = t.strides[d];
  }
  __device__ int64_t at(int64_t n, int64_t c, int64_t d, int64_t h, int64_t w) const {
    return n * stride[0] + c * stride[1] + d * stride[2] + h * stride[3] + w * stride[4];
  }
};

__device__ __forceinline__ bool is_inside(int64_t i, int64_t extent) {
  return static_cast<uint64_t>(i) < static_cast<uint64_t>(extent);
}
__device__ __forceinline__ bool is_inside(int i, int extent) {
  return static_cast<unsigned>(i) < static_cast<unsigned>(extent);
}
// One slice, and windows of one.
DLK_HD bool is_flat(const PoolShape& s) {
  return s.in[0] == 1 && s.out[0] == 1 && s.window[0].kernel == 1;
}
template <class I>
__device__ __forceinline__ I nearest(I i, I extent) {
  return i < 0 ? 0 : i < extent ? i : extent - 1;
}

// The largest power of two, at most 16, that divides the addresses of t's elements, those along
// dimension `along` apart, whose stride is 1. The batch counts where it is one item, too: that is computed
// as it would be beside others.
inline int image_alignment(const Tensor& t, int along) {
  uint64_t bits = reinterpret_cast<uintptr_t>(t.data) | 16;
  for (int d = 0; d < t.ndim; ++d) {
    if (d != along && (t.shape[d] > 1 || d == 0)) bits |= t.strides[d] * dtype_size(t.dtype);
  }
  return static_cast<int>(bits & (~bits + 1));
}

// 1 / n of a number of elements, to the last bit but one; without the branches of a division.
__device__ __forceinline__ float reciprocal(float n) {
  const float r = __fdividef(1.0f, n);
  return fmaf(r, fmaf(-n, r, 1.0f), r);
}
__device__ __forceinline__ double reciprocal(double n) { return 1 / n; }

// N neighbouring results, rounded.
template <int N, class T>
__device__ __forceinline__ void store_rounded(T* to, const Accumulator<T> (&v)[N]) {
  Raw<T, N> group;
  group.pack(v);
  group.store(to);
}

// ---- Indices -----------------------------------------------------------------------------------

// Where maxima lie. A label is the flat position, or the number of the tap in its window (uint8).
// Absent where data is null.
struct Indices {
  void* data = nullptr;
  int bytes;  // of an index: 1 (taps), 4 or 8
  int64_t stride[2 + kMaxSpatial];

  explicit Indices(const Tensor& t) : data(t.data), bytes(t ? dtype_size(t.dtype) : 1) {
    for (int d = 0; d < 2 + kMaxSpatial; ++d) stride[d] = t.strides[d];
  }
  __device__ bool are_taps() const { return bytes == 1; }
  __device__ int64_t at(int64_t n, int64_t c, int64_t d, int64_t h, int64_t w) const {
    return n * stride[0] + c * stride[1] + d * stride[2] + h * stride[3] + w * stride[4];
  }
  __device__ int64_t load(int64_t at) const {
    if (bytes == 8) return static_cast<const int64_t*>(data)[at];
    if (bytes == 4) return static_cast<const int32_t*>(data)[at];
    return static_cast<const uint8_t*>(data)[at];
  }
  __device__ void store(int64_t at, int64_t v) const {
    if (bytes == 8) {
      static_cast<int64_t*>(data)[at] = v;
    } else if (bytes == 4) {
      static_cast<int32_t*>(data)[at] = static_cast<int32_t>(v);
    } else {
      static_cast<uint8_t*>(data)[at] = static_cast<uint8_t>(v);
    }
  }

  // f(pointer of the indices' type)
  template <class F>
  __device__ __forceinline__ void visit(F&& f) const {
    if (bytes == 8) {
      f(static_cast<const int64_t*>(data));
    } else if (bytes == 4) {
      f(static_cast<const int32_t*>(data));
    } else {
      f(static_cast<const uint8_t*>(data));
    }
  }
  // `base` is added to each label.
  template <int N, class Label>
  __device__ __forceinline__ void store_group(int64_t at, int64_t base,
                                              const Label (&label)[N]) const {
    if (bytes == 8) {
      auto* to = reinterpret_cast<Vec<int64_t, 2>*>(static_cast<int64_t*>(data) + at);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) to[i] = {{base + label[2 * i], base + label[2 * i + 1]}};
    } else if (bytes == 4) {
      constexpr int kAtOnce = N < 4 ? N : 4;
      auto* to = reinterpret_cast<Vec<int32_t, kAtOnce>*>(static_cast<int32_t*>(data) + at);
#pragma unroll
      for (int i = 0; i < N / kAtOnce; ++i) {
        Vec<int32_t, kAtOnce> some;
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          some.v[k] = static_cast<int32_t>(base + label[kAtOnce * i + k]);
        }
        to[i] = some;
      }
    } else {
      Vec<uint8_t, N> some;
#pragma unroll
      for (int i = 0; i < N; ++i) some.v[i] = static_cast<uint8_t>(base + label[i]);
      *reinterpret_cast<Vec<uint8_t, N>*>(static_cast<uint8_t*>(data) + at) = some;
    }
  }
};

// An index beyond 2^31 is no position of a plane that int can number: negative, as other wrong ones.
__device__ __forceinline__ int narrow(int64_t v) {
  return v >> 32 == 0 ? static_cast<int32_t>(v) : -1;
}
// N neighbouring indices, aligned to N of them or to 16 bytes.
template <class Index, int N>
__device__ __forceinline__ void load_labels(const Index* from, int (&label)[N]) {
  constexpr int kAtOnce = 16 / sizeof(Index) < N ? 16 / sizeof(Index) : N;
#pragma unroll
  for (int i = 0; i < N / kAtOnce; ++i) {
    const auto some = load_vec<kAtOnce>(from + i * kAtOnce);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if constexpr (sizeof(Index) == 8) {
        label[i * kAtOnce + k] = narrow(some.v[k]);
      } else {
        label[i * kAtOnce + k] = some.v[k];
      }
    }
  }
}

// ---- Places ------------------------------------------------------------------------------------

// I: int64_t, or int where that is enough.
template <class I>
struct PoolPlace {
  I n, c, d, h, w;
};

// A volume [N, C, D, H, W] in tiles of one block: 2^log_c channels by 2^log_h rows by 2^log_w
// columns, so that overlapping windows meet in L1. Neighbouring threads are neighbours along C where
// the channels come last, else along W.
struct PoolTiles {
  int64_t extent_c, extent_h, extent_w;
  int log_c = 0, log_h = 0, log_w = 0;
  bool channels_last;
  FastDiv by_c, by_h, by_w, by_d;  // tiles along each
  int64_t count;

  PoolTiles(int64_t batch, int64_t c, const int64_t (&extent)[kMaxSpatial], bool channels_last_,
            int most_log_c = 5)
      : extent_c(c), extent_h(extent[1]), extent_w(extent[2]), channels_last(channels_last_) {
    int left = 7;
    static_assert(kPoolThreads == 1 << 7);
    const auto grow = [&left](int& log, int64_t extent, int most) {
      while (left > 0 && log < most && int64_t{1} << log < extent) ++log, --left;
    };
    if (channels_last) {
      grow(log_c, extent_c, most_log_c);
      grow(log_w, extent_w, 3);
      grow(log_h, extent_h, 3);
    } else {
      grow(log_w, extent_w, 5);
      grow(log_h, extent_h, 3);
    }
    grow(log_c, extent_c, 8);
    grow(log_w, extent_w, 8);
    grow(log_h, extent_h, 8);
    log_c += left;
    const auto tiles = [](int64_t extent, int log) { return ((extent - 1) >> log) + 1; };
    by_c = FastDiv(tiles(extent_c, log_c));
    by_h = FastDiv(tiles(extent_h, log_h));
    by_w = FastDiv(tiles(extent_w, log_w));
    by_d = FastDiv(extent[0]);
    count = batch * by_c.divisor() * by_d.divisor() * by_h.divisor() * by_w.divisor();
  }
  int grid() const { return static_cast<int>(std::min<int64_t>(count, INT32_MAX)); }

  // This thread's place in a tile; false where it has none.
  template <class I>
  __device__ __forceinline__ bool place(I tile, PoolPlace<I>& p) const {
    const auto take = [&tile](const FastDiv& by) {
      const I q = by.of(tile), r = tile - q * static_cast<I>(by.divisor());
      tile = q;
      return r;
    };
    I c = 0;
    if (channels_last) c = take(by_c);
    const I w = take(by_w), h = take(by_h);
    p.d = take(by_d);
    if (!channels_last) c = take(by_c);
    p.n = tile;
    int thread = threadIdx.x;
    const auto lane = [&thread](int log) {
      const int r = thread & ((1 << log) - 1);
      thread >>= log;
      return r;
    };
    if (channels_last) c = (c << log_c) + lane(log_c);
    p.w = (w << log_w) + lane(log_w);
    p.h = (h << log_h) + lane(log_h);
    if (!channels_last) c = (c << log_c) + lane(log_c);
    p.c = c;
    return p.c < static_cast<I>(extent_c) && p.h < static_cast<I>(extent_h) &&
           p.w < static_cast<I>(extent_w);
  }
};

// The same in groups of rows x columns, one for each thread.
struct PoolGroups {
  FastDiv by_w, by_h, by_d, by_c;
  int count;

  PoolGroups(const PoolShape& s, const int64_t (&extent)[kMaxSpatial], int rows, int columns)
      : by_w(ceil_div(extent[2], columns)),
        by_h(ceil_div(extent[1], rows)),
        by_d(extent[0]),
        by_c(s.channels),
        count(
            static_cast<int>(s.batch * s.channels * extent[0] * by_h.divisor() * by_w.divisor())) {}
  int grid() const { return std::max(static_cast<int>(ceil_div(count, kPoolThreads)), 1); }

  // The group of this thread; false where it has none.
  __device__ __forceinline__ bool place(PoolPlace<int>& p) const {
    int i = blockIdx.x * kPoolThreads + threadIdx.x;
    if (i >= count) return false;
    const auto take = [&i](const FastDiv& by) {
      const int q = by.quick(i), r = i - q * static_cast<int>(by.divisor());
      i = q;
      return r;
    };
    p.w = take(by_w), p.h = take(by_h), p.d = take(by_d), p.c = take(by_c), p.n = i;
    return true;
  }
};

// ---- Choices, on the host ----------------------------------------------------------------------

// f.operator()<T>() for floating types of at most 4 bytes.
template <class F>
void dispatch_short(DType dtype, F&& f) {
  dispatch_floating(dtype, [&]<class T>() {
    if constexpr (sizeof(T) <= 4) f.template operator()<T>();
  });
}

// All that kernels count fits into int: positions and tiles.
inline bool counts_in_int(const PoolShape& s) {
  const auto items = [&s](const int64_t(&extent)[kMaxSpatial]) {
    return s.batch * s.channels * extent[0] * (extent[1] + 2) * (extent[2] / 4 + 2);
  };
  return s.is_narrow() && std::max(items(s.in), items(s.out)) < INT32_MAX / 2;
}

// taps x taps of them along H and W, without gaps, at any distance.
inline bool has_taps(const PoolShape& s, int64_t taps) {
  bool has = true;
  for (int d = 1; d < kMaxSpatial; ++d) {
    const Window& w = s.window[d];
    has = has && w.kernel == taps && w.dilation == 1 && !s.adaptive[d];
  }
  return has;
}
// Images of one row, and windows along it.
inline bool is_line(const PoolShape& s) {
  const Window& h = s.window[1];
  return s.in[1] == 1 && s.out[1] == 1 && h.kernel == 1 && h.pad_begin == 0;
}

// Windows of kernel x kernel taps at a distance of `stride`, all without gaps, for which there are kernels;
// {0, 0} stands for all others. Windows of a line are such, too: taps beyond its row lie outside.
struct PoolSquare {
  int kernel = 0, stride = 0;
  explicit operator bool() const { return kernel > 0; }
};
inline PoolSquare square_of(const PoolShape& s) {
  const Window &h = s.window[1], &w = s.window[2];
  const bool has_kernels =
      w.kernel == 3 ? w.stride == 1 || w.stride == 2 : w.kernel == 2 && w.stride == 2;
  const bool square = has_taps(s, w.kernel) && h.stride == w.stride;
  const bool line = is_line(s) && w.dilation == 1 && !s.adaptive[2];
  if (!has_kernels || !(square || line) || s.window[0].dilation != 1) return {};
  return {static_cast<int>(w.kernel), static_cast<int>(w.stride)};
}
inline constexpr const char* kNoSquare =
    "not windows of 2 x 2 at a distance of 2, or 3 x 3 at one of 1 or 2";
// f.operator()<kernel, stride>()
template <class F>
void dispatch_square(const PoolShape& s, F&& f) {
  const PoolSquare square = square_of(s);
  if (square.kernel == 2) return f.template operator()<2, 2>();
  if (square.stride == 2) return f.template operator()<3, 2>();
  f.template operator()<3, 1>();
}

// Groups of n neighbours along dimension `along` can be accessed at once (in 16 bytes at most),
// from multiples of n on.
inline bool fits_groups(const Tensor& t, int n, int along) {
  const int bytes = n * static_cast<int>(dtype_size(t.dtype));
  return (t.strides[along] == 1 || t.shape[along] == 1) &&
         image_alignment(t, along) >= std::min(bytes, 16);
}
// The same along C, all of which are whole.
inline bool fits_channels(const Tensor& t, int n) {
  return t.shape[1] % n == 0 && t.strides[1] == 1 && fits_groups(t, n, 1);
}

}  // namespace dlkern::gpu
