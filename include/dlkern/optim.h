/* Optimizer steps on one tensor, in place, with the semantics of torch.optim.
 *
 * param: float64, float32, float16 or bfloat16, any shape and strides. grad and the states have
 * param's shape, and param's dtype or, beside a 16-bit param, float32. All arithmetic is in float32
 * (float64 for float64); a 16-bit param is rounded once per step. Tensors must not overlap.
 */
#ifndef DLKERN_OPTIM_H_
#define DLKERN_OPTIM_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_sgd_params {
  uint32_t struct_size;
  int32_t nesterov; /* wants momentum > 0 and dampening = 0 */
  double lr;
  double momentum;
  double dampening;
  double weight_decay;
  int32_t maximize;
  int32_t first_step; /* momentum_buffer is set to the gradient; its old contents are not used */
} dlk_sgd_params;
#define DLK_SGD_PARAMS_INIT {sizeof(dlk_sgd_params), 0, 1e-3, 0.0, 0.0, 0.0, 0, 0}

/* g = grad + weight_decay param  (-grad where maximize is set)
 * with momentum: buffer = momentum buffer + (1 - dampening) g
 *                g = nesterov ? g + momentum buffer : buffer
 * param = param - lr g
 *
 * momentum_buffer may be NULL where momentum is 0, and is left alone then. */
DLK_API dlk_status_t dlk_sgd_step(const DLTensor* param, const DLTensor* grad,
                                  const DLTensor* momentum_buffer, const dlk_sgd_params* params,
                                  const dlk_launch* launch);

typedef struct dlk_adamw_params {
  uint32_t struct_size;
  int32_t maximize;
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  int64_t step; /* number of this step, from 1; not used where the tensor `step` is given */
} dlk_adamw_params;
#define DLK_ADAMW_PARAMS_INIT {sizeof(dlk_adamw_params), 0, 1e-3, 0.9, 0.999, 1e-8, 1e-2, 1}

/* g = grad  (-grad where maximize is set), t = number of this step
 * param      = param (1 - lr weight_decay)
 * exp_avg    = beta1 exp_avg + (1 - beta1) g
 * exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g^2
 * param      = param - lr / (1 - beta1^t) exp_avg / (sqrt(exp_avg_sq / (1 - beta2^t)) + eps)
 *
 * step, optional: int32 or int64 of one element in the memory of param's device, holding t. It is
 * read when the kernel runs, for steps captured in a graph; the caller counts it up. */
DLK_API dlk_status_t dlk_adamw_step(const DLTensor* param, const DLTensor* grad,
                                    const DLTensor* exp_avg, const DLTensor* exp_avg_sq,
                                    const DLTensor* step, const dlk_adamw_params* params,
                                    const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_OPTIM_H_ */
