/* Max, average and Lp pooling over 1, 2 or 3 spatial dimensions, and their gradients.
 *
 *     max   y[n, c, o] = max over taps t of x[n, c, o * stride - pad_begin + t * dilation]
 *     avg   y[n, c, o] = sum over taps t of x[n, c, o * stride - pad_begin + t] / divisor
 *     lp    y[n, c, o] = (sum over taps t of |x[n, c, o * stride - pad_begin + t]|^norm)^(1 / norm)
 *
 * Padding is never the maximum and adds nothing to a sum. The divisor is the number of taps inside
 * x and its padding (count_include_pad) or inside x alone, unless divisor_override is given.
 *
 * Adaptive pooling is given the number of windows, `output`, along a dimension; window o of them
 * holds the positions
 *
 *     floor(o * extent / output) <= i < ceil((o + 1) * extent / output)
 *
 *     DLK_LAYOUT_NCHW   x [N, C, spatial...]   y [N, C, windows...]
 *     DLK_LAYOUT_NHWC   x [N, spatial..., C]   y [N, windows..., C]
 *
 * Padding is at most half of a window's span, so that each window holds an element of x. A window
 * with a NaN gives NaN; one of all -inf gives -inf.
 *
 * dtypes: float64, float32, float16, bfloat16, the same for all but the indices; 16-bit values are
 * summed in float32. Any strides. Outputs overlap no input.
 */
#ifndef DLKERN_POOL_H_
#define DLKERN_POOL_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Arrays have one entry per spatial dimension, in the tensor's order; further entries are ignored. */
typedef struct dlk_pool_params {
  uint32_t struct_size;
  int32_t layout;       /* dlk_layout */
  int32_t padding_mode; /* dlk_padding_mode */
  int32_t kernel[3];    /* >= 1; 0: the whole extent of x (global pooling) */
  int32_t stride[3];    /* >= 1; 0: the kernel */
  int32_t dilation[3];  /* >= 1; average and Lp pooling: 1 */
  int32_t pad_begin[3]; /* >= 0 */
  int32_t pad_end[3];   /* >= 0 */
  /* Windows that reach past the end count, if they start inside x or its beginning padding. */
  int32_t ceil_mode;
  int32_t count_include_pad; /* average */
  int64_t divisor_override;  /* average: the divisor of every window; 0: none */
  int32_t output[3];         /* >= 1: adaptive, and kernel, stride, dilation and padding are not
                                looked at for this dimension; 0: it is not */
  double norm;               /* Lp: > 0 and finite */
} dlk_pool_params;
#define DLK_POOL_PARAMS_INIT \
  {sizeof(dlk_pool_params),  \
   DLK_LAYOUT_NCHW,          \
   DLK_PADDING_EXPLICIT,     \
   {0, 0, 0},                \
   {0, 0, 0},                \
   {1, 1, 1},                \
   {0, 0, 0},                \
   {0, 0, 0},                \
   0,                        \
   1,                        \
   0,                        \
   {0, 0, 0},                \
   2}

/* The shape of y (x.ndim entries are written to shape):
 *     windows = (extent + pad_begin + pad_end - dilation * (kernel - 1) - 1) / stride + 1
 * rounded down, or up with ceil_mode. x needs no data. */
DLK_API dlk_status_t dlk_pool_output_shape(const DLTensor* x, const dlk_pool_params* params,
                                           int64_t* shape);

/* indices: y's shape, or NULL: where the maximum lies, which is the first one, or the first NaN.
 *     int64, int32   the position in x's spatial dimensions, flattened in row-major order, as
 *                    (d * H + h) * W + w
 *     uint8          the number of the tap in its window, in row-major order; for windows of at most
 *                    256 taps. An eighth of the bytes, for a gradient that is bound by them. */
DLK_API dlk_status_t dlk_max_pool_forward(const DLTensor* x, const DLTensor* y,
                                          const DLTensor* indices, const dlk_pool_params* params,
                                          const dlk_launch* launch);
/* dx[i] = the sum of dy over the windows whose maximum is i; indices as the forward wrote them. */
DLK_API dlk_status_t dlk_max_pool_backward(const DLTensor* dy, const DLTensor* indices,
                                           const DLTensor* dx, const dlk_pool_params* params,
                                           const dlk_launch* launch);

DLK_API dlk_status_t dlk_avg_pool_forward(const DLTensor* x, const DLTensor* y,
                                          const dlk_pool_params* params, const dlk_launch* launch);
/* dx[i] = the sum of dy / divisor over the windows that hold i. */
DLK_API dlk_status_t dlk_avg_pool_backward(const DLTensor* dy, const DLTensor* dx,
                                           const dlk_pool_params* params, const dlk_launch* launch);

/* A sum of powers that overflows its type gives infinity. */
DLK_API dlk_status_t dlk_lp_pool_forward(const DLTensor* x, const DLTensor* y,
                                         const dlk_pool_params* params, const dlk_launch* launch);
/* dx[i] = sign(x[i]) |x[i]|^(norm - 1) * the sum of dy / y^(norm - 1) over the windows that hold i
 * and whose y is not 0. dx may be x itself. */
DLK_API dlk_status_t dlk_lp_pool_backward(const DLTensor* dy, const DLTensor* x, const DLTensor* y,
                                          const DLTensor* dx, const dlk_pool_params* params,
                                          const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_POOL_H_ */
