// Spans of elements whose dtype is known at run time only, to and from float or double.
#pragma once

#include <array>

#include "core/dtype.h"
#include "core/float8.h"
#include "cpu/prims/convert.h"

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

template <class T, class Acc>
void load_float8_span(const T* src, int64_t stride, int64_t n, Acc* dst) {
  const float* values = float8_values<T>().data();
  for (int64_t i = 0; i < n; ++i) dst[i] = values[src[i * stride].bits];
}

// dst[i] = element i * stride of the array of `dtype` at `data`, i < n. Floating or float8.
template <class Acc>
void load_any_span(DType dtype, const void* data, int64_t at, int64_t stride, int64_t n, Acc* dst) {
  if (dtype == DType::kFloat8E4M3) {
    return load_float8_span(static_cast<const Float8E4M3*>(data) + at, stride, n, dst);
  }
  if (dtype == DType::kFloat8E5M2) {
    return load_float8_span(static_cast<const Float8E5M2*>(data) + at, stride, n, dst);
  }
  dispatch_floating(
      dtype, [&]<class T>() { load_span(static_cast<const T*>(data) + at, stride, n, dst); });
}

// The way back, rounded; 8-bit floats saturate (core/float8.h).
template <class Acc>
void store_any_span(const Acc* src, DType dtype, void* data, int64_t at, int64_t stride,
                    int64_t n) {
  const auto narrow = [&]<class T>(T* to) {
    for (int64_t i = 0; i < n; ++i) to[at + i * stride] = T(static_cast<float>(src[i]));
  };
  if (dtype == DType::kFloat8E4M3) return narrow(static_cast<Float8E4M3*>(data));
  if (dtype == DType::kFloat8E5M2) return narrow(static_cast<Float8E5M2*>(data));
  dispatch_floating(dtype,
                    [&]<class T>() { store_span(src, static_cast<T*>(data) + at, stride, n); });
}

}  // namespace dlkern::cpu
