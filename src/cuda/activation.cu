// Activations, element by element.
//
//   forward   y  = f(x)
//   backward  dx = dy f'(x)
//
// The formulas are those of core/activation_math.h; 16-bit types are computed in float32. Bound by
// memory: each input is read once and each output written once, in 16-byte accesses where the
// layout allows them. At that speed there are about 25 instructions for an element of 16 bits, 4 of
// which may be of the special function unit: hence a Math policy for each type. The kind is a
// uniform branch around the loop over a pack.
#include "ops/activation.h"

#include "core/fast_math.h"
#include "cuda/prims/elementwise.cuh"

namespace dlkern {
namespace {

using namespace gpu;

template <class T, class Acc = Accumulator<T>>
struct Forward {
  using Pointwise = void;
  dlk_activation kind;
  ActivationScalars<Acc> scalars;

  template <int W>
  __device__ void operator()(Pack<Acc, W>& y, const Pack<Acc, W>& x) const {
    dispatch_activation(kind, [&]<dlk_activation kKind>() {
#pragma unroll
      for (int k = 0; k < W; ++k) y[k] = activation_forward<kKind, MathFor<T>>(x[k], scalars);
    });
  }
};

template <class T, class Acc = Accumulator<T>>
struct Backward {
  using Pointwise = void;
  dlk_activation kind;
  ActivationScalars<Acc> scalars;

  template <int W>
  __device__ void operator()(Pack<Acc, W>& dx, const Pack<Acc, W>& dy,
                             const Pack<Acc, W>& x) const {
    dispatch_activation(kind, [&]<dlk_activation kKind>() {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        dx[k] = activation_backward<kKind, MathFor<T>>(dy[k], x[k], scalars);
      }
    });
  }
};

template <class T>
void launch_forward(const ActivationForward& p, const Launch& launch) {
  const Forward<T> f{p.kind, {p.alpha, p.threshold}};
  map_elements(in_memory_order(make_index<2>({&p.y, &p.x})), f, launch.stream, Out<T>{p.y.as<T>()},
               In<T>{p.x.as<T>()});
}

template <class T>
void launch_backward(const ActivationBackward& p, const Launch& launch) {
  const Backward<T> f{p.kind, {p.alpha, p.threshold}};
  map_elements(in_memory_order(make_index<3>({&p.dx, &p.dy, &p.x})), f, launch.stream,
               Out<T>{p.dx.as<T>()}, In<T>{p.dy.as<T>()}, In<T>{p.x.as<T>()});
}

constexpr Impl<ActivationForward> kForward[] = {
    {"elementwise", supports_all, nullptr,
     [](const ActivationForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
     }},
};
constexpr Impl<ActivationBackward> kBackward[] = {
    {"elementwise", supports_all, nullptr,
     [](const ActivationBackward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<ActivationForward> gpu_impls<ActivationForward>() {
  return kForward;
}
template <>
ImplList<ActivationBackward> gpu_impls<ActivationBackward>() {
  return kBackward;
}

}  // namespace dlkern
