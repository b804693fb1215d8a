cdef extern from "dlkern/conv.h" nogil:
    ctypedef struct dlk_scaled_conv_params:
        uint32_t struct_size
        int32_t activation
        double alpha
        double threshold
        dlk_conv_params conv
    dlk_status_t dlk_scaled_conv(const DLTensor*, const DLTensor*, const DLTensor*,
                                 const DLTensor*, const DLTensor*, const DLTensor*,
                                 const DLTensor*, const DLTensor*,
                                 const dlk_scaled_conv_params*, const dlk_launch*)


def scaled_conv(x, weight, scale_x, scale_weight, bias, tuple window, activation, alpha, out_dtype,
                scale_out, amax, out, out_amax, stream):
    """y, or (y, amax) with amax."""
    cdef Call call = Call("scaled_conv", stream)
    require_flag(call, amax)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.input("weight", weight)
    cdef const DLTensor* tscale_x = call.optional_input("scale_x", scale_x)
    cdef const DLTensor* tscale_weight = call.optional_input("scale_weight", scale_weight)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* tscale_out = call.optional_input("scale_out", scale_out)
    cdef int kind = activation_of(call, activation)
    cdef dlk_scaled_conv_params params
    params.struct_size = sizeof(dlk_scaled_conv_params)
    params.activation = kind
    params.alpha = alpha_of(call, kind, alpha)
    params.threshold = DLK_ACTIVATION_THRESHOLD
    conv_params(call, "x", tx, "weight", tweight, window, &params.conv)
    cdef int64_t shape[8]
    if out is None:
        conv_output_shape(call, False, tx, tweight, &params.conv, shape)
    plain = (scale_x is None and scale_weight is None and bias is None and activation is None
             and scale_out is None and not amax and out_amax is None)
    call.keep_format(tx, params.conv.layout)
    cdef const DLTensor* ty = call.output("y", out, tx.ndim, shape,
                                          result_dtype(call, out_dtype, tx.dtype, plain))
    cdef const DLTensor* tamax = NULL
    if amax or out_amax is not None:
        tamax = call.output("amax", out_amax, 0, shape, dtype_named("float32"))
    while call.pending():
        with nogil:
            call.status = dlk_scaled_conv(tx, tweight, tscale_x, tscale_weight, tbias, tscale_out,
                                          ty, tamax, &params, &call.launch)
    return call.result()
