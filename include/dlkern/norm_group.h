/* Group and instance normalisation.
 *
 *     y = activation((x - mean) * rstd * weight_c + bias_c),  rstd = 1 / sqrt(variance + eps)
 *
 * with the mean and the biased variance of each sample and group of C / num_groups neighbouring channels
 * (instance_norm: of each sample and channel). What <dlkern/norm.h> says of dtypes, strides, NaN and
 * memory is true here as well. A sample's results do not depend on the other samples.
 */
#ifndef DLKERN_NORM_GROUP_H_
#define DLKERN_NORM_GROUP_H_

#include <dlkern/activation.h>
#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_group_norm_params {
  uint32_t struct_size;
  int32_t layout;     /* dlk_layout: where x's channels lie */
  int64_t num_groups; /* divides C */
  double eps;         /* >= 0 */
  int32_t activation; /* dlk_activation: NONE, RELU or SILU */
} dlk_group_norm_params;
#define DLK_GROUP_NORM_PARAMS_INIT \
  {sizeof(dlk_group_norm_params), DLK_LAYOUT_NCHW, 1, 1e-5, DLK_ACTIVATION_NONE}

/* x, y: [N, C, spatial...] or [N, spatial..., C] of rank 2 to 5. weight, bias (optional): [C].
 * mean, rstd (optional): [N, num_groups], for the backward call. y may be x itself. */
DLK_API dlk_status_t dlk_group_norm_forward(const DLTensor* x, const DLTensor* weight,
                                            const DLTensor* bias, const DLTensor* y,
                                            const DLTensor* mean, const DLTensor* rstd,
                                            const dlk_group_norm_params* params,
                                            const dlk_launch* launch);

/* With xhat = (x - mean) * rstd, dz = dy * activation'(xhat * weight + bias), g = dz * weight and
 * averages over the group:
 *
 *     dx = rstd * (g - avg(g) - xhat * avg(g * xhat)),  dweight_c = sum dz * xhat,  dbias_c = sum dz
 *
 * bias is read where there is an activation. weight, bias, dweight and dbias are optional; dx may
 * be dy or x itself. */
DLK_API dlk_status_t dlk_group_norm_backward(
    const DLTensor* dy, const DLTensor* x, const DLTensor* weight, const DLTensor* bias,
    const DLTensor* mean, const DLTensor* rstd, const DLTensor* dx, const DLTensor* dweight,
    const DLTensor* dbias, const dlk_group_norm_params* params, const dlk_launch* launch);

typedef struct dlk_instance_norm_params {
  uint32_t struct_size;
  int32_t layout;
  double eps;
  double
      momentum; /* weight of the new statistics: running = (1 - momentum) running + momentum new */
  int32_t activation;
} dlk_instance_norm_params;
#define DLK_INSTANCE_NORM_PARAMS_INIT \
  {sizeof(dlk_instance_norm_params), DLK_LAYOUT_NCHW, 1e-5, 0.1, DLK_ACTIVATION_NONE}

/* As dlk_group_norm_forward with a group for each channel: mean, rstd are [N, C]. running_mean and
 * running_var ([C]; both or neither) are updated by the averages over the samples of the mean and of
 * the unbiased variance. Fewer than two values per sample and channel are DLK_INVALID_ARGUMENT. To
 * normalise with running statistics: dlk_batch_norm_inference. */
DLK_API dlk_status_t dlk_instance_norm_forward(const DLTensor* x, const DLTensor* weight,
                                               const DLTensor* bias, const DLTensor* running_mean,
                                               const DLTensor* running_var, const DLTensor* y,
                                               const DLTensor* mean, const DLTensor* rstd,
                                               const dlk_instance_norm_params* params,
                                               const dlk_launch* launch);

/* As dlk_group_norm_backward. */
DLK_API dlk_status_t dlk_instance_norm_backward(
    const DLTensor* dy, const DLTensor* x, const DLTensor* weight, const DLTensor* bias,
    const DLTensor* mean, const DLTensor* rstd, const DLTensor* dx, const DLTensor* dweight,
    const DLTensor* dbias, const dlk_instance_norm_params* params, const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_NORM_GROUP_H_ */
