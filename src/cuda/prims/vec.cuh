// Wide loads and stores of small aligned groups of elements.
#pragma once

#include "cuda/prims/gpu.h"

namespace dlkern::gpu {

template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T v[N];
};

inline bool is_aligned(const void* p, size_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

template <int N, class T>
__device__ __forceinline__ Vec<T, N> load_vec(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <int N, class T>
__device__ __forceinline__ void store_vec(T* p, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

}  // namespace dlkern::gpu
