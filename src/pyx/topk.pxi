cdef extern from "dlkern/topk.h" nogil:
    ctypedef struct dlk_topk_params:
        uint32_t struct_size
        int32_t axis
        int32_t largest
        int32_t sorted
    dlk_status_t dlk_topk_forward(const DLTensor*, const DLTensor*, const DLTensor*,
                                  const dlk_topk_params*, const dlk_launch*)
    dlk_status_t dlk_topk_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                   const dlk_topk_params*, const dlk_launch*)


def top_k(x, k, axis, bint largest, bint in_order, out, out_indices, stream):
    """(values, indices)."""
    cdef Call call = Call("top_k", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef dlk_topk_params params = dlk_topk_params(
        sizeof(dlk_topk_params), <int32_t>integer(call, "axis", axis, 32), largest, in_order)
    cdef int64_t shape[MAX_DIMS]
    cdef int64_t count = integer(call, "k", k)
    if count < 0:
        raise ValueError(f"top_k: k is {count}, expected at least 0")
    for d in range(tx.ndim):
        shape[d] = count if d == params.axis or d == params.axis + tx.ndim else tx.shape[d]
        if shape[d] > tx.shape[d]:
            raise ValueError(f"top_k: k is {count}, expected at most {tx.shape[d]} (x.shape)")
    cdef const DLTensor* tvalues = call.output("values", out, tx.ndim, shape, tx.dtype)
    cdef const DLTensor* tindices = call.output("indices", out_indices, tx.ndim, shape,
                                                dtype_named("int64"))
    while call.pending():
        with nogil:
            call.status = dlk_topk_forward(tx, tvalues, tindices, &params, &call.launch)
    return call.result()


def top_k_backward(dy, indices, input_shape, axis, out, stream):
    cdef Call call = Call("top_k_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tindices = call.input("indices", indices)
    cdef dlk_topk_params params = dlk_topk_params(
        sizeof(dlk_topk_params), <int32_t>integer(call, "axis", axis, 32), 1, 1)
    cdef int64_t shape[MAX_DIMS]
    if out is None:
        extents_of(call, "input_shape", input_shape, tdy.ndim, shape)
    cdef const DLTensor* tdx = call.output("dx", out, tdy.ndim, shape, tdy.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_topk_backward(tdy, tindices, tdx, &params, &call.launch)
    return call.result()
