cdef extern from "dlkern/reduce.h" nogil:
    ctypedef enum dlk_reduce_kind:
        DLK_REDUCE_SUM
        DLK_REDUCE_MEAN
        DLK_REDUCE_MAX
        DLK_REDUCE_MIN
        DLK_REDUCE_ARGMAX
        DLK_REDUCE_ARGMIN
    ctypedef struct dlk_reduce_params:
        uint32_t struct_size
        int32_t kind
        int32_t axis_count
        int32_t axes[8]
    dlk_status_t dlk_reduce(const DLTensor*, const DLTensor*, const dlk_reduce_params*,
                            const dlk_launch*)
    dlk_status_t dlk_reduce_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                     const DLTensor*, const dlk_reduce_params*, const dlk_launch*)

cdef dict _reduce_kinds = {
    "sum": DLK_REDUCE_SUM, "mean": DLK_REDUCE_MEAN, "max": DLK_REDUCE_MAX, "min": DLK_REDUCE_MIN,
    "argmax": DLK_REDUCE_ARGMAX, "argmin": DLK_REDUCE_ARGMIN,
}


cdef int reduce_params(Call call, str kind, object axis, dlk_reduce_params* p) except -1:
    memset(p, 0, sizeof(dlk_reduce_params))
    p.struct_size = sizeof(dlk_reduce_params)
    p.kind = _reduce_kinds[kind]
    p.axis_count = -1
    if axis is None:
        return 0
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    if len(axes) > 8:
        raise ValueError(f"{call.op}: axis is {axis!r}, expected each axis once")
    p.axis_count = <int32_t>len(axes)
    for i in range(p.axis_count):
        p.axes[i] = <int32_t>integer(call, "axis", axes[i], 32)
    return 0


cdef int reduced_shape(const DLTensor* x, const dlk_reduce_params* p, bint keepdims,
                       int64_t* shape) noexcept:
    """Writes the shape, returns its rank. Axes that x does not have are left to the C function."""
    cdef int rank = 0
    cdef bint reduced
    for d in range(x.ndim):
        reduced = p.axis_count < 0
        for i in range(p.axis_count):
            reduced |= p.axes[i] == d or p.axes[i] + x.ndim == d
        if not reduced or keepdims:
            shape[rank] = 1 if reduced else x.shape[d]
            rank += 1
    return rank


def reduce(x, str kind, axis, bint keepdims, out, stream):
    cdef Call call = Call(kind, stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef dlk_reduce_params params
    cdef int64_t shape[MAX_DIMS]
    reduce_params(call, kind, axis, &params)
    cdef int ndim = reduced_shape(tx, &params, keepdims, shape)
    cdef DLDataType dtype = tx.dtype
    if params.kind >= DLK_REDUCE_ARGMAX or (kind == "sum" and dtype_name(dtype) == "int32"):
        dtype = dtype_named("int64")
    cdef const DLTensor* ty = call.output("y", out, ndim, shape, dtype)
    while call.pending():
        with nogil:
            call.status = dlk_reduce(tx, ty, &params, &call.launch)
    return call.result()


def reduce_backward(dy, x, y, str kind, shape, axis, out, stream):
    """Of sum and mean with x and y None, of max and min with shape None."""
    cdef Call call = Call(kind + "_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef bint selects = kind in ("max", "min")
    cdef const DLTensor* tx = call.input("x", x) if selects else NULL
    cdef const DLTensor* ty = call.input("y", y) if selects else NULL
    cdef dlk_reduce_params params
    cdef int64_t extents[MAX_DIMS]
    cdef int ndim = 0
    reduce_params(call, kind, axis, &params)
    if selects:
        ndim = tx.ndim
        for d in range(ndim):
            extents[d] = tx.shape[d]
    elif out is None:
        if isinstance(shape, (tuple, list)):
            ndim = min(len(shape), MAX_DIMS)
        extents_of(call, "shape", shape, ndim, extents)
    cdef const DLTensor* tdx = call.output("dx", out, ndim, extents, tdy.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_reduce_backward(tdy, tx, ty, tdx, &params, &call.launch)
    return call.result()
