// Pieces of 16 bytes of the tensors of a norm: to and from memory at any address, rounding, and the
// activation with the choice made once.
#pragma once

#include "cuda/norm_sets.cuh"
#include "cuda/prims/row_pieces.cuh"

namespace dlkern::gpu {

// The first `count` elements of a piece, the others as zeros, in accesses of `align` bytes (16, 8, 4,
// or the element's) where the piece is whole.
template <class T>
__device__ __forceinline__ Piece<T> load_piece(const T* p, int count, int align) {
  if (count >= kPiece<T> && align == 16) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    return {{v.x, v.y, v.z, v.w}};
  }
  if (count >= kPiece<T> && align >= 4) {
    const auto* from = reinterpret_cast<const uint32_t*>(p);
    return {{from[0], from[1], from[2], from[3]}};
  }
  Piece<T> piece{};
#pragma unroll
  for (int e = 0; e < kPiece<T>; ++e) piece.set(e, e < count ? p[e] : T{});
  return piece;
}
template <class T>
__device__ __forceinline__ void store_piece(T* p, const Piece<T>& piece, int count, int align) {
  if (count >= kPiece<T> && align == 16) {
    store_words(p, piece.word);
  } else if (count >= kPiece<T> && align >= 4) {
    auto* to = reinterpret_cast<uint32_t*>(p);
#pragma unroll
    for (int w = 0; w < 4; ++w) to[w] = piece.word[w];
  } else {
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) {
      if (e < count) p[e] = piece.get(e);
    }
  }
}

template <class T>
__device__ __forceinline__ Piece<T> rounded(const Accumulator<T> (&v)[kPiece<T>]) {
  Piece<T> piece{};
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int w = 0; w < 4; ++w) piece.word[w] = pack_pair<T>(v[2 * w], v[2 * w + 1]);
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
