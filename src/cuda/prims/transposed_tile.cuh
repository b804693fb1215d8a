// A tile on its way from an array that runs along rows to one that runs along columns, through shared
// memory, by a block of 256 threads.
//
// It lies there as it was read, [column][row], in chunks of 16 bytes whose place within a column's 128
// bytes is changed by an exclusive or with a function of the column (slot()), so that both 16 bytes of a
// column and 4 bytes of each of many columns come from different banks. 4 bytes are 4, 2 or 1 rows of a
// column, and the bytes of 16, 8 or 4 columns make 16 bytes of each of those rows.
#pragma once

#include "cuda/prims/gpu.h"
#include "cuda/prims/vec.cuh"

namespace dlkern::gpu {

inline constexpr int kTileThreads = 256;
inline constexpr int kChunk = 16;   // bytes of one access
inline constexpr int kPitch = 128;  // bytes that chunks change places in

template <class T>
inline constexpr int kPerChunk = kChunk / static_cast<int>(sizeof(T));

// Where chunk j of a column (or plane) lies among its chunks.
template <class T>
__device__ int slot(int j, int column) {
  return j ^ ((column / kPerChunk<T> ^ column) & 7);
}
// Byte offset of an item in shared memory, for columns of `pitch` bytes.
template <class T>
__device__ int place(int column, int row, int pitch) {
  const int at = row * static_cast<int>(sizeof(T));
  return column * pitch + slot<T>(at / kChunk, column) * kChunk + at % kChunk;
}

// Of items of sizeof(T) bytes. Strides: x_row, x_column, y_row, y_column.
template <class T, int kRows_ = sizeof(T) == 4 ? 32 : 128>
struct TransposedTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = sizeof(T) == 4 ? 64 : kPitch / static_cast<int>(sizeof(T));
  static constexpr int kColumnBytes = kRows * static_cast<int>(sizeof(T));
  static constexpr int kBytes = kColumnBytes * kColumns;
  // What 4 (8) bytes of a column hold.
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  static constexpr int kRowsOfWord = static_cast<int>(sizeof(Word) / sizeof(T));

  char* memory;
  int rows, columns;  // that there are

  __device__ bool has(int column, int row) const { return column < columns && row < rows; }
  template <class Access>
  __device__ Access& at(int column, int row) const {
    return *reinterpret_cast<Access*>(memory + place<T>(column, row, kColumnBytes));
  }

  // Access: items of x that are adjacent along its rows, or one item.
  template <class Access, class Strides>
  __device__ void read(const T* from, const Strides& t) const {
    constexpr int n = sizeof(Access) / sizeof(T), kPerColumn = kRows / n;
    constexpr int kStep = kTileThreads / kPerColumn;  // columns
    constexpr int kAll = kColumns / kStep, kLoads = kAll < 16 ? kAll : 16;
    const int r = threadIdx.x % kPerColumn * n;
    int c = threadIdx.x / kPerColumn;
    from += c * t.x_column + r * (n > 1 ? 1 : t.x_row);
    for (int first = 0; first < kAll; first += kLoads) {
      Access v[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (has(c + i * kStep, r)) v[i] = *reinterpret_cast<const Access*>(from);
        from += kStep * t.x_column;
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i, c += kStep) {
        if (has(c, r)) at<Access>(c, r) = v[i];
      }
    }
  }

  // Access: items of y that are adjacent along its columns, or one item.
  template <class Access, class Strides>
  __device__ void write(T* to, const Strides& t) const {
    if constexpr (sizeof(Access) == sizeof(T)) {
      write_items(to, t);
    } else {
      write_runs<Access>(to, t);
    }
  }

 private:
  template <class Access, class Strides>
  __device__ void write_runs(T* to, const Strides& t) const {
    constexpr int n = sizeof(Access) / sizeof(T), kChunks = kColumns / n;
    constexpr int kStep = kTileThreads / kChunks * kRowsOfWord;  // rows
    const int c = threadIdx.x % kChunks * n;
    int r = threadIdx.x / kChunks * kRowsOfWord;
    to += r * t.y_row + c;
#pragma unroll
    for (int job = 0; job < kRows / kStep; ++job, r += kStep, to += kStep * t.y_row) {
      Word w[n];
#pragma unroll
      for (int i = 0; i < n; ++i) w[i] = at<Word>(c + i, r);
#pragma unroll
      for (int p = 0; p < kRowsOfWord; ++p) {
        if (has(c, r + p)) *reinterpret_cast<Access*>(to + p * t.y_row) = row_of<Access>(w, p);
      }
    }
  }

  // By items: 32 threads take 16 neighbouring columns of two words, so that pieces of y's lines are
  // long and banks differ but for pairs.
  template <class Strides>
  __device__ void write_items(T* to, const Strides& t) const {
    constexpr int kGroups = kColumns / 16, kStep = 16 / kGroups * kRowsOfWord;  // rows
    const int c = threadIdx.x % 16 + threadIdx.x / 32 % kGroups * 16;
    int r = (threadIdx.x / 16 % 2 + threadIdx.x / (32 * kGroups) * 2) * kRowsOfWord;
    to += r * t.y_row + c * t.y_column;
#pragma unroll 4
    for (int job = 0; job < kRows / kStep; ++job, r += kStep, to += kStep * t.y_row) {
      const Word w = at<Word>(c, r);
#pragma unroll
      for (int p = 0; p < kRowsOfWord; ++p) {
        if (has(c, r + p)) to[p * t.y_row] = static_cast<T>(w >> (8 * sizeof(T) * p));
      }
    }
  }

  // Row p of the words of neighbouring columns.
  template <class Access>
  static __device__ Access row_of(const Word (&w)[sizeof(Access) / sizeof(T)], int p) {
    Vec<uint32_t, sizeof(Access) / 4> v;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Access)) / 4; ++i) {
      if constexpr (sizeof(T) == 8) {
        v.v[i] = static_cast<uint32_t>(w[i / 2] >> (i % 2 * 32));
      } else if constexpr (sizeof(T) == 4) {
        v.v[i] = w[i];
      } else if constexpr (sizeof(T) == 2) {
        v.v[i] = __byte_perm(w[2 * i], w[2 * i + 1], p == 0 ? 0x5410 : 0x7632);
      } else {
        const uint32_t selector = p | (4 + p) << 4;
        const uint32_t low = __byte_perm(w[4 * i], w[4 * i + 1], selector);
        const uint32_t high = __byte_perm(w[4 * i + 2], w[4 * i + 3], selector);
        v.v[i] = __byte_perm(low, high, 0x5410);
      }
    }
    return bit_cast_to<Access>(v);
  }
};

}  // namespace dlkern::gpu
