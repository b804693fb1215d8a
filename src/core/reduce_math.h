// Gradients of reductions at one element, for the CPU and the GPU.
//
// x is the element, y the result that it went into, dy that result's gradient.
#pragma once

#include <cmath>

#include "core/fast_math.h"
#include "core/macros.h"

namespace dlkern {

template <class T>
DLK_HD T sign_of(T v) {
  return v > 0 ? T(1) : v < 0 ? T(-1) : v;
}

// Of a maximum or minimum: `ties` elements share dy; NaN where y is.
template <class T>
DLK_HD T share_gradient(T dy, T x, T y, T ties) {
  return x == y ? dy / ties : y == y ? T(0) : y;
}

// `product` is that of the elements that are not 0, `zeros` the number of the others.
template <class T>
DLK_HD T product_gradient(T dy, T x, T product, T zeros) {
  if (zeros == 0) return dy * (product / x);
  return zeros == 1 && x == 0 ? dy * product : T(0);
}

// Of a norm of finite order: sign(x) (|x| / y)^(ord - 1).
template <class T>
DLK_HD T norm_gradient(T dy, T x, T y, T ord) {
  if (ord == 0 || x == 0 || y == 0) return y == y ? T(0) : y;
  if (ord == 1) return dy * sign_of(x);
  if (ord == 2) return dy * (x / y);
  return dy * sign_of(x) * std::pow(std::abs(x) / y, ord - 1);
}

// Of a variance, and with `y` its root of a standard deviation; x - first - mean is the deviation.
template <class T>
DLK_HD T variance_gradient(T dy, T x, T first, T mean, T factor) {
  return dy * factor * (x - first - mean);
}
template <class T>
DLK_HD T deviation_gradient(T dy, T x, T y, T first, T mean, T factor) {
  return y == 0 ? T(0) : variance_gradient(dy / y, x, first, mean, factor);
}

// 0 where all of a row is -inf.
template <class T>
DLK_HD T logsumexp_gradient(T dy, T x, T y) {
  return y == -INFINITY ? T(0) : dy * exp_fast(x - y);
}

}  // namespace dlkern
