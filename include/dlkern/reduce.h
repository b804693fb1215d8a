/* Reductions over one, several or all axes, and their gradients.
 *
 *     sum, mean, max, min    y = the sum (mean, ...) of x over the axes
 *     argmax, argmin         y = the index of the first largest (smallest) element along one axis,
 *                            or the flat row-major index over all axes
 *
 * y has x's shape with extent 1 on the reduced axes, or without these axes; both are accepted.
 *
 * dtypes of x: float64, float32, float16, bfloat16; int32 and int64 except for the mean.
 *     sum, mean          y has x's dtype, or float32 for a 16-bit x; int64 for int32 and int64
 *     max, min           y has x's dtype, or float32 for a 16-bit x
 *     argmax, argmin     y is int64 or int32
 * 16-bit values are summed in float32, integers in int64. Sums are taken in blocks and
 * the block sums in pairs: the rounding error grows like the logarithm of the number of elements.
 *
 * NaN is larger and smaller than any number: max and min return it, argmax and argmin the index of
 * the first one. Over no elements a sum is 0 and a mean NaN; the others are an error.
 * Any strides. y overlaps no input.
 */
#ifndef DLKERN_REDUCE_H_
#define DLKERN_REDUCE_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dlk_reduce_kind {
  DLK_REDUCE_SUM = 0,
  DLK_REDUCE_MEAN = 1,
  DLK_REDUCE_MAX = 2,
  DLK_REDUCE_MIN = 3,
  DLK_REDUCE_ARGMAX = 4,
  DLK_REDUCE_ARGMIN = 5
} dlk_reduce_kind;

typedef struct dlk_reduce_params {
  uint32_t struct_size;
  int32_t kind;       /* dlk_reduce_kind */
  int32_t axis_count; /* entries of axes; -1: all axes of x */
  int32_t axes[8];    /* each in [-ndim, ndim), no axis twice */
} dlk_reduce_params;
#define DLK_REDUCE_PARAMS_INIT {sizeof(dlk_reduce_params), DLK_REDUCE_SUM, -1, {0}}

DLK_API dlk_status_t dlk_reduce(const DLTensor* x, const DLTensor* y,
                                const dlk_reduce_params* params, const dlk_launch* launch);

/* Gradient of sum, mean, max and min, float dtypes. dy has the shape of y in either form, dx the
 * shape of the forward input; all tensors have one dtype.
 *
 *     sum        dx = dy
 *     mean       dx = dy / number of reduced elements
 *     max, min   dx = dy / number of ties where x = y, else 0; NaN where y is NaN
 *
 * x and y are the forward's input and result, for max and min; ignored (may be NULL) for the rest.
 * dx may be x itself, and overlaps neither dy nor y. */
DLK_API dlk_status_t dlk_reduce_backward(const DLTensor* dy, const DLTensor* x, const DLTensor* y,
                                         const DLTensor* dx, const dlk_reduce_params* params,
                                         const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_REDUCE_H_ */
