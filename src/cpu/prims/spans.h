// Element-wise work over strided tensors: a walk in spans along the innermost dimension, and on top
// of it a map that hands each span to a function as contiguous arrays of float or double.
//
//     const auto index = in_memory_order(make_index<2>({&p.y, &p.x}));
//     map_spans(index, [&](int64_t n, Acc* y, const Acc* x) {
//       DLK_SIMD for (int64_t i = 0; i < n; ++i) y[i] = x[i] + 1;
//     }, Out<T>{p.y.as<T>()}, In<T>{p.x.as<T>()});
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/index.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"

// Iterations are independent: arrays of a span are the same memory or do not overlap.
#define DLK_SIMD _Pragma("omp simd")

namespace dlkern::cpu {

inline constexpr int64_t kSpan = 1024;        // elements of a span at most: buffers stay in cache
inline constexpr int64_t kSpanGrain = 32768;  // elements worth a thread

template <int N>
struct Span {
  int64_t n;
  int64_t at[N];      // element offset of the first element in each tensor
  int64_t stride[N];  // in elements
};

// Blocks of at most kSpan elements that an index is cut into: by the index alone, not by threads.
template <int N>
int64_t span_blocks(const StridedIndex<N>& index) {
  return ceil_div(index.numel, kSpan);
}

// f(const Span<N>&) over the blocks [begin, end) of an index: one span for each row in a block.
template <int N, class F>
void walk_spans(const StridedIndex<N>& index, int64_t begin, int64_t end, F&& f) {
  const int last = index.ndim - 1;
  const int64_t inner = last < 0 ? 1 : index.shape[last];
  int64_t position[kMaxDims];
  Span<N> span;
  for (int n = 0; n < N; ++n) span.stride[n] = last < 0 ? 0 : index.stride[n][last];
  for (int64_t block = begin; block < end; ++block) {
    int64_t left = std::min(kSpan, index.numel - block * kSpan);
    index.locate(block * kSpan, position, span.at);
    for (int64_t in_row = last < 0 ? 0 : position[last];; in_row = 0) {
      span.n = std::min(inner - in_row, left);
      f(static_cast<const Span<N>&>(span));
      left -= span.n;
      if (left == 0) break;
      // To the beginning of the next row.
      for (int n = 0; n < N; ++n) span.at[n] -= in_row * span.stride[n];
      for (int d = last - 1; d >= 0; --d) {
        const bool wraps = ++position[d] == index.shape[d];
        const int64_t steps = wraps ? 1 - index.shape[d] : 1;
        for (int n = 0; n < N; ++n) span.at[n] += steps * index.stride[n][d];
        if (!wraps) break;
        position[d] = 0;
      }
    }
  }
}

// The same over all of the index, in parallel.
template <int N, class F>
void for_each_span(const StridedIndex<N>& index, F&& f, int64_t grain = kSpanGrain) {
  parallel_for(span_blocks(index), grain / kSpan,
               [&](int64_t begin, int64_t end) { walk_spans(index, begin, end, f); });
}

// f(item, first block, last block) over the blocks of a list of indices, all in parallel.
template <class Indices, class F>
void for_each_in_list(const Indices& indices, F&& f) {
  std::vector<int64_t> end;  // of each item's blocks, in the order of the list
  for (const auto& index : indices) {
    end.push_back((end.empty() ? 0 : end.back()) + span_blocks(index));
  }
  parallel_for(end.empty() ? 0 : end.back(), kSpanGrain / kSpan, [&](int64_t from, int64_t to) {
    while (from < to) {
      const size_t item = std::upper_bound(end.begin(), end.end(), from) - end.begin();
      const int64_t first = item ? end[item - 1] : 0, stop = std::min(to, end[item]);
      f(item, from - first, stop - first);
      from = stop;
    }
  });
}

template <class V>
struct SpanBuffer {
  SpanBuffer() {}  // leaves the elements uninitialised
  alignas(64) V data[kSpan];
};

// Operands of map_spans: memory that is read, written, or both. data == nullptr: absent, and the
// function receives nullptr.
template <class T>
struct In {
  using Value = Computed<T>;
  using Buffer = SpanBuffer<Value>;
  const T* data;

  const Value* open(int64_t at, int64_t stride, int64_t n, Value* buffer) const {
    return data ? read_span(data + at, stride, n, buffer) : nullptr;
  }
  void close(int64_t, int64_t, int64_t, const Value*) const {}
};
template <class T>
struct Out {
  using Value = Computed<T>;
  using Buffer = SpanBuffer<Value>;
  T* data;

  Value* open(int64_t at, int64_t stride, int64_t, Value* buffer) const {
    if constexpr (std::is_same_v<T, Value>) {
      if (data && stride == 1) return data + at;
    }
    return data ? buffer : nullptr;
  }
  void close(int64_t at, int64_t stride, int64_t n, const Value* v) const {
    if constexpr (std::is_same_v<T, Value>) {
      if (v == data + at) return;  // was computed in place
    }
    if (v) store_span(v, data + at, stride, n);
  }
};
template <class T>
struct InOut : Out<T> {
  using Value = Computed<T>;

  Value* open(int64_t at, int64_t stride, int64_t n, Value* buffer) const {
    Value* v = Out<T>::open(at, stride, n, buffer);
    if (v == buffer && v) load_span(this->data + at, stride, n, buffer);
    return v;
  }
};
// The offsets themselves, where the index holds strides that count something else than memory.
struct Position {
  struct Value {
    int64_t first, stride;
  };
  struct Buffer {
    void* data = nullptr;
  };
  Value open(int64_t at, int64_t stride, int64_t, const void*) const { return {at, stride}; }
  void close(int64_t, int64_t, int64_t, const Value&) const {}
};

namespace detail {

// Spans handed to f as arrays.
template <int N, class F, class... Operands>
auto open_span(F& f, const Operands&... operands) {
  static_assert(sizeof...(Operands) == N);
  return [&](const Span<N>& s) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      std::tuple<typename Operands::Buffer...> buffers;
      const auto open =
          std::make_tuple(operands.open(s.at[I], s.stride[I], s.n, std::get<I>(buffers).data)...);
      f(s.n, std::get<I>(open)...);
      (operands.close(s.at[I], s.stride[I], s.n, std::get<I>(open)), ...);
    }(std::make_index_sequence<N>{});
  };
}

}  // namespace detail

// f(n, operand...) over all of the index, in parallel; operand k walks along index.stride[k].
template <int N, class F, class... Operands>
void map_spans(const StridedIndex<N>& index, F&& f, const Operands&... operands) {
  for_each_span(index, detail::open_span<N>(f, operands...));
}
// The same over the blocks [begin, end), by this thread.
template <int N, class F, class... Operands>
void map_blocks(const StridedIndex<N>& index, int64_t begin, int64_t end, F&& f,
                const Operands&... operands) {
  walk_spans(index, begin, end, detail::open_span<N>(f, operands...));
}

}  // namespace dlkern::cpu
