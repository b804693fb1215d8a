cdef extern from "dlkern/layout.h" nogil:
    ctypedef struct dlk_permute_params:
        uint32_t struct_size
        int32_t axes[8]
    dlk_status_t dlk_permute(const DLTensor*, const DLTensor*, const dlk_permute_params*,
                             const dlk_launch*)


cdef object run_permute(Call call, const DLTensor* tx, tuple axes, object out):
    cdef dlk_permute_params params
    cdef int64_t shape[MAX_DIMS]
    params.struct_size = sizeof(dlk_permute_params)
    if len(axes) != tx.ndim:
        raise ValueError(f"{call.op}: axes is {axes!r}, expected {tx.ndim} axes")
    for d in range(tx.ndim):
        params.axes[d] = <int32_t>integer(call, "axes", axes[d], 32)
        # An axis that x does not have is left to the C function.
        shape[d] = tx.shape[params.axes[d] % tx.ndim if tx.ndim else 0]
    cdef const DLTensor* ty = call.output("y", out, tx.ndim, shape, tx.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_permute(tx, ty, &params, &call.launch)
    return call.result()


def permute(x, axes, out, stream):
    cdef Call call = Call("permute", stream)
    cdef const DLTensor* tx = call.input("x", x)
    if not isinstance(axes, (tuple, list)):
        raise TypeError(f"{call.op}: axes is {axes!r}, expected a tuple of axes")
    return run_permute(call, tx, tuple(axes), out)


def move_channels(x, bint last, out, stream):
    """From the second place to the last one, or back."""
    cdef Call call = Call("permute", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef int dims = spatial_dims(call, "x", tx)
    if last:
        axes = (0, *range(2, dims + 2), 1)
    else:
        axes = (0, dims + 1, *range(1, dims + 1))
    return run_permute(call, tx, axes, out)
