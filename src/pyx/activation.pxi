cdef extern from "dlkern/activation.h" nogil:
    enum:
        DLK_ACTIVATION_NONE
        DLK_ACTIVATION_RELU
        DLK_ACTIVATION_LEAKY_RELU
        DLK_ACTIVATION_ELU
        DLK_ACTIVATION_GELU
        DLK_ACTIVATION_GELU_TANH
        DLK_ACTIVATION_SILU
        DLK_ACTIVATION_SIGMOID
        DLK_ACTIVATION_TANH
        DLK_ACTIVATION_SOFTPLUS
        DLK_ACTIVATION_RELU6
        DLK_ACTIVATION_HARDSWISH
        DLK_ACTIVATION_HARDSIGMOID
        DLK_ACTIVATION_MISH
        DLK_ACTIVATION_SELU
    double DLK_ACTIVATION_ALPHA(int)
    double DLK_ACTIVATION_THRESHOLD
    ctypedef struct dlk_activation_params:
        uint32_t struct_size
        int32_t kind
        double alpha
        double threshold
    dlk_status_t dlk_activation_forward(const DLTensor*, const DLTensor*,
                                        const dlk_activation_params*, const dlk_launch*)
    dlk_status_t dlk_activation_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                         const dlk_activation_params*, const dlk_launch*)
    ctypedef struct dlk_gated_params:
        uint32_t struct_size
        int32_t kind
        int32_t gate_last
        uint32_t reserved
    dlk_status_t dlk_gated_forward(const DLTensor*, const DLTensor*, const DLTensor*,
                                   const dlk_gated_params*, const dlk_launch*)
    dlk_status_t dlk_gated_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                    const DLTensor*, const DLTensor*, const dlk_gated_params*,
                                    const dlk_launch*)

cdef dict _activations = {
    "relu": DLK_ACTIVATION_RELU,
    "leaky_relu": DLK_ACTIVATION_LEAKY_RELU,
    "elu": DLK_ACTIVATION_ELU,
    "gelu": DLK_ACTIVATION_GELU,
    "gelu_tanh": DLK_ACTIVATION_GELU_TANH,
    "silu": DLK_ACTIVATION_SILU,
    "sigmoid": DLK_ACTIVATION_SIGMOID,
    "tanh": DLK_ACTIVATION_TANH,
    "softplus": DLK_ACTIVATION_SOFTPLUS,
    "relu6": DLK_ACTIVATION_RELU6,
    "hardswish": DLK_ACTIVATION_HARDSWISH,
    "hardsigmoid": DLK_ACTIVATION_HARDSIGMOID,
    "mish": DLK_ACTIVATION_MISH,
    "selu": DLK_ACTIVATION_SELU,
}


cdef int activation_of(Call call, object name) except -1:
    """The dlk_activation of the argument `activation` of another op; None is the identity."""
    if name is None:
        return DLK_ACTIVATION_NONE
    kind = _activations.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"{call.op}: activation is {name!r}, expected None or one of "
                         f"{', '.join(_activations)}")
    return kind


cdef int activation_params(Call call, str name, tuple numbers,
                           dlk_activation_params* params) except -1:
    """`numbers`: nothing, or (name, value) of alpha and then of threshold."""
    params.struct_size = sizeof(dlk_activation_params)
    params.kind = _activations[name]
    params.alpha = (real(call, numbers[0][0], numbers[0][1]) if numbers
                    else DLK_ACTIVATION_ALPHA(params.kind))
    params.threshold = (real(call, numbers[1][0], numbers[1][1]) if len(numbers) > 1
                        else DLK_ACTIVATION_THRESHOLD)
    return 0


def activation(str name, x, tuple numbers, out, stream):
    cdef Call call = Call("gelu" if name == "gelu_tanh" else name, stream)
    cdef const DLTensor* tx = call.input("x", x)
    call.keep_format(tx)
    cdef const DLTensor* ty = call.output_like("y", out, tx)
    cdef dlk_activation_params params
    activation_params(call, name, numbers, &params)
    while call.pending():
        with nogil:
            call.status = dlk_activation_forward(tx, ty, &params, &call.launch)
    return call.result()


def activation_backward(str name, dy, x, tuple numbers, out, stream):
    cdef Call call = Call(("gelu" if name == "gelu_tanh" else name) + "_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tx = call.input("x", x)
    call.keep_format(tx)
    cdef const DLTensor* tdx = call.output_like("dx", out, tdy)
    cdef dlk_activation_params params
    activation_params(call, name, numbers, &params)
    while call.pending():
        with nogil:
            call.status = dlk_activation_backward(tdy, tx, tdx, &params, &call.launch)
    return call.result()


cdef dict _gated = {"glu": "sigmoid", "swiglu": "silu", "reglu": "relu", "geglu": "gelu"}


cdef dlk_gated_params gated_params(str name, bint tanh, bint gate_last):
    activation = "gelu_tanh" if tanh else _gated[name]
    return dlk_gated_params(sizeof(dlk_gated_params), _activations[activation], gate_last, 0)


def gated(str name, gate, up, bint tanh, bint gate_last, out, stream):
    cdef Call call = Call(name, stream)
    cdef const DLTensor* tgate = call.input("gate", gate)
    cdef const DLTensor* tup = call.optional_input("up", up)
    cdef int64_t shape[MAX_DIMS]
    for i in range(tgate.ndim):
        shape[i] = tgate.shape[i]
    if tup == NULL and tgate.ndim > 0:
        shape[tgate.ndim - 1] //= 2
    cdef const DLTensor* ty = call.output("y", out, tgate.ndim, shape, tgate.dtype)
    cdef dlk_gated_params params = gated_params(name, tanh, gate_last)
    while call.pending():
        with nogil:
            call.status = dlk_gated_forward(tgate, tup, ty, &params, &call.launch)
    return call.result()


def gated_backward(str name, dy, gate, up, bint tanh, bint gate_last, out, out_up, stream):
    cdef Call call = Call(name + "_backward", stream)
    if up is None and out_up is not None:
        raise ValueError(f"{call.op}: out_up is given without up, expected one array out for a "
                         "packed gate and up")
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tgate = call.input("gate", gate)
    cdef const DLTensor* tup = call.optional_input("up", up)
    cdef const DLTensor* tdgate = call.output_like("dgate", out, tgate)
    cdef const DLTensor* tdup = NULL
    if tup != NULL:
        tdup = call.output_like("dup", out_up, tup)
    cdef dlk_gated_params params = gated_params(name, tanh, gate_last)
    while call.pending():
        with nogil:
            call.status = dlk_gated_backward(tdy, tgate, tup, tdgate, tdup, &params, &call.launch)
    return call.result()
