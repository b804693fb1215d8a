// Spans of elements to and from the type they are computed in. CPU kernels are written for float
// and double only: 16-bit spans pass through a buffer of floats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "core/float16.h"

namespace dlkern::cpu {

// An element as float or double; 16-bit types know float only.
template <class Acc, class T>
inline Acc widen(T v) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<Acc>(v);
  } else {
    return static_cast<Acc>(static_cast<float>(v));
  }
}

// dst[i] = src[i * stride], i < n.
template <class T, class Acc>
inline void load_span(const T* src, int64_t stride, int64_t n, Acc* dst) {
  int64_t i = 0;
  if (stride == 1) {
#if defined(__F16C__) && defined(__AVX__)
    if constexpr (std::is_same_v<T, Half> && std::is_same_v<Acc, float>) {
      for (; i + 8 <= n; i += 8) {
        const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i));
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(h));
      }
    }
#endif
    for (; i < n; ++i) dst[i] = widen<Acc>(src[i]);
    return;
  }
  if (stride == 0) {  // a broadcast operand
    std::fill_n(dst, n, n ? widen<Acc>(*src) : Acc(0));
    return;
  }
  if (stride == 2) {  // a constant stride is vectorised
    for (; i < n; ++i) dst[i] = widen<Acc>(src[2 * i]);
    return;
  }
  for (; i < n; ++i) dst[i] = widen<Acc>(src[i * stride]);
}

#if defined(__AVX2__)
// BFloat16(float) for eight floats, each result in the lower half of 32 bits.
inline __m256i round_to_bfloat16(const float* src) {
  const __m256 v = _mm256_loadu_ps(src);
  const __m256i u = _mm256_castps_si256(v), high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i even = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(_mm256_srli_epi32(even, 16), quiet, nan);
}
#endif

// dst[i * stride] = src[i] rounded to T, i < n.
template <class T, class Acc>
inline void store_span(const Acc* src, T* dst, int64_t stride, int64_t n) {
  int64_t i = 0;
  if (stride == 1) {
#if defined(__F16C__) && defined(__AVX__)
    if constexpr (std::is_same_v<T, Half> && std::is_same_v<Acc, float>) {
      for (; i + 8 <= n; i += 8) {
        const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i), h);
      }
    }
#endif
#if defined(__AVX2__)
    if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<Acc, float>) {
      for (; i + 16 <= n; i += 16) {
        const __m256i low = round_to_bfloat16(src + i), high = round_to_bfloat16(src + i + 8);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i), packed);
      }
    }
#endif
    for (; i < n; ++i) dst[i] = static_cast<T>(src[i]);
    return;
  }
  for (; i < n; ++i) dst[i * stride] = static_cast<T>(src[i]);
}

// A span as it is to be computed on: the tensor's own memory where it is contiguous and of type Acc
// already, else converted into `buffer` (at least n elements).
template <class T, class Acc>
inline const Acc* read_span(const T* src, int64_t stride, int64_t n, Acc* buffer) {
  if constexpr (std::is_same_v<T, Acc>) {
    if (stride == 1) return src;
  }
  load_span(src, stride, n, buffer);
  return buffer;
}

// Where to compute a span that ends in dst: dst itself where it is contiguous and of type Acc, else
// `buffer`. finish_span() then stores the buffer.
template <class T, class Acc>
inline Acc* begin_span(T* dst, int64_t stride, Acc* buffer) {
  if constexpr (std::is_same_v<T, Acc>) {
    if (stride == 1) return dst;
  }
  return buffer;
}
template <class T, class Acc>
inline void finish_span(const Acc* computed, T* dst, int64_t stride, int64_t n) {
  if constexpr (std::is_same_v<T, Acc>) {
    if (computed == dst) return;
  }
  store_span(computed, dst, stride, n);
}

}  // namespace dlkern::cpu
