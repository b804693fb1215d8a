// The formulas of the activations, for every backend and for the epilogues of other ops.
//
// A Math policy gives reciprocal, exp, expm1, log1p, tanh and normal for float and double: LibraryMath here
// (the C library's, or the device's), FastMath in core/fast_math.h for loops that are to be
// vectorised. In a loop, hoist the choice of the activation out of it:
//
//     dispatch_activation(kind, [&]<dlk_activation kKind>() {
//       for (...) y[i] = activation_forward<kKind, FastMath>(x[i], scalars);
//     });
//
// Where exp is used its argument is never positive, so that nothing overflows, and 1 - tanh and the
// like are written as quotients of such an exp, so that nothing cancels.
#pragma once

#include <dlkern/activation.h>

#include <cmath>

#include "core/macros.h"

namespace dlkern {

// The parameters in the type that is computed in: float or double.
template <class Acc>
struct ActivationScalars {
  Acc alpha = 1;
  Acc threshold = 20;

  ActivationScalars() = default;
  DLK_HD ActivationScalars(double alpha_, double threshold_)
      : alpha(static_cast<Acc>(alpha_)), threshold(static_cast<Acc>(threshold_)) {}
  explicit ActivationScalars(const dlk_activation_params& p)
      : ActivationScalars(p.alpha, p.threshold) {}
};

inline bool is_activation(int kind) {
  return kind >= DLK_ACTIVATION_NONE && kind <= DLK_ACTIVATION_SOFTPLUS;
}

// The normal distribution: distribution function erfc(-x / sqrt 2) / 2, and density.
template <class T>
struct Normal {
  T cdf, density;
};

struct LibraryMath {
  template <class T>
  static DLK_HD T reciprocal(T x) {
    return 1 / x;
  }
  static DLK_HD float exp(float x) { return ::expf(x); }
  static DLK_HD double exp(double x) { return ::exp(x); }
  static DLK_HD float fma(float x, float y, float z) { return ::fmaf(x, y, z); }
  static DLK_HD double fma(double x, double y, double z) { return ::fma(x, y, z); }
  static DLK_HD float expm1(float x) { return ::expm1f(x); }
  static DLK_HD double expm1(double x) { return ::expm1(x); }
  static DLK_HD float log1p(float x) { return ::log1pf(x); }
  static DLK_HD double log1p(double x) { return ::log1p(x); }
  static DLK_HD float tanh(float x) { return ::tanhf(x); }
  static DLK_HD double tanh(double x) { return ::tanh(x); }
  template <class T>
  static DLK_HD Normal<T> normal(T x) {
    // The rounding error of x^2, which exp would blow up to |x|^2 / 2 ulp, is put right afterwards.
    const T square = x * x;
    const T lost = fma(x, x, -square);
    const T tail = exp(T(-0.5) * square);
    return {normal_cdf(x), T(0.39894228040143268) * (tail - T(0.5) * lost * tail)};
  }

 private:
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  static DLK_HD float normal_cdf(float x) { return ::normcdff(x); }
  static DLK_HD double normal_cdf(double x) { return ::normcdf(x); }
#else
  static DLK_HD float normal_cdf(float x) {
    return static_cast<float>(normal_cdf(static_cast<double>(x)));
  }
  static DLK_HD double normal_cdf(double x) { return 0.5 * ::erfc(x * -0.70710678118654752440); }
#endif
};

namespace activation_detail {

DLK_HD float absolute(float x) { return ::fabsf(x); }
DLK_HD double absolute(double x) { return ::fabs(x); }
// Keeps NaN.
template <class T>
DLK_HD T clamp(T x, T low, T high) {
  return x < low ? low : (x > high ? high : x);
}
// Far enough out that e^-x and e^(-x^2/2) are 0, near enough that x^3 is finite: x * 0 is then 0.
template <class T>
inline constexpr T kFar = sizeof(T) == 4 ? T(110) : T(760);

// sigmoid(x) = big or small, sigmoid(-x) = the other one; slope = sigmoid'(x).
template <class T>
struct Logistic {
  T value, slope;
};
template <class Math, class T>
DLK_HD Logistic<T> logistic(T x) {
  const T e = Math::exp(-absolute(x));
  const T r = Math::reciprocal(1 + e);
  return {x < 0 ? e * r : r, e * r * r};
}

template <class T>
DLK_HD T gelu_tanh_twice_u(T x) {
  return T(1.5957691216057307) * x * (1 + T(0.044715) * x * x);  // 2 sqrt(2 / pi)
}

}  // namespace activation_detail

template <dlk_activation kKind, class Math = LibraryMath, class T>
DLK_HD T activation_forward(T x, const ActivationScalars<T>& s) {
  using namespace activation_detail;
  if constexpr (kKind == DLK_ACTIVATION_RELU) {
    return x <= 0 ? T(0) : x;
  } else if constexpr (kKind == DLK_ACTIVATION_LEAKY_RELU) {
    return x > 0 ? x : s.alpha * x;
  } else if constexpr (kKind == DLK_ACTIVATION_ELU) {
    const T below = s.alpha * Math::expm1(x > 0 ? T(0) : x);
    return x > 0 ? x : below;
  } else if constexpr (kKind == DLK_ACTIVATION_GELU) {
    const T v = x < -kFar<T> ? -kFar<T> : x;
    return v * Math::normal(v).cdf;
  } else if constexpr (kKind == DLK_ACTIVATION_GELU_TANH) {
    const T v = x < -kFar<T> ? -kFar<T> : x;
    return v * logistic<Math>(gelu_tanh_twice_u(v)).value;
  } else if constexpr (kKind == DLK_ACTIVATION_SILU) {
    const T v = x < -kFar<T> ? -kFar<T> : x;
    return v * logistic<Math>(v).value;
  } else if constexpr (kKind == DLK_ACTIVATION_SIGMOID) {
    return logistic<Math>(x).value;
  } else if constexpr (kKind == DLK_ACTIVATION_TANH) {
    return Math::tanh(x);
  } else if constexpr (kKind == DLK_ACTIVATION_SOFTPLUS) {
    const T z = s.alpha * x;
    const T soft = ((z < 0 ? T(0) : z) + Math::log1p(Math::exp(-absolute(z)))) * (1 / s.alpha);
    return z > s.threshold ? x : soft;
  } else {
    return x;
  }
}

// dy * f'(x). At the kinks, and for relu and leaky_relu of NaN, as PyTorch.
template <dlk_activation kKind, class Math = LibraryMath, class T>
DLK_HD T activation_backward(T dy, T x, const ActivationScalars<T>& s) {
  using namespace activation_detail;
  if constexpr (kKind == DLK_ACTIVATION_RELU) {
    return x <= 0 ? T(0) : dy;
  } else if constexpr (kKind == DLK_ACTIVATION_LEAKY_RELU) {
    return x > 0 ? dy : s.alpha * dy;
  } else if constexpr (kKind == DLK_ACTIVATION_ELU) {
    const T below = dy * (s.alpha * Math::exp(x > 0 ? T(0) : x));
    return x > 0 ? dy : below;
  } else if constexpr (kKind == DLK_ACTIVATION_GELU) {
    const T v = clamp(x, -kFar<T>, kFar<T>);
    const Normal<T> normal = Math::normal(v);
    return dy * (normal.cdf + v * normal.density);
  } else if constexpr (kKind == DLK_ACTIVATION_GELU_TANH) {
    const T v = clamp(x, -kFar<T>, kFar<T>);
    const Logistic<T> l = logistic<Math>(gelu_tanh_twice_u(v));
    const T du = T(1.5957691216057307) * (1 + T(3 * 0.044715) * v * v);
    return dy * (l.value + v * l.slope * du);
  } else if constexpr (kKind == DLK_ACTIVATION_SILU) {
    const T v = clamp(x, -kFar<T>, kFar<T>);
    const Logistic<T> l = logistic<Math>(v);
    return dy * (l.value + v * l.slope);
  } else if constexpr (kKind == DLK_ACTIVATION_SIGMOID) {
    return dy * logistic<Math>(x).slope;
  } else if constexpr (kKind == DLK_ACTIVATION_TANH) {
    return dy * (4 * logistic<Math>(2 * x).slope);  // 1 - tanh^2
  } else if constexpr (kKind == DLK_ACTIVATION_SOFTPLUS) {
    const T z = s.alpha * x;
    const T soft = dy * logistic<Math>(z).value;
    return z > s.threshold ? dy : soft;
  } else {
    return dy;
  }
}

// f.operator()<kKind>() for a run-time kind.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class F>
DLK_HD void dispatch_activation(dlk_activation kind, F&& f) {
  switch (kind) {
    case DLK_ACTIVATION_NONE:
      return f.template operator()<DLK_ACTIVATION_NONE>();
    case DLK_ACTIVATION_RELU:
      return f.template operator()<DLK_ACTIVATION_RELU>();
    case DLK_ACTIVATION_LEAKY_RELU:
      return f.template operator()<DLK_ACTIVATION_LEAKY_RELU>();
    case DLK_ACTIVATION_ELU:
      return f.template operator()<DLK_ACTIVATION_ELU>();
    case DLK_ACTIVATION_GELU:
      return f.template operator()<DLK_ACTIVATION_GELU>();
    case DLK_ACTIVATION_GELU_TANH:
      return f.template operator()<DLK_ACTIVATION_GELU_TANH>();
    case DLK_ACTIVATION_SILU:
      return f.template operator()<DLK_ACTIVATION_SILU>();
    case DLK_ACTIVATION_SIGMOID:
      return f.template operator()<DLK_ACTIVATION_SIGMOID>();
    case DLK_ACTIVATION_TANH:
      return f.template operator()<DLK_ACTIVATION_TANH>();
    case DLK_ACTIVATION_SOFTPLUS:
      return f.template operator()<DLK_ACTIVATION_SOFTPLUS>();
  }
}

// One element with a run-time kind: for epilogues.
template <class Math = LibraryMath, class T>
DLK_HD T activate(dlk_activation kind, T x, const ActivationScalars<T>& s) {
  T y = x;
  dispatch_activation(kind,
                      [&]<dlk_activation kKind>() { y = activation_forward<kKind, Math>(x, s); });
  return y;
}
template <class Math = LibraryMath, class T>
DLK_HD T activate_backward(dlk_activation kind, T dy, T x, const ActivationScalars<T>& s) {
  T dx = dy;
  dispatch_activation(
      kind, [&]<dlk_activation kKind>() { dx = activation_backward<kKind, Math>(dy, x, s); });
  return dx;
}

}  // namespace dlkern
