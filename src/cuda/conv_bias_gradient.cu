// The gradient of a convolution's bias: dbias[k] = sum_pixel dy[pixel, k] (transposed: of x, whose role
// is the output's), by the reductions of ops/reduce.h. What is added to an old gradient is summed in
// the workspace first, in the type of the sums.
#include "core/fast_math.h"
#include "cuda/conv.h"
#include "cuda/prims/gpu.h"
#include "ops/reduce.h"

namespace dlkern::gpu {
namespace {

struct BiasGradient {
  Reduce sums;
  size_t sums_at = 0;  // in the workspace, where they are added to an old gradient
  size_t workspace_bytes = 0;
};

BiasGradient plan_of(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  const Tensor& image = p.transposed ? p.x : p.y;
  const ConvImageStrides& s = p.transposed ? p.x_strides : p.y_strides;
  const int64_t* extent = p.transposed ? g.in : g.out;
  BiasGradient plan;
  Reduce& sums = plan.sums;
  sums.kind = DLK_REDUCE_SUM;
  sums.axes = 0b01111;
  sums.x = image;
  sums.x.ndim = 5;
  sums.x.shape = {g.batch, extent[0], extent[1], extent[2], g.groups * (p.transposed ? g.c : g.k)};
  sums.x.strides = {s.n, s.spatial[0], s.spatial[1], s.spatial[2], s.c};
  sums.y = p.bias;
  sums.y.ndim = 5;
  sums.y.shape = {1, 1, 1, 1, sums.x.shape[4]};
  sums.y.strides = {0, 0, 0, 0, p.bias.strides[0]};
  if (p.accumulate) {
    sums.y = contiguous_like(sums.y, dtype_size(p.x.dtype) == 8 ? DType::kFloat64 : DType::kFloat32,
                             nullptr);
  }
  for (const Impl<Reduce>& impl : gpu_impls<Reduce>()) {
    if (impl.supports(sums)) continue;
    plan.sums_at = impl.workspace_bytes ? (impl.workspace_bytes(sums) + 15) / 16 * 16 : 0;
    break;
  }
  plan.workspace_bytes =
      plan.sums_at + (p.accumulate ? sums.y.shape[4] * dtype_size(sums.y.dtype) : 0);
  return plan;
}

template <class T>
__global__ void __launch_bounds__(256)
    conv_bias_add_kernel(const Accumulator<T>* sums, T* bias, int64_t channels, int64_t stride) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= channels) return;
  bias[i * stride] = static_cast<T>(static_cast<Accumulator<T>>(bias[i * stride]) + sums[i]);
}

}  // namespace

size_t bias_gradient_workspace_bytes(const ConvProblem& p) { return plan_of(p).workspace_bytes; }

void add_bias_gradient(const ConvProblem& p, const Launch& launch) {
  BiasGradient plan = plan_of(p);
  if (launch.workspace_bytes < plan.workspace_bytes) {
    fail(DLK_INTERNAL, "the gradient of a bias has ", launch.workspace_bytes, " of ",
         plan.workspace_bytes, " bytes");
  }
  void* sums = static_cast<uint8_t*>(launch.workspace) + plan.sums_at;
  if (p.accumulate) plan.sums.y.data = sums;
  for (const Impl<Reduce>& impl : gpu_impls<Reduce>()) {
    if (impl.supports(plan.sums)) continue;
    impl.run(plan.sums, launch);
    break;
  }
  if (!p.accumulate) return;
  dispatch_floating(p.bias.dtype, [&]<class T>() {
    const int64_t channels = p.bias.shape[0];
    launch_kernel(conv_bias_add_kernel<T>, static_cast<unsigned>(ceil_div(channels, 256)), 256, 0,
                  launch.stream, static_cast<const Accumulator<T>*>(sums), p.bias.as<T>(), channels,
                  p.bias.strides[0]);
  });
}

}  // namespace dlkern::gpu
