// Embedding on the CPU: rows in parallel. The gradient sorts the ids by counting, and sums each row of
// the table on one thread, in the order of the ids.
#include "ops/embedding.h"

#include <algorithm>

#include "core/index.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kGrainElements = 16384;  // work worth a thread

// The leading dimensions of tensors that end in the same one, walked together.
template <int N>
StridedIndex<N> rows_of(const Tensor* const (&tensors)[N]) {
  return make_index<N>(tensors, ~(1u << (tensors[0]->ndim - 1)));
}

template <class Id>
void check_ids(const Id* ids, const StridedIndex<2>& index, int64_t rows) {
  for (int64_t i = 0; i < index.numel; ++i) {
    int64_t at[2];
    index.offsets(i, at);
    check_id(ids[at[1]], rows, i);
  }
}

// f(row number, offset in y, id) for all rows of [begin, end).
template <class Id, class F>
void for_each_row(const Id* ids, const StridedIndex<2>& index, int64_t columns, F&& f) {
  parallel_for(index.numel, kGrainElements / (columns + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t at[2];
      index.offsets(i, at);
      f(i, at[0], static_cast<int64_t>(ids[at[1]]));
    }
  });
}

template <class T, class Id>
void forward(const EmbeddingForward& p) {
  const auto index = rows_of<2>({&p.y, &p.ids});
  check_ids(p.ids.as<Id>(), index, p.rows());
  const int64_t n = p.columns();
  const int64_t x_row = p.weight.strides[0], x_step = p.weight.strides[1];
  const int64_t y_step = p.y.strides[p.y.ndim - 1];
  for_each_row(p.ids.as<Id>(), index, n, [&](int64_t, int64_t at, int64_t id) {
    const T* x = p.weight.as<T>() + id * x_row;
    T* y = p.y.as<T>() + at;
    if (x_step == 1 && y_step == 1) {
      std::copy_n(x, n, y);
    } else {
      for (int64_t c = 0; c < n; ++c) y[c * y_step] = x[c * x_step];
    }
  });
}

// Places of dy, sorted by id: those of row v are place[first[v]] to place[first[v + 1] - 1].
struct Sorted {
  std::vector<int64_t> first, place;

  template <class Id>
  Sorted(const Id* ids, const StridedIndex<2>& index, int64_t rows)
      : first(rows + 1), place(index.numel) {
    std::vector<int64_t> next(rows);
    for_each(ids, index, [&](int64_t id, int64_t) { ++next[id]; });
    for (int64_t v = 0; v < rows; ++v) first[v + 1] = first[v] + next[v];
    std::copy_n(first.begin(), rows, next.begin());
    for_each(ids, index, [&](int64_t id, int64_t at) { place[next[id]++] = at; });
  }
  template <class Id, class F>
  static void for_each(const Id* ids, const StridedIndex<2>& index, F&& f) {
    for (int64_t i = 0; i < index.numel; ++i) {
      int64_t at[2];
      index.offsets(i, at);
      f(ids[at[1]], at[0]);
    }
  }
};

// sum[c] = the sum of some dy, in pieces as on a GPU. `term` is a buffer.
template <class T, class Acc>
void sum_rows(const T* dy, int64_t step, std::span<const int64_t> places, int64_t n, Acc* sum,
              Acc* piece, Acc* term) {
  std::fill_n(sum, n, Acc(0));
  for (size_t begin = 0; begin < places.size(); begin += kEmbeddingPiece) {
    const size_t end = std::min<size_t>(begin + kEmbeddingPiece, places.size());
    std::fill_n(piece, n, Acc(0));
    for (size_t i = begin; i < end; ++i) {
      const Acc* g = read_span(dy + places[i], step, n, term);
      for (int64_t c = 0; c < n; ++c) piece[c] += g[c];
    }
    for (int64_t c = 0; c < n; ++c) sum[c] += piece[c];
  }
}

template <class T, class Id, class G>
void backward(const EmbeddingBackward& p) {
  using Acc = Accumulator<T>;
  const auto index = rows_of<2>({&p.dy, &p.ids});
  check_ids(p.ids.as<Id>(), index, p.rows());
  const Sorted sorted(p.ids.as<Id>(), index, p.rows());
  const int64_t n = p.columns(), step = p.dy.strides[p.dy.ndim - 1];
  parallel_for(p.rows(), kGrainElements / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(3 * n);
    Acc* sum = buffer.data();
    for (int64_t v = begin; v < end; ++v) {
      const int64_t count = v == p.padding_idx ? 0 : sorted.first[v + 1] - sorted.first[v];
      if (count == 0 && p.accumulate) continue;
      const std::span places(sorted.place.data() + sorted.first[v], count);
      sum_rows(p.dy.as<T>(), step, places, n, sum, sum + n, sum + 2 * n);
      G* to = p.dweight.as<G>() + v * p.dweight.strides[0];
      if (p.scale_by_freq && count) {
        for (int64_t c = 0; c < n; ++c) sum[c] /= static_cast<Acc>(count);
      }
      if (p.accumulate) {
        load_span(to, p.dweight.strides[1], n, sum + n);
        for (int64_t c = 0; c < n; ++c) sum[c] += sum[n + c];
      }
      store_span(sum, to, p.dweight.strides[1], n);
    }
  });
}

template <class Item, class Id>
void one_hot(const OneHot& p) {
  const auto index = rows_of<2>({&p.y, &p.ids});
  check_ids(p.ids.as<Id>(), index, p.classes());
  const int64_t n = p.classes(), step = p.y.strides[p.y.ndim - 1];
  const auto one = static_cast<Item>(bits_of_one(p.y.dtype));
  for_each_row(p.ids.as<Id>(), index, n, [&](int64_t, int64_t at, int64_t id) {
    Item* y = p.y.as<Item>() + at;
    for (int64_t c = 0; c < n; ++c) y[c * step] = 0;
    y[id * step] = one;
  });
}

constexpr Impl<EmbeddingForward> kForward[] = {
    {"cpu_rows", supports_all, nullptr,
     [](const EmbeddingForward& p, const Launch&) {
       dispatch_floating(p.weight.dtype, [&]<class T>() {
         dispatch_index(p.ids.dtype, [&]<class Id>() { forward<T, Id>(p); });
       });
     }},
};
constexpr Impl<EmbeddingBackward> kBackward[] = {
    {"cpu_counting", supports_all, nullptr,
     [](const EmbeddingBackward& p, const Launch&) {
       dispatch_floating(p.dy.dtype, [&]<class T>() {
         dispatch_index(p.ids.dtype, [&]<class Id>() {
           if (p.dweight.dtype == p.dy.dtype) {
             backward<T, Id, T>(p);
           } else {
             backward<T, Id, Accumulator<T>>(p);
           }
         });
       });
     }},
};
constexpr Impl<OneHot> kOneHot[] = {
    {"cpu_rows", supports_all, nullptr,
     [](const OneHot& p, const Launch&) {
       dispatch_item_size(p.y.dtype, [&]<class Item>() {
         dispatch_index(p.ids.dtype, [&]<class Id>() { one_hot<Item, Id>(p); });
       });
     }},
};

}  // namespace

template <>
ImplList<EmbeddingForward> cpu_impls<EmbeddingForward>() {
  return kForward;
}
template <>
ImplList<EmbeddingBackward> cpu_impls<EmbeddingBackward>() {
  return kBackward;
}
template <>
ImplList<OneHot> cpu_impls<OneHot>() {
  return kOneHot;
}

}  // namespace dlkern
