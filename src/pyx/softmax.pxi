cdef extern from "dlkern/softmax.h" nogil:
    ctypedef struct dlk_softmax_params:
        uint32_t struct_size
        int32_t axis
    dlk_status_t dlk_softmax_forward(const DLTensor*, const DLTensor*, const dlk_softmax_params*,
                                     const dlk_launch*)
    dlk_status_t dlk_log_softmax_forward(const DLTensor*, const DLTensor*,
                                         const dlk_softmax_params*, const dlk_launch*)
    dlk_status_t dlk_softmax_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                      const dlk_softmax_params*, const dlk_launch*)
    dlk_status_t dlk_log_softmax_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                          const dlk_softmax_params*, const dlk_launch*)


def softmax(x, axis, bint log, out, stream):
    cdef Call call = Call("log_softmax" if log else "softmax", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* ty = call.output_like("y", out, tx)
    cdef dlk_softmax_params params = dlk_softmax_params(
        sizeof(dlk_softmax_params), <int32_t>integer(call, "axis", axis, 32))
    while call.pending():
        with nogil:
            if log:
                call.status = dlk_log_softmax_forward(tx, ty, &params, &call.launch)
            else:
                call.status = dlk_softmax_forward(tx, ty, &params, &call.launch)
    return call.result()


def softmax_backward(dy, y, axis, bint log, out, stream):
    cdef Call call = Call("log_softmax_backward" if log else "softmax_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* ty = call.input("y", y)
    cdef const DLTensor* tdx = call.output_like("dx", out, tdy)
    cdef dlk_softmax_params params = dlk_softmax_params(
        sizeof(dlk_softmax_params), <int32_t>integer(call, "axis", axis, 32))
    while call.pending():
        with nogil:
            if log:
                call.status = dlk_log_softmax_backward(tdy, ty, tdx, &params, &call.launch)
            else:
                call.status = dlk_softmax_backward(tdy, ty, tdx, &params, &call.launch)
    return call.result()
