// Blocks of items with rows and columns exchanged, in registers: 16 bytes a side at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace dlkern::cpu {

// 16 bytes of items, and the interleaving of the lower or upper halves of two of them.
template <class T>
struct Lane {
  static constexpr int kItems = 16 / sizeof(T);
  using Bits = std::conditional_t<
      sizeof(T) == 1, uint8_t,
      std::conditional_t<sizeof(T) == 2, uint16_t,
                         std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
  typedef Bits Vector __attribute__((vector_size(16)));

  template <bool kUpper>
  static Vector interleave(Vector a, Vector b) {
    return [&]<int... I>(std::integer_sequence<int, I...>) {
      return __builtin_shufflevector(a, b, (I / 2 + (kUpper ? kItems / 2 : 0) + I % 2 * kItems)...);
    }(std::make_integer_sequence<int, kItems>{});
  }
};

// to[r * to_row + c] = from[c * from_column + r] for a square of 16 bytes a side.
template <class T>
inline void transpose_square(const T* from, int64_t from_column, T* to, int64_t to_row) {
  using L = Lane<T>;
  constexpr int n = L::kItems;
  typename L::Vector v[n], next[n];
  for (int c = 0; c < n; ++c) std::memcpy(&v[c], from + c * from_column, 16);
  for (int stage = 1; stage < n; stage *= 2) {
    for (int c = 0; c < n / 2; ++c) {
      next[2 * c] = L::template interleave<false>(v[c], v[c + n / 2]);
      next[2 * c + 1] = L::template interleave<true>(v[c], v[c + n / 2]);
    }
    std::copy_n(next, n, v);
  }
  for (int r = 0; r < n; ++r) std::memcpy(to + r * to_row, &v[r], 16);
}

// The same for r < rows, c < columns.
template <class T>
void transpose_block(const T* from, int64_t from_column, T* to, int64_t to_row, int64_t rows,
                     int64_t columns) {
  constexpr int64_t n = Lane<T>::kItems;
  const int64_t whole_rows = rows / n * n, whole_columns = columns / n * n;
  for (int64_t r = 0; r < whole_rows; r += n) {
    for (int64_t c = 0; c < whole_columns; c += n) {
      transpose_square(from + c * from_column + r, from_column, to + r * to_row + c, to_row);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c) {
      to[r * to_row + c] = from[c * from_column + r];
    }
  }
}

}  // namespace dlkern::cpu
