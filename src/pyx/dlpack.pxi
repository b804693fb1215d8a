# DLPack in and out: frameworks by type, element types by name, and our own exports.
from dlkern._frameworks import adapter_of as _adapter_of


# ---- Element types ---------------------------------------------------------------------------

cdef dict _dtype_names = {
    (2, 64): "float64", (2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2",
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64",
    (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32", (1, 64): "uint64",
    (6, 8): "bool", (5, 64): "complex64", (5, 128): "complex128",
}
cdef dict _dtype_codes = {name: code for code, name in _dtype_names.items()}


cdef str dtype_name(DLDataType dtype):
    name = _dtype_names.get((dtype.code, dtype.bits))
    return name or f"dtype(code={dtype.code}, bits={dtype.bits})"


cdef inline int dtype_key(DLDataType dtype) noexcept:
    return dtype.code << 8 | dtype.bits


cdef DLDataType dtype_named(str name) except *:
    cdef DLDataType dtype
    if name not in _dtype_codes:
        raise BufferError(f"no dlkern op takes {name}")
    code, bits = _dtype_codes[name]
    dtype.code, dtype.bits, dtype.lanes = code, bits, 1
    return dtype


# ---- Frameworks ------------------------------------------------------------------------------

@cython.final
cdef class Framework:
    """What is known of one array type: its adapter and, where it has one, its C exchange API."""
    cdef object adapter
    cdef const DLPackExchangeAPI* api
    # Facts of the adapter, without a look-up in each call.
    cdef bint checked      # it wants to look at each array before it is used
    cdef bint numpy
    cdef bint extends_numpy
    cdef bint immutable
    cdef bint has_stream
    cdef bint has_attributes
    cdef bint allocates_by_api
    cdef bint has_formats
    cdef object is_neg, is_grad_enabled    # of PyTorch's own classes, see Adapter.plain
    cdef dict forward_ad
    cdef object gpu_empty                  # see Adapter.gpu_empty
    cdef dict dtypes
    cdef bint traced       # its arrays have no memory: calls are recorded, see recorded.pxi

    def __cinit__(self, cls):
        self.adapter = _adapter_of(cls)
        self.traced = self.adapter.traced
        self.checked = self.adapter.check is not None
        self.immutable = self.adapter.immutable
        self.has_stream = self.adapter.has_stream
        self.has_attributes = self.adapter.has_attributes
        self.allocates_by_api = self.adapter.allocates_by_api
        self.has_formats = self.adapter.has_formats
        self.is_neg, self.is_grad_enabled, self.forward_ad = self.adapter.plain or (None,) * 3
        self.gpu_empty, dtypes = self.adapter.gpu_empty or (None, None)
        self.dtypes = {dtype_key(dtype_named(name)): getattr(dtypes, name, None)
                       for name in _dtype_codes}
        self.numpy = self.adapter.name == "numpy"
        self.extends_numpy = self.adapter.extends_numpy
        self.api = NULL
        capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
        if capsule is not None and self.adapter.trusts_exchange_api:
            self.api = find_api(
                <const DLPackExchangeAPI*>PyCapsule_GetPointer(capsule, "dlpack_exchange_api"))


cdef inline bint needs_check(Framework framework, object array) except -1:
    """Whether the adapter has to look at the array. It looks at few of PyTorch's: to those without
    plain memory, and of complex numbers, Call.add() comes back."""
    cdef long level
    if not framework.checked:
        return False
    if framework.is_neg is None or (array.requires_grad and framework.is_grad_enabled()):
        return True
    level = framework.forward_ad.get("_current_level", 0)
    return level >= 0 or framework.is_neg(array)


cdef const DLPackExchangeAPI* find_api(const DLPackExchangeAPI* api) noexcept:
    """The table of the newest major version that we know, along the chain of older ones."""
    while api != NULL and api.header.version.major != DLPACK_MAJOR_VERSION:
        api = <const DLPackExchangeAPI*>api.header.prev_api
    if api != NULL and api.dltensor_from_py_object_no_sync == NULL:
        return NULL
    return api


cdef dict _frameworks = {}


cdef inline Framework framework_of(object array):
    cls = type(array)
    found = _frameworks.get(cls)
    if found is None:
        found = _frameworks[cls] = Framework(cls)
    return <Framework>found


cdef enum:
    MAX_DIMS = 8


# ---- In --------------------------------------------------------------------------------------

cdef enum Owner:
    BORROWED      # the caller's argument keeps it alive
    LEGACY        # a DLManagedTensor to delete
    VERSIONED     # a DLManagedTensorVersioned to delete
    EXTENTS       # shape and strides in memory of ours; the argument keeps its elements alive


cdef struct Slot:
    DLTensor tensor
    Owner owner
    void* managed
    bint read_only


cdef void release(Slot* slot) noexcept:
    if slot.owner == LEGACY:
        legacy = <DLManagedTensor*>slot.managed
        if legacy.deleter != NULL:
            legacy.deleter(legacy)
    elif slot.owner == VERSIONED:
        versioned = <DLManagedTensorVersioned*>slot.managed
        if versioned.deleter != NULL:
            versioned.deleter(versioned)
    elif slot.owner == EXTENTS:
        PyMem_Free(slot.managed)
    slot.owner = BORROWED


# The names of NumPy's dtypes that were seen: dtype.name takes most of a microsecond.
cdef dict _numpy_dtype_names = {}


cdef str numpy_dtype_name(object dtype):
    """Of a dtype that may be one of ml_dtypes; None for one that DLPack has no name for here."""
    name = _numpy_dtype_names.get(dtype)
    if name is None and dtype.name in _dtype_codes:
        name = _numpy_dtype_names[dtype] = dtype.name
    return name


cdef bint read_attributes(object array, Slot* slot) except -1:
    """The tensor of an array of a GPU by its attributes. False where that does not describe it."""
    cdef tuple shape = array.shape, strides = array.strides
    cdef Py_ssize_t ndim = len(shape)
    name = numpy_dtype_name(array.dtype)
    if name is None or ndim > MAX_DIMS:
        return False
    cdef DLDataType dtype = dtype_named(name)
    cdef int64_t itemsize = dtype.bits // 8, step
    cdef int64_t* extents = <int64_t*>PyMem_Malloc(2 * MAX_DIMS * sizeof(int64_t))
    if extents == NULL:
        raise MemoryError
    slot.managed, slot.owner = extents, EXTENTS
    for d in range(ndim):
        extents[d] = shape[d]
        step = strides[d]
        if step % itemsize != 0:
            release(slot)
            return False
        extents[MAX_DIMS + d] = step // itemsize
    memory = array.data
    slot.tensor.data = <void*><uintptr_t>memory.ptr
    slot.tensor.device.device_type = kDLCUDA
    slot.tensor.device.device_id = memory.device_id
    slot.tensor.ndim = <int32_t>ndim
    slot.tensor.dtype = dtype
    slot.tensor.shape = extents
    slot.tensor.strides = extents + MAX_DIMS
    slot.tensor.byte_offset = 0
    return True


cdef int take_capsule(object capsule, str where, Slot* slot) except -1:
    """Moves a DLPack capsule's tensor into slot. The capsule is renamed at once, so that it cannot
    be used twice and its own destructor leaves the tensor to us."""
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        if versioned.version.major != DLPACK_MAJOR_VERSION:
            raise BufferError(f"{where} is a DLPack {versioned.version.major} tensor, "
                              f"expected version {DLPACK_MAJOR_VERSION}")
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        slot.owner = VERSIONED
        slot.managed = versioned
        slot.tensor = versioned.dl_tensor
        slot.read_only = (versioned.flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0
    elif PyCapsule_IsValid(capsule, "dltensor"):
        legacy = <DLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor")
        PyCapsule_SetName(capsule, "used_dltensor")
        slot.owner = LEGACY
        slot.managed = legacy
        slot.tensor = legacy.dl_tensor
        slot.read_only = False
    elif (PyCapsule_IsValid(capsule, "used_dltensor")
          or PyCapsule_IsValid(capsule, "used_dltensor_versioned")):
        raise ValueError(f"{where} is a DLPack capsule that was used before; "
                         "a capsule can be used once")
    else:
        raise TypeError(f"{where} is a capsule that holds no DLPack tensor")
    return 0


cdef bint is_capsule(object array):
    return type(array).__name__ == "PyCapsule"


# ---- Out -------------------------------------------------------------------------------------

cdef struct ExportContext:
    DLManagedTensorVersioned versioned
    DLManagedTensor legacy
    int64_t extents[16]   # shape, then strides
    PyObject* owner


cdef void export_release(ExportContext* context) noexcept with gil:
    Py_DECREF(<object>context.owner)
    PyMem_Free(context)


cdef extern from *:
    """
    /* Whether Python code can still run. While the interpreter ends, a foreign thread that asked
       for the GIL would never get it: what it holds is then left to the operating system. */
    static int dlk_python_is_usable(void) {
    #if PY_VERSION_HEX >= 0x030d0000
        return Py_IsInitialized() && !Py_IsFinalizing();
    #else
        return Py_IsInitialized() && !_Py_IsFinalizing();
    #endif
    }
    """
    int dlk_python_is_usable() nogil


cdef void export_delete_versioned(DLManagedTensorVersioned* self) noexcept nogil:
    if dlk_python_is_usable():
        export_release(<ExportContext*>self.manager_ctx)


cdef void export_delete_legacy(DLManagedTensor* self) noexcept nogil:
    if dlk_python_is_usable():
        export_release(<ExportContext*>self.manager_ctx)


cdef void capsule_delete(object capsule) noexcept:
    """Of a capsule that nobody consumed."""
    cdef DLManagedTensorVersioned* versioned
    cdef DLManagedTensor* legacy
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        versioned.deleter(versioned)
    elif PyCapsule_IsValid(capsule, "dltensor"):
        legacy = <DLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor")
        legacy.deleter(legacy)


@cython.final
cdef class Export:
    """A contiguous array over somebody's memory, which any DLPack consumer can take.

    Used to hand a freshly filled buffer to frameworks whose own arrays cannot be written.
    """
    cdef object owner       # keeps the memory alive
    cdef DLTensor tensor
    cdef int64_t shape[8]

    def __init__(self, owner, uintptr_t address, tuple shape, str dtype, tuple device):
        if len(shape) > 8:
            raise ValueError(f"shape has {len(shape)} dimensions, expected at most 8")
        self.owner = owner
        memset(&self.tensor, 0, sizeof(DLTensor))
        self.tensor.data = <void*>address
        self.tensor.device.device_type = <DLDeviceType><int>device[0]
        self.tensor.device.device_id = device[1]
        self.tensor.dtype = dtype_named(dtype)
        self.tensor.ndim = <int32_t>len(shape)
        for i, extent in enumerate(shape):
            self.shape[i] = extent
        self.tensor.shape = self.shape

    def __dlpack_device__(self):
        return int(self.tensor.device.device_type), self.tensor.device.device_id

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("this array is exported in place only")
        context = <ExportContext*>PyMem_Malloc(sizeof(ExportContext))
        if context == NULL:
            raise MemoryError
        memset(context, 0, sizeof(ExportContext))
        cdef int64_t contiguous = 1
        cdef int ndim = self.tensor.ndim
        for i in range(ndim - 1, -1, -1):
            context.extents[i] = self.shape[i]
            context.extents[ndim + i] = contiguous
            contiguous *= self.shape[i]
        cdef DLTensor tensor = self.tensor
        tensor.shape = context.extents
        tensor.strides = context.extents + ndim
        context.owner = <PyObject*>self.owner
        Py_INCREF(self.owner)
        if max_version is not None and max_version[0] >= 1:
            context.versioned.version.major = 1
            context.versioned.version.minor = 0
            context.versioned.manager_ctx = context
            context.versioned.deleter = export_delete_versioned
            context.versioned.dl_tensor = tensor
            return PyCapsule_New(&context.versioned, "dltensor_versioned", capsule_delete)
        context.legacy.manager_ctx = context
        context.legacy.deleter = export_delete_legacy
        context.legacy.dl_tensor = tensor
        return PyCapsule_New(&context.legacy, "dltensor", capsule_delete)
