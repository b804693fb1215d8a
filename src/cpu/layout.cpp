// Copies and casts on the CPU. Where both sides run along the same axis, whole runs are copied; else
// tiles, small enough for the lines of both sides to stay in the first cache, so that each line is
// fetched once. Casts pass through a buffer of the type that holds all values of x (core/cast.h).
#include "ops/layout.h"

#include <cstring>

#include "core/cast.h"
#include "cpu/prims/any_dtype.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/spans.h"
#include "cpu/prims/transpose.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kTileBytes = 128;  // of a side

template <class T>
void copy_items(const T* from, T* to, const Transposition& t, int64_t rows, int64_t columns) {
  if (rows >= columns) {
    for (int64_t c = 0; c < columns; ++c) {
      const T* x = from + c * t.x_column;
      T* y = to + c * t.y_column;
      for (int64_t r = 0; r < rows; ++r) y[r * t.y_row] = x[r * t.x_row];
    }
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      const T* x = from + r * t.x_row;
      T* y = to + r * t.y_row;
      for (int64_t c = 0; c < columns; ++c) y[c * t.y_column] = x[c * t.x_column];
    }
  }
}

template <class T>
void transpose_tile(const T* from, T* to, const Transposition& t, int64_t rows, int64_t columns) {
  if (t.x_row == 1 && t.y_column == 1) {
    transpose_block(from, t.x_column, to, t.y_row, rows, columns);
  } else {
    copy_items(from, to, t, rows, columns);
  }
}

template <class T>
void transpose(const T* x, T* y, const Transposition& t) {
  constexpr int64_t kTile = kTileBytes / sizeof(T);
  // Beside a short side the other one may be longer.
  const int64_t tile_rows = std::max(kTile, kTile * kTile / t.columns);
  const int64_t tile_columns = std::max(kTile, kTile * kTile / t.rows);
  const int64_t down = ceil_div(t.rows, tile_rows), across = ceil_div(t.columns, tile_columns);
  parallel_for(t.outer.numel * down * across, kSpanGrain / (kTile * kTile),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t row = i % down * tile_rows;
                   const int64_t column = i / down % across * tile_columns;
                   int64_t at[2];
                   t.outer.offsets(i / (down * across), at);
                   transpose_tile(x + at[1] + row * t.x_row + column * t.x_column,
                                  y + at[0] + row * t.y_row + column * t.y_column, t,
                                  std::min(tile_rows, t.rows - row),
                                  std::min(tile_columns, t.columns - column));
                 }
               });
}

// memcpy for short runs, without the call.
inline void copy_short(char* to, const char* from, int64_t bytes) {
  const auto take = [&]<int kBytes>() {
    std::memcpy(to, from, kBytes);
    to += kBytes, from += kBytes;
  };
  for (int64_t left = bytes; left >= 32; left -= 32) take.operator()<32>();
  if (bytes & 16) take.operator()<16>();
  if (bytes & 8) take.operator()<8>();
  if (bytes & 4) take.operator()<4>();
  if (bytes & 2) take.operator()<2>();
  if (bytes & 1) take.operator()<1>();
}

// Rows that are contiguous on both sides; the index is that of the rows.
template <class T>
void copy_rows(const T* x, T* y, const StridedIndex<2>& rows, int64_t length) {
  for_each_span(
      rows,
      [=](const Span<2>& s) {
        for (int64_t i = 0; i < s.n; ++i) {
          copy_short(reinterpret_cast<char*>(y + s.at[0] + i * s.stride[0]),
                     reinterpret_cast<const char*>(x + s.at[1] + i * s.stride[1]),
                     length * static_cast<int64_t>(sizeof(T)));
        }
      },
      kSpanGrain / length);
}

template <class T>
void copy_runs(const T* x, T* y, const StridedIndex<2>& index) {
  constexpr int64_t kShort = 512;  // bytes
  const int last = index.ndim - 1;
  if (index.is_flat()) {
    parallel_for(index.numel, kSpanGrain, [=](int64_t begin, int64_t end) {
      std::memcpy(y + begin, x + begin, (end - begin) * sizeof(T));
    });
  } else if (index.stride[0][last] != 1 || index.stride[1][last] != 1) {
    for_each_span(index, [=](const Span<2>& s) {
      const T* from = x + s.at[1];
      T* to = y + s.at[0];
      for (int64_t i = 0; i < s.n; ++i) to[i * s.stride[0]] = from[i * s.stride[1]];
    });
  } else if (index.shape[last] * static_cast<int64_t>(sizeof(T)) <= kShort) {
    StridedIndex<2> rows = index;
    rows.ndim = last;
    rows.numel /= index.shape[last];
    copy_rows(x, y, rows, index.shape[last]);
  } else {
    for_each_span(
        index, [=](const Span<2>& s) { std::memcpy(y + s.at[0], x + s.at[1], s.n * sizeof(T)); });
  }
}

template <class T>
void copy(const Piece& p) {
  const auto index = copy_order(p);
  const int fast = fastest_axis(index);
  if (fast == index.ndim - 1) {
    copy_runs(p.x.as<T>(), p.y.as<T>(), index);
  } else {
    transpose(p.x.as<T>(), p.y.as<T>(), Transposition(index, fast));
  }
}

template <class T>
void load_wide(const T* src, int64_t stride, int64_t n, Wide<T>* dst) {
  if constexpr (std::is_same_v<Wide<T>, float>) {
    load_span(src, stride, n, dst);
  } else {
    for (int64_t i = 0; i < n; ++i) dst[i] = to_wide(src[i * stride]);
  }
}

template <class T, class From>
void store_wide(const From* src, T* dst, int64_t stride, int64_t n) {
  if constexpr (std::is_same_v<From, float> && sizeof(T) == 2) {
    store_span(src, dst, stride, n);
  } else if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) dst[i] = cast_wide<T>(src[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) dst[i * stride] = cast_wide<T>(src[i]);
  }
}

template <class From>
void store_as(DType dtype, const From* src, void* dst, int64_t at, int64_t stride, int64_t n) {
  dispatch_any(dtype, [&]<class T>() { store_wide(src, static_cast<T*>(dst) + at, stride, n); });
}

template <class T>
void cast(const Cast& p) {
  for_each_span(copy_order({p.x, p.y}), [&](const Span<2>& s) {
    const T* from = p.x.as<T>() + s.at[1];
    if constexpr (std::is_same_v<T, Wide<T>>) {
      if (s.stride[1] == 1) return store_as(p.y.dtype, from, p.y.data, s.at[0], s.stride[0], s.n);
    }
    Wide<T> wide[kSpan];
    load_wide(from, s.stride[1], s.n, wide);
    store_as(p.y.dtype, wide, p.y.data, s.at[0], s.stride[0], s.n);
  });
}

constexpr Impl<Copy> kCopy[] = {
    {"cpu_tiles", supports_all, nullptr,
     [](const Copy& p, const Launch&) {
       dispatch_item_size(p.pieces[0].y.dtype, [&]<class T>() {
         for (const Piece& piece : p.pieces) copy<T>(piece);
       });
     }},
};
constexpr Impl<Cast> kCast[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const Cast& p, const Launch&) { dispatch_any(p.x.dtype, [&]<class T>() { cast<T>(p); }); }},
};

}  // namespace

template <>
ImplList<Copy> cpu_impls<Copy>() {
  return kCopy;
}
template <>
ImplList<Cast> cpu_impls<Cast>() {
  return kCast;
}

}  // namespace dlkern
