#pragma once

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

// In all three the ids have the shape of the rows and one more dimension of extent 1, so that they
// are walked along with y or dy.
struct EmbeddingForward {
  Tensor ids, weight, y;

  int64_t rows() const { return weight.shape[0]; }
  int64_t columns() const { return weight.shape[1]; }
};

struct EmbeddingBackward {
  Tensor dy, ids, dweight;
  bool accumulate, scale_by_freq;
  int64_t padding_idx;  // -1: none

  int64_t rows() const { return dweight.shape[0]; }
  int64_t columns() const { return dweight.shape[1]; }
};

struct OneHot {
  Tensor ids, y;

  int64_t classes() const { return y.shape[y.ndim - 1]; }
};

// Fails for an id that is not one of `rows`; i is its flat index.
void check_id(int64_t id, int64_t rows, int64_t i);

// The bits of the number 1 in a dtype.
uint64_t bits_of_one(DType dtype);

inline constexpr int64_t kEmbeddingPiece = 64;  // dy of one id that are summed in one go

template <>
ImplList<EmbeddingForward> cpu_impls<EmbeddingForward>();
template <>
ImplList<EmbeddingForward> gpu_impls<EmbeddingForward>();
template <>
ImplList<EmbeddingBackward> cpu_impls<EmbeddingBackward>();
template <>
ImplList<EmbeddingBackward> gpu_impls<EmbeddingBackward>();
template <>
ImplList<OneHot> cpu_impls<OneHot>();
template <>
ImplList<OneHot> gpu_impls<OneHot>();

}  // namespace dlkern
