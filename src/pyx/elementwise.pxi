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


cdef Call gradient_call(dy, str summand, shape, out, stream):
    """Of the summand "a" or "b". Slot 0 is dy, slot 1 the gradient, which C calls da."""
    cdef Call call = Call("add_backward", stream)
    call.first_keyword = "out_" + summand
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef int64_t extents[MAX_DIMS]
    cdef int ndim = 0
    if out is None:
        if isinstance(shape, (tuple, list)):
            ndim = min(len(shape), tdy.ndim)
        extents_of(call, summand + "_shape", shape, ndim, extents)
        call.keywords["da.shape"] = summand + "_shape"
    call.output("da", out, ndim, extents, tdy.dtype)
    return call


cdef object run_gradient(Call call, bint plan_only):
    cdef uint32_t flags = call.launch.flags
    if plan_only:
        call.launch.flags |= DLK_LAUNCH_PLAN_ONLY
        with nogil:
            call.status = dlk_add_backward(&call.slots[0].tensor, &call.slots[1].tensor,
                                           &call.launch)
        call.launch.flags = flags
        return call.fail() if call.status != DLK_SUCCESS else None
    while call.pending():
        with nogil:
            call.status = dlk_add_backward(&call.slots[0].tensor, &call.slots[1].tensor,
                                           &call.launch)
    return call.result()


cdef int require_broadcast(Call a, Call b) except -1:
    """dy has the shape that the summands of both calls broadcast to."""
    cdef int64_t shape[MAX_DIMS]
    cdef const DLTensor* dy = &a.slots[0].tensor
    cdef int ndim = broadcast_shape(&a.slots[1].tensor, &b.slots[1].tensor, shape)
    expected = [shape[d] for d in range(ndim)]
    given = [dy.shape[d] for d in range(dy.ndim)]
    if given != expected:
        raise ValueError(f"add_backward: dy.shape is {given}, expected {expected} (the shapes of a "
                         "and b broadcast)")
    return 0


def add_backward(dy, a_shape, b_shape, out_a, out_b, stream):
    calls = [None if shape is None and array is None
             else gradient_call(dy, summand, shape, array, stream)
             for summand, shape, array in (("a", a_shape, out_a), ("b", b_shape, out_b))]
    # All arguments are right before anything is written.
    for call in calls:
        if call is not None:
            run_gradient(call, True)
    if None not in calls:
        require_broadcast(calls[0], calls[1])
    return tuple([None if call is None else run_gradient(call, False) for call in calls])
