// Thin products by multiply-adds (gemm_thin_simt.cuh): which of them, how they are cut, and the
// kernels for float32; gemm_thin_simt_types.cu and gemm_thin_simt_16bit.cu have the others.
#include <algorithm>
#include <cmath>

#include "cuda/gemm_thin_simt.cuh"

namespace dlkern {
namespace gpu {

template void launch_thin<float>(const ThinArgs&, int, bool, const Launch&);
extern template void launch_thin<double>(const ThinArgs&, int, bool, const Launch&);
extern template void launch_thin<Half>(const ThinArgs&, int, bool, const Launch&);
extern template void launch_thin<BFloat16>(const ThinArgs&, int, bool, const Launch&);

}  // namespace gpu

namespace {

using namespace gpu;

// How a product is cut.
struct ThinPlan {
  bool of_b, along_k;  // b is the long operand; it lies along k
  ThinOperand x[2];
  int64_t rows, cols;
  int tile_cols, together, ahead;  // columns of a block; thin_blocks(), thin_ahead()
  int teams_k, block_rows;         // teams that share rows; rows of a block
  Parts parts;

  int64_t blocks(const Gemm& g) const {  // of each part
    return ceil_div(rows, block_rows) * ceil_div(cols, tile_cols) * g.batch.numel;
  }
};

// Whether all rows of an operand can be read by vectors of n elements, along k or along the rows.
bool is_wide(const Gemm& g, int which, const ThinOperand& x, int64_t rows, bool along_k, int n) {
  const int64_t extent = along_k ? g.k.numel : rows, others = along_k ? rows : g.k.numel;
  const int64_t neighbour = along_k ? x.k : x.row, other = along_k ? x.row : x.k;
  if (neighbour != 1 || extent % n != 0 || (others > 1 && other % n != 0)) return false;
  for (int d = 0; d < g.batch.ndim; ++d) {
    if (g.batch.stride[which][d] % n != 0) return false;
  }
  return reinterpret_cast<uintptr_t>(x.data) % (n * dtype_size(g.a.dtype)) == 0;
}

// Time of a product cut that way, in bytes that a multiprocessor gets meanwhile at its share of the
// memory's rate. An estimate for an H200; others have their rates in about the same proportions.
double cost_of(const Gemm& g, const ThinPlan& plan, int sum_bytes) {
  constexpr double kCache = 0.7;       // a byte from the L2 cache, which gives both operands
  constexpr double kMultiply = 0.18;   // a multiply-add in float32
  constexpr double kAlone = 0.65;      // blocks that are alone get theirs faster by this
  constexpr double kBlock = 32 << 10;  // until a block's first bytes are there, and its end
  constexpr double kAdd = 100 << 10;   // another kernel, to add the parts
  const double bytes = static_cast<double>(dtype_size(g.a.dtype)), parts = plan.parts.count;
  const int together = plan.together;
  const double rows = static_cast<double>(std::min<int64_t>(plan.block_rows, plan.rows));
  const double read = bytes * std::max(rows, kCache * (rows + plan.tile_cols));
  const double multiply = kMultiply * sum_bytes / 4 * rows * plan.tile_cols;
  const double slots = multiprocessor_count() * together, blocks = plan.blocks(g) * parts;
  const double full = std::floor(blocks / slots), rest = blocks / slots - full;
  const double rounds = full + (rest > 0 ? std::max({rest, kAlone, multiply / read}) : 0);
  const double block = std::max(read, multiply) * g.k.numel / parts;
  const double sums = 2.0 * parts * g.m * g.n * sum_bytes / multiprocessor_count();
  return rounds * (together * block + kBlock) + (parts > 1 ? kAdd + 1024 * parts + sums : 0);
}

// Chooses how many teams share rows, and how many parts there are.
void cut(const Gemm& g, ThinPlan& plan, const ThinStep& step, int sum_bytes) {
  constexpr int64_t kMostParts = 64;  // they are added one after the other
  const int64_t k = g.k.numel;
  const int steps_of_stage = thin_stage(plan.tile_cols, sum_bytes) / step.step;
  const int64_t slots = multiprocessor_count() * plan.together;
  double best = -1;
  for (int teams = 1; teams <= kThinTeams; teams *= 2) {
    if (teams > 1 && (teams * plan.ahead > steps_of_stage || teams / 2 * step.step >= k)) break;
    ThinPlan trial = plan;
    trial.teams_k = teams;
    trial.block_rows = kThinTeams / teams * step.team_rows;
    const int round = step.step * teams;
    const int64_t most = std::min({slots / std::max<int64_t>(trial.blocks(g), 1), k / (8 * round),
                                   g.batch.numel == 1 ? kMostParts : 1});
    for (const int64_t wanted : {int64_t{1}, most}) {
      trial.parts = Parts(k, wanted, std::max(round, 32));
      const double cost = cost_of(g, trial, sum_bytes);
      if (best >= 0 && cost >= best) continue;
      best = cost;
      plan = trial;
    }
  }
}

ThinPlan make_plan(const Gemm& g) {
  ThinPlan plan{};
  plan.of_b = g.n >= g.m;
  plan.rows = plan.of_b ? g.n : g.m;
  plan.cols = plan.of_b ? g.m : g.n;
  plan.tile_cols = plan.cols > 8 ? 16 : plan.cols > 4 ? 8 : plan.cols > 1 ? 4 : 1;
  const ThinOperand a{g.a.data, g.a.row, g.k.ndim ? g.k.stride[0][0] : 1, false};
  const ThinOperand b{g.b.data, g.b.col, g.k.ndim ? g.k.stride[1][0] : 1, false};
  ThinOperand &first = plan.x[0], &second = plan.x[1];
  first = plan.of_b ? b : a;
  second = plan.of_b ? a : b;
  plan.along_k = plan.rows == 1 || first.k == 1 ||
                 (first.row != 1 && std::abs(first.k) <= std::abs(first.row));
  const int bytes = static_cast<int>(dtype_size(g.a.dtype)), sum_bytes = bytes == 8 ? 8 : 4;
  const ThinStep step(bytes, sum_bytes, plan.along_k);
  first.wide =
      is_wide(g, plan.of_b, first, plan.rows, plan.along_k, plan.along_k ? 16 / bytes : step.rows);
  second.wide = is_wide(g, !plan.of_b, second, plan.cols, true, 16 / sum_bytes);
  plan.together = thin_blocks(plan.tile_cols, bytes, first.wide);
  plan.ahead = thin_ahead(plan.tile_cols, bytes, first.wide);
  cut(g, plan, step, sum_bytes);
  return plan;
}

const char* cannot_be_thin(const Gemm& g) {
  if (!is_floating(g.a.dtype) || g.a.dtype != g.b.dtype) return "the operands are not of one float";
  const int64_t rows = std::max(g.m, g.n), cols = std::min(g.m, g.n), k = g.k.numel;
  if (cols > kThinMost) return "y is not thin";
  if (g.batch_invariant) return "its bits depend on the number of rows";
  if (g.is_grouped()) return "groups";
  if (g.row_sum.data) return "sums of rows are wanted";
  if (g.is_scaled()) return "the operands have factors";
  if (g.k.ndim > 1) return "the sum runs over several dimensions";
  if (rows >= INT_MAX / 2 || k >= INT_MAX / 2) return "an extent is beyond 2^30";
  if (rows < 64 && k < 1024) return "a small product";
  if (k < 128 && rows >= 8192) return "the sum is short";
  const ThinPlan plan = make_plan(g);
  const int64_t blocks = ceil_div(plan.rows, plan.block_rows) * ceil_div(cols, plan.tile_cols);
  if (blocks > INT_MAX / 64 || g.batch.numel > INT_MAX / 64 / std::max<int64_t>(blocks, 1)) {
    return "too many blocks";
  }
  if (compute_capability() < 80 || (g.a.dtype == DType::kFloat32 && !g.tf32)) return nullptr;
  // Tensor cores, too, read at the memory's rate where they take an operand by vectors, and
  // multiply-adds no longer do for more columns than these.
  const int64_t most = dtype_size(g.a.dtype) == 2 ? 8 : 16;
  return cols > most && plan.x[0].wide ? "tensor cores have time for more columns" : nullptr;
}

template <class T>
void run_plan(const ThinPlan& plan, const Gemm& g, const Launch& launch) {
  using Sum = Accumulator<T>;
  const int64_t parts = plan.parts.count;
  ThinArgs args(parts > 1 ? products_of_parts<Sum>(g, plan.parts, launch) : g);
  args.x[0] = plan.x[0];
  args.x[1] = plan.x[1];
  args.rows = plan.rows;
  args.cols = plan.cols;
  args.of_b = plan.of_b;
  args.depth = static_cast<int>(parts > 1 ? plan.parts.length : g.k.numel);
  args.last = static_cast<int>(g.k.numel - (parts - 1) * args.depth);
  if (parts == 1) args.last = args.depth;
  args.teams_k = plan.teams_k;
  args.tiles_rows = static_cast<uint32_t>(ceil_div(plan.rows, plan.block_rows));
  args.tiles_cols = static_cast<uint32_t>(ceil_div(plan.cols, plan.tile_cols));
  args.tiles = args.tiles_rows * args.tiles_cols * static_cast<uint32_t>(args.g.batch.numel);
  if (args.tiles == 0) return;
  launch_thin<T>(args, plan.tile_cols, plan.along_k, launch);
  if (parts > 1) add_parts<Sum>(g, launch.workspace, g.n, g.n, parts, launch);
}

constexpr Impl<Gemm> kImpls[] = {
    {"simt_thin", cannot_be_thin,
     [](const Gemm& g) {
       const Parts parts = make_plan(g).parts;
       return parts.count > 1 ? parts.workspace_bytes(g) : 0;
     },
     [](const Gemm& g, const Launch& launch) {
       clear_amax(g, launch);
       const ThinPlan plan = make_plan(g);
       dispatch_floating(g.a.dtype, [&]<class T>() { run_plan<T>(plan, g, launch); });
     }},
};

}  // namespace

ImplList<Gemm> gemm_thin_impls() { return kImpls; }

}  // namespace dlkern
