# The parts of DLPack and of include/dlkern/core.h that the extension uses.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "dlpack/dlpack.h" nogil:
    ctypedef enum DLDeviceType:
        kDLCPU
        kDLCUDA
        kDLCUDAHost
        kDLROCM
        kDLROCMHost
        kDLCUDAManaged
    ctypedef struct DLDevice:
        DLDeviceType device_type
        int32_t device_id
    ctypedef enum DLDataTypeCode:
        kDLComplex
    ctypedef struct DLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes
    ctypedef struct DLTensor:
        void* data
        DLDevice device
        int32_t ndim
        DLDataType dtype
        int64_t* shape
        int64_t* strides
        uint64_t byte_offset
    ctypedef struct DLManagedTensor:
        DLTensor dl_tensor
        void* manager_ctx
        void (*deleter)(DLManagedTensor*)
    ctypedef struct DLPackVersion:
        uint32_t major
        uint32_t minor
    ctypedef struct DLManagedTensorVersioned:
        DLPackVersion version
        void* manager_ctx
        void (*deleter)(DLManagedTensorVersioned*)
        uint64_t flags
        DLTensor dl_tensor
    uint64_t DLPACK_FLAG_BITMASK_READ_ONLY
    uint32_t DLPACK_MAJOR_VERSION
    ctypedef struct DLPackExchangeAPIHeader:
        DLPackVersion version
        DLPackExchangeAPIHeader* prev_api
    ctypedef struct DLPackExchangeAPI:
        DLPackExchangeAPIHeader header
        int (*managed_tensor_allocator)(
            DLTensor*, DLManagedTensorVersioned**, void*,
            void (*)(void*, const char*, const char*) noexcept)
        int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned*, void**)
        int (*dltensor_from_py_object_no_sync)(void*, DLTensor*)
        int (*current_work_stream)(DLDeviceType, int32_t, void**)


cdef extern from "dlkern/core.h" nogil:
    ctypedef enum dlk_status_t:
        DLK_SUCCESS
        DLK_INVALID_ARGUMENT
        DLK_UNSUPPORTED_DTYPE
        DLK_NOT_SUPPORTED
        DLK_WORKSPACE_TOO_SMALL
        DLK_OUT_OF_MEMORY
        DLK_DEVICE_ERROR
        DLK_INTERNAL
    enum:
        DLK_LAUNCH_PLAN_ONLY
    ctypedef enum dlk_precision:
        DLK_PRECISION_IEEE
        DLK_PRECISION_TF32
    ctypedef enum dlk_layout:
        DLK_LAYOUT_NCHW
        DLK_LAYOUT_NHWC
    ctypedef enum dlk_padding_mode:
        DLK_PADDING_EXPLICIT
        DLK_PADDING_SAME
        DLK_PADDING_VALID
    ctypedef enum dlk_reduction:
        DLK_REDUCTION_NONE
        DLK_REDUCTION_MEAN
        DLK_REDUCTION_SUM
    ctypedef struct dlk_launch:
        uint32_t struct_size
        uint32_t flags
        void* stream
        void* workspace
        size_t workspace_bytes
    ctypedef struct dlk_plan:
        uint32_t struct_size
        size_t workspace_bytes
        const char* implementation
        const char* explanation
        const char* tuning_key
        const char* candidates
    ctypedef struct dlk_build_info:
        uint32_t struct_size
        const char* version
        const char* gpu
        const char* architectures
        const char* compilers
        const char* blas
        const char* cpu_arch
    ctypedef struct dlk_device_info:
        uint32_t struct_size
        int32_t compute_capability
        char name[256]
        size_t total_memory_bytes
        size_t free_memory_bytes
        int32_t multiprocessors
        int32_t driver_version
        int32_t runtime_version
    int dlk_version()
    const char* dlk_status_string(dlk_status_t)
    const char* dlk_last_error()
    dlk_status_t dlk_explain_last(dlk_plan*)
    dlk_status_t dlk_set_implementations(const char*)
    dlk_status_t dlk_set_tuning(const char*, const char*)
    dlk_status_t dlk_get_tuning(const char*, char*, size_t)
    dlk_status_t dlk_set_num_threads(int)
    int dlk_get_num_threads()
    dlk_status_t dlk_get_build_info(dlk_build_info*)
    dlk_status_t dlk_check_cpu()
    int dlk_device_count()
    dlk_status_t dlk_get_device_info(int, dlk_device_info*)
