// Spans of elements to and from the type they are computed in. CPU kernels are written for float
// and double only: 16-bit spans pass through a buffer of floats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/float16.h"

namespace dlkern::cpu {

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
    for (; i < n; ++i) dst[i] = static_cast<Acc>(src[i]);
    return;
  }
  if (stride == 0) {  // a broadcast operand
    std::fill_n(dst, n, n ? static_cast<Acc>(*src) : Acc(0));
    return;
  }
  for (; i < n; ++i) dst[i] = static_cast<Acc>(src[i * stride]);
}

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
