/* Cross entropy of logits against class labels.
 *
 * For a row of C logits x with label t, class weights w (1 where absent), smoothing e and z:
 *
 *     logp = x - logsumexp(x)
 *     loss = -(1 - e) w_t logp_t - e / C * sum_c w_c logp_c + z logsumexp(x)^2
 *
 * The last term (z-loss, z = 0 by default) keeps the logits from drifting.
 * Rows whose label is ignore_index have loss 0. Reduction NONE gives the rows' losses, SUM their
 * sum, MEAN their sum divided by the sum of w_t over the rows that are not ignored (NaN where all
 * are ignored). A row that is all -inf, or holds +inf or NaN, has loss NaN.
 *
 * A label that is neither ignore_index nor in [0, C): on the CPU, and on a GPU in debug mode,
 * DLK_INVALID_ARGUMENT with nothing written; else, on a GPU, that row's loss and gradient are NaN
 * (its weight counts as 0) and nothing out of bounds is read.
 *
 * logits: [C], [N, C] or [N, C, d1, ...], float64, float32, float16 or bfloat16 (16-bit logits are
 * computed in float32). labels: [], [N] or [N, d1, ...], int32 or int64. weight, loss and dloss
 * have the dtype of logits, or float32 where logits are 16-bit. Any strides.
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

/* weight (optional): [C]. loss: the shape of labels for reduction NONE, else []. */
DLK_API dlk_status_t dlk_cross_entropy_forward(const DLTensor* logits, const DLTensor* labels,
                                               const DLTensor* weight, const DLTensor* loss,
                                               const dlk_cross_entropy_params* params,
                                               const dlk_launch* launch);

/* dlogits_c = s * [(1 - e) w_t (p_c - (c == t)) + e / C * (p_c sum_k w_k - w_c)
 *                  + 2 z logsumexp(x) p_c], p = softmax(x);
 * exactly 0 in ignored rows. s is the row's dloss for reduction NONE, dloss for SUM, and dloss over
 * the sum of weights for MEAN. dloss has the shape of loss. dlogits may be logits itself. */
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

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_LOSS_H_ */
