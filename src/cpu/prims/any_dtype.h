// Spans of elements whose dtype is known at run time only, to and from float or double.
#pragma once

#include <array>

#include "core/dtype.h"
#include "core/float8.h"
#include "core/int8.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/spans.h"

namespace dlkern::cpu {

// The values of all codes of an 8-bit float.
template <class T>
const std::array<float, 256>& float8_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> v;
    for (int code = 0; code < 256; ++code) {
      T t;
      t.bits = static_cast<uint8_t>(code);
      v[code] = static_cast<float>(t);
    }
    return v;
  }();
  return values;
}

#if defined(__AVX2__) && defined(__F16C__)
// The same of 16 codes, as binary16 numbers of which the result is `scale` times as large: e5m2 is
// its upper half, and e4m3 has its mantissa and another bias.
inline __m256i float8_as_half(const Float8E5M2*, __m256i codes, float* scale) {
  *scale = 1;
  return _mm256_slli_epi16(codes, 8);
}
inline __m256i float8_as_half(const Float8E4M3*, __m256i codes, float* scale) {
  *scale = 256;
  const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(codes, magnitude), 8);
  const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
  const __m256i nan = _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00));
  return _mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(magnitude, 7));
}
#endif

// Of 8-bit floats what load_span is of other types.
template <class T, class Acc>
  requires(std::is_same_v<T, Float8E4M3> || std::is_same_v<T, Float8E5M2>)
void load_span(const T* src, int64_t stride, int64_t n, Acc* dst) {
  int64_t i = 0;
#if defined(__AVX2__) && defined(__F16C__)
  if constexpr (std::is_same_v<Acc, float>) {
    for (; stride == 1 && i + 16 <= n; i += 16) {
      float scale;
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i));
      const __m256i half = float8_as_half(src, _mm256_cvtepu8_epi16(bytes), &scale);
      const __m256 factor = _mm256_set1_ps(scale);
      const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
      const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
      _mm256_storeu_ps(dst + i, _mm256_mul_ps(low, factor));
      _mm256_storeu_ps(dst + i + 8, _mm256_mul_ps(high, factor));
    }
  }
#endif
  const float* values = float8_values<T>().data();
  for (; i < n; ++i) dst[i] = values[src[i * stride].bits];
}

// dst[i] = element i * stride of the array of `dtype` at `data`, i < n. Floating or float8.
template <class Acc>
void load_any_span(DType dtype, const void* data, int64_t at, int64_t stride, int64_t n, Acc* dst) {
  if (dtype == DType::kFloat8E4M3) {
    return load_span(static_cast<const Float8E4M3*>(data) + at, stride, n, dst);
  }
  if (dtype == DType::kFloat8E5M2) {
    return load_span(static_cast<const Float8E5M2*>(data) + at, stride, n, dst);
  }
  dispatch_floating(
      dtype, [&]<class T>() { load_span(static_cast<const T*>(data) + at, stride, n, dst); });
}

// The way back, rounded; also to int8. 8 bits saturate (core/float8.h, core/int8.h).
template <class Acc>
void store_any_span(const Acc* src, DType dtype, void* data, int64_t at, int64_t stride,
                    int64_t n) {
  const auto narrow = [&]<class T>(T* to) {
    for (int64_t i = 0; i < n; ++i) to[at + i * stride] = T(static_cast<float>(src[i]));
  };
  if (dtype == DType::kFloat8E4M3) return narrow(static_cast<Float8E4M3*>(data));
  if (dtype == DType::kFloat8E5M2) return narrow(static_cast<Float8E5M2*>(data));
  if (dtype == DType::kInt8) return narrow(static_cast<Int8*>(data));
  dispatch_floating(dtype,
                    [&]<class T>() { store_span(src, static_cast<T*>(data) + at, stride, n); });
}

// Operands of map_spans whose dtype is known at run time only. data == nullptr: absent.
template <class Acc>
struct AnyInOut {
  using Buffer = SpanBuffer<Acc>;
  void* data;
  DType dtype;

  Acc* open(int64_t at, int64_t stride, int64_t n, Acc* buffer) const {
    if (!data || in_place(stride)) return data ? static_cast<Acc*>(data) + at : nullptr;
    load_any_span(dtype, data, at, stride, n, buffer);
    return buffer;
  }
  void close(int64_t at, int64_t stride, int64_t n, const Acc* v) const {
    if (data && !in_place(stride)) store_any_span(v, dtype, data, at, stride, n);
  }
  bool in_place(int64_t stride) const {
    return stride == 1 && dtype == (sizeof(Acc) == 8 ? DType::kFloat64 : DType::kFloat32);
  }
};
template <class Acc>
struct AnyIn : AnyInOut<Acc> {
  void close(int64_t, int64_t, int64_t, const Acc*) const {}
};
template <class Acc>
struct AnyOut : AnyInOut<Acc> {
  Acc* open(int64_t at, int64_t stride, int64_t, Acc* buffer) const {
    if (!this->data) return nullptr;
    return this->in_place(stride) ? static_cast<Acc*>(this->data) + at : buffer;
  }
};

}  // namespace dlkern::cpu
