# One call from Python: arrays in, stream and workspace found, outputs allocated, errors raised.
#
# Every function of the other .pxi files has this form:
#
#     def softmax(x, axis, out, stream):
#         cdef Call call = Call("softmax", stream)
#         cdef const DLTensor* tx = call.input("x", x)
#         cdef const DLTensor* ty = call.output_like("y", out, tx)
#         cdef dlk_softmax_params params = ...  # numbers through integer(call, "axis", axis, 32)
#         while call.pending():
#             with nogil:
#                 call.status = dlk_softmax_forward(tx, ty, &params, &call.launch)
#         return call.result()
from operator import index as _index
from threading import local as _thread_local


class DeviceError(RuntimeError):
    """The GPU or its driver failed."""


cdef dict _exceptions = {
    DLK_INVALID_ARGUMENT: ValueError,
    DLK_UNSUPPORTED_DTYPE: TypeError,
    DLK_NOT_SUPPORTED: NotImplementedError,
    DLK_WORKSPACE_TOO_SMALL: ValueError,
    DLK_OUT_OF_MEMORY: MemoryError,
    DLK_DEVICE_ERROR: DeviceError,
    DLK_INTERNAL: RuntimeError,
}


cdef int check(dlk_status_t status) except -1:
    """Raises the last error of this thread for any status but success."""
    if status == DLK_SUCCESS:
        return 0
    raise _exceptions.get(status, RuntimeError)(dlk_last_error().decode())


cdef int check_part(str op, dlk_status_t status) except -1:
    """The same where the C function is another op's: the message names `op`."""
    if status == DLK_SUCCESS:
        return 0
    message = dlk_last_error().decode().partition(": ")[2]
    raise _exceptions.get(status, RuntimeError)(f"{op}: {message}")


# State of the current thread that a `with` block or explain() sets for the calls inside it.
cdef extern from *:
    """
    static _Thread_local struct { void* data; size_t bytes; int device; int is_set; } dlk_workspace;
    static _Thread_local int dlk_explaining = 0;
    """
    ctypedef struct Workspace "__typeof__(dlk_workspace)":
        void* data
        size_t bytes
        int device
        bint is_set
    Workspace dlk_workspace
    int dlk_explaining

_explained = _thread_local()

# What earlier calls needed: see Call.pending().
cdef set _ops_with_scratch = set()
cdef dict _scratch_bytes = {}

cdef enum:
    SLOTS = 16
    MOST_REMEMBERED = 1024       # kinds of calls


# Slots never move: C functions are given pointers to their tensors.
cdef struct MoreSlots:
    Slot slots[SLOTS]
    MoreSlots* older


cdef void dense_strides(int ndim, const int64_t* shape, bint channels_last,
                        int64_t* strides) noexcept:
    """Of a row-major array, or of one in PyTorch's channels-last format."""
    cdef int64_t stride = 1
    if channels_last:
        strides[1] = 1
        stride = max(shape[1], 1)
    for d in range(ndim - 1, -1, -1):
        if not (channels_last and d == 1):
            strides[d] = stride
            stride *= max(shape[d], 1)


cdef bint is_dense(const DLTensor* tensor, bint channels_last) noexcept:
    cdef int64_t strides[MAX_DIMS]
    dense_strides(tensor.ndim, tensor.shape, channels_last, strides)
    for d in range(tensor.ndim):
        if tensor.shape[d] == 0 or (tensor.shape[d] > 1 and tensor.strides[d] != strides[d]):
            return False
    return True


cdef bint is_channels_last(const DLTensor* tensor) noexcept:
    """In that format alone; by the rule of dlkern/torch/_shapes.py."""
    return (4 <= tensor.ndim <= 5 and tensor.strides != NULL and is_dense(tensor, True)
            and not is_dense(tensor, False))


cdef bint on_gpu(const DLTensor* tensor) noexcept:
    return tensor.device.device_type not in (kDLCPU, kDLCUDAHost, kDLROCMHost)


cdef uintptr_t handle_of(object stream) except? 0:
    """The native handle of a stream given as an int or as an object that holds one."""
    if isinstance(stream, int):
        if not 0 <= stream < _uint64_limit:
            raise ValueError(f"stream is {stream}, expected a stream handle")
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return (protocol() if callable(protocol) else protocol)[1]
    for attribute in ("cuda_stream", "ptr"):      # torch.cuda.Stream, cupy.cuda.Stream
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    raise TypeError(f"stream is {type(stream).__name__}, expected an int or an object with "
                    "__cuda_stream__")


cdef object _int32_limit = 2**31
cdef object _int64_limit = 2**63
cdef object _uint64_limit = 2**64


cdef int64_t integer(Call call, str name, object value, int bits=64) except? -1:
    """An integer argument of at most `bits` bits. Floats are refused, not truncated."""
    try:
        number = _index(value)
    except TypeError:
        raise TypeError(f"{call.op}: {name} is {value!r}, expected an integer") from None
    limit = _int64_limit if bits == 64 else _int32_limit
    if not -limit <= number < limit:
        raise ValueError(f"{call.op}: {name} is {value!r}, expected an integer of {bits} bits")
    return number


cdef double real(Call call, str name, object value) except? -1:
    """A floating-point argument."""
    cdef double number
    try:
        number = value
    except TypeError:
        raise TypeError(f"{call.op}: {name} is {value!r}, expected a number") from None
    except OverflowError:
        raise ValueError(f"{call.op}: {name} is beyond float64") from None
    if isinstance(value, int) and number != value:
        raise ValueError(f"{call.op}: {name} is {value}, expected a number that float64 can hold")
    return number


cdef int32_t precision_of(Call call, object precision) except -1:
    if precision not in ("ieee", "tf32"):
        raise ValueError(f'{call.op}: precision is {precision!r}, expected "ieee" or "tf32"')
    return DLK_PRECISION_IEEE if precision == "ieee" else DLK_PRECISION_TF32


cdef dict _keywords = {}


cdef str keyword_of(str output):
    """By convention the first output is passed as out=, "dweight" or "save_mean" after it as
    out_weight=, out_mean=."""
    found = _keywords.get(output)
    if found is None:
        found = _keywords[output] = "out_" + output.removeprefix("save_").removeprefix("d")
    return found


@cython.final
cdef class TensorList:
    """A list as C functions take it; its tensors live in the slots of a Call."""
    cdef const DLTensor** data
    cdef int64_t count

    def __cinit__(self, Py_ssize_t count):
        self.count = count
        self.data = <const DLTensor**>PyMem_Calloc(count + 1, sizeof(DLTensor*))
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(<void*>self.data)


@cython.final
@cython.freelist(8)
cdef class Call:
    cdef dlk_launch launch
    cdef dlk_status_t status
    cdef str op
    cdef int count
    cdef int attempts
    cdef Slot slots[SLOTS]       # of the first arrays
    cdef MoreSlots* more         # of further ones, the newest first
    cdef Framework framework     # of the first array; outputs come from it
    cdef object first            # the first array
    cdef const DLTensor* first_tensor
    cdef str first_name
    cdef bint explicit_stream    # the caller gave the stream
    cdef tuple outputs           # what result() returns
    cdef object made             # by the last allocate()
    cdef object scratch          # the workspace, alive until the call is over
    cdef list traced             # (array, whether it is written) of a traced framework
    cdef str first_keyword       # of the first output
    cdef int channels_last_ndim  # outputs of this rank are made in that format
    cdef tuple renamed           # (C name, the caller's name, those before or None), or None

    def __cinit__(self, str op, stream):
        memset(&self.launch, 0, sizeof(dlk_launch))
        self.launch.struct_size = sizeof(dlk_launch)
        self.op = op
        self.count = 0
        self.more = NULL
        self.attempts = 0
        self.first_tensor = NULL
        self.channels_last_ndim = 0
        self.explicit_stream = stream is not None
        if self.explicit_stream:
            self.launch.stream = <void*>handle_of(stream)
        self.outputs = ()
        self.first_keyword = "out"
        if dlk_explaining:
            self.launch.flags = DLK_LAUNCH_PLAN_ONLY

    def __dealloc__(self):
        for i in range(min(self.count, SLOTS)):
            release(&self.slots[i])
        while self.more != NULL:
            more, self.more = self.more, self.more.older
            for i in range(SLOTS):
                release(&more.slots[i])
            PyMem_Free(more)

    # ---- Arguments ---------------------------------------------------------------------------

    cdef const DLTensor* input(self, str name, object array) except NULL:
        return self.add(name, array, False)

    cdef const DLTensor* optional_input(self, str name, object array) except? NULL:
        if array is None:
            return NULL
        return self.add(name, array, False)

    cdef const DLTensor* inout(self, str name, object array) except NULL:
        return self.add(name, array, True)

    cdef const DLTensor* optional_inout(self, str name, object array) except? NULL:
        if array is None:
            return NULL
        return self.add(name, array, True)

    cdef TensorList input_list(self, str name, object arrays):
        """The arrays of a list; messages name one of them "<name>[i]"."""
        return self.add_list(name, arrays, False)

    cdef TensorList inout_list(self, str name, object arrays):
        return self.add_list(name, arrays, True)

    cdef const DLTensor* output(self, str name, object out, int ndim, const int64_t* shape,
                                DLDataType dtype, str keyword=None) except NULL:
        """An output: `out` where the caller gave one, else a new array of the first argument's
        framework. It becomes (the next) part of result()."""
        if out is not None:
            if keyword is None:
                keyword = keyword_of(name) if self.outputs else self.first_keyword
            self.rename(name, keyword)
            tensor = self.add(keyword, out, True)
            self.outputs += (out,)
            return tensor
        tensor = self.allocate(name, ndim, shape, dtype)
        self.outputs += (self.made,)
        return tensor

    cdef const DLTensor* output_like(self, str name, object out, const DLTensor* like) except NULL:
        return self.output(name, out, like.ndim, like.shape, like.dtype)

    cdef void keep_format(self, const DLTensor* like, int layout=DLK_LAYOUT_NCHW) noexcept:
        """New outputs of its rank are in PyTorch's channels-last format if `like` is; of an image
        op, where channels come first in `layout`."""
        if (self.framework.has_formats and layout == DLK_LAYOUT_NCHW
                and is_channels_last(like)):
            self.channels_last_ndim = like.ndim

    cdef int rename(self, str role, str keyword) except -1:
        """Messages of C about `role` are to name `keyword`."""
        self.renamed = (role, keyword, self.renamed)
        return 0

    # ---- The run -----------------------------------------------------------------------------

    cdef bint pending(self) except -1:
        """True before the C function is to be called: once, and once more when it asked for more
        workspace than it was given. What a call like it needed before is there at once."""
        cdef dlk_plan plan
        self.attempts += 1
        if self.attempts == 1:
            if (self.op in _ops_with_scratch and self.first_tensor != NULL
                    and self.launch.workspace == NULL
                    and not self.launch.flags & DLK_LAUNCH_PLAN_ONLY):
                self.provide(_scratch_bytes.get(self.likeness(), 0))
            return True
        if (self.status != DLK_WORKSPACE_TOO_SMALL or self.attempts > 2
                or (self.launch.workspace != NULL and self.scratch is None)):
            return False
        plan.struct_size = sizeof(dlk_plan)
        check(dlk_explain_last(&plan))
        _ops_with_scratch.add(self.op)
        if len(_scratch_bytes) >= MOST_REMEMBERED:
            _scratch_bytes.clear()
        _scratch_bytes[self.likeness()] = plan.workspace_bytes
        self.provide(plan.workspace_bytes)
        return True

    cdef tuple likeness(self):
        """What calls have in common that need the same workspace, mostly."""
        cdef const DLTensor* like = self.first_tensor
        return self.op, like.dtype.code << 8 | like.dtype.bits, self.count, \
            (<char*>like.shape)[:like.ndim * sizeof(int64_t)]

    cdef int provide(self, int64_t size) except -1:
        """Scratch memory of `size` bytes, in order with the call's stream."""
        self.launch.workspace, self.launch.workspace_bytes = NULL, 0
        if size == 0:
            return 0
        tensor = self.allocate("workspace", 1, &size, dtype_named("uint8"))
        self.scratch = self.made
        self.launch.workspace = <char*>tensor.data + tensor.byte_offset
        self.launch.workspace_bytes = size
        return 0

    cdef object result(self):
        """Raises for a failed call; else the outputs: one array, or a tuple, or None."""
        if self.status != DLK_SUCCESS:
            self.fail()
        if self.launch.flags & DLK_LAUNCH_PLAN_ONLY:
            self.explain()
        if self.framework.immutable:
            self.framework.adapter.synchronize(self.device_tuple(), <uintptr_t>self.launch.stream)
            self.outputs = tuple([
                self.framework.adapter.adopt(o) if type(o) is Export else o for o in self.outputs
            ])
        if len(self.outputs) == 1:
            return self.outputs[0]
        return self.outputs or None

    cdef object fail(self):
        """C names an output by its role; the caller of the plain functions knows the keyword."""
        cdef str message = dlk_last_error().decode()
        renamed = self.renamed
        while renamed is not None:
            role, keyword, renamed = renamed
            head = f"{self.op}: {role}"
            if message.startswith(head) and not (message[len(head):] + " ")[0].isalnum():
                message = f"{self.op}: {keyword}{message[len(head):]}"
                break
        raise _exceptions.get(self.status, RuntimeError)(message)

    cdef int explain(self) except -1:
        cdef dlk_plan plan
        if self.framework.traced:
            hand_over(self.framework, self.op, self.traced)
            return 0
        plan.struct_size = sizeof(dlk_plan)
        check(dlk_explain_last(&plan))
        device = self.first_tensor.device.device_id if on_gpu(self.first_tensor) else None
        _explained.plans.append((
            self.op, plan.implementation.decode(), plan.explanation.decode(), plan.workspace_bytes,
            plan.tuning_key.decode(), tuple(plan.candidates.decode().splitlines()), device,
            <uintptr_t>self.launch.stream))
        return 0

    # ---- Pieces ------------------------------------------------------------------------------

    cdef tuple device_tuple(self):
        return (int(self.first_tensor.device.device_type), self.first_tensor.device.device_id)

    cdef Slot* next_slot(self) except NULL:
        """Filled with 0."""
        cdef Slot* slot = &self.slots[self.count % SLOTS]
        if self.count >= SLOTS:
            if self.count % SLOTS == 0:
                self.add_slots()
            slot = &self.more.slots[self.count % SLOTS]
        self.count += 1
        return slot

    cdef int add_slots(self) except -1:
        more = <MoreSlots*>PyMem_Calloc(1, sizeof(MoreSlots))
        if more == NULL:
            raise MemoryError(f"{self.op}: {self.count} arrays")
        more.older = self.more
        self.more = more
        return 0

    cdef const DLTensor* add(self, str name, object array, bint written) except NULL:
        cdef Framework framework = framework_of(array)
        cdef Slot* slot
        if needs_check(framework, array):
            framework.adapter.check(f"{self.op}: {name}", array)
        slot = self.next_slot()
        if framework.api != NULL:
            if framework.api.dltensor_from_py_object_no_sync(<void*>array, &slot.tensor) != 0:
                raise_export_error(f"{self.op}: {name}", framework, array)
            if slot.tensor.dtype.code == kDLComplex and framework.checked:
                framework.adapter.check(f"{self.op}: {name}", array)
            if self.first is None:
                self.set_first(name, array, framework, &slot.tensor)
        else:
            self.take(name, array, framework, slot)
        if slot.tensor.ndim > MAX_DIMS:
            raise ValueError(f"{self.op}: {name} has {slot.tensor.ndim} dimensions, expected at "
                             f"most {MAX_DIMS}")
        if framework is not self.framework:
            self.check_order(name, framework, &slot.tensor)
        if framework.traced:
            self.traced.append((array, written))
        if written and (slot.read_only or framework.immutable):
            raise ValueError(f"{self.op}: {name} is read-only, expected a writable array")
        return &slot.tensor

    cdef TensorList add_list(self, str name, object arrays, bint written):
        if not isinstance(arrays, (list, tuple)):
            raise TypeError(f"{self.op}: {name} is {type(arrays).__name__}, expected a list of "
                            "arrays")
        cdef TensorList tensors = TensorList(len(arrays))
        for i in range(tensors.count):
            tensors.data[i] = self.add(f"{name}[{i}]", arrays[i], written)
        return tensors

    cdef int take(self, str name, object array, Framework framework, Slot* slot) except -1:
        """Through a capsule: of the array's __dlpack__, or the array is one itself."""
        if (framework.has_attributes and not self.explicit_stream
                and read_attributes(array, slot)):
            if self.first is None:
                self.set_first(name, array, framework, &slot.tensor)
            return 0
        cdef str where = f"{self.op}: {name}"
        if is_capsule(array):
            take_capsule(array, where, slot)
            if self.first is None:
                self.set_first(name, array, framework, &slot.tensor)
            return 0
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"{where} is {type(array).__name__}, expected an array with __dlpack__")
        cdef object dtype = array.dtype if framework.extends_numpy else None
        cdef str hidden = None
        if dtype is not None and dtype.isbuiltin == 2:     # a type of ml_dtypes
            hidden = dtype.name
            if hidden not in _dtype_codes:
                raise TypeError(f"{where}.dtype is {hidden}, which no dlkern op takes")
            array = array.view(f"u{dtype.itemsize}")
        stream = None
        if not framework.numpy:
            device_type, device_id = array.__dlpack_device__()
            if device_type not in (kDLCPU, kDLCUDAHost, kDLROCMHost):
                # The producer is always handed an explicit stream; on its own current one it has
                # nothing to wait for, which also keeps captures free of foreign events.
                if self.first is None:
                    self.find_stream(framework, device_id)
                stream = framework.adapter.dlpack_stream(<uintptr_t>self.launch.stream,
                                                         self.explicit_stream)
        take_capsule(self.export(where, array, framework, stream), where, slot)
        if hidden is not None:
            slot.tensor.dtype = dtype_named(hidden)
        if self.first is None:
            self.set_first(name, array, framework, &slot.tensor)
        return 0

    cdef object export(self, str where, object array, Framework framework, stream):
        try:
            return framework.adapter.export(array, stream)
        except BufferError as error:
            raise TypeError(f"{where} cannot be exported by DLPack: {error}") from error

    cdef int set_first(self, str name, object array, Framework framework,
                       const DLTensor* tensor) except -1:
        self.first = array
        self.first_name = name
        self.first_tensor = tensor
        self.framework = framework
        if framework.traced:
            self.launch.flags |= DLK_LAUNCH_PLAN_ONLY
            self.traced = []
        if on_gpu(tensor):
            if not has_choices(tensor.device.device_id):
                load_choices(tensor.device.device_id)
            self.find_stream(framework, tensor.device.device_id)
            if dlk_workspace.is_set and dlk_workspace.device == tensor.device.device_id:
                self.launch.workspace = dlk_workspace.data
                self.launch.workspace_bytes = dlk_workspace.bytes
        return 0

    cdef int find_stream(self, Framework framework, int device_id) except -1:
        """The caller's stream, else the framework's current one."""
        if not self.explicit_stream:
            self.launch.stream = current_stream(framework, device_id)
        return 0

    cdef bint on_current_stream(self) except -1:
        """The call runs where the framework's allocator orders its memory."""
        return (not self.explicit_stream or not on_gpu(self.first_tensor)
                or current_stream(self.framework, self.first_tensor.device.device_id)
                == self.launch.stream)

    cdef int check_order(self, str name, Framework framework, const DLTensor* tensor) except -1:
        """Arrays of two frameworks on a GPU need one stream that orders both."""
        if self.explicit_stream or not on_gpu(tensor) or not on_gpu(self.first_tensor):
            return 0
        if not framework.has_stream:
            return 0   # __dlpack__(stream=ours) has ordered it
        if current_stream(framework, tensor.device.device_id) != self.launch.stream:
            raise ValueError(
                f"{self.op}: {name} is an array of {framework.adapter.name}, whose current stream "
                f"is not that of {self.framework.adapter.name} ({self.first_name}); "
                "pass stream= to say on which one the call is ordered")
        return 0

    cdef const DLTensor* allocate(self, str name, int ndim, const int64_t* shape,
                                  DLDataType dtype) except NULL:
        """A new array of the first argument's framework, on its device: self.made. It is contiguous
        or in the format that keep_format() has chosen. Its memory is ordered on the call's stream:
        it may have been freed there just before, and may be used again there once it is freed, with
        kernels of ours still running."""
        cdef Slot* slot
        cdef bint channels_last = ndim == self.channels_last_ndim and ndim > 0
        if (self.framework.api != NULL and self.framework.allocates_by_api
                and self.on_current_stream()):
            array = self.gpu_empty(ndim, shape, dtype, channels_last)
            if array is not None:
                slot = self.take_made(name, array)
                if slot.tensor.device.device_id == self.first_tensor.device.device_id:
                    return &slot.tensor
                self.count -= 1
            if not channels_last:
                array = self.exchange_empty(name, ndim, shape, dtype)
                return &self.take_made(name, array).tensor
        if dtype_name(dtype) not in _dtype_codes:
            raise TypeError(f"{self.op}: {self.first_name}.dtype is {dtype_name(dtype)}, which no "
                            "dlkern op takes")
        extents = tuple([shape[i] for i in range(ndim)])
        if self.framework.immutable:
            owner, address = self.framework.adapter.allocate(
                extents, dtype.bits // 8, self.device_tuple(), <uintptr_t>self.launch.stream)
            export = Export(owner, address, extents, dtype_name(dtype), self.device_tuple())
            slot = self.next_slot()
            slot.tensor = (<Export>export).tensor
            self.made = export
            return &slot.tensor
        options = {"channels_last": True} if channels_last else {}
        array = self.framework.adapter.empty(extents, dtype_name(dtype), self.device_tuple(),
                                             <uintptr_t>self.launch.stream, **options)
        self.made = array
        return self.add(name, array, True)

    cdef Slot* take_made(self, str name, object array) except NULL:
        slot = self.next_slot()
        if self.framework.api.dltensor_from_py_object_no_sync(<void*>array, &slot.tensor) != 0:
            raise_pending(f"{self.op}: {name} could not be allocated")
        self.made = array
        return slot

    cdef object gpu_empty(self, int ndim, const int64_t* shape, DLDataType dtype,
                          bint channels_last):
        """A new array of the framework on the current GPU, or None where that has no quicker way to
        one than the exchange API."""
        if self.framework.gpu_empty is None or not on_gpu(self.first_tensor):
            return None
        known = self.framework.dtypes.get(dtype_key(dtype))
        if known is None:
            return None
        cdef int64_t strides[MAX_DIMS]
        dense_strides(ndim, shape, channels_last, strides)
        return self.framework.gpu_empty(
            tuple([shape[d] for d in range(ndim)]), tuple([strides[d] for d in range(ndim)]), known)

    cdef object exchange_empty(self, str name, int ndim, const int64_t* shape, DLDataType dtype):
        cdef DLTensor prototype
        cdef DLManagedTensorVersioned* managed = NULL
        cdef void* made = NULL
        memset(&prototype, 0, sizeof(DLTensor))
        prototype.device = self.first_tensor.device
        prototype.ndim = ndim
        prototype.shape = <int64_t*>shape
        prototype.dtype = dtype
        if (self.framework.api.managed_tensor_allocator(
                &prototype, &managed, NULL, set_python_error) != 0
                or self.framework.api.managed_tensor_to_py_object_no_sync(managed, &made) != 0):
            raise_pending(f"{self.op}: {name} could not be allocated")
        array = <object>made
        Py_DECREF(array)      # `made` was a new reference
        return array


cdef void* current_stream(Framework framework, int device_id) except? NULL:
    cdef void* stream = NULL
    if framework.api != NULL and framework.api.current_work_stream != NULL:
        if framework.api.current_work_stream(kDLCUDA, device_id, &stream) != 0:
            raise_pending("the current stream cannot be had")
        return stream
    return <void*><uintptr_t>framework.adapter.current_stream(device_id)


cdef extern from "Python.h":
    PyObject* PyErr_Occurred()
    void PyErr_SetString(object, const char*)


cdef int raise_pending(str otherwise) except -1:
    """The Python error that a C function has set, or BufferError where it set none."""
    if PyErr_Occurred() == NULL:
        PyErr_SetString(BufferError, otherwise.encode())
    return -1


cdef int raise_export_error(str where, Framework framework, object array) except -1:
    """The producer's refusal as a TypeError that names the argument, without its stack trace; or
    what the adapter has to say."""
    try:
        raise_pending("no reason given")
    except Exception as error:
        if framework.checked:
            framework.adapter.check(where, array)
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise TypeError(f"{where} cannot be exported by DLPack: {reason}") from error


cdef void set_python_error(void* context, const char* kind, const char* message) noexcept with gil:
    PyErr_SetString(MemoryError if kind == b"MemoryError" else RuntimeError, message)


def stream_handle(stream):
    """The native handle of a stream, as an int."""
    return handle_of(stream)


# ---- For explain() and the workspace block ------------------------------------------------------

def explained(function, args, kwargs):
    """Runs `function` in plan-only mode; the plans of its calls as tuples of the fields of Plan."""
    global dlk_explaining
    previous = getattr(_explained, "plans", None)
    _explained.plans = []
    dlk_explaining += 1
    try:
        function(*args, **kwargs)
        return _explained.plans
    finally:
        dlk_explaining -= 1
        _explained.plans = previous


cdef tuple current_workspace():
    if not dlk_workspace.is_set:
        return None
    return <uintptr_t>dlk_workspace.data, dlk_workspace.bytes, dlk_workspace.device


def restore_workspace(tuple previous):
    """Undoes set_workspace(), which returned `previous`."""
    global dlk_workspace
    dlk_workspace.is_set = previous is not None
    if previous is not None:
        address, size, device = previous
        dlk_workspace.data, dlk_workspace.bytes = <void*><uintptr_t>address, size
        dlk_workspace.device = device


def set_workspace(array):
    """Makes `array` this thread's workspace; the caller keeps it alive. Returns what
    restore_workspace() takes."""
    global dlk_workspace
    previous = current_workspace()
    cdef Call call = Call("workspace", None)
    cdef const DLTensor* tensor = call.inout("buffer", array)
    cdef int64_t size_bytes = tensor.dtype.bits // 8
    cdef int64_t expected = 1
    cdef uintptr_t address
    for i in range(tensor.ndim - 1, -1, -1):
        if tensor.strides != NULL and tensor.shape[i] > 1 and tensor.strides[i] != expected:
            raise ValueError("workspace: buffer is strided, expected a contiguous array")
        expected *= tensor.shape[i]
        size_bytes *= tensor.shape[i]
    address = <uintptr_t>tensor.data + tensor.byte_offset
    if on_gpu(tensor) and address % 256 != 0:
        raise ValueError(
            f"workspace: buffer is at address {address:#x}, expected a multiple of 256"
        )
    dlk_workspace.data = <void*>address
    dlk_workspace.bytes = size_bytes
    dlk_workspace.device = tensor.device.device_id
    dlk_workspace.is_set = on_gpu(tensor)
    return previous
