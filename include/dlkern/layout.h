/* Memory layout: transposed copies.
 *
 *     y[i_0, i_1, ...] = x transposed:  y.shape[d] = x.shape[axes[d]]
 *
 * Bytes are moved unchanged: every dtype that dlkern knows. Any strides on both sides, so the
 * identity permutation makes a strided array contiguous. y overlaps no part of x.
 * The gradient of a permutation is the inverse permutation of dy.
 *
 *     NCHW -> NHWC   axes 0, 2, 3, 1        NHWC -> NCHW   axes 0, 3, 1, 2
 */
#ifndef DLKERN_LAYOUT_H_
#define DLKERN_LAYOUT_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_permute_params {
  uint32_t struct_size;
  int32_t axes[8]; /* the first x.ndim entries: each axis of x once, negative ones from the end */
} dlk_permute_params;
/* The default is the identity. */
#define DLK_PERMUTE_PARAMS_INIT {sizeof(dlk_permute_params), {0, 1, 2, 3, 4, 5, 6, 7}}

DLK_API dlk_status_t dlk_permute(const DLTensor* x, const DLTensor* y,
                                 const dlk_permute_params* params, const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_LAYOUT_H_ */
