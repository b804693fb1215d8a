// Reductions on the CPU (reduce_walk.h, reduce_ops.h).
#include <cmath>
#include <vector>

#include "core/index.h"
#include "cpu/prims/spans.h"
#include "cpu/reduce_walk.h"
#include "ops/reduce.h"

namespace dlkern {
namespace {

using namespace cpu;
using namespace cpu::axis;

// finish(T result) with the C++ type of the result's dtype.
template <class T, class F>
void dispatch_result(DType dtype, F&& f) {
  if constexpr (sizeof(T) == 2) {
    if (dtype == DType::kFloat32) return f.template operator()<float>();
  } else if constexpr (std::is_same_v<T, int32_t>) {
    if (dtype == DType::kInt64) return f.template operator()<int64_t>();
  }
  f.template operator()<T>();
}

// y = f(partial result of the terms by Op).
template <class T, class Op, class F>
void reduce_to(const Reduce& p, Term term, const Tensor& pivot, F f) {
  dispatch_result<T>(p.y.dtype, [&]<class Y>() {
    Y* y = p.y.as<Y>();
    Reducer<T, Op>(p, term, pivot).run([=](int64_t at, const typename Op::Partial& v) {
      y[at] = static_cast<Y>(f(v));
    });
  });
}

template <class T>
void sum(const Reduce& p) {
  using Acc = Accumulator<T>;
  const Acc n = static_cast<Acc>(make_index<1>({&p.x}, p.axes).numel);
  reduce_to<T, Sum<Acc>>(p, Term::kValue, {},
                         [=, mean = p.kind == DLK_REDUCE_MEAN](Acc v) { return mean ? v / n : v; });
}

template <class T, bool kMin>
void extreme(const Reduce& p, Term term) {
  using Acc = Accumulator<T>;
  reduce_to<T, typename Extreme<kMin>::template Of<Acc>>(p, term, {}, [](Acc v) { return v; });
}

template <class T, bool kMin>
void arg_extreme(const Reduce& p) {
  using Op = typename ArgExtreme<kMin>::template Of<Accumulator<T>>;
  dispatch_index(p.y.dtype, [&]<class Y>() {
    Y* y = p.y.as<Y>();
    Reducer<T, Op>(p).run(
        [=](int64_t at, const typename Op::Partial& v) { y[at] = static_cast<Y>(v.index); });
  });
}

template <class T>
void norm(const Reduce& p) {
  using Acc = Accumulator<T>;
  if (std::isinf(p.ord)) {
    return p.ord < 0 ? extreme<T, true>(p, Term::kAbs) : extreme<T, false>(p, Term::kAbs);
  }
  const Acc ord = static_cast<Acc>(p.ord);
  const auto run = [&](Term term, auto f) { reduce_to<T, Sum<Acc>>(p, term, {}, f); };
  const auto same = [](Acc v) { return v; };
  if (ord == 0) return run(Term::kNonzero, same);
  if (ord == 1) return run(Term::kAbs, same);
  if (ord == 2) return run(Term::kSquare, [](Acc v) { return std::sqrt(v); });
  run(Term::kPower, [=](Acc v) { return std::pow(v, 1 / ord); });
}

template <class T>
void variance(const Reduce& p) {
  using Op = Moments<Accumulator<T>>;
  const int64_t n = make_index<1>({&p.x}, p.axes).numel;
  const auto divisor = static_cast<Accumulator<T>>(variance_divisor(n, p.correction));
  reduce_to<T, Op>(p, Term::kMinus, first_elements(p.x, p.axes),
                   [=, root = p.kind == DLK_REDUCE_STD](const typename Op::Partial& v) {
                     return root ? std::sqrt(v.m2 / divisor) : v.m2 / divisor;
                   });
}

// m + log sum exp(x - m), m the maximum, or 0 where that is infinite.
template <class T>
void logsumexp(const Reduce& p) {
  using Acc = Accumulator<T>;
  std::vector<T> max(p.y.numel());
  std::vector<Acc> sum(p.y.numel());
  const Tensor maxima = contiguous_like(p.y, p.x.dtype, max.data());
  const Tensor sums = contiguous_like(p.y, p.x.dtype, sum.data());  // its data are not looked at
  Reducer<T, typename Extreme<false>::template Of<Acc>>(Reduce{p.x, maxima, p.axes, DLK_REDUCE_MAX})
      .run([&](int64_t at, Acc v) { max[at] = static_cast<T>(std::isinf(v) ? Acc(0) : v); });
  Reducer<T, Sum<Acc>>(Reduce{p.x, sums, p.axes, DLK_REDUCE_SUM}, Term::kExpMinus, maxima)
      .run([&](int64_t at, Acc v) { sum[at] = v; });
  dispatch_result<T>(p.y.dtype, [&]<class Y>() {
    map_spans(
        make_index<3>({&p.y, &maxima, &sums}),
        [](int64_t n, Acc* y, const Acc* m, const Acc* s) {
          for (int64_t i = 0; i < n; ++i) y[i] = m[i] + std::log(s[i]);
        },
        Out<Y>{p.y.as<Y>()}, In<T>{max.data()}, In<Acc>{sum.data()});
  });
}

// all is that there is none that is 0.
void truths(const Reduce& p) {
  const bool all = p.kind == DLK_REDUCE_ALL;
  auto* y = p.y.as<uint8_t>();
  Reducer<uint8_t, Sum<float>>(p, all ? Term::kZero : Term::kNonzero).run([=](int64_t at, float n) {
    y[at] = (n != 0) != all;
  });
}

template <class T>
void forward(const Reduce& p) {
  switch (p.kind) {
    case DLK_REDUCE_SUM:
    case DLK_REDUCE_MEAN:
      return sum<T>(p);
    case DLK_REDUCE_MAX:
      return extreme<T, false>(p, Term::kValue);
    case DLK_REDUCE_MIN:
      return extreme<T, true>(p, Term::kValue);
    case DLK_REDUCE_ARGMAX:
      return arg_extreme<T, false>(p);
    case DLK_REDUCE_ARGMIN:
      return arg_extreme<T, true>(p);
    case DLK_REDUCE_PROD:
      return reduce_to<T, Product<Accumulator<T>>>(p, Term::kValue, {}, [](auto v) { return v; });
    case DLK_REDUCE_VECTOR_NORM:
      if constexpr (!std::is_integral_v<T>) norm<T>(p);
      return;
    case DLK_REDUCE_VAR:
    case DLK_REDUCE_STD:
      if constexpr (!std::is_integral_v<T>) variance<T>(p);
      return;
    case DLK_REDUCE_LOGSUMEXP:
      if constexpr (!std::is_integral_v<T>) logsumexp<T>(p);
      return;
    case DLK_REDUCE_ANY:
    case DLK_REDUCE_ALL:
      return;  // truths
  }
}

constexpr Impl<Reduce> kForward[] = {
    {"cpu_blocks", supports_all, nullptr,
     [](const Reduce& p, const Launch&) {
       if (is_logical(p.kind)) return truths(p);
       dispatch_reducible(p.x.dtype, [&]<class T>() { forward<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<Reduce> cpu_impls<Reduce>() {
  return kForward;
}

}  // namespace dlkern
