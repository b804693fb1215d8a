/* Softmax over one axis, of scaled and masked logits.
 *
 *     l_i              = scale x_i + mask_i, or -inf where element i is left out
 *     softmax(x)_i     = exp(l_i - max l) / sum_j exp(l_j - max l)
 *     log_softmax(x)_i = l_i - max l - log sum_j exp(l_j - max l)
 *
 * An element is left out where a boolean mask is false, where another mask is -inf, and, with
 * `causal`, where it lies after its row's own place: rows and columns are the last two dimensions
 * [Sq, Sk], aligned at their ends (bottom right), so that row q keeps the columns
 * k <= q + Sk - Sq. What x holds in an element that is left out is not looked at.
 *
 * A row of nothing but -inf gives NaN, unless there is a mask (or causal): then softmax gives zeros
 * and log_softmax -inf. A row that holds +inf or NaN gives NaN. The same on every backend.
 *
 * dtypes: float64, float32, float16, bfloat16 (16-bit rows are computed in float32). Any strides.
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
  double scale; /* positive and finite */
  /* Optional, borrowed for the call: bool (true: the element counts), or any of the float dtypes
   * (added). Its shape broadcasts to that of x. */
  const DLTensor* mask;
  int32_t causal; /* not 0: causal; axis must be the last one, of two or more */
  int32_t reserved;
} dlk_softmax_params;
#define DLK_SOFTMAX_PARAMS_INIT {sizeof(dlk_softmax_params), -1, 1.0, NULL, 0, 0}

/* x, y: same shape and dtype, rank >= 1. */
DLK_API dlk_status_t dlk_softmax_forward(const DLTensor* x, const DLTensor* y,
                                         const dlk_softmax_params* params,
                                         const dlk_launch* launch);
DLK_API dlk_status_t dlk_log_softmax_forward(const DLTensor* x, const DLTensor* y,
                                             const dlk_softmax_params* params,
                                             const dlk_launch* launch);

/* Gradients with respect to x, from the forward result y; mask and causal are not needed for them
 * and ignored. An element that was left out has y = 0 (log: -inf): wherever y is that, the gradient
 * is 0 and dy is not looked at.
 *
 *     softmax      dx = scale y (dy - sum_j dy_j y_j)
 *     log_softmax  dx = scale (dy - exp(y) sum_j dy_j)
 */
DLK_API dlk_status_t dlk_softmax_backward(const DLTensor* dy, const DLTensor* y, const DLTensor* dx,
                                          const dlk_softmax_params* params,
                                          const dlk_launch* launch);
DLK_API dlk_status_t dlk_log_softmax_backward(const DLTensor* dy, const DLTensor* y,
                                              const DLTensor* dx, const dlk_softmax_params* params,
                                              const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_SOFTMAX_H_ */
