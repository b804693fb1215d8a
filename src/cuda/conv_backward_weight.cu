// Convolution's weight gradient:
//
//   dw[k, c, t] = sum_pixel dy[pixel, k] x[pixel * stride - pad + t * dilation, c]
//
// an implicit matrix product [k, (c, t)] over a shared-memory tile, with the pixels of all images as
// the index of the sum. Operands are read along pixels, or along channels where those lie closer
// together (NHWC).
// The sum is long and the result may be small: it is then cut into a number of parts that follows
// from the extents alone, each part's result goes to the workspace, and a second kernel adds them in
// order. Sums in float32 (float64 for float64).
// Groups of a few channels (depthwise) have no tile worth sharing: the threads of a block share the
// sum of one weight, or of the same weight of 32 neighbouring channels (NHWC).
// Bound by FMA issue; the direct kernel by memory.
#include "cuda/conv.h"

#include "cuda/conv.cuh"
#include "cuda/prims/sum_parts.cuh"

namespace dlkern {
namespace {

using namespace gpu;

struct Args {
  Gather<false> gather;
  PixelIndex pixels;  // of dy
  TapIndex taps;
  const void *x, *dy;
  void *dw, *parts;  // parts: [part, group, k, (c, t)], or nullptr where there is one part
  ConvImageStrides dy_strides;
  ConvWeightStrides dw_strides;
  int64_t groups, k, c;  // channels per group
  int64_t tiles_m, tiles_n, part_count;
  bool accumulate;
  const int* condition = nullptr;  // optional: nothing is done where it is 0

  explicit Args(const ConvProblem& p)
      : gather(p.geometry, p.x_strides),
        pixels(p.geometry.batch, p.geometry.out),
        taps(p.geometry.c, p.geometry),
        x(p.x.data),
        dy(p.y.data),
        dw(p.w.data),
        parts(nullptr),
        dy_strides(p.y_strides),
        dw_strides(p.w_strides),
        groups(p.geometry.groups),
        k(p.geometry.k),
        c(p.geometry.c),
        part_count(1),
        accumulate(p.accumulate) {}
};

// dy as operand [k, pixel].
template <class T, bool kChannelsLast>
struct GradientOperand {
  static constexpr bool kAlongK = !kChannelsLast;
  const T* dy;
  const ConvImageStrides& strides;
  const PixelIndex& pixels;

  __device__ int64_t row(int64_t k) const { return k * strides.c; }
  __device__ int64_t col(int64_t pixel) const { return pixels.offset(pixel, strides); }
  __device__ Accumulator<T> load(int64_t row, int64_t col) const {
    return static_cast<Accumulator<T>>(dy[row + col]);
  }
};

template <class T>
__device__ void store(T* to, bool accumulate, Accumulator<T> sum) {
  *to = static_cast<T>(accumulate ? static_cast<Accumulator<T>>(*to) + sum : sum);
}

// Weight k, r = (c, t) of a group.
template <class T, bool kChannelsLast>
__device__ T* weight_at(const Args& args, int64_t group, int64_t k, int64_t r) {
  int64_t tap[3];
  const int64_t c = args.taps.take_apart<kChannelsLast>(r, tap);
  const ConvWeightStrides& s = args.dw_strides;
  return static_cast<T*>(args.dw) + group * s.group + k * s.k + c * s.c + tap_offset(s, tap);
}

template <class Tile, class T, bool kChannelsLast>
__global__ void __launch_bounds__(Tile::kThreads, (kBlocksOf<Tile, Accumulator<T>>))
    conv_weight_gemm_kernel(const Args args) {
  using Acc = Accumulator<T>;
  using Patches = PatchOperand<T, Gather<false>, kChannelsLast, false>;
  if (args.condition && *args.condition == 0) return;
  const int64_t tiles = args.tiles_m * args.tiles_n * args.groups * args.part_count;
  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const TileOf tile(i, args.tiles_m, args.tiles_n);
    const int64_t group = tile.item % args.groups, part = tile.item / args.groups;
    const GradientOperand<T, kChannelsLast> gradient{
        static_cast<const T*>(args.dy) + group * args.k * args.dy_strides.c, args.dy_strides,
        args.pixels};
    const Patches patches{static_cast<const T*>(args.x) + group * args.c * args.gather.strides.c,
                          args.gather, args.pixels, args.taps};
    const int64_t begin = args.pixels.count * part / args.part_count;
    const int64_t end = args.pixels.count * (part + 1) / args.part_count;
    simt_gemm<Tile, Acc>(
        tile.m * Tile::kM, tile.n * Tile::kN, args.k, args.taps.count, begin, end, gradient,
        patches, [&](int64_t k, int64_t r, Acc sum) {
          if (args.parts) {
            static_cast<Acc*>(args.parts)[(tile.item * args.k + k) * args.taps.count + r] = sum;
          } else {
            store(weight_at<T, kChannelsLast>(args, group, k, r), args.accumulate, sum);
          }
        });
  }
}

template <class T, bool kChannelsLast>
__global__ void __launch_bounds__(kPartsThreads)
    conv_weight_parts_kernel(const Args args, PartsShare share) {
  using Acc = Accumulator<T>;
  if (args.condition && *args.condition == 0) return;
  const int64_t count = args.groups * args.k * args.taps.count, i = share.element();
  const bool there = i < count;
  const Acc* first = static_cast<const Acc*>(args.parts) + i;
  const Acc sum = share.sum(there ? first : nullptr, count, args.part_count);
  if (!there || !share.leads()) return;
  const int64_t row = i / args.taps.count, group = row / args.k;
  store(weight_at<T, kChannelsLast>(args, group, row - group * args.k, i - row * args.taps.count),
        args.accumulate, sum);
}

constexpr int kSumThreads = 256;

// The sum of term(i) over i < count in each lane of a block of kSumThreads threads: thread t belongs
// to lane t % lanes, and lanes is a power of two.
template <class Acc, class Term>
__device__ Acc lane_sum(int64_t count, int lanes, const Term& term) {
  __shared__ Acc partial[kSumThreads];
  const int t = threadIdx.x;
  Acc sum = 0;
  for (int64_t i = t / lanes; i < count; i += kSumThreads / lanes) sum += term(i);
  __syncthreads();  // the previous call's reads of partial are over
  partial[t] = sum;
  __syncthreads();
  for (int half = kSumThreads / 2; half >= lanes; half /= 2) {
    if (t < half) partial[t] += partial[t + half];
    __syncthreads();
  }
  return partial[t % lanes];
}

template <class T, bool kChannelsLast>
__global__ void __launch_bounds__(kSumThreads) conv_weight_direct_kernel(const Args args) {
  using Acc = Accumulator<T>;
  constexpr int kLanes = kChannelsLast ? 32 : 1;  // neighbouring channels of dy
  const int64_t channels = args.groups * args.k, blocks = (channels + kLanes - 1) / kLanes;
  for (int64_t i = blockIdx.x; i < blocks * args.taps.count; i += gridDim.x) {
    const int64_t r = i / blocks, channel = i % blocks * kLanes + threadIdx.x % kLanes;
    const int64_t group = channel / args.k;
    int64_t at[3];
    const int64_t c = args.taps.take_apart<kChannelsLast>(r, at);
    const auto tap = args.gather.tap(group * args.c + c, at);
    const T* dy = static_cast<const T*>(args.dy) + channel * args.dy_strides.c;
    // Lanes past the last channel take part in the barriers alone.
    const int64_t count = channel < channels ? args.pixels.count : 0;
    const Acc sum = lane_sum<Acc>(count, kLanes, [&](int64_t pixel) {
      int64_t position[3];
      const int64_t n = args.pixels.take_apart(pixel, position);
      const ConvImageStrides& s = args.dy_strides;
      const Acc g = static_cast<Acc>(dy[n * s.n + position[0] * s.spatial[0] +
                                        position[1] * s.spatial[1] + position[2] * s.spatial[2]]);
      return g *
             args.gather.load(static_cast<const T*>(args.x), args.gather.pixel(n, position), tap);
    });
    if (threadIdx.x < kLanes && channel < channels) {
      store(weight_at<T, kChannelsLast>(args, group, channel - group * args.k, r), args.accumulate,
            sum);
    }
  }
}

// How the product is cut up. It follows from the extents alone, since the bits depend on it.
struct Plan {
  bool big;
  int64_t tiles_m, tiles_n, parts;
  size_t bytes;
};
template <class T>
Plan plan_of(const ConvProblem& p) {
  using Acc = Accumulator<T>;
  using Big = ConvTileFor<Acc>;
  const ConvGeometry& g = p.geometry;
  const int64_t r = g.c * g.taps(), pixels = g.batch * g.out_count();
  Plan plan{};
  plan.big = g.k > Big::kM / 2 && r > Big::kN / 2;
  plan.tiles_m = ceil_div(g.k, plan.big ? Big::kM : SmallTile::kM);
  plan.tiles_n = ceil_div(r, plan.big ? Big::kN : SmallTile::kN);
  const int64_t tiles = std::max<int64_t>(plan.tiles_m * plan.tiles_n * g.groups, 1);
  plan.parts = std::clamp<int64_t>(512 / tiles, 1, std::max<int64_t>(pixels / 512, 1));
  plan.bytes = plan.parts > 1 ? plan.parts * g.groups * g.k * r * sizeof(Acc) : 0;
  return plan;
}

template <class Tile, class T>
void launch_tile(const Args& args, bool last, const Launch& launch) {
  launch_kernel(
      last ? conv_weight_gemm_kernel<Tile, T, true> : conv_weight_gemm_kernel<Tile, T, false>,
      grid_of(args.tiles_m * args.tiles_n * args.groups * args.part_count), Tile::kThreads, 0,
      launch.stream, args);
}

template <class T>
void launch_gemm(const ConvProblem& p, const Launch& launch, const int* condition = nullptr) {
  const Plan plan = plan_of<T>(p);
  const bool last = channels_last(p);
  Args args(p);
  args.condition = condition;
  args.tiles_m = plan.tiles_m;
  args.tiles_n = plan.tiles_n;
  args.part_count = plan.parts;
  args.parts = plan.parts > 1 ? launch.workspace : nullptr;
  if (plan.big) {
    launch_tile<ConvTileFor<Accumulator<T>>, T>(args, last, launch);
  } else {
    launch_tile<SmallTile, T>(args, last, launch);
  }
  if (plan.parts > 1) {
    const PartsShare share(plan.parts);
    launch_kernel(last ? conv_weight_parts_kernel<T, true> : conv_weight_parts_kernel<T, false>,
                  share.grid(args.groups * args.k * args.taps.count), kPartsThreads, 0,
                  launch.stream, args, share);
  }
}

template <class T>
void launch_direct(const ConvProblem& p, const Launch& launch) {
  const Args args(p);
  const bool last = channels_last(p);
  const int64_t channels = args.groups * args.k;
  launch_kernel(last ? conv_weight_direct_kernel<T, true> : conv_weight_direct_kernel<T, false>,
                grid_of((last ? ceil_div(channels, 32) : channels) * args.taps.count), kSumThreads,
                0, launch.stream, args);
}

const char* supports_direct(const ConvBackwardWeight& p) {
  const ConvGeometry& g = p.geometry;
  if (g.groups == 1) return "there is one group";
  if (g.c > 4 || g.k > 4) return "a group has more than 4 channels";
  return fits(g);
}

constexpr Impl<ConvBackwardWeight> kBackwardWeight[] = {
    {"direct", supports_direct, nullptr,
     [](const ConvBackwardWeight& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() {
         if (p.w.numel() > 0) launch_direct<T>(p, launch);
       });
       if (p.bias) add_bias_gradient(p, launch);
     }},
    {"implicit_gemm", [](const ConvBackwardWeight& p) { return fits(p.geometry); },
     [](const ConvBackwardWeight& p) {
       return dispatch_floating(p.x.dtype, [&]<class T>() { return plan_of<T>(p).bytes; });
     },
     [](const ConvBackwardWeight& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() {
         if (p.w.numel() > 0) launch_gemm<T>(p, launch);
       });
       if (p.bias) add_bias_gradient(p, launch);
     }},
};

}  // namespace

ImplList<ConvBackwardWeight> conv_backward_weight_simt_impls() { return kBackwardWeight; }

void gpu::run_weights_simt_if(const ConvProblem& p, const int* condition, const Launch& launch) {
  launch_gemm<float>(p, launch, condition);
}
size_t gpu::weights_simt_workspace_bytes(const ConvProblem& p) { return plan_of<float>(p).bytes; }

}  // namespace dlkern
