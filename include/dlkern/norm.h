/* Batch, layer and RMS normalisation.
 *
 *     batch_norm   y = (x - mean_c) * rstd_c * weight_c + bias_c      per channel c
 *     layer_norm   y = (x - mean_r) * rstd_r * weight_j + bias_j      per row r, element j
 *     rms_norm     y = x * rstd_r * weight_j
 *
 * rstd = 1 / sqrt(variance + eps) with the biased variance (RMS: the mean square). Statistics are
 * computed by stable methods, never as E[x^2] - E[x]^2. NaN and infinities reach the statistics of
 * their channel or row and nothing else.
 *
 * dtypes: x is float64, float32, float16 or bfloat16; y, dy and dx have x's dtype (but for float8 y
 * below). weight, bias and
 * the running statistics have x's dtype, or float32 where x is 16-bit; dweight and dbias likewise,
 * each on its own. Saved statistics have the type that is summed in: float64 for float64, float32
 * for all others. Any strides. Absent weight counts as 1, absent bias as 0. Outputs share no memory
 * with inputs or each other, except where "may be" says so.
 *
 * Results do not depend on the number of threads, nor a row's on the other rows.
 */
#ifndef DLKERN_NORM_H_
#define DLKERN_NORM_H_

#include <dlkern/activation.h>
#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_batch_norm_params {
  uint32_t struct_size;
  int32_t layout; /* dlk_layout: where x's channels lie */
  double eps;     /* >= 0 */
  double
      momentum; /* weight of the new statistics: running = (1 - momentum) running + momentum new */
  int32_t activation; /* dlk_activation: NONE, RELU or SILU, on top of y */
  int32_t cumulative; /* not 0: momentum is 1 / number of batches, which makes a plain average */
} dlk_batch_norm_params;
#define DLK_BATCH_NORM_PARAMS_INIT \
  {sizeof(dlk_batch_norm_params), DLK_LAYOUT_NCHW, 1e-5, 0.1, DLK_ACTIVATION_NONE, 0}

/* Normalises with the statistics of x itself: y = activation(batch_norm(x) + residual).
 *
 * x, y, residual (optional, its dtype that of x): [N, C, spatial...] or [N, spatial..., C] of rank 2
 * to 5. All others: [C]. save_mean and save_rstd receive what dlk_batch_norm_backward needs.
 * running_mean and running_var (both or neither) are updated in place, the variance by the unbiased
 * one. num_batches (optional; int64, rank 0 or [1]; needed for `cumulative`) is counted up by 1.
 * y may be residual. Fewer than two values per channel are DLK_INVALID_ARGUMENT. */
DLK_API dlk_status_t dlk_batch_norm_training(
    const DLTensor* x, const DLTensor* weight, const DLTensor* bias, const DLTensor* residual,
    const DLTensor* running_mean, const DLTensor* running_var, const DLTensor* num_batches,
    const DLTensor* y, const DLTensor* save_mean, const DLTensor* save_rstd,
    const dlk_batch_norm_params* params, const dlk_launch* launch);

/* The same with statistics of x that are known: x is read for y alone. mean and var (the biased one)
 * are [C], of the type that is summed in, e.g. from dlk_conv_bias_act_forward; mean is what
 * dlk_batch_norm_backward takes beside save_rstd. */
DLK_API dlk_status_t dlk_batch_norm_training_given(
    const DLTensor* x, const DLTensor* mean, const DLTensor* var, const DLTensor* weight,
    const DLTensor* bias, const DLTensor* residual, const DLTensor* running_mean,
    const DLTensor* running_var, const DLTensor* num_batches, const DLTensor* y,
    const DLTensor* save_rstd, const dlk_batch_norm_params* params, const dlk_launch* launch);

/* Normalises with given statistics. weight, bias and residual are optional; y may be x or residual
 * itself. */
DLK_API dlk_status_t dlk_batch_norm_inference(const DLTensor* x, const DLTensor* weight,
                                              const DLTensor* bias, const DLTensor* residual,
                                              const DLTensor* running_mean,
                                              const DLTensor* running_var, const DLTensor* y,
                                              const dlk_batch_norm_params* params,
                                              const dlk_launch* launch);

/* Gradient of dlk_batch_norm_training; mean and rstd are what it saved. With M values per channel,
 * xhat = (x - mean) * rstd, and dz the gradient before the activation:
 *
 *     dbias = sum dz,  dweight = sum dz * xhat,  dresidual = dz
 *     dx = weight * rstd * (dz - dbias / M - xhat * dweight / M)
 *
 * dz = dy * activation'(xhat * weight + bias): computed again, for which bias is read. Where a
 * residual was added that is not known: then y, the result of the forward call, is needed, and
 * activation is RELU (dz = y > 0 ? dy : 0) or NONE. weight, bias, y, dweight, dbias and dresidual
 * are optional, dresidual only beside y or with activation NONE. dx may be dy or x itself,
 * dresidual dy. */
DLK_API dlk_status_t dlk_batch_norm_backward(
    const DLTensor* dy, const DLTensor* x, const DLTensor* weight, const DLTensor* bias,
    const DLTensor* y, const DLTensor* mean, const DLTensor* rstd, const DLTensor* dx,
    const DLTensor* dweight, const DLTensor* dbias, const DLTensor* dresidual,
    const dlk_batch_norm_params* params, const dlk_launch* launch);

/* Gradient of dlk_batch_norm_inference, whose statistics are constants: dx = weight * rstd * dz,
 * with rstd from running_var and params->eps. The rest is as above. */
DLK_API dlk_status_t dlk_batch_norm_inference_backward(
    const DLTensor* dy, const DLTensor* x, const DLTensor* weight, const DLTensor* bias,
    const DLTensor* y, const DLTensor* running_mean, const DLTensor* running_var,
    const DLTensor* dx, const DLTensor* dweight, const DLTensor* dbias, const DLTensor* dresidual,
    const dlk_batch_norm_params* params, const dlk_launch* launch);

typedef struct dlk_layer_norm_params {
  uint32_t struct_size;
  int32_t normalized_ndim; /* how many of the last dimensions make a row: 1 to x's rank */
  double eps;              /* >= 0 */
  double weight_offset;    /* added to every element of weight, where there is one */
} dlk_layer_norm_params;
#define DLK_LAYER_NORM_PARAMS_INIT {sizeof(dlk_layer_norm_params), 1, 1e-5, 0.0}

/* Normalises the rows of s = x + residual (x where residual is absent; rounded to x's dtype).
 *
 * x, y: rank >= 1. residual, residual_out (optional; like x): residual_out receives s. weight, bias
 * (optional): the shape of x's last normalized_ndim dimensions. mean, rstd (optional): the shape of
 * the dimensions before them; for the backward call. y and residual_out may each be x or residual.
 *
 * y may also be float8 (e4m3 or e5m2), with
 *
 *     y = result * scale_out,  amax = max |result|  (NaN where any element of it is)
 *
 * rounded to nearest, values beyond the largest finite one to that. scale_out (optional input) and
 * amax (optional output): one float32 each, on the device, beside a float8 y alone. */
DLK_API dlk_status_t dlk_layer_norm_forward(const DLTensor* x, const DLTensor* residual,
                                            const DLTensor* weight, const DLTensor* bias,
                                            const DLTensor* scale_out, const DLTensor* y,
                                            const DLTensor* residual_out, const DLTensor* mean,
                                            const DLTensor* rstd, const DLTensor* amax,
                                            const dlk_layer_norm_params* params,
                                            const dlk_launch* launch);

/* With g = dy * (weight + weight_offset), xhat = (x - mean) * rstd and averages over the row:
 *
 *     dx = rstd * (g - avg(g) - xhat * avg(g * xhat)) + dresidual
 *     dweight = sum_r dy * xhat,  dbias = sum_r dy
 *
 * x is what was normalised: residual_out, where a residual was added. Then dx is the gradient of
 * both terms, and dresidual (optional, like dy) the one that residual_out has from elsewhere.
 * weight, dweight and dbias are optional; dx may be dy, x or dresidual itself. */
DLK_API dlk_status_t dlk_layer_norm_backward(
    const DLTensor* dy, const DLTensor* x, const DLTensor* weight, const DLTensor* mean,
    const DLTensor* rstd, const DLTensor* dresidual, const DLTensor* dx, const DLTensor* dweight,
    const DLTensor* dbias, const dlk_layer_norm_params* params, const dlk_launch* launch);

typedef struct dlk_rms_norm_params {
  uint32_t struct_size;
  int32_t normalized_ndim;
  double eps;
  double weight_offset; /* 1 for models whose weights are kept as their distance from 1 */
} dlk_rms_norm_params;
#define DLK_RMS_NORM_PARAMS_INIT {sizeof(dlk_rms_norm_params), 1, 1e-6, 0.0}

/* As dlk_layer_norm_forward, without mean and bias. */
DLK_API dlk_status_t dlk_rms_norm_forward(const DLTensor* x, const DLTensor* residual,
                                          const DLTensor* weight, const DLTensor* scale_out,
                                          const DLTensor* y, const DLTensor* residual_out,
                                          const DLTensor* rstd, const DLTensor* amax,
                                          const dlk_rms_norm_params* params,
                                          const dlk_launch* launch);

/* dx = rstd * (g - xhat * avg(g * xhat)) + dresidual with xhat = x * rstd; the rest is as for
 * layer_norm. */
DLK_API dlk_status_t dlk_rms_norm_backward(const DLTensor* dy, const DLTensor* x,
                                           const DLTensor* weight, const DLTensor* rstd,
                                           const DLTensor* dresidual, const DLTensor* dx,
                                           const DLTensor* dweight,
                                           const dlk_rms_norm_params* params,
                                           const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_NORM_H_ */
