cdef extern from "dlkern/optim.h" nogil:
    ctypedef struct dlk_step_scalars:
        uint32_t struct_size
        uint32_t reserved
        const DLTensor* lr
        const DLTensor* step
        const DLTensor* grad_scale
        const DLTensor* found_inf
    ctypedef struct dlk_sgd_params:
        uint32_t struct_size
        int32_t nesterov
        double lr
        double momentum
        double dampening
        double weight_decay
        int32_t maximize
        int32_t first_step
    dlk_status_t dlk_sgd_step(
        int64_t, const DLTensor* const*, const DLTensor* const*, const DLTensor* const*,
        const DLTensor* const*, const dlk_step_scalars*, const dlk_sgd_params*, const dlk_launch*)
    ctypedef struct dlk_adamw_params:
        uint32_t struct_size
        int32_t maximize
        double lr
        double beta1
        double beta2
        double eps
        double weight_decay
        int64_t step
        int32_t l2
        int32_t reserved
    dlk_status_t dlk_adamw_step(
        int64_t, const DLTensor* const*, const DLTensor* const*, const DLTensor* const*,
        const DLTensor* const*, const DLTensor* const*, const DLTensor* const*,
        const dlk_step_scalars*, const dlk_adamw_params*, const dlk_launch*)
    ctypedef struct dlk_lion_params:
        uint32_t struct_size
        int32_t maximize
        double lr
        double beta1
        double beta2
        double weight_decay
    dlk_status_t dlk_lion_step(
        int64_t, const DLTensor* const*, const DLTensor* const*, const DLTensor* const*,
        const DLTensor* const*, const dlk_step_scalars*, const dlk_lion_params*, const dlk_launch*)
    ctypedef struct dlk_grad_norm_params:
        uint32_t struct_size
        uint32_t reserved
        double max_norm
        double ord
    dlk_status_t dlk_grad_norm(
        int64_t, const DLTensor* const*, const DLTensor*, const DLTensor*, const DLTensor*,
        const DLTensor*, const dlk_grad_norm_params*, const dlk_launch*)
    dlk_status_t dlk_scale_grads(int64_t, const DLTensor* const*, const DLTensor*, const DLTensor*,
                                 const dlk_launch*)
    ctypedef struct dlk_loss_scale_params:
        uint32_t struct_size
        int32_t growth_interval
        double growth_factor
        double backoff_factor
    dlk_status_t dlk_update_loss_scale(const DLTensor*, const DLTensor*, const DLTensor*,
                                       const DLTensor*, const dlk_loss_scale_params*,
                                       const dlk_launch*)


cdef TensorList arrays_of(Call call, str name, object arrays, bint written, object like):
    """An argument that is one array where `like` is, else a list of as many."""
    cdef TensorList tensors
    if not isinstance(like, (list, tuple)):
        tensors = TensorList(1)
        tensors.data[0] = call.add(name, arrays, written)
        return tensors
    tensors = call.add_list(name, arrays, written)
    if len(arrays) != len(like):
        raise ValueError(f"{call.op}: {name} has {len(arrays)} arrays, expected {len(like)}")
    return tensors


cdef TensorList optional_arrays_of(Call call, str name, object arrays, object like):
    """The same of an argument that may be None: its data is NULL then."""
    if arrays is not None:
        return arrays_of(call, name, arrays, True, like)
    cdef TensorList absent = TensorList(0)
    PyMem_Free(<void*>absent.data)
    absent.data = NULL
    return absent


cdef dlk_step_scalars scalars_of(Call call, lr, step, grad_scale, found_inf) except *:
    """Those of the arguments that are arrays."""
    cdef dlk_step_scalars scalars
    scalars.struct_size, scalars.reserved = sizeof(dlk_step_scalars), 0
    scalars.lr = call.input("lr", lr) if is_array(lr) else NULL
    scalars.step = call.input("step", step) if is_array(step) else NULL
    scalars.grad_scale = call.optional_input("grad_scale", grad_scale)
    scalars.found_inf = call.optional_input("found_inf", found_inf)
    return scalars


cdef bint is_array(object value):
    return hasattr(value, "__dlpack__")


cdef double lr_of(Call call, lr) except? -1:
    if is_array(lr):
        return 0.0
    if isinstance(lr, str):
        raise TypeError(f"{call.op}: lr is {lr!r}, expected an array or a number")
    return real(call, "lr", lr)


def sgd_step(param, grad, momentum_buffer, copy, lr, momentum, dampening, weight_decay,
             bint nesterov, bint maximize, bint first_step, grad_scale, found_inf, stream):
    cdef Call call = Call("sgd_step", stream)
    cdef TensorList params = arrays_of(call, "param", param, True, param)
    cdef TensorList grads = arrays_of(call, "grad", grad, False, param)
    cdef TensorList buffers = optional_arrays_of(call, "momentum_buffer", momentum_buffer, param)
    cdef TensorList copies = optional_arrays_of(call, "copy", copy, param)
    cdef dlk_step_scalars scalars = scalars_of(call, lr, None, grad_scale, found_inf)
    cdef dlk_sgd_params numbers = dlk_sgd_params(
        sizeof(dlk_sgd_params), nesterov, lr_of(call, lr), real(call, "momentum", momentum),
        real(call, "dampening", dampening), real(call, "weight_decay", weight_decay), maximize,
        first_step)
    if params.count == 0:
        return None
    while call.pending():
        with nogil:
            call.status = dlk_sgd_step(params.count, params.data, grads.data, buffers.data,
                                       copies.data, &scalars, &numbers, &call.launch)
    return call.result()


def adamw_step(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, copy, lr, beta1, beta2, eps,
               weight_decay, step, bint maximize, bint l2, grad_scale, found_inf, stream):
    cdef Call call = Call("adamw_step", stream)
    cdef TensorList params = arrays_of(call, "param", param, True, param)
    cdef TensorList grads = arrays_of(call, "grad", grad, False, param)
    cdef TensorList avg = arrays_of(call, "exp_avg", exp_avg, True, param)
    cdef TensorList avg_sq = arrays_of(call, "exp_avg_sq", exp_avg_sq, True, param)
    cdef TensorList max_sq = optional_arrays_of(call, "max_exp_avg_sq", max_exp_avg_sq, param)
    cdef TensorList copies = optional_arrays_of(call, "copy", copy, param)
    cdef dlk_step_scalars scalars = scalars_of(call, lr, step, grad_scale, found_inf)
    cdef dlk_adamw_params numbers = dlk_adamw_params(
        sizeof(dlk_adamw_params), maximize, lr_of(call, lr), real(call, "beta1", beta1),
        real(call, "beta2", beta2), real(call, "eps", eps),
        real(call, "weight_decay", weight_decay),
        1 if is_array(step) else integer(call, "step", step), l2, 0)
    if params.count == 0:
        return None
    while call.pending():
        with nogil:
            call.status = dlk_adamw_step(params.count, params.data, grads.data, avg.data,
                                         avg_sq.data, max_sq.data, copies.data, &scalars,
                                         &numbers, &call.launch)
    return call.result()


def lion_step(param, grad, exp_avg, copy, lr, beta1, beta2, weight_decay, bint maximize,
              grad_scale, found_inf, stream):
    cdef Call call = Call("lion_step", stream)
    cdef TensorList params = arrays_of(call, "param", param, True, param)
    cdef TensorList grads = arrays_of(call, "grad", grad, False, param)
    cdef TensorList avg = arrays_of(call, "exp_avg", exp_avg, True, param)
    cdef TensorList copies = optional_arrays_of(call, "copy", copy, param)
    cdef dlk_step_scalars scalars = scalars_of(call, lr, None, grad_scale, found_inf)
    cdef dlk_lion_params numbers = dlk_lion_params(
        sizeof(dlk_lion_params), maximize, lr_of(call, lr), real(call, "beta1", beta1),
        real(call, "beta2", beta2), real(call, "weight_decay", weight_decay))
    if params.count == 0:
        return None
    while call.pending():
        with nogil:
            call.status = dlk_lion_step(params.count, params.data, grads.data, avg.data,
                                        copies.data, &scalars, &numbers, &call.launch)
    return call.result()


def grad_norm(grad, loss_scale, max_norm, ord, out, out_grad_scale, out_found_inf, stream):
    cdef Call call = Call("grad_norm", stream)
    cdef TensorList grads = arrays_of(call, "grad", grad, False, grad)
    if grads.count == 0:
        raise ValueError("grad_norm: grad is an empty list, expected at least one array")
    cdef const DLTensor* tscale = call.optional_input("loss_scale", loss_scale)
    cdef DLDataType dtype = grads.data[0].dtype
    if dtype.bits != 64:
        dtype = dtype_named("float32")
    cdef const DLTensor* tnorm = call.output("norm", out, 0, NULL, dtype)
    cdef const DLTensor* tgrad_scale = call.output("grad_scale", out_grad_scale, 0, NULL, dtype)
    cdef const DLTensor* tfound = call.output("found_inf", out_found_inf, 0, NULL, dtype)
    cdef dlk_grad_norm_params params = dlk_grad_norm_params(
        sizeof(dlk_grad_norm_params), 0,
        float("inf") if max_norm is None else real(call, "max_norm", max_norm),
        real(call, "ord", ord))
    while call.pending():
        with nogil:
            call.status = dlk_grad_norm(grads.count, grads.data, tscale, tnorm, tgrad_scale,
                                        tfound, &params, &call.launch)
    return call.result()


def scale_grads(grad, scale, found_inf, stream):
    cdef Call call = Call("scale_grads", stream)
    cdef TensorList grads = arrays_of(call, "grad", grad, True, grad)
    cdef const DLTensor* tscale = call.input("scale", scale)
    cdef const DLTensor* tfound = call.optional_inout("found_inf", found_inf)
    while call.pending():
        with nogil:
            call.status = dlk_scale_grads(grads.count, grads.data, tscale, tfound, &call.launch)
    return call.result()


def update_loss_scale(loss_scale, growth_tracker, found_inf, step, growth_factor, backoff_factor,
                      growth_interval, stream):
    cdef Call call = Call("update_loss_scale", stream)
    cdef const DLTensor* tscale = call.inout("loss_scale", loss_scale)
    cdef const DLTensor* ttracker = call.inout("growth_tracker", growth_tracker)
    cdef const DLTensor* tfound = call.input("found_inf", found_inf)
    cdef const DLTensor* tstep = call.optional_inout("step", step)
    cdef dlk_loss_scale_params params = dlk_loss_scale_params(
        sizeof(dlk_loss_scale_params), <int32_t>integer(call, "growth_interval", growth_interval,
                                                        32),
        real(call, "growth_factor", growth_factor), real(call, "backoff_factor", backoff_factor))
    while call.pending():
        with nogil:
            call.status = dlk_update_loss_scale(tscale, ttracker, tfound, tstep, &params,
                                                &call.launch)
    return call.result()
