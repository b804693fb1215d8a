// Softmax of scaled and masked logits, rows in registers.
//
//   l_i = scale x_i + mask_i, or -inf where element i is left out
//   y_i = exp(l_i - m) / sum_j exp(l_j - m),  log: l_i - m - log sum_j exp(l_j - m),  m = max_j l_j
//
// Layout: as softmax.cu's rows in registers, up to 32 KB (256 KB on Hopper), but the logits stay
// there in the accumulation type: those of 16-bit types would lose digits. Of a row with a causal
// mask only what counts is read. A mask is bool or of type T or its accumulation type; it is read
// once for each row, from the caches where it is broadcast. Bound by memory.
#include "core/fast_index.h"
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

constexpr int kItems = 4;  // pieces of a thread

template <class T>
struct Args {
  using Acc = Accumulator<T>;
  const T* x;
  const void* mask;  // or nullptr
  T* y;
  FastIndex<3, kFewDims> rows;  // x, y, mask
  int n;
  FastDiv queries;  // rows that a causal mask counts
  bool causal;
  int64_t mask_stride;  // along the axis
  bool log;
  Acc scale;
  int align_x, align_y;
  bool mask_in_vectors;  // whole pieces of the mask lie at multiples of their size, or of 16 bytes

  // Elements of a row, from the first one on, that the causal mask keeps.
  __device__ int kept(int64_t row) const {
    if (!causal) return n;
    const int r = static_cast<int>(row), count = static_cast<int>(queries.divisor());
    const int end = r - queries.quick(r) * count + 1 + n - count;
    return end < 0 ? 0 : end < n ? end : n;
  }
};

// A row's mask, in pieces as its elements; behind what the causal mask keeps it is 0.
template <class M, int kPieceElements>
struct MaskPieces {
  static constexpr int kVector = 16 / sizeof(M) < kPieceElements ? 16 / sizeof(M) : kPieceElements;
  static constexpr int kVectors = kPieceElements / kVector;
  Vec<M, kVector> vec[kItems * kVectors];

  __device__ __forceinline__ M get(int k) const { return vec[k / kVector].v[k % kVector]; }
  // first(i): place of piece i.
  template <class First>
  __device__ __forceinline__ void load(const M* mask, int64_t stride, int n, int kept,
                                       bool in_vectors, First&& first) {
#pragma unroll
    for (int v = 0; v < kItems * kVectors; ++v) vec[v] = {};
    if (in_vectors) {
#pragma unroll
      for (int v = 0; v < kItems * kVectors; ++v) {
        const int at = first(v / kVectors) + v % kVectors * kVector;
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
  const int n = there ? args.n : 0, kept = there ? args.kept(team.row) : 0;
  int64_t at[3];
  args.rows.offsets(there ? team.row : 0, at);
  Row row;
  const int whole = static_cast<int>(ceil_div(kept, kPiece<T>)) * kPiece<T>;
  row.load(args.x + at[0], whole < n ? whole : n, team, args.align_x, static_cast<T>(-INFINITY));
  Acc logit[Row::kElements];
  if (args.mask) {
    MaskPieces<M, kPiece<T>> mask;
    mask.load(static_cast<const M*>(args.mask) + at[2], args.mask_stride, n, kept,
              args.mask_in_vectors, [&](int i) { return row.place(team, i * kPiece<T>); });
#pragma unroll
    for (int k = 0; k < Row::kElements; ++k) {
      const Acc add = added<Acc>(mask.get(k)),
                sum = static_cast<Acc>(row.get(k)) * args.scale + add;
      logit[k] = add == -INFINITY ? add : sum;  // of any element, NaN too
    }
  } else {
#pragma unroll
    for (int k = 0; k < Row::kElements; ++k) logit[k] = static_cast<Acc>(row.get(k)) * args.scale;
  }
  // Of the piece in which the causal mask begins.
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int first = row.place(team, i * kPiece<T>);
    if (first >= kept || first + kPiece<T> <= kept) continue;
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) {
      if (first + e >= kept) logit[i * kPiece<T> + e] = -INFINITY;
    }
  }
  const SoftmaxExp<T> exp;
  Acc largest = -INFINITY;
#pragma unroll
  for (int k = 0; k < Row::kElements; ++k) largest = Larger()(largest, logit[k]);
  // A row of nothing but -inf: 0, and -inf in the logarithm.
  if (args.log) {
    const auto sums = softmax_sums(team, exp, largest, [&](Acc shift) {
      Acc part = 0;
#pragma unroll
      for (int k = 0; k < Row::kElements; ++k) part += exp(logit[k] - shift);
      return part;
    });
    const Acc log_sum = sums.sum == 0 ? Acc(0) : log(sums.defined_sum());
    row.assign([&](T, int k) { return logit[k] - sums.max - log_sum; });
  } else {
    const auto all = exponentials<T>(team, exp, largest, logit);
    const Acc factor = all.sums.sum == 0 ? Acc(0) : all.factor / all.sums.defined_sum();
    row.assign([&](T, int k) { return logit[k] * factor; });
  }
  row.store(args.y + at[1], n, team, args.align_y);
}

StridedIndex<3> row_index(const SoftmaxForward& p) {
  return make_index<3>({&p.x, &p.y, &p.mask}, ~(1u << p.axis));
}

template <class T, class M>
void launch(const SoftmaxForward& p, const Launch& launch) {
  Args<T> args{};
  args.x = p.x.as<T>(), args.mask = p.mask ? p.mask.data : nullptr, args.y = p.y.as<T>();
  const StridedIndex<3> rows = row_index(p);
  args.rows = FastIndex<3, kFewDims>(rows);
  args.n = static_cast<int>(p.length());
  args.causal = p.causal, args.queries = FastDiv(p.causal ? p.x.shape[p.axis - 1] : 1);
  args.mask_stride = p.mask_stride();
  args.log = p.log, args.scale = static_cast<Accumulator<T>>(p.scale);
  args.align_x = row_alignment(p.x.data, rows, 0, sizeof(T));
  args.align_y = row_alignment(p.y.data, rows, 1, sizeof(T));
  const int vector_bytes = std::min<int>(16, kPiece<T> * sizeof(M));
  args.mask_in_vectors =
      args.mask_stride == 1 && row_alignment(args.mask, rows, 2, sizeof(M)) >= vector_bytes;
  const RowPlan plan = plan_row(args.n, kPiece<T>, kItems, kItems);
  launch_rows(plan.blocks() > 1 ? softmax_masked_registers_kernel<T, M, true>
                                : softmax_masked_registers_kernel<T, M, false>,
              plan, args.rows.numel, launch.stream, args, plan.size);
}

}  // namespace

const char* masked_not_in_registers(const SoftmaxForward& p) {
  if (!p.is_masked()) return "there is no mask";
  if (fast_dims(row_index(p)) > kFewDims) return "too many rows, or dimensions of them";
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
