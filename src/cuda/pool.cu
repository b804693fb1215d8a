// Pooling over windows of 1 to 3 spatial dimensions.
//
//   max forward   y[o] = max of x over the taps of window o; indices[o] = the first such position
//   max backward  dx[i] = sum of dy[o] over the windows o with indices[o] = i
//   avg forward   y[o] = sum of x over the taps of window o / divisor(o)
//   avg backward  dx[i] = sum of dy[o] / divisor(o) over the windows o that hold i
//
// Layout: any strides; threads are numbered along W for planar tensors and along C where the channels
// come last, so that neighbouring threads write (and mostly read) neighbouring addresses.
// One thread computes one result; overlapping windows meet in L1. The gradients gather, visiting only
// the windows that cover the position: no atomics, so the order of additions is fixed.
// Bound by memory. 16-bit values are summed in float32.
#include "ops/pool.h"

#include "core/index.h"
#include "cuda/prims/gpu.h"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 256;

// A tensor [N, C, D, H, W].
template <class T>
struct Image {
  T* data;
  int64_t stride[2 + kMaxSpatial];

  explicit Image(const Tensor& t) : data(t.as<T>()) {
    for (int d = 0; d < 2 + kMaxSpatial; ++d) stride[d] = t.strides[d];
  }
  __device__ T* plane(int64_t n, int64_t c) const { return data + n * stride[0] + c * stride[1]; }
  __device__ int64_t offset(int64_t d, int64_t h, int64_t w) const {
    return d * stride[2] + h * stride[3] + w * stride[4];
  }
};

// Indices of either type; absent where both pointers are null.
struct Indices {
  Image<int32_t> narrow;
  Image<int64_t> wide;

  explicit Indices(const Tensor& t) : narrow(t), wide(t) {
    if (!t || t.dtype != DType::kInt32) narrow.data = nullptr;
    if (!t || t.dtype != DType::kInt64) wide.data = nullptr;
  }
  __device__ int64_t offset(int64_t n, int64_t c) const {
    return n * wide.stride[0] + c * wide.stride[1];
  }
  __device__ int64_t load(int64_t at) const { return wide.data ? wide.data[at] : narrow.data[at]; }
  __device__ void store(int64_t at, int64_t v) const {
    if (wide.data) wide.data[at] = v;
    if (narrow.data) narrow.data[at] = static_cast<int32_t>(v);
  }
};

struct Place {
  int64_t n, c, d, h, w;
};

// The i-th of N * C * extent places, along W or along C.
__device__ Place place_of(int64_t i, const PoolShape& s, const int64_t (&extent)[kMaxSpatial],
                          bool channels_last) {
  const auto take = [&i](int64_t size) {
    const int64_t q = quotient(i, size), r = i - q * size;
    i = q;
    return r;
  };
  Place p;
  if (channels_last) p.c = take(s.channels);
  p.w = take(extent[2]);
  p.h = take(extent[1]);
  p.d = take(extent[0]);
  if (!channels_last) p.c = take(s.channels);
  p.n = i;
  return p;
}

__device__ int64_t first_thread() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t thread_count() { return int64_t{gridDim.x} * blockDim.x; }

// f(value of x, flat position in the plane) for every tap of a window inside x, in order.
template <class T, class F>
__device__ void for_each_tap(const PoolShape& s, const Image<const T>& x, const Place& o, F&& f) {
  const Window &wd = s.window[0], &wh = s.window[1], &ww = s.window[2];
  const Range td = wd.taps_inside(o.d, s.in[0]), th = wh.taps_inside(o.h, s.in[1]),
              tw = ww.taps_inside(o.w, s.in[2]);
  const T* plane = x.plane(o.n, o.c);
  for (int64_t kd = td.begin; kd < td.end; ++kd) {
    const int64_t d = wd.start(o.d) + kd * wd.dilation;
    for (int64_t kh = th.begin; kh < th.end; ++kh) {
      const int64_t h = wh.start(o.h) + kh * wh.dilation;
      for (int64_t kw = tw.begin; kw < tw.end; ++kw) {
        const int64_t w = ww.start(o.w) + kw * ww.dilation;
        f(static_cast<Accumulator<T>>(plane[x.offset(d, h, w)]), (d * s.in[1] + h) * s.in[2] + w);
      }
    }
  }
}

// f(d, h, w) for every window that covers a position of the input, in order.
template <class F>
__device__ void for_each_window(const PoolShape& s, const Place& i, F&& f) {
  const Range od = s.window[0].windows_over(i.d, s.out[0]),
              oh = s.window[1].windows_over(i.h, s.out[1]),
              ow = s.window[2].windows_over(i.w, s.out[2]);
  for (int64_t d = od.begin; d < od.end; ++d) {
    for (int64_t h = oh.begin; h < oh.end; ++h) {
      for (int64_t w = ow.begin; w < ow.end; ++w) f(d, h, w);
    }
  }
}

template <class T>
__global__ void max_pool_forward_kernel(Image<const T> x, Image<T> y, Indices indices, PoolShape s,
                                        bool channels_last) {
  using Acc = Accumulator<T>;
  const int64_t count = s.batch * s.channels * s.out_plane();
  for (int64_t i = first_thread(); i < count; i += thread_count()) {
    const Place o = place_of(i, s, s.out, channels_last);
    Acc best = 0;
    int64_t best_at = -1;
    for_each_tap(s, x, o, [&](Acc v, int64_t at) {
      if (best_at < 0 || v > best || (v != v && best == best)) {  // the first NaN stays
        best = v;
        best_at = at;
      }
    });
    y.plane(o.n, o.c)[y.offset(o.d, o.h, o.w)] = static_cast<T>(best);
    indices.store(indices.offset(o.n, o.c) + indices.wide.offset(o.d, o.h, o.w), best_at);
  }
}

template <class T>
__global__ void max_pool_backward_kernel(Image<const T> dy, Indices indices, Image<T> dx,
                                         PoolShape s, bool channels_last) {
  using Acc = Accumulator<T>;
  const int64_t count = s.batch * s.channels * s.in_plane();
  for (int64_t i = first_thread(); i < count; i += thread_count()) {
    const Place p = place_of(i, s, s.in, channels_last);
    const int64_t here = (p.d * s.in[1] + p.h) * s.in[2] + p.w;
    const T* g = dy.plane(p.n, p.c);
    const int64_t index = indices.offset(p.n, p.c);
    Acc sum = 0;
    for_each_window(s, p, [&](int64_t d, int64_t h, int64_t w) {
      if (indices.load(index + indices.wide.offset(d, h, w)) == here) {
        sum += static_cast<Acc>(g[dy.offset(d, h, w)]);
      }
    });
    dx.plane(p.n, p.c)[dx.offset(p.d, p.h, p.w)] = static_cast<T>(sum);
  }
}

template <class T>
__global__ void avg_pool_forward_kernel(Image<const T> x, Image<T> y, PoolShape s,
                                        PoolDivisor divisor, bool channels_last) {
  using Acc = Accumulator<T>;
  const int64_t count = s.batch * s.channels * s.out_plane();
  for (int64_t i = first_thread(); i < count; i += thread_count()) {
    const Place o = place_of(i, s, s.out, channels_last);
    Acc sum = 0;
    for_each_tap(s, x, o, [&](Acc v, int64_t) { sum += v; });
    sum /= static_cast<Acc>(divisor.rows(s, o.d, o.h) * divisor.columns(s, o.w));
    y.plane(o.n, o.c)[y.offset(o.d, o.h, o.w)] = static_cast<T>(sum);
  }
}

template <class T>
__global__ void avg_pool_backward_kernel(Image<const T> dy, Image<T> dx, PoolShape s,
                                         PoolDivisor divisor, bool channels_last) {
  using Acc = Accumulator<T>;
  const int64_t count = s.batch * s.channels * s.in_plane();
  for (int64_t i = first_thread(); i < count; i += thread_count()) {
    const Place p = place_of(i, s, s.in, channels_last);
    const T* g = dy.plane(p.n, p.c);
    Acc sum = 0;
    for_each_window(s, p, [&](int64_t d, int64_t h, int64_t w) {
      sum += static_cast<Acc>(g[dy.offset(d, h, w)]) /
             static_cast<Acc>(divisor.rows(s, d, h) * divisor.columns(s, w));
    });
    dx.plane(p.n, p.c)[dx.offset(p.d, p.h, p.w)] = static_cast<T>(sum);
  }
}

int grid_over(const Tensor& result) { return grid_for(result.numel(), kThreads, 16); }

constexpr Impl<MaxPoolForward> kMaxForward[] = {
    {"direct", supports_all, nullptr,
     [](const MaxPoolForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() {
         launch_kernel(max_pool_forward_kernel<T>, grid_over(p.y), kThreads, 0, launch.stream,
                       Image<const T>(p.x), Image<T>(p.y), Indices(p.indices), p.shape,
                       is_channels_last(p.y));
       });
     }},
};
constexpr Impl<MaxPoolBackward> kMaxBackward[] = {
    {"gather", supports_all, nullptr,
     [](const MaxPoolBackward& p, const Launch& launch) {
       dispatch_floating(p.dy.dtype, [&]<class T>() {
         launch_kernel(max_pool_backward_kernel<T>, grid_over(p.dx), kThreads, 0, launch.stream,
                       Image<const T>(p.dy), Indices(p.indices), Image<T>(p.dx), p.shape,
                       is_channels_last(p.dx));
       });
     }},
};
constexpr Impl<AvgPoolForward> kAvgForward[] = {
    {"direct", supports_all, nullptr,
     [](const AvgPoolForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() {
         launch_kernel(avg_pool_forward_kernel<T>, grid_over(p.y), kThreads, 0, launch.stream,
                       Image<const T>(p.x), Image<T>(p.y), p.shape, p.divisor,
                       is_channels_last(p.y));
       });
     }},
};
constexpr Impl<AvgPoolBackward> kAvgBackward[] = {
    {"gather", supports_all, nullptr,
     [](const AvgPoolBackward& p, const Launch& launch) {
       dispatch_floating(p.dy.dtype, [&]<class T>() {
         launch_kernel(avg_pool_backward_kernel<T>, grid_over(p.dx), kThreads, 0, launch.stream,
                       Image<const T>(p.dy), Image<T>(p.dx), p.shape, p.divisor,
                       is_channels_last(p.dx));
       });
     }},
};

}  // namespace

template <>
ImplList<MaxPoolForward> gpu_impls<MaxPoolForward>() {
  return kMaxForward;
}
template <>
ImplList<MaxPoolBackward> gpu_impls<MaxPoolBackward>() {
  return kMaxBackward;
}
template <>
ImplList<AvgPoolForward> gpu_impls<AvgPoolForward>() {
  return kAvgForward;
}
template <>
ImplList<AvgPoolBackward> gpu_impls<AvgPoolBackward>() {
  return kAvgBackward;
}

}  // namespace dlkern
