// Storage types for the 8-bit floats of OCP: e4m3 "fn" (no infinity, largest 448, NaN 0x7f and 0xff)
// and e5m2 (the upper half of a binary16, largest 57344). Every code is exact in float. From float:
// round to nearest even; what is beyond the largest finite number, infinity too, becomes that
// number; NaN stays NaN.
#pragma once

#include "core/float16.h"

namespace dlkern {

namespace float8_detail {

// kMantissa stored bits, exponent bias kBias; codes without the sign: kLargest finite, kNaN.
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNaN>
DLK_HD uint8_t from_float(float value) {
  const uint32_t u = bit_cast_to<uint32_t>(value);
  const uint32_t sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
  constexpr uint32_t kSmallestNormal = (128u - kBias) << 23;
  constexpr int kShift = 23 - kMantissa;
  uint32_t code;
  if (magnitude > 0x7f800000u) {
    code = kNaN;
  } else if (magnitude < kSmallestNormal) {
    // Added to a number whose ulp is the smallest subnormal: the sum's last bits are the code.
    constexpr uint32_t kMagic = (151u - kBias - kMantissa) << 23;
    const float sum = bit_cast_to<float>(magnitude) + bit_cast_to<float>(kMagic);
    code = bit_cast_to<uint32_t>(sum) - kMagic;
  } else {
    const uint32_t even = (1u << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1u);
    code = (magnitude - ((127u - kBias) << 23) + even) >> kShift;
    code = code < kLargest ? code : kLargest;
  }
  return static_cast<uint8_t>(sign | code);
}

template <int kMantissa, int kBias, uint32_t kLargest>
DLK_HD float to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24, magnitude = bits & 0x7fu;
  constexpr int kShift = 23 - kMantissa;
  uint32_t u;
  if (magnitude > kLargest) {
    u = kMantissa == 2 && magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u;
  } else if (magnitude >> kMantissa == 0) {
    const float smallest = bit_cast_to<float>((128u - kBias - kMantissa) << 23);
    u = bit_cast_to<uint32_t>(static_cast<float>(magnitude) * smallest);
  } else {
    u = (magnitude << kShift) + ((127u - kBias) << 23);
  }
  return bit_cast_to<float>(sign | u);
}

}  // namespace float8_detail

struct Float8E4M3 {
  uint8_t bits;

  Float8E4M3() = default;
  DLK_HD explicit Float8E4M3(float v) : bits(float8_detail::from_float<3, 7, 0x7e, 0x7f>(v)) {}
  DLK_HD explicit operator float() const { return float8_detail::to_float<3, 7, 0x7e>(bits); }
};

struct Float8E5M2 {
  uint8_t bits;

  Float8E5M2() = default;
  DLK_HD explicit Float8E5M2(float v) : bits(float8_detail::from_float<2, 15, 0x7b, 0x7f>(v)) {}
  DLK_HD explicit operator float() const { return float8_detail::to_float<2, 15, 0x7b>(bits); }
};

// Of a code whose format is known at run time only.
DLK_HD float float8_value(uint8_t bits, bool is_e5m2) {
  return is_e5m2 ? float8_detail::to_float<2, 15, 0x7b>(bits)
                 : float8_detail::to_float<3, 7, 0x7e>(bits);
}

}  // namespace dlkern
