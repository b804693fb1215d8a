// Negative log-likelihood of labels: loss = -w_t logp_t, dlogp_c = -s w_t where c is the label.
//
// Forward: a thread gathers the element of one row. Backward: zeros everywhere, at the speed of
// memory, then a thread writes the element of one row. Rows, sums and labels out of range as in
// cross entropy (loss.cuh).
#include "cuda/loss.cuh"
#include "cuda/prims/elementwise.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) nll_kernel(const DLK_GRID_CONSTANT Rows<T> rows) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows.count) return;
  RowOffsets at;
  rows.index.offsets(row, at);
  Target<T> target(rows, rows.label(at[kOfLabels]));
  target.load(rows, rows.logits + at[kOfLogits]);
  rows.store_loss(row, at, target.counts ? -target.weight * target.logit : target.instead);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    nll_backward_kernel(const DLK_GRID_CONSTANT Rows<T> rows) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows.count) return;
  RowOffsets at;
  rows.index.offsets(row, at);
  const Target<T> target(rows, rows.label(at[kOfLabels]));
  T* out = rows.gradient + at[kOfGradient];
  if (target.counts) {
    const Accumulator<T> g = -rows.class_weight(target.label) * rows.scale(at);
    out[target.label * rows.gradient_stride] = static_cast<T>(g);
  } else if (target.instead != 0) {  // no such class: the row becomes NaN
    for (int64_t c = 0; c < rows.classes; ++c) {
      out[c * rows.gradient_stride] = static_cast<T>(target.instead);
    }
  }
}

struct Zero {
  using Pointwise = void;
  template <class Acc, int W>
  __device__ void operator()(Pack<Acc, W>& v) const {
#pragma unroll
    for (int k = 0; k < W; ++k) v[k] = 0;
  }
};

template <class T>
void launch_rows_of(void (*kernel)(Rows<T>), const Rows<T>& rows, void* stream) {
  if (rows.count == 0) return;
  launch_kernel(kernel, static_cast<unsigned>(ceil_div(rows.count, kThreads)), kThreads, 0, stream,
                rows);
}

template <class T>
void forward(const NllForward& p, const Launch& launch) {
  Rows<T> rows(p, {}, {}, p.loss);
  const RowSums<T> sums(p, rows, launch.workspace);
  launch_rows_of(nll_kernel<T>, rows, launch.stream);
  sums.losses(rows, launch.stream);
}

template <class T>
void backward(const NllBackward& p, const Launch& launch) {
  Rows<T> rows(p, p.dlogits, p.dloss, {});
  const RowSums<T> sums(p, rows, launch.workspace);
  sums.weights(rows, launch.stream);
  map_elements(in_memory_order(make_index<1>({&p.dlogits})), Zero{}, launch.stream,
               Out<T>{p.dlogits.as<T>()});
  launch_rows_of(nll_backward_kernel<T>, rows, launch.stream);
}

constexpr Impl<NllForward> kForward[] = {
    {"gather", supports_all, row_sums_bytes<NllForward>,
     [](const NllForward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { forward<T>(p, launch); });
     }},
};
constexpr Impl<NllBackward> kBackward[] = {
    {"scatter", supports_all, row_sums_bytes<NllBackward>,
     [](const NllBackward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { backward<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<NllForward> gpu_impls<NllForward>() {
  return kForward;
}
template <>
ImplList<NllBackward> gpu_impls<NllBackward>() {
  return kBackward;
}

}  // namespace dlkern
