cdef extern from "dlkern/dropout.h" nogil:
    ctypedef struct dlk_dropout_params:
        uint32_t struct_size
        uint32_t reserved
        double p
    dlk_status_t dlk_dropout_forward(const DLTensor*, const DLTensor*, const DLTensor*,
                                     const DLTensor*, const dlk_dropout_params*,
                                     const dlk_launch*)
    dlk_status_t dlk_dropout_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                      const dlk_dropout_params*, const dlk_launch*)


def dropout(x, rng, residual, p, out, stream):
    cdef Call call = Call("dropout", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* trng = call.input("rng", rng)
    cdef const DLTensor* tresidual = call.optional_input("residual", residual)
    cdef const DLTensor* ty = call.output_like("y", out, tx)
    cdef dlk_dropout_params params = dlk_dropout_params(
        sizeof(dlk_dropout_params), 0, real(call, "p", p))
    while call.pending():
        with nogil:
            call.status = dlk_dropout_forward(tx, trng, tresidual, ty, &params, &call.launch)
    return call.result()


def dropout_backward(dy, rng, p, out, stream):
    cdef Call call = Call("dropout_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* trng = call.input("rng", rng)
    cdef const DLTensor* tdx = call.output_like("dx", out, tdy)
    cdef dlk_dropout_params params = dlk_dropout_params(
        sizeof(dlk_dropout_params), 0, real(call, "p", p))
    while call.pending():
        with nogil:
            call.status = dlk_dropout_backward(tdy, trng, tdx, &params, &call.launch)
    return call.result()
