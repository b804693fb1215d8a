/* Element-wise arithmetic with broadcasting, and the way through memory for kernels of the caller's
 * own. */
#ifndef DLKERN_ELEMENTWISE_H_
#define DLKERN_ELEMENTWISE_H_

#include <dlkern/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_add_params {
  uint32_t struct_size;
  uint32_t reserved;
  double alpha;
  double beta;
} dlk_add_params;
#define DLK_ADD_PARAMS_INIT {sizeof(dlk_add_params), 0, 1.0, 1.0}

/* y = alpha a + beta b; a summand whose factor is 0 does not count, NaN neither. Shapes are broadcast as in NumPy: aligned at the last dimension, where an
 * extent is 1 or missing that tensor is repeated; y has the broadcast shape.
 * dtypes: float64, float32, float16, bfloat16 (16-bit types are added in float32), int32, int64
 * (alpha and beta whole numbers, results modulo 2^32 or 2^64); a, b and y have the same. Any
 * strides. y may be a or b itself. */
DLK_API dlk_status_t dlk_add(const DLTensor* a, const DLTensor* b, const DLTensor* y,
                             const dlk_add_params* params, const dlk_launch* launch);

/* Gradient of one summand with factor 1: da = dy summed over the dimensions in which a was repeated.
 * da has the shape of a, which must broadcast to dy's. dtypes: float64, float32, float16, bfloat16
 * (16-bit types are summed in float32), the same for both. da overlaps dy nowhere, or is dy itself
 * where nothing was repeated. */
DLK_API dlk_status_t dlk_add_backward(const DLTensor* dy, const DLTensor* da,
                                      const dlk_launch* launch);

#define DLK_WALK_TENSORS 16
#define DLK_WALK_DIMS 8

/* Tensors walked together: element (i_0, i_1, ...) of tensor t lies sum_d i_d strides[t][d] elements
 * behind its first one. */
typedef struct dlk_walk {
  uint32_t struct_size;
  int32_t ndim; /* 0: a single element, or none */
  int64_t numel;
  int64_t shape[DLK_WALK_DIMS];
  int64_t strides[DLK_WALK_TENSORS][DLK_WALK_DIMS]; /* in elements; 0 where a tensor is repeated */
} dlk_walk;

/* How a kernel of the caller's own is to walk `outputs` + `inputs` tensors, the outputs first: over
 * the shape that the inputs broadcast to and that all outputs have, in the order in which the first
 * output lies in memory, with dimensions merged where all tensors allow it. Contiguous tensors give
 * one dimension of stride 1.
 * Checks what dlk_add checks: one device, shapes, outputs that overlap neither each other nor an
 * input, but for an output that is an input itself. dtypes: float64, float32, float16, bfloat16,
 * float8 e4m3fn and e5m2, integers of 8 to 64 bits, bool. op and names are those that messages use. */
DLK_API dlk_status_t dlk_elementwise_walk(const char* op, int32_t outputs, int32_t inputs,
                                          const DLTensor* const* tensors, const char* const* names,
                                          dlk_walk* walk, const dlk_launch* launch);

/* Launches a kernel of the caller's own on the GPU of this index, in one dimension. kernel is a
 * CUfunction, a CUkernel or a hipFunction_t; params has the addresses of its arguments, in order. Of
 * launch the stream counts. */
DLK_API dlk_status_t dlk_elementwise_launch(void* kernel, int32_t device, uint32_t blocks,
                                            uint32_t threads, void** params,
                                            const dlk_launch* launch);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_ELEMENTWISE_H_ */
