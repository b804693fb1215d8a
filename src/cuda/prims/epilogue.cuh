// ops/epilogue.h on the device, element by element: for kernels that hold sums in any order.
#pragma once

#include "core/activation_math.h"
#include "core/float8.h"
#include "cuda/prims/gpu.h"
#include "ops/epilogue.h"

namespace dlkern::gpu {

template <class Acc>
__device__ Acc load_as(const Matrix& t, int64_t at) {
  switch (t.dtype) {
    case DType::kFloat64:
      return static_cast<Acc>(t.as<const double>()[at]);
    case DType::kFloat32:
      return static_cast<Acc>(t.as<const float>()[at]);
    case DType::kFloat16:
      return static_cast<Acc>(static_cast<float>(t.as<const Half>()[at]));
    default:
      return static_cast<Acc>(static_cast<float>(t.as<const BFloat16>()[at]));
  }
}

template <class Acc>
__device__ void store_as(const Matrix& t, int64_t at, Acc v) {
  switch (t.dtype) {
    case DType::kFloat64:
      t.as<double>()[at] = static_cast<double>(v);
      return;
    case DType::kFloat32:
      t.as<float>()[at] = static_cast<float>(v);
      return;
    case DType::kFloat16:
      t.as<Half>()[at] = Half(static_cast<float>(v));
      return;
    case DType::kFloat8E4M3:
      t.as<Float8E4M3>()[at] = Float8E4M3(static_cast<float>(v));
      return;
    case DType::kFloat8E5M2:
      t.as<Float8E5M2>()[at] = Float8E5M2(static_cast<float>(v));
      return;
    default:
      t.as<BFloat16>()[at] = BFloat16(static_cast<float>(v));
  }
}

// amax = max(amax, |v|), NaN above all. Non-negative floats are ordered as their bits are, and a
// largest number does not depend on the order in which threads come: an atomic is deterministic.
__device__ inline void raise_amax(float* amax, float v) {
  const uint32_t bits = v != v ? 0x7fc00000u : bit_cast_to<uint32_t>(v) & 0x7fffffffu;
  const auto to = reinterpret_cast<unsigned int*>(amax);
  if (bits > *static_cast<volatile unsigned int*>(to)) atomicMax(to, bits);
}

// First elements of the matrices, as offsets from their data.
struct EpilogueAt {
  int64_t c = 0, y = 0, pre = 0, residual = 0, saved = 0;
};

// Finishes and stores one element. Where there is an amax it was set to 0 before.
template <class Acc>
__device__ void finish(const Epilogue& e, const EpilogueAt& at, int64_t m, int64_t n, Acc sum) {
  const auto offset = [&](const Matrix& t) { return m * t.row + n * t.col; };
  Acc v = static_cast<Acc>(e.alpha) * sum;
  if (e.beta != 0) v += static_cast<Acc>(e.beta) * load_as<Acc>(e.c, at.c + offset(e.c));
  if (e.pre.data) store_as(e.pre, at.pre + offset(e.pre), v);
  const ActivationScalars<Acc> scalars(e.activation_alpha, e.activation_threshold);
  if (e.saved.data) {
    v = activate_backward(e.activation, v, load_as<Acc>(e.saved, at.saved + offset(e.saved)),
                          scalars);
  } else {
    v = activate(e.activation, v, scalars);
  }
  if (e.residual.data) v += load_as<Acc>(e.residual, at.residual + offset(e.residual));
  if (e.amax) raise_amax(e.amax, static_cast<float>(v));
  if (e.scale_y) v *= static_cast<Acc>(*e.scale_y);
  store_as(e.y, at.y + offset(e.y), v);
}

}  // namespace dlkern::gpu
