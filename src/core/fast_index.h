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
