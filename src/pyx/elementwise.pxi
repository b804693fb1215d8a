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


@cython.final
cdef class ElementwiseCall:
    """One call of a kernel that is not in the library: arrays in, outputs made, and the way through
    them all. Outputs come first in what walk() returns, in the order in which they were added."""
    cdef Call call
    cdef list names
    cdef list written        # for each slot whether it is an output
    cdef list order          # slots of outputs, then those of inputs
    cdef dlk_walk way

    def __init__(self, str op, stream):
        self.call = Call(op, stream)
        self.names, self.written = [], []

    def input(self, str name, array):
        """Adds an array that is read; returns its dtype."""
        tensor = self.call.input(name, array)
        self.names.append(name)
        self.written.append(False)
        return dtype_name(tensor.dtype)

    def inout(self, str name, array):
        """Adds one that is read and written in place, as an input and as an output."""
        tensor = self.call.inout(name, array)
        self.call.outputs.append(array)
        self.names.append(name)
        self.written.append(None)
        return dtype_name(tensor.dtype)

    def shape(self):
        """The shape that the inputs broadcast to. Extents that do not fit together are left to
        walk(), whose message names them."""
        cdef int64_t shape[MAX_DIMS]
        cdef int64_t before[MAX_DIMS]
        cdef DLTensor so_far
        so_far.ndim, so_far.shape = 0, before
        for i in range(self.call.count):
            so_far.ndim = broadcast_shape(&so_far, &self.call.slots[i].tensor, shape)
            memcpy(before, shape, sizeof(shape))
        return tuple([shape[d] for d in range(so_far.ndim)])

    def output(self, str name, str keyword, out, tuple shape, str dtype):
        """Adds an array that is written: `out`, known to the caller by `keyword`, or a new one.
        Returns its dtype."""
        cdef int64_t extents[MAX_DIMS]
        if out is not None:
            tensor = self.call.inout(keyword, out)
            self.call.outputs.append(out)
            name = keyword
        else:
            for d, extent in enumerate(shape):
                extents[d] = extent
            tensor = self.call.allocate(name, <int>len(shape), extents, dtype_named(dtype))
        self.names.append(name)
        self.written.append(True)
        return dtype_name(tensor.dtype)

    def arrange(self):
        """Checks that the arrays fit together and lays out the way through them."""
        cdef const DLTensor* tensors[16]   # of DLK_WALK_TENSORS
        cdef const char* names[16]
        encoded = [name.encode() for name in self.names]
        outputs = [i for i, kind in enumerate(self.written) if kind is not False]
        inputs = [i for i, kind in enumerate(self.written) if kind is not True]
        if len(outputs) + len(inputs) > 16:
            raise ValueError(f"{self.call.op}: {len(outputs) + len(inputs)} arrays are given, "
                             "expected at most 16 (in place counts twice)")
        self.order = outputs + inputs
        for slot, i in enumerate(self.order):
            tensors[slot] = &self.call.slots[<int>i].tensor
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
        places = [(i, address, tuple([self.way.strides[slot][d] for d in range(ndim)]))
                  for slot, (i, address) in enumerate(zip(self.order, self.addresses(self.order)))]
        return tuple([self.way.shape[d] for d in range(ndim)]), self.way.numel, places

    def signature(self):
        """After arrange(): bytes that are the same for arrays that lie in the same way: device,
        dtypes, extents, strides, and alignment to 16 bytes."""
        cdef int64_t parts[16 * (3 + 2 * MAX_DIMS) + 1]
        cdef const DLTensor* tensor
        cdef int n = 1
        parts[0] = self.call.first_tensor.device.device_id
        for i in range(self.call.count):
            tensor = &self.call.slots[i].tensor
            parts[n] = tensor.dtype.code << 8 | tensor.dtype.bits
            parts[n + 1] = tensor.ndim << 1 | (tensor.strides != NULL)
            parts[n + 2] = (<uintptr_t>tensor.data + tensor.byte_offset) % 16
            n += 3
            memcpy(&parts[n], tensor.shape, tensor.ndim * sizeof(int64_t))
            n += tensor.ndim
            if tensor.strides != NULL:
                memcpy(&parts[n], tensor.strides, tensor.ndim * sizeof(int64_t))
                n += tensor.ndim
        return (<char*>parts)[:n * sizeof(int64_t)]

    def addresses(self, list order):
        """Of the arrays with these indices."""
        return [<uintptr_t>self.call.slots[<int>i].tensor.data
                + self.call.slots[<int>i].tensor.byte_offset for i in order]

    @property
    def device(self):
        """Index of the GPU, None for the CPU."""
        return self.call.first_tensor.device.device_id if on_gpu(self.call.first_tensor) else None

    @property
    def stream(self):
        return <uintptr_t>self.call.launch.stream

    @property
    def is_explained(self):
        """Whether explain() asked."""
        return bool(self.call.launch.flags & DLK_LAUNCH_PLAN_ONLY)

    def explains(self, str implementation, str explanation):
        """Whether explain() asked: the plan is then told and nothing is to be run."""
        if not self.is_explained:
            return False
        _explained.plans.append((self.call.op, implementation, explanation, 0, "", (), self.device,
                                 self.stream))
        return True

    def result(self):
        """The outputs, after the kernel was run or queued: one array or a tuple."""
        self.call.launch.flags = 0       # explains() has told the plan
        return self.call.result()
