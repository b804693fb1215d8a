cdef extern from "dlkern/gemm.h" nogil:
    ctypedef struct dlk_grouped_matmul_params:
        uint32_t struct_size
        int32_t precision
        int32_t batch_invariant
        int32_t reserved
    dlk_status_t dlk_grouped_matmul(const DLTensor*, const DLTensor*, const DLTensor*,
                                    const DLTensor*, const DLTensor*, const DLTensor*,
                                    const DLTensor*, const dlk_grouped_matmul_params*,
                                    const dlk_launch*)
    dlk_status_t dlk_grouped_matmul_backward_a(const DLTensor*, const DLTensor*, const DLTensor*,
                                               const DLTensor*, const dlk_grouped_matmul_params*,
                                               const dlk_launch*)
    dlk_status_t dlk_grouped_matmul_backward_b(const DLTensor*, const DLTensor*, const DLTensor*,
                                               const DLTensor*, const dlk_grouped_matmul_params*,
                                               const dlk_launch*)


cdef dlk_grouped_matmul_params grouped_params(Call call, object precision,
                                              bint batch_invariant) except *:
    return dlk_grouped_matmul_params(sizeof(dlk_grouped_matmul_params),
                                     precision_of(call, precision), batch_invariant, 0)


def grouped_matmul(a, b, offsets, bias, scale_a, scale_b, precision, out_dtype,
                   bint batch_invariant, out, stream):
    cdef Call call = Call("grouped_matmul", stream)
    cdef const DLTensor* ta = call.input("a", a)
    cdef const DLTensor* tb = call.input("b", b)
    cdef const DLTensor* toffsets = call.input("offsets", offsets)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* tscale_a = call.optional_input("scale_a", scale_a)
    cdef const DLTensor* tscale_b = call.optional_input("scale_b", scale_b)
    cdef int64_t shape[3]
    cdef int ndim = 2
    shape[0] = ta.shape[0] if ta.ndim else 0
    shape[1] = shape[2] = tb.shape[tb.ndim - 1] if tb.ndim else 0
    if tb.ndim == 2:
        ndim = 3
        shape[1] = shape[0]
        shape[0] = toffsets.shape[0] if toffsets.ndim else 0
    plain = bias is None and scale_a is None and scale_b is None
    cdef const DLTensor* ty = call.output("y", out, ndim, shape,
                                          result_dtype(call, out_dtype, ta.dtype, plain))
    cdef dlk_grouped_matmul_params params = grouped_params(call, precision, batch_invariant)
    while call.pending():
        with nogil:
            call.status = dlk_grouped_matmul(ta, tb, toffsets, tbias, tscale_a, tscale_b, ty,
                                             &params, &call.launch)
    return call.result()


def product_of_list(a, b, scale_a, scale_b, precision, out_dtype, bint batch_invariant, out,
                    stream):
    """One of a list: as matmul has it, or scaled_matmul for operands of 8 bits."""
    cdef Call call = Call("grouped_matmul", stream)
    cdef const DLTensor* ta = call.input("a", a)
    cdef const DLTensor* tb = call.input("b", b)
    cdef const DLTensor* tscale_a = call.optional_input("scale_a", scale_a)
    cdef const DLTensor* tscale_b = call.optional_input("scale_b", scale_b)
    cdef int64_t shape[8]
    cdef int ndim = matmul_shape(ta, tb, shape)
    cdef bint plain = scale_a is None and scale_b is None
    cdef const DLTensor* ty = call.output("y", out, ndim, shape,
                                          result_dtype(call, out_dtype, ta.dtype, plain))
    cdef bint scaled = ta.dtype.bits == 8
    cdef dlk_matmul_params params = dlk_matmul_params(
        sizeof(dlk_matmul_params), precision_of(call, precision), batch_invariant, 0, 1.0, 1.0)
    cdef dlk_scaled_matmul_params scaled_params = dlk_scaled_matmul_params(
        sizeof(dlk_scaled_matmul_params), DLK_ACTIVATION_NONE, batch_invariant, 0, 0.0,
        DLK_ACTIVATION_THRESHOLD)
    if not scaled and not plain:
        name = "scale_b" if scale_a is None else "scale_a"
        raise ValueError(f"{call.op}: {name} is given, expected None beside "
                         f"{dtype_name(ta.dtype)} operands (a.dtype)")
    while call.pending():
        with nogil:
            if scaled:
                call.status = dlk_scaled_matmul(ta, tb, tscale_a, tscale_b, NULL, NULL, ty, NULL,
                                                &scaled_params, &call.launch)
            else:
                call.status = dlk_matmul(ta, tb, NULL, ty, &params, &call.launch)
    return call.result()


def grouped_matmul_backward(dy, a, b, offsets, precision, bint batch_invariant, out, out_b,
                            stream):
    cdef Call call = Call("grouped_matmul_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* ta = call.input("a", a)
    cdef const DLTensor* tb = call.input("b", b)
    cdef const DLTensor* toffsets = call.input("offsets", offsets)
    cdef const DLTensor* tda = call.output_like("da", out, ta)
    cdef const DLTensor* tdb = call.output_like("db", out_b, tb)
    cdef dlk_grouped_matmul_params params = grouped_params(call, precision, batch_invariant)
    require_shape_of(call, "out", tda, "a", ta)
    require_shape_of(call, "out_b", tdb, "b", tb)
    require_disjoint(call, "out", tda, "a", ta)
    require_disjoint(call, "out_b", tdb, "b", tb)
    require_disjoint(call, "out_b", tdb, "out", tda)
    while call.pending():
        with nogil:
            call.status = dlk_grouped_matmul_backward_a(tdy, tb, toffsets, tda, &params,
                                                        &call.launch)
    if call.status == DLK_SUCCESS:
        if call.launch.flags & DLK_LAUNCH_PLAN_ONLY:
            call.explain()
        call.attempts = 0
        while call.pending():
            with nogil:
                call.status = dlk_grouped_matmul_backward_b(tdy, ta, toffsets, tdb, &params,
                                                            &call.launch)
    return call.result()


def require_disjoint_lists(str op, written, used):
    """Products of a list come one after the other: what one of them writes must be no array of
    another. Both are sequences of (name, sequence of arrays or None)."""
    cdef Call call
    cdef uintptr_t begin, end
    ranges = []     # (begin, end, whether it is written, position in its list, name)
    for is_written, arrays in ((True, written), (False, used)):
        for name, sequence in arrays:
            for position, array in enumerate(sequence or ()):
                if array is None:
                    continue
                call = Call(op, None)
                extent_in_memory(call.input(name, array), &begin, &end)
                ranges.append((begin, end, is_written, position, name))
    for begin_a, end_a, is_written, i, name in ranges:
        if not is_written:
            continue
        for begin_b, end_b, _, j, other in ranges:
            if (i, name) != (j, other) and begin_a < end_b and begin_b < end_a:
                raise ValueError(f"{op}: {name}[{i}] overlaps {other}[{j}]")
