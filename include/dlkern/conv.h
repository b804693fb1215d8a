/* Convolution (cross-correlation, as in all frameworks) over 1, 2 or 3 spatial dimensions, its
 * gradients, and the transposed convolution, which is the input gradient with the roles swapped.
 *
 *     y[n, k, o] = bias[k] + sum_{c, t} x[n, g C/G + c, o * stride - pad_begin + t * dilation]
 *                                       * weight[k, c, t]          g = the group of k
 *
 * Positions outside x count as zeros. G = groups divides both channel counts.
 *
 *     DLK_LAYOUT_NCHW   x [N, C, spatial...]   weight [K, C/G, taps...]   y [N, K, spatial...]
 *     DLK_LAYOUT_NHWC   x [N, spatial..., C]   weight [K, taps..., C/G]   y [N, spatial..., K]
 *
 * The transposed convolution takes x with C_in channels and weight [C_in, C_out/G, taps...]
 * (NHWC: [C_in, taps..., C_out/G]).
 *
 * dtypes: float64, float32, float16, bfloat16, the same for all tensors of a call; 16-bit products
 * are summed in float32. dlk_scaled_conv has float8 and int8. Any strides. Outputs overlap no input.
 * Empty batches and channels are valid: a sum over nothing is the bias, or zero. Where a weight is NaN
 * or infinite, results whose taps reach outside x may be NaN there.
 *
 * float32 with DLK_PRECISION_IEEE: products are exact and sums float32. Compute capability 9.0 takes
 * large problems by three bfloat16 planes of each operand, with at most twice the errors of
 * multiply-adds; where an operand has elements that are infinite, NaN, beyond bfloat16's range or other
 * than zero below 2^-100, multiply-adds follow, which take several times as long. With
 * DLK_PRECISION_TF32 gradients of weights, and what else the tf32 kernels do not take, are computed by
 * two planes, more exactly than by tf32.
 */
#ifndef DLKERN_CONV_H_
#define DLKERN_CONV_H_

#include <dlkern/activation.h>
#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Arrays have one entry per spatial dimension, in the tensor's order; further entries are ignored. */
typedef struct dlk_conv_params {
  uint32_t struct_size;
  int32_t layout;       /* dlk_layout */
  int32_t padding_mode; /* dlk_padding_mode */
  int32_t groups;       /* >= 1 */
  int32_t precision;    /* dlk_precision, for float32 */
  int32_t accumulate;   /* backward_weight: add to dweight and dbias instead of overwriting them */
  int32_t stride[3];    /* >= 1 */
  int32_t dilation[3];  /* >= 1 */
  int32_t pad_begin[3]; /* >= 0 */
  int32_t pad_end[3];   /* >= 0 */
  /* Transposed only: added to the output extents, 0 <= output_padding < max(stride, dilation). With
   * DLK_PADDING_SAME the output extent is extent * stride, and output_padding 0. */
  int32_t output_padding[3];
} dlk_conv_params;
#define DLK_CONV_PARAMS_INIT \
  {sizeof(dlk_conv_params),  \
   DLK_LAYOUT_NCHW,          \
   DLK_PADDING_EXPLICIT,     \
   1,                        \
   DLK_PRECISION_IEEE,       \
   0,                        \
   {1, 1, 1},                \
   {1, 1, 1},                \
   {0, 0, 0},                \
   {0, 0, 0},                \
   {0, 0, 0}}

/* The shape of y (x.ndim entries are written to shape):
 *     extent = (x extent + pad_begin + pad_end - dilation * (taps - 1) - 1) / stride + 1
 * An extent below 1 is DLK_INVALID_ARGUMENT. dtypes are not looked at. */
DLK_API dlk_status_t dlk_conv_output_shape(const DLTensor* x, const DLTensor* weight,
                                           const dlk_conv_params* params, int64_t* shape);
/* The shape of the transposed convolution's y:
 *     extent = (x extent - 1) * stride - pad_begin - pad_end + dilation * (taps - 1) + 1
 *              + output_padding */
DLK_API dlk_status_t dlk_conv_transpose_output_shape(const DLTensor* x, const DLTensor* weight,
                                                     const dlk_conv_params* params, int64_t* shape);

/* bias: [K] or NULL. */
DLK_API dlk_status_t dlk_conv_forward(const DLTensor* x, const DLTensor* weight,
                                      const DLTensor* bias, const DLTensor* y,
                                      const dlk_conv_params* params, const dlk_launch* launch);
/* dx has the shape of x, which decides between the extents that give the same y. */
DLK_API dlk_status_t dlk_conv_backward_input(const DLTensor* dy, const DLTensor* weight,
                                             const DLTensor* dx, const dlk_conv_params* params,
                                             const dlk_launch* launch);
/* dweight has the shape of weight; dbias: [K] or NULL, the sum of dy over batch and positions. */
DLK_API dlk_status_t dlk_conv_backward_weight(const DLTensor* dy, const DLTensor* x,
                                              const DLTensor* dweight, const DLTensor* dbias,
                                              const dlk_conv_params* params,
                                              const dlk_launch* launch);

/* bias: [C_out] or NULL. */
DLK_API dlk_status_t dlk_conv_transpose_forward(const DLTensor* x, const DLTensor* weight,
                                                const DLTensor* bias, const DLTensor* y,
                                                const dlk_conv_params* params,
                                                const dlk_launch* launch);
DLK_API dlk_status_t dlk_conv_transpose_backward_input(const DLTensor* dy, const DLTensor* weight,
                                                       const DLTensor* dx,
                                                       const dlk_conv_params* params,
                                                       const dlk_launch* launch);
DLK_API dlk_status_t dlk_conv_transpose_backward_weight(const DLTensor* dy, const DLTensor* x,
                                                        const DLTensor* dweight,
                                                        const DLTensor* dbias,
                                                        const dlk_conv_params* params,
                                                        const dlk_launch* launch);

typedef struct dlk_conv_bias_act_params {
  uint32_t struct_size;
  int32_t activation; /* dlk_activation */
  double alpha;       /* of the activation, see activation.h */
  double threshold;
  dlk_conv_params conv; /* accumulate is not used */
} dlk_conv_bias_act_params;
#define DLK_CONV_BIAS_ACT_PARAMS_INIT                     \
  {sizeof(dlk_conv_bias_act_params), DLK_ACTIVATION_NONE, \
   DLK_ACTIVATION_ALPHA(DLK_ACTIVATION_NONE), DLK_ACTIVATION_THRESHOLD, DLK_CONV_PARAMS_INIT}

/* Convolutions and what follows their sums, with k the channels of y:
 *
 *     preactivation = scale[k] * sum + bias[k] + residual,  y = activation(preactivation)
 *
 * in this order, which is that of batch norm in inference (scale = weight * rstd,
 * bias = bias - mean * scale) and of a residual network's blocks; of a linear layer the residual is
 * added behind the activation. mean and var are the statistics of y that dlk_batch_norm_training_given
 * takes: of y as it is stored, over batch and positions, var divided by their number; from the
 * deviations in parts of the positions, merged by Chan's formula in a fixed order.
 *
 * All tensors but x, weight and y may be NULL. scale, bias: [K], both of the dtype of x or of the one
 * that is summed in. residual: like y. preactivation: an output like y. mean, var: outputs [K], both or
 * neither, of the type that is summed in. Outputs overlap neither inputs nor each other. Results are
 * rounded once, from the sums; where no kernel of a GPU does what is asked for, y is stored and read
 * again, and 16-bit sums are rounded before the rest as well (dlk_explain_last then says
 * "separate_passes"). */
DLK_API dlk_status_t dlk_conv_bias_act_forward(const DLTensor* x, const DLTensor* weight,
                                               const DLTensor* scale, const DLTensor* bias,
                                               const DLTensor* residual, const DLTensor* y,
                                               const DLTensor* preactivation, const DLTensor* mean,
                                               const DLTensor* var,
                                               const dlk_conv_bias_act_params* params,
                                               const dlk_launch* launch);
DLK_API dlk_status_t dlk_conv_transpose_bias_act_forward(
    const DLTensor* x, const DLTensor* weight, const DLTensor* scale, const DLTensor* bias,
    const DLTensor* residual, const DLTensor* y, const DLTensor* preactivation,
    const DLTensor* mean, const DLTensor* var, const dlk_conv_bias_act_params* params,
    const dlk_launch* launch);

typedef struct dlk_scaled_conv_params {
  uint32_t struct_size;
  int32_t activation; /* dlk_activation */
  double alpha;       /* of the activation, see activation.h */
  double threshold;
  dlk_conv_params conv; /* precision and accumulate are not used */
} dlk_scaled_conv_params;
#define DLK_SCALED_CONV_PARAMS_INIT                                                                \
  {sizeof(dlk_scaled_conv_params), DLK_ACTIVATION_NONE, DLK_ACTIVATION_ALPHA(DLK_ACTIVATION_NONE), \
   DLK_ACTIVATION_THRESHOLD, DLK_CONV_PARAMS_INIT}

/* The forward convolution of 8-bit numbers with factors that undo their quantisation. There are no
 * zero points: padding is the number 0, and so is the code 0.
 *
 *     out[n, k, o] = activation(scale_x scale_weight[k] sum_{c, t} x weight + bias[k])
 *     y = out * scale_out,    amax = max |out|  (NaN where any element of out is)
 *
 * x and weight: both of float8 (e4m3fn and e5m2 in any mixture), whose products are summed in
 * float32, or both int8, summed in int32, beyond which sums wrap around. On tensor cores of compute
 * capability 9.0 about 14 bits are kept in sums of 128 float8 products; those are added in float32.
 * scale_x (optional): one float32. scale_weight (optional): one float32, [1], or one for each output
 * channel, [K]. bias (optional) [K]: float32, float16 or bfloat16. y, scale_out, amax: as in
 * dlk_scaled_matmul (gemm.h). y and amax overlap no input. Shapes are those of dlk_conv_forward. */
DLK_API dlk_status_t dlk_scaled_conv(const DLTensor* x, const DLTensor* weight,
                                     const DLTensor* scale_x, const DLTensor* scale_weight,
                                     const DLTensor* bias, const DLTensor* scale_out,
                                     const DLTensor* y, const DLTensor* amax,
                                     const dlk_scaled_conv_params* params,
                                     const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_CONV_H_ */
