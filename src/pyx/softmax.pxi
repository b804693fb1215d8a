cdef extern from "dlkern/softmax.h" nogil:
    ctypedef struct dlk_softmax_params:
        uint32_t struct_size
        int32_t axis
        double scale
        const DLTensor* mask
        int32_t causal
        int32_t reserved
    dlk_status_t dlk_softmax_forward(const DLTensor*, const DLTensor*, const dlk_softmax_params*,
                                     const dlk_launch*)
    dlk_status_t dlk_log_softmax_forward(const DLTensor*, const DLTensor*,
                                         const dlk_softmax_params*, const dlk_launch*)
    dlk_status_t dlk_softmax_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                      const dlk_softmax_params*, const dlk_launch*)
    dlk_status_t dlk_log_softmax_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                          const dlk_softmax_params*, const dlk_launch*)


cdef dlk_softmax_params softmax_params(Call call, object axis, object scale) except *:
    return dlk_softmax_params(sizeof(dlk_softmax_params), <int32_t>integer(call, "axis", axis, 32),
                              real(call, "scale", scale), NULL, 0, 0)


def softmax(x, axis, scale, mask, bint causal, bint log, out, stream):
    cdef Call call = Call("log_softmax" if log else "softmax", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef dlk_softmax_params params = softmax_params(call, axis, scale)
    params.mask = call.optional_input("mask", mask)
    params.causal = causal
    cdef const DLTensor* ty = call.output_like("y", out, tx)
    while call.pending():
        with nogil:
            if log:
                call.status = dlk_log_softmax_forward(tx, ty, &params, &call.launch)
            else:
                call.status = dlk_softmax_forward(tx, ty, &params, &call.launch)
    return call.result()


def softmax_backward(dy, y, axis, scale, bint log, out, stream):
    cdef Call call = Call("log_softmax_backward" if log else "softmax_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* ty = call.input("y", y)
    cdef dlk_softmax_params params = softmax_params(call, axis, scale)
    cdef const DLTensor* tdx = call.output_like("dx", out, tdy)
    while call.pending():
        with nogil:
            if log:
                call.status = dlk_log_softmax_backward(tdy, ty, tdx, &params, &call.launch)
            else:
                call.status = dlk_softmax_backward(tdy, ty, tdx, &params, &call.launch)
    return call.result()
