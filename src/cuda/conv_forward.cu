// Convolution forward and its input gradient (the forward of the transposed convolution), as an
// implicit matrix product over a shared-memory tile:
//
//   forward         y[pixel, k]  = bias[k] + sum_(c, t)  x[pixel * stride - pad + t * dilation, c] w[k, c, t]
//   backward_input  dx[pixel, c] = bias[c] + sum_(k, t)  dy[(pixel + pad - t * dilation) / stride, k] w[k, c, t]
//
// where a fractional or outside position gives 0: each element of the result has one owner, which
// gathers, so that nothing is added up in memory. One to three spatial dimensions run as three.
// Layout: pixels of all images are one index, (channel, tap) the index of the sum. Where channels
// lie closer together than pixels (NHWC) the tile is [pixel, channel] and the sum runs over taps
// outside channels, else the tile is [channel, pixel]; groups are separate products.
// Bound by FMA issue; for a stride above 1 the input gradient spends multiplications on zeros.
// Sums in float32 (float64 for float64), one chain in the order of the sum: an image's bits do not
// depend on the batch.
//
// Few channels per group (depthwise) have no tile worth sharing: one thread per element then.
#include "cuda/conv.h"

#include "cuda/conv.cuh"

namespace dlkern {
namespace {

using namespace gpu;

template <bool kInverse>
struct Args {
  Gather<kInverse> gather;
  PixelIndex pixels;  // of the result
  TapIndex taps;      // of the sum
  const void *image, *weights, *bias;
  void* result;
  ConvImageStrides result_strides;
  ConvWeightStrides weight_strides;  // k: between channels of the result, c: between those summed
  int64_t bias_stride;
  int64_t groups, channels, summed;  // channels of the result, and summed, per group
  int64_t tiles_m, tiles_n;
  const int* condition = nullptr;  // optional: nothing is done where it is 0

  explicit Args(const ConvProblem& p)
      : gather(p.geometry, kInverse ? p.y_strides : p.x_strides),
        pixels(p.geometry.batch, kInverse ? p.geometry.in : p.geometry.out),
        taps(kInverse ? p.geometry.k : p.geometry.c, p.geometry),
        image((kInverse ? p.y : p.x).data),
        weights(p.w.data),
        bias(p.bias.data),
        result((kInverse ? p.x : p.y).data),
        result_strides(kInverse ? p.x_strides : p.y_strides),
        weight_strides(p.w_strides),
        bias_stride(p.bias ? p.bias.strides[0] : 0),
        groups(p.geometry.groups),
        channels(kInverse ? p.geometry.c : p.geometry.k),
        summed(kInverse ? p.geometry.k : p.geometry.c) {
    if (kInverse) std::swap(weight_strides.k, weight_strides.c);
  }
};

// The weights as operand [channel of the result, (channel, tap) of the sum].
template <class T, bool kChannelsLast, bool kInverse>
struct WeightOperand {
  // In NHWC order channels c are neighbours: those of the sum, or for the inverse of the result.
  static constexpr bool kAlongK = !(kChannelsLast && kInverse);
  const T* weights;
  const ConvWeightStrides& strides;
  const TapIndex& taps;

  __device__ int64_t row(int64_t r) const { return r * strides.k; }
  __device__ int64_t col(int64_t i) const {
    int64_t tap[3];
    const int64_t channel = taps.take_apart<kChannelsLast>(i, tap);
    return channel * strides.c + tap_offset(strides, tap);
  }
  __device__ Accumulator<T> load(int64_t row, int64_t col) const {
    return static_cast<Accumulator<T>>(weights[row + col]);
  }
};

template <class T, bool kInverse>
__device__ void store(const Args<kInverse>& args, int64_t channel, int64_t pixel,
                      Accumulator<T> sum) {
  if (args.bias) {
    const T* bias = static_cast<const T*>(args.bias);
    sum += static_cast<Accumulator<T>>(bias[channel * args.bias_stride]);
  }
  T* result = static_cast<T*>(args.result);
  result[args.pixels.offset(pixel, args.result_strides) + channel * args.result_strides.c] =
      static_cast<T>(sum);
}

template <class Tile, class T, bool kChannelsLast, bool kInverse>
__global__ void __launch_bounds__(Tile::kThreads, (kBlocksOf<Tile, Accumulator<T>>))
    conv_gemm_kernel(const Args<kInverse> args) {
  using Acc = Accumulator<T>;
  using Patches = PatchOperand<T, Gather<kInverse>, kChannelsLast, true>;
  using Weights = WeightOperand<T, kChannelsLast, kInverse>;
  if (args.condition && *args.condition == 0) return;
  const int64_t tiles = args.tiles_m * args.tiles_n * args.groups;
  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const TileOf tile(i, args.tiles_m, args.tiles_n);
    const int64_t m0 = tile.m * Tile::kM, n0 = tile.n * Tile::kN, group = tile.item;
    const int64_t first = group * args.channels;
    const Patches patches{
        static_cast<const T*>(args.image) + group * args.summed * args.gather.strides.c,
        args.gather, args.pixels, args.taps};
    const Weights weights{static_cast<const T*>(args.weights) + group * args.weight_strides.group,
                          args.weight_strides, args.taps};
    if constexpr (kChannelsLast) {
      simt_gemm<Tile, Acc>(
          m0, n0, args.pixels.count, args.channels, 0, args.taps.count, patches, weights,
          [&](int64_t m, int64_t n, Acc sum) { store<T>(args, first + n, m, sum); });
    } else {
      simt_gemm<Tile, Acc>(
          m0, n0, args.channels, args.pixels.count, 0, args.taps.count, weights, patches,
          [&](int64_t m, int64_t n, Acc sum) { store<T>(args, first + m, n, sum); });
    }
  }
}

template <class T, bool kChannelsLast, bool kInverse>
__global__ void __launch_bounds__(256)
    conv_direct_kernel(const Args<kInverse> args, FastDiv all_channels, FastDiv image_pixels) {
  using Acc = Accumulator<T>;
  const int64_t total = args.pixels.count * all_channels.divisor();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const ConvWeightStrides& ws = args.weight_strides;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
    int64_t pixel = i, channel;
    if constexpr (kChannelsLast) {
      channel = i;
      pixel = all_channels.divide(channel);
    } else {
      int64_t n = image_pixels.divide(pixel);
      channel = n;
      n = all_channels.divide(channel);
      pixel += n * image_pixels.divisor();
    }
    const int64_t group = channel / args.channels;
    int64_t at[3];
    const int64_t n = args.pixels.take_apart(pixel, at);
    const auto p = args.gather.pixel(n, at);
    const T* image =
        static_cast<const T*>(args.image) + group * args.summed * args.gather.strides.c;
    const T* weights = static_cast<const T*>(args.weights) + group * ws.group +
                       (channel - group * args.channels) * ws.k;
    Acc sum = 0;
    for (int64_t r = 0; r < args.taps.count; ++r) {
      int64_t tap[3];
      const int64_t c = args.taps.template take_apart<kChannelsLast>(r, tap);
      sum = fma(args.gather.load(image, p, args.gather.tap(c, tap)),
                static_cast<Acc>(weights[c * ws.c + tap_offset(ws, tap)]), sum);
    }
    store<T>(args, channel, pixel, sum);
  }
}

template <class Tile, class T, bool kInverse>
void launch_tile(Args<kInverse> args, bool last, const Launch& launch) {
  args.tiles_m = ceil_div(last ? args.pixels.count : args.channels, Tile::kM);
  args.tiles_n = ceil_div(last ? args.channels : args.pixels.count, Tile::kN);
  int64_t blocks = args.tiles_m * args.tiles_n * args.groups;
  if (args.condition) blocks = std::min<int64_t>(blocks, 2 * multiprocessor_count());
  launch_kernel(
      last ? conv_gemm_kernel<Tile, T, true, kInverse> : conv_gemm_kernel<Tile, T, false, kInverse>,
      grid_of(blocks), Tile::kThreads, 0, launch.stream, args);
}

// The large tile where it is well filled and there are enough of them for the device.
template <class T, bool kInverse>
void launch_gemm(const ConvProblem& p, const Launch& launch, const int* condition = nullptr) {
  using Big = ConvTileFor<Accumulator<T>>;
  Args<kInverse> args(p);
  args.condition = condition;
  const int64_t tiles = ceil_div(args.channels, Big::kM) * ceil_div(args.pixels.count, Big::kN);
  if (args.channels > Big::kN / 2 && tiles * args.groups >= multiprocessor_count()) {
    launch_tile<Big, T>(args, channels_last(p), launch);
  } else {
    launch_tile<SmallTile, T>(args, channels_last(p), launch);
  }
}

template <class T, bool kInverse>
void launch_direct(const ConvProblem& p, const Launch& launch) {
  const Args<kInverse> args(p);
  const int64_t channels = args.channels * args.groups;
  launch_kernel(channels_last(p) ? conv_direct_kernel<T, true, kInverse>
                                 : conv_direct_kernel<T, false, kInverse>,
                grid_for(args.pixels.count * channels, 256, 16), 256, 0, launch.stream, args,
                FastDiv(std::max<int64_t>(channels, 1)), args.pixels.pixels);
}

template <bool kInverse>
const char* supports_direct(const ConvProblem& p) {
  if (const char* reason = fused_work_declines(p)) return reason;
  const ConvGeometry& g = p.geometry;
  if (g.groups == 1) return "there is one group";
  if ((kInverse ? g.k : g.c) > 4) return "a group has more than 4 channels to sum over";
  return fits(g);
}
const char* supports_gemm(const ConvProblem& p) {
  if (const char* reason = fused_work_declines(p)) return reason;
  return fits(p.geometry);
}

constexpr Impl<ConvForward> kForward[] = {
    {"direct", [](const ConvForward& p) { return supports_direct<false>(p); }, nullptr,
     [](const ConvForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_direct<T, false>(p, launch); });
     }},
    {"implicit_gemm", [](const ConvForward& p) { return supports_gemm(p); }, nullptr,
     [](const ConvForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_gemm<T, false>(p, launch); });
     }},
};
constexpr Impl<ConvBackwardInput> kBackwardInput[] = {
    {"direct", [](const ConvBackwardInput& p) { return supports_direct<true>(p); }, nullptr,
     [](const ConvBackwardInput& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_direct<T, true>(p, launch); });
     }},
    {"implicit_gemm", [](const ConvBackwardInput& p) { return supports_gemm(p); }, nullptr,
     [](const ConvBackwardInput& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_gemm<T, true>(p, launch); });
     }},
};

}  // namespace

ImplList<ConvForward> conv_forward_simt_impls() { return kForward; }
ImplList<ConvBackwardInput> conv_backward_input_simt_impls() { return kBackwardInput; }

void gpu::run_simt_if(const ConvProblem& p, bool inverse, const int* condition,
                      const Launch& launch) {
  inverse ? launch_gemm<float, true>(p, launch, condition)
          : launch_gemm<float, false>(p, launch, condition);
}

}  // namespace dlkern
