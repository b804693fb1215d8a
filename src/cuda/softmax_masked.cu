// Softmax of scaled and masked logits, rows in registers.
//
//   l_i = scale x_i + mask_i, or -inf where element i is left out
//   y_i = exp(l_i - m) / sum_j exp(l_j - m),  log: l_i - m - log sum_j exp(l_j - m),  m = max_j l_j
//
// Layout: as softmax.cu's rows in registers, up to 32 KB (256 KB on Hopper), but the logits stay
// there in the accumulation type: those of 16-bit types would lose digits. Of a row with a causal
// mask only what counts is read. A mask is bool or of type T or its accumulation type; it is read
// once for each row, from the caches where it is broadcast. Bound by memory.
#include "core/index.h"
#include "core/mixed.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/row_pieces.cuh"
#include "cuda/prims/softmax.cuh"
#include "cuda/prims/vec.cuh"
#include "cuda/softmax.h"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kItems = 4;  // pieces of a thread, at most

template <class T>
struct Args {
  using Acc = Accumulator<T>;
  const T* x;
  const void* mask;  // or nullptr
  T* y;
  StridedIndex<3> rows;  // x, y, mask
  int n, queries;        // queries: rows that a causal mask counts; 0: there is none
  int64_t mask_stride;   // along the axis
  bool log;
  Acc scale;
  int align_x, align_y;
  bool mask_in_vectors;  // whole pieces of the mask lie at multiples of their size, or of 16 bytes

  // Elements of a row, from the first one on, that the causal mask keeps.
  __device__ int kept(int64_t row) const {
    if (queries == 0) return n;
    const int64_t q = row - quotient(row, queries) * queries;
    const int64_t end = q + 1 + n - queries;
    return static_cast<int>(end < 0 ? 0 : end < n ? end : n);
  }
};

// A row's mask, in pieces as its elements.
template <class M, int kPieceElements>
struct MaskPieces {
  static constexpr int kVector = 16 / sizeof(M) < kPieceElements ? 16 / sizeof(M) : kPieceElements;
  static constexpr int kVectors = kPieceElements / kVector;
  Vec<M, kVector> vec[kItems * kVectors];

  __device__ __forceinline__ M get(int k) const { return vec[k / kVector].v[k % kVector]; }
  // first(i): place of piece i. Elements at `kept` and later may be anything.
  template <class First>
  __device__ __forceinline__ void load(const M* mask, int64_t stride, int n, int kept,
                                       bool in_vectors, First&& first) {
    if (in_vectors) {
#pragma unroll
      for (int v = 0; v < kItems * kVectors; ++v) {
        const int at = first(v / kVectors) + v % kVectors * kVector;
        vec[v] = {};
        if (at < kept && at + kVector <= n) vec[v] = load_vec<kVector>(mask + at);
      }
      if (n % kVector == 0) return;
    }
#pragma unroll
    for (int k = 0; k < kItems * kPieceElements; ++k) {
      const int at = first(k / kPieceElements) + k % kPieceElements;
      const bool in_a_vector = in_vectors && at / kVector < n / kVector;
      if (at < kept && !in_a_vector) vec[k / kVector].v[k % kVector] = mask[at * stride];
    }
  }
};

template <class Acc, class M>
__device__ __forceinline__ Acc added(M m) {
  if constexpr (std::is_same_v<M, bool>) {
    return m ? Acc(0) : Acc(-INFINITY);
  } else {
    return static_cast<Acc>(m);
  }
}

template <class T, class M, bool kBlocks>
__global__ void __launch_bounds__(kRowThreads)
    softmax_masked_registers_kernel(const Args<T> args, int team_size) {
  using Acc = Accumulator<T>;
  using Row = RowPieces<T, kItems>;
  RowTeam<kBlocks> team(team_size);
  const bool there = team.row < args.rows.numel;
  const int n = args.n, kept = there ? args.kept(team.row) : 0;
  int64_t at[3];
  args.rows.offsets(there ? team.row : 0, at);
  Row row;
  const int whole = static_cast<int>(ceil_div(kept, kPiece<T>)) * kPiece<T>;
  row.load(args.x + at[0], whole < n ? whole : n, team, args.align_x, static_cast<T>(-INFINITY));
  MaskPieces<M, kPiece<T>> mask;
  if (args.mask) {
    mask.load(static_cast<const M*>(args.mask) + at[2], args.mask_stride, n, kept,
              args.mask_in_vectors, [&](int i) { return row.place(team, i * kPiece<T>); });
  }
  Acc logit[Row::kElements];
#pragma unroll
  for (int k = 0; k < Row::kElements; ++k) {
    const Acc add = args.mask ? added<Acc>(mask.get(k)) : Acc(0);
    const bool counts = row.place(team, k) < kept && add != -INFINITY;
    logit[k] = counts ? static_cast<Acc>(row.get(k)) * args.scale + add : Acc(-INFINITY);
  }
  const SoftmaxExp<T> exp;
  const auto sums =
      softmax_sums<T, Row::kElements>(team, exp, [&](int k) { return logit[k]; }, [] {});
  const Acc sum = sums.defined_sum(), max = sums.max;
  // A row of nothing but -inf: 0, and -inf in the logarithm.
  const Acc factor = sums.sum == 0 ? Acc(0) : args.log ? log(sum) : 1 / sum;
  if (args.log) {
    row.assign([&](T, int k) { return logit[k] - max - factor; });
  } else {
    row.assign([&](T, int k) { return exp(logit[k] - max) * factor; });
  }
  row.store(args.y + at[1], there ? n : 0, team, args.align_y);
  team.end();
}

template <class T, class M>
void launch(const SoftmaxForward& p, const Launch& launch) {
  Args<T> args{};
  args.x = p.x.as<T>(), args.mask = p.mask ? p.mask.data : nullptr, args.y = p.y.as<T>();
  args.rows = make_index<3>({&p.x, &p.y, &p.mask}, ~(1u << p.axis));
  args.n = static_cast<int>(p.length());
  args.queries = p.causal ? static_cast<int>(p.x.shape[p.axis - 1]) : 0;
  args.mask_stride = p.mask_stride();
  args.log = p.log, args.scale = static_cast<Accumulator<T>>(p.scale);
  args.align_x = row_alignment(p.x.data, args.rows, 0, sizeof(T));
  args.align_y = row_alignment(p.y.data, args.rows, 1, sizeof(T));
  const int vector_bytes = std::min<int>(16, kPiece<T> * sizeof(M));
  args.mask_in_vectors =
      args.mask_stride == 1 && row_alignment(args.mask, args.rows, 2, sizeof(M)) >= vector_bytes;
  const RowPlan plan = plan_row(args.n, kPiece<T>, kItems);
  launch_rows(plan.blocks() > 1 ? softmax_masked_registers_kernel<T, M, true>
                                : softmax_masked_registers_kernel<T, M, false>,
              plan, args.rows.numel, launch.stream, args, plan.size);
}

}  // namespace

const char* masked_not_in_registers(const SoftmaxForward& p) {
  if (!p.is_masked()) return "there is no mask";
  if (p.causal && p.x.shape[p.axis - 1] > INT32_MAX) return "too many rows for a causal mask";
  const bool known = !p.mask || p.mask.dtype == DType::kBool || p.mask.dtype == p.x.dtype ||
                     p.mask.dtype == accumulator_of(p.x.dtype);
  if (!known) return "the mask is neither bool nor of x's dtype nor of the one that is computed in";
  return not_in_registers({&p.x, &p.y}, p.axis, kItems);
}

void launch_masked_registers(const SoftmaxForward& p, const Launch& l) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    if (!p.mask || p.mask.dtype == DType::kBool) return launch<T, bool>(p, l);
    if (p.mask.dtype == p.x.dtype) return launch<T, T>(p, l);
    if constexpr (sizeof(T) == 2) launch<T, float>(p, l);
  });
}

}  // namespace dlkern
