// Gradient of cross entropy, and the loss with it where that is wanted; the formulas are in loss.cuh.
//
// Layout: as loss_forward.cu. Neighbouring classes, up to 64 KB of them (512 KB on Hopper), stay in
// the registers of a team of threads (prims/row_pieces.cuh): read once, written once. Longer rows go
// through a block in chunks, twice, and other rows are walked by one group of threads, twice.
// dlogits may be logits: a thread writes where it alone reads, after all have read what lies at the
// label. For a mean the sum of the rows' weights is taken first.
//
// Bound by memory: 2 R C b bytes for R rows of elements of b bytes, 3 R C b in chunks and walked,
// the second read from the L2 cache where it fits. 8192 x 128256 in bfloat16: 4.20 GB, 1.00 ms at
// the 4.2 TB/s of an H200, the loss included.
#include "cuda/loss.cuh"

namespace dlkern {
namespace {

using namespace gpu;

// ---- Rows in registers -------------------------------------------------------------------------

// kPlain: rows of whole pieces at multiples of 16 bytes and one stride apart, no smoothing.
template <class T, int kItems>
struct HeldRow {
  RowPieces<T, kItems> logits;
  int64_t label;
};

// Its loads do not wait for each other.
template <bool kPlain, class T, int kItems, bool kBlocks>
__device__ __forceinline__ void load_row(const Rows<T>& rows, const RowTeam<kBlocks>& team,
                                         int64_t number, int n, int align,
                                         HeldRow<T, kItems>& row) {
  RowOffsets at;
  row_offsets<kPlain>(rows.index, number, at);
  row.label = rows.label(at[kOfLabels]);
  row.logits.template load<false, kPlain>(rows.logits + at[kOfLogits], n, team, align,
                                          static_cast<T>(-INFINITY));
}

// Row `number` of n elements (0: there is no such row). All of the block must call it.
template <bool kPlain, class T, int kItems, bool kBlocks>
__device__ __forceinline__ void finish_row(const Rows<T>& rows, RowTeam<kBlocks>& team,
                                           int64_t number, int n, int out_align,
                                           HeldRow<T, kItems>& row) {
  using Acc = Accumulator<T>;
  RowOffsets at;
  row_offsets<kPlain>(rows.index, n ? number : 0, at);
  Target<T> target(rows, row.label);
  target.load(rows, rows.logits + at[kOfLogits]);
  const Acc scale = rows.scale(at);
  const SoftmaxExp<T> exp;
  const auto sums = softmax_sums(team, row.logits, exp);
  Spread<T> spread;
  if (!kPlain && rows.smooth) {
    spread.add(row.logits, rows.smooth_weight, team, 0, n, sums.max);
    spread.reduce([&](Acc v) { return team.reduce(v, Sum{}, Acc(0)); });
    row.logits.forget();
  }
  if (rows.wants_loss() && n && team.rank == 0) {
    rows.store_loss(number, at, loss_of(rows, target, sums, spread));
  }
  const Gradient<T> gradient(rows, target, sums, spread.weights, scale);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    Acc w[kPiece<T>] = {};
    if (!kPlain && rows.smooth) {
      rows.smooth_weight.load(row.logits.place(team, i * kPiece<T>), n, Acc(1), w);
    }
    row.logits.assign(i, [&](T v, int k) {
      return target.counts ? gradient(static_cast<Acc>(v), w[k % kPiece<T>], exp) : target.instead;
    });
  }
  // The thread that has x_t puts its gradient in: a comparison for each element would cost more.
  const int t = static_cast<int>(target.label), piece = t / kPiece<T>;
  if (target.counts && piece % team.size == team.rank) {
    const Acc w = rows.smooth ? target.weight : Acc(0);
    row.logits.set_at(piece / team.size * kPiece<T> + t % kPiece<T>,
                      static_cast<T>(gradient(target.logit, w, exp) - gradient.hit));
  }
  row.logits.template store<kPlain>(rows.gradient + at[kOfGradient], n, team, out_align);
}

template <class T, int kItems, bool kBlocks, bool kPlain>
__global__ void __launch_bounds__(kRowThreads, kPlain ? kRowBlocks<T> : 1)
    cross_entropy_backward_registers_kernel(const DLK_GRID_CONSTANT Rows<T> rows, int team_size,
                                            int align, int out_align) {
  RowTeam<kBlocks> team(team_size);
  const bool there = team.row < rows.count;
  const int n = there ? static_cast<int>(rows.classes) : 0;
  HeldRow<T, kItems> row;
  load_row<kPlain>(rows, team, there ? team.row : 0, n, align, row);
  finish_row<kPlain>(rows, team, team.row, n, out_align, row);
}

// ---- Rows in chunks ----------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kChunkThreads)
    cross_entropy_backward_chunks_kernel(const DLK_GRID_CONSTANT Rows<T> rows, int align,
                                         int out_align) {
  using Acc = Accumulator<T>;
  RowTeam<false> team(kChunkThreads);
  RowOffsets at;
  rows.index.offsets(team.row, at);
  const T* x = rows.logits + at[kOfLogits];
  T* out = rows.gradient + at[kOfGradient];
  Target<T> target(rows, rows.label(at[kOfLabels]));
  target.load(rows, x);
  const SoftmaxExp<T> exp;
  Spread<T> spread;
  const auto sums = softmax_sums(
      team, x, rows.classes, align, exp,
      [&](Acc old, Acc now) {
        if (rows.smooth) spread.move(old, now);
      },
      [&](int64_t first, int count, RowChunk<T>& chunk, Acc now) {
        if (rows.smooth) spread.add(chunk, rows.smooth_weight, team, first, count, now);
      });
  if (rows.smooth) spread.reduce([&](Acc v) { return team.reduce(v, Sum{}, Acc(0)); });
  if (rows.wants_loss() && team.rank == 0) {
    rows.store_loss(team.row, at, loss_of(rows, target, sums, spread));
  }
  const Gradient<T> gradient(rows, target, sums, spread.weights, rows.scale(at));
  for_chunks(team, x, rows.classes, align, T(0.0f),
             [&](int64_t first, int count, RowChunk<T>& chunk) {
#pragma unroll
               for (int i = 0; i < kChunkItems; ++i) {
                 const int64_t place = first + chunk.place(team, i * kPiece<T>);
                 Acc w[kPiece<T>];
                 rows.smooth_weight.load(static_cast<int>(place), static_cast<int>(rows.classes),
                                         Acc(1), w);
                 chunk.assign(i, [&](T v, int k) {
                   const int e = k % kPiece<T>;
                   const Acc g = gradient(static_cast<Acc>(v), w[e], exp);
                   const Acc own = place + e == target.label ? gradient.hit : Acc(0);
                   return target.counts ? g - own : target.instead;
                 });
               }
               chunk.store(out + first, count, team, out_align);
             });
}

// ---- Rows walked -------------------------------------------------------------------------------

struct ExactExp {
  template <class Acc>
  __device__ __forceinline__ Acc operator()(Acc x) const {
    return exp_of(x);
  }
};

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads)
    cross_entropy_backward_walked_kernel(const DLK_GRID_CONSTANT Rows<T> rows) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  for (int64_t row = team.row; row < rows.count; row += team.row_step) {
    RowOffsets at;
    rows.index.offsets(row, at);
    const T* x = rows.logits + at[kOfLogits];
    T* out = rows.gradient + at[kOfGradient];
    Target<T> target(rows, rows.label(at[kOfLabels]));
    target.load(rows, x);
    const auto sums = walked_sums(rows, team, x);
    const auto spread = walked_spread(rows, team, x, sums.max);
    if (rows.wants_loss() && team.rank == 0) {
      rows.store_loss(row, at, loss_of(rows, target, sums, spread));
    }
    const Gradient<T> gradient(rows, target, sums, spread.weights, rows.scale(at));
    for (int64_t i = team.rank; i < rows.classes; i += team.size) {
      const Acc w = rows.smooth ? rows.class_weight(i) : Acc(0);
      const Acc g = gradient(static_cast<Acc>(x[i * rows.stride]), w, ExactExp());
      const Acc own = i == target.label ? gradient.hit : Acc(0);
      out[i * rows.gradient_stride] = static_cast<T>(target.counts ? g - own : target.instead);
    }
  }
}

// ---- Launch ------------------------------------------------------------------------------------

// launch_kernels(rows, alignment of the rows of logits, and of dlogits).
template <class T, class F>
void run(const CrossEntropyBackward& p, const Launch& launch, F&& launch_kernels) {
  Rows<T> rows(p, p.dlogits, p.dloss, p.loss);
  const RowSums<T> sums(p, rows, launch.workspace);
  sums.weights(rows, launch.stream);
  launch_kernels(rows, row_alignment(rows.logits, rows.index, kOfLogits, sizeof(T)),
                 row_alignment(rows.gradient, rows.index, kOfGradient, sizeof(T)));
  if (p.loss) sums.losses(rows, launch.stream);
}

template <class T>
void launch_registers(const CrossEntropyBackward& p, const Launch& launch) {
  run<T>(p, launch, [&](const Rows<T>& rows, int align, int out_align) {
    // Four pieces for a thread are quicker than two for twice as many threads.
    constexpr int kMostItems = 8, kLeastItems = 4;
    const RowPlan plan = plan_row(rows.classes, kPiece<T>, kMostItems, kLeastItems);
    const bool plain = is_plain(rows, std::min(align, out_align)) && !rows.smooth;
    const auto kernel = pick_row_kernel<kMostItems, kLeastItems>(
        plan, plain, [&]<int kItems, bool kBlocks, bool kPlain>() {
          return cross_entropy_backward_registers_kernel<T, kItems, kBlocks, kPlain>;
        });
    launch_rows(kernel, plan, rows.count, launch.stream, rows, plan.size, align, out_align);
  });
}

template <class T>
void launch_chunked(const CrossEntropyBackward& p, const Launch& launch) {
  run<T>(p, launch, [&](const Rows<T>& rows, int align, int out_align) {
    launch_chunks(cross_entropy_backward_chunks_kernel<T>, rows.count, launch.stream, rows, align,
                  out_align);
  });
}

template <class T>
void launch_walked(const CrossEntropyBackward& p, const Launch& launch) {
  run<T>(p, launch, [&](const Rows<T>& rows, int, int) {
    const RowConfig config = pick_rows(rows.classes, p.axis == p.logits.ndim - 1);
    dispatch_group(config.group, [&]<Group kGroup>() {
      launch_kernel(cross_entropy_backward_walked_kernel<T, kGroup>,
                    grid_for(config.blocks(rows.count), 1, 16), config.threads, 0, launch.stream,
                    rows);
    });
  });
}

constexpr Impl<CrossEntropyBackward> kBackward[] = {
    {"registers",
     [](const CrossEntropyBackward& p) {
       const char* reason = weights_not_in_pieces(p);
       return reason ? reason : not_in_registers_or_odd({&p.logits, &p.dlogits}, p.axis);
     },
     row_sums_bytes<CrossEntropyBackward>,
     [](const CrossEntropyBackward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_registers<T>(p, launch); });
     }},
    {"chunks",
     [](const CrossEntropyBackward& p) {
       const char* reason = weights_not_in_pieces(p);
       return reason ? reason : not_in_chunks({&p.logits, &p.dlogits}, p.axis);
     },
     row_sums_bytes<CrossEntropyBackward>,
     [](const CrossEntropyBackward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_chunked<T>(p, launch); });
     }},
    {"rows", supports_all, row_sums_bytes<CrossEntropyBackward>,
     [](const CrossEntropyBackward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_walked<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<CrossEntropyBackward> gpu_impls<CrossEntropyBackward>() {
  return kBackward;
}

}  // namespace dlkern
