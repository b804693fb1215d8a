/* Dropout, alone or with a residual added to it.
 *
 *     y_i = x_i / (1 - p) where element i is kept, else 0; kept with probability 1 - p
 *     with a residual:  y_i = residual_i + the same, rounded once
 *
 * Whether element i is kept depends on rng and on i alone, its index in row-major order: not on
 * strides, dtype or device. It has 32 random bits, and is dropped where they are below p 2^32
 * (rounded). The upper half of them is half-word i % 8 (even ones are the lower halves of words) of
 * the block of Philox4x32-10 with key = seed and counter = (i / 8, offset), 64 bits each, low word
 * first; the lower half is the same half-word of the block of counter (i / 8 + 2^63, offset), which
 * is needed once in 2^16 times. A dropped element is 0 whatever it was, NaN too; p = 1 drops all,
 * p = 0 none.
 *
 * rng: int64 or uint64 [2] = {seed, offset} in the memory of x's device. It is read when the kernel
 * runs, so that a captured graph draws another mask in each replay if the caller changes the offset
 * between them. The backward call is given the same two values and makes the same mask again.
 *
 * dtypes: float64, float32, float16, bfloat16. Any shape, any strides. y may be x or residual itself.
 *
 * Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
 */
#ifndef DLKERN_DROPOUT_H_
#define DLKERN_DROPOUT_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_dropout_params {
  uint32_t struct_size;
  uint32_t reserved;
  double p; /* probability of an element to be dropped, in [0, 1] */
} dlk_dropout_params;
#define DLK_DROPOUT_PARAMS_INIT {sizeof(dlk_dropout_params), 0, 0.5}

/* x, y, residual (optional): same shape and dtype. */
DLK_API dlk_status_t dlk_dropout_forward(const DLTensor* x, const DLTensor* rng,
                                         const DLTensor* residual, const DLTensor* y,
                                         const dlk_dropout_params* params,
                                         const dlk_launch* launch);

/* dx_i = dy_i / (1 - p) where the forward call kept element i, else 0. dx may be dy itself. The
 * gradient of a residual is dy. */
DLK_API dlk_status_t dlk_dropout_backward(const DLTensor* dy, const DLTensor* rng,
                                          const DLTensor* dx, const dlk_dropout_params* params,
                                          const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_DROPOUT_H_ */
