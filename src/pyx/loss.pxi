cdef extern from "dlkern/loss.h" nogil:
    ctypedef struct dlk_cross_entropy_params:
        uint32_t struct_size
        int32_t reduction
        int64_t ignore_index
        double label_smoothing
        double z_loss
    dlk_status_t dlk_cross_entropy_forward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_cross_entropy_params*, const dlk_launch*)
    dlk_status_t dlk_cross_entropy_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_cross_entropy_params*, const dlk_launch*)
    dlk_status_t dlk_cross_entropy_forward_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const dlk_cross_entropy_params*, const dlk_launch*)

    ctypedef struct dlk_nll_loss_params:
        uint32_t struct_size
        int32_t reduction
        int64_t ignore_index
    dlk_status_t dlk_nll_loss_forward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_nll_loss_params*, const dlk_launch*)
    dlk_status_t dlk_nll_loss_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_nll_loss_params*, const dlk_launch*)
    ctypedef enum dlk_loss_kind:
        DLK_LOSS_MSE
        DLK_LOSS_L1
        DLK_LOSS_SMOOTH_L1
        DLK_LOSS_HUBER
        DLK_LOSS_BINARY_CROSS_ENTROPY_WITH_LOGITS
        DLK_LOSS_KL_DIV
        DLK_LOSS_KL_DIV_LOG_TARGET
    ctypedef struct dlk_loss_params:
        uint32_t struct_size
        int32_t kind
        int32_t reduction
        int32_t reserved
        double threshold
    dlk_status_t dlk_loss_forward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_loss_params*, const dlk_launch*)
    dlk_status_t dlk_loss_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const dlk_loss_params*, const dlk_launch*)


cdef dict _reductions = {
    "none": DLK_REDUCTION_NONE, "mean": DLK_REDUCTION_MEAN, "sum": DLK_REDUCTION_SUM,
}


cdef int32_t reduction_of(Call call, object reduction) except -1:
    known = _reductions.get(reduction) if isinstance(reduction, str) else None
    if known is None:
        raise ValueError(f"{call.op}: reduction is {reduction!r}, expected one of "
                         f"{', '.join(_reductions)}")
    return known


# Of all rows, as labels has them, or of their sum.
cdef const DLTensor* loss_output(Call call, object out, const DLTensor* labels, int32_t reduction,
                                 DLDataType dtype) except NULL:
    return call.output("loss", out, labels.ndim if reduction == DLK_REDUCTION_NONE else 0,
                       labels.shape, dtype)


# The same where labels may be probabilities, of the shape of logits. (Of logits without a dimension
# the C function says what is wrong.)
cdef const DLTensor* cross_entropy_output(Call call, object out, const DLTensor* logits,
                                          const DLTensor* labels, int32_t reduction) except NULL:
    cdef int64_t[MAX_DIMS] rows
    cdef int i, axis = 0 if logits.ndim == 1 else 1
    if labels.ndim != logits.ndim or logits.ndim == 0:
        return loss_output(call, out, labels, reduction, logits.dtype)
    for i in range(logits.ndim - 1):
        rows[i] = logits.shape[i if i < axis else i + 1]
    return call.output("loss", out, logits.ndim - 1 if reduction == DLK_REDUCTION_NONE else 0, rows,
                       logits.dtype)


cdef dlk_cross_entropy_params cross_entropy_params(
        Call call, object reduction, object ignore_index, object label_smoothing,
        object z_loss) except *:
    return dlk_cross_entropy_params(
        sizeof(dlk_cross_entropy_params), reduction_of(call, reduction),
        integer(call, "ignore_index", ignore_index),
        real(call, "label_smoothing", label_smoothing), real(call, "z_loss", z_loss))


def cross_entropy(logits, labels, weight, reduction, ignore_index, label_smoothing, z_loss, out,
                  stream):
    cdef Call call = Call("cross_entropy", stream)
    cdef const DLTensor* tlogits = call.input("logits", logits)
    cdef const DLTensor* tlabels = call.input("labels", labels)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef dlk_cross_entropy_params params = cross_entropy_params(
        call, reduction, ignore_index, label_smoothing, z_loss)
    cdef const DLTensor* tloss = cross_entropy_output(call, out, tlogits, tlabels, params.reduction)
    while call.pending():
        with nogil:
            call.status = dlk_cross_entropy_forward(tlogits, tlabels, tweight, tloss, &params,
                                                    &call.launch)
    return call.result()


def cross_entropy_backward(dloss, logits, labels, weight, reduction, ignore_index, label_smoothing,
                           z_loss, out, stream):
    cdef Call call = Call("cross_entropy_backward", stream)
    cdef const DLTensor* tdloss = call.input("dloss", dloss)
    cdef const DLTensor* tlogits = call.input("logits", logits)
    cdef const DLTensor* tlabels = call.input("labels", labels)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef dlk_cross_entropy_params params = cross_entropy_params(
        call, reduction, ignore_index, label_smoothing, z_loss)
    cdef const DLTensor* tdlogits = call.output_like("dlogits", out, tlogits)
    while call.pending():
        with nogil:
            call.status = dlk_cross_entropy_backward(tdloss, tlogits, tlabels, tweight, tdlogits,
                                                     &params, &call.launch)
    return call.result()


def cross_entropy_with_grad(logits, labels, weight, dloss, reduction, ignore_index, label_smoothing,
                            z_loss, out, grad_out, stream):
    cdef Call call = Call("cross_entropy_with_grad", stream)
    cdef const DLTensor* tlogits = call.input("logits", logits)
    cdef const DLTensor* tlabels = call.input("labels", labels)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tdloss = call.optional_input("dloss", dloss)
    cdef dlk_cross_entropy_params params = cross_entropy_params(
        call, reduction, ignore_index, label_smoothing, z_loss)
    cdef const DLTensor* tloss = cross_entropy_output(call, out, tlogits, tlabels, params.reduction)
    cdef const DLTensor* tdlogits = call.output("dlogits", grad_out, tlogits.ndim, tlogits.shape,
                                                tlogits.dtype, "grad_out")
    while call.pending():
        with nogil:
            call.status = dlk_cross_entropy_forward_backward(
                tlogits, tlabels, tweight, tdloss, tloss, tdlogits, &params, &call.launch)
    return call.result()


def nll_loss(log_p, labels, weight, reduction, ignore_index, out, stream):
    cdef Call call = Call("nll_loss", stream)
    cdef const DLTensor* tlog_p = call.input("log_p", log_p)
    cdef const DLTensor* tlabels = call.input("labels", labels)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef dlk_nll_loss_params params = dlk_nll_loss_params(
        sizeof(dlk_nll_loss_params), reduction_of(call, reduction),
        integer(call, "ignore_index", ignore_index))
    cdef const DLTensor* tloss = loss_output(call, out, tlabels, params.reduction, tlog_p.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_nll_loss_forward(tlog_p, tlabels, tweight, tloss, &params,
                                               &call.launch)
    return call.result()


def nll_loss_backward(dloss, log_p, labels, weight, reduction, ignore_index, out, stream):
    cdef Call call = Call("nll_loss_backward", stream)
    cdef const DLTensor* tdloss = call.input("dloss", dloss)
    cdef const DLTensor* tlog_p = call.input("log_p", log_p)
    cdef const DLTensor* tlabels = call.input("labels", labels)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef dlk_nll_loss_params params = dlk_nll_loss_params(
        sizeof(dlk_nll_loss_params), reduction_of(call, reduction),
        integer(call, "ignore_index", ignore_index))
    cdef const DLTensor* tdlog_p = call.output_like("dlog_p", out, tlog_p)
    while call.pending():
        with nogil:
            call.status = dlk_nll_loss_backward(tdloss, tlog_p, tlabels, tweight, tdlog_p, &params,
                                                &call.launch)
    return call.result()


cdef dict _loss_kinds = {
    "mse_loss": DLK_LOSS_MSE, "l1_loss": DLK_LOSS_L1, "smooth_l1_loss": DLK_LOSS_SMOOTH_L1,
    "huber_loss": DLK_LOSS_HUBER,
    "binary_cross_entropy_with_logits": DLK_LOSS_BINARY_CROSS_ENTROPY_WITH_LOGITS,
    "kl_div": DLK_LOSS_KL_DIV, "kl_div_log_target": DLK_LOSS_KL_DIV_LOG_TARGET,
}


cdef dlk_loss_params loss_params(Call call, str kind, object reduction,
                                 object threshold) except *:
    # The name that a message gives the threshold is that of the C function's.
    return dlk_loss_params(
        sizeof(dlk_loss_params), _loss_kinds[kind], reduction_of(call, reduction), 0,
        real(call, "delta" if kind == "huber_loss" else "beta", threshold))


def element_loss(x, target, weight, pos_weight, str kind, reduction, threshold, out, stream):
    cdef Call call = Call(kind.removesuffix("_log_target"), stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* ttarget = call.input("target", target)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tpos = call.optional_input("pos_weight", pos_weight)
    cdef dlk_loss_params params = loss_params(call, kind, reduction, threshold)
    cdef const DLTensor* tloss = loss_output(call, out, tx, params.reduction, tx.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_loss_forward(tx, ttarget, tweight, tpos, tloss, &params,
                                           &call.launch)
    return call.result()


def element_loss_backward(dloss, x, target, weight, pos_weight, str kind, reduction, threshold, out,
                          stream):
    cdef Call call = Call(kind.removesuffix("_log_target") + "_backward", stream)
    cdef const DLTensor* tdloss = call.input("dloss", dloss)
    cdef const DLTensor* tx = call.input("x", x)
    cdef const DLTensor* ttarget = call.input("target", target)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef const DLTensor* tpos = call.optional_input("pos_weight", pos_weight)
    cdef dlk_loss_params params = loss_params(call, kind, reduction, threshold)
    cdef const DLTensor* tdx = call.output_like("dx", out, tx)
    while call.pending():
        with nogil:
            call.status = dlk_loss_backward(tdloss, tx, ttarget, tweight, tpos, tdx, &params,
                                            &call.launch)
    return call.result()
