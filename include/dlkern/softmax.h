/* Softmax over one axis.
 *
 *     softmax(x)_i     = exp(x_i - max x) / sum_j exp(x_j - max x)
 *     log_softmax(x)_i = x_i - max x - log sum_j exp(x_j - max x)
 *
 * A row that is all -inf gives NaN, and so does a row that holds +inf or NaN, on every backend.
 * dtypes: float64, float32, float16, bfloat16 (16-bit rows are summed in float32). Any strides.
 * y may be x itself; dx may be dy or y itself.
 */
#ifndef DLKERN_SOFTMAX_H_
#define DLKERN_SOFTMAX_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_softmax_params {
  uint32_t struct_size;
  int32_t axis; /* -ndim <= axis < ndim */
} dlk_softmax_params;
#define DLK_SOFTMAX_PARAMS_INIT {sizeof(dlk_softmax_params), -1}

/* x, y: same shape and dtype, rank >= 1. */
DLK_API dlk_status_t dlk_softmax_forward(const DLTensor* x, const DLTensor* y,
                                         const dlk_softmax_params* params,
                                         const dlk_launch* launch);
DLK_API dlk_status_t dlk_log_softmax_forward(const DLTensor* x, const DLTensor* y,
                                             const dlk_softmax_params* params,
                                             const dlk_launch* launch);

/* dx = y * (dy - sum_j dy_j y_j); y is the forward result. */
DLK_API dlk_status_t dlk_softmax_backward(const DLTensor* dy, const DLTensor* y, const DLTensor* dx,
                                          const dlk_softmax_params* params,
                                          const dlk_launch* launch);
/* dx = dy - exp(y) * sum_j dy_j; y is the forward result. */
DLK_API dlk_status_t dlk_log_softmax_backward(const DLTensor* dy, const DLTensor* y,
                                              const DLTensor* dx, const dlk_softmax_params* params,
                                              const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_SOFTMAX_H_ */
