/* Reductions over one, several or all axes, and their gradients.
 *
 *     sum, mean, max, min    y = the sum (mean, ...) of x over the axes
 *     prod                   y = the product of x
 *     argmax, argmin         y = the index of the first largest (smallest) element along one axis,
 *                            or the flat row-major index over all axes
 *     vector_norm            y = (sum |x|^ord)^(1 / ord); max |x| for ord = inf, min |x| for -inf, the
 *                            number of nonzero elements for 0
 *     logsumexp              y = log sum exp(x), without overflow
 *     var, std               y = sum (x - mean)^2 / max(n - correction, 0) over n elements; its root
 *     any, all               y = whether one element, or each, is true
 *
 * y has x's shape with extent 1 on the reduced axes, or without these axes; both are accepted.
 *
 * dtypes of x: float64, float32, float16, bfloat16; int32 and int64 for sum, prod, max, min, argmax
 * and argmin; bool for any and all.
 *     argmax, argmin     y is int64 or int32
 *     sum, prod          y is int64 for int32 and int64
 *     any, all           y is bool
 *     otherwise          y has x's dtype, or float32 for a 16-bit x
 * 16-bit values are computed with in float32, sums and products of integers in int64 (modulo 2^64).
 * Sums are taken in blocks and the block sums in pairs: the rounding error grows like the logarithm
 * of the number of elements. A variance is that of differences from elements nearby, combined by Chan's
 * formula: no digits cancel. Powers of a norm are not rescaled: one
 * whose |x|^ord overflows in the type computed with is infinite.
 * The bits of a result depend on its own elements, their number and order, and on nothing else.
 *
 * NaN is larger and smaller than any number: max and min return it, argmax and argmin the index of
 * the first one. Over no elements a sum or a norm with ord >= 0 finite is 0, a product 1, logsumexp
 * -inf, a mean, var and std NaN, any false and all true; the others are an error. var and std over
 * n <= correction elements are infinite, or NaN where the sum of squares is 0.
 * A bool is true where its byte is not 0.
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
  DLK_REDUCE_ARGMIN = 5,
  DLK_REDUCE_PROD = 6,
  DLK_REDUCE_VECTOR_NORM = 7,
  DLK_REDUCE_VAR = 8,
  DLK_REDUCE_STD = 9,
  DLK_REDUCE_LOGSUMEXP = 10,
  DLK_REDUCE_ANY = 11,
  DLK_REDUCE_ALL = 12
} dlk_reduce_kind;

typedef struct dlk_reduce_params {
  uint32_t struct_size;
  int32_t kind;       /* dlk_reduce_kind */
  int32_t axis_count; /* entries of axes; -1: all axes of x */
  int32_t axes[8];    /* each in [-ndim, ndim), no axis twice */
  double ord;         /* of vector_norm; not NaN */
  double correction;  /* of var and std; finite */
} dlk_reduce_params;
#define DLK_REDUCE_PARAMS_INIT {sizeof(dlk_reduce_params), DLK_REDUCE_SUM, -1, {0}, 2, 0}

DLK_API dlk_status_t dlk_reduce(const DLTensor* x, const DLTensor* y,
                                const dlk_reduce_params* params, const dlk_launch* launch);

/* Gradients, float dtypes. dy has the shape of y in either form, dx the shape of the forward input;
 * all tensors have one dtype. n is the number of reduced elements.
 *
 *     sum          dx = dy
 *     mean         dx = dy / n
 *     max, min     dx = dy / number of ties where x = y, else 0; NaN where y is NaN
 *     prod         dx = dy * the product of the other elements, right where some are 0
 *     vector_norm  dx = dy * sign(x) * (|x| / y)^(ord - 1), 0 where x or y is 0 or ord is 0; for an
 *                  infinite ord as max and min of |x|, times sign(x)
 *     var          dx = dy * 2 (x - mean) / max(n - correction, 0)
 *     std          dx = dy * (x - mean) / (y * max(n - correction, 0)), 0 where y is 0
 *     logsumexp    dx = dy * exp(x - y), 0 where y is -inf
 *
 * x and y are the forward's input and result. max, min, vector_norm, std and logsumexp take both, prod and var
 * take x alone; what is not taken is ignored (may be NULL).
 * dx may be x itself, and overlaps neither dy nor y. */
DLK_API dlk_status_t dlk_reduce_backward(const DLTensor* dy, const DLTensor* x, const DLTensor* y,
                                         const DLTensor* dx, const dlk_reduce_params* params,
                                         const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_REDUCE_H_ */
