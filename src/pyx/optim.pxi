cdef extern from "dlkern/optim.h" nogil:
    ctypedef struct dlk_sgd_params:
        uint32_t struct_size
        int32_t nesterov
        double lr
        double momentum
        double dampening
        double weight_decay
        int32_t maximize
        int32_t first_step
    dlk_status_t dlk_sgd_step(const DLTensor*, const DLTensor*, const DLTensor*,
                              const dlk_sgd_params*, const dlk_launch*)
    ctypedef struct dlk_adamw_params:
        uint32_t struct_size
        int32_t maximize
        double lr
        double beta1
        double beta2
        double eps
        double weight_decay
        int64_t step
    dlk_status_t dlk_adamw_step(const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
                                const DLTensor*, const dlk_adamw_params*, const dlk_launch*)


def sgd_step(param, grad, momentum_buffer, lr, momentum, dampening, weight_decay, bint nesterov,
             bint maximize, bint first_step, stream):
    cdef Call call = Call("sgd_step", stream)
    cdef const DLTensor* tparam = call.inout("param", param)
    cdef const DLTensor* tgrad = call.input("grad", grad)
    cdef const DLTensor* tbuffer = call.optional_inout("momentum_buffer", momentum_buffer)
    cdef dlk_sgd_params params = dlk_sgd_params(
        sizeof(dlk_sgd_params), nesterov, real(call, "lr", lr), real(call, "momentum", momentum),
        real(call, "dampening", dampening), real(call, "weight_decay", weight_decay), maximize,
        first_step)
    while call.pending():
        with nogil:
            call.status = dlk_sgd_step(tparam, tgrad, tbuffer, &params, &call.launch)
    return call.result()


def adamw_step(param, grad, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, weight_decay, step,
               bint maximize, stream):
    cdef Call call = Call("adamw_step", stream)
    cdef const DLTensor* tparam = call.inout("param", param)
    cdef const DLTensor* tgrad = call.input("grad", grad)
    cdef const DLTensor* tavg = call.inout("exp_avg", exp_avg)
    cdef const DLTensor* tavg_sq = call.inout("exp_avg_sq", exp_avg_sq)
    cdef const DLTensor* tstep = NULL
    cdef dlk_adamw_params params = dlk_adamw_params(
        sizeof(dlk_adamw_params), maximize, real(call, "lr", lr), real(call, "beta1", beta1),
        real(call, "beta2", beta2), real(call, "eps", eps),
        real(call, "weight_decay", weight_decay), 0)
    if hasattr(step, "__dlpack__"):
        tstep = call.input("step", step)
    else:
        params.step = integer(call, "step", step)
    while call.pending():
        with nogil:
            call.status = dlk_adamw_step(tparam, tgrad, tavg, tavg_sq, tstep, &params,
                                         &call.launch)
    return call.result()
