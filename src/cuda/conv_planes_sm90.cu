// Convolutions of float32 images by weights on Hopper's tensor cores, on the host: forward, and the input
// gradient.
//
// Images and weights of any strides are written to the workspace as bfloat16 planes, channels last and
// filled up to 64 in each group (gemm_pack.h); the sums of their products (gemm_sm90.cuh) go to wherever
// the result's elements are. In full precision three planes; for tf32, where images or groups do not
// suit its own kernels, two. What has no planes, infinities and numbers close to the ends of float32's
// range, is found on the way: multiply-adds then compute all.
//
// Bound by the tensor cores: six (three) times the products, after each element of the image has been
// read once and written as 6 (4) bytes.
#include "cuda/conv.h"
#include "cuda/conv_sm90_host.h"

namespace dlkern {
namespace {

using namespace conv_sm90;

int config_for(int planes, int64_t rows, int64_t cols, int64_t groups, int64_t stages) {
  int best = -1;
  double least = 0;
  for (int i = 0; i < kSm90PlaneConfigCount; ++i) {
    const Sm90PlaneConfig& c = kSm90PlaneConfigs[i];
    if (c.of_weights || c.tile.planes != planes) continue;
    const double cost = cost_of(c.tile, rows, cols, groups, stages);
    if (best < 0 || cost < least) {
      best = i;
      least = cost;
    }
  }
  return best;
}

// As [group, row, tap], each with its summed channels.
PlaneStage weights_planes(const ConvProblem& p, bool inverse, size_t& workspace_bytes) {
  const ConvGeometry& g = p.geometry;
  const ConvWeightStrides& s = p.w_strides;
  const int64_t rows = inverse ? g.c : g.k, taps = g.taps();
  StridedIndex<2> lines;
  lines.push(g.groups, {s.group, rows * taps});
  lines.push(rows, {inverse ? s.c : s.k, taps});
  int64_t inner = taps;
  for (int d = 0; d < 3; ++d) {
    inner /= g.window[d].kernel;
    lines.push(g.window[d].kernel, {s.taps[d], inner});
  }
  return {p.w.data,       lines, planes_of(p), 1, inverse ? g.k : g.c, 0, inverse ? s.k : s.c,
          workspace_bytes};
}

struct PlanePlan {
  const char* reason = nullptr;
  bool inverse = false;
  Image from, to;
  int64_t c = 0, k = 0;  // channels of a group, summed and of the result
  PlaneStage image, weights;
  size_t workspace_bytes = 0;  // the flag comes first
};

PlanePlan plan_planes(const ConvProblem& p, bool inverse) {
  PlanePlan plan;
  plan.reason = planes_decline(p);
  if (plan.reason) return plan;
  const ConvGeometry& g = p.geometry;
  plan.inverse = inverse;
  plan.from = image_of(p, !inverse);
  plan.to = image_of(p, inverse);
  plan.c = inverse ? g.k : g.c;
  plan.k = inverse ? g.c : g.k;
  int64_t kinds = 0;
  for_each_axes(p, inverse, [&](const Axes& axes, const Axes&) {
    ++kinds;
    if (!fits_map(axes, plan.from, has_d(g))) {
      plan.reason = "padding, dilation or stride beyond a tensor map's";
    }
  });
  if (kinds > 64) plan.reason = "too large a stride";
  if (plan.reason) return plan;
  plan.workspace_bytes = 256;
  plan.image = image_planes(plan.from, planes_of(p), g.groups, plan.workspace_bytes);
  plan.weights = weights_planes(p, inverse, plan.workspace_bytes);
  return plan;
}

// The weights where their planes are.
Weights staged_weights(const ConvProblem& p, const PlanePlan& plan, const Launch& launch) {
  const int64_t line = plan.weights.pack.to_row, taps = p.geometry.taps();
  return {plan.weights.data(launch), plan.k, line, taps * line, line, plan.k * taps * line};
}

Sm90Elements elements_of(const PlanePlan& plan) {
  const Image& to = plan.to;
  Sm90Elements y{static_cast<float*>(to.data), to.n_stride, to.channel_stride,
                 plan.k * to.channel_stride,   {},          false};
  y.in_pairs = to.channel_stride == 1 && plan.k % 2 == 0 && to.n_stride % 2 == 0 &&
               reinterpret_cast<uintptr_t>(to.data) % 8 == 0;
  for (int d = 0; d < 3; ++d) {
    y.spatial[d] = to.stride[d];
    y.in_pairs = y.in_pairs && to.stride[d] % 2 == 0;
  }
  return y;
}

void run_axes(const ConvProblem& p, const PlanePlan& plan, const Image& planes, const Axes& axes,
              const Axes& result, const int* flag, const Launch& launch) {
  const ConvGeometry& g = p.geometry;
  const bool d = has_d(g);
  const int64_t padded = padded_channels(plan.c);
  Sm90ConvArgs args;
  args.features = kWide;
  if (p.bias) {
    args.features |= kBias;
    args.beta = 1;
    args.bias = {p.bias.data, p.bias.dtype, 0, p.bias.strides[0]};
    args.item_stride[2][1] = plan.k * p.bias.strides[0];
  }
  args.rows = static_cast<int>(axes.pixels(g.batch));
  args.cols = static_cast<int>(plan.k);
  args.columns.pixels = pixels_of(axes, d);
  args.columns.channels = static_cast<int>(padded);
  args.columns.plane = static_cast<int>(plan.image.pack.to_plane);
  args.columns.weights_plane = static_cast<int>(plan.weights.pack.to_plane);
  args.columns.no_channel = static_cast<int>(planes.channels);
  set_taps(axes, g, padded / 64, args);
  args.result = pixels_of(result, d);
  args.elements = elements_of(plan);
  args.skip = flag;
  const int config = config_for(planes_of(p), args.rows, args.cols, g.groups, args.k_blocks);
  const Sm90Config& c = kSm90PlaneConfigs[config].tile;
  set_sm90_tiles(c, 1, g.groups, g.groups, args);
  const Sm90Kernel kernel = sm90_conv_kernel_planes(config);
  const int clusters = std::min(sm90_clusters_at_once(kernel, c.multicast), args.tiles);
  launch_sm90(
      kernel, clusters, c.multicast,
      {columns_map(planes, axes, d, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, c.m),
       weights_map(staged_weights(p, plan, launch), Mma::kBFloat16, true, g, c.n), CUtensorMap{}},
      args, launch.stream);
}

void run_planes(const ConvProblem& p, const PlanePlan& plan, const Launch& launch) {
  int* flag = static_cast<int*>(launch.workspace);
  fill(plan.image, plan.weights, flag, launch);
  const Image planes = staged(plan.from, plan.image, launch);
  for_each_axes(p, plan.inverse, [&](const Axes& axes, const Axes& result) {
    run_axes(p, plan, planes, axes, result, flag, launch);
  });
  run_simt_if(p, plan.inverse, flag, launch);
}

template <class Problem>
constexpr Impl<Problem> make_impl() {
  constexpr bool kInverse = std::is_same_v<Problem, ConvBackwardInput>;
  return {"wgmma_sm90_planes", [](const Problem& p) { return plan_planes(p, kInverse).reason; },
          [](const Problem& p) { return plan_planes(p, kInverse).workspace_bytes; },
          [](const Problem& p, const Launch& launch) {
            run_planes(p, plan_planes(p, kInverse), launch);
          }};
}
template <class Problem>
constexpr Impl<Problem> kImpls[] = {make_impl<Problem>()};

}  // namespace

ImplList<ConvForward> conv_forward_planes_sm90_impls() { return kImpls<ConvForward>; }
ImplList<ConvBackwardInput> conv_backward_input_planes_sm90_impls() {
  return kImpls<ConvBackwardInput>;
}

}  // namespace dlkern
