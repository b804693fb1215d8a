/* Rotary position embedding.
 *
 *     (a, b) -> (a cos t - b sin t, b cos t + a sin t),   t = position base^(-2 i / R)
 *
 * for pair i < R / 2 of the first R elements of each head; the others are copied. Pairs are elements i
 * and i + R / 2 (as in GPT-NeoX and Llama) or, interleaved, 2 i and 2 i + 1 (as in GPT-J and RoFormer).
 *
 * x: count >= 1 tensors (queries and keys, say) of rank 4, or 3 without the batch, in one launch. They
 * may differ in the number of heads only. y[i] has the shape of x[i], and may be x[i] itself.
 * dtypes: float64, float32, float16, bfloat16, one for all; computed in float32 (float64 for float64).
 * Any strides.
 *
 * positions (optional): int32 or int64, [S] or [B, S]; default: offset, offset + 1, ...
 * cos, sin (optional, both or none): [P, R / 2], cos t and sin t of each position, of x's dtype or the
 * one it is computed in. Without them they are computed; angles are reduced in float64. A position
 * that has no row in them (never looked up) gives NaN; the call fails on the CPU, and in debug mode.
 *
 * Reference: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
 */
#ifndef DLKERN_ROPE_H_
#define DLKERN_ROPE_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* B: batch, S: sequence, H: heads, D: elements of a head. */
typedef enum dlk_rope_layout { DLK_ROPE_BSHD = 0, DLK_ROPE_BHSD = 1 } dlk_rope_layout;

typedef struct dlk_rope_params {
  uint32_t struct_size;
  int32_t layout; /* a dlk_rope_layout */
  int32_t interleaved;
  int32_t reserved;
  int64_t rotary_dim; /* R: even, at most D; 0: D */
  int64_t offset;     /* of the first position, where positions are not given */
  double base;        /* > 0; not used beside cos and sin */
} dlk_rope_params;
#define DLK_ROPE_PARAMS_INIT {sizeof(dlk_rope_params), DLK_ROPE_BSHD, 0, 0, 0, 0, 10000.0}

DLK_API dlk_status_t dlk_rope_forward(int64_t count, const DLTensor* const* x, const DLTensor* cos,
                                      const DLTensor* sin, const DLTensor* positions,
                                      const DLTensor* const* y, const dlk_rope_params* params,
                                      const dlk_launch* launch);

/* dx = dy rotated back: the same with -t. dx[i] may be dy[i] itself. */
DLK_API dlk_status_t dlk_rope_backward(int64_t count, const DLTensor* const* dy,
                                       const DLTensor* cos, const DLTensor* sin,
                                       const DLTensor* positions, const DLTensor* const* dx,
                                       const dlk_rope_params* params, const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_ROPE_H_ */
