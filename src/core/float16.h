// Storage types for IEEE half and bfloat16 with round-to-nearest-even conversions, for host and
// device. Arithmetic is done in float; these types only store.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__F16C__) && !defined(__CUDACC__) && !defined(__HIPCC__)
#include <immintrin.h>
#endif
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#elif defined(__HIPCC__)
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#endif

#include "core/macros.h"

namespace dlkern {

template <class To, class From>
DLK_HD To bit_cast_to(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

struct alignas(2) BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  DLK_HD explicit BFloat16(float value) {
#if defined(__CUDA_ARCH__)
    bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const uint32_t u = bit_cast_to<uint32_t>(value);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(is_nan ? ((u >> 16) | 0x40u) : rounded);
#endif
  }
  DLK_HD explicit operator float() const {
    return bit_cast_to<float>(static_cast<uint32_t>(bits) << 16);
  }
};

struct alignas(2) Half {
  uint16_t bits;

  Half() = default;
  DLK_HD explicit Half(float value) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
    bits = __half_as_ushort(__float2half_rn(value));
#elif defined(__F16C__) && !defined(__CUDACC__) && !defined(__HIPCC__)
    bits = static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
    bits = from_float_portable(value);
#endif
  }
  DLK_HD explicit operator float() const {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
    return __half2float(__ushort_as_half(bits));
#elif defined(__F16C__) && !defined(__CUDACC__) && !defined(__HIPCC__)
    return _cvtsh_ss(bits);
#else
    return to_float_portable(bits);
#endif
  }

  // Round to nearest even by adding a magic number that aligns the float's mantissa with half's.
  static DLK_HD uint16_t from_float_portable(float value) {
    const uint32_t u = bit_cast_to<uint32_t>(value);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t magnitude = u & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // NaN, quieted, payload kept
    } else if (magnitude >= 0x477ff000u) {
      half = 0x7c00u;  // rounds to infinity
    } else if (magnitude < 0x38800000u) {
      // Subnormal: 0.5f has an ulp of 2^-24, which is half's smallest subnormal.
      const float shifted = bit_cast_to<float>(magnitude) + 0.5f;
      half = bit_cast_to<uint32_t>(shifted) - 0x3f000000u;
    } else {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return static_cast<uint16_t>(sign | half);
  }
  static DLK_HD float to_float_portable(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) {
      return bit_cast_to<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    }
    if (magnitude < 0x400u) {  // zero or subnormal: exact in float
      const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
      return bit_cast_to<float>(bit_cast_to<uint32_t>(value) | sign);
    }
    return bit_cast_to<float>(sign | ((magnitude << 13) + 0x38000000u));
  }
};

// The type that sums of T are kept in: float64 for float64, float32 for all smaller ones, int64 for
// index types.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <>
struct AccumulatorOf<int32_t> {
  using type = int64_t;
};
template <>
struct AccumulatorOf<int64_t> {
  using type = int64_t;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

// The type that element-wise work on T is done in: float32 for 16-bit types, itself for the others.
template <class T>
using Computed = std::conditional_t<std::is_integral_v<T>, T, Accumulator<T>>;

}  // namespace dlkern
