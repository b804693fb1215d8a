// Element-wise losses; the formulas are in core/loss_math.h.
//
//   forward   loss = w f(x, t), or the sum (mean) of that
//   backward  dx = s w f'(x, t), s the element's dloss, or dloss over the divisor of the mean
//
// Layout: any strides, as element-wise kernels (prims/elementwise.cuh); a sum in two stages
// (prims/sum_elements.cuh). 16-bit types are computed in float32. The loss is chosen at run time, by
// a branch that all threads take alike. Bound by memory: 2 n b bytes for the sum over n elements of b
// bytes, 3 n b for the gradient.
#include "core/loss_math.h"
#include "core/mixed.h"
#include "cuda/prims/elementwise.cuh"
#include "cuda/prims/sum_elements.cuh"
#include "ops/loss.h"

namespace dlkern {
namespace {

using namespace gpu;

// Weighted losses are of one kind only.
constexpr dlk_loss_kind kWeighted = DLK_LOSS_BINARY_CROSS_ENTROPY_WITH_LOGITS;

template <class Acc>
struct Losses {
  using Pointwise = void;
  dlk_loss_kind kind;
  Acc threshold;
  bool has_weight, has_pos_weight;

  explicit Losses(const ElementLoss& p)
      : kind(p.kind),
        threshold(static_cast<Acc>(p.threshold)),
        has_weight(p.weight),
        has_pos_weight(p.pos_weight) {}

  template <int W>
  __device__ void operator()(Pack<Acc, W>& loss, const Pack<Acc, W>& x,
                             const Pack<Acc, W>& t) const {
    dispatch_loss(kind, [&]<dlk_loss_kind kKind>() {
#pragma unroll
      for (int k = 0; k < W; ++k) loss[k] = loss_value<kKind>(x[k], t[k], threshold, Acc(1));
    });
  }
  template <int W>
  __device__ void operator()(Pack<Acc, W>& loss, const Pack<Acc, W>& x, const Pack<Acc, W>& t,
                             const Pack<Acc, W>& w, const Pack<Acc, W>& pos) const {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const Acc positive = has_pos_weight ? pos[k] : Acc(1);
      const Acc v = loss_value<kWeighted>(x[k], t[k], threshold, positive);
      loss[k] = has_weight ? w[k] * v : v;
    }
  }
};

template <class T>
struct Gradients : Losses<Accumulator<T>> {
  using Acc = Accumulator<T>;
  MixedView<T> dloss;  // one for all; absent: each element has its own
  Acc divisor;
  Acc scale = 1;

  explicit Gradients(const ElementLossBackward& p)
      : Losses<Acc>(p), divisor(static_cast<Acc>(p.divisor())) {
    if (p.reduction != DLK_REDUCTION_NONE) dloss = MixedView<T>(p.dloss);
  }
  __device__ void prepare() {
    if (dloss) scale = dloss.load_at(0) / divisor;
  }
  __device__ Acc upstream(Acc own) const { return dloss ? scale : own; }

  template <int W>
  __device__ void operator()(Pack<Acc, W>& dx, const Pack<Acc, W>& x, const Pack<Acc, W>& t) const {
    dispatch_loss(this->kind, [&]<dlk_loss_kind kKind>() {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        dx[k] = scale * loss_gradient<kKind>(x[k], t[k], this->threshold, Acc(1));
      }
    });
  }
  template <int W>
  __device__ void operator()(Pack<Acc, W>& dx, const Pack<Acc, W>& own, const Pack<Acc, W>& x,
                             const Pack<Acc, W>& t) const {
    (*this)(dx, x, t);
#pragma unroll
    for (int k = 0; k < W; ++k) dx[k] *= own[k];
  }
  template <int W>
  __device__ void operator()(Pack<Acc, W>& dx, const Pack<Acc, W>& own, const Pack<Acc, W>& x,
                             const Pack<Acc, W>& t, const Pack<Acc, W>& w,
                             const Pack<Acc, W>& pos) const {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const Acc positive = this->has_pos_weight ? pos[k] : Acc(1);
      const Acc g = loss_gradient<kWeighted>(x[k], t[k], this->threshold, positive);
      dx[k] = upstream(own[k]) * (this->has_weight ? w[k] * g : g);
    }
  }
};

template <class T>
struct Finish {
  MixedView<T> loss;
  Accumulator<T> divisor;
  __device__ void operator()(Accumulator<T> sum) const { loss.store_at(0, sum / divisor); }
};

template <class T>
In<T> in(const Tensor& t) {
  return {t ? t.as<const T>() : nullptr};
}

template <class T>
void forward(const ElementLossForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const Losses<Acc> f(p);
  const Out<T> loss{p.loss.as<T>()};
  const auto x = in<T>(p.x), t = in<T>(p.target), w = in<T>(p.weight), pos = in<T>(p.pos_weight);
  if (p.reduction == DLK_REDUCTION_NONE) {
    if (p.is_weighted()) {
      const auto index = make_index<5>({&p.loss, &p.x, &p.target, &p.weight, &p.pos_weight});
      map_elements(in_memory_order(index), f, launch.stream, loss, x, t, w, pos);
    } else {
      const auto index = make_index<3>({&p.loss, &p.x, &p.target});
      map_elements(in_memory_order(index), f, launch.stream, loss, x, t);
    }
    return;
  }
  const Finish<T> finish{MixedView<T>(p.loss), static_cast<Acc>(p.divisor())};
  auto* partials = static_cast<Acc*>(launch.workspace);
  if (p.is_weighted()) {
    const auto index = make_index<4>({&p.x, &p.target, &p.weight, &p.pos_weight});
    sum_elements(in_memory_order(index), f, partials, finish, launch.stream, x, t, w, pos);
  } else {
    const auto index = make_index<2>({&p.x, &p.target});
    sum_elements(in_memory_order(index), f, partials, finish, launch.stream, x, t);
  }
}

size_t workspace_bytes(const ElementLossForward& p) {
  if (p.reduction == DLK_REDUCTION_NONE) return 0;
  return static_cast<size_t>(SumParts(p.x.numel()).count) * dtype_size(accumulator_of(p.x.dtype));
}

template <class T>
void backward(const ElementLossBackward& p, const Launch& launch) {
  const Gradients<T> f(p);
  const Tensor none{}, &dloss = p.reduction == DLK_REDUCTION_NONE ? p.dloss : none;
  const Out<T> dx{p.dx.as<T>()};
  const auto g = in<T>(dloss), x = in<T>(p.x), t = in<T>(p.target);
  if (p.is_weighted()) {
    const auto index = make_index<6>({&p.dx, &dloss, &p.x, &p.target, &p.weight, &p.pos_weight});
    map_elements(in_memory_order(index), f, launch.stream, dx, g, x, t, in<T>(p.weight),
                 in<T>(p.pos_weight));
  } else if (dloss) {
    const auto index = make_index<4>({&p.dx, &dloss, &p.x, &p.target});
    map_elements(in_memory_order(index), f, launch.stream, dx, g, x, t);
  } else {
    const auto index = make_index<3>({&p.dx, &p.x, &p.target});
    map_elements(in_memory_order(index), f, launch.stream, dx, x, t);
  }
}

constexpr Impl<ElementLossForward> kForward[] = {
    {"elements", supports_all, workspace_bytes,
     [](const ElementLossForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { forward<T>(p, launch); });
     }},
};
constexpr Impl<ElementLossBackward> kBackward[] = {
    {"elements", supports_all, nullptr,
     [](const ElementLossBackward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { backward<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<ElementLossForward> gpu_impls<ElementLossForward>() {
  return kForward;
}
template <>
ImplList<ElementLossBackward> gpu_impls<ElementLossBackward>() {
  return kBackward;
}

}  // namespace dlkern
