// Gradients of the weights of convolutions of many small groups: the implementation
// (conv_groups_weights.cuh).
#include "cuda/conv.h"

#if !defined(__HIPCC__)

#include "cuda/conv_groups_host.h"
#include "cuda/conv_groups_weights.cuh"

namespace dlkern {
namespace {

using namespace conv_groups;

// Of 16 by tensor cores: 9 taps of 8 channels fit in 16 bits, as many as registers allow beside many
// columns.
constexpr int rows_of(int64_t cols) { return cols == 4 ? 4 : 5; }

// How a problem is computed: by multiply-adds or by tensor cores, and who takes what.
struct Shape {
  bool mma;
  int64_t c_chunks, k_chunks, entries;
  int64_t cols;  // 8 channels of the gradient: of a task
  int64_t tasks, col_blocks, in_slice, items, splits, passes;

  explicit Shape(const ConvProblem& p)
      : mma(multiplies_by_tensor_cores(p)),
        c_chunks(chunks_of(p.geometry.c, p.x.dtype)),
        k_chunks(chunks_of(p.geometry.k, p.x.dtype)),
        entries(p.geometry.taps() * c_chunks) {
    const ConvGeometry& g = p.geometry;
    const int64_t per_chunk = kChunkBytes / static_cast<int64_t>(dtype_size(p.x.dtype));
    const int64_t workers = mma ? kGroupWarps : kGroupThreads;
    cols = !mma || g.k <= 8 ? 1 : g.k <= 16 ? 2 : 4;
    col_blocks = ceil_div(g.k, 8 * cols);
    tasks = ceil_div(entries, mma ? rows_of(cols) * 16 / per_chunk : 1) * col_blocks;
    in_slice = std::min({g.groups, std::max<int64_t>(8 / std::max(c_chunks, k_chunks), 1),
                         std::max<int64_t>(workers / tasks, 1)});
    items = std::min(workers, in_slice * tasks);
    splits = workers / items;
    passes = ceil_div(in_slice * tasks, workers);
  }
};

struct Plan {
  const char* reason = nullptr;
  GroupWeightsArgs args{};
  int64_t cols = 0, blocks = 0, shared_bytes = 0, terms = 0;
  size_t workspace_bytes = 0;
};

// Between lines: fragments have no bank conflicts.
int64_t pitch_of(int64_t chunks, bool gathers) {
  return (gathers ? chunks + ((2 - chunks) & 3) : chunks | 1) * kChunkBytes;
}

Plan plan_weights(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  const Shape shape(p);
  const bool gathers = shape.mma && p.x.dtype == DType::kFloat32;
  const Axes axes = forward_axes(g);
  const int64_t x_pitch = pitch_of(shape.in_slice * shape.c_chunks, gathers);
  const int64_t dy_pitch = pitch_of(shape.in_slice * shape.k_chunks, gathers);
  constexpr int64_t kMostPixels = 256, kTables = kMostPixels * 4 + 16;
  Plan plan;
  const Extents extents(axes, g.batch);
  const TileExtents t = choose_tile(extents, kMostPixels, [&](int64_t pixels, int64_t box) {
    return box * x_pitch + pixels * dy_pitch + kTables <= kSharedBytes;
  });
  if (t.tile[0] == 0) {
    plan.reason = "a tile of pixels with what its taps reach does not fit in shared memory";
    return plan;
  }
  GroupWeightsArgs& args = plan.args;
  args.x = image_of(p, true);
  args.dy = image_of(p, false);
  set_lines(args.x, t.box, shape.in_slice, shape.c_chunks, x_pitch);
  set_lines(args.dy, t.tile, shape.in_slice, shape.k_chunks, dy_pitch);
  args.tiles = tiles_of(axes, extents, t);
  args.entries = entries_of(axes, t, shape.c_chunks);
  const int64_t slices = ceil_div(g.groups, shape.in_slice) * shape.passes;
  const int64_t tiles = tile_count(extents, t);
  if (tiles > INT_MAX / 2) plan.reason = "too many tiles";
  const int64_t wanted = std::clamp<int64_t>(2 * multiprocessor_count() / slices, 1, tiles);
  const int64_t part_tiles = ceil_div(tiles, wanted), parts = ceil_div(tiles, part_tiles);
  args.slices = FastDiv(slices);
  args.groups = static_cast<int>(g.groups);
  args.in_slice = static_cast<int>(shape.in_slice);
  args.tile_count = static_cast<int>(tiles);
  args.part_tiles = static_cast<int>(part_tiles);
  args.tasks = static_cast<int>(shape.tasks);
  args.col_blocks = static_cast<int>(shape.col_blocks);
  args.items = static_cast<int>(shape.items);
  args.splits = static_cast<int>(shape.splits);
  args.passes = static_cast<int>(shape.passes);
  args.taps = static_cast<int>(g.taps());
  args.count = g.groups * g.k * g.taps() * g.c;
  args.x_group_bytes = static_cast<int>(shape.c_chunks * kChunkBytes);
  args.dy_group_bytes = static_cast<int>(shape.k_chunks * kChunkBytes);
  args.dy_at = static_cast<int>(args.x.box.count * x_pitch);
  args.lines_at = static_cast<int>(args.dy_at + args.dy.box.count * dy_pitch);
  args.zeros_at = args.lines_at + static_cast<int>(kMostPixels * 4);
  plan.shared_bytes = args.zeros_at + 16;
  plan.cols = shape.cols;
  plan.blocks = slices * parts;
  plan.terms = parts * shape.splits;
  plan.workspace_bytes = plan.terms * args.count * (p.x.dtype == DType::kFloat64 ? 8 : 4);
  if (plan.blocks > INT_MAX) plan.reason = "too many slices";
  if (!is_near(args.x, t.box, shape.in_slice) || !is_near(args.dy, t.tile, shape.in_slice)) {
    plan.reason = "pixels of a tile are 2^31 bytes apart or more";
  }
  return plan;
}

const char* declines(const ConvBackwardWeight& p) {
  if (const char* reason = unsuitable(p)) return reason;
  return plan_weights(p).reason;
}

template <class Product>
void launch(const Plan& plan, const Launch& launch) {
  launch_kernel(conv_groups_weights_kernel<Product, 2>, static_cast<unsigned>(plan.blocks),
                kGroupThreads, plan.shared_bytes, launch.stream, plan.args);
}
template <class T>
void launch_mma(const Plan& plan, const Launch& l) {
  if (plan.cols == 1) return launch<GroupWeightProduct<T, true, rows_of(1), 1>>(plan, l);
  if (plan.cols == 2) return launch<GroupWeightProduct<T, true, rows_of(2), 2>>(plan, l);
  launch<GroupWeightProduct<T, true, rows_of(4), 4>>(plan, l);
}

void add_terms(const ConvBackwardWeight& p, const Plan& plan, const Launch& l) {
  const ConvGeometry& g = p.geometry;
  const GroupSumArgs args{l.workspace,
                          p.w.data,
                          p.w_strides,
                          FastDiv(g.c),
                          FastDiv(g.k),
                          FastDiv(g.taps()),
                          FastDiv(g.window[2].kernel),
                          FastDiv(g.window[1].kernel),
                          plan.args.count,
                          plan.terms,
                          p.accumulate};
  dispatch_floating(p.w.dtype, [&]<class T>() {
    using Sum = std::conditional_t<sizeof(T) == 8, double, float>;
    const PartsShare share(args.terms);
    launch_kernel(conv_groups_sum_kernel<T, Sum>, share.grid(args.count), kPartsThreads, 0,
                  l.stream, args, share);
  });
}

void run(const ConvBackwardWeight& p, const Launch& l) {
  Plan plan = plan_weights(p);
  plan.args.sums = l.workspace;
  if (!multiplies_by_tensor_cores(p)) {
    if (p.x.dtype == DType::kFloat32) {
      launch<GroupWeightProduct<float, false, 1, 1>>(plan, l);
    } else {
      launch<GroupWeightProduct<double, false, 1, 1>>(plan, l);
    }
  } else if (p.x.dtype == DType::kBFloat16) {
    launch_mma<BFloat16>(plan, l);
  } else if (p.x.dtype == DType::kFloat16) {
    launch_mma<Half>(plan, l);
  } else {
    launch_mma<float>(plan, l);
  }
  add_terms(p, plan, l);
  if (p.bias) add_bias_gradient(p, l);
}

constexpr Impl<ConvBackwardWeight> kImpls[] = {
    {"small_groups", declines,
     [](const ConvBackwardWeight& p) { return plan_weights(p).workspace_bytes; }, run}};

}  // namespace

ImplList<ConvBackwardWeight> conv_backward_weight_groups_impls() { return kImpls; }

}  // namespace dlkern

#else

namespace dlkern {
ImplList<ConvBackwardWeight> conv_backward_weight_groups_impls() { return {}; }
}  // namespace dlkern

#endif
