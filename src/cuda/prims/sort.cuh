// Stable radix sort of numbers, each with a value: equal keys stay in order, so that the result is a
// function of the keys alone. No floating-point, no atomics but on counts in shared memory.
//
// Passes of 6 bits from the lowest on. In each of them a block counts the digits of its tile, one
// block turns all counts into places (digit by digit, tile by tile), and each block moves its tile:
// a thread has some consecutive keys, and counts of its own for each digit. Keys of one tile are
// sorted by one block at once.
#pragma once

#include <cstdint>

#include "core/index.h"
#include "cuda/prims/gpu.h"

namespace dlkern::gpu {

namespace sort_detail {

inline constexpr int kThreads = 256;
inline constexpr int kKeys = 8;  // consecutive ones of a thread
inline constexpr int kTile = kThreads * kKeys;
inline constexpr int kBits = 6;
inline constexpr int kDigits = 1 << kBits;
inline constexpr int kScanThreads = 1024;

__device__ __forceinline__ int digit_of(uint32_t key, int shift) {
  return static_cast<int>(key >> shift & (kDigits - 1));
}

// counts[digit][tile]
static __global__ void __launch_bounds__(kThreads)
    count_digits_kernel(const uint32_t* keys, int64_t count, int shift, int* counts) {
  __shared__ int of_tile[kDigits];
  if (threadIdx.x < kDigits) of_tile[threadIdx.x] = 0;
  __syncthreads();
  const int64_t begin = int64_t{blockIdx.x} * kTile + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const int64_t at = begin + i * kThreads;
    if (at < count) atomicAdd(&of_tile[digit_of(keys[at], shift)], 1);
  }
  __syncthreads();
  if (threadIdx.x < kDigits) counts[threadIdx.x * gridDim.x + blockIdx.x] = of_tile[threadIdx.x];
}

// Exclusive sums in place, by one block.
static __global__ void __launch_bounds__(kScanThreads) scan_kernel(int* counts, int64_t n) {
  __shared__ int sums[kScanThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t per_thread = ceil_div(n, kScanThreads), begin = thread * per_thread;
  const int64_t end = begin + per_thread < n ? begin + per_thread : n;
  int sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += counts[i];
  sums[thread] = sum;
  __syncthreads();
  for (int step = 1; step < kScanThreads; step *= 2) {
    const int before = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += before;
    __syncthreads();
  }
  int place = sums[thread] - sum;
  for (int64_t i = begin; i < end; ++i) {
    const int c = counts[i];
    counts[i] = place;
    place += c;
  }
}

// Counts of each thread for each digit; a quarter of the threads is apart from the next one by a
// number of words that is not a multiple of the banks.
struct DigitTable {
  static constexpr int kQuarter = kThreads / 4, kPitch = kThreads + 10;
  uint16_t count[kDigits * kPitch];

  __device__ uint16_t& at(int digit, int thread) {
    return count[digit * kPitch + thread + thread / kQuarter * 2];
  }
};

// Makes of each digit's count of a thread the number of the tile's keys with this digit that threads
// before it have; of_digit[digit] becomes that of the whole tile. A thread has the first `mine` keys.
__device__ __forceinline__ void count_before(const uint32_t (&keys)[kKeys], int64_t mine, int shift,
                                             DigitTable& table, int (&quarters)[kDigits][4],
                                             int (&of_digit)[kDigits]) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int d = 0; d < kDigits; ++d) table.at(d, thread) = 0;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    if (i < mine) ++table.at(digit_of(keys[i], shift), thread);
  }
  __syncthreads();
  // Four threads for each digit make sums of its counts.
  const int digit = thread / 4, quarter = thread % 4, first = quarter * DigitTable::kQuarter;
  int sum = 0;
  for (int t = 0; t < DigitTable::kQuarter; ++t) sum += table.at(digit, first + t);
  quarters[digit][quarter] = sum;
  __syncthreads();
  int before = 0;
  for (int q = 0; q < quarter; ++q) before += quarters[digit][q];
  if (quarter == 3) of_digit[digit] = before + sum;
  for (int t = 0; t < DigitTable::kQuarter; ++t) {
    const int c = table.at(digit, first + t);
    table.at(digit, first + t) = static_cast<uint16_t>(before);
    before += c;
  }
  __syncthreads();
}

// values_in == nullptr: the value of key i is i.
static __global__ void __launch_bounds__(kThreads)
    move_keys_kernel(const uint32_t* keys_in, const int* values_in, int64_t count, int shift,
                     const int* places, uint32_t* keys_out, int* values_out) {
  __shared__ DigitTable table;
  __shared__ int quarters[kDigits][4], of_digit[kDigits];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t begin = int64_t{blockIdx.x} * kTile + thread * kKeys;
  uint32_t keys[kKeys];
#pragma unroll
  for (int i = 0; i < kKeys; ++i) keys[i] = begin + i < count ? keys_in[begin + i] : 0;
  count_before(keys, count - begin, shift, table, quarters, of_digit);
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    if (begin + i >= count) break;
    const int d = digit_of(keys[i], shift);
    const int to = places[d * gridDim.x + blockIdx.x] + table.at(d, thread)++;
    keys_out[to] = keys[i];
    values_out[to] = values_in ? values_in[begin + i] : static_cast<int>(begin + i);
  }
}

// All passes over one tile, by one block.
static __global__ void __launch_bounds__(kThreads)
    sort_tile_kernel(const uint32_t* keys_in, int count, int passes, uint32_t* keys_out,
                     int* values_out) {
  __shared__ DigitTable table;
  __shared__ int quarters[kDigits][4], of_digit[kDigits];
  __shared__ uint32_t moved_keys[kTile];
  __shared__ uint16_t moved_values[kTile];
  const int thread = static_cast<int>(threadIdx.x), begin = thread * kKeys;
  uint32_t keys[kKeys];
  int values[kKeys];
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    keys[i] = begin + i < count ? keys_in[begin + i] : 0;
    values[i] = begin + i;
  }
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = pass * kBits;
    count_before(keys, count - begin, shift, table, quarters, of_digit);
    int before = 0;
    if (thread < kDigits) {
      for (int d = 0; d < thread; ++d) before += of_digit[d];
    }
    __syncthreads();
    if (thread < kDigits) of_digit[thread] = before;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (begin + i >= count) break;
      const int d = digit_of(keys[i], shift), to = of_digit[d] + table.at(d, thread)++;
      moved_keys[to] = keys[i];
      moved_values[to] = static_cast<uint16_t>(values[i]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (begin + i < count) keys[i] = moved_keys[begin + i], values[i] = moved_values[begin + i];
    }
  }
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    if (begin + i < count) keys_out[begin + i] = keys[i], values_out[begin + i] = values[i];
  }
}

}  // namespace sort_detail

// Keys below 2^bits, fewer than 2^31 of them.
struct RadixSort {
  int64_t count;
  int bits;

  int passes() const { return (bits + sort_detail::kBits - 1) / sort_detail::kBits; }
  int64_t tiles() const { return ceil_div(count, sort_detail::kTile); }
  // Integers of scratch memory.
  int64_t scratch() const { return tiles() * sort_detail::kDigits; }

  // Sorts keys[0] with the values 0, 1, ...; returns which of the two buffers has the result.
  int run(uint32_t* const (&keys)[2], int* const (&values)[2], int* scratch_memory,
          void* stream) const {
    using namespace sort_detail;
    if (tiles() == 1) {
      launch_kernel(sort_tile_kernel, 1, kThreads, 0, stream, keys[0], static_cast<int>(count),
                    passes(), keys[1], values[1]);
      return 1;
    }
    const auto grid = static_cast<unsigned>(tiles());
    int from = 0;
    for (int pass = 0; pass < passes(); ++pass, from ^= 1) {
      const int shift = pass * kBits;
      launch_kernel(count_digits_kernel, grid, kThreads, 0, stream, keys[from], count, shift,
                    scratch_memory);
      launch_kernel(scan_kernel, 1, kScanThreads, 0, stream, scratch_memory, scratch());
      launch_kernel(move_keys_kernel, grid, kThreads, 0, stream, keys[from],
                    pass ? values[from] : nullptr, count, shift, scratch_memory, keys[from ^ 1],
                    values[from ^ 1]);
    }
    return from;
  }
};

}  // namespace dlkern::gpu
