/* The k largest or smallest elements of each row, and their gradient.
 *
 *     values[.., j, ..], indices[.., j, ..] = the (j + 1)-th largest element of x along the axis and
 *                                             its place there
 *
 * k is the extent of `values` along the axis, at most x's; all other extents are those of x. Ordered
 * by value, equal ones (-0 and 0 are equal, so are all NaN) by place, the lowest first, which also
 * decides what is left out. NaN is larger than any number, as in PyTorch.
 * With sorted = 0 the order of the k elements is free, but the same in every run.
 *
 * dtypes of x: float64, float32, float16, bfloat16, int32, int64; values have that of x, indices are
 * int64 or int32. Rows of up to 2^31 - 1 elements. Any strides. Outputs overlap no input.
 */
#ifndef DLKERN_TOPK_H_
#define DLKERN_TOPK_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_topk_params {
  uint32_t struct_size;
  int32_t axis;    /* in [-ndim, ndim) */
  int32_t largest; /* 0: the smallest */
  int32_t sorted;
} dlk_topk_params;
#define DLK_TOPK_PARAMS_INIT {sizeof(dlk_topk_params), -1, 1, 1}

DLK_API dlk_status_t dlk_topk_forward(const DLTensor* x, const DLTensor* values,
                                      const DLTensor* indices, const dlk_topk_params* params,
                                      const dlk_launch* launch);

/* dx[.., indices[.., j, ..], ..] = dy[.., j, ..], all other elements 0. dy has the shape of the
 * forward's values; the indices of a row are distinct, and those out of range are left out. dy and
 * dx have one floating dtype. dx overlaps no input. */
DLK_API dlk_status_t dlk_topk_backward(const DLTensor* dy, const DLTensor* indices,
                                       const DLTensor* dx, const dlk_topk_params* params,
                                       const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_TOPK_H_ */
