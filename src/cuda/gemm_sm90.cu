// The Hopper matrix products on the host: which kernel and configuration computes a problem, tensor
// maps, and what has to be gathered first. The kernels: gemm_sm90.cuh.
#include "cuda/gemm_sm90.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <optional>
#include <string>

#include "core/tuning.h"
#include "cuda/gemm.h"
#include "cuda/gemm_pack.h"
#include "cuda/gemm_parts.cuh"
#include "cuda/prims/tensor_map.h"

namespace dlkern {
namespace {

using namespace gpu;

// ---- Operands ----------------------------------------------------------------------------------

// One operand as the kernels see it: rows of k, or k rows.
struct Operand {
  const Matrix* from;
  int which;             // its place among the tensors of the batch
  int64_t rows, row, k;  // extent and stride of the rows, stride along k
  int bytes;             // of an element
  bool along_k = true, packed = false;

  // Rows begin at cache lines: others take two for each 128 bytes.
  bool is_aligned() const { return packed || (along_k ? row : k) * bytes % 128 == 0; }
};

enum class Fit { kAlongK, kAlongRows, kNeither };

bool is_copyable(const Gemm& g, const Operand& o, int64_t stride) {
  const int64_t unit = 16 / o.bytes;
  const auto fits = [&](int64_t s, int64_t extent) {
    return extent == 1 || (s > 0 && s % unit == 0 && s * o.bytes < (int64_t{1} << 40));
  };
  const bool along = o.k == 1 || g.k.numel == 1;
  if (!fits(stride, along ? o.rows : g.k.numel)) return false;
  for (int d = 0; d < g.batch.ndim; ++d) {
    const int64_t s = g.batch.stride[o.which][d];
    if (s != 0 && !fits(s, g.batch.shape[d])) return false;
  }
  return reinterpret_cast<uintptr_t>(o.from->data) % 16 == 0;
}

// How the copy engine and wgmma can take an operand where it lies.
Fit fit_of(const Gemm& g, const Operand& o) {
  if (g.k.ndim > 1) return Fit::kNeither;
  const bool one_k = g.k.numel == 1, one_row = o.rows == 1;
  if ((o.k == 1 || one_k) && is_copyable(g, o, o.row)) return Fit::kAlongK;
  // Groups begin at any row, and boxes at multiples of 16 bytes.
  const bool anywhere = g.is_grouped() && o.which == 0;
  if (o.bytes == 2 && !one_k && !anywhere && (o.row == 1 || one_row) && is_copyable(g, o, o.k)) {
    return Fit::kAlongRows;
  }
  return Fit::kNeither;
}

Operand operand(const Gemm& g, int which) {
  const Matrix& from = which == 0 ? g.a : g.b;
  return {&from,
          which,
          which == 0 ? g.m : g.n,
          which == 0 ? from.row : from.col,
          g.k.ndim ? g.k.stride[which][g.k.ndim - 1] : 1,
          static_cast<int>(dtype_size(from.dtype))};
}

Pack pack_of(const Gemm& g, const Operand& o, bool planes) {
  Pack p;
  p.from = o.from->data;
  p.rows = o.rows;
  p.row = o.row;
  for (int d = 0; d < g.k.ndim; ++d) p.k.push(g.k.shape[d], {g.k.stride[o.which][d]});
  p.k.numel = g.k.numel;
  p.element_bytes = o.bytes;
  p.planes = planes ? 3 : 0;
  // [items][planes][rows][pitch]
  p.to_row = p.pitch();
  p.to_plane = p.rows * p.to_row;
  const int64_t* strides = g.batch.stride[o.which];
  int64_t to_item = p.to_plane * std::max(p.planes, 1);
  for (int d = 0; d < g.batch.ndim; ++d) to_item *= strides[d] ? g.batch.shape[d] : 1;
  for (int d = 0; d < g.batch.ndim; ++d) {
    if (strides[d] == 0) continue;
    to_item /= g.batch.shape[d];
    p.items.push(g.batch.shape[d], {strides[d], to_item});
  }
  return p;
}

Sm90Kernel find_kernel(Mma mma, int config, bool a_along_k, bool b_along_k) {
  if (mma == Mma::kBFloat16) return sm90_kernel_bfloat16(config, a_along_k, b_along_k);
  if (mma == Mma::kFloat16) return sm90_kernel_float16(config, a_along_k, b_along_k);
  return a_along_k && b_along_k ? sm90_kernel_along_k(mma, config) : Sm90Kernel{};
}

// ---- A plan ------------------------------------------------------------------------------------

// How a problem is computed. `first` has the rows of a tile, `second` the columns.
struct Sm90Plan {
  const char* reason = nullptr;  // why it cannot be
  Mma mma;
  bool planes = false, transposed = false;
  bool thin = false;  // few columns, for which there are tiles
  Operand first, second;
  int config = -1;
  uint32_t features = 0;  // of Sm90Feature, with this configuration
  int blocks_k = 1;       // blocks of a cluster, or parts in the workspace, that share the sums
  int64_t pitch = 0;      // from row to row of the parts' sums
  size_t first_at = 0, second_at = 0, sums_at = 0, flag_at = 0, workspace_bytes = 0;

  const Sm90Config& tile() const { return kSm90Configs[config]; }
  int parts() const { return tile().cluster_k ? 1 : blocks_k; }
};

int depth_of(Mma mma) { return kSwizzleBytes / element_bytes(mma); }

int64_t tiles_of(const Gemm& g, const Sm90Plan& plan) {
  const Sm90Config& c = plan.tile();
  const int below = c.share_a ? 1 : c.multicast, beside = c.share_a ? c.multicast : 1;
  const int64_t rows = ceil_div(plan.first.rows, c.m * below) * below;
  const int64_t columns = ceil_div(plan.second.rows, c.n * beside) * beside;
  // Groups share the rows, and each has a tile that is not full.
  return (g.is_grouped() ? rows + g.batch.numel / 2 : rows * g.batch.numel) * columns;
}

bool is_wide(const Gemm& g) { return dtype_size(g.y.dtype) == 4; }

// y leaves in slabs where its rows and strides allow that: bulk stores write 16 bytes at a time, past
// the end of a row that is no multiple of them.
bool is_for_slabs(const Gemm& g, const Sm90Plan& plan) {
  const int bytes = static_cast<int>(dtype_size(g.y.dtype));
  if (bytes != 2 && bytes != 4) return false;
  if (!plan.transposed && plan.tile().cluster_k) return false;
  // y where it is the same for all items (groups) has no batch stride to check.
  const int64_t unit = 16 / bytes;
  bool fits =
      g.n % unit == 0 && g.y.col == 1 && reinterpret_cast<uintptr_t>(g.y.data) % 16 == 0 &&
      (g.m == 1 || (g.y.row > 0 && g.y.row % unit == 0 && g.y.row * bytes < (int64_t{1} << 40)));
  for (int d = 0; d < g.batch.ndim; ++d) {
    const int64_t s = g.batch.stride[3][d];
    fits = fits && (s % unit == 0 && s >= 0);
  }
  return fits;
}

// Of the sums of parts, beside those of y: behind what bulk stores write.
int64_t row_sums_column(const Gemm& g) { return ceil_div(g.n, 4) * 4; }

// c is one row of a tile for all: added in registers.
bool has_bias(const Gemm& g, const Sm90Plan& plan) {
  return g.beta != 0 && (plan.transposed ? g.c.col : g.c.row) == 0 && g.c.dtype != DType::kFloat64;
}

// The activation, if there is one, is one of quick_activation(). Which is right after the bias and
// what is added in pairs: that depends on how a problem is turned, and so on m.
bool has_usual_activation(const Gemm& g) {
  const bool usual = g.activation == DLK_ACTIVATION_RELU || g.activation == DLK_ACTIVATION_GELU ||
                     g.activation == DLK_ACTIVATION_GELU_TANH ||
                     g.activation == DLK_ACTIVATION_SILU;
  return usual && !g.saved.data && !g.pre.data && dtype_size(g.y.dtype) == 2 && !g.batch_invariant;
}

// c or a residual that is added in registers, where there is one and nothing that they do not have.
const Matrix* pairs_of(const Gemm& g, const Sm90Plan& plan) {
  const bool addend = g.beta != 0 && !has_bias(g, plan);
  if (addend == (g.residual.data != nullptr) || plan.tile().cluster_k) return nullptr;
  if (g.pre.data || g.saved.data || g.amax || g.scale_y) return nullptr;
  if (g.activation != DLK_ACTIVATION_NONE && !has_usual_activation(g)) return nullptr;
  const Matrix& t = addend ? g.c : g.residual;
  const int64_t* strides = g.batch.stride[addend ? 2 : 5];
  bool fits = t.dtype == g.y.dtype && dtype_size(t.dtype) == 2 && t.col == 1 && t.row % 2 == 0 &&
              g.n % 2 == 0 && reinterpret_cast<uintptr_t>(t.data) % 4 == 0;
  for (int d = 0; d < g.batch.ndim; ++d) fits = fits && strides[d] % 2 == 0;
  return fits ? &t : nullptr;
}

bool is_quick(const Gemm& g, const Sm90Plan& plan) {
  return has_usual_activation(g) && (g.beta == 0 || has_bias(g, plan) || pairs_of(g, plan) == &g.c);
}

// What of the epilogue is not done in registers.
Epilogue left_after_registers(const Gemm& g, const Sm90Plan& plan) {
  Epilogue e = g;
  const Matrix* pairs = pairs_of(g, plan);
  e.alpha = 1;
  if (has_bias(g, plan) || pairs == &g.c) e.beta = 0;
  if (pairs == &g.residual) e.residual = {};
  if (is_quick(g, plan)) e.activation = DLK_ACTIVATION_NONE;
  return e;
}

// Bits of Sm90Feature.
uint32_t features_of(const Gemm& g, const Sm90Plan& plan) {
  uint32_t features = 0;
  const auto add = [&](bool present, Sm90Feature feature) {
    if (present) features |= feature;
  };
  const auto scales = [](const Scale& s) { return s.data && !s.along_depth(); };
  add(has_bias(g, plan), kBias);
  add(scales(plan.transposed ? g.scale_b : g.scale_a), kRowScales);
  add(scales(plan.transposed ? g.scale_a : g.scale_b), kColScales);
  add(g.a.dtype == DType::kInt8 && g.y.dtype == DType::kInt32, kRaw);
  add(is_quick(g, plan), kQuick);
  add(pairs_of(g, plan), kPairs);
  add(is_wide(g), kWide);
  add(g.y.dtype == DType::kBFloat16, kBFloat16);
  add(!left_after_registers(g, plan).is_plain(), kMore);
  add(!is_for_slabs(g, plan), kStrided);
  // The common epilogues: y of the operands' type and a bias at most; of float8 also scales.
  const bool straight =
      is_float8(g.a.dtype) ? g.y.dtype == DType::kBFloat16 && (features & (kRowScales | kColScales))
                           : g.y.dtype == g.a.dtype && dtype_size(g.y.dtype) == 2 && g.alpha == 1 &&
                                 (g.beta == 1 || !(features & kBias));
  add(straight && !(features & (kQuick | kPairs | kNeedsFull)), kStraight);
  return features;
}

bool needs_full(const Gemm& g, const Sm90Plan& plan) {
  if (plan.parts() > 1) return false;  // finished when the parts are added
  return g.is_grouped() || (plan.features & kNeedsFull);
}

// Estimated time of a configuration in clocks of a multiprocessor, fitted to times on an H200.
double cost_of(const Gemm& g, const Sm90Plan& plan) {
  // Bytes that each multiprocessor gets in a clock when all are at work.
  constexpr double kFromMemory = 18, kFromCache = 60;
  const Sm90Config& c = plan.tile();
  const int64_t sms = multiprocessor_count(), blocks = tiles_of(g, plan) * plan.blocks_k;
  const double stages = ceil_div(ceil_div(g.k.numel, depth_of(plan.mma)), plan.blocks_k);
  // Clusters that share k have one tile each; other blocks go on to the next without a pause.
  const bool shares_k = c.cluster_k && plan.blocks_k > 1;
  const double waves = ceil_div(blocks, shares_k ? sms / plan.blocks_k * plan.blocks_k : sms);
  // A stage: the tensor cores' clocks, or a thin tile's latencies, and the clocks in which its bytes
  // come from the L2 cache. Rows that are not aligned take two lines for each 128 bytes.
  const double efficiency = c.n >= 192 ? 1.0 : c.n == 64 ? 1.4 : 1.05;
  const double multiply = (c.planes == 3 ? 6 : 1) * c.m * c.n / 32.0 * efficiency;
  const double rows = c.share_a ? c.m / c.multicast + c.n : c.m + c.n / c.multicast;
  const bool aligned = plan.first.is_aligned() && plan.second.is_aligned();
  const double copy = c.planes * rows * kSwizzleBytes * std::min(blocks, sms) *
                      (aligned ? 1 : 1.6) / (kFromCache * sms);
  const double thin = c.promote ? 400 + 2 * c.n : 200 + 1.2 * c.n;
  const double stage = std::max(c.cluster_k ? thin : multiply, copy);
  // A consumer's way out, chunk by chunk, and for clusters that share k to each other.
  const double chunks = c.m / (c.ping_pong ? 64 : 64 * c.consumers) * std::max(c.n / 32, 1);
  const double chunk = plan.parts() > 1             ? 400
                       : plan.features & kNeedsFull ? 4000
                       : plan.features & kQuick     ? 1500
                       : plan.features & kPairs     ? 900
                       : plan.features & kStraight  ? 150
                                                    : 400;
  const double out = 800 + chunk * chunks + (shares_k ? 2500 + 45 * c.n : 0);
  // Ping-pong: one consumer's way out while the other multiplies.
  const double main = stages * stage + (c.multicast > 1 ? 500 : 0);  // blocks wait for each other
  const double tiles =
      c.ping_pong ? waves * std::max(main, (main + out) / 2) + out : waves * (main + out);
  // Operands come from memory once, but for what thin tiles beside each other read again.
  const double again = c.cluster_k ? ceil_div(plan.second.rows, c.n) : 1;
  const double read = double(g.batch.numel) * dtype_size(g.a.dtype) * g.k.numel *
                      (plan.first.rows * again + plan.second.rows);
  const double memory =
      g.is_grouped() ? 0.0 : read / (kFromMemory * sms) * (c.multicast > 1 ? 1.08 : 1) + 800;
  double add = 0;
  if (plan.parts() > 1) {
    add =
        4000 + 4.0 * plan.first.rows * plan.second.rows * (plan.parts() + 1) / (kFromMemory * sms);
  }
  return std::max(tiles, memory) + 0.1 * std::min(tiles, memory) + add;
}

std::string name_of(int config, int blocks_k) {
  const Sm90Config& c = kSm90Configs[config];
  std::string name = std::to_string(c.m) + "x" + std::to_string(c.n);
  name += c.ping_pong ? " ping-pong" : c.cluster_k ? " thin" : " cooperative";
  if (c.multicast > 1) name += c.share_a ? " share-a" : " share-b";
  if (c.full) name += " full";
  if (blocks_k > 1) name += " split" + std::to_string(blocks_k);
  return name;
}

// Calls f() with each number of blocks in `trial` that could share k: powers of two, and where they are
// parts what fills the device once or twice. Parts are for products with few tiles, and their sums take
// memory.
template <class F>
void for_each_split(const Gemm& g, Sm90Plan& trial, bool splits, F&& f) {
  const int64_t stages = ceil_div(g.k.numel, depth_of(trial.mma)), sms = multiprocessor_count();
  const int64_t tiles = tiles_of(g, trial);
  const auto with = [&](int64_t blocks) {
    trial.blocks_k = static_cast<int>(blocks);
    if (trial.parts() == 1 || tiles * blocks <= 4 * sms) f();
  };
  with(1);
  if (!splits) return;
  const bool cluster = trial.tile().cluster_k;
  for (int64_t blocks = 2; blocks <= (cluster ? 8 : 64) && stages >= 4 * blocks; blocks *= 2) {
    with(blocks);
  }
  for (const int64_t blocks : {sms / tiles, 2 * sms / tiles}) {
    if (!cluster && blocks > 1 && stages >= 4 * blocks && (blocks & (blocks - 1))) with(blocks);
  }
}

// Calls f(plan with a configuration) for each that could compute the problem so laid out.
template <class F>
void for_each_choice(const Gemm& g, const Sm90Plan& layout, F&& f) {
  const bool fp8 = is_float8(g.a.dtype);
  for (int i = 0; i < kSm90ConfigCount; ++i) {
    const Sm90Config& c = kSm90Configs[i];
    if ((c.planes == 3) != layout.planes || (c.planes == 1 && c.promote != fp8)) continue;
    if (c.cluster_k && (!layout.thin || c.n >= 4 * std::max<int64_t>(layout.second.rows, 16))) {
      continue;
    }
    if (!c.cluster_k && layout.transposed) continue;
    if (c.row_sums != (g.row_sum.data != nullptr)) continue;
    if (!find_kernel(layout.mma, i, layout.first.along_k, layout.second.along_k).function) continue;
    const bool parts = !c.cluster_k && g.batch.numel == 1 && !g.is_grouped() && !g.is_scaled() &&
                       layout.mma != Mma::kInt8;
    const bool splits = (c.cluster_k || parts) && !g.batch_invariant;
    Sm90Plan trial = layout;
    trial.config = i;
    trial.features = features_of(g, trial);
    for_each_split(g, trial, splits, [&] {
      // Some kinds have kernels with the full epilogue only.
      const bool only_full = c.planes == 3 || c.row_sums;
      if (needs_full(g, trial) ? c.full : !c.full || only_full) f(trial);
    });
  }
}

std::string key_of(const Gemm& g) {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return std::string("gemm_sm90 ") + dtype_name(g.a.dtype) + " " + dtype_name(g.b.dtype) + " " +
         dtype_name(g.y.dtype) + (g.tf32 ? " tf32" : "") + " m" + text(g.m) + " n" + text(g.n) +
         " k" + text(g.k.numel) + " batch" + text(g.batch.numel) +
         (operand(g, 0).k == 1 ? " k" : " r") + (operand(g, 1).k == 1 ? "k" : "r") +
         (g.is_grouped() ? " groups" : "") + (g.is_plain() ? "" : " epilogue");
}

// Gathering costs a pass over the operand: not for products that are over before that. Few rows or
// columns are worth it where the sum is long, as in the gradient of a head's weights.
bool worth_packing(const Gemm& g) {
  const bool large = (g.m >= 64 && g.n >= 64) || g.k.numel >= 1 << 14;
  return g.batch_invariant || (large && double(g.m) * g.n * g.k.numel >= 1 << 24);
}

const char* unsuitable(const Gemm& g) {
  if (compute_capability() != 90) return "needs compute capability 9.0";
  if (!sm90_mma(g.a.dtype, g.b.dtype, g.tf32)) return "no tensor-core product of this dtype";
  if (g.k.numel < 1) return "the sum is over nothing";
  if (g.m < 1 || g.n < 1 || g.batch.numel < 1) return "y is empty";
  if (g.batch.ndim > 2) return "more than two batch dimensions that do not merge";
  if (g.groups.along == Groups::Along::kDepth) return "the sum is grouped";
  if (g.scale_a.item != 0) return "the factors of a's rows change from item to item";
  const int64_t limit = INT_MAX / 16;  // products with a block of a cluster fit, too
  if (g.m > limit || g.n > limit || g.k.numel > limit || g.batch.numel > limit) {
    return "an extent is beyond 2^27";
  }
  if (ceil_div(g.m, 64) * ceil_div(g.n, 16) > limit / g.batch.numel) return "too many tiles";
  if (g.a.dtype == DType::kFloat32 && !g.tf32) {
    if (g.batch_invariant) return "float32 sums in one order";
    if (g.m < 128 || g.n < 128 || double(g.m) * g.n * g.k.numel * g.batch.numel < 1 << 28 ||
        g.k.numel < 64) {
      return "too small to be split into bfloat16 planes";
    }
  }
  if (g.a.dtype == DType::kInt8 && g.y.dtype == DType::kInt32 && !g.is_plain()) {
    return "an epilogue of int32";
  }
  return nullptr;
}

// Products with few rows or columns have tiles of their own, whose rows are the long extent: those
// with few rows are computed transposed. Not what is grouped, summed by rows, scaled along the depth or
// stored along m, nor float32 as planes.
bool may_be_thin(const Gemm& g) {
  return !g.row_sum.data && !g.is_grouped() && !scales_along_depth(g) &&
         (g.a.dtype != DType::kFloat32 || g.tf32);
}
bool may_transpose(const Gemm& g) {
  return may_be_thin(g) && g.m <= (is_float8(g.a.dtype) ? 64 : 128) && g.n > g.m && g.y.col == 1;
}

// How operands go to a kernel; without a configuration. `packing`: they may be gathered in the
// workspace.
Sm90Plan lay_out(const Gemm& g, bool packing, bool transposed) {
  Sm90Plan plan{};
  plan.planes = g.a.dtype == DType::kFloat32 && !g.tf32;
  plan.transposed = transposed;
  plan.first = operand(g, transposed ? 1 : 0);
  plan.second = operand(g, transposed ? 0 : 1);
  plan.thin = transposed || (plan.second.rows <= 128 && !may_transpose(g) && may_be_thin(g));
  plan.mma = *sm90_mma(plan.first.from->dtype, plan.second.from->dtype, g.tf32);
  bool any_packed = false;
  for (Operand* o : {&plan.first, &plan.second}) {
    const Fit fit = plan.planes ? Fit::kNeither : fit_of(g, *o);
    o->along_k = fit != Fit::kAlongRows;
    // Thin kernels have their columns along k.
    o->packed = fit == Fit::kNeither || (transposed && o == &plan.second && fit != Fit::kAlongK);
    if (o->packed) o->along_k = any_packed = true;
  }
  if (any_packed && !packing) {
    plan.reason = plan.planes ? "float32 operands are not split into planes"
                              : "an operand's address or strides are not for bulk copies";
  } else if (!any_packed && packing) {
    plan.reason = "nothing to gather";
  } else if (any_packed && !plan.planes && !worth_packing(g)) {
    plan.reason = "too small to gather operands first";
  }
  return plan;
}

template <class F>
void for_each_plan(const Gemm& g, bool packing, F&& f) {
  bool any = false;
  for (const bool transposed : {true, false}) {
    if (transposed && !may_transpose(g)) continue;
    // Tiles of 128 rows are half empty for 64: only where no thin tile will do.
    if (!transposed && may_transpose(g) && g.m <= 64 && any) continue;
    const Sm90Plan layout = lay_out(g, packing, transposed);
    if (layout.reason) continue;
    for_each_choice(g, layout, [&](const Sm90Plan& trial) {
      any = true;
      f(trial);
    });
  }
}

Sm90Plan make_plan(const Gemm& g, bool packing) {
  Sm90Plan plan{};
  plan.reason = unsuitable(g);
  if (plan.reason) return plan;
  plan = lay_out(g, packing, may_transpose(g));
  const std::string_view wanted =
      g.batch_invariant ? std::string_view() : tuned([&] { return key_of(g); });
  double best = 0;
  for_each_plan(g, packing, [&](const Sm90Plan& trial) {
    const bool tuned_to = !wanted.empty() && wanted == name_of(trial.config, trial.blocks_k);
    const double cost = tuned_to ? -1 : cost_of(g, trial);
    if (plan.config >= 0 && cost >= best) return;
    best = cost;
    plan = trial;
  });
  if (plan.config < 0) {
    if (!plan.reason) plan.reason = "no kernel for these layouts";
    return plan;
  }
  const auto reserve = [&](size_t bytes) {
    const size_t at = plan.workspace_bytes;
    plan.workspace_bytes += (bytes + 255) / 256 * 256;
    return at;
  };
  if (plan.first.packed) plan.first_at = reserve(pack_of(g, plan.first, plan.planes).bytes());
  if (plan.second.packed) plan.second_at = reserve(pack_of(g, plan.second, plan.planes).bytes());
  if (plan.parts() > 1) {
    plan.pitch = row_sums_column(g) + (g.row_sum.data ? 4 : 0);
    plan.sums_at = reserve(plan.parts() * g.m * plan.pitch * sizeof(float));
  }
  if (plan.planes) plan.flag_at = reserve(sizeof(int));
  return plan;
}

// ---- Launch ------------------------------------------------------------------------------------

CUtensorMapDataType map_type(int bytes, bool tf32) {
  return tf32         ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
         : bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
         : bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                      : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

// A matrix of inner x outer elements in each item of the batch: dimensions 2 and 3 are those of the
// batch along which it is not the same. tf32: elements are rounded to it on their way in.
CUtensorMap map_matrix(const Gemm& g, void* data, int which, int bytes, int64_t inner,
                       int64_t outer, int64_t stride, uint32_t box_inner, uint32_t box_outer,
                       MapSteps& steps, bool tf32 = false) {
  TensorMapShape shape{map_type(bytes, tf32),
                       bytes,
                       {static_cast<uint64_t>(inner), static_cast<uint64_t>(outer), 1, 1},
                       {static_cast<uint64_t>(outer > 1 ? stride * bytes : 16), 16, 16},
                       {box_inner, box_outer}};
  for (int d = 0; d < g.batch.ndim; ++d) {
    const int coordinate = g.batch.ndim - 1 - d;  // 2 + this one
    const int64_t s = g.batch.stride[which][d];
    if (s == 0) continue;
    shape.extent[2 + coordinate] = g.batch.shape[d];
    shape.stride_bytes[1 + coordinate] = s * bytes;
    steps.step[coordinate][1 - coordinate] = 1;
  }
  return make_tensor_map(data, shape);
}

CUtensorMap map_packed(const Gemm& g, void* data, int which, int bytes, const Pack& p,
                       uint32_t box_outer, MapSteps& steps, bool tf32) {
  const int planes = std::max(p.planes, 1);
  const uint64_t line = p.to_row * bytes;
  const TensorMapShape shape{map_type(bytes, tf32),
                             bytes,
                             {static_cast<uint64_t>(p.k.numel), static_cast<uint64_t>(p.rows),
                              static_cast<uint64_t>(planes), static_cast<uint64_t>(p.items.numel)},
                             {line, line * p.rows, line * p.rows * planes},
                             {static_cast<uint32_t>(kSwizzleBytes / bytes), box_outer}};
  // Items are counted over those dimensions along which the operand changes.
  int step = 1;
  for (int d = g.batch.ndim - 1; d >= 0; --d) {
    if (g.batch.stride[which][d] == 0) continue;
    steps.step[1][2 - g.batch.ndim + d] = step;
    step *= static_cast<int>(g.batch.shape[d]);
  }
  return make_tensor_map(data, shape);
}

CUtensorMap map_operand(const Gemm& g, const Operand& o, uint8_t* packed, const Pack& pack,
                        int box_rows, MapSteps& steps) {
  const int bytes = pack.planes ? 2 : o.bytes;
  const uint32_t box_k = kSwizzleBytes / bytes;
  const bool tf32 = g.tf32 && g.a.dtype == DType::kFloat32;
  if (o.packed) return map_packed(g, packed, o.which, bytes, pack, box_rows, steps, tf32);
  if (o.along_k) {
    return map_matrix(g, o.from->data, o.which, bytes, g.k.numel, o.rows, o.row, box_k, box_rows,
                      steps, tf32);
  }
  return map_matrix(g, o.from->data, o.which, bytes, o.rows, g.k.numel, o.k, 64, box_k, steps);
}

void set_epilogue(const Gemm& g, const Sm90Plan& plan, Sm90Args& args) {
  args.features = plan.features;
  args.e = left_after_registers(g, plan);
  args.alpha = static_cast<float>(g.alpha);
  args.beta = static_cast<float>(g.beta);
  args.bias = {g.c.data, g.c.dtype, 0, plan.transposed ? g.c.row : g.c.col};
  args.quick = g.activation;
  if (const Matrix* pairs = pairs_of(g, plan)) {
    const bool addend = pairs == &g.c;
    args.pairs = {pairs->data, pairs->row, addend ? args.beta : 1.0f, addend, addend ? 2 : 5};
  }
  args.scale_row = plan.transposed ? g.scale_b : g.scale_a;
  args.scale_col = plan.transposed ? g.scale_a : g.scale_b;
}

void launch_plan(const Gemm& g, const Sm90Plan& plan, const Launch& launch) {
  clear_amax(g, launch);
  const Sm90Config& c = plan.tile();
  auto* workspace = static_cast<uint8_t*>(launch.workspace);
  int* flag = plan.planes ? reinterpret_cast<int*>(workspace + plan.flag_at) : nullptr;
  if (flag) {
    check(cudaMemsetAsync(flag, 0, sizeof(int), static_cast<Stream>(launch.stream)), "flag");
  }
  Pack packs[2] = {pack_of(g, plan.first, plan.planes), pack_of(g, plan.second, plan.planes)};
  uint8_t* places[2] = {workspace + plan.first_at, workspace + plan.second_at};
  for (int i = 0; i < 2; ++i) {
    packs[i].to = places[i];
    packs[i].flag = flag;
  }
  const int first = plan.first.packed ? 0 : 1, end = plan.second.packed ? 2 : 1;
  if (first < end) run_packs({packs + first, packs + end}, launch.stream);

  Sm90Args args;
  set_epilogue(g, plan, args);
  args.rows = static_cast<int>(plan.first.rows);
  args.cols = static_cast<int>(plan.second.rows);
  args.k_blocks = static_cast<int>(ceil_div(g.k.numel, depth_of(plan.mma)));
  while (c.cluster_k && 1 << args.split_bits < plan.blocks_k) ++args.split_bits;
  args.part_blocks = static_cast<int>(ceil_div(args.k_blocks, plan.parts()));
  args.parts = static_cast<int>(ceil_div(args.k_blocks, args.part_blocks));  // none is empty
  set_sm90_tiles(c, args.parts, g.batch.numel,
                 g.batch.ndim > 0 ? g.batch.shape[g.batch.ndim - 1] : 1, args);
  for (int t = 0; t < Gemm::kTensors; ++t) {
    for (int d = 0; d < g.batch.ndim; ++d) {
      args.item_stride[t][2 - g.batch.ndim + d] = g.batch.stride[t][d];
    }
  }
  args.transposed = plan.transposed;
  args.row_sum = g.row_sum;
  args.add_row_sum = g.add_row_sum;
  args.groups = g.groups;
  args.skip = flag;

  const CUtensorMap map_a =
      map_operand(g, plan.first, places[0], packs[0], c.share_a ? c.m / c.multicast : c.m, args.a);
  const CUtensorMap map_b =
      map_operand(g, plan.second, places[1], packs[1], c.share_a ? c.n : c.n / c.multicast, args.b);
  CUtensorMap map_y{};
  if (args.parts > 1) {
    args.e = Epilogue{};
    args.features = kWide;
    args.alpha = 1;
    const uint64_t line = plan.pitch * sizeof(float);
    map_y = make_tensor_map(workspace + plan.sums_at,
                            {map_type(4, false),
                             4,
                             {static_cast<uint64_t>(g.n), static_cast<uint64_t>(g.m),
                              static_cast<uint64_t>(args.parts), 1},
                             {line, line * g.m, 16},
                             {32, 16}});
    if (g.row_sum.data) {
      args.row_sum = {reinterpret_cast<float*>(workspace + plan.sums_at) + row_sums_column(g),
                      DType::kFloat32, plan.pitch, g.m * plan.pitch};
      args.add_row_sum = false;
    }
  } else if (!(args.features & kStrided)) {
    const int bytes = is_wide(g) ? 4 : 2;
    const uint32_t columns = std::min(c.n, kSwizzleBytes / bytes);
    map_y = map_matrix(g, g.y.data, 3, bytes, g.n, g.m, g.y.row,
                       plan.transposed ? kSwizzleBytes / bytes : columns,
                       plan.transposed ? columns : 16, args.y);
  }

  const Sm90Kernel kernel =
      find_kernel(plan.mma, plan.config, plan.first.along_k, plan.second.along_k);
  const int cluster = c.cluster_k ? plan.blocks_k : c.multicast;
  // Blocks that add their sums in shared memory have one tile.
  int clusters = c.cluster_k && cluster > 1 ? args.tiles : sm90_clusters_at_once(kernel, cluster);
  if (!g.is_grouped()) clusters = std::min(clusters, args.tiles);
  launch_sm90(kernel, clusters, cluster, {map_a, map_b, map_y}, args, launch.stream);
  if (args.parts > 1) {
    add_parts<float>(g, workspace + plan.sums_at, plan.pitch, row_sums_column(g), args.parts,
                     launch, flag);
  }
  if (flag) run_simt_if(g, flag, launch);
}

void run(const Gemm& g, const Launch& launch, bool packing) {
  launch_plan(g, make_plan(g, packing), launch);
}

void candidates(const Gemm& g, bool packing, Candidates& out) {
  if (g.batch_invariant) return;  // no choice may change the order of a sum
  const Sm90Plan plan = make_plan(g, packing);
  out.key = key_of(g);
  out.add(name_of(plan.config, plan.blocks_k));
  for_each_plan(g, packing, [&](const Sm90Plan& trial) {
    if (trial.config != plan.config || trial.blocks_k != plan.blocks_k) {
      out.add(name_of(trial.config, trial.blocks_k));
    }
  });
}

constexpr Impl<Gemm> kImpls[] = {
    {"wgmma_sm90", [](const Gemm& g) { return make_plan(g, false).reason; },
     [](const Gemm& g) { return make_plan(g, false).workspace_bytes; },
     [](const Gemm& g, const Launch& l) { run(g, l, false); },
     [](const Gemm& g, Candidates& out) { candidates(g, false, out); }},
    {"wgmma_sm90_gather", [](const Gemm& g) { return make_plan(g, true).reason; },
     [](const Gemm& g) { return make_plan(g, true).workspace_bytes; },
     [](const Gemm& g, const Launch& l) { run(g, l, true); },
     [](const Gemm& g, Candidates& out) { candidates(g, true, out); }},
};

}  // namespace

ImplList<Gemm> gemm_sm90_impls() { return kImpls; }

std::optional<Mma> sm90_mma(DType first, DType second, bool tf32) {
  const bool first_e4m3 = first == DType::kFloat8E4M3, second_e4m3 = second == DType::kFloat8E4M3;
  switch (first) {
    case DType::kFloat32:
      return tf32 ? Mma::kTf32 : Mma::kBFloat16;
    case DType::kBFloat16:
      return Mma::kBFloat16;
    case DType::kFloat16:
      return Mma::kFloat16;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return first_e4m3 ? (second_e4m3 ? Mma::kE4M3 : Mma::kE4M3E5M2)
                        : (second_e4m3 ? Mma::kE5M2E4M3 : Mma::kE5M2);
    case DType::kInt8:
      return Mma::kInt8;
    default:
      return std::nullopt;
  }
}

void set_sm90_tiles(const Sm90Config& c, int64_t parts, int64_t items, int64_t inner_items,
                    Sm90Args& args) {
  const int below = c.share_a ? 1 : c.multicast, beside = c.share_a ? c.multicast : 1;
  args.tiles_m = static_cast<int>(ceil_div(ceil_div(args.rows, c.m), below));
  args.tiles_n = static_cast<int>(ceil_div(ceil_div(args.cols, c.n), beside));
  args.band = std::max(1, 2048 / (c.m * below));
  const int64_t of_item = int64_t{args.tiles_m} * args.tiles_n;
  args.tiles = static_cast<int>(of_item * items * parts);
  args.by_item = FastDiv(of_item);
  args.by_band_tiles = FastDiv(int64_t{args.band} * args.tiles_n);
  args.by_band = FastDiv(args.band);
  args.by_last_band = FastDiv(std::max(args.tiles_m % args.band, 1));
  args.by_parts = FastDiv(parts);
  args.by_inner = FastDiv(inner_items);
  args.items = static_cast<int>(items);
}

int sm90_clusters_at_once(const Sm90Kernel& kernel, int cluster) {
  if (cluster == 1) return multiprocessor_count();
  // The same for all kernels here: each fills a multiprocessor, and clusters are of two blocks.
  static std::atomic<int> cached[kMaxDevices];
  return cached_fact(cached, [&](int) {
    return max_active_clusters(kernel.function, kernel.threads, kernel.shared_bytes, cluster);
  });
}

}  // namespace dlkern
