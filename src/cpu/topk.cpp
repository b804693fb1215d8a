// The k first elements of a row on the CPU.
//
// Few of many: a heap of the best so far, which an element mostly fails to enter by one comparison.
// Otherwise all of them are partitioned around the k-th. Rows are shared out among threads.
#include <algorithm>
#include <vector>

#include "cpu/prims/parallel.h"
#include "cpu/prims/spans.h"
#include "ops/reduce.h"
#include "ops/topk.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kGrain = 16384;  // elements worth a thread

template <class T>
class Selector {
  using Candidate = Entry<KeyOf<T>>;

 public:
  explicit Selector(const TopK& p) : p_(p), stride_(p.x.strides[p.axis]) {}

  // The k first of the row, in order where that is wanted.
  const std::vector<Candidate>& select(const T* row) {
    const int64_t n = p_.n(), k = p_.k();
    const auto before = [](const Candidate& a, const Candidate& b) { return a.before(b); };
    const auto candidate = [&](int64_t i) {
      return Candidate{selection_key(row[i * stride_], p_.largest), static_cast<uint32_t>(i)};
    };
    const int64_t first = k * 16 <= n ? k : n;
    chosen_.resize(first);
    for (int64_t i = 0; i < first; ++i) chosen_[i] = candidate(i);
    if (first < n && k > 0) {
      std::make_heap(chosen_.begin(), chosen_.end(), before);  // the last one on top
      for (int64_t i = first; i < n; ++i) {
        const Candidate c = candidate(i);
        if (c.key <= chosen_.front().key) continue;  // of equal ones the first stays
        std::pop_heap(chosen_.begin(), chosen_.end(), before);
        chosen_.back() = c;
        std::push_heap(chosen_.begin(), chosen_.end(), before);
      }
    } else if (k < n) {
      std::nth_element(chosen_.begin(), chosen_.begin() + k, chosen_.end(), before);
      chosen_.resize(k);
    }
    if (p_.sorted) std::sort(chosen_.begin(), chosen_.end(), before);
    return chosen_;
  }

 private:
  const TopK& p_;
  const int64_t stride_;
  std::vector<Candidate> chosen_;
};

template <class T, class I>
void forward(const TopK& p) {
  const auto rows = rows_of<3>({&p.x, &p.values, &p.indices}, p.axis);
  const T* x = p.x.as<T>();
  const int64_t of_x = p.x.strides[p.axis], of_values = p.values.strides[p.axis];
  const int64_t of_indices = p.indices.strides[p.axis];
  parallel_for(rows.numel, kGrain / (p.n() + 1), [&](int64_t begin, int64_t end) {
    Selector<T> selector(p);
    for (int64_t r = begin; r < end; ++r) {
      int64_t at[3];
      rows.offsets(r, at);
      T* values = p.values.as<T>() + at[1];
      I* indices = p.indices.as<I>() + at[2];
      int64_t j = 0;
      for (const auto& chosen : selector.select(x + at[0])) {
        values[j * of_values] = x[at[0] + chosen.index * of_x];
        indices[j++ * of_indices] = static_cast<I>(chosen.index);
      }
    }
  });
}

template <class T, class I>
void backward(const TopKBackward& p) {
  const auto rows = rows_of<3>({&p.dx, &p.dy, &p.indices}, p.axis);
  const int64_t n = p.dx.shape[p.axis], k = p.dy.shape[p.axis];
  const int64_t of_dx = p.dx.strides[p.axis], of_dy = p.dy.strides[p.axis];
  const int64_t of_indices = p.indices.strides[p.axis];
  parallel_for(rows.numel, kGrain / (n + 1), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int64_t at[3];
      rows.offsets(r, at);
      T* dx = p.dx.as<T>() + at[0];
      for (int64_t i = 0; i < n; ++i) dx[i * of_dx] = T(0.0f);
      for (int64_t j = 0; j < k; ++j) {
        const int64_t i = p.indices.as<I>()[at[2] + j * of_indices];
        if (i >= 0 && i < n) dx[i * of_dx] = p.dy.as<T>()[at[1] + j * of_dy];
      }
    }
  });
}

constexpr Impl<TopK> kForward[] = {
    {"cpu_select", supports_all, nullptr,
     [](const TopK& p, const Launch&) {
       dispatch_reducible(p.x.dtype, [&]<class T>() {
         dispatch_index(p.indices.dtype, [&]<class I>() { forward<T, I>(p); });
       });
     }},
};
constexpr Impl<TopKBackward> kBackward[] = {
    {"cpu_scatter", supports_all, nullptr,
     [](const TopKBackward& p, const Launch&) {
       dispatch_floating(p.dx.dtype, [&]<class T>() {
         dispatch_index(p.indices.dtype, [&]<class I>() { backward<T, I>(p); });
       });
     }},
};

}  // namespace

template <>
ImplList<TopK> cpu_impls<TopK>() {
  return kForward;
}
template <>
ImplList<TopKBackward> cpu_impls<TopKBackward>() {
  return kBackward;
}

}  // namespace dlkern
