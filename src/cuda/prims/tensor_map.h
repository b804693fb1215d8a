// Tensor maps: how the bulk copy engine sees a tensor, in boxes or as the columns of a convolution.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace dlkern::gpu {

struct TensorMapShape {
  CUtensorMapDataType type;
  int element_bytes;
  uint64_t extent[4];        // in elements, the contiguous dimension first
  uint64_t stride_bytes[3];  // of dimensions 1 to 3: multiples of 16, below 2^40
  uint32_t box[2];           // elements of dimensions 0 and 1 that one copy moves; 1 of the others
};

// Boxes lie in shared memory with rows of 128 bytes, swizzled over 8 rows. Zeros are read outside
// the tensor. `data` is aligned to 16 bytes. Along dimension 0 boxes begin at multiples of 16 bytes
// where they are loaded, and of 128 where they are stored: elsewhere an H200 stopped with an illegal
// instruction. Stores write 16 bytes at a time: where a row is no multiple of them, a little behind its
// end as well.
CUtensorMap make_tensor_map(void* data, const TensorMapShape& shape);

// The input x[N, D, H, W, C] of a convolution, C contiguous, seen as the rows of its matrix product:
// one copy (tma_load_im2col) takes for one filter tap the input pixels of neighbouring output pixels
// and leaves a row of `channels` elements for each. Rank 3 is [N, W, C], rank 4 [N, H, W, C].
//
// Arrays go from the innermost dimension to the outermost: extent C, W, H, D, N; those of spatial
// dimensions alone W, H, D. Of each spatial dimension, for a filter of S taps:
//
//     lower = -padding_before          upper = padding_after - (S - 1) dilation
//     step = stride (1 to 8)
//
// The first tap's input coordinates then run from lower to extent - 1 + upper (both included) in
// steps: there are (extent - 1 + upper - lower) / step + 1 output pixels, as there should be.
// Corners are within +-2^15 for rank 3, -128 to 127 for rank 4, -16 to 15 for rank 5, and the offsets
// of taps, (S - 1) dilation, below 2^16, 256 and 32. For a backward pass of stride 1 the input is dy
// and the padding (S - 1) dilation - padding.
struct Im2colShape {
  CUtensorMapDataType type;
  int rank;                       // 3 to 5
  uint64_t extent[5] = {};        // in elements
  uint64_t stride_bytes[4] = {};  // of dimensions 1 to rank - 1: multiples of 16, below 2^40
  int lower[3] = {}, upper[3] = {};
  uint32_t step[3] = {1, 1, 1};
  // Of a copy: 128 bytes, so that rows lie as those of make_tensor_map; up to 1024 pixels, a multiple
  // of 8 where the rows of another copy follow.
  uint32_t channels = 0, pixels = 0;
};

// Rows of 128 bytes, swizzled over 8 rows. Padding, channels beyond C and pixels beyond the last
// item's are zeros. `data` is aligned to 16 bytes.
CUtensorMap make_im2col_map(void* data, const Im2colShape& shape);

}  // namespace dlkern::gpu
