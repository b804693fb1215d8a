cdef extern from "dlkern/norm_group.h" nogil:
    ctypedef struct dlk_group_norm_params:
        uint32_t struct_size
        int32_t layout
        int64_t num_groups
        double eps
        int32_t activation
    ctypedef struct dlk_instance_norm_params:
        uint32_t struct_size
        int32_t layout
        double eps
        double momentum
        int32_t activation
    dlk_status_t dlk_group_norm_forward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const dlk_group_norm_params*, const dlk_launch*)
    dlk_status_t dlk_group_norm_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_group_norm_params*, const dlk_launch*)
    dlk_status_t dlk_instance_norm_forward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const dlk_instance_norm_params*,
        const dlk_launch*)
    dlk_status_t dlk_instance_norm_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_instance_norm_params*, const dlk_launch*)


cdef dlk_group_norm_params group_params(Call call, const DLTensor* x, object num_groups,
                                        object layout, object eps, object activation) except *:
    return dlk_group_norm_params(
        sizeof(dlk_group_norm_params), layout_of(call, layout, x.ndim),
        integer(call, "num_groups", num_groups), real(call, "eps", eps),
        norm_activation_of(call, activation))


cdef dlk_instance_norm_params instance_params(Call call, const DLTensor* x, object layout,
                                              object eps, object momentum,
                                              object activation) except *:
    return dlk_instance_norm_params(
        sizeof(dlk_instance_norm_params), layout_of(call, layout, x.ndim), real(call, "eps", eps),
        real(call, "momentum", momentum), norm_activation_of(call, activation))


cdef int add_statistics(Call call, const DLTensor* x, int64_t groups, bint wanted, object out_mean,
                        object out_rstd, const DLTensor** mean, const DLTensor** rstd) except -1:
    """The outputs mean and rstd [N, groups]; NULL where they are not wanted."""
    cdef int64_t[2] shape
    mean[0] = rstd[0] = NULL
    if wanted:
        shape[0] = x.shape[0] if x.ndim else 1
        shape[1] = groups
        mean[0] = call.output("mean", out_mean, 2, shape, accumulator_of(x.dtype))
        rstd[0] = call.output("rstd", out_rstd, 2, shape, accumulator_of(x.dtype))
    return 0


def group_norm(x, num_groups, weight, bias, activation, eps, layout, bint stats, out, out_mean,
               out_rstd, stream):
    cdef Call call = Call("group_norm", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef dlk_group_norm_params params = group_params(call, tx, num_groups, layout, eps, activation)
    call.keep_format(tx, params.layout)
    cdef const DLTensor* ty = call.output_like("y", out, tx)
    cdef const DLTensor* tmean
    cdef const DLTensor* trstd
    add_statistics(call, tx, max(params.num_groups, 0), stats, out_mean, out_rstd, &tmean, &trstd)
    while call.pending():
        with nogil:
            call.status = dlk_group_norm_forward(tx, tweight, tbias, ty, tmean, trstd, &params,
                                                 &call.launch)
    return call.result()


def instance_norm(x, weight, bias, running_mean, running_var, activation, momentum, eps, layout,
                  bint stats, out, out_mean, out_rstd, stream):
    cdef Call call = Call("instance_norm", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* trunning_mean = call.optional_inout("running_mean", running_mean)
    cdef const DLTensor* trunning_var = call.optional_inout("running_var", running_var)
    cdef dlk_instance_norm_params params = instance_params(call, tx, layout, eps, momentum,
                                                           activation)
    call.keep_format(tx, params.layout)
    cdef const DLTensor* ty = call.output_like("y", out, tx)
    cdef const DLTensor* tmean
    cdef const DLTensor* trstd
    add_statistics(call, tx, channels_of(tx, params.layout), stats, out_mean, out_rstd, &tmean,
                   &trstd)
    while call.pending():
        with nogil:
            call.status = dlk_instance_norm_forward(tx, tweight, tbias, trunning_mean, trunning_var,
                                                    ty, tmean, trstd, &params, &call.launch)
    return call.result()


def group_norm_backward(dy, x, num_groups, weight, mean, rstd, activation, bias, layout, out,
                        out_weight, out_bias, stream):
    """num_groups None: instance_norm."""
    cdef Call call = Call(
        "instance_norm_backward" if num_groups is None else "group_norm_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tbias = call.optional_input("bias", None if is_flag(bias) else bias)
    cdef const DLTensor* tmean = call.input("mean", mean)
    cdef const DLTensor* trstd = call.input("rstd", rstd)
    cdef bint instance = num_groups is None
    cdef dlk_group_norm_params params = group_params(call, tx, 1 if instance else num_groups,
                                                     layout, 0.0, activation)
    cdef dlk_instance_norm_params instance_params_ = instance_params(call, tx, layout, 0.0, 0.0,
                                                                     activation)
    cdef int64_t channels = channels_of(tx, params.layout)
    cdef DLDataType dtype = tx.dtype if tweight == NULL else tweight.dtype
    cdef bint has_bias = True if tbias != NULL else wants_bias(call, bias, weight)
    call.keep_format(tx, params.layout)
    cdef const DLTensor* tdx = call.output_like("dx", out, tx)
    cdef const DLTensor* tdweight = gradient(call, "dweight", out_weight, weight is not None, 1,
                                             &channels, dtype)
    cdef const DLTensor* tdbias = gradient(call, "dbias", out_bias, has_bias, 1, &channels, dtype)
    while call.pending():
        with nogil:
            if instance:
                call.status = dlk_instance_norm_backward(
                    tdy, tx, tweight, tbias, tmean, trstd, tdx, tdweight, tdbias, &instance_params_,
                    &call.launch)
            else:
                call.status = dlk_group_norm_backward(
                    tdy, tx, tweight, tbias, tmean, trstd, tdx, tdweight, tdbias, &params,
                    &call.launch)
    return call.result()
