/* Activations and gated linear units, element by element.
 *
 *     relu(x)       = max(x, 0)
 *     leaky_relu(x) = x > 0 ? x : alpha x
 *     elu(x)        = x > 0 ? x : alpha (e^x - 1)
 *     gelu(x)       = x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2
 *     gelu_tanh(x)  = x (1 + tanh u) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3)
 *     silu(x)       = x sigmoid(x)
 *     sigmoid(x)    = 1 / (1 + e^-x)
 *     tanh(x)
 *     softplus(x)   = alpha x > threshold ? x : log(1 + e^(alpha x)) / alpha
 *     relu6(x)      = min(max(x, 0), 6)
 *     hardswish(x)  = x relu6(x + 3) / 6
 *     hardsigmoid(x) = relu6(x + 3) / 6
 *     mish(x)       = x tanh(log(1 + e^x))
 *     selu(x)       = x > 0 ? s x : s a (e^x - 1), s = 1.05070098735548, a = 1.67326324235437
 *
 * NaN gives NaN; an infinity gives the limit (gelu, silu, mish and hardswish of -inf are 0). Small results of the
 * negative tails are computed without cancellation.
 * dtypes: float64, float32, float16, bfloat16 (16-bit types are computed in float32). Any shape,
 * any strides. y may be x itself; dx may be dy or x itself.
 */
#ifndef DLKERN_ACTIVATION_H_
#define DLKERN_ACTIVATION_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values are append-only. */
typedef enum dlk_activation {
  DLK_ACTIVATION_NONE = 0, /* y = x */
  DLK_ACTIVATION_RELU = 1,
  DLK_ACTIVATION_LEAKY_RELU = 2,
  DLK_ACTIVATION_ELU = 3,
  DLK_ACTIVATION_GELU = 4,
  DLK_ACTIVATION_GELU_TANH = 5,
  DLK_ACTIVATION_SILU = 6,
  DLK_ACTIVATION_SIGMOID = 7,
  DLK_ACTIVATION_TANH = 8,
  DLK_ACTIVATION_SOFTPLUS = 9,
  DLK_ACTIVATION_RELU6 = 10,
  DLK_ACTIVATION_HARDSWISH = 11,
  DLK_ACTIVATION_HARDSIGMOID = 12,
  DLK_ACTIVATION_MISH = 13,
  DLK_ACTIVATION_SELU = 14
} dlk_activation;

/* The usual alpha of each activation: slope of leaky_relu, scale of elu, sharpness of softplus. */
#define DLK_ACTIVATION_ALPHA(kind) ((kind) == DLK_ACTIVATION_LEAKY_RELU ? 0.01 : 1.0)
#define DLK_ACTIVATION_THRESHOLD 20.0

typedef struct dlk_activation_params {
  uint32_t struct_size;
  int32_t kind;     /* dlk_activation */
  double alpha;     /* leaky_relu, elu, softplus (not 0); ignored by the others */
  double threshold; /* softplus; ignored by the others */
} dlk_activation_params;
#define DLK_ACTIVATION_PARAMS_INIT(kind) \
  {sizeof(dlk_activation_params), (kind), DLK_ACTIVATION_ALPHA(kind), DLK_ACTIVATION_THRESHOLD}

/* x, y: same shape and dtype. params == NULL: DLK_ACTIVATION_NONE. */
DLK_API dlk_status_t dlk_activation_forward(const DLTensor* x, const DLTensor* y,
                                            const dlk_activation_params* params,
                                            const dlk_launch* launch);

/* dx = dy * f'(x); x is the input of the forward call. dy, x, dx: same shape and dtype. */
DLK_API dlk_status_t dlk_activation_backward(const DLTensor* dy, const DLTensor* x,
                                             const DLTensor* dx,
                                             const dlk_activation_params* params,
                                             const dlk_launch* launch);

typedef struct dlk_gated_params {
  uint32_t struct_size;
  int32_t kind;      /* of f: NONE, RELU, GELU, GELU_TANH, SILU or SIGMOID */
  int32_t gate_last; /* packed tensors: the gate is the second half, not the first */
  uint32_t reserved;
} dlk_gated_params;
#define DLK_GATED_PARAMS_INIT(kind) {sizeof(dlk_gated_params), (kind), 0, 0}

/* A gated linear unit, y = f(gate) * up: swiglu where f is silu, geglu for gelu, reglu for relu, glu
 * for sigmoid. gate, up, y: same shape and dtype. up == NULL: gate is packed, [..., 2 n], and holds
 * both halves of its last dimension; y is [..., n]. y may be gate or up itself (or that half). */
DLK_API dlk_status_t dlk_gated_forward(const DLTensor* gate, const DLTensor* up, const DLTensor* y,
                                       const dlk_gated_params* params, const dlk_launch* launch);

/* dgate = dy * up * f'(gate), dup = dy * f(gate); gate and up are those of the forward call. All of
 * the same shape and dtype. up == NULL and dup == NULL: gate and dgate are packed, [..., 2 n].
 * Each gradient may be any one of the inputs. */
DLK_API dlk_status_t dlk_gated_backward(const DLTensor* dy, const DLTensor* gate,
                                        const DLTensor* up, const DLTensor* dgate,
                                        const DLTensor* dup, const dlk_gated_params* params,
                                        const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_ACTIVATION_H_ */
