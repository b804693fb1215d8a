cdef extern from "dlkern/norm.h" nogil:
    ctypedef struct dlk_batch_norm_params:
        uint32_t struct_size
        int32_t layout
        double eps
        double momentum
    ctypedef struct dlk_layer_norm_params:
        uint32_t struct_size
        int32_t normalized_ndim
        double eps
        double weight_offset
    ctypedef struct dlk_rms_norm_params:
        uint32_t struct_size
        int32_t normalized_ndim
        double eps
        double weight_offset
    dlk_status_t dlk_batch_norm_training(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const dlk_batch_norm_params*,
        const dlk_launch*)
    dlk_status_t dlk_batch_norm_inference(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const dlk_batch_norm_params*, const dlk_launch*)
    dlk_status_t dlk_batch_norm_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const dlk_batch_norm_params*,
        const dlk_launch*)
    dlk_status_t dlk_batch_norm_inference_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const dlk_batch_norm_params*,
        const dlk_launch*)
    dlk_status_t dlk_layer_norm_forward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_layer_norm_params*, const dlk_launch*)
    dlk_status_t dlk_layer_norm_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_layer_norm_params*, const dlk_launch*)
    dlk_status_t dlk_rms_norm_forward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const dlk_rms_norm_params*,
        const dlk_launch*)
    dlk_status_t dlk_rms_norm_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const dlk_rms_norm_params*, const dlk_launch*)


cdef DLDataType accumulator_of(DLDataType dtype) except *:
    """What values of this dtype are summed in."""
    return dtype if dtype.bits == 64 else dtype_named("float32")


cdef dlk_batch_norm_params batch_params(Call call, const DLTensor* x, object layout, object eps,
                                        object momentum=0.0) except *:
    return dlk_batch_norm_params(
        sizeof(dlk_batch_norm_params), layout_of(call, layout, x.ndim), real(call, "eps", eps),
        real(call, "momentum", momentum))


cdef bint wants_bias(Call call, object bias, object weight) except -1:
    """The argument `bias` of a gradient, which says whether dbias is wanted."""
    if bias is not None and not isinstance(bias, bool):
        raise TypeError(f"{call.op}: bias is {type(bias).__name__}, expected True, False or None")
    return weight is not None if bias is None else bias


cdef const DLTensor* gradient(Call call, str name, object out, bint wanted,
                              int ndim, const int64_t* shape, DLDataType dtype) except? NULL:
    """An optional output with the dtype of its parameter; NULL, and None in the result, where it
    is not wanted."""
    if not wanted and out is None:
        call.outputs.append(None)
        return NULL
    return call.output(name, out, ndim, shape, dtype)


def batch_norm(x, weight, bias, running_mean, running_var, eps, layout, out, stream):
    cdef Call call = Call("batch_norm", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* tmean = call.input("running_mean", running_mean)
    cdef const DLTensor* tvar = call.input("running_var", running_var)
    cdef const DLTensor* ty = call.output_like("y", out, tx)
    cdef dlk_batch_norm_params params = batch_params(call, tx, layout, eps)
    while call.pending():
        with nogil:
            call.status = dlk_batch_norm_inference(tx, tweight, tbias, tmean, tvar, ty, &params,
                                                   &call.launch)
    return call.result()


def batch_norm_training(x, weight, bias, running_mean, running_var, momentum, eps, layout, out,
                        out_mean, out_rstd, stream):
    cdef Call call = Call("batch_norm_training", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* tmean = call.optional_inout("running_mean", running_mean)
    cdef const DLTensor* tvar = call.optional_inout("running_var", running_var)
    cdef dlk_batch_norm_params params = batch_params(call, tx, layout, eps, momentum)
    cdef int64_t channels = channels_of(tx, params.layout)
    cdef DLDataType wide = accumulator_of(tx.dtype)
    cdef const DLTensor* ty = call.output_like("y", out, tx)
    cdef const DLTensor* tsave_mean = call.output("mean", out_mean, 1, &channels, wide)
    cdef const DLTensor* tsave_rstd = call.output("rstd", out_rstd, 1, &channels, wide)
    while call.pending():
        with nogil:
            call.status = dlk_batch_norm_training(tx, tweight, tbias, tmean, tvar, ty, tsave_mean,
                                                  tsave_rstd, &params, &call.launch)
    return call.result()


cdef int64_t channels_of(const DLTensor* x, int32_t layout) noexcept:
    """Extent of the channels; anything for a rank that the C function refuses."""
    if x.ndim < 2:
        return 1
    return x.shape[1 if layout == DLK_LAYOUT_NCHW else x.ndim - 1]


def batch_norm_backward(dy, x, weight, mean, rstd, bint training, eps, bias, layout, out,
                        out_weight, out_bias, stream):
    cdef Call call = Call(
        "batch_norm_backward" if training else "batch_norm_inference_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tmean = call.input("mean" if training else "running_mean", mean)
    cdef const DLTensor* trstd = call.input("rstd" if training else "running_var", rstd)
    cdef dlk_batch_norm_params params = batch_params(call, tx, layout, eps)
    cdef int64_t channels = channels_of(tx, params.layout)
    cdef DLDataType dtype = tx.dtype if tweight == NULL else tweight.dtype
    cdef bint has_bias = wants_bias(call, bias, weight)
    cdef const DLTensor* tdx = call.output_like("dx", out, tx)
    cdef const DLTensor* tdweight = gradient(call, "dweight", out_weight, weight is not None, 1,
                                             &channels, dtype)
    cdef const DLTensor* tdbias = gradient(call, "dbias", out_bias, has_bias, 1, &channels, dtype)
    while call.pending():
        with nogil:
            if training:
                call.status = dlk_batch_norm_backward(tdy, tx, tweight, tmean, trstd, tdx, tdweight,
                                                      tdbias, &params, &call.launch)
            else:
                call.status = dlk_batch_norm_inference_backward(
                    tdy, tx, tweight, tmean, trstd, tdx, tdweight, tdbias, &params, &call.launch)
    return call.result()


cdef int leading_dims(const DLTensor* x, int normalized_ndim) noexcept:
    """How many dimensions of x make the rows; anything for a number that C refuses."""
    return min(max(x.ndim - normalized_ndim, 0), x.ndim)


cdef const DLTensor* normalized(Call call, object out, object out_dtype,
                                const DLTensor* x) except NULL:
    """The output y: of x's dtype, or of the one that is named."""
    if out_dtype is None:
        return call.output_like("y", out, x)
    if out_dtype not in _dtype_codes:
        raise ValueError(f"{call.op}: out_dtype is {out_dtype!r}, expected the name of a dtype")
    return call.output("y", out, x.ndim, x.shape, dtype_named(out_dtype))


cdef const DLTensor* residual_sum(Call call, object out, const DLTensor* residual,
                                  const DLTensor* x) except? NULL:
    """The output residual_out, where there is a residual or one is asked for."""
    if residual == NULL and out is None:
        return NULL
    return call.output("residual_out", out, x.ndim, x.shape, x.dtype, "out_residual")


cdef const DLTensor* largest(Call call, object amax, object out, const DLTensor* x) except? NULL:
    """The output amax, where it is wanted."""
    if amax is not True and amax is not False:
        raise TypeError(f"{call.op}: amax is {type(amax).__name__}, expected True or False; "
                        "out_amax receives the number")
    if not amax and out is None:
        return NULL
    return call.output("amax", out, 0, x.shape, dtype_named("float32"))


def layer_norm(x, weight, bias, residual, normalized_ndim, eps, weight_offset, out_dtype, scale_out,
               amax, bint stats, out, out_residual, out_mean, out_rstd, out_amax, stream):
    """y, and behind it residual_out, mean, rstd and amax as far as they are wanted."""
    cdef Call call = Call("layer_norm", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tresidual = call.optional_input("residual", residual)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* tscale = call.optional_input("scale_out", scale_out)
    cdef dlk_layer_norm_params params = dlk_layer_norm_params(
        sizeof(dlk_layer_norm_params),
        <int32_t>integer(call, "normalized_ndim", normalized_ndim, 32), real(call, "eps", eps),
        real(call, "weight_offset", weight_offset))
    cdef int rows = leading_dims(tx, params.normalized_ndim)
    cdef DLDataType wide = accumulator_of(tx.dtype)
    cdef const DLTensor* ty = normalized(call, out, out_dtype, tx)
    cdef const DLTensor* tsum = residual_sum(call, out_residual, tresidual, tx)
    cdef const DLTensor* tmean = NULL
    cdef const DLTensor* trstd = NULL
    if stats:
        tmean = call.output("mean", out_mean, rows, tx.shape, wide)
        trstd = call.output("rstd", out_rstd, rows, tx.shape, wide)
    cdef const DLTensor* tamax = largest(call, amax, out_amax, tx)
    while call.pending():
        with nogil:
            call.status = dlk_layer_norm_forward(tx, tresidual, tweight, tbias, tscale, ty, tsum,
                                                 tmean, trstd, tamax, &params, &call.launch)
    return call.result()


def layer_norm_backward(dy, x, weight, mean, rstd, dresidual, normalized_ndim, weight_offset, bias,
                        out, out_weight, out_bias, stream):
    cdef Call call = Call("layer_norm_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tmean = call.input("mean", mean)
    cdef const DLTensor* trstd = call.input("rstd", rstd)
    cdef const DLTensor* tdresidual = call.optional_input("dresidual", dresidual)
    cdef dlk_layer_norm_params params = dlk_layer_norm_params(
        sizeof(dlk_layer_norm_params),
        <int32_t>integer(call, "normalized_ndim", normalized_ndim, 32), 0.0,
        real(call, "weight_offset", weight_offset))
    cdef int rows = leading_dims(tx, params.normalized_ndim)
    cdef DLDataType dtype = tx.dtype if tweight == NULL else tweight.dtype
    cdef bint has_bias = wants_bias(call, bias, weight)
    cdef const DLTensor* tdx = call.output_like("dx", out, tx)
    cdef const DLTensor* tdweight = gradient(call, "dweight", out_weight, weight is not None,
                                             tx.ndim - rows, tx.shape + rows, dtype)
    cdef const DLTensor* tdbias = gradient(call, "dbias", out_bias, has_bias, tx.ndim - rows,
                                           tx.shape + rows, dtype)
    while call.pending():
        with nogil:
            call.status = dlk_layer_norm_backward(tdy, tx, tweight, tmean, trstd, tdresidual, tdx,
                                                  tdweight, tdbias, &params, &call.launch)
    return call.result()


def rms_norm(x, weight, residual, normalized_ndim, eps, weight_offset, out_dtype, scale_out, amax,
             bint stats, out, out_residual, out_rstd, out_amax, stream):
    """y, and behind it residual_out, rstd and amax as far as they are wanted."""
    cdef Call call = Call("rms_norm", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tresidual = call.optional_input("residual", residual)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tscale = call.optional_input("scale_out", scale_out)
    cdef dlk_rms_norm_params params = dlk_rms_norm_params(
        sizeof(dlk_rms_norm_params),
        <int32_t>integer(call, "normalized_ndim", normalized_ndim, 32), real(call, "eps", eps),
        real(call, "weight_offset", weight_offset))
    cdef int rows = leading_dims(tx, params.normalized_ndim)
    cdef const DLTensor* ty = normalized(call, out, out_dtype, tx)
    cdef const DLTensor* tsum = residual_sum(call, out_residual, tresidual, tx)
    cdef const DLTensor* trstd = NULL
    if stats:
        trstd = call.output("rstd", out_rstd, rows, tx.shape, accumulator_of(tx.dtype))
    cdef const DLTensor* tamax = largest(call, amax, out_amax, tx)
    while call.pending():
        with nogil:
            call.status = dlk_rms_norm_forward(tx, tresidual, tweight, tscale, ty, tsum, trstd,
                                               tamax, &params, &call.launch)
    return call.result()


def rms_norm_backward(dy, x, weight, rstd, dresidual, normalized_ndim, weight_offset, out,
                      out_weight, stream):
    cdef Call call = Call("rms_norm_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* trstd = call.input("rstd", rstd)
    cdef const DLTensor* tdresidual = call.optional_input("dresidual", dresidual)
    cdef dlk_rms_norm_params params = dlk_rms_norm_params(
        sizeof(dlk_rms_norm_params),
        <int32_t>integer(call, "normalized_ndim", normalized_ndim, 32), 0.0,
        real(call, "weight_offset", weight_offset))
    cdef int rows = leading_dims(tx, params.normalized_ndim)
    cdef DLDataType dtype = tx.dtype if tweight == NULL else tweight.dtype
    cdef const DLTensor* tdx = call.output_like("dx", out, tx)
    cdef const DLTensor* tdweight = gradient(call, "dweight", out_weight, weight is not None,
                                             tx.ndim - rows, tx.shape + rows, dtype)
    while call.pending():
        with nogil:
            call.status = dlk_rms_norm_backward(tdy, tx, tweight, trstd, tdresidual, tdx, tdweight,
                                                &params, &call.launch)
    return call.result()
