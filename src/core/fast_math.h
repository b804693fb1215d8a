// exp and friends within a few ulp and without calls or branches: compilers vectorise them on a CPU,
// and on a GPU the elements that a thread holds are computed side by side.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/activation_math.h"
#include "core/float16.h"

namespace dlkern {

// 2^x and 1 / x as the hardware has them, within 2 ulp; subnormal numbers are 0.
DLK_HD float exp2_approx(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return ::exp2f(x);
#endif
}
DLK_HD float reciprocal_approx(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

// 1 / x: within 1 ulp on a GPU (0 beyond 2^126, infinity below 2^-126), exact rounding elsewhere.
DLK_HD float reciprocal_fast(float x) {
#if defined(__CUDA_ARCH__)
  return reciprocal_approx(x);
#else
  return 1.0f / x;
#endif
}
DLK_HD double reciprocal_fast(double x) { return 1.0 / x; }

// The square root: within 1 ulp on a GPU, exact rounding elsewhere.
DLK_HD float sqrt_fast(float x) {
#if defined(__CUDA_ARCH__)
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
#else
  return ::sqrtf(x);
#endif
}
DLK_HD double sqrt_fast(double x) { return ::sqrt(x); }

// e^x within 1.5 ulp for -104 <= x <= 89: 0 below the subnormals, inf above, NaN for NaN.
// Method: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r, and 2^n by the exponent bits in
// two steps so that subnormal results round once.
DLK_HD float exp_bounded(float x) {
#if defined(__CUDA_ARCH__)
  // The hardware's 2^t; what is lost in t = x / ln 2 is a factor near 1. (2 ulp, subnormals are 0.)
  const float t = x * 1.44269504f;
  const float lost = fmaf(x, 1.92596299e-8f, fmaf(x, 1.44269504f, -t));
  const float power = exp2_approx(t);
  return fmaf(power, 0.693147181f * lost, power);
#else
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504f + kMagic;
  const float n = shifted - kMagic;
  float r = x - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  const float r2 = r * r;
  const float p =
      ((1.98756912e-4f * r + 1.39819994e-3f) * r2 + (8.33345205e-3f * r + 4.16657962e-2f)) * r2 +
      (1.66666657e-1f * r + 5.00000000e-1f);
  const float q = p * r2 + (r + 1.0f);
  const int32_t k = bit_cast_to<int32_t>(shifted) - bit_cast_to<int32_t>(kMagic);
  const int32_t half = k >> 1;
  const float s1 = bit_cast_to<float>((half + 127) << 23);
  const float s2 = bit_cast_to<float>((k - half + 127) << 23);
  return q * s1 * s2;  // NaN if x is
#endif
}
// The same for any x.
DLK_HD float exp_fast(float x) {
  return exp_bounded(x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x));
}
DLK_HD double exp_fast(double x) { return ::exp(x); }

// e^x - 1 within 2 ulp. Method as above: 2^n (e^r - 1) + (2^n - 1), with half of 2^n so that the
// largest finite results do not overflow on the way.
DLK_HD float expm1_fast(float x) {
  const float clamped = x < -18.0f ? -18.0f : (x > 89.0f ? 89.0f : x);
  constexpr float kMagic = 12582912.0f;
  const float shifted = clamped * 1.44269504f + kMagic;
  const float n = shifted - kMagic;
  float r = clamped - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  const float r2 = r * r;
  float p =
      ((1.98458988e-4f * r + 1.39408928e-3f) * r2 + (8.33338995e-3f * r + 4.16663578e-2f)) * r2 +
      (1.66666664e-1f * r + 0.5f);
  p = p * r2 + r;
  const int32_t k = bit_cast_to<int32_t>(shifted) - bit_cast_to<int32_t>(kMagic);
  const float half_scale = bit_cast_to<float>((k + 126) << 23);
  return 2.0f * (p * half_scale + (half_scale - 0.5f));  // NaN if x is
}
DLK_HD double expm1_fast(double x) { return ::expm1(x); }

// log(1 + x) within 2 ulp; -inf at -1, NaN below. Method: 1 + x rounds to u = 2^k m with m near 1;
// log u by a polynomial in m - 1, and what the rounding lost, divided by u, is added.
DLK_HD float log1p_fast(float x) {
  const float u = 1.0f + x;
  const float lost = (x - (u - 1.0f)) * reciprocal_fast(u);
  const int32_t bits = bit_cast_to<int32_t>(u) - 0x3f3504f3;  // sqrt(1/2)
  const float k = static_cast<float>(bits >> 23);
  const float f = bit_cast_to<float>((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  float p = -7.63565613e-2f;
  p = p * f + 1.27633275e-1f;
  p = p * f - 1.31605823e-1f;
  p = p * f + 1.42015530e-1f;
  p = p * f - 1.66232984e-1f;
  p = p * f + 2.00012334e-1f;
  p = p * f - 2.50008227e-1f;
  p = p * f + 3.33333317e-1f;
  const float f2 = f * f;
  const float tail = (p * f - 0.5f) * f2 + (lost + k * 1.42860677e-6f);
  const float y = k * 0.693145752f + (f + tail);
  const float special = x == -1.0f ? -INFINITY : (x > 0 ? x : NAN);
  return x > -1.0f && x < INFINITY ? y : special;
}
DLK_HD double log1p_fast(double x) { return ::log1p(x); }

// Within 3 ulp: -t / (2 + t), t = e^(-2|x|) - 1.
DLK_HD float tanh_fast(float x) {
  const float t = expm1_fast(-2.0f * ::fabsf(x));
  return ::copysignf(t * reciprocal_fast(2.0f + t), x);
}
DLK_HD double tanh_fast(double x) { return ::tanh(x); }

// The normal distribution at 0 <= a <= 14.4, both values within 7 ulp, also where they are tiny.
// Method: the tail is e^(-a^2 / 2) times a slowly falling function, which is a polynomial in
// 1 / (1 + 0.3 a). The rounding error of a^2 is made good.
DLK_HD Normal<float> normal_fast(float a) {
  const float t = reciprocal_fast(1.0f + 0.3f * a);
  float p = -2.06234697e-2f;
  p = p * t + 1.12435617e-1f;
  p = p * t - 2.28213608e-1f;
  p = p * t + 1.91784545e-1f;
  p = p * t - 7.94234994e-2f;
  p = p * t + 9.61568370e-2f;
  p = p * t + 7.83896480e-2f;
  p = p * t + 1.10235425e-1f;
  p = p * t + 1.19571814e-1f;
  p = p * t + 1.19686690e-1f;
  const float square = a * a;
  const float lost = ::fmaf(a, a, -square);
  const float e = exp_bounded(-0.5f * square) * (1.0f - 0.5f * lost);
  return {p * t * e, 0.398942280f * e};
}

// c[0] + c[1] x + c[2] x^2 + ...
template <int N>
DLK_HD double polynomial(double x, const double (&c)[N]) {
  double p = c[N - 1];
#if defined(__CUDACC__) || defined(__HIPCC__)
#pragma unroll
#endif
  for (int k = N - 2; k >= 0; --k) p = ::fma(p, x, c[k]);
  return p;
}
// 1 / x within 1 ulp for x from 2^-1000 to 2^1000.
DLK_HD double reciprocal_bounded(double x) {
#if defined(__CUDA_ARCH__)
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));  // the upper 20 bits
  const double error = ::fma(-x, y, 1.0);
  return ::fma(y, ::fma(error, error, error), y);
#else
  return 1.0 / x;
#endif
}
// The same for 0 <= a <= 40, within 5 ulp. Method: the tail is e^(-a^2 / 2) times a quotient of
// polynomials; a^2 = r - 2 n ln 2 with |r| <= ln 2, a polynomial for e^(-r / 2), and 2^n in two steps so
// that subnormal results round once.
DLK_HD Normal<double> normal_fast(double a) {
  constexpr double kAbove[] = {0.5,
                               0.7748733757769759624,
                               0.594045649406328777,
                               0.28933231326339186094,
                               0.097699258634478106848,
                               0.023622412773695057749,
                               0.0040893139177045859991,
                               0.00049041782531394242517,
                               0.000037254235542557815225,
                               1.3857063401899408242e-6};
  constexpr double kBelow[] = {1.0,
                               2.3476313123568071728,
                               2.5612300773998458046,
                               1.7143764260332429079,
                               0.78203755319402812514,
                               0.25495933723528437605,
                               0.060434956484958242023,
                               0.010343772398932463412,
                               0.0012327686382069453585,
                               0.000093382520158603573347,
                               3.4734506926658608908e-6};
  constexpr double kPower[] = {1.0,
                               -0.5,
                               0.12500000000000014056,
                               -0.020833333333333338738,
                               0.0026041666666608167332,
                               -0.00026041666666644172268,
                               0.000021701388957054342743,
                               -1.5500992089703613493e-6,
                               9.6880876225724766272e-8,
                               -5.3822764453528172714e-9,
                               2.6978877993844097731e-10,
                               -1.225840674058630135e-11};
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double square = a * a, lost = ::fma(a, a, -square);
  const double shifted = ::fma(square, -0.72134752044448170368, kMagic), n = shifted - kMagic;
  const double r = ::fma(n, 1.3862943611198906, square) + ::fma(n, 4.638093627692599231e-17, lost);
  const int64_t k = bit_cast_to<int64_t>(shifted) - bit_cast_to<int64_t>(kMagic);
  const int64_t first = k < -1000 ? -1000 : k;
  const double scaled = polynomial(r, kPower) * bit_cast_to<double>((first + 1023) << 52);
  const double rest = bit_cast_to<double>((k - first + 1023) << 52);
  const double factor = polynomial(a, kAbove) * reciprocal_bounded(polynomial(a, kBelow));
  return {factor * scaled * rest, 0.39894228040143268 * scaled * rest};
}

// The Math policy of core/activation_math.h for loops that are to be vectorised.
struct FastMath {
  template <class T>
  static DLK_HD T fma(T x, T y, T z) {
    return LibraryMath::fma(x, y, z);
  }
  template <class T>
  static DLK_HD T reciprocal(T x) {
    return reciprocal_fast(x);
  }
  // x <= 0.
  static DLK_HD float exp(float x) { return exp_bounded(x < -104.0f ? -104.0f : x); }
  static DLK_HD double exp(double x) { return exp_fast(x); }
  template <class T>
  static DLK_HD T expm1(T x) {
    return expm1_fast(x);
  }
  template <class T>
  static DLK_HD T log1p(T x) {
    return log1p_fast(x);
  }
  template <class T>
  static DLK_HD T tanh(T x) {
    return tanh_fast(x);
  }
  template <class T>
  static constexpr T kNormalEnd = sizeof(T) == 4 ? T(14.4) : LibraryMath::kNormalEnd<T>;
  template <class T>
  static DLK_HD Normal<T> normal(T a) {
    return normal_fast(a);
  }
};

// ---- For results of 16 bits ----------------------------------------------------------------------

// The Math policy for results that are rounded to 16 bits: few instructions, for at the speed of
// memory a GPU has about 25 for each element. Within 2^-19 of the right result (relative; with the
// arguments that activations give), but for tails further than 4 from 0: within 2^-11 for the normal
// distribution, 2^-24 |x| for exp(x).
struct Math16 {
  static DLK_HD float fma(float x, float y, float z) { return ::fmaf(x, y, z); }
  static DLK_HD float reciprocal(float x) { return reciprocal_approx(x); }
  static DLK_HD float exp(float x) { return exp2_approx(x * 1.44269504f); }
  // x <= 0.
  static DLK_HD float expm1(float x) {
    float p = fma(1.01376558e-3f, x, 8.03214684e-3f);
    p = fma(p, x, 4.15498391e-2f);
    p = fma(p, x, 1.66645601e-1f);
    p = fma(p, x, 4.99998599e-1f);
    p = fma(p, x, 1.0f);
    return x > -0.7f ? x * p : exp(x) - 1.0f;  // NaN if x is
  }
  // 0 <= x <= 1.
  static DLK_HD float log1p(float x) {
    float p = fma(-8.66890233e-3f, x, 4.45227064e-2f);
    p = fma(p, x, -1.08246483e-1f);
    p = fma(p, x, 1.77815542e-1f);
    p = fma(p, x, -2.45073840e-1f);
    p = fma(p, x, 3.32773358e-1f);
    p = fma(p, x, -4.99975145e-1f);
    p = fma(p, x, 9.99999821e-1f);
    return p * x;
  }
  // Near 0 a polynomial, beyond it 1 - 2 / (1 + e^2|x|).
  static DLK_HD float tanh(float x) {
    const float square = x * x;
    float p = fma(1.55329620e-2f, square, -5.21691591e-2f);
    p = fma(p, square, 1.33125082e-1f);
    p = fma(p, square, -3.33325833e-1f);
    const float near = fma(p * square, x, x);
    const float e = exp2_approx(::fabsf(x) * 2.88539008f);
    const float far = fma(-2.0f, reciprocal(1.0f + e), 1.0f);
    return square < 0.36f ? near : ::copysignf(far, x);
  }
  // The logarithm of the tail is a polynomial.
  template <class T>
  static constexpr T kNormalEnd = T(13.5);
  static DLK_HD Normal<float> normal(float a) {
    float p = fma(9.486666313618386e-11f, a, -6.263512375426217e-09f);
    p = fma(p, a, 1.7317594824817206e-07f);
    p = fma(p, a, -2.5580727651686175e-06f);
    p = fma(p, a, 2.0508799934759736e-05f);
    p = fma(p, a, -5.869270535185933e-05f);
    p = fma(p, a, -0.0005301650380715728f);
    p = fma(p, a, 0.007706956937909126f);
    p = fma(p, a, -0.053056664764881134f);
    p = fma(p, a, -0.4589712619781494f);
    p = fma(p, a, -1.1511430740356445f);
    p = fma(p, a, -0.9999989867210388f);
    return {exp2_approx(p), 0.398942280f * exp2_approx(a * a * -0.721347520f)};
  }
};

// The policy for elements of type T on a GPU.
template <class T>
using MathFor = std::conditional_t<sizeof(T) == 2, Math16, FastMath>;

}  // namespace dlkern
