/* Optimizer steps in place, with the semantics of torch.optim, and what surrounds them in mixed
 * precision: the norm of all gradients, clipping, loss scaling.
 *
 * Everything here takes lists of `count` tensors; item i of each list belongs together, and lists
 * that are documented as optional may be NULL. All of a list's items are updated at once: on a GPU
 * in one launch for every few hundred of them.
 *
 * param: float64, float32, float16 or bfloat16, any shape and strides. grad and the states have
 * param's shape. grad has param's dtype or, beside a 16-bit param, float32; beside a float32 param
 * it may also be float16 or bfloat16. States have param's dtype or, beside a 16-bit param, float32.
 * copy, optional, beside a float32 param: float16 or bfloat16, receives the new param rounded.
 * Dtypes may differ from item to item. All arithmetic is in float32 (float64 for float64); a 16-bit
 * param is rounded once per step. What is written must not overlap anything else.
 *
 * Nothing waits for the device: numbers that change from step to step may lie in its memory.
 */
#ifndef DLKERN_OPTIM_H_
#define DLKERN_OPTIM_H_

#include <dlkern/core.h>
#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of one element each in the memory of param's device, read when the kernel runs. Each is
 * optional. lr, grad_scale and found_inf are float32 or float64. */
typedef struct dlk_step_scalars {
  uint32_t struct_size;
  uint32_t reserved;
  const DLTensor* lr;         /* takes the place of params.lr */
  const DLTensor* step;       /* int32 or int64, takes the place of params.step */
  const DLTensor* grad_scale; /* every gradient is multiplied by it before anything else */
  const DLTensor* found_inf;  /* where it is not 0 nothing is changed */
} dlk_step_scalars;
#define DLK_STEP_SCALARS_INIT {sizeof(dlk_step_scalars), 0, NULL, NULL, NULL, NULL}

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
 * momentum_buffer may be NULL where momentum is 0, and is left alone then. scalars->step is not
 * taken. */
DLK_API dlk_status_t dlk_sgd_step(int64_t count, const DLTensor* const* param,
                                  const DLTensor* const* grad,
                                  const DLTensor* const* momentum_buffer,
                                  const DLTensor* const* copy, const dlk_step_scalars* scalars,
                                  const dlk_sgd_params* params, const dlk_launch* launch);

typedef struct dlk_adamw_params {
  uint32_t struct_size;
  int32_t maximize;
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  int64_t step; /* number of this step, from 1 */
  int32_t l2;   /* Adam instead of AdamW: weight_decay param is added to the gradient */
  int32_t reserved;
} dlk_adamw_params;
#define DLK_ADAMW_PARAMS_INIT {sizeof(dlk_adamw_params), 0, 1e-3, 0.9, 0.999, 1e-8, 1e-2, 1, 0, 0}

/* g = grad  (-grad where maximize is set; + weight_decay param where l2 is), t = number of the step
 * param      = param (1 - lr weight_decay)                                (not where l2 is set)
 * exp_avg    = beta1 exp_avg + (1 - beta1) g
 * exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g^2
 * max_exp_avg_sq = max(max_exp_avg_sq, exp_avg_sq)                  (optional: AMSGrad)
 * param      = param - lr / (1 - beta1^t) exp_avg / (sqrt(v / (1 - beta2^t)) + eps)
 * with v = exp_avg_sq or, where it is given, max_exp_avg_sq. The call does not count the step. */
DLK_API dlk_status_t dlk_adamw_step(int64_t count, const DLTensor* const* param,
                                    const DLTensor* const* grad, const DLTensor* const* exp_avg,
                                    const DLTensor* const* exp_avg_sq,
                                    const DLTensor* const* max_exp_avg_sq,
                                    const DLTensor* const* copy, const dlk_step_scalars* scalars,
                                    const dlk_adamw_params* params, const dlk_launch* launch);

typedef struct dlk_lion_params {
  uint32_t struct_size;
  int32_t maximize;
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
} dlk_lion_params;
#define DLK_LION_PARAMS_INIT {sizeof(dlk_lion_params), 0, 1e-4, 0.9, 0.99, 0.0}

/* g = grad  (-grad where maximize is set)
 * param   = param (1 - lr weight_decay) - lr sign(beta1 exp_avg + (1 - beta1) g)
 * exp_avg = beta2 exp_avg + (1 - beta2) g
 * with sign(0) = 0 and sign(NaN) = NaN. scalars->step is not taken.
 * Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023. */
DLK_API dlk_status_t dlk_lion_step(int64_t count, const DLTensor* const* param,
                                   const DLTensor* const* grad, const DLTensor* const* exp_avg,
                                   const DLTensor* const* copy, const dlk_step_scalars* scalars,
                                   const dlk_lion_params* params, const dlk_launch* launch);

typedef struct dlk_grad_norm_params {
  uint32_t struct_size;
  uint32_t reserved;
  double max_norm; /* of the clipped gradients; infinity: they are not clipped */
  double ord;      /* of the norm: positive; infinity: the largest |grad| */
} dlk_grad_norm_params;
#define DLK_GRAD_NORM_PARAMS_INIT {sizeof(dlk_grad_norm_params), 0, (double)INFINITY, 2.0}

/* The norm of all gradients together, and what a step needs to be told of it:
 *
 * norm       = (sum of |grad|^ord)^(1 / ord) / loss_scale
 * grad_scale = min(1, max_norm / (norm + 1e-6)) / loss_scale
 * found_inf  = 1 where norm is not finite, else 0
 *
 * loss_scale, optional: one float32 or float64 element in the memory of grad's device, read when the
 * kernel runs; the gradients are those of the loss times it. The outputs have one element each, of
 * float32, or float64 where the first gradient is; each may be NULL but for norm. grad: any floating
 * dtypes; powers are summed in float32 within parts of some thousand elements (float64 for float64)
 * and in float64 beyond, in a fixed order. They are not rescaled: where they overflow the norm is
 * infinite. */
DLK_API dlk_status_t dlk_grad_norm(int64_t count, const DLTensor* const* grad,
                                   const DLTensor* loss_scale, const DLTensor* norm,
                                   const DLTensor* grad_scale, const DLTensor* found_inf,
                                   const dlk_grad_norm_params* params, const dlk_launch* launch);

/* grad = grad scale, in place. scale: one float32 or float64 element on grad's device, read when the
 * kernel runs. found_inf, optional, one element of float32 or float64: set to 1 where a result is not
 * finite, else left as it is. */
DLK_API dlk_status_t dlk_scale_grads(int64_t count, const DLTensor* const* grad,
                                     const DLTensor* scale, const DLTensor* found_inf,
                                     const dlk_launch* launch);

typedef struct dlk_loss_scale_params {
  uint32_t struct_size;
  int32_t growth_interval;
  double growth_factor;
  double backoff_factor;
} dlk_loss_scale_params;
#define DLK_LOSS_SCALE_PARAMS_INIT {sizeof(dlk_loss_scale_params), 2000, 2.0, 0.5}

/* After a step, as torch.amp.GradScaler has it: where found_inf is not 0
 *     loss_scale = loss_scale backoff_factor, growth_tracker = 0
 * else growth_tracker is counted up, and when it reaches growth_interval it becomes 0 and
 *     loss_scale = loss_scale growth_factor, unless that is infinite.
 * step, optional, is counted up by 1 where found_inf is 0.
 *
 * One element each: loss_scale and found_inf float32 or float64, growth_tracker and step int32 or
 * int64. */
DLK_API dlk_status_t dlk_update_loss_scale(const DLTensor* loss_scale,
                                           const DLTensor* growth_tracker,
                                           const DLTensor* found_inf, const DLTensor* step,
                                           const dlk_loss_scale_params* params,
                                           const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_OPTIM_H_ */
