cdef extern from "dlkern/norm.h" nogil:
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
        call.outputs += (None,)
        return NULL
    return call.output(name, out, ndim, shape, dtype)


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
