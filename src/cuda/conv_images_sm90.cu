// Convolutions of images by weights on Hopper, on the host: forward, and the input gradient, which is
// the forward of the transposed convolution.
#include "cuda/conv.h"
#include "cuda/conv_sm90_host.h"

namespace dlkern {
namespace {

using namespace conv_sm90;

int image_config(int64_t rows, int64_t cols, int64_t groups, int64_t stages,
                 const ConvEpilogue& e) {
  double out_each = 4;
  if (e.scale || e.residual || e.activation != DLK_ACTIVATION_NONE) out_each += 4;
  if (e.has_moments()) out_each += 8;
  int best = 0;
  double least = 0;
  for (int i = 0; i < kSm90ConvImageConfigs; ++i) {
    const double cost = cost_of(kSm90ConvConfigs[i], rows, cols, groups, stages, out_each);
    if (i == 0 || cost < least) {
      best = i;
      least = cost;
    }
  }
  return best;
}

// ---- Pixels without taps -----------------------------------------------------------------------

// Of a strided input gradient: those whose residues along all dimensions have taps are not touched, all
// others are set to zero. Some neighbouring threads, up to 32, share a pixel's pieces of 16 bytes.
struct Zeros {
  uint8_t* y;
  int64_t n, stride[3];  // bytes; of w, h and d
  FastDiv extent[3], step[3];
  uint32_t residues_with_taps[3];  // bits
  int pixels, chunks, thread_bits;

  Zeros(const ConvProblem& p, const Image& image)
      : y(static_cast<uint8_t*>(image.data)),
        n(image.n_stride * image.bytes),
        pixels(static_cast<int>(image.pixels())),
        chunks(static_cast<int>(ceil_div(image.channels * image.bytes, 16))),
        thread_bits(0) {
    while (thread_bits < 5 && 1 << thread_bits < chunks) ++thread_bits;
    for (int i = 0; i < 3; ++i) {
      const Window& w = p.geometry.window[2 - i];
      stride[i] = image.stride[i] * image.bytes;
      extent[i] = FastDiv(image.extent[i]);
      step[i] = FastDiv(w.stride);
      residues_with_taps[i] = 0;
      for (int64_t r = 0; r < std::min(w.stride, image.extent[i]); ++r) {
        residues_with_taps[i] |= uint32_t{gradient_axis(w, image.extent[i], r).taps > 0} << r;
      }
    }
  }
  int64_t threads() const { return int64_t{pixels} << thread_bits; }
};

__global__ void __launch_bounds__(256) conv_zeros_kernel(const Zeros args) {
  const int64_t thread = int64_t{blockIdx.x} * 256 + threadIdx.x;
  int rest = static_cast<int>(thread >> args.thread_bits);
  if (rest >= args.pixels) return;
  int64_t at = 0;
  bool has_taps = true;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int next = args.extent[i].quick(rest);
    const int position = rest - next * static_cast<int>(args.extent[i].divisor());
    const int stride = static_cast<int>(args.step[i].divisor());
    const int residue = position - args.step[i].quick(position) * stride;
    has_taps = has_taps && (args.residues_with_taps[i] >> residue & 1);
    at += position * args.stride[i];
    rest = next;
  }
  if (has_taps) return;
  auto* to = reinterpret_cast<uint4*>(args.y + rest * args.n + at);
  const int threads = 1 << args.thread_bits;
  for (int i = threadIdx.x & (threads - 1); i < args.chunks; i += threads) to[i] = uint4{};
}

void write_zeros(const ConvProblem& p, const Image& to, const Launch& launch) {
  const Zeros zeros(p, to);
  launch_kernel(conv_zeros_kernel, static_cast<unsigned>(ceil_div(zeros.threads(), 256)), 256, 0,
                launch.stream, zeros);
}

// ---- Images by weights -------------------------------------------------------------------------

// Forward, or the input gradient, which is the forward of the transposed convolution.
struct ImagePlan {
  const char* reason = nullptr;
  Mma mma{};
  bool inverse = false, along_k = true;
  Image from, to;
  int unit = 0;          // the result leaves channel by channel, so many pixels at once
  int64_t c = 0, k = 0;  // channels of a group, summed and of the result
  Weights weights{};
  Stage from_stage, to_stage, weights_stage, scale_stage;
  size_t moments = 0;  // where those of the result's parts are in the workspace
  size_t workspace_bytes = 0;
};

// The result of a problem has the dtype of all tensors here.
bool has_quick_activation(const ConvEpilogue& e, bool wide) {
  switch (e.activation) {
    case DLK_ACTIVATION_NONE:
    case DLK_ACTIVATION_RELU:
      return true;
    case DLK_ACTIVATION_SILU:
    case DLK_ACTIVATION_GELU:
    case DLK_ACTIVATION_GELU_TANH:
      return !wide;
    default:
      return false;
  }
}

// Why a kernel does not do what follows the sums. kinds: products that the problem comes apart into.
const char* epilogue_declines(const ConvProblem& p, const ImagePlan& plan, int64_t kinds) {
  const ConvEpilogue& e = p.epilogue;
  const bool wide = plan.mma == Mma::kTf32;
  if (e.pre) return "stores no preactivation";
  if (!has_quick_activation(e, wide)) return "has no such activation";
  if (kinds > 1 && (e.residual || e.has_moments())) {
    return "a strided gradient's pixels are in several products";
  }
  if (!e.residual) return nullptr;
  if (wide) return "adds residuals of 16 bits";
  const Image residual = image_of(e.residual, plan.to, e.residual_strides);
  const bool in_pairs = residual.channel_stride == 1 && residual.stride[0] % 2 == 0 &&
                        reinterpret_cast<uintptr_t>(residual.data) % 4 == 0 && plan.k % 2 == 0;
  return in_pairs && residual.is_matrix() ? nullptr : "a residual is no matrix of pairs";
}

// staging: images may be copied in the workspace.
ImagePlan plan_images(const ConvProblem& p, bool inverse, bool staging) {
  ImagePlan plan;
  plan.reason = unsuitable(p);
  if (plan.reason) return plan;
  const ConvGeometry& g = p.geometry;
  plan.mma = *mma_of(p);
  plan.inverse = inverse;
  plan.from = image_of(p, !inverse);
  plan.to = image_of(p, inverse);
  plan.c = inverse ? g.k : g.c;
  plan.k = inverse ? g.c : g.k;
  const bool d = has_d(g);
  int64_t kinds = 0;
  for_each_axes(p, inverse, [&](const Axes& axes, const Axes& result) {
    ++kinds;
    if (!fits_map(axes, plan.from, d)) {
      plan.reason = "padding, dilation or stride beyond a tensor map's";
    }
    if (inverse && !fits_map(result, plan.to, d)) plan.reason = "a stride beyond a tensor map's";
  });
  if (kinds > 64) plan.reason = "too large a stride";
  if (!plan.reason) plan.reason = epilogue_declines(p, plan, kinds);
  if (plan.reason) return plan;

  const char* of_from = unsuitable(plan.from, false);
  const char* of_to = unsuitable(plan.to, true);
  if (of_to && kinds == 1 && !p.is_fused()) plan.unit = pixels_at_once(plan.to);
  if (plan.unit) of_to = nullptr;
  plan.reason = staging_declines(staging, of_from, of_to, g);
  if (plan.reason) return plan;
  const Tensor *from = inverse ? &p.y : &p.x, *to = inverse ? &p.x : &p.y;
  if (of_from) plan.from_stage = Stage(pixels_by_channels(*from, plan.from), plan.workspace_bytes);
  if (of_to) plan.to_stage = Stage(pixels_by_channels(*to, plan.to), plan.workspace_bytes);
  // In a gradient, rows of the weights are summed: as they lie only for 16-bit types.
  plan.along_k = !inverse;
  const bool transposed = inverse && plan.mma == Mma::kTf32;
  if (const auto weights = weights_in_place(p); weights && !transposed) {
    plan.weights = *weights;
  } else {
    plan.along_k = plan.along_k || transposed;
    plan.weights_stage = Stage(rows_by_columns(p, transposed), plan.workspace_bytes);
    const Tensor& copy = plan.weights_stage.copy;
    const Dims& s = copy.strides;
    plan.weights = {nullptr, copy.shape[1], copy.shape[5], s[1], s[4], s[0]};
  }
  const Tensor& scale = p.epilogue.scale;
  if (scale && (scale.dtype != DType::kFloat32 || (scale.strides[0] != 1 && plan.to.channels > 1) ||
                plan.k % 2 != 0 || reinterpret_cast<uintptr_t>(scale.data) % 8 != 0)) {
    plan.scale_stage = Stage(scale, DType::kFloat32, plan.workspace_bytes);
  }
  if (p.epilogue.has_moments()) {
    plan.moments = plan.workspace_bytes;
    plan.workspace_bytes += sm90_moments_bytes(plan.to.pixels(), plan.to.channels);
  }
  return plan;
}

constexpr int kResidual = 5;  // among the tensors of a Gemm

float2* moments_at(const ImagePlan& plan, const Launch& launch) {
  return reinterpret_cast<float2*>(static_cast<uint8_t*>(launch.workspace) + plan.moments);
}

void set_epilogue(const ConvProblem& p, const ImagePlan& plan, const Launch& launch,
                  Sm90ConvArgs& args) {
  const bool wide = plan.mma == Mma::kTf32;
  const ConvEpilogue& e = p.epilogue;
  const bool straight = !wide && !e.scale && !e.residual && e.activation == DLK_ACTIVATION_NONE;
  args.features = wide ? kWide : straight ? kStraight : 0;
  if (plan.mma == Mma::kBFloat16) args.features |= kBFloat16;
  if (p.bias) {
    args.features |= kBias;
    args.beta = 1;
    args.bias = {p.bias.data, p.bias.dtype, 0, p.bias.strides[0]};
    args.item_stride[2][1] = plan.k * p.bias.strides[0];
  }
  args.result_channels = static_cast<int>(plan.k);
  if (e.scale) {
    args.features |= kFactors;
    const Stage& stage = plan.scale_stage;
    args.factors = (stage.tensor ? stage.at(launch) : e.scale).as<const float>();
  }
  if (e.residual) {
    args.features |= kPairs;
    args.pairs.data = e.residual.data;
    args.pairs.row = image_of(e.residual, plan.to, e.residual_strides).stride[0];
    if (plan.k % 8 == 0 && args.pairs.row % 8 == 0 &&
        reinterpret_cast<uintptr_t>(e.residual.data) % 16 == 0) {
      args.features |= kPieces;
    }
    args.pairs.before = true;
    args.pairs.tensor = kResidual;
    args.item_stride[kResidual][1] = plan.k;
  }
  if (e.activation != DLK_ACTIVATION_NONE) {
    args.features |= kQuick;
    args.quick = e.activation;
  }
  if (e.has_moments()) {
    args.features |= kMoments;
    args.moments = moments_at(plan, launch);
    args.moments_columns = static_cast<int>(plan.to.channels);
  }
}

void run_axes(const ConvProblem& p, const ImagePlan& plan, const Axes& axes, const Axes& result,
              const Launch& launch) {
  const ConvGeometry& g = p.geometry;
  const bool d = has_d(g);
  const int depth = kSwizzleBytes / plan.from.bytes;
  Sm90ConvArgs args;
  set_epilogue(p, plan, launch, args);
  args.rows = static_cast<int>(axes.pixels(g.batch));
  args.cols = static_cast<int>(plan.k);
  args.columns.pixels = pixels_of(axes, d);
  args.columns.channels = static_cast<int>(plan.c);
  args.columns.no_channel = static_cast<int>(ceil_div(plan.from.channels, 64) * 64);
  set_taps(axes, g, ceil_div(plan.c, depth), args);
  const int config = image_config(args.rows, args.cols, g.groups, args.k_blocks, p.epilogue);
  const Sm90Config& c = kSm90ConvConfigs[config];
  set_sm90_tiles(c, 1, g.groups, g.groups, args);
  args.y.step[0][1] = 1;

  const auto type = map_type(plan.mma, true);
  const Image& to = plan.to;
  const uint32_t columns = kSwizzleBytes / to.bytes;
  args.scatters =
      plan.inverse && (g.window[0].stride > 1 || g.window[1].stride > 1 || g.window[2].stride > 1);
  args.scatters = args.scatters || !to.is_matrix();
  CUtensorMap map_y{};
  if (plan.unit) {
    args.by_channel = {
        plan.unit,   static_cast<uint16_t*>(to.data), plan.k * to.channel_stride, to.channel_stride,
        to.n_stride, FastDiv(to.pixels() / to.n)};
  } else if (args.scatters) {
    args.result = pixels_of(result, d);
    map_y = columns_map(to, result, d, map_type(plan.mma, false), 16);
  } else {
    map_y = make_tensor_map(to.data,
                            {map_type(plan.mma, false),
                             to.bytes,
                             {static_cast<uint64_t>(plan.k), static_cast<uint64_t>(to.pixels()),
                              static_cast<uint64_t>(g.groups), 1},
                             {map_stride(to.stride[0] * to.bytes, to.pixels()),
                              map_stride(plan.k * to.bytes, g.groups), 16},
                             {columns, 16}});
  }
  const Sm90Kernel kernel = find_kernel(plan.mma, config, plan.along_k);
  const int clusters = std::min(sm90_clusters_at_once(kernel, c.multicast), args.tiles);
  launch_sm90(kernel, clusters, c.multicast,
              {columns_map(plan.from, axes, d, type, c.m),
               weights_map(plan.weights, plan.mma, plan.along_k, g, c.n / c.multicast), map_y},
              args, launch.stream);
}

void run_images(const ConvProblem& p, ImagePlan plan, const Launch& launch) {
  fill({&plan.from_stage, &plan.weights_stage}, launch);
  if (plan.from_stage.tensor) plan.from = staged(plan.from, plan.from_stage.at(launch));
  if (plan.to_stage.tensor) plan.to = staged(plan.to, plan.to_stage.at(launch));
  if (plan.weights_stage.tensor) plan.weights.data = plan.weights_stage.at(launch).data;
  if (plan.scale_stage.tensor) plan.scale_stage.fill(launch);
  // Pixels that no tap reaches: together, where they are zeros.
  bool zeros = false;
  for_each_axes(p, plan.inverse, [&](const Axes& axes, const Axes& result) {
    const bool is_zero = !axes.has_taps() && !p.bias && !p.is_fused();
    if (!is_zero) return run_axes(p, plan, axes, result, launch);
    zeros = true;
  });
  if (zeros) write_zeros(p, plan.to, launch);
  if (plan.to_stage.tensor) plan.to_stage.empty(launch);
  if (p.epilogue.has_moments()) {
    sm90_merge_moments(moments_at(plan, launch), plan.to.pixels(), p.epilogue, launch);
  }
}

template <class Problem, bool kStaging>
constexpr Impl<Problem> make_impl() {
  constexpr bool kInverse = std::is_same_v<Problem, ConvBackwardInput>;
  return {kStaging ? "wgmma_sm90_copied" : "wgmma_sm90",
          [](const Problem& p) { return plan_images(p, kInverse, kStaging).reason; },
          [](const Problem& p) { return plan_images(p, kInverse, kStaging).workspace_bytes; },
          [](const Problem& p, const Launch& launch) {
            run_images(p, plan_images(p, kInverse, kStaging), launch);
          }};
}
// With images as they lie, and copied in the workspace.
template <class Problem>
constexpr Impl<Problem> kImpls[] = {make_impl<Problem, false>(), make_impl<Problem, true>()};

// The result may have to be copied.
ImagePlan plan_forward(const ConvProblem& p) {
  const ImagePlan plan = plan_images(p, false, false);
  return plan.reason ? plan_images(p, false, true) : plan;
}

}  // namespace

const char* sm90_forward_declines(const ConvProblem& p) { return plan_forward(p).reason; }
size_t sm90_forward_workspace_bytes(const ConvProblem& p) {
  return plan_forward(p).workspace_bytes;
}
void sm90_forward(const ConvProblem& p, const Launch& launch) {
  run_images(p, plan_forward(p), launch);
}

ImplList<ConvForward> conv_forward_sm90_impls() { return kImpls<ConvForward>; }
ImplList<ConvBackwardInput> conv_backward_input_sm90_impls() { return kImpls<ConvBackwardInput>; }

}  // namespace dlkern
