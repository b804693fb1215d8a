// Gradients of a convolution's weights on Hopper, on the host. The sum runs over all pixels: it is cut
// into parts, which a second kernel adds.
//
// float32 goes by bfloat16 planes (conv_planes_sm90.cu), also for tf32: wgmma takes tf32 operands along
// k alone, and these lie along the channels.
#include "cuda/conv.h"
#include "cuda/conv_sm90_host.h"
#include "cuda/prims/sum_parts.cuh"

namespace dlkern {
namespace {

using namespace conv_sm90;

// What becomes of the images first.
enum class Operands { kAsTheyLie, kCopied, kPlanes };

struct WeightPlan {
  const char* reason = nullptr;
  Mma mma{};
  Sm90Config tile{};
  Sm90Kernel kernel;
  Axes axes{};
  int64_t chunks = 0, cols = 0;  // of 64 channels, in a tap; columns of the product
  int64_t parts = 1, part_blocks = 0, blocks = 0;
  bool direct = false;  // the only part is the gradient
  Stage x_stage, dy_stage;
  int planes = 0;  // of float32
  PlaneStage x_planes, dy_planes;
  size_t flag_at = 0;
  size_t workspace_bytes = 0;  // the sums of parts come first
};

// In how many parts a sum over so many stages is cut, and the clocks that this takes: an estimate, fitted
// to times on an H200.
struct Cut {
  int64_t parts = 1;
  double clocks = 0;
};

Cut cut_for(const Sm90Config& c, int64_t rows, int64_t cols, int64_t groups, int64_t stages) {
  const int64_t sms = multiprocessor_count();
  const int64_t tiles =
      ceil_div(rows, c.m) * ceil_div(cols, c.n * c.multicast) * c.multicast * groups;
  const int products = c.planes * (c.planes + 1) / 2;
  const double stage = std::max(products * c.m * c.n / 32.0 * (c.m == 64 ? 1.33 : 1.1),
                                c.planes * (c.m / c.multicast + c.n) * kSwizzleBytes / 60.0);
  Cut best;
  for (int64_t parts = 1; parts <= std::max<int64_t>(stages / 8, 1) && parts <= sms; ++parts) {
    const double waves = ceil_div(tiles * parts, sms);
    const double sums =
        parts == 1 ? 0 : 4000 + 17.0 * (parts + 1) * groups * rows * cols / (sms * 20);
    const double clocks = waves * (ceil_div(stages, parts) * stage + 2500) + sums;
    if (parts == 1 || clocks < best.clocks) best = {parts, clocks};
  }
  return best;
}

// Whether the gradient is a matrix of 16-bit elements that leaves like any other result.
bool stores_directly(const ConvProblem& p, const Sm90Spread& spread) {
  const ConvGeometry& g = p.geometry;
  const ConvWeightStrides& s = p.w_strides;
  if (p.accumulate || spread.padded || g.c % 64 != 0 || s.c != 1) return false;
  if (g.taps() > 1 && tap_stride(p) != g.c) return false;
  return reinterpret_cast<uintptr_t>(p.w.data) % 16 == 0 && is_copyable(s.k, g.k, 2) &&
         is_copyable(s.group, g.groups, 2);
}

// The tile, the kernel and the parts.
void choose_kernel(const ConvProblem& p, WeightPlan& plan) {
  const ConvGeometry& g = p.geometry;
  Cut best;
  const auto consider = [&](const Sm90Config& tile, auto&& kernel) {
    const Cut cut = cut_for(tile, g.k, plan.cols, g.groups, plan.blocks);
    if (plan.kernel.function && cut.clocks >= best.clocks) return;
    best = cut;
    plan.tile = tile;
    plan.kernel = kernel();
  };
  for (int i = kSm90ConvImageConfigs; !plan.planes && i < kSm90ConvConfigCount; ++i) {
    consider(kSm90ConvConfigs[i], [&] { return find_kernel(plan.mma, i, false); });
  }
  for (int i = 0; plan.planes && i < kSm90PlaneConfigCount; ++i) {
    const Sm90PlaneConfig& c = kSm90PlaneConfigs[i];
    if (!c.of_weights || c.tile.planes != plan.planes || (c.tile.m > 64) != (g.k > 64)) continue;
    consider(c.tile, [&] { return sm90_conv_kernel_planes(i); });
  }
  plan.part_blocks = ceil_div(plan.blocks, best.parts);
  plan.parts = ceil_div(plan.blocks, plan.part_blocks);
}

WeightPlan plan_weights(const ConvProblem& p, Operands operands, const Sm90Spread& spread = {}) {
  WeightPlan plan;
  const bool planes = operands == Operands::kPlanes;
  plan.reason = planes ? planes_decline(p) : unsuitable(p);
  if (plan.reason) return plan;
  const ConvGeometry& g = p.geometry;
  plan.mma = planes ? Mma::kBFloat16 : *mma_of(p);
  if (plan.mma == Mma::kTf32) plan.reason = "tf32 operands along the pixels";
  plan.planes = planes ? planes_of(p) : 0;
  const Image dy = image_of(p, false);
  plan.axes = forward_axes(g);
  if (!fits_map(plan.axes, image_of(p, true), has_d(g))) {
    plan.reason = "padding, dilation or stride beyond a tensor map's";
  }
  plan.chunks = ceil_div(g.c, 64);
  plan.cols = g.taps() * plan.chunks * 64;
  if (plan.cols > INT_MAX / 16) plan.reason = "too many columns";
  if (plan.reason) return plan;
  const char* of_x = planes ? nullptr : unsuitable(image_of(p, true), false);
  const char* of_dy = planes ? nullptr : unsuitable(dy, false);
  if (!planes) {
    if (!of_dy && !dy.is_matrix()) of_dy = "the gradient's pixels are no rows of a matrix";
    plan.reason = staging_declines(operands == Operands::kCopied, of_x, of_dy, g);
  }
  if (plan.reason) return plan;
  plan.blocks = ceil_div(dy.pixels(), 64);
  choose_kernel(p, plan);
  plan.direct = plan.parts == 1 && !planes && stores_directly(p, spread);
  if (!plan.direct) {
    plan.workspace_bytes =
        ceil_div(plan.parts * g.groups * g.k * plan.cols, 64) * 64 * sizeof(float);
  }
  if (of_x) plan.x_stage = Stage(pixels_by_channels(p.x, image_of(p, true)), plan.workspace_bytes);
  if (of_dy) plan.dy_stage = Stage(pixels_by_channels(p.y, dy), plan.workspace_bytes);
  if (planes) {
    plan.x_planes = image_planes(image_of(p, true), plan.planes, g.groups, plan.workspace_bytes);
    plan.dy_planes = image_planes(dy, plan.planes, g.groups, plan.workspace_bytes);
    plan.workspace_bytes = std::max(plan.workspace_bytes, weights_simt_workspace_bytes(p));
    plan.flag_at = ceil_div(plan.workspace_bytes, size_t{256}) * 256;
    plan.workspace_bytes = plan.flag_at + 256;
  }
  return plan;
}

struct SumArgs {
  const float* sums;  // [group, part, k, tap, padded channel]
  void* dw;
  ConvWeightStrides strides;
  FastDiv padded, taps, taps_hw, taps_w, of_group, k;
  int64_t channels, count, parts, part_size;
  PartsShare share;
  Sm90Spread spread;
  FastDiv spread_padded;
  bool accumulate;
  const int* skip;  // optional: nothing is done where it is not 0
};

// Elements are counted as they lie in a part: where they go is found out by the thread that stores them.
template <class T>
__global__ void __launch_bounds__(kPartsThreads) conv_weight_sum_kernel(const SumArgs args) {
  if (args.skip && *args.skip) return;
  int64_t c = args.share.element(), in_part = c;
  const bool there = c < args.count;
  const float* from = args.sums + args.of_group.divide(in_part) * args.parts * args.part_size;
  float sum = args.share.sum(there ? from + in_part : nullptr, args.part_size, args.parts);
  if (!there || !args.share.leads()) return;
  int64_t tap = args.padded.divide(c), k = args.taps.divide(tap), group = args.k.divide(k);
  const ConvWeightStrides& s = args.strides;
  int64_t at = group * s.group + k * s.k;
  if (c >= args.channels) return;
  if (args.spread.padded) {
    at += args.spread_padded.divide(c) * args.spread.stride;
    if (c >= args.spread.channels) return;
  }
  const int64_t d = args.taps_hw.divide(tap), h = args.taps_w.divide(tap);
  at += c * s.c + d * s.taps[0] + h * s.taps[1] + tap * s.taps[2];
  T* to = static_cast<T*>(args.dw) + at;
  if (args.accumulate) sum += static_cast<float>(*to);
  *to = static_cast<T>(sum);
}

void add_weight_parts(const ConvProblem& p, const WeightPlan& plan, const Sm90Spread& spread,
                      const int* skip, const Launch& launch) {
  const ConvGeometry& g = p.geometry;
  const int64_t w = g.window[2].kernel, hw = w * g.window[1].kernel;
  const SumArgs args{static_cast<const float*>(launch.workspace),
                     p.w.data,
                     p.w_strides,
                     FastDiv(plan.chunks * 64),
                     FastDiv(g.taps()),
                     FastDiv(hw),
                     FastDiv(w),
                     FastDiv(g.k * plan.cols),
                     FastDiv(g.k),
                     g.c,
                     g.groups * g.k * plan.cols,
                     plan.parts,
                     g.k * plan.cols,
                     PartsShare(plan.parts),
                     spread,
                     FastDiv(spread.padded),
                     p.accumulate,
                     skip};
  dispatch_floating(p.w.dtype, [&]<class T>() {
    launch_kernel(conv_weight_sum_kernel<T>, args.share.grid(args.count), kPartsThreads, 0,
                  launch.stream, args);
  });
}

void run_weights(const ConvProblem& p, const WeightPlan& plan, const Launch& launch,
                 const Sm90Spread& spread = {}) {
  const ConvGeometry& g = p.geometry;
  const Sm90Config& c = plan.tile;
  Image x = image_of(p, true), dy = image_of(p, false);
  int* flag = nullptr;
  if (plan.planes) {
    flag = reinterpret_cast<int*>(static_cast<uint8_t*>(launch.workspace) + plan.flag_at);
    fill(plan.x_planes, plan.dy_planes, flag, launch);
    x = staged(x, plan.x_planes, launch);
    dy = staged(dy, plan.dy_planes, launch);
  }
  // Channels of a group, and from plane to plane, as they lie.
  const int64_t x_group = plan.planes ? padded_channels(g.c) : g.c;
  const int64_t dy_group = plan.planes ? padded_channels(g.k) : g.k;
  const int64_t dy_plane = dy_group * g.groups;
  fill({&plan.x_stage, &plan.dy_stage}, launch);
  if (plan.x_stage.tensor) x = staged(x, plan.x_stage.at(launch));
  if (plan.dy_stage.tensor) dy = staged(dy, plan.dy_stage.at(launch));
  const bool d = has_d(g);
  Sm90ConvArgs args;
  args.features = kWide;
  args.rows = static_cast<int>(g.k);
  args.cols = static_cast<int>(plan.cols);
  args.k_blocks = static_cast<int>(plan.blocks);
  args.part_blocks = static_cast<int>(plan.part_blocks);
  args.parts = static_cast<int>(plan.parts);
  args.columns.pixels = pixels_of(plan.axes, d);
  args.columns.taps = taps_of(plan.axes, g);
  args.columns.channels = static_cast<int>(x_group);
  args.columns.plane = static_cast<int>(x_group * g.groups);
  args.columns.no_channel = static_cast<int>(padded_channels(x.channels));
  args.skip = flag;
  args.columns.chunks = FastDiv(plan.chunks);
  set_sm90_tiles(c, plan.parts, g.groups, g.groups, args);
  const auto type = map_type(plan.mma, true);
  const auto cols = static_cast<uint64_t>(plan.cols), rows = static_cast<uint64_t>(g.k);
  const auto groups = static_cast<uint64_t>(g.groups);
  const CUtensorMap map_dy = make_tensor_map(
      dy.data,
      {type,
       dy.bytes,
       {rows, static_cast<uint64_t>(dy.pixels()), groups,
        static_cast<uint64_t>(std::max(plan.planes, 1))},
       {map_stride(dy.stride[0] * dy.bytes, dy.pixels()), map_stride(dy_group * dy.bytes, g.groups),
        map_stride(dy_plane * dy.bytes, plan.planes ? 2 : 1)},
       {64, 64}});
  CUtensorMap map_y;
  if (plan.direct) {
    args.features = kStraight | (plan.mma == Mma::kBFloat16 ? kBFloat16 : 0);
    args.y.step[0][1] = 1;
    map_y = make_tensor_map(p.w.data, {type,
                                       2,
                                       {cols, rows, groups, 1},
                                       {map_stride(2 * p.w_strides.k, g.k),
                                        map_stride(2 * p.w_strides.group, g.groups), 16},
                                       {64, 16}});
  } else {
    args.y.step[1][1] = 1;  // groups; parts are dimension 2
    const uint64_t line = plan.cols * sizeof(float), part = line * rows;
    map_y =
        make_tensor_map(launch.workspace, {CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                                           4,
                                           {cols, rows, static_cast<uint64_t>(plan.parts), groups},
                                           {line, part, part * plan.parts},
                                           {32, 16}});
  }
  const int clusters = std::min(sm90_clusters_at_once(plan.kernel, c.multicast), args.tiles);
  launch_sm90(plan.kernel, clusters, c.multicast,
              {map_dy, columns_map(x, plan.axes, d, type, 64), map_y}, args, launch.stream);
  if (!plan.direct) add_weight_parts(p, plan, spread, flag, launch);
  if (flag) run_weights_simt_if(p, flag, launch);
  if (p.bias) add_bias_gradient(p, launch);
}

template <Operands kOperands>
constexpr Impl<ConvBackwardWeight> make_impl(const char* name) {
  return {name, [](const ConvBackwardWeight& p) { return plan_weights(p, kOperands).reason; },
          [](const ConvBackwardWeight& p) { return plan_weights(p, kOperands).workspace_bytes; },
          [](const ConvBackwardWeight& p, const Launch& launch) {
            run_weights(p, plan_weights(p, kOperands), launch);
          }};
}
constexpr Impl<ConvBackwardWeight> kImpls[] = {
    make_impl<Operands::kAsTheyLie>("wgmma_sm90"),
    make_impl<Operands::kCopied>("wgmma_sm90_copied"),
    make_impl<Operands::kPlanes>("wgmma_sm90_planes"),
};

// The result's gradient may have to be copied.
WeightPlan plan_either(const ConvProblem& p, const Sm90Spread& spread) {
  const WeightPlan plan = plan_weights(p, Operands::kAsTheyLie, spread);
  return plan.reason ? plan_weights(p, Operands::kCopied, spread) : plan;
}

}  // namespace

const char* sm90_weights_decline(const ConvProblem& p, const Sm90Spread& spread) {
  return plan_either(p, spread).reason;
}
size_t sm90_weights_workspace_bytes(const ConvProblem& p, const Sm90Spread& spread) {
  return plan_either(p, spread).workspace_bytes;
}
void sm90_weights(const ConvProblem& p, const Sm90Spread& spread, const Launch& launch) {
  run_weights(p, plan_either(p, spread), launch, spread);
}

ImplList<ConvBackwardWeight> conv_backward_weight_sm90_impls() { return kImpls; }

}  // namespace dlkern
