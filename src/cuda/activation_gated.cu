// Gated linear units, element by element.
//
//   forward   y     = f(gate) up
//   backward  dgate = dy up f'(gate),  dup = dy f(gate)
//
// Gate and up may be halves of one tensor's rows: views whose rows lie apart. The formulas are those
// of core/activation_math.h; 16-bit types are computed in float32. Bound by memory: each input is
// read once and each output written once. The kind is a uniform branch around the loop over a pack.
//
// Reference: Shazeer, "GLU Variants Improve Transformer", 2020.
#include "core/fast_math.h"
#include "cuda/prims/elementwise.cuh"
#include "ops/activation.h"

namespace dlkern {
namespace {

using namespace gpu;

template <class T, class Acc = Accumulator<T>>
struct Forward {
  using Pointwise = void;
  dlk_activation kind;

  template <int W>
  __device__ void operator()(Pack<Acc, W>& y, const Pack<Acc, W>& gate,
                             const Pack<Acc, W>& up) const {
    dispatch_gate(kind, [&]<dlk_activation kKind>() {
#pragma unroll
      for (int k = 0; k < W; ++k) y[k] = gated_forward<kKind, MathFor<T>>(gate[k], up[k]);
    });
  }
};

template <class T, class Acc = Accumulator<T>>
struct Backward {
  using Pointwise = void;
  dlk_activation kind;

  template <int W>
  __device__ void operator()(Pack<Acc, W>& dgate, Pack<Acc, W>& dup, const Pack<Acc, W>& dy,
                             const Pack<Acc, W>& gate, const Pack<Acc, W>& up) const {
    dispatch_gate(kind, [&]<dlk_activation kKind>() {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        const auto d = gated_backward<kKind, MathFor<T>>(dy[k], gate[k], up[k]);
        dgate[k] = d.gate;
        dup[k] = d.up;
      }
    });
  }
};

template <class T>
void launch_forward(const GatedForward& p, const Launch& launch) {
  map_elements(in_memory_order(make_index<3>({&p.y, &p.gate, &p.up})), Forward<T>{p.kind},
               launch.stream, Out<T>{p.y.as<T>()}, In<T>{p.gate.as<T>()}, In<T>{p.up.as<T>()});
}

template <class T>
void launch_backward(const GatedBackward& p, const Launch& launch) {
  map_elements(in_memory_order(make_index<5>({&p.dgate, &p.dup, &p.dy, &p.gate, &p.up})),
               Backward<T>{p.kind}, launch.stream, Out<T>{p.dgate.as<T>()}, Out<T>{p.dup.as<T>()},
               In<T>{p.dy.as<T>()}, In<T>{p.gate.as<T>()}, In<T>{p.up.as<T>()});
}

constexpr Impl<GatedForward> kForward[] = {
    {"elementwise", supports_all, nullptr,
     [](const GatedForward& p, const Launch& launch) {
       dispatch_floating(p.y.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
     }},
};
constexpr Impl<GatedBackward> kBackward[] = {
    {"elementwise", supports_all, nullptr,
     [](const GatedBackward& p, const Launch& launch) {
       dispatch_floating(p.dy.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<GatedForward> gpu_impls<GatedForward>() {
  return kForward;
}
template <>
ImplList<GatedBackward> gpu_impls<GatedBackward>() {
  return kBackward;
}

}  // namespace dlkern
