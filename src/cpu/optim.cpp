// Optimizer steps on the CPU: the spans of all tensors of a list in parallel, each read and written
// once. Terms of a norm are summed block by block, in an order that threads do not change.
#include "ops/optim.h"

#include <atomic>

#include "cpu/prims/any_dtype.h"
#include "cpu/prims/reduce.h"
#include "cpu/prims/spans.h"

namespace dlkern {
namespace {

using namespace cpu;

using StepIndex = StridedIndex<kStepRoles>;

StepIndex index_of(const StepItem& item, const StepLists& lists) {
  if (item.layout >= 0) return lists.layouts[item.layout];
  StepIndex index;
  int64_t ones[kStepRoles];
  std::fill_n(ones, int{kStepRoles}, int64_t{1});
  index.push(item.numel, ones);
  return index;
}

// rule by value: what it holds is known not to change in the loop.
template <class Acc, class Rule, class... States>
void step_span(int64_t n, Acc* param, const Acc* grad, Acc scale, Rule rule, States*... state) {
  DLK_SIMD for (int64_t i = 0; i < n; ++i) rule(param[i], product(grad[i], scale), state[i]...);
}

template <class Acc, class Rule>
void step_blocks(const StepItem& item, const StepIndex& index, int64_t begin, int64_t end,
                 const Rule& rule, Acc scale) {
  const auto operand = [&](int role) { return AnyInOut<Acc>{item.data[role], item.dtype[role]}; };
  map_blocks(
      index, begin, end,
      [&](int64_t n, Acc* param, const Acc* grad, Acc* copy, Acc* s0, Acc* s1, Acc* s2) {
        if constexpr (Rule::kStates == 0) step_span(n, param, grad, scale, rule);
        if constexpr (Rule::kStates == 1) step_span(n, param, grad, scale, rule, s0);
        if constexpr (Rule::kStates == 2) step_span(n, param, grad, scale, rule, s0, s1);
        if constexpr (Rule::kStates == 3) step_span(n, param, grad, scale, rule, s0, s1, s2);
        if (copy) std::copy_n(param, n, copy);
      },
      operand(kParam), AnyIn<Acc>{operand(kGrad)}, AnyOut<Acc>{operand(kCopy)}, operand(kState),
      operand(kState + 1), operand(kState + 2));
}

template <class Problem>
void run_step(const Problem& p, const Launch&) {
  if (p.scalars.skips()) return;
  std::vector<StepIndex> indices;
  for (const StepItem& item : p.items) indices.push_back(index_of(item, p));
  for_each_in_list(indices, [&](size_t i, int64_t begin, int64_t end) {
    const auto run = [&]<class Acc>(Acc) {
      with_rule<Acc>(p, [&](auto rule) {
        rule.read(p.scalars);
        step_blocks(p.items[i], indices[i], begin, end, rule,
                    p.scalars.template grad_factor<Acc>());
      });
    };
    if (p.items[i].dtype[kParam] == DType::kFloat64) {
      run(1.0);
    } else {
      run(1.0f);
    }
  });
}

// ---- All gradients together ----------------------------------------------------------------------

std::vector<StridedIndex<1>> indices_of(const std::vector<Tensor>& list) {
  std::vector<StridedIndex<1>> indices;
  for (const Tensor& t : list) indices.push_back(in_memory_order(make_index<1>({&t})));
  return indices;
}

// Squares, in four vectors, for additions not to wait for each other.
template <class Acc>
double squares_of(int64_t n, const Acc* g) {
  typedef Acc Vector __attribute__((vector_size(32), aligned(sizeof(Acc)), may_alias));
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(Acc);
  Vector a = {}, b = {}, c = {}, d = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const auto* v = reinterpret_cast<const Vector*>(g + i);
    a += v[0] * v[0];
    b += v[1] * v[1];
    c += v[2] * v[2];
    d += v[3] * v[3];
  }
  const Vector all = (a + b) + (c + d);
  Acc total = 0;
  for (; i < n; ++i) total += g[i] * g[i];
  for (int64_t k = 0; k < kLanes; ++k) total += all[k];
  return static_cast<double>(total);
}

// The terms of a span, joined.
template <NormTerm kTerm, class Acc>
double terms_of(int64_t n, const Acc* g, [[maybe_unused]] Acc ord) {
  if constexpr (kTerm == NormTerm::kSquare) return squares_of(n, g);
  if constexpr (kTerm == NormTerm::kPower) {
    return sum_of<Acc>(n, [&](int64_t i) { return norm_term<kTerm>(g[i], ord); });
  }
  if constexpr (kTerm == NormTerm::kSize) {
    return sum_of<Acc>(n, [&](int64_t i) { return std::fabs(g[i]); });
  }
  return JoinTerms<kTerm>()(max_of(g, n), -extreme_of<true>(g, n));
}

template <NormTerm kTerm, class Acc>
double terms_of_block(const Tensor& grad, const StridedIndex<1>& index, int64_t block, double ord) {
  double terms = 0;
  map_blocks(
      index, block, block + 1,
      [&](int64_t n, const Acc* g) {
        terms = JoinTerms<kTerm>()(terms, terms_of<kTerm>(n, g, static_cast<Acc>(ord)));
      },
      AnyIn<Acc>{{grad.data, grad.dtype}});
  return terms;
}

template <NormTerm kTerm>
void compute_norm(const GradNorm& p) {
  const auto indices = indices_of(p.grads);
  std::vector<std::vector<double>> partial;
  for (const auto& index : indices) partial.emplace_back(span_blocks(index));
  for_each_in_list(indices, [&](size_t i, int64_t begin, int64_t end) {
    const auto terms = p.grads[i].dtype == DType::kFloat64 ? terms_of_block<kTerm, double>
                                                           : terms_of_block<kTerm, float>;
    for (int64_t b = begin; b < end; ++b) partial[i][b] = terms(p.grads[i], indices[i], b, p.ord);
  });
  double total = 0;
  for (const auto& of_blocks : partial) {
    for (const double terms : of_blocks) total = JoinTerms<kTerm>()(total, terms);
  }
  NormResults(p).set(total);
}

void grad_norm(const GradNorm& p, const Launch&) {
  with_norm_term(p.ord, [&]<NormTerm kTerm>() { compute_norm<kTerm>(p); });
}

template <class Acc>
bool scale_span(int64_t n, Acc* grad, Acc scale) {
  int bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t i = 0; i < n; ++i) {
    grad[i] *= scale;
    bad |= !(std::fabs(grad[i]) <= std::numeric_limits<Acc>::max());
  }
  return bad;
}

template <class Acc>
bool scale_blocks(const Tensor& grad, const StridedIndex<1>& index, int64_t begin, int64_t end,
                  Acc scale) {
  bool bad = false;
  map_blocks(
      index, begin, end, [&](int64_t n, Acc* g) { bad |= scale_span(n, g, scale); },
      AnyInOut<Acc>{grad.data, grad.dtype});
  return bad;
}

void scale_grads(const ScaleGrads& p, const Launch&) {
  const auto indices = indices_of(p.grads);
  const auto scale = Scalar(p.scale).real<double>();
  std::atomic<bool> bad = false;
  for_each_in_list(indices, [&](size_t i, int64_t begin, int64_t end) {
    const bool found =
        p.grads[i].dtype == DType::kFloat64
            ? scale_blocks(p.grads[i], indices[i], begin, end, scale)
            : scale_blocks(p.grads[i], indices[i], begin, end, static_cast<float>(scale));
    if (found) bad = true;
  });
  if (bad && p.found_inf) Scalar(p.found_inf).set(1.0);
}

constexpr Impl<SgdStep> kSgd[] = {{"cpu_spans", supports_all, nullptr, run_step<SgdStep>}};
constexpr Impl<AdamwStep> kAdamw[] = {{"cpu_spans", supports_all, nullptr, run_step<AdamwStep>}};
constexpr Impl<LionStep> kLion[] = {{"cpu_spans", supports_all, nullptr, run_step<LionStep>}};
constexpr Impl<GradNorm> kGradNorm[] = {{"cpu_spans", supports_all, nullptr, grad_norm}};
constexpr Impl<ScaleGrads> kScaleGrads[] = {{"cpu_spans", supports_all, nullptr, scale_grads}};
constexpr Impl<UpdateLossScale> kUpdateLossScale[] = {
    {"cpu", supports_all, nullptr,
     [](const UpdateLossScale& p, const Launch&) {
       const LossScaleRule rule(p);
       rule();
     }},
};

}  // namespace

template <>
ImplList<SgdStep> cpu_impls<SgdStep>() {
  return kSgd;
}
template <>
ImplList<AdamwStep> cpu_impls<AdamwStep>() {
  return kAdamw;
}
template <>
ImplList<LionStep> cpu_impls<LionStep>() {
  return kLion;
}
template <>
ImplList<GradNorm> cpu_impls<GradNorm>() {
  return kGradNorm;
}
template <>
ImplList<ScaleGrads> cpu_impls<ScaleGrads>() {
  return kScaleGrads;
}
template <>
ImplList<UpdateLossScale> cpu_impls<UpdateLossScale>() {
  return kUpdateLossScale;
}

}  // namespace dlkern
