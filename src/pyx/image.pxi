# Arguments of the ops over images: layout, and numbers per spatial dimension.

cdef dict _layouts = {
    "NCHW": (DLK_LAYOUT_NCHW, 0), "NHWC": (DLK_LAYOUT_NHWC, 0),   # 0: any rank
    "NCW": (DLK_LAYOUT_NCHW, 3), "NWC": (DLK_LAYOUT_NHWC, 3),
    "NCDHW": (DLK_LAYOUT_NCHW, 5), "NDHWC": (DLK_LAYOUT_NHWC, 5),
}


cdef int32_t layout_of(Call call, object layout, int ndim) except -1:
    """The dlk_layout of a name; names with another rank's letters are refused."""
    known = _layouts.get(layout) if isinstance(layout, str) else None
    if known is None:
        raise ValueError(f"{call.op}: layout is {layout!r}, expected one of {', '.join(_layouts)}")
    if known[1] not in (0, ndim):
        raise ValueError(f"{call.op}: layout is {layout!r}, expected one for arrays of {ndim} "
                         "dimensions")
    return known[0]


cdef int spatial_dims(Call call, str name, const DLTensor* image) except -1:
    if not 3 <= image.ndim <= 5:
        raise ValueError(f"{call.op}: {name} has {image.ndim} dimensions, expected 3 to 5")
    return image.ndim - 2


cdef int per_dim(Call call, str name, object value, int dims, int32_t* to) except -1:
    """One integer for all dimensions, or one for each."""
    if isinstance(value, (tuple, list)):
        if len(value) != dims:
            raise ValueError(f"{call.op}: {name} is {value!r}, expected an integer or {dims} of "
                             "them")
        for d in range(dims):
            to[d] = <int32_t>integer(call, name, value[d], 32)
    else:
        for d in range(dims):
            to[d] = <int32_t>integer(call, name, value, 32)
    return 0


cdef int32_t padding_of(Call call, object padding, int dims, int32_t* begin,
                        int32_t* end) except -1:
    """The dlk_padding_mode of "same", "valid", an integer, or per dimension an integer or a pair
    (begin, end)."""
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"{call.op}: padding is {padding!r}, expected \"same\", \"valid\", an "
                             "integer, or integers or (begin, end) pairs per dimension")
        return DLK_PADDING_SAME if padding == "same" else DLK_PADDING_VALID
    if isinstance(padding, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in padding):
        if len(padding) != dims:
            raise ValueError(f"{call.op}: padding is {padding!r}, expected {dims} integers or "
                             "(begin, end) pairs")
        for d in range(dims):
            pair = padding[d] if isinstance(padding[d], (tuple, list)) else (padding[d],) * 2
            if len(pair) != 2:
                raise ValueError(f"{call.op}: padding[{d}] is {pair!r}, expected an integer or a "
                                 "pair (begin, end)")
            begin[d] = <int32_t>integer(call, "padding", pair[0], 32)
            end[d] = <int32_t>integer(call, "padding", pair[1], 32)
    else:
        per_dim(call, "padding", padding, dims, begin)
        per_dim(call, "padding", padding, dims, end)
    return DLK_PADDING_EXPLICIT


cdef int extents_of(Call call, str name, object shape, int ndim, int64_t* to) except -1:
    """A shape of `ndim` dimensions."""
    try:
        shape = tuple(shape)
    except TypeError:
        raise TypeError(f"{call.op}: {name} is {shape!r}, expected a shape") from None
    if len(shape) != ndim:
        raise ValueError(f"{call.op}: {name} is {shape!r}, expected {ndim} extents")
    for d in range(ndim):
        to[d] = integer(call, name, shape[d])
        if to[d] < 0:
            raise ValueError(f"{call.op}: {name} is {shape!r}, expected no negative extent")
    return 0
