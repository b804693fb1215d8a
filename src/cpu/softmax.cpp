// Softmax on the CPU: rows in parallel, each row converted to its accumulation type in one buffer
// that stays in cache where it is not in that form already, then a few passes over it (max, exp, sum,
// scale). Rows along a strided axis are gathered into the same buffer.
#include "ops/softmax.h"

#include "core/fast_math.h"
#include "core/index.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kGrainElements = 16384;  // work worth a thread

template <class T>
void forward(const SoftmaxForward& p) {
  using Acc = Accumulator<T>;
  const auto rows = make_index<2>({&p.x, &p.y}, ~(1u << p.axis));
  const int64_t n = p.x.shape[p.axis];
  const int64_t x_stride = p.x.strides[p.axis], y_stride = p.y.strides[p.axis];
  parallel_for(rows.numel, kGrainElements / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(n);
    for (int64_t row = begin; row < end; ++row) {
      int64_t at[2];
      rows.offsets(row, at);
      const Acc* x = read_span(p.x.as<T>() + at[0], x_stride, n, buffer.data());
      T* y = p.y.as<T>() + at[1];
      Acc* v = begin_span(y, y_stride, buffer.data());
      const Acc m = max_of(x, n);
      // A row that is all -inf, or holds +inf, gives inf - inf = NaN here, as documented.
      if (p.log) {
        const Acc log_sum = std::log(sum_of<Acc>(n, [&](int64_t i) { return exp_fast(x[i] - m); }));
        for (int64_t i = 0; i < n; ++i) v[i] = (x[i] - m) - log_sum;
      } else {
        for (int64_t i = 0; i < n; ++i) v[i] = exp_fast(x[i] - m);
        const Acc scale = 1 / sum_of<Acc>(n, [&](int64_t i) { return v[i]; });
        for (int64_t i = 0; i < n; ++i) v[i] *= scale;
      }
      finish_span(v, y, y_stride, n);
    }
  });
}

template <class T>
void backward(const SoftmaxBackward& p) {
  using Acc = Accumulator<T>;
  const auto rows = make_index<3>({&p.dy, &p.y, &p.dx}, ~(1u << p.axis));
  const int64_t n = p.dy.shape[p.axis];
  parallel_for(rows.numel, kGrainElements / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(2 * n);
    for (int64_t row = begin; row < end; ++row) {
      int64_t at[3];
      rows.offsets(row, at);
      const Acc* g = read_span(p.dy.as<T>() + at[0], p.dy.strides[p.axis], n, buffer.data());
      const Acc* y = read_span(p.y.as<T>() + at[1], p.y.strides[p.axis], n, buffer.data() + n);
      T* dx = p.dx.as<T>() + at[2];
      Acc* v = begin_span(dx, p.dx.strides[p.axis], buffer.data());
      if (p.log) {
        const Acc sum = sum_of<Acc>(n, [&](int64_t i) { return g[i]; });
        for (int64_t i = 0; i < n; ++i) v[i] = g[i] - exp_fast(y[i]) * sum;
      } else {
        const Acc dot = sum_of<Acc>(n, [&](int64_t i) { return g[i] * y[i]; });
        for (int64_t i = 0; i < n; ++i) v[i] = y[i] * (g[i] - dot);
      }
      finish_span(v, dx, p.dx.strides[p.axis], n);
    }
  });
}

constexpr Impl<SoftmaxForward> kForward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const SoftmaxForward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { forward<T>(p); });
     }},
};
constexpr Impl<SoftmaxBackward> kBackward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const SoftmaxBackward& p, const Launch&) {
       dispatch_floating(p.dy.dtype, [&]<class T>() { backward<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<SoftmaxForward> cpu_impls<SoftmaxForward>() {
  return kForward;
}
template <>
ImplList<SoftmaxBackward> cpu_impls<SoftmaxBackward>() {
  return kBackward;
}

}  // namespace dlkern
