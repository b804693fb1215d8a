// Pieces of 16 bytes of the tensors of a norm: to and from memory at any address, rounding, and the
// activation with the choice made once.
#pragma once

#include "core/activation_math.h"
#include "core/fast_math.h"
#include "cuda/norm_sets.cuh"
#include "cuda/prims/copy_async.cuh"
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

// The bytes of a tensor, in which more may be read than asked for.
struct Readable {
  const char *low = nullptr, *high = nullptr;

  Readable() = default;
  explicit Readable(const Tensor& t) {
    if (!t || t.numel() == 0) return;
    const ByteRange range = byte_range(t);
    low = reinterpret_cast<const char*>(range.low),
    high = reinterpret_cast<const char*>(range.high);
  }
};

// Elements [low, high) of the piece at p, zeros for the others. One at any address is cut out of the 32
// bytes around it where those may be read.
template <class T>
__device__ __forceinline__ Piece<T> load_part(const T* p, int low, int high,
                                              const Readable& readable) {
  const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16);
  const char* const at = reinterpret_cast<const char*>(p) - shift;
  const bool around = shift == 0 || (at >= readable.low && at + 32 <= readable.high);
  Piece<T> piece{};
  if (low == 0 && high >= kPiece<T> && around) {
    uint32_t words[2][4] = {};
    load_words(true, at, words[0]);
    load_words(shift != 0, at + 16, words[1]);
    extract(words[0], words[1], shift, piece.word);
  } else {
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) {
      if (e >= low && e < high) piece.set(e, p[e]);
    }
  }
  return piece;
}

// A piece to a place in shared memory from which this thread alone reads. The copy may still be under
// way: wait_for_copies().
template <class T>
__device__ __forceinline__ void copy_piece(uint4* slot, const T* p, int count, int align) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (count >= kPiece<T> && align >= 4) {
    if (align == 16) {
      cp_async<16>(slot, p, 16);
    } else {
      auto* to = reinterpret_cast<uint32_t*>(slot);
      const auto* from = reinterpret_cast<const uint32_t*>(p);
#pragma unroll
      for (int w = 0; w < 4; ++w) cp_async<4>(to + w, from + w, 4);
    }
    return;
  }
#endif
  const Piece<T> piece = load_piece(p, count, align);
  *slot = make_uint4(piece.word[0], piece.word[1], piece.word[2], piece.word[3]);
}
template <class T>
__device__ __forceinline__ Piece<T> piece_at(const uint4* slot) {
  const uint4 v = *slot;
  return {{v.x, v.y, v.z, v.w}};
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

// The same number for all elements of a piece, where an array would have one for each.
template <class Acc>
struct Same {
  Acc value;
  __device__ __forceinline__ Acc operator[](int) const { return value; }
};

// f((x - center) * scale + offset + residual), rounded; the residual where it is `added`.
template <class T, class Numbers>
__device__ __forceinline__ Piece<T> normalized(dlk_activation kind, const Piece<T>& x, bool added,
                                               const Piece<T>& residual, const Numbers& center,
                                               const Numbers& scale, const Numbers& offset) {
  using Acc = Accumulator<T>;
  Acc z[kPiece<T>];
#pragma unroll
  for (int e = 0; e < kPiece<T>; ++e) {
    z[e] = (static_cast<Acc>(x.get(e)) - center[e]) * scale[e] + offset[e];
  }
  if (added) {
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) z[e] += static_cast<Acc>(residual.get(e));
  }
  activate(kind, z);
  return rounded<T>(z);
}

// dz = dy f'(z) and d = x - mean, where z is y or, where that is not `given`, d * scale + bias.
template <class T, class Means, class Numbers>
__device__ __forceinline__ void gradients(dlk_activation kind, const Piece<T>& dy,
                                          const Piece<T>& x, bool given, const Piece<T>& y,
                                          const Means& mean, const Numbers& scale,
                                          const Numbers& bias, Accumulator<T> (&dz)[kPiece<T>],
                                          Accumulator<T> (&d)[kPiece<T>]) {
  using Acc = Accumulator<T>;
#pragma unroll
  for (int e = 0; e < kPiece<T>; ++e) {
    dz[e] = static_cast<Acc>(dy.get(e));
    d[e] = static_cast<Acc>(x.get(e)) - mean[e];
  }
  if (kind == DLK_ACTIVATION_NONE) return;
  Acc z[kPiece<T>];
#pragma unroll
  for (int e = 0; e < kPiece<T>; ++e) {
    z[e] = given ? static_cast<Acc>(y.get(e)) : d[e] * scale[e] + bias[e];
  }
  activate_backward(kind, z, dz);
}

// f(e) for the elements of a piece of which `count` are real.
template <class T, class F>
__device__ __forceinline__ void for_elements(int count, F&& f) {
  if (count >= kPiece<T>) {
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) f(e);
  } else {
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) {
      if (e < count) f(e);
    }
  }
}

}  // namespace dlkern::gpu
