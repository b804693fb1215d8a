cdef extern from "dlkern/layout.h" nogil:
    ctypedef struct dlk_permute_params:
        uint32_t struct_size
        int32_t axes[8]
    ctypedef struct dlk_concat_params:
        uint32_t struct_size
        int32_t axis
    dlk_status_t dlk_permute(const DLTensor*, const DLTensor*, const dlk_permute_params*,
                             const dlk_launch*)
    dlk_status_t dlk_concat(int64_t, const DLTensor**, const DLTensor*, const dlk_concat_params*,
                            const dlk_launch*)
    dlk_status_t dlk_split(const DLTensor*, int64_t, const DLTensor**, const dlk_concat_params*,
                           const dlk_launch*)
    dlk_status_t dlk_cast(const DLTensor*, const DLTensor*, const dlk_launch*)


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


def contiguous(x, out, stream):
    cdef Call call = Call("permute", stream)
    cdef const DLTensor* tx = call.input("x", x)
    return run_permute(call, tx, tuple(range(tx.ndim)), out)


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


cdef dlk_concat_params axis_params(Call call, object axis, const DLTensor* t) except *:
    """Refuses an axis that t does not have, since outputs are made along it."""
    cdef dlk_concat_params params = dlk_concat_params(
        sizeof(dlk_concat_params), <int32_t>integer(call, "axis", axis, 32))
    if not -t.ndim <= params.axis < t.ndim:
        raise ValueError(f"{call.op}: axis is {axis}, expected it in [{-t.ndim}, {t.ndim})")
    return params


def concat(arrays, axis, out, stream):
    cdef Call call = Call("concat", stream)
    cdef TensorList tensors = call.input_list("arrays", arrays)
    cdef int64_t shape[MAX_DIMS]
    if tensors.count == 0:
        raise ValueError(f"{call.op}: arrays is empty, expected one array or more")
    cdef const DLTensor* first = tensors.data[0]
    cdef dlk_concat_params params = axis_params(call, axis, first)
    cdef int along = params.axis % first.ndim
    for d in range(first.ndim):
        shape[d] = first.shape[d]
    for i in range(1, tensors.count):
        # Other shapes are compared by the C function.
        if tensors.data[i].ndim == first.ndim:
            shape[along] += tensors.data[i].shape[along]
    cdef const DLTensor* ty = call.output("y", out, first.ndim, shape, first.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_concat(tensors.count, tensors.data, ty, &params, &call.launch)
    return call.result()


cdef list extents_of_parts(Call call, object sections, int64_t whole):
    """The extents of the parts: given, or equal ones of which the last may be smaller."""
    if isinstance(sections, (tuple, list)):
        extents = [integer(call, "sections", extent) for extent in sections]
        if any(extent < 0 for extent in extents) or sum(extents) != whole or not extents:
            raise ValueError(f"{call.op}: sections is {sections!r}, expected extents that add up "
                             f"to {whole}")
        return extents
    cdef int64_t count = integer(call, "sections", sections)
    if count < 1 or whole % count:
        raise ValueError(f"{call.op}: sections is {sections}, expected a number that divides "
                         f"{whole}, or extents")
    return [whole // count] * count


def split(x, sections, axis, out, stream):
    cdef Call call = Call("split", stream)
    cdef const DLTensor* tx = call.input("x", x)
    cdef dlk_concat_params params = axis_params(call, axis, tx)
    cdef int along = params.axis % tx.ndim
    cdef int64_t shape[MAX_DIMS]
    cdef list extents = extents_of_parts(call, sections, tx.shape[along])
    cdef TensorList tensors = TensorList(len(extents))
    if out is None:
        out = [None] * tensors.count
    if not isinstance(out, (list, tuple)) or len(out) != tensors.count:
        kind = f"{len(out)} of them" if isinstance(out, (list, tuple)) else type(out).__name__
        raise (ValueError if isinstance(out, (list, tuple)) else TypeError)(
            f"{call.op}: out is {kind}, expected a list of {tensors.count} arrays")
    for d in range(tx.ndim):
        shape[d] = tx.shape[d]
    for i in range(tensors.count):
        shape[along] = extents[i]
        tensors.data[i] = call.output(f"y[{i}]", out[i], tx.ndim, shape, tx.dtype, f"out[{i}]")
        if tensors.data[i].ndim == tx.ndim and tensors.data[i].shape[along] != extents[i]:
            raise ValueError(f"{call.op}: out[{i}] has {tensors.data[i].shape[along]} on axis "
                             f"{along}, expected {extents[i]} (sections)")
    while call.pending():
        with nogil:
            call.status = dlk_split(tx, tensors.count, tensors.data, &params, &call.launch)
    result = call.result()
    return result if isinstance(result, tuple) else (result,)


def cast(x, dtype, out, stream):
    cdef Call call = Call("cast", stream)
    cdef const DLTensor* tx = call.input("x", x)
    if dtype not in _dtype_codes:
        raise ValueError(f"{call.op}: dtype is {dtype!r}, expected the name of a dtype")
    cdef DLDataType to = dtype_named(dtype)
    cdef const DLTensor* ty = call.output("y", out, tx.ndim, tx.shape, to)
    if (ty.dtype.code, ty.dtype.bits) != (to.code, to.bits):
        raise TypeError(f"{call.op}: out.dtype is {dtype_name(ty.dtype)}, expected {dtype}")
    while call.pending():
        with nogil:
            call.status = dlk_cast(tx, ty, &call.launch)
    return call.result()
