// Activations and gated linear units on the CPU: spans in parallel, one vectorised loop for each
// activation.
#include "ops/activation.h"

#include "core/fast_math.h"
#include "cpu/prims/spans.h"

namespace dlkern {
namespace {

using namespace cpu;

template <dlk_activation kKind, class Acc>
void forward_span(int64_t n, Acc* y, const Acc* x, ActivationScalars<Acc> s) {
  DLK_SIMD for (int64_t i = 0; i < n; ++i) y[i] = activation_forward<kKind, FastMath>(x[i], s);
}

template <dlk_activation kKind, class Acc>
void backward_span(int64_t n, Acc* dx, const Acc* dy, const Acc* x, ActivationScalars<Acc> s) {
  DLK_SIMD for (int64_t i = 0; i < n; ++i) {
    dx[i] = activation_backward<kKind, FastMath>(dy[i], x[i], s);
  }
}

template <class T>
void forward(const ActivationForward& p) {
  using Acc = Accumulator<T>;
  void (*span)(int64_t, Acc*, const Acc*, ActivationScalars<Acc>) = nullptr;
  dispatch_activation(p.kind, [&]<dlk_activation kKind>() { span = forward_span<kKind, Acc>; });
  const ActivationScalars<Acc> scalars(p.alpha, p.threshold);
  map_spans(
      in_memory_order(make_index<2>({&p.y, &p.x})),
      [&](int64_t n, Acc* y, const Acc* x) { span(n, y, x, scalars); }, Out<T>{p.y.as<T>()},
      In<T>{p.x.as<T>()});
}

template <class T>
void backward(const ActivationBackward& p) {
  using Acc = Accumulator<T>;
  void (*span)(int64_t, Acc*, const Acc*, const Acc*, ActivationScalars<Acc>) = nullptr;
  dispatch_activation(p.kind, [&]<dlk_activation kKind>() { span = backward_span<kKind, Acc>; });
  const ActivationScalars<Acc> scalars(p.alpha, p.threshold);
  map_spans(
      in_memory_order(make_index<3>({&p.dx, &p.dy, &p.x})),
      [&](int64_t n, Acc* dx, const Acc* dy, const Acc* x) { span(n, dx, dy, x, scalars); },
      Out<T>{p.dx.as<T>()}, In<T>{p.dy.as<T>()}, In<T>{p.x.as<T>()});
}

template <dlk_activation kKind, class Acc>
void gated_span(int64_t n, Acc* y, const Acc* gate, const Acc* up) {
  DLK_SIMD for (int64_t i = 0; i < n; ++i) y[i] = gated_forward<kKind, FastMath>(gate[i], up[i]);
}

template <dlk_activation kKind, class Acc>
void gated_backward_span(int64_t n, Acc* dgate, Acc* dup, const Acc* dy, const Acc* gate,
                         const Acc* up) {
  DLK_SIMD for (int64_t i = 0; i < n; ++i) {
    const GatedGradients<Acc> d = gated_backward<kKind, FastMath>(dy[i], gate[i], up[i]);
    dgate[i] = d.gate;
    dup[i] = d.up;
  }
}

template <class T>
void gated(const GatedForward& p) {
  using Acc = Accumulator<T>;
  void (*span)(int64_t, Acc*, const Acc*, const Acc*) = nullptr;
  dispatch_gate(p.kind, [&]<dlk_activation kKind>() { span = gated_span<kKind, Acc>; });
  map_spans(in_memory_order(make_index<3>({&p.y, &p.gate, &p.up})), span, Out<T>{p.y.as<T>()},
            In<T>{p.gate.as<T>()}, In<T>{p.up.as<T>()});
}

template <class T>
void gated(const GatedBackward& p) {
  using Acc = Accumulator<T>;
  void (*span)(int64_t, Acc*, Acc*, const Acc*, const Acc*, const Acc*) = nullptr;
  dispatch_gate(p.kind, [&]<dlk_activation kKind>() { span = gated_backward_span<kKind, Acc>; });
  map_spans(in_memory_order(make_index<5>({&p.dgate, &p.dup, &p.dy, &p.gate, &p.up})), span,
            Out<T>{p.dgate.as<T>()}, Out<T>{p.dup.as<T>()}, In<T>{p.dy.as<T>()},
            In<T>{p.gate.as<T>()}, In<T>{p.up.as<T>()});
}

constexpr Impl<ActivationForward> kForward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const ActivationForward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { forward<T>(p); });
     }},
};
constexpr Impl<ActivationBackward> kBackward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const ActivationBackward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { backward<T>(p); });
     }},
};
constexpr Impl<GatedForward> kGatedForward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const GatedForward& p, const Launch&) {
       dispatch_floating(p.y.dtype, [&]<class T>() { gated<T>(p); });
     }},
};
constexpr Impl<GatedBackward> kGatedBackward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const GatedBackward& p, const Launch&) {
       dispatch_floating(p.dy.dtype, [&]<class T>() { gated<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<ActivationForward> cpu_impls<ActivationForward>() {
  return kForward;
}
template <>
ImplList<ActivationBackward> cpu_impls<ActivationBackward>() {
  return kBackward;
}

template <>
ImplList<GatedForward> cpu_impls<GatedForward>() {
  return kGatedForward;
}
template <>
ImplList<GatedBackward> cpu_impls<GatedBackward>() {
  return kGatedBackward;
}

}  // namespace dlkern
