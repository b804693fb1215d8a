// Element-wise losses on the CPU: in blocks of neighbouring elements, in parallel and vectorised.
// Where blocks begin and end, and so the order of a sum, depends on shape and strides alone.
#include <vector>

#include "core/index.h"
#include "core/loss_math.h"
#include "core/mixed.h"
#include "cpu/prims/blocks.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"
#include "cpu/prims/spans.h"
#include "ops/loss.h"

namespace dlkern {
namespace {

using namespace cpu;

// One number beside x.
template <class T>
Accumulator<T> scalar(const Tensor& t) {
  return MixedView<T>(t).load(0);
}

// Weights of n elements: their own, or 1.
template <class Acc>
const Acc* or_ones(const Acc* given, int64_t n, Acc* ones) {
  if (given) return given;
  std::fill_n(ones, n, Acc(1));
  return ones;
}

template <class T, dlk_loss_kind kKind>
void losses(const ElementLossForward& p) {
  using Acc = Accumulator<T>;
  const Acc threshold = static_cast<Acc>(p.threshold);
  const auto index =
      in_memory_order(make_index<5>({&p.loss, &p.x, &p.target, &p.weight, &p.pos_weight}));
  map_spans(
      index,
      [=](int64_t n, Acc* loss, const Acc* x, const Acc* t, const Acc* weight, const Acc* pos) {
        Acc ones[kSpan];
        const Acc *w = or_ones(weight, n, ones), *q = or_ones(pos, n, ones);
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) {
          loss[i] = w[i] * loss_value<kKind>(x[i], t[i], threshold, q[i]);
        }
      },
      Out<T>{p.loss.as<T>()}, In<T>{p.x.as<const T>()}, In<T>{p.target.as<const T>()},
      In<T>{p.weight.as<const T>()}, In<T>{p.pos_weight.as<const T>()});
}

template <class T, dlk_loss_kind kKind>
void sum_of_losses(const ElementLossForward& p) {
  using Acc = Accumulator<T>;
  constexpr int64_t kBlock = 4 * kSpan;
  const Acc threshold = static_cast<Acc>(p.threshold);
  const Blocks<4> blocks(
      in_memory_order(make_index<4>({&p.x, &p.target, &p.weight, &p.pos_weight})), kBlock);
  std::vector<Acc> partial(blocks.count());
  const Tensor* tensors[] = {&p.x, &p.target, &p.weight, &p.pos_weight};
  parallel_for(blocks.count(), kSpanGrain / (blocks.size() + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(4 * blocks.size()), ones(blocks.size(), 1);
    for (int64_t i = begin; i < end; ++i) {
      const auto block = blocks[i];
      const Acc* v[4];
      for (int k = 0; k < 4; ++k) {
        v[k] = !*tensors[k] ? ones.data()
                            : read_span(tensors[k]->as<const T>() + block.at[k], blocks.stride(k),
                                        block.n, buffer.data() + k * blocks.size());
      }
      partial[i] = sum_of<Acc>(block.n, [&](int64_t e) {
        return v[2][e] * loss_value<kKind>(v[0][e], v[1][e], threshold, v[3][e]);
      });
    }
  });
  const Acc sum = sum_of<Acc>(blocks.count(), [&](int64_t i) { return partial[i]; });
  MixedView<T>(p.loss).store(0, sum / static_cast<Acc>(p.divisor()));
}

template <class T, dlk_loss_kind kKind>
void gradients(const ElementLossBackward& p) {
  using Acc = Accumulator<T>;
  const Acc threshold = static_cast<Acc>(p.threshold);
  const bool each = p.reduction == DLK_REDUCTION_NONE;
  const Acc scale = each ? Acc(1) : scalar<T>(p.dloss) / static_cast<Acc>(p.divisor());
  const Tensor none{}, &dloss = each ? p.dloss : none;
  const auto index =
      in_memory_order(make_index<6>({&p.dx, &dloss, &p.x, &p.target, &p.weight, &p.pos_weight}));
  map_spans(
      index,
      [=](int64_t n, Acc* dx, const Acc* upstream, const Acc* x, const Acc* t, const Acc* weight,
          const Acc* pos) {
        Acc ones[kSpan];
        const Acc *w = or_ones(weight, n, ones), *q = or_ones(pos, n, ones);
        const Acc* g = or_ones(upstream, n, ones);
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) {
          dx[i] = scale * g[i] * w[i] * loss_gradient<kKind>(x[i], t[i], threshold, q[i]);
        }
      },
      Out<T>{p.dx.as<T>()}, In<T>{dloss.as<const T>()}, In<T>{p.x.as<const T>()},
      In<T>{p.target.as<const T>()}, In<T>{p.weight.as<const T>()},
      In<T>{p.pos_weight.as<const T>()});
}

constexpr Impl<ElementLossForward> kForward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const ElementLossForward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() {
         dispatch_loss(p.kind, [&]<dlk_loss_kind kKind>() {
           p.reduction == DLK_REDUCTION_NONE ? losses<T, kKind>(p) : sum_of_losses<T, kKind>(p);
         });
       });
     }},
};
constexpr Impl<ElementLossBackward> kBackward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const ElementLossBackward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() {
         dispatch_loss(p.kind, [&]<dlk_loss_kind kKind>() { gradients<T, kKind>(p); });
       });
     }},
};

}  // namespace

template <>
ImplList<ElementLossForward> cpu_impls<ElementLossForward>() {
  return kForward;
}
template <>
ImplList<ElementLossBackward> cpu_impls<ElementLossBackward>() {
  return kBackward;
}

}  // namespace dlkern
