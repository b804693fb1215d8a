# Calls for hosts that run them later (XLA): arrays without memory in, a record of each C call out.
#
# Arrays of a framework whose adapter is `traced` have shapes and dtypes but no memory. A call of
# them is planned, not run, which checks it in full, and its adapter is told what is to be called.
# From here on the C functions are called by src/ffi, which keeps what they were given.
cdef extern from "ffi/recorded.h" nogil:
    ctypedef struct dlk_record:
        const char* function
        const uint8_t* bytes
        size_t size
        void* const* data
        size_t tensors
    const dlk_record* dlk_last_record()
    dlk_status_t dlk_plan_record(const dlk_record*, DLDevice, size_t*)
    void* dlk_xla_handler(int)


def xla_handlers():
    """Platform -> capsule of the handler that runs records; empty where this build has none."""
    if dlk_xla_handler(0) == NULL:
        return {}
    platforms = {"cpu": 0} if gpu_device_type() == kDLCPU else {
        "cpu": 0, "ROCM" if gpu_device_type() == kDLROCM else "CUDA": 1}
    return {platform: PyCapsule_New(dlk_xla_handler(gpu), NULL, NULL)
            for platform, gpu in platforms.items()}


cdef DLDeviceType gpu_device_type() except *:
    """Of the GPUs of this build; kDLCPU where it has none."""
    cdef dlk_build_info info
    info.struct_size = sizeof(dlk_build_info)
    check(dlk_get_build_info(&info))
    return {b"cuda": kDLCUDA, b"hip": kDLROCM}.get(info.gpu, kDLCPU)


cdef size_t workspace_on(const dlk_record* record, object gpus) except? 0:
    """The largest workspace that the call needs on any of those GPUs. A GPU that cannot run it says
    so when it is to."""
    cdef DLDevice device
    cdef size_t bytes = 0
    cdef size_t most = 0
    device.device_type = gpu_device_type()
    for gpu in gpus:
        device.device_id = gpu
        if not has_choices(gpu):
            load_choices(gpu)
        if dlk_plan_record(record, device, &bytes) == DLK_SUCCESS:
            most = max(most, bytes)
    return most


cdef object hand_over(Framework framework, str op, list arrays):
    """Tells a traced framework of the C call that was just planned; `arrays`: those of the Call."""
    record = dlk_last_record()
    addresses = tuple([<uintptr_t>record.data[i] for i in range(record.tensors)])
    framework.adapter.planned(
        op, record.function.decode(), <bytes>record.bytes[:record.size], addresses, arrays,
        workspace_on(record, framework.adapter.gpus()))
