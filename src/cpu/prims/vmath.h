// exp and friends in a form that compilers vectorise (no calls, no branches).
#pragma once

#include <cmath>
#include <cstdint>

#include "core/float16.h"

namespace dlkern::cpu {

// e^x within 1.5 ulp; 0 below the subnormals, inf above, NaN for NaN.
// Method: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r, and 2^n by the exponent bits in
// two steps so that subnormal results round once.
inline float exp_fast(float x) {
  const float clamped = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = clamped * 1.44269504f + kMagic;
  const float n = shifted - kMagic;
  float r = clamped - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  float p = 1.98756912e-4f;
  p = p * r + 1.39819994e-3f;
  p = p * r + 8.33345205e-3f;
  p = p * r + 4.16657962e-2f;
  p = p * r + 1.66666657e-1f;
  p = p * r + 5.00000000e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t k = bit_cast_to<int32_t>(shifted) - bit_cast_to<int32_t>(kMagic);
  const int32_t half = k >> 1;
  const float s1 = bit_cast_to<float>((half + 127) << 23);
  const float s2 = bit_cast_to<float>((k - half + 127) << 23);
  const float y = p * s1 * s2;
  return x != x ? x : y;
}
inline double exp_fast(double x) { return std::exp(x); }

}  // namespace dlkern::cpu
