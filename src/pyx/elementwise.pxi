cdef extern from "dlkern/elementwise.h" nogil:
    ctypedef struct dlk_add_params:
        uint32_t struct_size
        uint32_t reserved
        double alpha
        double beta
    dlk_status_t dlk_add(const DLTensor*, const DLTensor*, const DLTensor*, const dlk_add_params*,
                         const dlk_launch*)
    dlk_status_t dlk_add_backward(const DLTensor*, const DLTensor*, const dlk_launch*)
    ctypedef struct dlk_walk:
        uint32_t struct_size
        int32_t ndim
        int64_t numel
        int64_t shape[8]
        int64_t strides[16][8]
    dlk_status_t dlk_elementwise_walk(const char*, int32_t, int32_t, const DLTensor* const*,
                                      const char* const*, dlk_walk*, const dlk_launch*)
    dlk_status_t dlk_elementwise_launch(void*, int32_t, uint32_t, uint32_t, void**,
                                        const dlk_launch*)


cdef int broadcast_shape(const DLTensor* a, const DLTensor* b, int64_t* shape) noexcept:
    """Writes the shape, returns its rank. Extents that do not fit together are left to the C
    function, whose message names them."""
    cdef const DLTensor* longer = a if a.ndim >= b.ndim else b
    cdef const DLTensor* shorter = b if longer == a else a
    cdef int ahead = longer.ndim - shorter.ndim
    for i in range(longer.ndim):
        shape[i] = longer.shape[i]
        if i >= ahead and shape[i] == 1:
            shape[i] = shorter.shape[i - ahead]
    return longer.ndim


def add(a, b, alpha, beta, out, stream):
    cdef Call call = Call("add", stream)
    cdef const DLTensor* ta = call.input("a", a)
    cdef const DLTensor* tb = call.input("b", b)
    cdef int64_t shape[MAX_DIMS]
    cdef int ndim = broadcast_shape(ta, tb, shape)
    call.keep_format(ta)
    cdef const DLTensor* ty = call.output("y", out, ndim, shape, ta.dtype)
    cdef dlk_add_params params = dlk_add_params(
        sizeof(dlk_add_params), 0, real(call, "alpha", alpha), real(call, "beta", beta))
    while call.pending():
        with nogil:
            call.status = dlk_add(ta, tb, ty, &params, &call.launch)
    return call.result()


cdef Call gradient_call(dy, str summand, shape, out, stream):
    """Of the summand "a" or "b". Slot 0 is dy, slot 1 the gradient, which C calls da."""
    cdef Call call = Call("add_backward", stream)
    call.first_keyword = "out_" + summand
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef int64_t extents[MAX_DIMS]
    cdef int ndim = 0
    if out is None:
        if isinstance(shape, (tuple, list)):
            ndim = min(len(shape), tdy.ndim)
        extents_of(call, summand + "_shape", shape, ndim, extents)
        call.rename("da.shape", summand + "_shape")
    call.keep_format(tdy)
    call.output("da", out, ndim, extents, tdy.dtype)
    return call


cdef object run_gradient(Call call, bint plan_only):
    cdef uint32_t flags = call.launch.flags
    if plan_only:
        call.launch.flags |= DLK_LAUNCH_PLAN_ONLY
        with nogil:
            call.status = dlk_add_backward(&call.slots[0].tensor, &call.slots[1].tensor,
                                           &call.launch)
        call.launch.flags = flags
        return call.fail() if call.status != DLK_SUCCESS else None
    while call.pending():
        with nogil:
            call.status = dlk_add_backward(&call.slots[0].tensor, &call.slots[1].tensor,
                                           &call.launch)
    return call.result()


cdef int require_broadcast(Call a, Call b) except -1:
    """dy has the shape that the summands of both calls broadcast to."""
    cdef int64_t shape[MAX_DIMS]
    cdef const DLTensor* dy = &a.slots[0].tensor
    cdef int ndim = broadcast_shape(&a.slots[1].tensor, &b.slots[1].tensor, shape)
    expected = [shape[d] for d in range(ndim)]
    given = [dy.shape[d] for d in range(dy.ndim)]
    if given != expected:
        raise ValueError(f"add_backward: dy.shape is {given}, expected {expected} (the shapes of a "
                         "and b broadcast)")
    return 0


def add_backward(dy, a_shape, b_shape, out_a, out_b, stream):
    calls = [None if shape is None and array is None
             else gradient_call(dy, summand, shape, array, stream)
             for summand, shape, array in (("a", a_shape, out_a), ("b", b_shape, out_b))]
    # All arguments are right before anything is written.
    for call in calls:
        if call is not None:
            run_gradient(call, True)
    if None not in calls:
        require_broadcast(calls[0], calls[1])
    return tuple([None if call is None else run_gradient(call, False) for call in calls])


# ---- Kernels that are not in the library ---------------------------------------------------------

cdef enum:
    WALK_TENSORS = 16       # DLK_WALK_TENSORS
    MOST_NUMBERS = 64       # of a call that is remembered
    MOST_ARGUMENTS = 512    # 4 KB, what a launch takes


@cython.final
cdef class ElementwiseForm:
    """What all calls of one kernel have in common."""
    cdef str op
    cdef tuple inputs         # (name, its place among the outputs or None)
    cdef readonly tuple made  # of outputs that are no inputs: (place, name, the caller's name)
    cdef int outputs
    cdef tuple number_types
    cdef object plain_number  # (name, value) -> bool, int or float

    def __init__(self, str op, tuple inputs, tuple outputs, tuple number_types, plain_number):
        self.op, self.number_types, self.plain_number = op, number_types, plain_number
        self.outputs = <int>len(outputs)
        self.inputs = tuple([(n, outputs.index(n) if n in outputs else None) for n in inputs])
        names = [n for n in outputs if n not in inputs]
        keywords = ["out"] if len(names) == 1 else [f"out[{i}]" for i in range(len(names))]
        self.made = tuple([(outputs.index(n), n, k) for n, k in zip(names, keywords)])


@cython.final
cdef class ElementwiseLaunch:
    """A compiled kernel with all that stays the same while arrays lie in the same way.

    Its arguments are the number of elements, the addresses of the arrays whose slots are `order`,
    `integers`, and the numbers of the call. `made` has (place, name, shape, dtype) of the outputs
    that the caller does not give.
    """
    cdef object kernel        # alive
    cdef void* handle
    cdef uint32_t blocks, threads
    cdef int arrays, count
    cdef int[WALK_TENSORS] order
    cdef int64_t[MOST_ARGUMENTS] values
    cdef list made

    def __init__(self, kernel, uintptr_t handle, blocks, threads, int64_t numel, list order,
                 tuple integers, list made):
        self.arrays = <int>len(order)
        self.count = 1 + self.arrays + <int>len(integers)
        if self.arrays > WALK_TENSORS or self.count + MOST_NUMBERS > MOST_ARGUMENTS:
            raise ValueError("elementwise: the kernel has too many arguments")
        self.kernel, self.handle, self.made = kernel, <void*>handle, made
        self.blocks, self.threads = blocks, threads
        self.values[0] = numel
        for i, slot in enumerate(order):
            self.order[i] = slot
        for i, value in enumerate(integers):
            self.values[1 + self.arrays + i] = value


cdef struct Extent:
    intptr_t low, high


cdef Extent bytes_of(const DLTensor* tensor) noexcept:
    """From a tensor's lowest element to behind its highest."""
    cdef int64_t step = tensor.dtype.bits // 8, contiguous = 1
    cdef Extent extent
    extent.low = <intptr_t>tensor.data + <intptr_t>tensor.byte_offset
    extent.high = extent.low + step
    for d in range(tensor.ndim - 1, -1, -1):
        step = contiguous if tensor.strides == NULL else tensor.strides[d]
        step *= (tensor.shape[d] - 1) * (tensor.dtype.bits // 8)
        contiguous *= tensor.shape[d]
        if step < 0:
            extent.low += step
        else:
            extent.high += step
    return extent


cdef inline uintptr_t address_of(const DLTensor* tensor) noexcept:
    return <uintptr_t>tensor.data + tensor.byte_offset


cdef union Argument:
    int64_t bits
    int32_t int32
    float float32
    double float64


cdef int64_t argument_of(str kind, value):
    """The bits of a number as a kernel takes it."""
    cdef Argument argument
    argument.bits = 0
    if kind == "float32":
        argument.float32 = <float><double>value
    elif kind == "float64":
        argument.float64 = value
    elif kind == "uint64":
        argument.bits = <int64_t><uint64_t>value
    else:
        argument.bits = value     # little-endian
    return argument.bits


cdef dict _number_kinds = {"bool": 0, "int32": 1, "int64": 2, "uint64": 3, "float32": 4,
                           "float64": 5}
cdef dict _are_numbers = {}       # type -> whether its objects are numbers


@cython.final
cdef class ElementwiseCall:
    """One call of a kernel that is not in the library.

    Its slots are the inputs that are arrays, the outputs that the caller gave, then those that are
    made. A call like an earlier one is run() at once; for any other there are the dtypes, a way to
    make outputs, and the way through all arrays.
    """
    cdef ElementwiseForm form
    cdef Call call
    cdef list arrays          # (name, the caller's name, is read, is written) of each slot
    cdef list outputs         # by their place
    cdef list numbers         # (name, type, value)
    cdef dlk_walk way
    cdef list order           # of the walk: slots of outputs, then those of inputs

    def __init__(self, ElementwiseForm form, tuple args, out, stream):
        self.form = form
        self.call = Call(form.op, stream)
        self.arrays, self.numbers, self.outputs = [], [], [None] * form.outputs
        for (name, place), value in zip(form.inputs, args):
            is_number = _are_numbers.get(type(value))
            if is_number is None:
                is_number = issubclass(type(value), form.number_types)
                _are_numbers[type(value)] = is_number
            if not is_number:
                self.add(name, name, True, place, value)
            elif place is None:
                self.numbers.append((name, value))
            else:
                raise TypeError(f"{form.op}: {name} is updated in place, expected an array")
        if not self.arrays:
            raise TypeError(f"{form.op}: no array is given, which would decide shape and device")
        if self.numbers:
            self.type_numbers()
        if out is not None:
            self.add_outputs((out,) if len(form.made) == 1 else tuple(out))

    # ---- Arguments -------------------------------------------------------------------------------

    cdef int add(self, str name, str keyword, bint is_read, place, array) except -1:
        if place is None:
            self.call.input(keyword, array)
        else:
            self.call.inout(keyword, array)
            self.outputs[place] = array
        self.arrays.append((name, keyword, is_read, place is not None))
        return 0

    cdef int add_outputs(self, tuple given) except -1:
        made = self.form.made
        if len(given) != len(made):
            names = ", ".join([name for _, name, _ in made])
            raise ValueError(f"{self.form.op}: out has {len(given)} arrays, expected {len(made)}: "
                             f"{names}")
        for (place, name, keyword), array in zip(made, given):
            if array is not None:
                self.add(name, keyword, False, place, array)
        return 0

    cdef int type_numbers(self) except -1:
        """Numbers take part as C's literals do."""
        cdef list typed = []
        real = "float32"
        for i in range(len(self.arrays)):
            if dtype_name(self.slot(i).dtype) == "float64":
                real = "float64"
        for name, value in self.numbers:
            if type(value) is not float:
                value = self.form.plain_number(name, value)
            if isinstance(value, float):
                kind = real
            elif isinstance(value, bool):
                kind = "bool"
            elif -_int32_limit <= value < _int32_limit:
                kind = "int32"
            elif -_int64_limit <= value < _int64_limit:
                kind = "int64"
            elif 0 <= value < _uint64_limit:
                kind = "uint64"
            else:
                raise ValueError(f"{self.form.op}: {name} is {value}, expected an integer of 64 "
                                 "bits")
            typed.append((name, kind, value))
        self.numbers = typed
        return 0

    cdef DLTensor* slot(self, int i) noexcept:
        return &self.call.slots[i].tensor

    # ---- A call like an earlier one --------------------------------------------------------------

    def key(self):
        """Bytes that are the same for calls that one launch serves: device, dtypes, extents,
        strides, alignment to 16 bytes, which arrays an output is, types of numbers. None for a call
        that has to be looked at: it is explained, or an output overlaps another array."""
        cdef int64_t parts[2 + WALK_TENSORS * (4 + 2 * MAX_DIMS) + MOST_NUMBERS]
        cdef Extent extents[WALK_TENSORS]
        cdef bint written[WALK_TENSORS]
        cdef const DLTensor* tensor
        cdef int i, k, n = 2, count = <int>len(self.arrays)
        if (self.is_explained or len(self.numbers) > MOST_NUMBERS
                or count + len(self.form.made) > WALK_TENSORS):
            return None
        parts[0] = self.slot(0).device.device_id if on_gpu(self.slot(0)) else -1
        parts[1] = 0
        for i in range(self.form.outputs):
            parts[1] |= <int64_t>(self.outputs[i] is not None) << i
        for i in range(count):
            tensor = self.slot(i)
            extents[i] = bytes_of(tensor)
            written[i] = self.arrays[i][3]
            parts[n] = tensor.dtype.code << 8 | tensor.dtype.bits
            parts[n + 1] = tensor.ndim << 1 | (tensor.strides != NULL)
            parts[n + 2] = address_of(tensor) % 16
            parts[n + 3] = 0
            for k in range(i):
                if ((written[i] or written[k]) and extents[i].low < extents[k].high
                        and extents[k].low < extents[i].high):
                    if address_of(tensor) != address_of(self.slot(k)):
                        return None
                    parts[n + 3] |= <int64_t>1 << k
            n += 4
            memcpy(&parts[n], tensor.shape, tensor.ndim * sizeof(int64_t))
            n += tensor.ndim
            if tensor.strides != NULL:
                memcpy(&parts[n], tensor.strides, tensor.ndim * sizeof(int64_t))
                n += tensor.ndim
        for _, kind, _ in self.numbers:
            parts[n] = _number_kinds[kind]
            n += 1
        return (<char*>parts)[:n * sizeof(int64_t)]

    def run(self, ElementwiseLaunch launch):
        """Launches the kernel that an equal key led to; returns the outputs."""
        cdef int64_t values[MOST_ARGUMENTS]
        cdef void* params[MOST_ARGUMENTS]
        cdef int i, n = launch.count
        cdef int32_t device = self.call.first_tensor.device.device_id
        for place, name, shape, dtype in launch.made:
            if self.outputs[place] is None:
                self.make(place, name, shape, dtype)
        memcpy(values, launch.values, n * sizeof(int64_t))
        for i in range(launch.arrays):
            values[1 + i] = address_of(self.slot(launch.order[i]))
        for _, kind, value in self.numbers:
            values[n] = argument_of(kind, value)
            n += 1
        for i in range(n):
            params[i] = &values[i]
        with nogil:
            self.call.status = dlk_elementwise_launch(
                launch.handle, device, launch.blocks, launch.threads, params, &self.call.launch)
        return self.result()

    # ---- Any other -------------------------------------------------------------------------------

    def inputs(self):
        """Dtypes of the arrays that are read, by name."""
        return {entry[0]: dtype_name(self.slot(i).dtype)
                for i, entry in enumerate(self.arrays) if entry[2]}

    def values(self):
        """Types and values of the numbers, by name."""
        return {name: (kind, value) for name, kind, value in self.numbers}

    def given(self, str name):
        """The dtype of an output that the caller gave, or None."""
        for i, entry in enumerate(self.arrays):
            if entry[0] == name:
                return dtype_name(self.slot(i).dtype)
        return None

    def slots(self):
        """Names and dtypes of all arrays, by slot."""
        return [(entry[0], dtype_name(self.slot(i).dtype)) for i, entry in enumerate(self.arrays)]

    def shape(self):
        """The shape that the inputs broadcast to. Extents that do not fit together are left to
        arrange(), whose message names them."""
        cdef int64_t shape[MAX_DIMS]
        cdef int64_t before[MAX_DIMS]
        cdef DLTensor so_far
        so_far.ndim, so_far.shape = 0, before
        for i, entry in enumerate(self.arrays):
            if entry[2]:
                so_far.ndim = broadcast_shape(&so_far, self.slot(i), shape)
                memcpy(before, shape, sizeof(shape))
        return tuple([shape[d] for d in range(so_far.ndim)])

    def make(self, int place, str name, tuple shape, str dtype):
        """Makes an output that the caller did not give."""
        cdef int64_t extents[MAX_DIMS]
        for d, extent in enumerate(shape):
            extents[d] = extent
        self.call.allocate(name, <int>len(shape), extents, dtype_named(dtype))
        self.outputs[place] = self.call.made
        self.arrays.append((name, name, False, True))

    def arrange(self):
        """Checks that the arrays fit together and lays out the way through them."""
        cdef const DLTensor* tensors[WALK_TENSORS]
        cdef const char* names[WALK_TENSORS]
        encoded = [entry[1].encode() for entry in self.arrays]
        outputs = [i for i, entry in enumerate(self.arrays) if entry[3]]
        inputs = [i for i, entry in enumerate(self.arrays) if entry[2]]
        if len(outputs) + len(inputs) > WALK_TENSORS:
            raise ValueError(f"{self.call.op}: {len(outputs) + len(inputs)} arrays are given, "
                             f"expected at most {WALK_TENSORS} (in place counts twice)")
        self.order = outputs + inputs
        for slot, i in enumerate(self.order):
            tensors[slot] = self.slot(i)
            names[slot] = encoded[i]
        self.way.struct_size = sizeof(dlk_walk)
        op = self.call.op.encode()
        cdef const char* op_name = op
        cdef int32_t n_outputs = <int32_t>len(outputs), n_inputs = <int32_t>len(inputs)
        with nogil:
            self.call.status = dlk_elementwise_walk(op_name, n_outputs, n_inputs, tensors, names,
                                                    &self.way, &self.call.launch)
        if self.call.status != DLK_SUCCESS:
            self.call.fail()

    def walk(self):
        """After arrange(): the shape to walk; for each tensor, outputs first, its index among those
        that were added, its address and its strides in elements."""
        ndim = self.way.ndim
        places = [(i, address_of(self.slot(i)),
                   tuple([self.way.strides[slot][d] for d in range(ndim)]))
                  for slot, i in enumerate(self.order)]
        return tuple([self.way.shape[d] for d in range(ndim)]), self.way.numel, places

    @property
    def device(self):
        """Index of the GPU, None for the CPU."""
        return self.call.first_tensor.device.device_id if on_gpu(self.call.first_tensor) else None

    @property
    def is_explained(self):
        """Whether explain() asked."""
        return bool(self.call.launch.flags & DLK_LAUNCH_PLAN_ONLY)

    def explains(self, str implementation, str explanation):
        """Whether explain() asked: the plan is then told and nothing is to be run."""
        if not self.is_explained:
            return False
        _explained.plans.append((self.call.op, implementation, explanation, 0, "", (), self.device,
                                 <uintptr_t>self.call.launch.stream))
        return True

    def result(self):
        """The outputs, after the kernel was run or queued: one array or a tuple."""
        self.call.outputs = tuple(self.outputs)
        self.call.launch.flags = 0       # explains() has told the plan
        return self.call.result()
