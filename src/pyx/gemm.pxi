cdef extern from "dlkern/gemm.h" nogil:
    ctypedef struct dlk_matmul_params:
        uint32_t struct_size
        int32_t precision
        int32_t batch_invariant
        int32_t reserved
        double alpha
        double beta
    ctypedef struct dlk_linear_params:
        uint32_t struct_size
        int32_t precision
        int32_t activation
        int32_t batch_invariant
        double alpha
        double threshold
    ctypedef struct dlk_linear_backward_params:
        uint32_t struct_size
        int32_t precision
        int32_t accumulate
        int32_t batch_invariant
        int32_t activation
        int32_t reserved
        double alpha
        double threshold
    dlk_status_t dlk_matmul(const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
                            const dlk_matmul_params*, const dlk_launch*)
    dlk_status_t dlk_matmul_backward_a(const DLTensor*, const DLTensor*, const DLTensor*,
                                       const dlk_matmul_params*, const dlk_launch*)
    dlk_status_t dlk_matmul_backward_b(const DLTensor*, const DLTensor*, const DLTensor*,
                                       const dlk_matmul_params*, const dlk_launch*)
    dlk_status_t dlk_linear_forward(const DLTensor*, const DLTensor*, const DLTensor*,
                                    const DLTensor*, const DLTensor*, const DLTensor*,
                                    const dlk_linear_params*, const dlk_launch*)
    dlk_status_t dlk_linear_backward_input(const DLTensor*, const DLTensor*, const DLTensor*,
                                           const DLTensor*, const dlk_linear_backward_params*,
                                           const dlk_launch*)
    dlk_status_t dlk_linear_backward_weight(const DLTensor*, const DLTensor*, const DLTensor*,
                                            const DLTensor*, const dlk_linear_backward_params*,
                                            const dlk_launch*)


cdef int matmul_shape(const DLTensor* a, const DLTensor* b, int64_t* shape) noexcept:
    """Shape of a @ b as NumPy has it; returns its rank. Whether the shapes fit is left to C."""
    cdef int ndim = 0
    cdef int64_t in_a, in_b
    for d in range(max(a.ndim, b.ndim, 2) - 1, 1, -1):
        in_a = a.shape[a.ndim - 1 - d] if d < a.ndim else 1
        in_b = b.shape[b.ndim - 1 - d] if d < b.ndim else 1
        shape[ndim] = in_b if in_a == 1 else in_a
        ndim += 1
    if a.ndim > 1:
        shape[ndim] = a.shape[a.ndim - 2]
        ndim += 1
    if b.ndim > 1:
        shape[ndim] = b.shape[b.ndim - 1]
        ndim += 1
    return ndim


cdef int last_extent(const DLTensor* like, int64_t last, int64_t* shape) noexcept:
    """The shape of `like` but for its last extent; returns its rank."""
    for d in range(like.ndim):
        shape[d] = like.shape[d]
    if like.ndim:
        shape[like.ndim - 1] = last
    return like.ndim


cdef int require_shape_of(Call call, str name, const DLTensor* out, str like_name,
                          const DLTensor* like) except -1:
    extents = [out.shape[d] for d in range(out.ndim)]
    expected = [like.shape[d] for d in range(like.ndim)]
    if extents != expected:
        raise ValueError(f"{call.op}: {name}.shape is {extents}, expected {expected} "
                         f"({like_name}.shape)")
    return 0


def matmul(a, b, c, alpha, beta, precision, bint batch_invariant, out, stream):
    cdef Call call = Call("matmul", stream)
    cdef const DLTensor* ta = call.input("a", a)
    cdef const DLTensor* tb = call.input("b", b)
    cdef const DLTensor* tc = call.optional_input("c", c)
    cdef int64_t shape[8]
    cdef int ndim = matmul_shape(ta, tb, shape)
    cdef const DLTensor* ty = call.output("y", out, ndim, shape, ta.dtype)
    cdef dlk_matmul_params params = dlk_matmul_params(
        sizeof(dlk_matmul_params), precision_of(call, precision), batch_invariant, 0,
        real(call, "alpha", alpha), real(call, "beta", beta))
    while call.pending():
        with nogil:
            call.status = dlk_matmul(ta, tb, tc, ty, &params, &call.launch)
    return call.result()


cdef int require_disjoint(Call call, str name, const DLTensor* t, str other_name,
                          const DLTensor* other) except -1:
    """For an output and an array that only another C call of the same function reads or writes."""
    cdef uintptr_t begin, end, other_begin, other_end
    extent_in_memory(t, &begin, &end)
    extent_in_memory(other, &other_begin, &other_end)
    if begin < other_end and other_begin < end:
        raise ValueError(f"{call.op}: {name} overlaps {other_name}")
    return 0


cdef void extent_in_memory(const DLTensor* t, uintptr_t* begin, uintptr_t* end) noexcept:
    """From the lowest byte to the one past the highest; nothing for an empty tensor."""
    cdef int64_t low = 0, high = 0, step = 1, reach
    cdef int64_t itemsize = t.dtype.bits // 8
    for i in range(t.ndim - 1, -1, -1):
        if t.shape[i] == 0:
            begin[0] = end[0] = 0
            return
        reach = (t.shape[i] - 1) * (step if t.strides == NULL else t.strides[i])
        low, high = low + min(reach, 0), high + max(reach, 0)
        step *= t.shape[i]
    cdef uintptr_t address = <uintptr_t>t.data + <uintptr_t>t.byte_offset
    begin[0] = address + <uintptr_t>(low * itemsize)
    end[0] = address + <uintptr_t>((high + 1) * itemsize)


def matmul_backward(dy, a, b, alpha, precision, out, out_b, stream):
    cdef Call call = Call("matmul_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* ta = call.input("a", a)
    cdef const DLTensor* tb = call.input("b", b)
    cdef const DLTensor* tda = call.output_like("da", out, ta)
    cdef const DLTensor* tdb = call.output_like("db", out_b, tb)
    cdef dlk_matmul_params params = dlk_matmul_params(
        sizeof(dlk_matmul_params), precision_of(call, precision), 0, 0,
        real(call, "alpha", alpha), 0)
    require_shape_of(call, "out", tda, "a", ta)
    require_shape_of(call, "out_b", tdb, "b", tb)
    require_disjoint(call, "out", tda, "a", ta)
    require_disjoint(call, "out_b", tdb, "b", tb)
    require_disjoint(call, "out_b", tdb, "out", tda)
    while call.pending():
        with nogil:
            call.status = dlk_matmul_backward_a(tdy, tb, tda, &params, &call.launch)
    if call.status == DLK_SUCCESS:
        if call.launch.flags & DLK_LAUNCH_PLAN_ONLY:
            call.explain()
        call.attempts = 0
        while call.pending():
            with nogil:
                call.status = dlk_matmul_backward_b(tdy, ta, tdb, &params, &call.launch)
    return call.result()


cdef double alpha_of(Call call, int activation, object alpha) except? -1:
    """The activation's parameter: what the caller gave, else its default."""
    return DLK_ACTIVATION_ALPHA(activation) if alpha is None else real(call, "alpha", alpha)


def linear(x, weight, bias, activation, alpha, residual, bint preactivation, precision,
           bint batch_invariant, out, out_preactivation, stream):
    cdef Call call = Call("linear", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* tresidual = call.optional_input("residual", residual)
    cdef int64_t shape[8]
    cdef int ndim = last_extent(tx, tweight.shape[0] if tweight.ndim else 0, shape)
    cdef const DLTensor* ty = call.output("y", out, ndim, shape, tx.dtype)
    cdef const DLTensor* tpre = NULL
    if preactivation or out_preactivation is not None:
        tpre = call.output("preactivation", out_preactivation, ndim, shape, ty.dtype)
    cdef int kind = activation_of(call, activation)
    cdef dlk_linear_params params = dlk_linear_params(
        sizeof(dlk_linear_params), precision_of(call, precision), kind, batch_invariant,
        alpha_of(call, kind, alpha), DLK_ACTIVATION_THRESHOLD)
    while call.pending():
        with nogil:
            call.status = dlk_linear_forward(tx, tweight, tbias, tresidual, ty, tpre, &params,
                                             &call.launch)
    return call.result()


def linear_backward_input(dy, weight, activation, alpha, preactivation, precision,
                          bint batch_invariant, out, stream):
    cdef Call call = Call("linear_backward_input", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tweight = call.input("weight", weight)
    cdef const DLTensor* tpre = call.optional_input("preactivation", preactivation)
    cdef int64_t shape[8]
    cdef int ndim = last_extent(tdy, tweight.shape[1] if tweight.ndim == 2 else 0, shape)
    cdef const DLTensor* tdx = call.output("dx", out, ndim, shape, tdy.dtype)
    cdef int kind = activation_of(call, activation)
    cdef dlk_linear_backward_params params = dlk_linear_backward_params(
        sizeof(dlk_linear_backward_params), precision_of(call, precision), 0, batch_invariant,
        kind, 0, alpha_of(call, kind, alpha), DLK_ACTIVATION_THRESHOLD)
    while call.pending():
        with nogil:
            call.status = dlk_linear_backward_input(tdy, tweight, tpre, tdx, &params,
                                                    &call.launch)
    return call.result()


def linear_backward_weight(dy, x, bint bias, bint accumulate, precision, out, out_bias, stream):
    """dweight, or (dweight, dbias) with bias."""
    cdef Call call = Call("linear_backward_weight", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tx = call.input("x", x)
    cdef int64_t shape[2]
    shape[0] = tdy.shape[tdy.ndim - 1] if tdy.ndim else 0
    shape[1] = tx.shape[tx.ndim - 1] if tx.ndim else 0
    if accumulate and (out is None or (bias and out_bias is None)):
        raise ValueError(f"{call.op}: accumulate is True, expected out"
                         f"{' and out_bias' if bias else ''} to add to")
    cdef const DLTensor* tdweight = call.output("dweight", out, 2, shape, tdy.dtype)
    cdef const DLTensor* tdbias = NULL
    if bias:
        tdbias = call.output("dbias", out_bias, 1, shape, tdweight.dtype)
    cdef dlk_linear_backward_params params = dlk_linear_backward_params(
        sizeof(dlk_linear_backward_params), precision_of(call, precision), accumulate, 0, 0, 0, 1,
        DLK_ACTIVATION_THRESHOLD)
    while call.pending():
        with nogil:
            call.status = dlk_linear_backward_weight(tdy, tx, tdweight, tdbias, &params,
                                                     &call.launch)
    return call.result()
