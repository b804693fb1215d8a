// Cross entropy of logits against class labels; the formula is in loss.cuh.
//
// Layout: C classes at some stride; all other dimensions together are the rows. Neighbouring classes
// are read once: up to 16 KB of them stay in the registers of a block or a part of it, more go
// through a block in chunks (online softmax). Other
// rows are walked by one group of threads, twice with smoothing. The rows' losses,
// and the sum of their weights, are summed by a two-stage reduction (prims/columns.cuh). Sums in
// float32 (float64 for float64), a row's in an order fixed by C and by which of the ways it goes.
//
// Bound by memory: R C b bytes for R rows of elements of b bytes.
// Measured: bfloat16 8192 x 128256 in 0.473 ms, 4.45 TB/s read, 16384 x 32000 in 0.244 ms (H200,
// 2026-11-30).
//
// Reference: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "cuda/loss.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kItems =
    4;  // pieces of a thread: two for twice as many threads took 1.4 times as long

// ---- Rows in registers -------------------------------------------------------------------------

// kPlain: rows of whole pieces at multiples of 16 bytes and one stride apart, no smoothing by class
// weights. The row's loads do not wait for the label.
template <class T, bool kPlain>
__global__ void __launch_bounds__(kRowThreads, kPlain ? kRowBlocks<T> : 1)
    cross_entropy_registers_kernel(const DLK_GRID_CONSTANT Rows<T> rows, int team_size, int align) {
  using Acc = Accumulator<T>;
  RowTeam<false> team(team_size);
  const bool there = team.row < rows.count;
  const int n = there ? static_cast<int>(rows.classes) : 0;
  RowOffsets at;
  row_offsets<kPlain>(rows.index, there ? team.row : 0, at);
  const T* x = rows.logits + at[kOfLogits];
  const int64_t label = rows.label(at[kOfLabels]);
  RowPieces<T, kItems> row;
  row.template load<false, kPlain>(x, n, team, align, static_cast<T>(-INFINITY));
  Target<T> target(rows, label);
  target.load(rows, x);
  const auto sums = softmax_sums(team, row, SoftmaxExp<T>());
  Spread<T> spread;
  if (rows.smooth) {
    if constexpr (kPlain) {
      spread.add(row, team, n, sums.max);
    } else {
      spread.add(row, rows.smooth_weight, team, 0, n, sums.max);
    }
    spread.reduce([&](Acc v) { return team.reduce(v, Sum{}, Acc(0)); });
  }
  if (there && team.rank == 0) rows.store_loss(team.row, at, loss_of(rows, target, sums, spread));
}

// ---- Rows in chunks ----------------------------------------------------------------------------

template <class T, bool kPlain>
__global__ void __launch_bounds__(kChunkThreads)
    cross_entropy_chunks_kernel(const DLK_GRID_CONSTANT Rows<T> rows, int align) {
  using Acc = Accumulator<T>;
  RowTeam<false> team(kChunkThreads);
  RowOffsets at;
  row_offsets<kPlain>(rows.index, team.row, at);
  const T* x = rows.logits + at[kOfLogits];
  Target<T> target(rows, rows.label(at[kOfLabels]));
  if (!target.counts) {
    if (team.rank == 0) rows.store_loss(team.row, at, target.instead);
    return;
  }
  Spread<T> spread;
  const auto sums = softmax_sums<kPlain>(
      team, x, rows.classes, align, SoftmaxExp<T>(),
      [&](Acc old, Acc now) {
        if (rows.smooth) spread.move(old, now);
      },
      [&](int64_t first, int count, RowChunk<T>& chunk, Acc now) {
        if (!rows.smooth) return;
        if constexpr (kPlain) {
          spread.add(chunk, team, count, now);
        } else {
          spread.add(chunk, rows.smooth_weight, team, first, count, now);
        }
      });
  if (rows.smooth) spread.reduce([&](Acc v) { return team.reduce(v, Sum{}, Acc(0)); });
  if (team.rank == 0) {
    target.load(rows, x);
    rows.store_loss(team.row, at, loss_of(rows, target, sums, spread));
  }
}

// ---- Rows walked -------------------------------------------------------------------------------

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads)
    cross_entropy_walked_kernel(const DLK_GRID_CONSTANT Rows<T> rows) {
  const Team<kGroup> team;
  for (int64_t row = team.row; row < rows.count; row += team.row_step) {
    RowOffsets at;
    rows.index.offsets(row, at);
    const T* x = rows.logits + at[kOfLogits];
    Target<T> target(rows, rows.label(at[kOfLabels]));
    Accumulator<T> value = target.instead;
    if (target.counts) {
      const auto sums = walked_sums(rows, team, x);
      const auto spread = walked_spread(rows, team, x, sums.max);
      target.load(rows, x);
      value = loss_of(rows, target, sums, spread);
    }
    if (team.rank == 0) rows.store_loss(row, at, value);
  }
}

// ---- Launch ------------------------------------------------------------------------------------

// launch_kernels(rows, alignment of the rows of logits).
template <class T, class F>
void run(const CrossEntropyForward& p, const Launch& launch, F&& launch_kernels) {
  Rows<T> rows(p, {}, {}, p.loss);
  const RowSums<T> sums(p, rows, launch.workspace);
  launch_kernels(rows, row_alignment(rows.logits, rows.index, kOfLogits, sizeof(T)));
  sums.losses(rows, launch.stream);
}

template <class T>
void launch_registers(const CrossEntropyForward& p, const Launch& launch) {
  run<T>(p, launch, [&](const Rows<T>& rows, int align) {
    const RowPlan plan = plan_row(rows.classes, kPiece<T>, kItems, kItems);
    const auto kernel = is_plain(rows, align) ? cross_entropy_registers_kernel<T, true>
                                              : cross_entropy_registers_kernel<T, false>;
    launch_rows(kernel, plan, rows.count, launch.stream, rows, plan.size, align);
  });
}

template <class T>
void launch_chunked(const CrossEntropyForward& p, const Launch& launch) {
  run<T>(p, launch, [&](const Rows<T>& rows, int align) {
    const auto kernel = is_plain(rows, align) ? cross_entropy_chunks_kernel<T, true>
                                              : cross_entropy_chunks_kernel<T, false>;
    launch_chunks(kernel, rows.count, launch.stream, rows, align);
  });
}

template <class T>
void launch_walked(const CrossEntropyForward& p, const Launch& launch) {
  run<T>(p, launch, [&](const Rows<T>& rows, int) {
    const RowConfig config = pick_rows(rows.classes, p.axis == p.logits.ndim - 1);
    dispatch_group(config.group, [&]<Group kGroup>() {
      launch_kernel(cross_entropy_walked_kernel<T, kGroup>,
                    grid_for(config.blocks(rows.count), 1, 16), config.threads, 0, launch.stream,
                    rows);
    });
  });
}

// Nothing but the row's loss is written: chunks are quicker than a large block or a cluster.
const char* not_in_a_block(const CrossEntropyForward& p) {
  if (const char* reason = not_in_registers({&p.logits}, p.axis, kItems)) return reason;
  const int piece = static_cast<int>(16 / dtype_size(p.logits.dtype));
  const RowPlan plan = plan_row(p.classes(), piece, kItems, kItems);
  return plan.size > kChunkThreads ? "rows are long enough for chunks" : nullptr;
}

constexpr Impl<CrossEntropyForward> kForward[] = {
    {"registers",
     [](const CrossEntropyForward& p) {
       const char* reason = weights_not_in_pieces(p);
       return reason ? reason : not_in_a_block(p);
     },
     row_sums_bytes<CrossEntropyForward>,
     [](const CrossEntropyForward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_registers<T>(p, launch); });
     }},
    {"chunks",
     [](const CrossEntropyForward& p) {
       const char* reason = weights_not_in_pieces(p);
       return reason ? reason : not_in_chunks({&p.logits}, p.axis);
     },
     row_sums_bytes<CrossEntropyForward>,
     [](const CrossEntropyForward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_chunked<T>(p, launch); });
     }},
    {"rows", supports_all, row_sums_bytes<CrossEntropyForward>,
     [](const CrossEntropyForward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_walked<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<CrossEntropyForward> gpu_impls<CrossEntropyForward>() {
  return kForward;
}

}  // namespace dlkern
