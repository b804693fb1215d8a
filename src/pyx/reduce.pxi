cdef extern from "dlkern/reduce.h" nogil:
    ctypedef enum dlk_reduce_kind:
        DLK_REDUCE_SUM
        DLK_REDUCE_MEAN
        DLK_REDUCE_MAX
        DLK_REDUCE_MIN
        DLK_REDUCE_ARGMAX
        DLK_REDUCE_ARGMIN
        DLK_REDUCE_PROD
        DLK_REDUCE_VECTOR_NORM
        DLK_REDUCE_VAR
        DLK_REDUCE_STD
        DLK_REDUCE_LOGSUMEXP
        DLK_REDUCE_ANY
        DLK_REDUCE_ALL
    ctypedef struct dlk_reduce_params:
        uint32_t struct_size
        int32_t kind
        int32_t axis_count
        int32_t axes[8]
        double ord
        double correction
    dlk_status_t dlk_reduce(const DLTensor*, const DLTensor*, const dlk_reduce_params*,
                            const dlk_launch*)
    dlk_status_t dlk_reduce_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                     const DLTensor*, const dlk_reduce_params*, const dlk_launch*)

cdef dict _reduce_kinds = {
    "sum": DLK_REDUCE_SUM, "mean": DLK_REDUCE_MEAN, "max": DLK_REDUCE_MAX, "min": DLK_REDUCE_MIN,
    "argmax": DLK_REDUCE_ARGMAX, "argmin": DLK_REDUCE_ARGMIN, "prod": DLK_REDUCE_PROD,
    "vector_norm": DLK_REDUCE_VECTOR_NORM, "var": DLK_REDUCE_VAR, "std": DLK_REDUCE_STD,
    "logsumexp": DLK_REDUCE_LOGSUMEXP, "any": DLK_REDUCE_ANY, "all": DLK_REDUCE_ALL,
}


cdef int reduce_params(Call call, str kind, object axis, object number,
                       dlk_reduce_params* p) except -1:
    """`number`: the order of a norm, or the correction of a variance."""
    memset(p, 0, sizeof(dlk_reduce_params))
    p.struct_size = sizeof(dlk_reduce_params)
    p.kind = _reduce_kinds[kind]
    p.axis_count = -1
    if kind == "vector_norm":
        p.ord = real(call, "ord", number)
    elif number is not None:
        p.correction = real(call, "correction", number)
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


def reduce(x, str kind, axis, number, bint keepdims, out, stream):
    cdef Call call = Call(kind, stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef dlk_reduce_params params
    cdef int64_t shape[MAX_DIMS]
    reduce_params(call, kind, axis, number, &params)
    cdef int ndim = reduced_shape(tx, &params, keepdims, shape)
    cdef DLDataType dtype = tx.dtype
    if kind in ("argmax", "argmin") or (kind in ("sum", "prod") and dtype_name(dtype) == "int32"):
        dtype = dtype_named("int64")
    cdef const DLTensor* ty = call.output("y", out, ndim, shape, dtype)
    while call.pending():
        with nogil:
            call.status = dlk_reduce(tx, ty, &params, &call.launch)
    return call.result()


def reduce_backward(dy, x, y, str kind, shape, axis, number, out, stream):
    """x and y are None where the gradient has no use for them; `shape` where x is given."""
    cdef Call call = Call(kind + "_backward", stream)
    cdef bint takes_x = kind not in ("sum", "mean")
    cdef bint takes_y = takes_x and kind not in ("prod", "var")
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tx = call.input("x", x) if takes_x else NULL
    cdef const DLTensor* ty = call.input("y", y) if takes_y else NULL
    cdef dlk_reduce_params params
    cdef int64_t extents[MAX_DIMS]
    cdef int ndim = 0
    reduce_params(call, kind, axis, number, &params)
    if takes_x:
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
