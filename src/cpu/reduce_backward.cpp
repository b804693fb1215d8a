// Gradients of reductions on the CPU: what they need of each result is reduced from x first, then all
// elements are computed in spans.
#include <cmath>
#include <vector>

#include "core/index.h"
#include "core/reduce_math.h"
#include "cpu/prims/spans.h"
#include "cpu/reduce_walk.h"
#include "ops/reduce.h"

namespace dlkern {
namespace {

using namespace cpu;
using namespace cpu::axis;

template <class T>
void spread(const ReduceBackward& p) {
  using Acc = Accumulator<T>;
  const int64_t reduced = make_index<1>({&p.dx}, p.axes).numel;
  const Acc n = p.kind == DLK_REDUCE_MEAN ? static_cast<Acc>(reduced) : Acc(1);
  const auto index = in_memory_order(make_index<2>({&p.dx, &p.dy}));
  map_spans(
      index,
      [=](int64_t n_span, Acc* dx, const Acc* dy) {
        DLK_SIMD for (int64_t i = 0; i < n_span; ++i) dx[i] = dy[i] / n;
      },
      Out<T>{p.dx.as<T>()}, In<T>{p.dy.as<T>()});
}

// Gradients that need x. What is found out of each result first: `a` and `b`.
template <class T>
class FromElements {
  using Acc = Accumulator<T>;

 public:
  explicit FromElements(const ReduceBackward& p) : p_(p), a_(p.dy.numel()), b_(p.dy.numel()) {}

  void run() {
    const Acc ord = static_cast<Acc>(p_.ord), factor = static_cast<Acc>(deviation_factor(p_));
    switch (p_.kind) {
      case DLK_REDUCE_PROD:
        reduce<Product<Acc>>(Term::kFactor, {}, [&](int64_t at, Acc v) { a_[at] = v; });
        reduce<Sum<Acc>>(Term::kZero, {}, [&](int64_t at, Acc v) { b_[at] = v; });
        return map([](Acc dy, Acc x, Acc, Acc a, Acc b) { return product_gradient(dy, x, a, b); });
      case DLK_REDUCE_VECTOR_NORM:
        if (!std::isinf(ord)) {
          return map([=](Acc dy, Acc x, Acc y, Acc, Acc) { return norm_gradient(dy, x, y, ord); });
        }
        count(Term::kAbsEqual);
        return map([](Acc dy, Acc x, Acc y, Acc ties, Acc) {
          return sign_of(x) * share_gradient(dy, std::abs(x), y, ties);
        });
      case DLK_REDUCE_VAR:
        find_means();
        return map([=](Acc dy, Acc x, Acc, Acc a, Acc b) {
          return variance_gradient(dy, x, a, b, factor);
        });
      case DLK_REDUCE_STD:
        find_means();
        return map([=](Acc dy, Acc x, Acc y, Acc a, Acc b) {
          return deviation_gradient(dy, x, y, a, b, factor);
        });
      case DLK_REDUCE_LOGSUMEXP:
        return map([](Acc dy, Acc x, Acc y, Acc, Acc) { return logsumexp_gradient(dy, x, y); });
      default:
        count(Term::kEqual);
        return map(
            [](Acc dy, Acc x, Acc y, Acc ties, Acc) { return share_gradient(dy, x, y, ties); });
    }
  }

 private:
  template <class Op, class Finish>
  void reduce(Term term, const Tensor& pivot, Finish finish) {
    const Reduce problem{p_.x, contiguous_like(p_.dy, p_.dy.dtype, a_.data()), p_.axes,
                         DLK_REDUCE_SUM};
    Reducer<T, Op>(problem, term, pivot).run(finish);
  }
  void count(Term term) {
    reduce<Sum<Acc>>(term, p_.y, [&](int64_t at, Acc ties) { a_[at] = ties; });
  }
  void find_means() {
    const Tensor first = first_elements(p_.x, p_.axes), to = contiguous(a_);
    reduce<Moments<Acc>>(Term::kMinus, first, [&](int64_t at, const auto& v) { b_[at] = v.mean; });
    map_spans(
        make_index<2>({&to, &first}),
        [](int64_t n, Acc* out, const Acc* v) { std::copy_n(v, n, out); }, Out<Acc>{a_.data()},
        In<T>{p_.x.template as<T>()});
  }
  Tensor contiguous(std::vector<Acc>& values) const {
    return contiguous_like(p_.dy, p_.dy.dtype, values.data());
  }

  // dx = f(dy, x, y, a, b)
  template <class F>
  void map(F f) {
    const Tensor a = contiguous(a_), b = contiguous(b_);
    const Tensor& y = p_.y ? p_.y : p_.dy;
    map_spans(
        in_memory_order(make_index<6>({&p_.dx, &p_.dy, &p_.x, &y, &a, &b})),
        [f](int64_t n, Acc* dx, const Acc* dy, const Acc* x, const Acc* y_, const Acc* a_,
            const Acc* b_) {
          DLK_SIMD for (int64_t i = 0; i < n; ++i) dx[i] = f(dy[i], x[i], y_[i], a_[i], b_[i]);
        },
        Out<T>{p_.dx.template as<T>()}, In<T>{p_.dy.template as<T>()}, In<T>{p_.x.template as<T>()},
        In<T>{y.template as<T>()}, In<Acc>{a_.data()}, In<Acc>{b_.data()});
  }

  const ReduceBackward& p_;
  std::vector<Acc> a_, b_;
};

constexpr Impl<ReduceBackward> kBackward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const ReduceBackward& p, const Launch&) {
       dispatch_floating(p.dy.dtype,
                         [&]<class T>() { p.x ? FromElements<T>(p).run() : spread<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<ReduceBackward> cpu_impls<ReduceBackward>() {
  return kBackward;
}

}  // namespace dlkern
