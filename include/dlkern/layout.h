/* Memory layout and element types: transposed and contiguous copies, concatenation, splitting, casts.
 *
 * Any strides on both sides. What is written overlaps nothing else. Except in casts, bytes are moved
 * unchanged, of every dtype that dlkern knows.
 */
#ifndef DLKERN_LAYOUT_H_
#define DLKERN_LAYOUT_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y[i_0, i_1, ...] = x transposed:  y.shape[d] = x.shape[axes[d]]
 *
 *     NCHW -> NHWC   axes 0, 2, 3, 1        NHWC -> NCHW   axes 0, 3, 1, 2
 *
 * The identity makes a strided array contiguous. The gradient of a permutation is the inverse
 * permutation of dy. */
typedef struct dlk_permute_params {
  uint32_t struct_size;
  int32_t axes[8]; /* the first x.ndim entries: each axis of x once, negative ones from the end */
} dlk_permute_params;
/* The default is the identity. */
#define DLK_PERMUTE_PARAMS_INIT {sizeof(dlk_permute_params), {0, 1, 2, 3, 4, 5, 6, 7}}

DLK_API dlk_status_t dlk_permute(const DLTensor* x, const DLTensor* y,
                                 const dlk_permute_params* params, const dlk_launch* launch);

typedef struct dlk_concat_params {
  uint32_t struct_size;
  int32_t axis; /* -ndim <= axis < ndim */
} dlk_concat_params;
#define DLK_CONCAT_PARAMS_INIT {sizeof(dlk_concat_params), 0}

/* y = arrays[0], arrays[1], ... one after the other along an axis: count >= 1 tensors of one dtype, of rank 1 or
 * more and the same shape but for that axis, where y has the sum of their extents. Extents of 0 are
 * allowed. The gradient is dlk_split of dy. On a GPU one launch copies some dozens of pieces whose
 * elements are in the same order on both sides. */
DLK_API dlk_status_t dlk_concat(int64_t count, const DLTensor* const* arrays, const DLTensor* y,
                                const dlk_concat_params* params, const dlk_launch* launch);

typedef dlk_concat_params dlk_split_params;
#define DLK_SPLIT_PARAMS_INIT DLK_CONCAT_PARAMS_INIT

/* The inverse: the shape of each y says which part of x it receives. The gradient is dlk_concat of
 * the dy. */
DLK_API dlk_status_t dlk_split(const DLTensor* x, int64_t count, const DLTensor* const* y,
                               const dlk_split_params* params, const dlk_launch* launch);

/* y = x in y's dtype, any to any, of the same shape.
 *
 *     to floats    rounded to nearest even, once; float8 saturates: beyond its largest finite
 *                  number (infinity too) it is that number
 *     to integers  from floats: truncated, saturated to the range, NaN becomes 0;
 *                  from integers: the low bits
 *     to bool      whether it is not 0 (NaN is not)
 *
 * Where both dtypes are the same, bytes are copied, and y may be x itself. The gradient is the cast of
 * dy to x's dtype. */
DLK_API dlk_status_t dlk_cast(const DLTensor* x, const DLTensor* y, const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_LAYOUT_H_ */
