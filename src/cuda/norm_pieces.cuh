// Pieces of 16 bytes of a norm's tensors: rounding, and the activation with the choice made once.
#pragma once

#include "cuda/norm_sets.cuh"
#include "cuda/prims/row_registers.cuh"

namespace dlkern::gpu {

template <class T>
__device__ __forceinline__ Piece<T> rounded(const Accumulator<T> (&v)[kPiece<T>]) {
  Piece<T> piece{};
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int w = 0; w < 4; ++w) piece.word[w] = pack<T>(v[2 * w], v[2 * w + 1]);
  } else {
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) piece.set(e, v[e]);
  }
  return piece;
}

// z = f(z) for all
template <class Acc, int K>
__device__ __forceinline__ void activate(dlk_activation kind, Acc (&z)[K]) {
  if (kind == DLK_ACTIVATION_NONE) return;
  const ActivationScalars<Acc> scalars;
  if (kind == DLK_ACTIVATION_RELU) {
#pragma unroll
    for (int k = 0; k < K; ++k) z[k] = activation_forward<DLK_ACTIVATION_RELU>(z[k], scalars);
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      z[k] = activation_forward<DLK_ACTIVATION_SILU, FastMath>(z[k], scalars);
    }
  }
}
// dz = dz f'(z)
template <class Acc, int K>
__device__ __forceinline__ void activate_backward(dlk_activation kind, const Acc (&z)[K],
                                                  Acc (&dz)[K]) {
  const ActivationScalars<Acc> scalars;
  if (kind == DLK_ACTIVATION_RELU) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      dz[k] = activation_backward<DLK_ACTIVATION_RELU>(dz[k], z[k], scalars);
    }
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      dz[k] = activation_backward<DLK_ACTIVATION_SILU, FastMath>(dz[k], z[k], scalars);
    }
  }
}

}  // namespace dlkern::gpu
