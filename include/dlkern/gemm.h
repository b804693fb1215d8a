/* Matrix products and fully-connected layers.
 *
 * dtypes: float64, float32, float16, bfloat16. Products are summed in float32 (float64 for float64)
 * and rounded once, to the dtype of the output, which may be any of the four. Any strides of inputs
 * and outputs; a transposed matrix is a view. A sum over nothing (K = 0) is 0. On a GPU a row's
 * bits do not depend on the other rows; on the CPU they may depend on how many there are.
 * precision: float32 products are computed in full float32 for DLK_PRECISION_TF32 too, so far.
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
  double alpha;
  double beta; /* of c; without c it is not used */
} dlk_matmul_params;
#define DLK_MATMUL_PARAMS_INIT {sizeof(dlk_matmul_params), DLK_PRECISION_IEEE, 1.0, 1.0}

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
 * vector, so is its gradient. params: precision and alpha. */
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
  int32_t reserved;
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

/* preactivation = x weight^T + bias,  y = activation(preactivation)
 *
 * x [..., K], weight [N, K], bias [N] (optional), y and preactivation (optional) [..., N]; x has at
 * least one dimension. x, weight, bias: same dtype; y, preactivation: same dtype. y is computed
 * from the preactivation before it is rounded. Outputs overlap neither inputs nor each other. */
DLK_API dlk_status_t dlk_linear_forward(const DLTensor* x, const DLTensor* weight,
                                        const DLTensor* bias, const DLTensor* y,
                                        const DLTensor* preactivation,
                                        const dlk_linear_params* params, const dlk_launch* launch);

typedef struct dlk_linear_backward_params {
  uint32_t struct_size;
  int32_t precision;  /* dlk_precision */
  int32_t accumulate; /* not 0: backward_weight adds to what dweight and dbias hold */
  int32_t reserved;
} dlk_linear_backward_params;
#define DLK_LINEAR_BACKWARD_PARAMS_INIT \
  {sizeof(dlk_linear_backward_params), DLK_PRECISION_IEEE, 0, 0}

/* dx = dy weight;  dy [..., N], weight [N, K], dx [..., K]. dy is the gradient of the
 * preactivation: where there is an activation, dlk_activation_backward comes first. */
DLK_API dlk_status_t dlk_linear_backward_input(const DLTensor* dy, const DLTensor* weight,
                                               const DLTensor* dx,
                                               const dlk_linear_backward_params* params,
                                               const dlk_launch* launch);

/* dweight = dy^T x,  dbias = sum of dy over all but its last dimension (optional)
 *
 * dy [..., N], x [..., K], dweight [N, K], dbias [N]; dbias has the dtype of dweight. On a GPU a
 * long sum for a small dweight wants a workspace (dlk_launch); so may dlk_matmul_backward_b. */
DLK_API dlk_status_t dlk_linear_backward_weight(const DLTensor* dy, const DLTensor* x,
                                                const DLTensor* dweight, const DLTensor* dbias,
                                                const dlk_linear_backward_params* params,
                                                const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_GEMM_H_ */
