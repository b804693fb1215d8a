// Pooling over windows of 1 to 3 spatial dimensions: gradients of averages and norms.
//
//   avg   dx[i] = sum of dy[o] / divisor(o) over the windows o that hold i
//   lp    dx[i] = sign(x[i]) |x[i]|^(p - 1) * sum of dy[o] / y[o]^(p - 1) over the windows that hold i
//
// Layout: any strides. No atomics: the order in which an element's windows are added is fixed, by their
// places alone. Besides the kernels of pool_backward.cuh:
//   planes    Averages of planar volumes without gaps: a block computes a tile, in shared memory, from the
//             windows over it, which are added up along W, then these sums along H and D.
// Bound by memory. 16-bit values are summed in float32.
#include "cuda/pool_backward.cuh"

namespace dlkern {
namespace {

using namespace gpu;

// ---- Planes -------------------------------------------------------------------------------------

// Averages' gradients of a part's windows in shared memory, one after the other.
template <class T>
__device__ __forceinline__ void stage_gradients(const AvgGradient<T>& gradient, const PoolShape& s,
                                                const PlaneTiles& tiles, const PlaneTile& tile,
                                                Accumulator<T>* windows) {
  using Acc = Accumulator<T>;
  const PlanePart& from = tile.source;
  const T* const dy = gradient.dy.data + offset_of(gradient.dy, tile, from);
  const Acc uniform = gradient.uniform != 0 ? gradient.uniform : Acc(1);
  for_runs(tiles, from, [&](int run, int offset, int length) {
#pragma unroll 8
    for (int i = threadIdx.x; i < length; i += kPlaneThreads) {
      windows[run * length + i] = gradient.value(static_cast<Acc>(dy[offset + i]), uniform);
    }
  });
  if (gradient.uniform != 0) return;
  for_runs(tiles, from, [&](int run, int, int length) {
#pragma unroll 1
    for (int i = threadIdx.x; i < length; i += kPlaneThreads) {  // written by this thread itself
      const PlanePlace o = window_place(tiles, from, run, i);
      Acc& window = windows[run * length + i];
      window = gradient.value(window, gradient.factor(s, PoolPlace<int>{0, 0, o.d, o.h, o.w}));
    }
  });
}

// Windows of any kind: sums along W of each row of windows, then of these along H and D.
template <class T>
__global__ void __launch_bounds__(kPlaneThreads)
    avg_planes_kernel(AvgGradient<T> gradient, Image<T> dx, PoolShape s, PlaneTiles tiles) {
  using Acc = Accumulator<T>;
  extern __shared__ uint4 memory[];
  if (blockIdx.x >= tiles.count) return;
  const PlaneTile tile = tiles.tile(blockIdx.x);
  const PlanePart &from = tile.source, &to = tile.target;
  T* const target = dx.data + offset_of(dx, tile, to);
  Acc* const windows = reinterpret_cast<Acc*>(memory);
  Acc* const rows = windows + tiles.most_sources();
  stage_gradients(gradient, s, tiles, tile, windows);
  __syncthreads();

  const int width = tiles.target.w, windows_w = tiles.source.w;
  const int lines = from.volumes * from.slices * from.rows;
  for (int i = threadIdx.x; i < lines * width; i += kPlaneThreads) {
    const int row = tiles.target.by_w.quick(i);
    const RangeOf<int> ow = tiles.reach[2](i - row * width);
    Acc sum = 0;
    for (int o = ow.begin; o < ow.end; ++o) sum += windows[row * windows_w + o];
    rows[i] = sum;
  }
  __syncthreads();
  const int count = tiles.targets_of(to);
  for (int i = threadIdx.x; i < count; i += kPlaneThreads) {
    const PlanePlace p = tiles.place(to, i);
    const RangeOf<int> od = tiles.deep ? tiles.reach[0](p.d) : RangeOf<int>{0, 1};
    const RangeOf<int> oh = tiles.reach[1](p.h);
    Acc sum = 0;
    for (int d = od.begin; d < od.end; ++d) {
      const int slice = p.volume * from.slices + d - from.d;
      const Acc* column = rows + (slice * from.rows - from.h) * width + p.w;
      for (int h = oh.begin; h < oh.end; ++h) sum += column[h * width];
    }
    target[i] = static_cast<T>(sum);
  }
}

// ---- Choices ------------------------------------------------------------------------------------

// Windows, and the sums of their rows.
PlaneTiles tiles_of(const AvgPoolBackward& p, bool packed) {
  const int64_t acc = p.dx.dtype == DType::kFloat64 ? 8 : 4;
  const int64_t width = p.shape.in[2], windows = p.shape.out[2];
  return PlaneTiles(p.shape, false, packed, [=](int64_t, int64_t sources) {
    return (sources + ceil_div(sources, windows) * width) * acc;
  });
}
const char* planes_suit(const AvgPoolBackward& given) {
  const AvgPoolBackward p = as_planes(given);
  if (const char* reason = planes_decline(p)) return reason;
  return tiles_of(p, true).decline();
}
void run_planes(const AvgPoolBackward& given, const Launch& launch) {
  const AvgPoolBackward p = as_planes(given);
  const PlaneTiles tiles = tiles_of(p, are_packed(p));
  dispatch_floating(p.dx.dtype, [&]<class T>() {
    launch_kernel(avg_planes_kernel<T>, tiles.grid(), kPlaneThreads, tiles.bytes, launch.stream,
                  AvgGradient<T>(p), Image<T>(p.dx), p.shape, tiles);
  });
}

// Norms other than the usual one are computed with numbers of 64 bits and channel by channel, so that
// their powers are compiled once.
template <class T>
void run_lp(const LpPoolBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const auto gradient = [&]<class Norm>(const Norm& norm) {
    return LpGradient<T, Norm>{Image<const T>(p.dy), Image<const T>(p.y), Image<const T>(p.x),
                               norm};
  };
  if (p.norm == 2 && counts_in_int(p.shape)) {
    return run_narrow_windows<T>(p, gradient(Norm2<Acc>{}), launch.stream);
  }
  launch_windows<T, int64_t, 1>(p, gradient(AnyNorm<Acc>{static_cast<Acc>(p.norm)}), launch.stream);
}

constexpr Impl<AvgPoolBackward> kAvg[] = {
    {"rows", rows_suit<AvgPoolBackward>, nullptr, run_rows<AvgPoolBackward>},
    {"channels", channels_suit<AvgPoolBackward>, nullptr, run_channels<AvgPoolBackward>},
    {"planes", planes_suit, nullptr, run_planes},
    {"windows", supports_all, nullptr, run_windows<AvgPoolBackward>},
};
constexpr Impl<LpPoolBackward> kLp[] = {
    {"windows", supports_all, nullptr,
     [](const LpPoolBackward& p, const Launch& launch) {
       dispatch_floating(p.dx.dtype, [&]<class T>() { run_lp<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<AvgPoolBackward> gpu_impls<AvgPoolBackward>() {
  return kAvg;
}
template <>
ImplList<LpPoolBackward> gpu_impls<LpPoolBackward>() {
  return kLp;
}

}  // namespace dlkern
