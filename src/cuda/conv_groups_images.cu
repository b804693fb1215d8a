// Convolutions of many small groups, images by weights: the implementations
// (conv_groups_images.cuh).
#include "cuda/conv.h"

#if !defined(__HIPCC__)

#include "cuda/conv_groups_host.h"
#include "cuda/conv_groups_images.cuh"

namespace dlkern {
namespace {

using namespace conv_groups;

// Of a line of the box, where a group does not take more. Fewer: a tile of more pixels of fewer
// groups, whose box overlaps others less, from shorter pieces of memory.
constexpr int64_t kLineChunks = 8;

// How a problem is computed: by multiply-adds or by tensor cores, and who takes what.
struct Shape {
  bool mma;
  int64_t c, k;           // channels of a group, summed and of the result
  int64_t chunks;         // of c
  int64_t cols, columns;  // 8 channels of the result: a warp's, and a group's
  int64_t frags, in_slice, bunches;

  Shape(const ConvProblem& p, bool inverse)
      : mma(multiplies_by_tensor_cores(p)),
        c(inverse ? p.geometry.k : p.geometry.c),
        k(inverse ? p.geometry.c : p.geometry.k),
        chunks(chunks_of(c, p.x.dtype)) {
    const bool wide = p.x.dtype == DType::kFloat32;
    cols = !mma || k <= 8 ? 1 : k <= 16 ? 2 : 4;
    columns = ceil_div(k, 8 * cols) * cols;
    frags = mma ? (wide ? 8 : 16) / cols : wide ? 4 : 2;
    const int64_t blocks = columns / cols;
    in_slice = std::min(
        {p.geometry.groups, std::max<int64_t>(kLineChunks / chunks, 1), kGroupWarps / blocks});
    bunches = kGroupWarps / (in_slice * blocks);
  }
  int64_t most_pixels() const { return bunches * frags * (mma ? 16 : 32); }
  int64_t weights_bytes(int64_t entries) const {  // of 8 channels of the result
    return mma ? ceil_div(entries, 2) * 256 : entries * 128;
  }
};

int64_t round_up(int64_t n, int64_t unit) { return ceil_div(n, unit) * unit; }

struct Plan {
  const char* reason = nullptr;
  GroupImagesArgs args{};
  GroupWeightsOrder order{};
  int64_t blocks = 0, shared_bytes = 0;
  size_t workspace_bytes = 0;  // for the weights in order
};

// Whether lines of results leave in pieces of 16 bytes.
bool stores_pieces(const ConvProblem& p, bool inverse, const Shape& shape) {
  const ConvGeometry& g = p.geometry;
  const int64_t bytes = static_cast<int64_t>(dtype_size(p.x.dtype));
  return shape.in_slice * shape.k * bytes % 16 == 0 &&
         copy_width(inverse ? p.x : p.y, inverse ? p.x_strides : p.y_strides, g.batch,
                    inverse ? g.in : g.out, g.groups * shape.k) == 16;
}

void set_result(const ConvProblem& p, bool inverse, const Axes& result, GroupImagesArgs& args) {
  const Tensor& t = inverse ? p.x : p.y;
  const ConvImageStrides& s = inverse ? p.x_strides : p.y_strides;
  const int64_t bytes = static_cast<int64_t>(dtype_size(t.dtype));
  args.result = static_cast<char*>(t.data);
  for (int d = 0; d < 3; ++d) {
    const int64_t stride = s.spatial[2 - d] * bytes;
    args.result += result.axis[d].lower * stride;
    args.result_stride[d] = result.axis[d].step * stride;
  }
  args.result_stride[3] = s.n * bytes;
  args.result_channel = s.c * bytes;
}

GroupWeightsOrder weights_order(const ConvProblem& p, bool inverse, const Axes& axes,
                                const Shape& shape, const GroupEntries& entries) {
  const ConvWeightStrides& s = p.w_strides;
  GroupWeightsOrder order{};
  int64_t first = 0;
  for (int d = 0; d < 3; ++d) {
    first += axes.axis[d].first_tap * s.taps[2 - d];
    order.tap_stride[d] = axes.axis[d].tap_step * s.taps[2 - d];
  }
  order.weights =
      static_cast<const char*>(p.w.data) + first * static_cast<int64_t>(dtype_size(p.w.dtype));
  order.group_stride = s.group;
  order.k_stride = inverse ? s.c : s.k;
  order.c_stride = inverse ? s.k : s.c;
  order.entries = entries;
  order.groups = p.geometry.groups;
  order.c = static_cast<int>(shape.c);
  order.k = static_cast<int>(shape.k);
  order.columns = static_cast<int>(shape.columns);
  return order;
}

bool result_is_near(const GroupImagesArgs& args, const TileExtents& t) {
  int64_t reach = args.in_slice * args.k * std::abs(args.result_channel);
  for (int d = 0; d < 4; ++d) reach += (t.tile[d] - 1) * std::abs(args.result_stride[d]);
  return reach < INT_MAX;
}

Plan plan_axes(const ConvProblem& p, bool inverse, const Axes& axes, const Axes& result) {
  const ConvGeometry& g = p.geometry;
  const Shape shape(p, inverse);
  const int64_t bytes = static_cast<int64_t>(dtype_size(p.x.dtype));
  Plan plan;
  GroupImagesArgs& args = plan.args;
  const int64_t pitch = (shape.in_slice * shape.chunks | 1) * kChunkBytes;
  const int64_t line = shape.in_slice * shape.k * bytes;  // of results
  const bool pieces = stores_pieces(p, inverse, shape);
  const int64_t unit = pieces ? kChunkBytes : 2 * bytes;
  const int64_t result_pitch = (ceil_div(line, unit) | 1) * unit;
  const int64_t entries = axes.axis[0].taps * axes.axis[1].taps * axes.axis[2].taps * shape.chunks;
  const int64_t weights = shape.in_slice * shape.columns * shape.weights_bytes(entries);
  const int64_t table = round_up(2 * entries * 4, 16) + 16;
  const auto tile_bytes = [&](int64_t pixels, int64_t box) {
    return round_up(std::max(pixels * result_pitch, box * pitch), 128);
  };
  const Extents extents(axes, g.batch);
  const TileExtents t = choose_tile(extents, shape.most_pixels(), [&](int64_t pixels, int64_t box) {
    return tile_bytes(pixels, box) + weights + table <= kSharedBytes;
  });
  if (t.tile[0] == 0) {
    plan.reason = "a tile of pixels with what its taps reach does not fit in shared memory";
    return plan;
  }
  args.from = image_of(p, !inverse);
  set_lines(args.from, t.box, shape.in_slice, shape.chunks, pitch);
  args.tiles = tiles_of(axes, extents, t);
  args.entries = entries_of(axes, t, shape.chunks);
  const int64_t slices = ceil_div(g.groups, shape.in_slice);
  args.slices = FastDiv(slices);
  args.groups = static_cast<int>(g.groups);
  args.in_slice = static_cast<int>(shape.in_slice);
  args.bunches = static_cast<int>(shape.bunches);
  plan.order = weights_order(p, inverse, axes, shape, args.entries);
  plan.workspace_bytes = g.groups * shape.columns * shape.weights_bytes(entries);
  args.bias = p.bias.data;
  args.bias_stride = p.bias ? p.bias.strides[0] : 0;
  set_result(p, inverse, result, args);
  args.k = static_cast<int>(shape.k);
  args.result_width = pieces ? 16 : 0;
  args.result_pitch = static_cast<int>(result_pitch);
  args.result_in_line = static_cast<int>(line / 16);
  args.by_result_line = fast(pieces ? line / 16 : args.tiles.tile.count);
  args.group_bytes = static_cast<int>(shape.chunks * kChunkBytes);
  args.weights_bytes = static_cast<int>(shape.weights_bytes(entries));
  args.weights_at = static_cast<int>(tile_bytes(args.tiles.tile.count, args.from.box.count));
  args.table_at = static_cast<int>(args.weights_at + weights);
  args.zeros_at = static_cast<int>(args.table_at + table - 16);
  plan.shared_bytes = args.zeros_at + 16;
  plan.blocks = tile_count(extents, t) * slices;
  if (plan.blocks > INT_MAX) plan.reason = "too many tiles";
  if (!is_near(args.from, t.box, shape.in_slice) || !result_is_near(args, t)) {
    plan.reason = "pixels of a tile are 2^31 bytes apart or more";
  }
  return plan;
}

template <bool kInverse>
const char* declines(const ConvProblem& p) {
  if (const char* reason = unsuitable(p)) return reason;
  constexpr int64_t kMostAxes = 64;
  int64_t axes_count = 1;  // of for_each_axes; before each of them is planned
  for (int d = 0; kInverse && d < 3; ++d) {
    axes_count *= std::min(p.geometry.window[d].stride, p.geometry.in[d]);
    if (axes_count > kMostAxes) return "too large a stride";
  }
  const char* reason = nullptr;
  for_each_axes(p, kInverse, [&](const Axes& axes, const Axes& result) {
    if (const char* why = plan_axes(p, kInverse, axes, result).reason) reason = why;
  });
  return reason;
}

template <class Product>
void launch(Plan plan, const Launch& launch) {
  plan.args.weights = plan.order.ordered = launch.workspace;
  if (plan.workspace_bytes > 0) {  // there are taps
    const int64_t threads = static_cast<int64_t>(plan.workspace_bytes) /
                            (Product::kMma ? sizeof(uint2) : sizeof(typename Product::T));
    launch_kernel(order_weights_kernel<typename Product::T, Product::kMma>,
                  static_cast<unsigned>(ceil_div(threads, kGroupThreads)), kGroupThreads, 0,
                  launch.stream, plan.order);
  }
  launch_kernel(conv_groups_kernel<Product, 2>, static_cast<unsigned>(plan.blocks), kGroupThreads,
                plan.shared_bytes, launch.stream, plan.args);
}
template <class T>
void launch_mma(const Shape& shape, const Plan& plan, const Launch& launch_) {
  constexpr int kFrags = sizeof(T) == 4 ? 8 : 16;
  if (shape.cols == 1) return launch<GroupProduct<T, true, 1, kFrags>>(plan, launch_);
  if (shape.cols == 2) return launch<GroupProduct<T, true, 2, kFrags / 2>>(plan, launch_);
  launch<GroupProduct<T, true, 4, kFrags / 4>>(plan, launch_);
}

// Input gradients of a stride are several convolutions, one after the other.
template <bool kInverse>
size_t workspace_bytes(const ConvProblem& p) {
  size_t bytes = 0;
  for_each_axes(p, kInverse, [&](const Axes& axes, const Axes& result) {
    bytes = std::max(bytes, plan_axes(p, kInverse, axes, result).workspace_bytes);
  });
  return bytes;
}

template <bool kInverse>
void run(const ConvProblem& p, const Launch& l) {
  const Shape shape(p, kInverse);
  for_each_axes(p, kInverse, [&](const Axes& axes, const Axes& result) {
    const Plan plan = plan_axes(p, kInverse, axes, result);
    if (p.x.dtype == DType::kBFloat16) return launch_mma<BFloat16>(shape, plan, l);
    if (p.x.dtype == DType::kFloat16) return launch_mma<Half>(shape, plan, l);
    if (shape.mma) return launch_mma<float>(shape, plan, l);
    if (p.x.dtype == DType::kFloat32) return launch<GroupProduct<float, false, 1, 4>>(plan, l);
    launch<GroupProduct<double, false, 1, 2>>(plan, l);
  });
}

constexpr Impl<ConvForward> kForward[] = {
    {"small_groups", [](const ConvForward& p) { return declines<false>(p); },
     [](const ConvForward& p) { return workspace_bytes<false>(p); },
     [](const ConvForward& p, const Launch& l) { run<false>(p, l); }}};
constexpr Impl<ConvBackwardInput> kBackwardInput[] = {
    {"small_groups", [](const ConvBackwardInput& p) { return declines<true>(p); },
     [](const ConvBackwardInput& p) { return workspace_bytes<true>(p); },
     [](const ConvBackwardInput& p, const Launch& l) { run<true>(p, l); }}};

}  // namespace

ImplList<ConvForward> conv_forward_groups_impls() { return kForward; }
ImplList<ConvBackwardInput> conv_backward_input_groups_impls() { return kBackwardInput; }

}  // namespace dlkern

#else

namespace dlkern {
ImplList<ConvForward> conv_forward_groups_impls() { return {}; }
ImplList<ConvBackwardInput> conv_backward_input_groups_impls() { return {}; }
}  // namespace dlkern

#endif
