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
    dlk_status_t dlk_pool_output_shape(const DLTensor*, const dlk_pool_params*, int64_t*)
    dlk_status_t dlk_max_pool_forward(const DLTensor*, const DLTensor*, const DLTensor*,
                                      const dlk_pool_params*, const dlk_launch*)
    dlk_status_t dlk_max_pool_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                       const dlk_pool_params*, const dlk_launch*)
    dlk_status_t dlk_avg_pool_forward(const DLTensor*, const DLTensor*, const dlk_pool_params*,
                                      const dlk_launch*)
    dlk_status_t dlk_avg_pool_backward(const DLTensor*, const DLTensor*, const dlk_pool_params*,
                                       const dlk_launch*)


cdef int whole_or_per_dim(Call call, str name, object value, int dims, int32_t* to) except -1:
    """Positive integers, or 0 for None, which C reads as its default."""
    if value is None:
        return 0
    per_dim(call, name, value, dims, to)
    for d in range(dims):
        if to[d] < 1:
            raise ValueError(f"{call.op}: {name} is {value!r}, expected at least 1")
    return 0


cdef int pool_params(Call call, str name, const DLTensor* image, tuple window, tuple average,
                     dlk_pool_params* p) except -1:
    """From window = (kernel, stride, padding, dilation, ceil_mode, layout) and average =
    (count_include_pad, divisor_override)."""
    kernel, stride, padding, dilation, ceil_mode, layout = window
    cdef int dims = spatial_dims(call, name, image)
    memset(p, 0, sizeof(dlk_pool_params))
    p.struct_size = sizeof(dlk_pool_params)
    p.layout = layout_of(call, layout, image.ndim)
    whole_or_per_dim(call, "kernel", kernel, dims, p.kernel)
    whole_or_per_dim(call, "stride", stride, dims, p.stride)
    for d in range(3):
        p.dilation[d] = 1
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


cdef int pool_output_shape(Call call, const DLTensor* x, const dlk_pool_params* params,
                           int64_t* shape) except -1:
    cdef dlk_status_t status = dlk_pool_output_shape(x, params, shape)
    if status != DLK_SUCCESS:
        message = dlk_last_error().decode().partition(": ")[2]
        raise _exceptions.get(status, RuntimeError)(f"{call.op}: {message}")
    return 0


def max_pool(x, tuple window, bint with_indices, out, out_indices, stream):
    """y, or (y, indices)."""
    cdef Call call = Call("max_pool", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tindices = NULL
    cdef dlk_pool_params params
    cdef int64_t shape[MAX_DIMS]
    pool_params(call, "x", tx, window, (True, None), &params)
    pool_output_shape(call, tx, &params, shape)
    cdef const DLTensor* ty = call.output("y", out, tx.ndim, shape, tx.dtype)
    if with_indices:
        tindices = call.output("indices", out_indices, tx.ndim, shape, dtype_named("int64"))
    while call.pending():
        with nogil:
            call.status = dlk_max_pool_forward(tx, ty, tindices, &params, &call.launch)
    return call.result()


def max_pool_backward(dy, indices, input_shape, tuple window, out, stream):
    cdef Call call = Call("max_pool_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tindices = call.input("indices", indices)
    cdef dlk_pool_params params
    cdef int64_t shape[MAX_DIMS]
    pool_params(call, "dy", tdy, window, (True, None), &params)
    if out is None:
        extents_of(call, "input_shape", input_shape, tdy.ndim, shape)
    cdef const DLTensor* tdx = call.output("dx", out, tdy.ndim, shape, tdy.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_max_pool_backward(tdy, tindices, tdx, &params, &call.launch)
    return call.result()


def avg_pool(x, tuple window, tuple average, out, stream):
    cdef Call call = Call("avg_pool", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef dlk_pool_params params
    cdef int64_t shape[MAX_DIMS]
    pool_params(call, "x", tx, window, average, &params)
    pool_output_shape(call, tx, &params, shape)
    cdef const DLTensor* ty = call.output("y", out, tx.ndim, shape, tx.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_avg_pool_forward(tx, ty, &params, &call.launch)
    return call.result()


def avg_pool_backward(dy, input_shape, tuple window, tuple average, out, stream):
    cdef Call call = Call("avg_pool_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef dlk_pool_params params
    cdef int64_t shape[MAX_DIMS]
    pool_params(call, "dy", tdy, window, average, &params)
    if out is None:
        extents_of(call, "input_shape", input_shape, tdy.ndim, shape)
    cdef const DLTensor* tdx = call.output("dx", out, tdy.ndim, shape, tdy.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_avg_pool_backward(tdy, tdx, &params, &call.launch)
    return call.result()
