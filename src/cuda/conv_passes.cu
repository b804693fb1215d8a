// What follows a convolution's sums (ops/conv.h, ConvEpilogue) where its kernel does not do it: passes
// over the result, behind the first implementation that takes what is left.
//
//   y = activation(scale[k] y + bias[k] + residual), in place     element by element
//   mean[k], var[k] of y                                          two reductions
//
// Bound by memory. The sums have been rounded to y's dtype before: for 16-bit types once more than in
// a kernel that does the work itself.
#include "core/activation_math.h"
#include "core/fast_math.h"
#include "cuda/conv.h"
#include "cuda/prims/elementwise.cuh"
#include "ops/reduce.h"

namespace dlkern {
namespace {

using namespace gpu;

constexpr char kName[] = "separate_passes";

const Tensor& result_of(const ConvForward& p) { return p.y; }
const Tensor& result_of(const ConvBackwardInput& p) { return p.x; }

// A tensor [channels] as one of the result's rank.
Tensor along_channels(const Tensor& t, const Tensor& result, int channel) {
  if (!t) return t;
  Tensor view = t;
  view.ndim = result.ndim;
  for (int d = 0; d < result.ndim; ++d) {
    view.shape[d] = d == channel ? t.shape[0] : 1;
    view.strides[d] = d == channel ? t.strides[0] : 0;
  }
  return view;
}

// ---- Element by element ------------------------------------------------------------------------

template <class T, class Acc = Accumulator<T>>
struct Finish {
  using Pointwise = void;
  bool scales;
  dlk_activation kind;
  ActivationScalars<Acc> scalars;

  template <int W>
  __device__ void operator()(Pack<Acc, W>& y, const Pack<Acc, W>& scale, const Pack<Acc, W>& bias,
                             const Pack<Acc, W>& residual, Pack<Acc, W>& pre) const {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      pre[k] = (scales ? fma(y[k], scale[k], bias[k]) : y[k] + bias[k]) + residual[k];
    }
    dispatch_activation(kind, [&]<dlk_activation kKind>() {
#pragma unroll
      for (int k = 0; k < W; ++k) y[k] = activation_forward<kKind, MathFor<T>>(pre[k], scalars);
    });
  }
};

// P: of scale and bias.
template <class T, class P>
void finish(const Tensor& y, const Tensor& bias_, const ConvEpilogue& e, void* stream) {
  const Tensor scale = along_channels(e.scale, y, e.channel);
  const Tensor bias = along_channels(bias_, y, e.channel);
  const Finish<T> f{
      static_cast<bool>(scale), e.activation, {e.activation_alpha, e.activation_threshold}};
  map_elements(in_memory_order(make_index<5>({&y, &scale, &bias, &e.residual, &e.pre})), f, stream,
               InOut<T>{y.as<T>()}, In<P>{scale.as<const P>()}, In<P>{bias.as<const P>()},
               In<T>{e.residual.as<const T>()}, Out<T>{e.pre.as<T>()});
}

void run_finish(const Tensor& y, const Tensor& bias, const ConvEpilogue& e, const Launch& launch) {
  const Tensor& parameter = e.scale ? e.scale : bias;
  dispatch_floating(y.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    if (!std::is_same_v<T, Acc> && parameter && parameter.dtype != y.dtype) {
      finish<T, Acc>(y, bias, e, launch.stream);
    } else {
      finish<T, T>(y, bias, e, launch.stream);
    }
  });
}

// ---- Statistics --------------------------------------------------------------------------------

Reduce reduction(const Tensor& y, const Tensor& to, int channel, dlk_reduce_kind kind) {
  const uint32_t axes = ((1u << y.ndim) - 1) & ~(1u << channel);
  return {y, along_channels(to, y, channel), axes, kind};
}
// f(reduction, its implementation) for both.
template <class F>
void for_moments(const Tensor& y, const ConvEpilogue& e, F&& f) {
  if (!e.has_moments()) return;
  for (const Reduce& r : {reduction(y, e.mean, e.channel, DLK_REDUCE_MEAN),
                          reduction(y, e.var, e.channel, DLK_REDUCE_VAR)}) {
    for (const Impl<Reduce>& impl : gpu_impls<Reduce>()) {
      if (impl.supports(r)) continue;
      f(r, impl);
      break;
    }
  }
}

// ---- What is left for a kernel -----------------------------------------------------------------

// The problem without statistics, if a kernel does the rest of the work, or its sums with as much of
// the bias as a kernel adds; and what computes that.
template <class Problem>
struct Parts {
  Problem problem;
  const Impl<Problem>* impl = nullptr;
  bool finishes = true;  // the kernel does all but the statistics
  Tensor bias;           // that is left

  explicit Parts(const Problem& p) : problem(p) {
    problem.epilogue.mean = problem.epilogue.var = {};
    if (find()) return;
    finishes = false;
    problem.epilogue = {};
    if (p.epilogue.scale || (p.bias && p.bias.dtype != p.x.dtype)) {
      bias = p.bias;
      problem.bias = {};
    }
    if (!find()) fail(DLK_INTERNAL, "no kernel for a convolution's sums");
  }

 private:
  bool find() {
    for (const Impl<Problem>& candidate : gpu_impls<Problem>()) {
      if (candidate.name == kName || candidate.supports(problem)) continue;
      impl = &candidate;
      return true;
    }
    return false;
  }
};

template <class Problem>
const char* supports(const Problem& p) {
  return p.is_fused() ? nullptr : "there is nothing but a bias";
}

// Of the kernel, and then of the statistics.
template <class Problem>
size_t workspace_bytes(const Problem& p) {
  const Parts<Problem> parts(p);
  size_t bytes = parts.impl->workspace_bytes ? parts.impl->workspace_bytes(parts.problem) : 0;
  for_moments(result_of(p), p.epilogue, [&](const Reduce& r, const Impl<Reduce>& impl) {
    if (impl.workspace_bytes) bytes = std::max(bytes, impl.workspace_bytes(r));
  });
  return bytes;
}

template <class Problem>
void run(const Problem& p, const Launch& launch) {
  const Parts<Problem> parts(p);
  parts.impl->run(parts.problem, launch);
  if (!parts.finishes) run_finish(result_of(p), parts.bias, p.epilogue, launch);
  for_moments(result_of(p), p.epilogue,
              [&](const Reduce& r, const Impl<Reduce>& impl) { impl.run(r, launch); });
}

template <class Problem>
constexpr Impl<Problem> kImpls[] = {
    {kName, supports<Problem>, workspace_bytes<Problem>, run<Problem>}};

}  // namespace

ImplList<ConvForward> conv_forward_passes_impls() { return kImpls<ConvForward>; }
ImplList<ConvBackwardInput> conv_backward_input_passes_impls() { return kImpls<ConvBackwardInput>; }

}  // namespace dlkern
