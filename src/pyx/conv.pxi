cdef extern from "dlkern/conv.h" nogil:
    ctypedef struct dlk_conv_params:
        uint32_t struct_size
        int32_t layout
        int32_t padding_mode
        int32_t groups
        int32_t precision
        int32_t accumulate
        int32_t stride[3]
        int32_t dilation[3]
        int32_t pad_begin[3]
        int32_t pad_end[3]
        int32_t output_padding[3]
    ctypedef struct dlk_conv_bias_act_params:
        uint32_t struct_size
        int32_t activation
        double alpha
        double threshold
        dlk_conv_params conv
    dlk_status_t dlk_conv_output_shape(const DLTensor*, const DLTensor*, const dlk_conv_params*,
                                       int64_t*)
    dlk_status_t dlk_conv_transpose_output_shape(const DLTensor*, const DLTensor*,
                                                 const dlk_conv_params*, int64_t*)
    dlk_status_t dlk_conv_forward(const DLTensor*, const DLTensor*, const DLTensor*,
                                  const DLTensor*, const dlk_conv_params*, const dlk_launch*)
    dlk_status_t dlk_conv_backward_input(const DLTensor*, const DLTensor*, const DLTensor*,
                                         const dlk_conv_params*, const dlk_launch*)
    dlk_status_t dlk_conv_backward_weight(const DLTensor*, const DLTensor*, const DLTensor*,
                                          const DLTensor*, const dlk_conv_params*,
                                          const dlk_launch*)
    dlk_status_t dlk_conv_transpose_forward(const DLTensor*, const DLTensor*, const DLTensor*,
                                            const DLTensor*, const dlk_conv_params*,
                                            const dlk_launch*)
    dlk_status_t dlk_conv_bias_act_forward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_conv_bias_act_params*, const dlk_launch*)
    dlk_status_t dlk_conv_transpose_bias_act_forward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_conv_bias_act_params*, const dlk_launch*)
    dlk_status_t dlk_conv_transpose_backward_input(const DLTensor*, const DLTensor*,
                                                   const DLTensor*, const dlk_conv_params*,
                                                   const dlk_launch*)
    dlk_status_t dlk_conv_transpose_backward_weight(const DLTensor*, const DLTensor*,
                                                    const DLTensor*, const DLTensor*,
                                                    const dlk_conv_params*, const dlk_launch*)


cdef str conv_op(bint transposed, str verb):
    return ("conv_transpose" if transposed else "conv") + verb


cdef int conv_params(Call call, str name, const DLTensor* image, str other_name,
                     const DLTensor* other, tuple window, dlk_conv_params* p) except -1:
    """From window = (stride, padding, dilation, groups, layout, precision, output_padding)."""
    stride, padding, dilation, groups, layout, precision, output_padding = window
    cdef int dims = spatial_dims(call, name, image)
    if other.ndim != image.ndim:   # before the window, whose entries are counted by dims
        raise ValueError(f"{call.op}: {other_name} has {other.ndim} dimensions, expected "
                         f"{image.ndim}, as {name} has")
    memset(p, 0, sizeof(dlk_conv_params))
    p.struct_size = sizeof(dlk_conv_params)
    p.layout = layout_of(call, layout, image.ndim)
    per_dim(call, "stride", stride, dims, p.stride)
    per_dim(call, "dilation", dilation, dims, p.dilation)
    per_dim(call, "output_padding", output_padding, dims, p.output_padding)
    p.padding_mode = padding_of(call, padding, dims, p.pad_begin, p.pad_end)
    p.groups = <int32_t>integer(call, "groups", groups, 32)
    p.precision = precision_of(call, precision)
    return 0


cdef int conv_output_shape(Call call, bint transposed, const DLTensor* x, const DLTensor* weight,
                           const dlk_conv_params* params, int64_t* shape) except -1:
    return check_part(call.op, dlk_conv_transpose_output_shape(x, weight, params, shape)
                      if transposed else dlk_conv_output_shape(x, weight, params, shape))


def conv(x, weight, bias, bint transposed, tuple window, out, stream):
    cdef Call call = Call(conv_op(transposed, ""), stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef int64_t shape[8]
    cdef dlk_conv_params params
    conv_params(call, "x", tx, "weight", tweight, window, &params)
    if out is None:
        conv_output_shape(call, transposed, tx, tweight, &params, shape)
    call.keep_format(tx, params.layout)
    cdef const DLTensor* ty = call.output("y", out, tx.ndim, shape, tx.dtype)
    while call.pending():
        with nogil:
            if transposed:
                call.status = dlk_conv_transpose_forward(tx, tweight, tbias, ty, &params,
                                                         &call.launch)
            else:
                call.status = dlk_conv_forward(tx, tweight, tbias, ty, &params, &call.launch)
    return call.result()


def conv_bias_act(x, weight, bias, scale, residual, activation, alpha, bint preactivation,
                  bint stats, bint transposed, tuple window, out, out_preactivation, out_mean,
                  out_var, stream):
    """y, and behind it preactivation, mean and var as far as they are wanted."""
    cdef Call call = Call(conv_op(transposed, "_bias_act"), stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.input("weight", weight)
    cdef const DLTensor* tscale = call.optional_input("scale", scale)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* tresidual = call.optional_input("residual", residual)
    cdef dlk_conv_bias_act_params params
    params.struct_size = sizeof(dlk_conv_bias_act_params)
    params.activation = activation_of(call, activation)
    params.alpha = alpha_of(call, params.activation, alpha)
    params.threshold = DLK_ACTIVATION_THRESHOLD
    conv_params(call, "x", tx, "weight", tweight, window, &params.conv)
    cdef int64_t shape[8]
    conv_output_shape(call, transposed, tx, tweight, &params.conv, shape)
    cdef int64_t* channels = &shape[1 if params.conv.layout == DLK_LAYOUT_NCHW else tx.ndim - 1]
    call.keep_format(tx, params.conv.layout)
    cdef const DLTensor* ty = call.output("y", out, tx.ndim, shape, tx.dtype)
    cdef const DLTensor* tpre = NULL
    cdef const DLTensor* tmean = NULL
    cdef const DLTensor* tvar = NULL
    if preactivation:
        tpre = call.output("preactivation", out_preactivation, tx.ndim, shape, tx.dtype)
    if stats:
        tmean = call.output("mean", out_mean, 1, channels, accumulator_of(tx.dtype))
        tvar = call.output("var", out_var, 1, channels, accumulator_of(tx.dtype))
    while call.pending():
        with nogil:
            if transposed:
                call.status = dlk_conv_transpose_bias_act_forward(
                    tx, tweight, tscale, tbias, tresidual, ty, tpre, tmean, tvar, &params,
                    &call.launch)
            else:
                call.status = dlk_conv_bias_act_forward(
                    tx, tweight, tscale, tbias, tresidual, ty, tpre, tmean, tvar, &params,
                    &call.launch)
    return call.result()


def conv_backward_input(dy, weight, input_shape, bint transposed, tuple window, out, stream):
    cdef Call call = Call(conv_op(transposed, "_backward_input"), stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tweight = call.input("weight", weight)
    cdef int64_t shape[8]
    cdef dlk_conv_params params
    conv_params(call, "dy", tdy, "weight", tweight, window, &params)
    if out is None:
        extents_of(call, "input_shape", input_shape, tdy.ndim, shape)
    call.keep_format(tdy, params.layout)
    cdef const DLTensor* tdx = call.output("dx", out, tdy.ndim, shape, tdy.dtype)
    while call.pending():
        with nogil:
            if transposed:
                call.status = dlk_conv_transpose_backward_input(tdy, tweight, tdx, &params,
                                                                &call.launch)
            else:
                call.status = dlk_conv_backward_input(tdy, tweight, tdx, &params, &call.launch)
    return call.result()


def conv_backward_weight(dy, x, weight_shape, bint transposed, tuple window, bint bias,
                         bint accumulate, out, out_bias, stream):
    """dweight, or (dweight, dbias) with bias."""
    cdef Call call = Call(conv_op(transposed, "_backward_weight"), stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tdbias = NULL
    cdef int64_t shape[8]
    cdef dlk_conv_params params
    conv_params(call, "x", tx, "dy", tdy, window, &params)
    params.accumulate = accumulate
    if accumulate and (out is None or (bias and out_bias is None)):
        raise ValueError(f"{call.op}: accumulate is True, expected out"
                         f"{' and out_bias' if bias else ''} to add to")
    if out is None:
        extents_of(call, "weight_shape", weight_shape, tx.ndim, shape)
    call.keep_format(tx, params.layout)
    cdef const DLTensor* tdweight = call.output("dweight", out, tx.ndim, shape, tx.dtype)
    if bias:
        shape[0] = tdy.shape[1 if params.layout == DLK_LAYOUT_NCHW else tdy.ndim - 1]
        tdbias = call.output("dbias", out_bias, 1, shape, tx.dtype)
    while call.pending():
        with nogil:
            if transposed:
                call.status = dlk_conv_transpose_backward_weight(tdy, tx, tdweight, tdbias,
                                                                 &params, &call.launch)
            else:
                call.status = dlk_conv_backward_weight(tdy, tx, tdweight, tdbias, &params,
                                                       &call.launch)
    return call.result()
