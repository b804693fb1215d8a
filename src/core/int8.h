// Storage type of int8 results that are computed in floats: rounded to nearest even; what is beyond
// the ends, infinities too, becomes the end; NaN becomes 0.
#pragma once

#include "core/float16.h"

namespace dlkern {

struct Int8 {
  int8_t value;

  Int8() = default;
  DLK_HD explicit Int8(float v) {
    const float low = v > -128.0f ? v : -128.0f;  // NaN too
    const float inside = low < 127.0f ? low : 127.0f;
    // Added to a number whose ulp is 1: the sum's last bits are the integer.
    value = v != v ? int8_t{0} : static_cast<int8_t>(bit_cast_to<uint32_t>(inside + 12582912.0f));
  }
  DLK_HD explicit operator float() const { return value; }
};

}  // namespace dlkern
