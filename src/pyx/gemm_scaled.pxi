cdef extern from "dlkern/gemm.h" nogil:
    ctypedef struct dlk_scaled_matmul_params:
        uint32_t struct_size
        int32_t activation
        int32_t batch_invariant
        int32_t reserved
        double alpha
        double threshold
    dlk_status_t dlk_scaled_matmul(const DLTensor*, const DLTensor*, const DLTensor*,
                                   const DLTensor*, const DLTensor*, const DLTensor*,
                                   const DLTensor*, const DLTensor*,
                                   const dlk_scaled_matmul_params*, const dlk_launch*)


cdef DLDataType result_dtype(Call call, object name, DLDataType operand, bint plain) except *:
    """Of a new product; plain: nothing is applied to the sums."""
    if name is None:
        if operand.bits != 8:
            return operand
        name = "int32" if dtype_name(operand) == "int8" and plain else "bfloat16"
    if name not in _dtype_codes:
        raise ValueError(f"{call.op}: out_dtype is {name!r}, expected the name of a dtype")
    return dtype_named(name)


cdef int require_flag(Call call, object amax) except -1:
    if amax is not True and amax is not False:
        raise TypeError(f"{call.op}: amax is {type(amax).__name__}, expected True or False; "
                        "out_amax receives the number")
    return 0


def scaled_matmul(a, b, scale_a, scale_b, bias, activation, alpha, out_dtype, scale_out,
                  amax, bint batch_invariant, out, out_amax, stream):
    """y, or (y, amax) with amax."""
    cdef Call call = Call("scaled_matmul", stream)
    require_flag(call, amax)
    cdef const DLTensor* ta = call.input("a", a)
    cdef const DLTensor* tb = call.input("b", b)
    cdef const DLTensor* tscale_a = call.optional_input("scale_a", scale_a)
    cdef const DLTensor* tscale_b = call.optional_input("scale_b", scale_b)
    cdef const DLTensor* tbias = call.optional_input("bias", bias)
    cdef const DLTensor* tscale_out = call.optional_input("scale_out", scale_out)
    cdef int64_t shape[8]
    cdef int ndim = matmul_shape(ta, tb, shape)
    plain = (scale_a is None and scale_b is None and bias is None and activation is None
             and scale_out is None and not amax and out_amax is None)
    cdef const DLTensor* ty = call.output("y", out, ndim, shape,
                                          result_dtype(call, out_dtype, ta.dtype, plain))
    cdef const DLTensor* tamax = NULL
    if amax or out_amax is not None:
        tamax = call.output("amax", out_amax, 0, shape, dtype_named("float32"))
    cdef int kind = activation_of(call, activation)
    cdef dlk_scaled_matmul_params params = dlk_scaled_matmul_params(
        sizeof(dlk_scaled_matmul_params), kind, batch_invariant, 0, alpha_of(call, kind, alpha),
        DLK_ACTIVATION_THRESHOLD)
    while call.pending():
        with nogil:
            call.status = dlk_scaled_matmul(ta, tb, tscale_a, tscale_b, tbias, tscale_out, ty,
                                            tamax, &params, &call.launch)
    return call.result()
