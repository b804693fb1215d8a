// The forward convolution of 8-bit numbers on Hopper: conv_sm90.cuh with stages of 128 channels.
//
// y leaves in slabs, with factors, bias, a usual activation and the quantisation of 8-bit results done in
// registers, or else in runs of neighbouring channels (the full epilogue).
#include "cuda/conv.h"
#include "cuda/conv_sm90.cuh"
#include "cuda/conv_sm90_host.h"
#include "cuda/gemm.h"

namespace dlkern {
namespace {

using namespace gpu;
using namespace conv_sm90;

// ---- Kernels -----------------------------------------------------------------------------------

// Of float8 the sums of each stage are added in float32 (promote).
// clang-format off
constexpr Sm90Config kConfigs[] = {
    // int8
    {.m = 128, .n = 128, .stages = 6, .consumers = 2, .ping_pong = true},
    {.m = 128, .n = 64, .stages = 8, .consumers = 2, .ping_pong = true},
    {.m = 128, .n = 128, .stages = 6, .consumers = 2, .ping_pong = true, .full = true},
    // float8
    {.m = 128, .n = 128, .stages = 6, .consumers = 2, .promote = true},
    {.m = 128, .n = 64, .stages = 8, .consumers = 2, .promote = true},
    {.m = 128, .n = 128, .stages = 6, .consumers = 2, .promote = true, .full = true},
};
// clang-format on

template <Mma kMma, int kConfig>
Sm90Kernel make_kernel() {
  return sm90_kernel<
      Sm90Traits<kMma, kConfigs[kConfig], true, true, Sm90Operands::kColumnsA, Sm90ConvArgs>>();
}
template <Mma kMma, int... kChoices>
Sm90Kernel one_of(int config) {
  Sm90Kernel kernel;
  ((config == kChoices ? void(kernel = make_kernel<kMma, kChoices>()) : void()), ...);
  return kernel;
}
Sm90Kernel kernel_of(Mma mma, int config) {
  switch (mma) {
    case Mma::kInt8:
      return one_of<Mma::kInt8, 0, 1, 2>(config);
    case Mma::kE4M3:
      return one_of<Mma::kE4M3, 3, 4, 5>(config);
    case Mma::kE4M3E5M2:
      return one_of<Mma::kE4M3E5M2, 5>(config);
    case Mma::kE5M2E4M3:
      return one_of<Mma::kE5M2E4M3, 5>(config);
    case Mma::kE5M2:
      return one_of<Mma::kE5M2, 5>(config);
    default:
      return {};
  }
}

// ---- A plan ------------------------------------------------------------------------------------

struct Plan {
  const char* reason = nullptr;
  Mma mma{};
  uint32_t features = 0;
  Epilogue left;  // after the features in registers
  Image from, to;
  Weights weights{};
  Stage from_stage, to_stage, weights_stage;
  size_t workspace_bytes = 0;

  bool is_full() const { return features & kNeedsFull; }
};

// What is done in registers; `slabs`: y may leave in slabs. Mixtures of float8, and e5m2 alone, have the
// full epilogue's kernels only.
void set_features(const ScaledConv& p, bool slabs, Plan& plan) {
  plan.left = scaled_conv_output(p, true);
  const int bytes = static_cast<int>(dtype_size(p.y.dtype));
  const dlk_activation kind = p.epilogue.activation;
  const bool usual = kind == DLK_ACTIVATION_RELU || kind == DLK_ACTIVATION_GELU ||
                     kind == DLK_ACTIVATION_GELU_TANH || kind == DLK_ACTIVATION_SILU;
  slabs = slabs && (plan.mma == Mma::kInt8 || plan.mma == Mma::kE4M3);
  const auto add = [&](bool present, Sm90Feature feature) {
    if (present) plan.features |= feature;
  };
  add(bool(p.bias), kBias);
  add(p.scale_x, kRowScales);
  add(p.scale_w.data, kColScales);
  add(p.y.dtype == DType::kInt32, kRaw);
  add(usual && bytes <= 2, kQuick);
  add(bytes == 1 && slabs, kBytes);
  add(bytes == 4, kWide);
  add(p.y.dtype == DType::kBFloat16, kBFloat16);
  plan.left.beta = 0;
  if (plan.features & kQuick) plan.left.activation = DLK_ACTIVATION_NONE;
  Epilogue left = plan.left;
  if (plan.features & kBytes) left.scale_y = left.amax = nullptr;
  add(!left.is_plain(), kMore);
  add(!slabs, kStrided);
  add(p.y.dtype == DType::kBFloat16 && (plan.features & (kRowScales | kColScales)) &&
          !(plan.features & (kQuick | kNeedsFull)),
      kStraight);
}

// For what is asked of all of Hopper's convolutions: without what is done with the sums.
ConvProblem bare(const ScaledConv& p) {
  ConvProblem q = p;
  q.bias = {};
  q.epilogue = {};
  return q;
}

// staging: images may be copied in the workspace.
Plan make_plan(const ScaledConv& p, bool staging) {
  Plan plan;
  const ConvProblem q = bare(p);
  const ConvGeometry& g = p.geometry;
  plan.reason = unsuitable(q);
  if (plan.reason) return plan;
  plan.mma = *mma_of(q);
  plan.from = image_of(q, true);
  plan.to = image_of(q, false);
  if (!fits_map(forward_axes(g), plan.from, has_d(g))) {
    plan.reason = "padding, dilation or stride beyond a tensor map's";
    return plan;
  }
  const char* of_from = unsuitable(plan.from, false);
  const char* of_slabs = unsuitable(plan.to, true);
  set_features(p, !of_slabs, plan);
  const char* of_to =
      plan.is_full() && !plan.to.is_matrix() ? "pixels have no common stride" : nullptr;
  plan.reason = staging_declines(staging, of_from, of_to, g);
  if (plan.reason) return plan;
  if (of_from) plan.from_stage = Stage(pixels_by_channels(p.x, plan.from), plan.workspace_bytes);
  if (of_to) plan.to_stage = Stage(pixels_by_channels(p.y, plan.to), plan.workspace_bytes);
  if (const auto weights = weights_in_place(q)) {
    plan.weights = *weights;
  } else {
    plan.weights_stage = Stage(rows_by_columns(q, false), plan.workspace_bytes);
    const Dims& s = plan.weights_stage.copy.strides;
    plan.weights = {nullptr, g.k, g.c, s[1], s[4], s[0]};
  }
  return plan;
}

int config_of(const ScaledConv& p, const Plan& plan) {
  const int first = plan.mma == Mma::kInt8 ? 0 : 3;
  return plan.is_full() ? first + 2 : p.geometry.k > 64 ? first : first + 1;
}

// ---- Launch ------------------------------------------------------------------------------------

void set_epilogue(const ScaledConv& p, const Plan& plan, Sm90Args& args) {
  const ConvGeometry& g = p.geometry;
  args.features = plan.features;
  args.e = plan.left;
  args.e.y.row = plan.to.stride[0];
  args.e.y.col = plan.to.channel_stride;
  args.e.y.data = plan.to.data;
  args.item_stride[3][1] = g.k * plan.to.channel_stride;
  args.quick = p.epilogue.activation;
  args.scale_row.data = p.scale_x;
  args.scale_col = p.scale_w;
  args.scale_col.item = g.k * p.scale_w.row;
  if (!p.bias) return;
  args.beta = 1;
  args.bias = {p.bias.data, p.bias.dtype, 0, p.bias.strides[0]};
  args.item_stride[2][1] = g.k * p.bias.strides[0];
}

CUtensorMap result_map(const ScaledConv& p, const Plan& plan, Sm90ConvArgs& args) {
  const ConvGeometry& g = p.geometry;
  const Image& to = plan.to;
  const auto type = to.bytes == 4   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                    : to.bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                    : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  if (plan.is_full()) return {};
  args.scatters = !to.is_matrix();
  if (args.scatters) {
    Axes result;
    for (int i = 0; i < 3; ++i) result.axis[i] = {0, 1, g.out[2 - i]};
    args.result = pixels_of(result, has_d(g));
    args.result_channels = static_cast<int>(g.k);
    return columns_map(to, result, has_d(g), type, 16);
  }
  return make_tensor_map(to.data, {type,
                                   to.bytes,
                                   {static_cast<uint64_t>(g.k), static_cast<uint64_t>(to.pixels()),
                                    static_cast<uint64_t>(g.groups), 1},
                                   {map_stride(to.stride[0] * to.bytes, to.pixels()),
                                    map_stride(g.k * to.bytes, g.groups), 16},
                                   {static_cast<uint32_t>(kSwizzleBytes / to.bytes), 16}});
}

void launch_plan(const ScaledConv& p, const Plan& plan, const Launch& launch) {
  const ConvGeometry& g = p.geometry;
  const Axes axes = forward_axes(g);
  Sm90ConvArgs args;
  set_epilogue(p, plan, args);
  args.rows = static_cast<int>(axes.pixels(g.batch));
  args.cols = static_cast<int>(g.k);
  args.columns.pixels = pixels_of(axes, has_d(g));
  args.columns.channels = static_cast<int>(g.c);
  args.columns.taps = taps_of(axes, g);
  args.k_blocks = static_cast<int>(g.taps() * ceil_div(g.c, kSwizzleBytes));
  args.part_blocks = args.k_blocks;
  const int config = config_of(p, plan);
  const Sm90Config& c = kConfigs[config];
  set_sm90_tiles(c, 1, g.groups, g.groups, args);
  args.y.step[0][1] = 1;
  const CUtensorMap map_y = result_map(p, plan, args);
  const Sm90Kernel kernel = kernel_of(plan.mma, config);
  launch_sm90(kernel, std::min(sm90_clusters_at_once(kernel, c.multicast), args.tiles), c.multicast,
              {columns_map(plan.from, axes, has_d(g), map_type(plan.mma, true), c.m),
               weights_map(plan.weights, plan.mma, true, g, c.n / c.multicast), map_y},
              args, launch.stream);
}

void run(const ScaledConv& p, Plan plan, const Launch& launch) {
  clear_amax(plan.left, launch);
  fill({&plan.from_stage, &plan.weights_stage}, launch);
  if (plan.from_stage.tensor) plan.from = staged(plan.from, plan.from_stage.at(launch));
  if (plan.to_stage.tensor) plan.to = staged(plan.to, plan.to_stage.at(launch));
  if (plan.weights_stage.tensor) plan.weights.data = plan.weights_stage.at(launch).data;
  launch_plan(p, plan, launch);
  if (plan.to_stage.tensor) plan.to_stage.empty(launch);
}

template <bool kStaging>
constexpr Impl<ScaledConv> kImpl = {
    kStaging ? "wgmma_sm90_copied" : "wgmma_sm90",
    [](const ScaledConv& p) { return make_plan(p, kStaging).reason; },
    [](const ScaledConv& p) { return make_plan(p, kStaging).workspace_bytes; },
    [](const ScaledConv& p, const Launch& launch) { run(p, make_plan(p, kStaging), launch); }};
// With images as they lie, and copied in the workspace.
constexpr Impl<ScaledConv> kImpls[] = {kImpl<false>, kImpl<true>};

}  // namespace

ImplList<ScaledConv> conv_scaled_sm90_impls() { return kImpls; }

}  // namespace dlkern
