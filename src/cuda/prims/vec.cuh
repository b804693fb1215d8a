// Wide loads and stores of small aligned groups of elements, and what they hold.
#pragma once

#include "core/float16.h"
#include "cuda/prims/gpu.h"
#if defined(__CUDACC__)
#include "cuda/prims/ptx.cuh"
#endif

namespace dlkern::gpu {

template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T v[N];
};

DLK_HD bool is_aligned(const void* p, size_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

template <int N, class T>
__device__ __forceinline__ Vec<T, N> load_vec(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <int N, class T>
__device__ __forceinline__ void store_vec(T* p, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

// Two elements of 16 bits in one word, the first in its low half: fewer instructions than one by one.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, BFloat16>) {
    return pack_bfloat16(low, high);
  } else {
    return pack_float16(low, high);
  }
#else
  return uint32_t{static_cast<T>(low).bits} | uint32_t{static_cast<T>(high).bits} << 16;
#endif
}
template <class T>
__device__ __forceinline__ void unpack_pair(uint32_t pair, float& low, float& high) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    low = bit_cast_to<float>(pair << 16), high = bit_cast_to<float>(pair & 0xffff0000u);
  } else {
#if defined(__CUDA_ARCH__)
    const float2 both = __half22float2(bit_cast_to<__half2>(pair));
    low = both.x, high = both.y;
#else
    low = static_cast<float>(bit_cast_to<T>(static_cast<uint16_t>(pair)));
    high = static_cast<float>(bit_cast_to<T>(static_cast<uint16_t>(pair >> 16)));
#endif
  }
}

// The larger of each of two pairs, NaN where both are.
template <class T>
__device__ __forceinline__ uint32_t max_pair(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, BFloat16>) {
    return max_bfloat16(a, b);
  } else {
    return max_float16(a, b);
  }
#else
  float low[2], high[2];
  unpack_pair<T>(a, low[0], high[0]), unpack_pair<T>(b, low[1], high[1]);
  return pack_pair<T>(fmaxf(low[0], low[1]), fmaxf(high[0], high[1]));
#endif
}

// N elements as they lie in memory, not yet converted. Those of 16 bits stay in words: as values of
// their own they would take a register each.
template <class T, int N>
struct Raw {
  static constexpr bool kPairs = sizeof(T) == 2 && N % 2 == 0;
  using Element = std::conditional_t<kPairs, uint32_t, T>;
  static constexpr int kCount = kPairs ? N / 2 : N;
  Vec<Element, kCount> v;

  // All in one access; p is aligned to their size.
  __device__ __forceinline__ void load(const T* p) {
    v = load_vec<kCount>(reinterpret_cast<const Element*>(p));
  }
  __device__ __forceinline__ void store(T* p) const { store_vec(reinterpret_cast<Element*>(p), v); }
  __device__ __forceinline__ void fill(T value) {
#pragma unroll
    for (int k = 0; k < N; ++k) set(k, value);
  }
  __device__ __forceinline__ T get(int k) const {
    if constexpr (kPairs) {
      return bit_cast_to<T>(static_cast<uint16_t>(v.v[k / 2] >> 16 * (k % 2)));
    } else {
      return v.v[k];
    }
  }
  __device__ __forceinline__ void set(int k, T value) {
    if constexpr (kPairs) {
      const uint32_t other = v.v[k / 2] & (k % 2 ? 0xffffu : 0xffff0000u);
      v.v[k / 2] = other | uint32_t{bit_cast_to<uint16_t>(value)} << 16 * (k % 2);
    } else {
      v.v[k] = value;
    }
  }
  // The compiler cannot look through this: it does not unpack before, once for each way on which the
  // elements came, which takes twice the registers.
  __device__ __forceinline__ void forget() {
#if defined(__CUDA_ARCH__)
    if constexpr (kPairs) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) asm volatile("" : "+r"(v.v[k]));
    }
#endif
  }
  // To and from what is computed with.
  template <class V>
  __device__ __forceinline__ void unpack(V (&to)[N]) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if constexpr (kPairs && std::is_same_v<V, float>) {
        unpack_pair<T>(v.v[k], to[2 * k], to[2 * k + 1]);
      } else {
        to[k] = static_cast<V>(v.v[k]);
      }
    }
  }
  template <class V>
  __device__ __forceinline__ void pack(const V (&from)[N]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if constexpr (kPairs && std::is_same_v<V, float>) {
        v.v[k] = pack_pair<T>(from[2 * k], from[2 * k + 1]);
      } else {
        v.v[k] = static_cast<T>(from[k]);
      }
    }
  }
};

// The words from byte `offset` on, below 4 K, of those in low and high.
template <int K>
__device__ __forceinline__ void extract(const uint32_t (&low)[K], const uint32_t (&high)[K],
                                        int offset, uint32_t (&w)[K]) {
  uint32_t all[2 * K];
#pragma unroll
  for (int k = 0; k < K; ++k) all[k] = low[k], all[k + K] = high[k];
#pragma unroll
  for (int step = K / 2; step > 0; step /= 2) {
#pragma unroll
    for (int k = 0; k < K + step; ++k) all[k] = offset & 4 * step ? all[k + step] : all[k];
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const uint64_t pair = all[k] | static_cast<uint64_t>(all[k + 1]) << 32;
    w[k] = static_cast<uint32_t>(pair >> 8 * (offset & 3));
  }
}

// N neighbours at any address: the two aligned accesses around them.
template <class T, int N>
struct Around {
  static constexpr int kBytes = N * sizeof(T), kWords = kBytes / 4;
  static_assert(kBytes % 4 == 0);
  uint32_t low[kWords], high[kWords];
  int offset;

  // The aligned kBytes in which the first element lies may be read, and those behind them.
  __device__ __forceinline__ void load(const T* p) {
    offset = static_cast<int>(reinterpret_cast<uintptr_t>(p) % kBytes);
    const auto* from = reinterpret_cast<const uint32_t*>(reinterpret_cast<const char*>(p) - offset);
    const Vec<uint32_t, kWords> first = load_vec<kWords>(from);
    Vec<uint32_t, kWords> second = first;
    if (offset != 0) second = load_vec<kWords>(from + kWords);
#pragma unroll
    for (int k = 0; k < kWords; ++k) low[k] = first.v[k], high[k] = second.v[k];
  }
  __device__ __forceinline__ void hold(const Raw<T, N>& raw) {
    const auto words = bit_cast_to<Vec<uint32_t, kWords>>(raw);
    offset = 0;
#pragma unroll
    for (int k = 0; k < kWords; ++k) low[k] = high[k] = words.v[k];
  }
  __device__ __forceinline__ Raw<T, N> get() const {
    Vec<uint32_t, kWords> words;
    extract(low, high, offset, words.v);
    return bit_cast_to<Raw<T, N>>(words);
  }
};

}  // namespace dlkern::gpu
