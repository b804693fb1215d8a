// Offsets in strided tensors by divisions that were prepared on the host: for kernels that look up
// many positions. (core/index.h is smaller, and fine for a few.)
#pragma once

#include "core/fast_div.h"
#include "core/index.h"

namespace dlkern {

// N tensors walked together over one shape of at most kDims merged dimensions. A plain struct. With
// few dimensions positions are below 2^31 - kPositionsPast, those that are looked up in vain too.
template <int N, int kDims>
struct FastIndex {
  static constexpr bool kQuick = kDims < kMaxDims;
  int64_t numel = 0;
  FastDiv shape[kDims];  // the innermost first; the outermost is not divided by
  int64_t stride[N][kDims] = {};

  FastIndex() = default;
  explicit FastIndex(const StridedIndex<N>& index) : numel(index.numel) {
    for (int d = 0; d < index.ndim; ++d) {
      const int from = index.ndim - 1 - d;
      shape[d] = FastDiv(index.shape[from]);
      for (int n = 0; n < N; ++n) stride[n][d] = index.stride[n][from];
    }
  }

  // Element offsets of the linear (row-major) position i in each tensor.
  DLK_HD void offsets(int64_t i, int64_t (&offset)[N]) const {
    for (int n = 0; n < N; ++n) offset[n] = 0;
#if defined(__CUDACC__) || defined(__HIPCC__)
#pragma unroll
#endif
    for (int d = 0; d < kDims; ++d) {
      int64_t rest = 0, r = i;
      if (d + 1 < kDims) {
        rest = kQuick ? shape[d].quick(static_cast<int32_t>(i)) : shape[d](i);
        r = i - rest * shape[d].divisor();
      }
      for (int n = 0; n < N; ++n) offset[n] += r * stride[n][d];
      i = rest;
    }
  }
};

// The same with the rank known at run time: less code, and quicker where most have a dimension or two.
// Stride: int where offsets fit in it.
template <int N, class Stride = int64_t>
struct RankedIndex {
  int64_t numel = 1;
  int ndim = 0;
  FastDiv extent[kMaxDims];
  Stride stride[N][kMaxDims] = {};

  RankedIndex() = default;
  explicit RankedIndex(const StridedIndex<N>& index) : numel(index.numel), ndim(index.ndim) {
    for (int d = 0; d < ndim; ++d) {
      extent[d] = FastDiv(index.shape[d]);
      for (int n = 0; n < N; ++n) stride[n][d] = static_cast<Stride>(index.stride[n][d]);
    }
  }

  DLK_HD bool is_flat() const { return ndim <= 1; }
  // Of the innermost dimension; 0 where there is none.
  DLK_HD Stride step(int n) const { return ndim ? stride[n][ndim - 1] : 0; }

  // Element offsets of the linear (row-major) position i in each tensor. Positions of type int are
  // quick: they and the extents are below 2^31.
  template <class I>
  DLK_HD void offsets(I i, Stride (&at)[N]) const {
    for (int n = 0; n < N; ++n) at[n] = 0;
#if defined(__CUDACC__) || defined(__HIPCC__)
#pragma unroll 1
#endif
    for (int d = ndim - 1; d > 0; --d) {
      const I q = extent[d].of(i), rest = i - q * static_cast<I>(extent[d].divisor());
      for (int n = 0; n < N; ++n) at[n] += rest * stride[n][d];
      i = q;
    }
    for (int n = 0; n < N; ++n) at[n] += i * stride[n][0];
  }
  DLK_HD Stride offset(int64_t i) const {
    Stride at[N];
    offsets(i, at);
    return at[0];
  }
};

inline constexpr int kFewDims = 4;
inline constexpr int64_t kPositionsPast = 1 << 16;

// The least number of dimensions that FastIndex takes for this index.
template <int N>
int fast_dims(const StridedIndex<N>& index) {
  if (index.ndim <= 1) return 1;
  const bool few = index.ndim <= kFewDims && index.numel < (int64_t{1} << 31) - kPositionsPast;
  return few ? kFewDims : kMaxDims;
}
// f.template operator()<kDims>() with a number that is at least `dims`.
template <class F>
void dispatch_dims(int dims, F&& f) {
  if (dims <= 1) return f.template operator()<1>();
  if (dims <= kFewDims) return f.template operator()<kFewDims>();
  f.template operator()<kMaxDims>();
}

}  // namespace dlkern
