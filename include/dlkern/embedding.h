/* Rows of a table chosen by number, the gradient of that, and one-hot vectors.
 *
 * ids: int32 or int64, any shape, any strides; 0 <= id < V. Where one is not, nothing out of bounds is
 * read: on the CPU, and on a GPU in debug mode, the call fails; otherwise its row of y is NaN, it adds
 * nothing to dweight, and its one-hot vector is 0.
 *
 * dtypes: float64, float32, float16, bfloat16. Any strides.
 */
#ifndef DLKERN_EMBEDDING_H_
#define DLKERN_EMBEDDING_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y[i, :] = weight[ids[i], :]; weight is [V, D], y has the shape of ids and then D. */
DLK_API dlk_status_t dlk_embedding_forward(const DLTensor* ids, const DLTensor* weight,
                                           const DLTensor* y, const dlk_launch* launch);

typedef struct dlk_embedding_params {
  uint32_t struct_size;
  int32_t accumulate;    /* add to dweight, in place of writing it */
  int64_t padding_idx;   /* a row that gets no gradient; -1: none */
  int32_t scale_by_freq; /* divide each row's gradient by the number of its ids */
  int32_t reserved;
} dlk_embedding_params;
#define DLK_EMBEDDING_PARAMS_INIT {sizeof(dlk_embedding_params), 0, -1, 0, 0}

/* dweight[v, :] = sum of dy[i, :] over all i with ids[i] = v
 *
 * dy is as y above; dweight is [V, D], of dy's dtype or, beside 16-bit dy, float32. Sums are kept in
 * float32 (float64 for float64), in the order of i in pieces of 64; a row's bits depend on its own
 * dy alone. At most 2^31 - 1 ids and rows. On a GPU the ids are sorted first: the workspace takes
 * 24 bytes for each id and the counts of the sort, 4 for each row, and those of 2 rows of sums for
 * 64 ids. */
DLK_API dlk_status_t dlk_embedding_backward(const DLTensor* dy, const DLTensor* ids,
                                            const DLTensor* dweight,
                                            const dlk_embedding_params* params,
                                            const dlk_launch* launch);

/* y[i, c] = 1 where c = ids[i], else 0. y has the shape of ids and then the number of classes, and any
 * dtype. */
DLK_API dlk_status_t dlk_one_hot(const DLTensor* ids, const DLTensor* y, const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_EMBEDDING_H_ */
