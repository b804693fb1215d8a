// The formulas of the activations, for every backend and for the epilogues of other ops.
//
// A Math policy gives fma, reciprocal, exp, expm1, log1p, tanh and normal for float and double:
// LibraryMath here (the C library's, or the device's), FastMath in core/fast_math.h for loops that
// are to be vectorised, Math16 there for results of 16 bits. In a loop, hoist the choice of the
// activation out of it:
//
//     dispatch_activation(kind, [&]<dlk_activation kKind>() {
//       for (...) y[i] = activation_forward<kKind, FastMath>(x[i], scalars);
//     });
//
// The arguments of exp and expm1 are never positive, so that nothing overflows, those of log1p lie
// between 0 and 1, and 1 - tanh and the like are written as quotients of such an exp, so that
// nothing cancels.
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
  return kind >= DLK_ACTIVATION_NONE && kind <= DLK_ACTIVATION_SELU;
}

// The normal distribution at 0 <= a <= Math::kNormalEnd, where it is 0: what lies beyond a,
// erfc(a / sqrt 2) / 2, and density.
template <class T>
struct Normal {
  T tail, density;
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
  static constexpr T kNormalEnd = sizeof(T) == 4 ? T(15) : T(40);
  template <class T>
  static DLK_HD Normal<T> normal(T a) {
    // The rounding error of a^2, which exp would blow up to |a|^2 / 2 ulp, is put right afterwards.
    const T square = a * a;
    const T lost = fma(a, a, -square);
    const T power = exp(T(-0.5) * square);
    return {normal_tail(a), T(0.39894228040143268) * (power - T(0.5) * lost * power)};
  }

 private:
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  static DLK_HD float normal_tail(float a) { return ::normcdff(-a); }
  static DLK_HD double normal_tail(double a) { return ::normcdf(-a); }
#else
  static DLK_HD float normal_tail(float a) {
    return static_cast<float>(normal_tail(static_cast<double>(a)));
  }
  static DLK_HD double normal_tail(double a) { return 0.5 * ::erfc(a * 0.70710678118654752440); }
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
template <class T>
DLK_HD T positive_part(T x) {
  return x > 0 ? x : T(0);
}
// Far enough out that e^-x and e^(-x^2/2) are 0: an infinite factor of them is brought back to here,
// for this times 0 is 0.
template <class T>
inline constexpr T kFar = sizeof(T) == 4 ? T(110) : T(760);
template <class T>
DLK_HD T not_too_low(T x) {
  return x < -kFar<T> ? -kFar<T> : x;
}

// A function's value and its derivative.
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

// |x| where there is something left of the normal distribution, its end beyond; NaN for NaN.
template <class Math, class T>
DLK_HD T normal_argument(T x) {
  const T a = absolute(x);
  return a > Math::template kNormalEnd<T> ? Math::template kNormalEnd<T> : a;
}

// tanh(softplus(x)) as a quotient, w = e^-|x|:
//     ((1 + e^x)^2 - 1) / ((1 + e^x)^2 + 1) = w (w + 2) / (w (w + 2) + 2)        for x < 0
//                                           = (1 + 2 w) / (1 + 2 w + 2 w^2)      else
// slope is its derivative, 4 e^x (1 + e^x) / ((1 + e^x)^2 + 1)^2.
template <class Math, class T>
DLK_HD Logistic<T> mish_factor(T x) {
  const T w = Math::exp(-absolute(x));
  const T above = x < 0 ? w * (w + 2) : 1 + 2 * w;
  const T r = Math::reciprocal(above + (x < 0 ? T(2) : 2 * w * w));
  return {above * r, 4 * (x < 0 ? w : w * w) * (1 + w) * r * r};
}

// Of selu: those for which mean 0 and variance 1 are a fixed point.
template <class T>
inline constexpr T kSeluScale = T(1.0507009873554804934);
template <class T>
inline constexpr T kSeluSlope = T(1.0507009873554804934 * 1.6732632423543772848);  // scale alpha

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
    const T a = normal_argument<Math>(x);
    return Math::fma(-a, Math::normal(a).tail, positive_part(x));
  } else if constexpr (kKind == DLK_ACTIVATION_GELU_TANH) {
    return not_too_low(x) * logistic<Math>(gelu_tanh_twice_u(x)).value;
  } else if constexpr (kKind == DLK_ACTIVATION_SILU) {
    return not_too_low(x) * logistic<Math>(x).value;
  } else if constexpr (kKind == DLK_ACTIVATION_SIGMOID) {
    return logistic<Math>(x).value;
  } else if constexpr (kKind == DLK_ACTIVATION_TANH) {
    return Math::tanh(x);
  } else if constexpr (kKind == DLK_ACTIVATION_SOFTPLUS) {
    const T z = s.alpha * x;
    const T soft = ((z < 0 ? T(0) : z) + Math::log1p(Math::exp(-absolute(z)))) * (1 / s.alpha);
    return z > s.threshold ? x : soft;
  } else if constexpr (kKind == DLK_ACTIVATION_RELU6) {
    return clamp(x, T(0), T(6));
  } else if constexpr (kKind == DLK_ACTIVATION_HARDSWISH) {
    return clamp(x + 3, T(0), T(6)) * (T(1) / 6) * (x < -3 ? T(0) : x);
  } else if constexpr (kKind == DLK_ACTIVATION_HARDSIGMOID) {
    return clamp(x + 3, T(0), T(6)) * (T(1) / 6);
  } else if constexpr (kKind == DLK_ACTIVATION_MISH) {
    return not_too_low(x) * mish_factor<Math>(x).value;
  } else if constexpr (kKind == DLK_ACTIVATION_SELU) {
    const T below = kSeluSlope<T> * Math::expm1(x > 0 ? T(0) : x);
    return x > 0 ? kSeluScale<T> * x : below;
  } else {
    return x;
  }
}

// dy * f'(x). At the kinks, and for the piecewise linear ones of NaN, as PyTorch.
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
    const T a = normal_argument<Math>(x);
    const Normal<T> normal = Math::normal(a);
    const T cdf = x < 0 ? normal.tail : 1 - normal.tail;
    return dy * Math::fma(x < 0 ? -a : a, normal.density, cdf);
  } else if constexpr (kKind == DLK_ACTIVATION_GELU_TANH) {
    const T v = clamp(x, -kFar<T>, kFar<T>);
    const Logistic<T> l = logistic<Math>(gelu_tanh_twice_u(x));
    const T du = T(1.5957691216057307) * (1 + T(3 * 0.044715) * v * v);
    return dy * (l.value + v * l.slope * du);
  } else if constexpr (kKind == DLK_ACTIVATION_SILU) {
    const T v = clamp(x, -kFar<T>, kFar<T>);
    const Logistic<T> l = logistic<Math>(x);
    return dy * (l.value + v * l.slope);
  } else if constexpr (kKind == DLK_ACTIVATION_SIGMOID) {
    return dy * logistic<Math>(x).slope;
  } else if constexpr (kKind == DLK_ACTIVATION_TANH) {
    return dy * (4 * logistic<Math>(2 * x).slope);  // 1 - tanh^2
  } else if constexpr (kKind == DLK_ACTIVATION_SOFTPLUS) {
    const T z = s.alpha * x;
    const T soft = dy * logistic<Math>(z).value;
    return z > s.threshold ? dy : soft;
  } else if constexpr (kKind == DLK_ACTIVATION_RELU6) {
    return x <= 0 || x >= 6 ? T(0) : dy;
  } else if constexpr (kKind == DLK_ACTIVATION_HARDSWISH) {
    return x <= -3 ? T(0) : (x < 3 ? dy * (x * (T(1) / 3) + T(0.5)) : dy);
  } else if constexpr (kKind == DLK_ACTIVATION_HARDSIGMOID) {
    return x > -3 && x < 3 ? dy * (T(1) / 6) : T(0);
  } else if constexpr (kKind == DLK_ACTIVATION_MISH) {
    const T v = clamp(x, -kFar<T>, kFar<T>);
    const Logistic<T> factor = mish_factor<Math>(x);
    return dy * (factor.value + v * factor.slope);
  } else if constexpr (kKind == DLK_ACTIVATION_SELU) {
    const T below = dy * (kSeluSlope<T> * Math::exp(x > 0 ? T(0) : x));
    return x > 0 ? dy * kSeluScale<T> : below;
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
    case DLK_ACTIVATION_RELU6:
      return f.template operator()<DLK_ACTIVATION_RELU6>();
    case DLK_ACTIVATION_HARDSWISH:
      return f.template operator()<DLK_ACTIVATION_HARDSWISH>();
    case DLK_ACTIVATION_HARDSIGMOID:
      return f.template operator()<DLK_ACTIVATION_HARDSIGMOID>();
    case DLK_ACTIVATION_MISH:
      return f.template operator()<DLK_ACTIVATION_MISH>();
    case DLK_ACTIVATION_SELU:
      return f.template operator()<DLK_ACTIVATION_SELU>();
  }
}

// Those that gates of gated linear units have: they take no parameters.
inline bool is_gate(int kind) {
  return kind == DLK_ACTIVATION_NONE || kind == DLK_ACTIVATION_RELU ||
         kind == DLK_ACTIVATION_GELU || kind == DLK_ACTIVATION_GELU_TANH ||
         kind == DLK_ACTIVATION_SILU || kind == DLK_ACTIVATION_SIGMOID;
}
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class F>
DLK_HD void dispatch_gate(dlk_activation kind, F&& f) {
  switch (kind) {
    case DLK_ACTIVATION_RELU:
      return f.template operator()<DLK_ACTIVATION_RELU>();
    case DLK_ACTIVATION_GELU:
      return f.template operator()<DLK_ACTIVATION_GELU>();
    case DLK_ACTIVATION_GELU_TANH:
      return f.template operator()<DLK_ACTIVATION_GELU_TANH>();
    case DLK_ACTIVATION_SILU:
      return f.template operator()<DLK_ACTIVATION_SILU>();
    case DLK_ACTIVATION_SIGMOID:
      return f.template operator()<DLK_ACTIVATION_SIGMOID>();
    default:
      return f.template operator()<DLK_ACTIVATION_NONE>();
  }
}

// f(gate) up, and the gradients of both. What the two have in common is computed once.
template <dlk_activation kKind, class Math = LibraryMath, class T>
DLK_HD T gated_forward(T gate, T up) {
  return activation_forward<kKind, Math>(gate, ActivationScalars<T>{}) * up;
}
template <class T>
struct GatedGradients {
  T gate, up;
};
template <dlk_activation kKind, class Math = LibraryMath, class T>
DLK_HD GatedGradients<T> gated_backward(T dy, T gate, T up) {
  return {activation_backward<kKind, Math>(dy * up, gate, ActivationScalars<T>{}),
          activation_forward<kKind, Math>(gate, ActivationScalars<T>{}) * dy};
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
