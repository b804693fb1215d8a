// ops/epilogue.h on the device, for an element or for a run of neighbours along n.
#pragma once

#include "core/activation_math.h"
#include "core/fast_math.h"
#include "core/float8.h"
#include "core/int8.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/vec.cuh"
#include "ops/epilogue.h"

namespace dlkern::gpu {

// f(the matrix's data as the type that it has); that of a result may be float8 or int8 too.
template <bool kIsResult, class F>
__device__ __forceinline__ void with_type(const Matrix& t, F&& f) {
  switch (t.dtype) {
    case DType::kFloat64:
      return f(t.as<double>());
    case DType::kFloat32:
      return f(t.as<float>());
    case DType::kFloat16:
      return f(t.as<Half>());
    case DType::kBFloat16:
      return f(t.as<BFloat16>());
    default:
      if constexpr (kIsResult) {
        if (t.dtype == DType::kFloat8E4M3) return f(t.as<Float8E4M3>());
        if (t.dtype == DType::kInt8) return f(t.as<Int8>());
        return f(t.as<Float8E5M2>());
      }
  }
}

// The type that a value of another one is converted to T through.
template <class T>
using Through = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Elements from offset `at` along n, `count` of N: in one access where they lie so.
template <int N, class Acc>
__device__ __forceinline__ void load_run(const Matrix& t, int64_t at, int count, Acc (&v)[N]) {
  with_type<false>(t, [&]<class T>(const T* data) {
    data += at;
    if (N > 1 && t.col == 1 && count == N &&
        reinterpret_cast<uintptr_t>(data) % sizeof(Vec<T, N>) == 0) {
      const Vec<T, N> run = load_vec<N>(data);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = static_cast<Acc>(static_cast<Through<T>>(run.v[i]));
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        v[i] = i < count ? static_cast<Acc>(static_cast<Through<T>>(data[i * t.col])) : Acc(0);
      }
    }
  });
}

template <int N, class Acc>
__device__ __forceinline__ void store_run(const Matrix& t, int64_t at, int count,
                                          const Acc (&v)[N]) {
  with_type<true>(t, [&]<class T>(T* data) {
    data += at;
    if (N > 1 && t.col == 1 && count == N &&
        reinterpret_cast<uintptr_t>(data) % sizeof(Vec<T, N>) == 0) {
      Vec<T, N> run;
#pragma unroll
      for (int i = 0; i < N; ++i) run.v[i] = static_cast<T>(static_cast<Through<T>>(v[i]));
      store_vec(data, run);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (i < count) data[i * t.col] = static_cast<T>(static_cast<Through<T>>(v[i]));
      }
    }
  });
}

template <class Acc>
__device__ Acc load_as(const Matrix& t, int64_t at) {
  Acc v[1];
  load_run(t, at, 1, v);
  return v[0];
}
template <class Acc>
__device__ void store_as(const Matrix& t, int64_t at, Acc v) {
  store_run(t, at, 1, {v});
}

// |v| as a number that is ordered as |v| is, NaN above all.
__device__ inline uint32_t amax_bits(float v) {
  return v != v ? 0x7fc00000u : bit_cast_to<uint32_t>(v) & 0x7fffffffu;
}
// amax = max(amax, what amax_bits() gave). A largest number does not depend on the order in which
// threads come: an atomic is deterministic.
__device__ inline void raise_amax(float* amax, uint32_t bits) {
  const auto to = reinterpret_cast<unsigned int*>(amax);
  if (bits > *static_cast<volatile unsigned int*>(to)) atomicMax(to, bits);
}

// First elements of the matrices, as offsets from their data.
struct EpilogueAt {
  int64_t c = 0, y = 0, pre = 0, residual = 0, saved = 0;
};

// Finishes and stores the elements (m, n) to (m, n + count - 1), count <= N; v holds their sums.
// Where there is an amax it was set to 0 before. Math: FastMath computes an activation of all
// elements side by side; LibraryMath has one copy of the code, and takes the elements one after the
// other from `scratch`, N elements of this thread's own.
template <class Math = LibraryMath, int N, class Acc>
__device__ __forceinline__ void finish_run(const Epilogue& e, const EpilogueAt& at, int64_t m,
                                           int64_t n, int count, Acc (&v)[N],
                                           Acc* scratch = nullptr) {
  const auto offset = [&](const Matrix& t) { return m * t.row + n * t.col; };
  Acc other[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] *= static_cast<Acc>(e.alpha);
  if (e.beta != 0) {
    load_run(e.c, at.c + offset(e.c), count, other);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = fma(static_cast<Acc>(e.beta), other[i], v[i]);
  }
  if (e.pre.data) store_run(e.pre, at.pre + offset(e.pre), count, v);
  if (e.activation != DLK_ACTIVATION_NONE) {
    const ActivationScalars<Acc> scalars(e.activation_alpha, e.activation_threshold);
    const int64_t saved = at.saved + offset(e.saved);
    if constexpr (std::is_same_v<Math, FastMath>) {
      if (e.saved.data) {
        load_run(e.saved, saved, count, other);
        dispatch_activation(e.activation, [&]<dlk_activation kKind>() {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            v[i] = activation_backward<kKind, Math>(v[i], other[i], scalars);
          }
        });
      } else {
        dispatch_activation(e.activation, [&]<dlk_activation kKind>() {
#pragma unroll
          for (int i = 0; i < N; ++i) v[i] = activation_forward<kKind, Math>(v[i], scalars);
        });
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) scratch[i] = v[i];
#pragma unroll 1  // registers cannot be indexed
      for (int i = 0; i < count; ++i) {
        scratch[i] = e.saved.data ? activate_backward(
                                        e.activation, scratch[i],
                                        load_as<Acc>(e.saved, saved + i * e.saved.col), scalars)
                                  : activate(e.activation, scratch[i], scalars);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = scratch[i];
    }
  }
  if (e.residual.data) {
    load_run(e.residual, at.residual + offset(e.residual), count, other);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] += other[i];
  }
  if (e.amax) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const uint32_t bits = i < count ? amax_bits(static_cast<float>(v[i])) : 0;
      largest = bits > largest ? bits : largest;
    }
    raise_amax(e.amax, largest);
  }
  if (e.scale_y) {
    const Acc scale = static_cast<Acc>(*e.scale_y);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= scale;
  }
  store_run(e.y, at.y + offset(e.y), count, v);
}

// One element.
template <class Acc>
__device__ void finish(const Epilogue& e, const EpilogueAt& at, int64_t m, int64_t n, Acc sum) {
  Acc v[1] = {sum}, scratch[1];
  finish_run(e, at, m, n, 1, v, scratch);
}

}  // namespace dlkern::gpu
