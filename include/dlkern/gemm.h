/* Matrix products and fully-connected layers.
 *
 * dtypes: float64, float32, float16, bfloat16; dlk_scaled_matmul has float8 and int8 operands, and
 * dlk_grouped_matmul takes all of them.
 * Products are summed in float32 (float64 for float64, int32 for int8) and rounded once, to the
 * dtype of the output, which may be any of the four. Any strides of inputs and outputs; a transposed
 * matrix is a view. A sum over nothing (K = 0) is 0.
 * precision: with DLK_PRECISION_TF32 float32 operands may be rounded to tf32, where there are tensor
 * cores for that; elsewhere products are computed in full float32 all the same. With
 * DLK_PRECISION_IEEE the tensor cores of compute capability 9.0 compute large float32 products from
 * three bfloat16 planes of each operand, with at most twice the errors of multiply-adds; where an
 * operand holds infinities, NaN, or values beyond 3.3e38 or below 1e-30, by multiply-adds.
 * float8: tensor cores of compute capability 9.0 keep about 14 bits in sums of 128 of K; those are
 * added in float32.
 * Workspace: on a GPU any product may want one (dlk_launch), for operands that are gathered first and
 * for long sums that are computed in parts; dlk_explain_last() tells how much.
 * batch_invariant: not 0: a row of the result has the same bits however many rows there are, and
 * wherever among them it lies. That may cost speed. Without it, a row's bits may depend on how many
 * rows and batch items there are, which decides how long sums are cut into parts; not on their values,
 * but for the float32 products above.
 */
#ifndef DLKERN_GEMM_H_
#define DLKERN_GEMM_H_

#include <dlkern/activation.h>
#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_matmul_params {
  uint32_t struct_size;
  int32_t precision; /* dlk_precision */
  int32_t batch_invariant;
  int32_t reserved;
  double alpha;
  double beta; /* of c; without c it is not used */
} dlk_matmul_params;
#define DLK_MATMUL_PARAMS_INIT {sizeof(dlk_matmul_params), DLK_PRECISION_IEEE, 0, 0, 1.0, 1.0}

/* y = alpha a b + beta c
 *
 * a [..., M, K], b [..., K, N], y [..., M, N]. Batch dimensions broadcast as in NumPy, and so does
 * c to the shape of y. A vector a [K] is a row and b [K] a column; y then lacks that dimension.
 * a, b: same dtype. c (optional): dtype of y or of a. y may be c itself; else it overlaps no input.
 * beta = 0: c is not read. alpha = 0: a and b are not read. */
DLK_API dlk_status_t dlk_matmul(const DLTensor* a, const DLTensor* b, const DLTensor* c,
                                const DLTensor* y, const dlk_matmul_params* params,
                                const dlk_launch* launch);

/* Gradients of y = alpha a b: da = alpha dy b^T and db = alpha a^T dy, each of the shape of its
 * operand and summed over the batch dimensions along which that was broadcast. Where a or b is a
 * vector, so is its gradient. params: precision and alpha; batch_invariant of da. */
DLK_API dlk_status_t dlk_matmul_backward_a(const DLTensor* dy, const DLTensor* b,
                                           const DLTensor* da, const dlk_matmul_params* params,
                                           const dlk_launch* launch);
DLK_API dlk_status_t dlk_matmul_backward_b(const DLTensor* dy, const DLTensor* a,
                                           const DLTensor* db, const dlk_matmul_params* params,
                                           const dlk_launch* launch);

typedef struct dlk_linear_params {
  uint32_t struct_size;
  int32_t precision;  /* dlk_precision */
  int32_t activation; /* dlk_activation */
  int32_t batch_invariant;
  double alpha; /* of the activation, see activation.h */
  double threshold;
} dlk_linear_params;
#define DLK_LINEAR_PARAMS_INIT                \
  {sizeof(dlk_linear_params),                 \
   DLK_PRECISION_IEEE,                        \
   DLK_ACTIVATION_NONE,                       \
   0,                                         \
   DLK_ACTIVATION_ALPHA(DLK_ACTIVATION_NONE), \
   DLK_ACTIVATION_THRESHOLD}

/* preactivation = x weight^T + bias,  y = activation(preactivation) + residual
 *
 * x [..., K], weight [N, K], bias [N] (optional), residual (optional) any shape that broadcasts to
 * y, y and preactivation (optional) [..., N]; x has at least one dimension. x, weight, bias: same
 * dtype; residual: dtype of y or of x; y, preactivation: same dtype. y is computed from the
 * preactivation before it is rounded. y may be residual itself; else outputs overlap neither inputs
 * nor each other. */
DLK_API dlk_status_t dlk_linear_forward(const DLTensor* x, const DLTensor* weight,
                                        const DLTensor* bias, const DLTensor* residual,
                                        const DLTensor* y, const DLTensor* preactivation,
                                        const dlk_linear_params* params, const dlk_launch* launch);

typedef struct dlk_linear_backward_params {
  uint32_t struct_size;
  int32_t precision;       /* dlk_precision */
  int32_t accumulate;      /* not 0: backward_weight adds to what dweight and dbias hold */
  int32_t batch_invariant; /* backward_input */
  int32_t activation;      /* backward_input: dlk_activation, of the layer below */
  int32_t reserved;
  double alpha; /* of the activation */
  double threshold;
} dlk_linear_backward_params;
#define DLK_LINEAR_BACKWARD_PARAMS_INIT          \
  {                                              \
      sizeof(dlk_linear_backward_params),        \
      DLK_PRECISION_IEEE,                        \
      0,                                         \
      0,                                         \
      DLK_ACTIVATION_NONE,                       \
      0,                                         \
      DLK_ACTIVATION_ALPHA(DLK_ACTIVATION_NONE), \
      DLK_ACTIVATION_THRESHOLD}

/* dx = (dy weight) * activation'(preactivation)
 *
 * dy [..., N], weight [N, K], preactivation (optional) and dx [..., K]. dy is the gradient of this
 * layer's preactivation, x weight^T + bias. preactivation is of the layer below: x was
 * activation(preactivation), and dx is then the gradient of that layer's preactivation, ready to be
 * its dy. Without preactivation dx = dy weight and the activation must be DLK_ACTIVATION_NONE.
 * preactivation: dtype of dy or of dx. dx overlaps no input. */
DLK_API dlk_status_t dlk_linear_backward_input(const DLTensor* dy, const DLTensor* weight,
                                               const DLTensor* preactivation, const DLTensor* dx,
                                               const dlk_linear_backward_params* params,
                                               const dlk_launch* launch);

/* dweight = dy^T x,  dbias = sum of dy over all but its last dimension (optional)
 *
 * dy [..., N], x [..., K], dweight [N, K], dbias [N]; dbias has the dtype of dweight. */
DLK_API dlk_status_t dlk_linear_backward_weight(const DLTensor* dy, const DLTensor* x,
                                                const DLTensor* dweight, const DLTensor* dbias,
                                                const dlk_linear_backward_params* params,
                                                const dlk_launch* launch);

typedef struct dlk_scaled_matmul_params {
  uint32_t struct_size;
  int32_t activation; /* dlk_activation */
  int32_t batch_invariant;
  int32_t reserved;
  double alpha; /* of the activation, see activation.h */
  double threshold;
} dlk_scaled_matmul_params;
#define DLK_SCALED_MATMUL_PARAMS_INIT                                        \
  {sizeof(dlk_scaled_matmul_params),          DLK_ACTIVATION_NONE,     0, 0, \
   DLK_ACTIVATION_ALPHA(DLK_ACTIVATION_NONE), DLK_ACTIVATION_THRESHOLD}

/* out  = activation(sum_k (a[m, k] scale_a(m, k)) (b[k, n] scale_b(k, n)) + bias[n])
 * y    = out * scale_out,  amax = max |out|  (NaN where any element of out is)
 *
 * a [..., M, K] and b [..., K, N]: both of float8 (e4m3fn and e5m2 in any mixture), or both int8.
 * y [..., M, N]: bfloat16, float16, float32, float8_e4m3fn or float8_e5m2, or for int8 operands int8
 * and, without scales, bias, activation, scale_out and amax, int32: the exact sums (modulo 2^32).
 * A float8 or int8 y is rounded to nearest even; what is beyond the format's largest finite number,
 * infinity too, becomes that number, and NaN stays NaN, or of int8 becomes 0. bias (optional) [N]: float32, float16 or
 * bfloat16. scale_out (optional input) and amax (optional output): one float32, on the device.
 *
 * scale_a, scale_b (optional): float32 factors on the device, strided as they like. With R rows of
 * a (M, or all rows of a where its leading dimensions are merged with M) in place of N for b:
 *
 *     of a               of b               factor
 *     [] or [1]          [] or [1]          of the tensor
 *     [R] or [R, 1]      [N] or [1, N]      of each row of a, column of b
 *     [R, D]             [D, N]             of 128 neighbours along k,      D = ceil(K / 128)
 *     [ceil(R/128), D]   [D, ceil(N/128)]   of blocks of 128 x 128
 *
 * A scale with one element is the tensor's. Where two lines give the same shape it is read as the
 * earlier one. int8 operands have no factors along k. Where b has leading dimensions of its own, or
 * where the strides of a or y do not let the leading dimensions be merged with the rows, only
 * factors of the tensor are supported. y and amax overlap no input. */
DLK_API dlk_status_t dlk_scaled_matmul(const DLTensor* a, const DLTensor* b,
                                       const DLTensor* scale_a, const DLTensor* scale_b,
                                       const DLTensor* bias, const DLTensor* scale_out,
                                       const DLTensor* y, const DLTensor* amax,
                                       const dlk_scaled_matmul_params* params,
                                       const dlk_launch* launch);

typedef struct dlk_grouped_matmul_params {
  uint32_t struct_size;
  int32_t precision; /* dlk_precision */
  int32_t batch_invariant;
  int32_t reserved;
} dlk_grouped_matmul_params;
#define DLK_GROUPED_MATMUL_PARAMS_INIT {sizeof(dlk_grouped_matmul_params), DLK_PRECISION_IEEE, 0, 0}

/* One product for each of G groups that lie one after the other along a packed extent T. Group g has
 * what lies between offsets[g - 1] (0 for the first) and offsets[g]; offsets [G], int32 or int64, on
 * the device.
 *
 * Packed rows:  a [T, K], b [G, K, N], y [T, N]:       y[t] = a[t] b[g] + bias[g] for t in group g;
 *               bias [G, N] (optional). Rows beyond the last offset are not written.
 * Packed depth: a [M, T], b [T, N], y [G, M, N]:       y[g] = a[:, group g] b[group g, :];
 *               sums over nothing for an empty group; no bias.
 *
 * a, b, bias, y: dtypes of dlk_matmul, a, b and bias the same one; or those of dlk_scaled_matmul.
 * Offsets are clamped to [0, T] where they are used and nothing out of bounds is touched; that they
 * do not fall is the caller's word, which debug mode checks: else the results are undefined. y
 * overlaps no input.
 *
 * scale_a, scale_b (optional): of float8 and int8 operands, as in dlk_scaled_matmul. Those of a are
 * of the packed tensor, whatever the groups; those of b are one number or have a dimension for the
 * groups before the others. With D = ceil(K / 128):
 *
 *     of a                of b                   factor
 *     [] or [1]           [], [1] or [1, 1, 1]   of the tensor
 *                         [G] or [G, 1, 1]       of each group
 *     [T] or [T, 1]       [G, N] or [G, 1, N]    of each row of a, column of b
 *     [T, D]              [G, D, N]              of 128 neighbours along k
 *     [ceil(T/128), D]    [G, D, ceil(N/128)]    of blocks of 128 x 128
 *
 * Packed depth: [] or [1]; [M] or [M, 1], and [N] or [1, N]; or for each group [G, 1, 1], and
 * [G, M, 1] or [G, 1, N]. None changes along the packed depth. */
DLK_API dlk_status_t dlk_grouped_matmul(const DLTensor* a, const DLTensor* b,
                                        const DLTensor* offsets, const DLTensor* bias,
                                        const DLTensor* scale_a, const DLTensor* scale_b,
                                        const DLTensor* y, const dlk_grouped_matmul_params* params,
                                        const dlk_launch* launch);

/* Gradients of the product of packed rows. dy [T, N]; da [T, K]: da[t] = dy[t] b[g]^T, rows beyond
 * the last offset not written; db [G, K, N]: db[g] = a[group g, :]^T dy[group g, :]. */
DLK_API dlk_status_t dlk_grouped_matmul_backward_a(const DLTensor* dy, const DLTensor* b,
                                                   const DLTensor* offsets, const DLTensor* da,
                                                   const dlk_grouped_matmul_params* params,
                                                   const dlk_launch* launch);
DLK_API dlk_status_t dlk_grouped_matmul_backward_b(const DLTensor* dy, const DLTensor* a,
                                                   const DLTensor* offsets, const DLTensor* db,
                                                   const dlk_grouped_matmul_params* params,
                                                   const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_GEMM_H_ */
