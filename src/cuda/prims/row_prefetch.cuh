// Long rows in registers (row_pieces.cuh): a block, or a cluster, takes the registers of whole
// multiprocessors for one row, so that no other block's loads fill the time in which it computes. It
// takes one row after the other instead, and each row is on its way while the one before is computed.
#pragma once

#include <bit>

#include "cuda/prims/row_pieces.cuh"

namespace dlkern::gpu {

// Pieces of a thread, of all tensors that are held: they and those of the next row fill the
// registers.
inline constexpr int kLongItems = 8;

// items: of a row of one tensor.
inline RowPlan plan_long_row(int64_t n, int piece, int items) {
  RowPlan plan{kRowThreads, items};
  const int most = kRowThreads * (clusters_of_rows() ? kMaxRowBlocks : 1);
  const int64_t pieces = ceil_div(n, piece);
  while (int64_t{plan.size} * items < pieces && plan.size < most) plan.size *= 2;
  if (int64_t{plan.size} * items < pieces) plan.size = 0;
  return plan;
}

// load(row, held) and f(row, held) for the rows of a team, load() for the next row before f().
template <class Held, bool kBlocks, class Load, class F>
__device__ __forceinline__ void for_rows(const RowTeam<kBlocks>& team, int64_t rows, Load&& load,
                                         F&& f) {
  Held next;
  for (int64_t row = team.row - team.row_step; row < rows; row += team.row_step) {
    Held held = next;
    if (row + team.row_step < rows) load(row + team.row_step, next);
    if (row >= team.row) f(row, held);
  }
}

// Why rows of n neighbours along `axis` of each of the tensors cannot be held so.
inline const char* not_long_rows(std::initializer_list<const Tensor*> tensors, int axis, int items) {
  const Tensor& first = **tensors.begin();
  if (const char* reason = not_neighbours(tensors, axis)) return reason;
  const int piece = static_cast<int>(16 / dtype_size(first.dtype));
  return plan_long_row(first.shape[axis], piece, items).size == 0 ? "rows are too long for registers" : nullptr;
}

// Teams of such kernels that the current device holds at once.
inline int resident_teams(const void* kernel, const RowPlan& plan) {
  if (plan.blocks() == 1) return multiprocessor_count();
  static std::atomic<int> cached[std::bit_width(unsigned{kMaxRowBlocks})][kMaxDevices];
  return cached_fact(cached[std::countr_zero(static_cast<unsigned>(plan.blocks()))], [&](int) {
    return std::max(max_active_clusters(kernel, plan.threads(), 0, plan.blocks()), 1);
  });
}

template <class... Params, class... Arguments>
void launch_long_rows(void (*kernel)(Params...), const RowPlan& plan, int64_t rows, void* stream,
                      Arguments&&... arguments) {
  if (rows == 0) return;
  const int64_t teams =
      std::min<int64_t>(rows, resident_teams(reinterpret_cast<const void*>(kernel), plan));
  launch_clusters(kernel, static_cast<unsigned>(teams * plan.blocks()), plan.threads(), 0, stream,
                  plan.blocks(), std::forward<Arguments>(arguments)...);
}

}  // namespace dlkern::gpu
