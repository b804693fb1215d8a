// Pooling over windows of 1 to 3 spatial dimensions: gradients of maxima.
//
//   dx[i] = sum of dy[o] over the windows o whose maximum is i, by the forward's indices
//
// Layout: any strides. No atomics: the order in which an element's windows are added is fixed, by their
// places alone. Besides the kernels of pool_backward.cuh:
//   planes    Planar volumes without gaps: a block computes a tile, in shared memory, from the windows
//             over it. Each window adds to its maximum, those first that are even along all dimensions,
//             and so on, as those do not overlap.
// Bound by memory. 16-bit values are summed in float32.
#include "cuda/pool_backward.cuh"

namespace dlkern {
namespace {

using namespace gpu;

// ---- Planes -------------------------------------------------------------------------------------

// A window in shared memory: its gradient, and the number within the tile of its maximum, which may lie
// outside.
template <class T>
struct StagedMaximum {
  Accumulator<T> dy;
  int at;
};

// Windows of one color, those with o % step[d] == one number for each d, do not overlap.
struct Colors {
  int step[kMaxSpatial];
  FastDiv by_d, by_h, by_w;  // the most windows of one color in a tile

  explicit Colors(const PlaneTiles& tiles)
      : by_d(most(tiles, 0, tiles.whole ? tiles.source.d : tiles.slices)),
        by_h(most(tiles, 1, tiles.whole ? tiles.source.h : tiles.source_rows)),
        by_w(most(tiles, 2, tiles.source.w)) {}

  // f(number of a window within the part) for this thread's windows of the color {d, h, w}.
  template <class F>
  __device__ __forceinline__ void for_windows(const PlaneTiles& tiles, const PlanePart& part, int d,
                                              int h, int w, F&& f) const {
    const int across = static_cast<int>(by_w.divisor()), down = static_cast<int>(by_h.divisor()),
              deep = static_cast<int>(by_d.divisor());
    d = after(part.d, d, step[0]), h = after(part.h, h, step[1]);
    for (int i = threadIdx.x; i < part.volumes * deep * down * across; i += kPlaneThreads) {
      int row = by_w.quick(i), slice = 0;
      const int column = (i - row * across) * step[2] + w;
      if (tiles.whole || tiles.deep) {
        slice = by_h.quick(row);
        row -= slice * down;
        const int volume = by_d.quick(slice);
        slice = volume * part.slices + (slice - volume * deep) * step[0] + d;
        if (slice >= (volume + 1) * part.slices) continue;
      }
      row = row * step[1] + h;
      if (column < tiles.source.w && row < part.rows) {
        f((slice * part.rows + row) * tiles.source.w + column);
      }
    }
  }

 private:
  FastDiv most(const PlaneTiles& tiles, int d, int windows) {
    step[d] = tiles.reach[d].most(1);
    return FastDiv(ceil_div(windows, step[d]));
  }
  // From `begin` to the first window of a color.
  static __device__ __forceinline__ int after(int begin, int color, int step) {
    return step == 1 ? 0 : (color + step - begin % step) % step;
  }
};

// Each window adds to its maximum, color by color.
template <class T>
__global__ void __launch_bounds__(kPlaneThreads)
    max_planes_kernel(MaxGradient<T> gradient, Image<T> dx, PoolShape s, PlaneTiles tiles,
                      Colors colors) {
  using Acc = Accumulator<T>;
  extern __shared__ uint4 memory[];
  if (blockIdx.x >= tiles.count) return;
  const PlaneTile tile = tiles.tile(blockIdx.x);
  const PlanePart &from = tile.source, &to = tile.target;
  T* const target = dx.data + offset_of(dx, tile, to);
  const int count = tiles.targets_of(to);
  auto* const windows = reinterpret_cast<StagedMaximum<T>*>(memory);
  Acc* const sums =
      reinterpret_cast<Acc*>(windows + (tiles.most_sources() + 1) / 2 * 2) + misalignment(target);

  for (int i = threadIdx.x; i < count; i += kPlaneThreads) sums[i] = 0;
  const T* const dy = gradient.dy.data + offset_of(gradient.dy, tile, from);
  const int64_t first_index = offset_of(gradient.indices, tile, from);
  // The flat position that the tile begins with; that of volume v lies v * volume later.
  const int begin = (to.d * tiles.target.h + to.h) * tiles.target.w;
  gradient.indices.visit([&]<class Index>(const Index* indices) {
    indices += first_index;
    for_runs(tiles, from, [&](int run, int offset, int length) {
#pragma unroll 2
      for (int i = threadIdx.x; i < length; i += kPlaneThreads) {
        const auto given = static_cast<Acc>(dy[offset + i]);
        int at = narrow(indices[offset + i]);
        if constexpr (sizeof(Index) == 1) at = gradient.position(s, tiles, from, run, i, at);
        const int volume = tiles.whole ? gradient.by_volume.quick(i) : 0;
        windows[run * length + i] = {given, at - begin + volume * tiles.target.volume()};
      }
    });
  });
  for (int d = 0; d < colors.step[0]; ++d) {
    for (int h = 0; h < colors.step[1]; ++h) {
      for (int w = 0; w < colors.step[2]; ++w) {
        __syncthreads();
        colors.for_windows(tiles, from, d, h, w, [&](int i) {
          const StagedMaximum<T> window = windows[i];
          if (is_inside(window.at, count)) sums[window.at] += window.dy;
        });
      }
    }
  }
  __syncthreads();
  write_out(target, sums, count);
}

// ---- Choices ------------------------------------------------------------------------------------

// Sums, and windows with their maxima.
PlaneTiles tiles_of(const MaxPoolBackward& p, bool packed) {
  const int64_t acc = p.dx.dtype == DType::kFloat64 ? 8 : 4;
  return PlaneTiles(p.shape, false, packed, [=](int64_t targets, int64_t sources) {
    return (targets + 2 * sources + 16) * acc;
  });
}
const char* planes_suit(const MaxPoolBackward& given) {
  const MaxPoolBackward p = as_planes(given);
  if (const char* reason = planes_decline(p)) return reason;
  return tiles_of(p, true).decline();
}
void run_planes(const MaxPoolBackward& given, const Launch& launch) {
  const MaxPoolBackward p = as_planes(given);
  const PlaneTiles tiles = tiles_of(p, are_packed(p));
  dispatch_floating(p.dx.dtype, [&]<class T>() {
    launch_kernel(max_planes_kernel<T>, tiles.grid(), kPlaneThreads, tiles.bytes, launch.stream,
                  MaxGradient<T>(p), Image<T>(p.dx), p.shape, tiles, Colors(tiles));
  });
}

constexpr Impl<MaxPoolBackward> kMax[] = {
    {"rows", rows_suit<MaxPoolBackward>, nullptr, run_rows<MaxPoolBackward>},
    {"channels", channels_suit<MaxPoolBackward>, nullptr, run_channels<MaxPoolBackward>},
    {"planes", planes_suit, nullptr, run_planes},
    {"windows", supports_all, nullptr, run_windows<MaxPoolBackward>},
};

}  // namespace

template <>
ImplList<MaxPoolBackward> gpu_impls<MaxPoolBackward>() {
  return kMax;
}

}  // namespace dlkern
