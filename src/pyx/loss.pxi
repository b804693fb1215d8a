cdef extern from "dlkern/loss.h" nogil:
    ctypedef struct dlk_cross_entropy_params:
        uint32_t struct_size
        int32_t reduction
        int64_t ignore_index
        double label_smoothing
    dlk_status_t dlk_cross_entropy_forward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_cross_entropy_params*, const dlk_launch*)
    dlk_status_t dlk_cross_entropy_backward(
        const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
        const dlk_cross_entropy_params*, const dlk_launch*)


cdef dict _reductions = {
    "none": DLK_REDUCTION_NONE, "mean": DLK_REDUCTION_MEAN, "sum": DLK_REDUCTION_SUM,
}


cdef dlk_cross_entropy_params cross_entropy_params(
        Call call, object reduction, object ignore_index, object label_smoothing) except *:
    known = _reductions.get(reduction) if isinstance(reduction, str) else None
    if known is None:
        raise ValueError(f"{call.op}: reduction is {reduction!r}, expected one of "
                         f"{', '.join(_reductions)}")
    return dlk_cross_entropy_params(
        sizeof(dlk_cross_entropy_params), known, integer(call, "ignore_index", ignore_index),
        real(call, "label_smoothing", label_smoothing))


def cross_entropy(logits, labels, weight, reduction, ignore_index, label_smoothing, out, stream):
    cdef Call call = Call("cross_entropy", stream)
    cdef const DLTensor* tlogits = call.input("logits", logits)
    cdef const DLTensor* tlabels = call.input("labels", labels)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef dlk_cross_entropy_params params = cross_entropy_params(
        call, reduction, ignore_index, label_smoothing)
    cdef const DLTensor* tloss = call.output(
        "loss", out, tlabels.ndim if params.reduction == DLK_REDUCTION_NONE else 0, tlabels.shape,
        tlogits.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_cross_entropy_forward(tlogits, tlabels, tweight, tloss, &params,
                                                    &call.launch)
    return call.result()


def cross_entropy_backward(dloss, logits, labels, weight, reduction, ignore_index, label_smoothing,
                           out, stream):
    cdef Call call = Call("cross_entropy_backward", stream)
    cdef const DLTensor* tdloss = call.input("dloss", dloss)
    cdef const DLTensor* tlogits = call.input("logits", logits)
    cdef const DLTensor* tlabels = call.input("labels", labels)
    cdef const DLTensor* tweight = call.optional_input("weight", weight)
    cdef dlk_cross_entropy_params params = cross_entropy_params(
        call, reduction, ignore_index, label_smoothing)
    cdef const DLTensor* tdlogits = call.output_like("dlogits", out, tlogits)
    while call.pending():
        with nogil:
            call.status = dlk_cross_entropy_backward(tdloss, tlogits, tlabels, tweight, tdlogits,
                                                     &params, &call.launch)
    return call.result()
