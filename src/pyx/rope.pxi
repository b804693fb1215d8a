cdef extern from "dlkern/rope.h" nogil:
    enum:
        DLK_ROPE_BSHD
        DLK_ROPE_BHSD
    ctypedef struct dlk_rope_params:
        uint32_t struct_size
        int32_t layout
        int32_t interleaved
        int32_t reserved
        int64_t rotary_dim
        int64_t offset
        double base
    dlk_status_t dlk_rope_forward(int64_t, const DLTensor**, const DLTensor*, const DLTensor*,
                                  const DLTensor*, const DLTensor**, const dlk_rope_params*,
                                  const dlk_launch*)
    dlk_status_t dlk_rope_backward(int64_t, const DLTensor**, const DLTensor*, const DLTensor*,
                                   const DLTensor*, const DLTensor**, const dlk_rope_params*,
                                   const dlk_launch*)


def rope(x, bint backward, cos, sin, positions, offset, base, rotary_dim, bint interleaved, layout,
         out, stream):
    cdef Call call = Call("rope_backward" if backward else "rope", stream)
    cdef str name = "dy" if backward else "x"
    cdef str result_name = "dx" if backward else "y"
    cdef bint single = not isinstance(x, (list, tuple))
    if layout not in ("BSHD", "BHSD"):
        raise ValueError(f'{call.op}: layout is {layout!r}, expected "BSHD" or "BHSD"')
    if not single and not x:
        raise ValueError(f"{call.op}: {name} is empty, expected one array or more")
    cdef TensorList tx = TensorList(1 if single else len(x))
    if single:
        tx.data[0] = call.input(name, x)
    else:
        tx = call.input_list(name, x)
    cdef const DLTensor* tcos = call.optional_input("cos", cos)
    cdef const DLTensor* tsin = call.optional_input("sin", sin)
    cdef const DLTensor* tpositions = call.optional_input("positions", positions)
    cdef TensorList ty = TensorList(tx.count)
    if single:
        # The C function names the only one of a list.
        ty.data[0] = call.output(f"{result_name}[0]", out, tx.data[0].ndim, tx.data[0].shape,
                                 tx.data[0].dtype, "out")
        call.rename(f"{name}[0]", name)
    else:
        if out is not None and (not isinstance(out, (list, tuple)) or len(out) != tx.count):
            raise ValueError(f"{call.op}: out is {type(out).__name__}, expected a list of "
                             f"{tx.count} arrays")
        for i in range(tx.count):
            ty.data[i] = call.output(f"{result_name}[{i}]", None if out is None else out[i],
                                     tx.data[i].ndim, tx.data[i].shape, tx.data[i].dtype,
                                     f"out[{i}]")
    cdef dlk_rope_params params = dlk_rope_params(
        sizeof(dlk_rope_params), DLK_ROPE_BHSD if layout == "BHSD" else DLK_ROPE_BSHD, interleaved,
        0, 0 if rotary_dim is None else integer(call, "rotary_dim", rotary_dim),
        integer(call, "offset", offset), real(call, "base", base))
    while call.pending():
        with nogil:
            if backward:
                call.status = dlk_rope_backward(tx.count, tx.data, tcos, tsin, tpositions, ty.data,
                                                &params, &call.launch)
            else:
                call.status = dlk_rope_forward(tx.count, tx.data, tcos, tsin, tpositions, ty.data,
                                               &params, &call.launch)
    result = call.result()
    return result if single or isinstance(result, tuple) else (result,)
