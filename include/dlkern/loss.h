/* Losses and their gradients. Reduction NONE gives the losses of all elements (rows), SUM their sum;
 * MEAN is described with each.
 *
 * Cross entropy of logits against class labels
 *
 * For a row of C logits x with label t, class weights w (1 where absent), smoothing e and z:
 *
 *     logp = x - logsumexp(x)
 *     loss = -(1 - e) w_t logp_t - e / C * sum_c w_c logp_c + z logsumexp(x)^2
 *
 * The last term (z-loss, z = 0 by default) keeps the logits from drifting.
 * Rows whose label is ignore_index have loss 0. MEAN is the sum divided by the sum of w_t over the
 * rows that are not ignored (NaN where all are ignored). A row that is all -inf, or holds +inf or
 * NaN, has loss NaN.
 *
 * A label that is neither ignore_index nor in [0, C): on the CPU, and on a GPU in debug mode,
 * DLK_INVALID_ARGUMENT with nothing written; else, on a GPU, that row's loss and gradient are NaN
 * (its weight counts as 0) and nothing out of bounds is read.
 *
 * logits: [C], [N, C] or [N, C, d1, ...], float64, float32, float16 or bfloat16 (16-bit logits are
 * computed in float32). labels: [], [N] or [N, d1, ...], int32 or int64. weight, loss and dloss
 * have the dtype of logits, or float32 where logits are 16-bit. Any strides.
 *
 * Labels may be probabilities t_c of the classes instead: the shape of logits, and their dtype or
 * float32 where logits are 16-bit. With them
 *
 *     loss = -sum_c q_c logp_c + z logsumexp(x)^2,  q_c = w_c ((1 - e) t_c + e / C)
 *
 * A class whose q_c is 0 adds nothing, even where its logit is -inf. MEAN divides by the number of
 * rows, and ignore_index does not apply. That the t_c of a row are not negative, and 1 together, is
 * not checked.
 *
 * Negative log-likelihood: loss = -w_t logp_t for log-probabilities in place of logits, all else as
 * above.
 *
 * Element-wise losses of predictions x against targets t, d = x - t:
 *
 *     MSE                             d^2
 *     L1                              |d|
 *     SMOOTH_L1                       d^2 / (2 b) where |d| < b, else |d| - b / 2;  b = threshold
 *     HUBER                           d^2 / 2 where |d| <= b, else b (|d| - b / 2)
 *     BINARY_CROSS_ENTROPY_WITH_LOGITS  -w [p t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))]
 *     KL_DIV                          t (log t - x), 0 where t is 0: x is a logarithm
 *     KL_DIV_LOG_TARGET               e^t (t - x): both are
 *
 * MEAN divides by the number of elements (NaN where there are none). All tensors have one dtype
 * (float64, float32, float16, bfloat16; 16-bit ones are computed in float32), but a loss that is one
 * number, and its gradient, may be float32 beside 16-bit x. Any strides.
 */
#ifndef DLKERN_LOSS_H_
#define DLKERN_LOSS_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_cross_entropy_params {
  uint32_t struct_size;
  int32_t reduction; /* dlk_reduction */
  int64_t ignore_index;
  double label_smoothing; /* in [0, 1] */
  double z_loss;          /* z, finite and not negative */
} dlk_cross_entropy_params;
#define DLK_CROSS_ENTROPY_PARAMS_INIT \
  {sizeof(dlk_cross_entropy_params), DLK_REDUCTION_MEAN, -100, 0.0, 0.0}

/* weight (optional): [C]. loss: the shape of logits without the classes for reduction NONE, else
 * []. */
DLK_API dlk_status_t dlk_cross_entropy_forward(const DLTensor* logits, const DLTensor* labels,
                                               const DLTensor* weight, const DLTensor* loss,
                                               const dlk_cross_entropy_params* params,
                                               const dlk_launch* launch);

/* dlogits_c = s * [(1 - e) w_t (p_c - (c == t)) + e / C * (p_c sum_k w_k - w_c)
 *                  + 2 z logsumexp(x) p_c], p = softmax(x);
 * exactly 0 in ignored rows. s is the row's dloss for reduction NONE, dloss for SUM, and for MEAN
 * dloss over what the sum of the losses is divided by. dloss has the shape of loss. dlogits may be
 * logits itself. With probabilities as labels
 *
 *     dlogits_c = s * [p_c sum_k q_k - q_c + 2 z logsumexp(x) p_c]
 *
 * There is no gradient with respect to those. */
DLK_API dlk_status_t dlk_cross_entropy_backward(const DLTensor* dloss, const DLTensor* logits,
                                                const DLTensor* labels, const DLTensor* weight,
                                                const DLTensor* dlogits,
                                                const dlk_cross_entropy_params* params,
                                                const dlk_launch* launch);

/* Both at once, for what a training step needs: logits are read once. dloss (optional): 1 where
 * absent. dlogits may be logits itself. */
DLK_API dlk_status_t dlk_cross_entropy_forward_backward(
    const DLTensor* logits, const DLTensor* labels, const DLTensor* weight, const DLTensor* dloss,
    const DLTensor* loss, const DLTensor* dlogits, const dlk_cross_entropy_params* params,
    const dlk_launch* launch);

typedef struct dlk_nll_loss_params {
  uint32_t struct_size;
  int32_t reduction; /* dlk_reduction */
  int64_t ignore_index;
} dlk_nll_loss_params;
#define DLK_NLL_LOSS_PARAMS_INIT {sizeof(dlk_nll_loss_params), DLK_REDUCTION_MEAN, -100}

/* Tensors as for dlk_cross_entropy_forward. */
DLK_API dlk_status_t dlk_nll_loss_forward(const DLTensor* log_p, const DLTensor* labels,
                                          const DLTensor* weight, const DLTensor* loss,
                                          const dlk_nll_loss_params* params,
                                          const dlk_launch* launch);
/* dlog_p_c = -s w_t where c is the label, else 0. Of log_p only shape and dtype matter; dlog_p may be
 * log_p itself. */
DLK_API dlk_status_t dlk_nll_loss_backward(const DLTensor* dloss, const DLTensor* log_p,
                                           const DLTensor* labels, const DLTensor* weight,
                                           const DLTensor* dlog_p,
                                           const dlk_nll_loss_params* params,
                                           const dlk_launch* launch);

typedef enum dlk_loss_kind {
  DLK_LOSS_MSE = 0,
  DLK_LOSS_L1 = 1,
  DLK_LOSS_SMOOTH_L1 = 2,
  DLK_LOSS_HUBER = 3,
  DLK_LOSS_BINARY_CROSS_ENTROPY_WITH_LOGITS = 4,
  DLK_LOSS_KL_DIV = 5,
  DLK_LOSS_KL_DIV_LOG_TARGET = 6
} dlk_loss_kind;

typedef struct dlk_loss_params {
  uint32_t struct_size;
  int32_t kind;      /* dlk_loss_kind */
  int32_t reduction; /* dlk_reduction */
  int32_t reserved;
  double threshold; /* of SMOOTH_L1 (not negative; 0: as L1) and HUBER (positive); finite */
} dlk_loss_params;
#define DLK_LOSS_PARAMS_INIT {sizeof(dlk_loss_params), DLK_LOSS_MSE, DLK_REDUCTION_MEAN, 0, 1.0}

/* x, target: same shape and dtype. weight (w) and pos_weight (p): of binary cross entropy, optional,
 * with a shape that broadcasts to x's. loss: x's shape for reduction NONE, else []. */
DLK_API dlk_status_t dlk_loss_forward(const DLTensor* x, const DLTensor* target,
                                      const DLTensor* weight, const DLTensor* pos_weight,
                                      const DLTensor* loss, const dlk_loss_params* params,
                                      const dlk_launch* launch);
/* Gradient with respect to x; of MSE, L1, SMOOTH_L1 and HUBER that with respect to the target is its
 * negative. dloss has the shape of loss. dx may be x or target itself, and for reduction NONE dloss. */
DLK_API dlk_status_t dlk_loss_backward(const DLTensor* dloss, const DLTensor* x,
                                       const DLTensor* target, const DLTensor* weight,
                                       const DLTensor* pos_weight, const DLTensor* dx,
                                       const dlk_loss_params* params, const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_LOSS_H_ */
