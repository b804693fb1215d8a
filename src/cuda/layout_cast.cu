// Casts: y = x in another dtype, for views of one shape.
//
// A kernel for each type that conversions go through (core/cast.h); which dtypes lie on both sides is
// a branch that all threads of a launch take together. Where both sides are contiguous, threads take
// packs of 8 neighbours, several of them under way at once, in accesses of up to 16 bytes; else
// single elements in the order of y's memory. Bound by memory.
#include <algorithm>

#include "core/cast.h"
#include "core/fast_index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/vec.cuh"
#include "ops/layout.h"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 256;
constexpr int kWidth = 8;  // of a pack

struct Sides {
  const void* x;
  void* y;
  DType from, to;
};

// f.template operator()<T>() for the dtypes whose Wide is W.
template <class W, class F>
__device__ __forceinline__ void dispatch_wide(DType dtype, F&& f) {
  if constexpr (std::is_same_v<W, float>) {
    switch (dtype) {
      case DType::kFloat16:
        return f.template operator()<Half>();
      case DType::kBFloat16:
        return f.template operator()<BFloat16>();
      case DType::kFloat8E4M3:
        return f.template operator()<Float8E4M3>();
      case DType::kFloat8E5M2:
        return f.template operator()<Float8E5M2>();
      default:
        return f.template operator()<float>();
    }
  } else if constexpr (std::is_same_v<W, int32_t>) {
    switch (dtype) {
      case DType::kInt8:
        return f.template operator()<int8_t>();
      case DType::kUInt8:
        return f.template operator()<uint8_t>();
      case DType::kBool:
        return f.template operator()<Boolean>();
      default:
        return f.template operator()<int32_t>();
    }
  } else {
    return f.template operator()<W>();
  }
}
// f.template operator()<W>() with the Wide of a dtype.
template <class F>
DLK_HD void dispatch_through(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat64:
      return f.template operator()<double>();
    case DType::kInt64:
      return f.template operator()<int64_t>();
    case DType::kUInt64:
      return f.template operator()<uint64_t>();
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
    case DType::kInt32:
      return f.template operator()<int32_t>();
    default:
      return f.template operator()<float>();
  }
}
template <class F>
__device__ __forceinline__ void dispatch_on_device(DType dtype, F&& f) {
  dispatch_through(dtype, [&]<class W>() { dispatch_wide<W>(dtype, f); });
}

// Bytes of a pack that one access takes.
template <class T>
constexpr int kAccess = kWidth * sizeof(T) < 16 ? kWidth * sizeof(T) : 16;
template <class T>
struct alignas(kAccess<T>) PackOf {
  T v[kWidth];
};

template <class W>
constexpr int kPacks = sizeof(W) == 8 ? 2 : 4;  // of a thread

template <class W>
__global__ void __launch_bounds__(kThreads, 3) cast_packs_kernel(Sides s, int64_t packs) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kPacks<W> + threadIdx.x;
  W v[kPacks<W>][kWidth];
  dispatch_wide<W>(s.from, [&]<class T>() {
    PackOf<T> raw[kPacks<W>];
#pragma unroll
    for (int i = 0; i < kPacks<W>; ++i) {
      const int64_t at = first + i * kThreads;
      if (at < packs) raw[i] = static_cast<const PackOf<T>*>(s.x)[at];
    }
#pragma unroll
    for (int i = 0; i < kPacks<W>; ++i) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) v[i][k] = to_wide(raw[i].v[k]);
    }
  });
  dispatch_on_device(s.to, [&]<class T>() {
#pragma unroll
    for (int i = 0; i < kPacks<W>; ++i) {
      const int64_t at = first + i * kThreads;
      PackOf<T> raw;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) raw.v[k] = cast_wide<T>(v[i][k]);
      if (at < packs) static_cast<PackOf<T>*>(s.y)[at] = raw;
    }
  });
}

constexpr int kSingles = 4;  // elements of a thread

template <class W>
__global__ void __launch_bounds__(kThreads, 2)
    cast_kernel(Sides s, DLK_GRID_CONSTANT const FastIndex<2, kMaxDims> index) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kSingles + threadIdx.x;
  W v[kSingles];
  int64_t at[kSingles][2];
#pragma unroll
  for (int i = 0; i < kSingles; ++i) index.offsets(first + i * kThreads, at[i]);
  dispatch_wide<W>(s.from, [&]<class T>() {
#pragma unroll
    for (int i = 0; i < kSingles; ++i) {
      if (first + i * kThreads < index.numel) v[i] = to_wide(static_cast<const T*>(s.x)[at[i][1]]);
    }
  });
  dispatch_on_device(s.to, [&]<class T>() {
#pragma unroll
    for (int i = 0; i < kSingles; ++i) {
      if (first + i * kThreads < index.numel) {
        static_cast<T*>(s.y)[at[i][0]] = cast_wide<T>(v[i]);
      }
    }
  });
}

bool fits_packs(const Cast& p, const StridedIndex<2>& index) {
  return index.is_flat() && index.numel % kWidth == 0 &&
         is_aligned(p.x.data, std::min<size_t>(16, kWidth * dtype_size(p.x.dtype))) &&
         is_aligned(p.y.data, std::min<size_t>(16, kWidth * dtype_size(p.y.dtype)));
}

void run(const Cast& p, const Launch& launch) {
  const StridedIndex<2> index = copy_order({p.x, p.y});
  const Sides sides{p.x.data, p.y.data, p.x.dtype, p.y.dtype};
  dispatch_through(p.x.dtype, [&]<class W>() {
    if (fits_packs(p, index)) {
      const int64_t packs = index.numel / kWidth;
      launch_kernel(cast_packs_kernel<W>,
                    static_cast<unsigned>(ceil_div(packs, kThreads * kPacks<W>)), kThreads, 0,
                    launch.stream, sides, packs);
    } else {
      launch_kernel(cast_kernel<W>,
                    static_cast<unsigned>(ceil_div(index.numel, kThreads * kSingles)), kThreads, 0,
                    launch.stream, sides, FastIndex<2, kMaxDims>(index));
    }
  });
}

constexpr Impl<Cast> kCast[] = {{"elements", supports_all, nullptr, run}};

}  // namespace

template <>
ImplList<Cast> gpu_impls<Cast>() {
  return kCast;
}

}  // namespace dlkern
