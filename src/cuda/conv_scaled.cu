// The forward convolution of 8-bit numbers on any GPU.
//
//   y[pixel, k] = epilogue(sum_(c, t) x[pixel * stride - pad + t * dilation, c] w[k, c, t])
//
// One tap that moves nowhere is a scaled matrix product (gemm.h), Hopper's tensor cores have files of
// their own, and what is left goes the way of conv_forward.cu: an implicit matrix product over a
// shared-memory tile, or, where a group has few channels, a thread for each element.
// Sums in int32 (int8) or float32 (float8), one chain in the order of the sum: an image's bits do not
// depend on the batch. Bound by the issue of multiply-adds.
#include <vector>

#include "cuda/conv.cuh"
#include "cuda/conv.h"
#include "cuda/gemm_parts.cuh"

namespace dlkern {
namespace {

using namespace gpu;

// ---- One tap that moves nowhere ----------------------------------------------------------------

const char* make_product(const ScaledConv& p, Gemm& g) {
  if (const char* reason = pointwise_product(p, g)) return reason;
  const ConvGeometry& geometry = p.geometry;
  const bool last = channels_last(p), each = p.scale_w.row != 0 && geometry.groups > 1;
  if (each && g.batch.ndim > 1) return "factors of each group beside a batch of images";
  const Gemm output = scaled_conv_output(p, last);
  g.scale_a = output.scale_a;
  g.scale_b = output.scale_b;
  if (each) (last ? g.scale_b : g.scale_a).item = geometry.k * p.scale_w.row;
  g.activation = output.activation;
  g.activation_alpha = output.activation_alpha;
  g.activation_threshold = output.activation_threshold;
  g.scale_y = output.scale_y;
  g.amax = output.amax;
  return nullptr;
}
const char* product_declines(const ScaledConv& p) {
  Gemm g;
  return make_product(p, g);
}
size_t product_workspace(const ScaledConv& p) {
  Gemm g;
  make_product(p, g);
  const Impl<Gemm>& impl = gemm_impl(g);
  return impl.workspace_bytes ? impl.workspace_bytes(g) : 0;
}
void run_product(const ScaledConv& p, const Launch& launch) {
  Gemm g;
  make_product(p, g);
  gemm_impl(g).run(g, launch);
}

// ---- Multiply-adds -----------------------------------------------------------------------------

// A code as a number that is summed in Sum.
template <class Sum>
__device__ __forceinline__ Sum number_of(uint8_t code, bool is_e5m2) {
  if constexpr (std::is_integral_v<Sum>) {
    return static_cast<int8_t>(code);
  } else {
    return float8_value(code, is_e5m2);
  }
}

struct Args {
  Gather<false> gather;
  PixelIndex pixels;  // of y
  TapIndex taps;
  const uint8_t *x, *w;
  bool x_is_e5m2, w_is_e5m2;
  ConvImageStrides y_strides;
  ConvWeightStrides w_strides;
  int64_t groups, c, k;
  int64_t tiles_m = 0, tiles_n = 0;
  Gemm output;

  explicit Args(const ScaledConv& p)
      : gather(p.geometry, p.x_strides),
        pixels(p.geometry.batch, p.geometry.out),
        taps(p.geometry.c, p.geometry),
        x(p.x.as<const uint8_t>()),
        w(p.w.as<const uint8_t>()),
        x_is_e5m2(p.x.dtype == DType::kFloat8E5M2),
        w_is_e5m2(p.w.dtype == DType::kFloat8E5M2),
        y_strides(p.y_strides),
        w_strides(p.w_strides),
        groups(p.geometry.groups),
        c(p.geometry.c),
        k(p.geometry.k),
        output(scaled_conv_output(p, channels_last(p))) {
    output.n = -1;  // no element is a sum of rows
  }

  // The element of y of channel k, of all groups, in the order of the product.
  template <class Sum>
  __device__ void finish(int64_t pixel, int64_t channel, bool channels_are_columns, Sum sum) const {
    int64_t at[Gemm::kTensors] = {};
    at[3] = pixels.offset(pixel, y_strides);
    const GemmEpilogue<Sum> epilogue{output, 0, at};
    channels_are_columns ? epilogue(0, channel, sum) : epilogue(channel, 0, sum);
  }
};

template <class Sum, bool kChannelsLast>
struct Patches : PatchOperand<uint8_t, Gather<false>, kChannelsLast, true> {
  bool is_e5m2;

  template <class Row, class Col>
  __device__ Sum load(const Row& row, const Col& col) const {
    int64_t offset;
    return this->gather.find(row, col, offset) ? number_of<Sum>(this->image[offset], is_e5m2)
                                               : Sum(0);
  }
};

template <class Sum, bool kChannelsLast>
struct Weights {
  static constexpr bool kAlongK = true;
  const uint8_t* weights;
  const ConvWeightStrides& strides;
  const TapIndex& taps;
  bool is_e5m2;

  __device__ int64_t row(int64_t r) const { return r * strides.k; }
  __device__ int64_t col(int64_t i) const {
    int64_t tap[3];
    const int64_t channel = taps.take_apart<kChannelsLast>(i, tap);
    return channel * strides.c + tap_offset(strides, tap);
  }
  __device__ Sum load(int64_t row, int64_t col) const {
    return number_of<Sum>(weights[row + col], is_e5m2);
  }
};

template <class Tile, class Sum, bool kChannelsLast>
__global__ void __launch_bounds__(Tile::kThreads, (kBlocksOf<Tile, Sum>))
    scaled_conv_gemm_kernel(const Args args) {
  const int64_t tiles = args.tiles_m * args.tiles_n * args.groups;
  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const TileOf tile(i, args.tiles_m, args.tiles_n);
    const int64_t m0 = tile.m * Tile::kM, n0 = tile.n * Tile::kN, group = tile.item;
    const int64_t first = group * args.k;
    const Patches<Sum, kChannelsLast> patches{
        {args.x + group * args.c * args.gather.strides.c, args.gather, args.pixels, args.taps},
        args.x_is_e5m2};
    const Weights<Sum, kChannelsLast> weights{args.w + group * args.w_strides.group, args.w_strides,
                                              args.taps, args.w_is_e5m2};
    if constexpr (kChannelsLast) {
      simt_gemm<Tile, Sum>(
          m0, n0, args.pixels.count, args.k, 0, args.taps.count, patches, weights,
          [&](int64_t m, int64_t n, Sum sum) { args.finish(m, first + n, true, sum); });
    } else {
      simt_gemm<Tile, Sum>(
          m0, n0, args.k, args.pixels.count, 0, args.taps.count, weights, patches,
          [&](int64_t m, int64_t n, Sum sum) { args.finish(n, first + m, false, sum); });
    }
  }
}

template <class Sum, bool kChannelsLast>
__global__ void __launch_bounds__(256)
    scaled_conv_direct_kernel(const Args args, FastDiv all_channels, FastDiv of_group) {
  const int64_t total = args.pixels.count * all_channels.divisor();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const ConvWeightStrides& ws = args.w_strides;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
    int64_t pixel = i, channel;
    if constexpr (kChannelsLast) {
      channel = i;
      pixel = all_channels.divide(channel);
    } else {
      int64_t n = args.pixels.pixels.divide(pixel);
      channel = n;
      n = all_channels.divide(channel);
      pixel += n * args.pixels.pixels.divisor();
    }
    int64_t in_group = channel, at[3];
    const int64_t group = of_group.divide(in_group);
    const int64_t n = args.pixels.take_apart(pixel, at);
    const auto p = args.gather.pixel(n, at);
    const uint8_t* x = args.x + group * args.c * args.gather.strides.c;
    const uint8_t* w = args.w + group * ws.group + in_group * ws.k;
    Sum sum = 0;
    for (int64_t r = 0; r < args.taps.count; ++r) {
      int64_t tap[3], offset;
      const int64_t c = args.taps.template take_apart<kChannelsLast>(r, tap);
      if (!args.gather.find(p, args.gather.tap(c, tap), offset)) continue;
      sum = multiply_add(number_of<Sum>(x[offset], args.x_is_e5m2),
                         number_of<Sum>(w[c * ws.c + tap_offset(ws, tap)], args.w_is_e5m2), sum);
    }
    args.finish(pixel, channel, kChannelsLast, sum);
  }
}

template <class Tile, class Sum>
void launch_tile(Args args, bool last, const Launch& launch) {
  args.tiles_m = ceil_div(last ? args.pixels.count : args.k, Tile::kM);
  args.tiles_n = ceil_div(last ? args.k : args.pixels.count, Tile::kN);
  launch_kernel(
      last ? scaled_conv_gemm_kernel<Tile, Sum, true> : scaled_conv_gemm_kernel<Tile, Sum, false>,
      grid_of(args.tiles_m * args.tiles_n * args.groups), Tile::kThreads, 0, launch.stream, args);
}

template <class Sum>
void launch_gemm(const ScaledConv& p, const Launch& launch) {
  const Args args(p);
  const bool last = channels_last(p);
  const int64_t tiles =
      ceil_div(args.k, MediumTile::kM) * ceil_div(args.pixels.count, MediumTile::kN) * args.groups;
  if (args.k > MediumTile::kN / 2 && tiles >= multiprocessor_count()) {
    launch_tile<MediumTile, Sum>(args, last, launch);
  } else {
    launch_tile<SmallTile, Sum>(args, last, launch);
  }
}

template <class Sum>
void launch_direct(const ScaledConv& p, const Launch& launch) {
  const Args args(p);
  const int64_t channels = args.k * args.groups;
  launch_kernel(channels_last(p) ? scaled_conv_direct_kernel<Sum, true>
                                 : scaled_conv_direct_kernel<Sum, false>,
                grid_for(args.pixels.count * channels, 256, 16), 256, 0, launch.stream, args,
                FastDiv(std::max<int64_t>(channels, 1)), FastDiv(std::max<int64_t>(args.k, 1)));
}

const char* direct_declines(const ScaledConv& p) {
  if (p.geometry.groups == 1) return "there is one group";
  if (p.geometry.c > 4) return "a group has more than 4 channels to sum over";
  return fits(p.geometry);
}

// By sums in int32 or float32.
template <void (*kOfInt8)(const ScaledConv&, const Launch&),
          void (*kOfFloat8)(const ScaledConv&, const Launch&)>
void run(const ScaledConv& p, const Launch& launch) {
  const Gemm output = scaled_conv_output(p, true);
  clear_amax(output, launch);
  p.x.dtype == DType::kInt8 ? kOfInt8(p, launch) : kOfFloat8(p, launch);
}

constexpr Impl<ScaledConv> kProduct = {"pointwise_gemm", product_declines, product_workspace,
                                       run_product};
constexpr Impl<ScaledConv> kSimt[] = {
    {"direct", direct_declines, nullptr, run<launch_direct<int32_t>, launch_direct<float>>},
    {"implicit_gemm", [](const ScaledConv& p) { return fits(p.geometry); }, nullptr,
     run<launch_gemm<int32_t>, launch_gemm<float>>},
};

}  // namespace

template <>
ImplList<ScaledConv> gpu_impls<ScaledConv>() {
  static const std::vector<Impl<ScaledConv>> all = [] {
    std::vector<Impl<ScaledConv>> impls{kProduct};
#if DLKERN_WITH_SM90
    // Images as they lie come before products, whose results of 8 bits take longer to leave.
    const ImplList<ScaledConv> of_hopper = conv_scaled_sm90_impls();
    impls.insert(impls.begin(), of_hopper.front());
    impls.insert(impls.end(), of_hopper.begin() + 1, of_hopper.end());
#endif
    impls.insert(impls.end(), std::begin(kSimt), std::end(kSimt));
    return impls;
  }();
  return all;
}

}  // namespace dlkern
