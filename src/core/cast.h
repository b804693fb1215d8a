// Conversion between any two element types, the same on host and device:
//
//   to floats    rounded to nearest even, once; 8-bit floats saturate (core/float8.h)
//   to integers  from floats: truncated, saturated to the type's range, NaN becomes 0;
//                from integers: the low bits
//   to bool      whether it is not 0 (NaN is not)
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/dtype.h"
#include "core/float16.h"
#include "core/float8.h"

namespace dlkern {

// A bool in memory, where any byte but 0 is true.
struct Boolean {
  uint8_t byte;

  Boolean() = default;
  DLK_HD explicit Boolean(bool value) : byte(value) {}
  DLK_HD explicit operator bool() const { return byte != 0; }
};

// f.template operator()<T>() with the C++ type of any dtype.
template <class F>
decltype(auto) dispatch_any(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat8E4M3:
      return f.template operator()<Float8E4M3>();
    case DType::kFloat8E5M2:
      return f.template operator()<Float8E5M2>();
    case DType::kInt8:
      return f.template operator()<int8_t>();
    case DType::kInt32:
      return f.template operator()<int32_t>();
    case DType::kInt64:
      return f.template operator()<int64_t>();
    case DType::kUInt8:
      return f.template operator()<uint8_t>();
    case DType::kUInt64:
      return f.template operator()<uint64_t>();
    case DType::kBool:
      return f.template operator()<Boolean>();
    default:
      return dispatch_floating(dtype, f);
  }
}

// The arithmetic type that T's values are converted through: one that holds all of them.
template <class T>
using Wide =
    std::conditional_t<std::is_same_v<T, Boolean> || (std::is_integral_v<T> && sizeof(T) < 4),
                       int32_t, std::conditional_t<std::is_arithmetic_v<T>, T, float>>;

template <class T>
DLK_HD Wide<T> to_wide(T v) {
  if constexpr (std::is_same_v<T, Boolean>) {
    return v ? 1 : 0;
  } else {
    return static_cast<Wide<T>>(v);
  }
}

namespace cast_detail {

// A float from which narrower floats are rounded as from v itself: v towards zero, with the last
// bit set where that lost something ("round to odd").
DLK_HD float sticky_float(double v) {
  const float nearest = static_cast<float>(v);
  const double back = nearest;
  if (back == v || v != v) return nearest;
  const uint32_t bits = bit_cast_to<uint32_t>(nearest);
  return bit_cast_to<float>((::fabs(back) > ::fabs(v) ? bits - 1 : bits) | 1u);
}

// The same of 64-bit integers: what is beyond the 53 bits of a double leaves its mark in the last.
DLK_HD uint64_t sticky_bits(uint64_t v) {
  return v >> 53 ? (v & ~uint64_t{0x7ff}) | (v & 0x7ff ? 0x800 : 0) : v;
}
DLK_HD double sticky_double(uint64_t v) { return static_cast<double>(sticky_bits(v)); }
DLK_HD double sticky_double(int64_t v) {
  const auto bits = static_cast<uint64_t>(v);
  return v < 0 ? -sticky_double(uint64_t{0} - bits) : sticky_double(bits);
}

// 2^k and -2^k are exact in both types; the largest integers below are not.
template <class To, class Float>
DLK_HD To truncated(Float v) {
  using Limits = std::numeric_limits<To>;
  constexpr Float kEnd = static_cast<Float>(Limits::max() / 2 + 1) * 2;
  constexpr Float kBegin = static_cast<Float>(Limits::min());
  return v < kEnd ? (v > kBegin ? static_cast<To>(v) : Limits::min())
                  : (v != v ? To(0) : Limits::max());
}

}  // namespace cast_detail

template <class To, class From>
DLK_HD To cast_wide(From v) {
  static_assert(std::is_same_v<From, Wide<From>>);
  if constexpr (std::is_same_v<To, Boolean>) {
    return Boolean(v != 0);
  } else if constexpr (std::is_integral_v<To>) {
    if constexpr (std::is_integral_v<From>) {
      return static_cast<To>(v);
    } else {
      return cast_detail::truncated<To>(v);
    }
  } else if constexpr (std::is_arithmetic_v<To>) {
    return static_cast<To>(v);
  } else if constexpr (std::is_same_v<From, float>) {
    return To(v);
  } else if constexpr (std::is_same_v<From, double> || std::is_same_v<From, int32_t>) {
    return To(cast_detail::sticky_float(v));
  } else {
    return To(cast_detail::sticky_float(cast_detail::sticky_double(v)));
  }
}

}  // namespace dlkern
