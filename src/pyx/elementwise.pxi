cdef extern from "dlkern/elementwise.h" nogil:
    ctypedef struct dlk_add_params:
        uint32_t struct_size
        uint32_t reserved
        double alpha
        double beta
    dlk_status_t dlk_add(const DLTensor*, const DLTensor*, const DLTensor*, const dlk_add_params*,
                         const dlk_launch*)
    dlk_status_t dlk_add_backward(const DLTensor*, const DLTensor*, const dlk_launch*)


cdef int broadcast_shape(const DLTensor* a, const DLTensor* b, int64_t* shape) noexcept:
    """Writes the shape, returns its rank. Extents that do not fit together are left to the C
    function, whose message names them."""
    cdef const DLTensor* longer = a if a.ndim >= b.ndim else b
    cdef const DLTensor* shorter = b if longer == a else a
    cdef int ahead = longer.ndim - shorter.ndim
    for i in range(longer.ndim):
        shape[i] = longer.shape[i]
        if i >= ahead and shape[i] == 1:
            shape[i] = shorter.shape[i - ahead]
    return longer.ndim


def add(a, b, alpha, beta, out, stream):
    cdef Call call = Call("add", stream)
    cdef const DLTensor* ta = call.input("a", a)
    cdef const DLTensor* tb = call.input("b", b)
    cdef int64_t shape[MAX_DIMS]
    cdef int ndim = broadcast_shape(ta, tb, shape)
    cdef const DLTensor* ty = call.output("y", out, ndim, shape, ta.dtype)
    cdef dlk_add_params params = dlk_add_params(
        sizeof(dlk_add_params), 0, real(call, "alpha", alpha), real(call, "beta", beta))
    while call.pending():
        with nogil:
            call.status = dlk_add(ta, tb, ty, &params, &call.launch)
    return call.result()


def add_backward(dy, str name, shape, out, stream):
    """The gradient of the summand of that shape; `name` is that argument's."""
    cdef Call call = Call("add_backward", stream)
    call.first_keyword = "out_" + name[0]    # out_a or out_b
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef int64_t extents[MAX_DIMS]
    cdef int ndim = 0
    if out is None:
        if isinstance(shape, (tuple, list)):
            ndim = min(len(shape), tdy.ndim)
        extents_of(call, name, shape, ndim, extents)
    cdef const DLTensor* tda = call.output("da", out, ndim, extents, tdy.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_add_backward(tdy, tda, &call.launch)
    return call.result()
