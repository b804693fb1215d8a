cdef extern from "dlkern/norm.h" nogil:
    ctypedef struct dlk_batch_norm_params:
        uint32_t struct_size
        int32_t layout
        double eps
        double momentum
        int32_t activation
        int32_t cumulative
    dlk_status_t dlk_batch_norm_training(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_batch_norm_params*, const dlk_launch*)
    dlk_status_t dlk_batch_norm_training_given(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const dlk_batch_norm_params*, const dlk_launch*)
    dlk_status_t dlk_batch_norm_inference(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const dlk_batch_norm_params*, const dlk_launch*)
    dlk_status_t dlk_batch_norm_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const dlk_batch_norm_params*, const dlk_launch*)
    dlk_status_t dlk_batch_norm_inference_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const dlk_batch_norm_params*, const dlk_launch*)


cdef int norm_activation_of(Call call, object name) except -1:
    """The dlk_activation that a norm can be followed by."""
    if name not in (None, "relu", "silu"):
        raise ValueError(
            f'{call.op}: activation is {name!r}, expected None, "relu" or "silu"')
    return activation_of(call, name)


cdef dlk_batch_norm_params batch_params(Call call, const DLTensor* x, object layout, object eps,
                                        object activation) except *:
    return dlk_batch_norm_params(
        sizeof(dlk_batch_norm_params), layout_of(call, layout, x.ndim), real(call, "eps", eps), 0.0,
        norm_activation_of(call, activation), 0)


cdef int64_t channels_of(const DLTensor* x, int32_t layout) noexcept:
    """Extent of the channels; anything for a rank that the C function refuses."""
    if x.ndim < 2:
        return 1
    return x.shape[1 if layout == DLK_LAYOUT_NCHW else x.ndim - 1]


cdef bint is_flag(object bias) noexcept:
    """The argument `bias` of a gradient says only whether dbias is wanted; else it is an array."""
    return bias is None or isinstance(bias, bool)


def batch_norm(x, weight, bias, running_mean, running_var, residual, activation, eps, layout, out,
               stream):
    cdef Call call = Call("batch_norm", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* tresidual = call.optional_input("residual", residual)
    cdef const DLTensor* tmean = call.input("running_mean", running_mean)
    cdef const DLTensor* tvar = call.input("running_var", running_var)
    cdef dlk_batch_norm_params params = batch_params(call, tx, layout, eps, activation)
    call.keep_format(tx, params.layout)
    cdef const DLTensor* ty = call.output_like("y", out, tx)
    while call.pending():
        with nogil:
            call.status = dlk_batch_norm_inference(tx, tweight, tbias, tresidual, tmean, tvar, ty,
                                                   &params, &call.launch)
    return call.result()


def batch_norm_training(x, weight, bias, running_mean, running_var, residual, activation, momentum,
                        num_batches_tracked, mean, var, eps, layout, out, out_mean, out_rstd,
                        stream):
    """y, mean and rstd, or y and rstd where mean and var are given."""
    cdef Call call = Call("batch_norm_training", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* tresidual = call.optional_input("residual", residual)
    cdef const DLTensor* tmean = call.optional_inout("running_mean", running_mean)
    cdef const DLTensor* tvar = call.optional_inout("running_var", running_var)
    cdef const DLTensor* tcount = call.optional_inout("num_batches_tracked", num_batches_tracked)
    cdef const DLTensor* tgiven_mean = call.optional_input("stats[0]", mean)
    cdef const DLTensor* tgiven_var = call.optional_input("stats[1]", var)
    if mean is not None:
        call.rename("mean", "stats[0]")
        call.rename("var", "stats[1]")
    call.rename("num_batches", "num_batches_tracked")
    cdef dlk_batch_norm_params params = batch_params(call, tx, layout, eps, activation)
    if momentum is None:
        if running_mean is not None and tcount == NULL:
            raise ValueError("batch_norm_training: num_batches_tracked is None, expected an array "
                             "to count in, beside momentum=None")
        params.cumulative = tcount != NULL
    else:
        params.momentum = real(call, "momentum", momentum)
    cdef int64_t channels = channels_of(tx, params.layout)
    cdef DLDataType wide = accumulator_of(tx.dtype)
    call.keep_format(tx, params.layout)
    cdef const DLTensor* ty = call.output_like("y", out, tx)
    cdef const DLTensor* tsave_mean = NULL
    if tgiven_mean == NULL:
        tsave_mean = call.output("mean", out_mean, 1, &channels, wide)
    cdef const DLTensor* tsave_rstd = call.output("rstd", out_rstd, 1, &channels, wide)
    while call.pending():
        with nogil:
            if tgiven_mean == NULL:
                call.status = dlk_batch_norm_training(tx, tweight, tbias, tresidual, tmean, tvar,
                                                      tcount, ty, tsave_mean, tsave_rstd, &params,
                                                      &call.launch)
            else:
                call.status = dlk_batch_norm_training_given(
                    tx, tgiven_mean, tgiven_var, tweight, tbias, tresidual, tmean, tvar, tcount,
                    ty, tsave_rstd, &params, &call.launch)
    return call.result()


def batch_norm_backward(dy, x, weight, mean, rstd, bint training, y, activation, eps, bias, layout,
                        out, out_weight, out_bias, out_residual, stream):
    cdef Call call = Call(
        "batch_norm_backward" if training else "batch_norm_inference_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", None if is_flag(bias) else bias)
    cdef const DLTensor* ty = call.optional_input("y", y)
    cdef const DLTensor* tmean = call.input("mean" if training else "running_mean", mean)
    cdef const DLTensor* trstd = call.input("rstd" if training else "running_var", rstd)
    cdef dlk_batch_norm_params params = batch_params(call, tx, layout, eps, activation)
    cdef int64_t channels = channels_of(tx, params.layout)
    cdef DLDataType dtype = tx.dtype if tweight == NULL else tweight.dtype
    cdef bint has_bias = True if tbias != NULL else wants_bias(call, bias, weight)
    call.keep_format(tx, params.layout)
    cdef const DLTensor* tdx = call.output_like("dx", out, tx)
    cdef const DLTensor* tdweight = gradient(call, "dweight", out_weight, weight is not None, 1,
                                             &channels, dtype)
    cdef const DLTensor* tdbias = gradient(call, "dbias", out_bias, has_bias, 1, &channels, dtype)
    cdef const DLTensor* tdresidual = NULL
    if y is not None or out_residual is not None:
        tdresidual = call.output_like("dresidual", out_residual, tx)
    while call.pending():
        with nogil:
            if training:
                call.status = dlk_batch_norm_backward(
                    tdy, tx, tweight, tbias, ty, tmean, trstd, tdx, tdweight, tdbias, tdresidual,
                    &params, &call.launch)
            else:
                call.status = dlk_batch_norm_inference_backward(
                    tdy, tx, tweight, tbias, ty, tmean, trstd, tdx, tdweight, tdbias, tdresidual,
                    &params, &call.launch)
    return call.result()
