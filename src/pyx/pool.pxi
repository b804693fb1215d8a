cdef extern from "dlkern/pool.h" nogil:
    ctypedef struct dlk_pool_params:
        uint32_t struct_size
        int32_t layout
        int32_t padding_mode
        int32_t kernel[3]
        int32_t stride[3]
        int32_t dilation[3]
        int32_t pad_begin[3]
        int32_t pad_end[3]
        int32_t ceil_mode
        int32_t count_include_pad
        int64_t divisor_override
        int32_t output[3]
        double norm
    dlk_status_t dlk_pool_output_shape(const DLTensor*, const dlk_pool_params*, int64_t*)
    dlk_status_t dlk_max_pool_forward(const DLTensor*, const DLTensor*, const DLTensor*,
                                      const dlk_pool_params*, const dlk_launch*)
    dlk_status_t dlk_max_pool_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                       const dlk_pool_params*, const dlk_launch*)
    dlk_status_t dlk_avg_pool_forward(const DLTensor*, const DLTensor*, const dlk_pool_params*,
                                      const dlk_launch*)
    dlk_status_t dlk_avg_pool_backward(const DLTensor*, const DLTensor*, const dlk_pool_params*,
                                       const dlk_launch*)
    dlk_status_t dlk_lp_pool_forward(const DLTensor*, const DLTensor*, const dlk_pool_params*,
                                     const dlk_launch*)
    dlk_status_t dlk_lp_pool_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                      const DLTensor*, const dlk_pool_params*, const dlk_launch*)


cdef int whole_or_per_dim(Call call, str name, object value, int dims, int32_t* to) except -1:
    """Positive integers, or 0 for None, which C reads as its default."""
    if value is None:
        return 0
    per_dim(call, name, value, dims, to)
    for d in range(dims):
        if to[d] < 1:
            raise ValueError(f"{call.op}: {name} is {value!r}, expected at least 1")
    return 0


cdef int output_of(Call call, const DLTensor* image, object output, dlk_pool_params* p) except -1:
    """Windows of adaptive pooling. None, for all dimensions or one: as many as image's extent."""
    cdef int dims = image.ndim - 2, first = 1 if p.layout == DLK_LAYOUT_NHWC else 2
    cdef int64_t extent
    each = output if isinstance(output, (tuple, list)) else (output,) * dims
    if len(each) != dims:
        raise ValueError(f"{call.op}: output_size is {output!r}, expected an integer or {dims} of "
                         "them")
    for d in range(dims):
        extent = image.shape[first + d]
        p.output[d] = <int32_t>integer(call, "output_size", extent if each[d] is None else each[d],
                                       32)
        if p.output[d] < 1:
            raise ValueError(f"{call.op}: output_size is {output!r}, expected at least 1")
    return 0


cdef int pool_params(Call call, str name, const DLTensor* image, tuple window, tuple average,
                     dlk_pool_params* p) except -1:
    """From window = (kernel, stride, padding, dilation, ceil_mode, layout), or (output_size,
    layout) of adaptive pooling, and average = (count_include_pad, divisor_override)."""
    cdef int dims = spatial_dims(call, name, image)
    memset(p, 0, sizeof(dlk_pool_params))
    p.struct_size = sizeof(dlk_pool_params)
    p.norm = 2
    for d in range(3):
        p.dilation[d] = 1
    p.layout = layout_of(call, window[len(window) - 1], image.ndim)
    if len(window) == 2:
        return output_of(call, image, window[0], p)
    kernel, stride, padding, dilation, ceil_mode, _ = window
    whole_or_per_dim(call, "kernel", kernel, dims, p.kernel)
    whole_or_per_dim(call, "stride", stride, dims, p.stride)
    per_dim(call, "dilation", dilation, dims, p.dilation)
    p.padding_mode = padding_of(call, padding, dims, p.pad_begin, p.pad_end)
    p.ceil_mode = bool(ceil_mode)
    count_include_pad, divisor_override = average
    p.count_include_pad = bool(count_include_pad)
    if divisor_override is not None:
        p.divisor_override = integer(call, "divisor_override", divisor_override)
        if p.divisor_override == 0:
            raise ValueError(f"{call.op}: divisor_override is 0, expected another number")
    return 0


def max_pool(str op, x, tuple window, str index_dtype, out, out_indices, stream):
    """y, or (y, indices) where index_dtype is not None."""
    cdef Call call = Call(op, stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tindices = NULL
    cdef dlk_pool_params params
    cdef int64_t shape[MAX_DIMS]
    pool_params(call, "x", tx, window, (True, None), &params)
    check_part(call.op, dlk_pool_output_shape(tx, &params, shape))
    call.keep_format(tx, params.layout)
    cdef const DLTensor* ty = call.output("y", out, tx.ndim, shape, tx.dtype)
    if index_dtype is not None:
        if index_dtype not in ("int64", "int32", "uint8"):
            raise ValueError(f"{op}: index_dtype is {index_dtype!r}, expected int64, int32 or "
                             "uint8")
        tindices = call.output("indices", out_indices, tx.ndim, shape, dtype_named(index_dtype))
    while call.pending():
        with nogil:
            call.status = dlk_max_pool_forward(tx, ty, tindices, &params, &call.launch)
    return call.result()


def max_pool_backward(str op, dy, indices, input_shape, tuple window, out, stream):
    cdef Call call = Call(op, stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tindices = call.input("indices", indices)
    cdef dlk_pool_params params
    cdef int64_t shape[MAX_DIMS]
    pool_params(call, "dy", tdy, window, (True, None), &params)
    if out is None:
        extents_of(call, "input_shape", input_shape, tdy.ndim, shape)
    call.keep_format(tdy, params.layout)
    cdef const DLTensor* tdx = call.output("dx", out, tdy.ndim, shape, tdy.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_max_pool_backward(tdy, tindices, tdx, &params, &call.launch)
    return call.result()


def avg_pool(str op, x, tuple window, tuple average, out, stream):
    cdef Call call = Call(op, stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef dlk_pool_params params
    cdef int64_t shape[MAX_DIMS]
    pool_params(call, "x", tx, window, average, &params)
    check_part(call.op, dlk_pool_output_shape(tx, &params, shape))
    call.keep_format(tx, params.layout)
    cdef const DLTensor* ty = call.output("y", out, tx.ndim, shape, tx.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_avg_pool_forward(tx, ty, &params, &call.launch)
    return call.result()


def avg_pool_backward(str op, dy, input_shape, tuple window, tuple average, out, stream):
    cdef Call call = Call(op, stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef dlk_pool_params params
    cdef int64_t shape[MAX_DIMS]
    pool_params(call, "dy", tdy, window, average, &params)
    if out is None:
        extents_of(call, "input_shape", input_shape, tdy.ndim, shape)
    call.keep_format(tdy, params.layout)
    cdef const DLTensor* tdx = call.output("dx", out, tdy.ndim, shape, tdy.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_avg_pool_backward(tdy, tdx, &params, &call.launch)
    return call.result()


def lp_pool(x, norm_type, tuple window, out, stream):
    cdef Call call = Call("lp_pool", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef dlk_pool_params params
    cdef int64_t shape[MAX_DIMS]
    pool_params(call, "x", tx, window, (True, None), &params)
    params.norm = real(call, "norm_type", norm_type)
    check_part(call.op, dlk_pool_output_shape(tx, &params, shape))
    call.keep_format(tx, params.layout)
    cdef const DLTensor* ty = call.output("y", out, tx.ndim, shape, tx.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_lp_pool_forward(tx, ty, &params, &call.launch)
    return call.result()


def lp_pool_backward(dy, x, y, norm_type, tuple window, out, stream):
    cdef Call call = Call("lp_pool_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* ty = call.input("y", y)
    cdef dlk_pool_params params
    pool_params(call, "x", tx, window, (True, None), &params)
    params.norm = real(call, "norm_type", norm_type)
    call.keep_format(tx, params.layout)
    cdef const DLTensor* tdx = call.output("dx", out, tx.ndim, tx.shape, tx.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_lp_pool_backward(tdy, tx, ty, tdx, &params, &call.launch)
    return call.result()
