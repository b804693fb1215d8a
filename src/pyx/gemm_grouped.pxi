cdef extern from "dlkern/gemm.h" nogil:
    ctypedef struct dlk_grouped_matmul_params:
        uint32_t struct_size
        int32_t precision
        int32_t batch_invariant
        int32_t reserved
    dlk_status_t dlk_grouped_matmul(const DLTensor*, const DLTensor*, const DLTensor*,
                                    const DLTensor*, const DLTensor*,
                                    const dlk_grouped_matmul_params*, const dlk_launch*)
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


def grouped_matmul(a, b, offsets, bias, precision, bint batch_invariant, out, stream):
    cdef Call call = Call("grouped_matmul", stream)
    cdef const DLTensor* ta = call.input("a", a)
    cdef const DLTensor* tb = call.input("b", b)
    cdef const DLTensor* toffsets = call.input("offsets", offsets)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef int64_t shape[3]
    cdef int ndim = 2
    shape[0] = ta.shape[0] if ta.ndim else 0
    shape[1] = shape[2] = tb.shape[tb.ndim - 1] if tb.ndim else 0
    if tb.ndim == 2:
        ndim = 3
        shape[1] = shape[0]
        shape[0] = toffsets.shape[0] if toffsets.ndim else 0
    cdef const DLTensor* ty = call.output("y", out, ndim, shape, ta.dtype)
    cdef dlk_grouped_matmul_params params = grouped_params(call, precision, batch_invariant)
    while call.pending():
        with nogil:
            call.status = dlk_grouped_matmul(ta, tb, toffsets, tbias, ty, &params, &call.launch)
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
