"""What dlkern has to know of each array framework, and nothing numerical.

An adapter is made once per array type. Frameworks are recognised by the module that defines the
type, so none is ever imported here unless the caller already holds an array of it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Iterator
from typing import Any, Protocol

_CPU_DEVICES = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost

Shape = tuple[int, ...]
DLDevice = tuple[int, int]


class Adapter:
    """An unknown framework: arrays with ``__dlpack__``, whose stream is the legacy default one."""

    name = "its framework"
    #: Arrays can never be written; outputs are made by us and handed over by DLPack.
    immutable = False
    #: The framework has a current stream on which its arrays are ordered.
    has_stream = False
    #: The C exchange API of this type may be used.
    trusts_exchange_api = True
    #: ... and so may its allocator.
    allocates_by_api = True
    #: It knows PyTorch's memory formats: images whose channels lie last in memory come first in
    #: their shape. Results of such images are made alike, by empty(channels_last=True).
    has_formats = False
    #: Arrays have no memory: calls are recorded, and told to planned(). See src/pyx/recorded.pxi.
    traced = False
    #: Called as check(where, array) before an array is used, to refuse what DLPack would hide.
    check: Any = None
    #: Arrays can be read by CuPy's attributes, which is quicker than a capsule: data.ptr,
    #: data.device_id, dtype, shape, strides.
    has_attributes = False
    #: Its dtypes are NumPy's. Those of ml_dtypes are exported as integers of their size, since
    #: their arrays know no DLPack, or not of every type.
    extends_numpy = False
    #: Where most arrays need no check, PyTorch's: functions that say whether one is lazily negated
    #: and whether gradients are recorded, and the names of the module whose _current_level is
    #: negative outside forward-mode differentiation.
    plain: tuple[Any, Any, dict[str, Any]] | None = None
    #: A quicker allocator than that of the exchange API, PyTorch's: make(shape, strides, dtype) on
    #: the current GPU; and the module that has its dtypes by their names.
    gpu_empty: tuple[Any, Any] | None = None

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def export(self, array: Any, stream: int | None) -> Any:
        """A DLPack capsule of the array, ordered before ``stream``."""
        kwargs = {} if stream is None else {"stream": stream}
        try:
            return array.__dlpack__(max_version=(1, 1), **kwargs)
        except TypeError:  # a producer older than DLPack 1.0
            return array.__dlpack__(**kwargs)

    def current_stream(self, device_id: int) -> int:
        return 0

    def dlpack_stream(self, handle: int, explicit: bool) -> int:
        """What to pass as ``__dlpack__(stream=)``: never 0, which the protocol leaves undefined."""
        if self.has_stream and not explicit:
            return -1  # it is the producer's own current stream: nothing to wait for
        return handle or 1

    def empty(self, shape: Shape, dtype: str, device: DLDevice, stream: int) -> Any:
        if device[0] in _CPU_DEVICES:
            return numpy_empty(shape, dtype)
        return device_empty(shape, dtype, device[1], stream)


@functools.cache
def numpy_dtype(name: str) -> Any:
    """The NumPy dtype of a name, from ml_dtypes where NumPy has none of its own."""
    import numpy as np

    if name == "bfloat16" or name.startswith("float8"):
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    return np.dtype(name)


def numpy_empty(shape: Shape, dtype: str) -> Any:
    import numpy as np

    return np.empty(shape, numpy_dtype(dtype))


def device_empty(shape: Shape, dtype: str, device_id: int, stream: int) -> Any:
    """An uninitialised device array without any framework: a view of a cuda.core buffer."""
    from cuda.core.utils import StridedMemoryView

    np_dtype = numpy_dtype(dtype)
    buffer = device_buffer(math.prod(shape) * np_dtype.itemsize, device_id, stream)
    return StridedMemoryView.from_buffer(buffer, shape, dtype=np_dtype, itemsize=np_dtype.itemsize)


@functools.cache
def _memory_resource(device_id: int) -> Any:
    import cuda.core

    device = cuda.core.Device(device_id)
    device.set_current()
    return cuda.core.DeviceMemoryResource(device_id)


@contextlib.contextmanager
def current_device(device_id: int) -> Iterator[None]:
    """The GPU made current for work of ours, and the previous one again."""
    import cuda.core

    previous = cuda.core.Device()
    cuda.core.Device(device_id).set_current()
    try:
        yield
    finally:
        previous.set_current()


def stream_object(handle: int) -> Any:
    """The cuda.core stream of a native handle, which stays its creator's."""
    import cuda.core

    return cuda.core.Stream.from_handle(handle) if handle else cuda.core.LEGACY_DEFAULT_STREAM


def device_buffer(size_bytes: int, device_id: int, stream: int) -> Any:
    return _memory_resource(device_id).allocate(max(size_bytes, 1), stream=stream_object(stream))


def memcpy(target: int, source: int, size_bytes: int) -> None:
    """Copies between any two addresses, in order with the legacy default stream; waits for it."""
    from cuda.bindings import runtime

    (error,) = runtime.cudaMemcpy(
        target, source, size_bytes, runtime.cudaMemcpyKind.cudaMemcpyDefault
    )
    if error != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"cudaMemcpy failed: {error.name}")


def pinned_empty(shape: Shape, dtype: str) -> Any:
    """An uninitialised NumPy array over a page-locked cuda.core buffer."""
    import cuda.core
    import numpy as np

    cuda.core.Device().set_current()
    np_dtype = numpy_dtype(dtype)
    size = math.prod(shape) * np_dtype.itemsize
    buffer = cuda.core.LegacyPinnedMemoryResource().allocate(max(size, 1))
    return np.from_dlpack(buffer).view(np.uint8)[:size].view(np_dtype).reshape(shape)


class _NumPy(Adapter):
    name = "numpy"
    extends_numpy = True

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        import numpy as np

        if issubclass(cls, np.ma.MaskedArray):
            self.check = _refuse("is a masked array, whose mask would be lost; pass its data")

    def export(self, array: Any, stream: int | None) -> Any:
        return array.__dlpack__(max_version=(1, 1))

    def empty(self, shape: Shape, dtype: str, device: DLDevice, stream: int) -> Any:
        return numpy_empty(shape, dtype)


class _Torch(Adapter):
    name = "torch"
    has_stream = True
    has_formats = True

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        import torch

        self.torch, self.forward_ad = torch, torch.autograd.forward_ad
        if cls not in (torch.Tensor, torch.nn.Parameter):
            # A subclass (FakeTensor, DTensor, ...) need not hold the memory that its base says.
            self.check = _refuse(
                f"is a {cls.__name__}, expected a plain torch.Tensor of real memory"
            )
        else:
            self.check = self._check
            self.plain = torch.Tensor.is_neg, torch.is_grad_enabled, vars(self.forward_ad)
        # That of compiled code: nothing is dispatched on the way.
        guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        if make := getattr(guards, "_empty_strided_cuda", None):
            self.gpu_empty = make, torch

    def _check(self, where: str, tensor: Any) -> None:
        if tensor.requires_grad and self.torch.is_grad_enabled():
            raise ValueError(
                f"{where} requires grad, and the plain functions record no gradients: pass "
                "x.detach(), call under torch.no_grad(), or use dlkern.torch"
            )
        if (
            getattr(self.forward_ad, "_current_level", 0) >= 0  # inside dual_level()
            and self.forward_ad.unpack_dual(tensor).tangent is not None
        ):
            raise ValueError(f"{where} carries a forward-mode tangent, which would be lost")
        if tensor.layout is not self.torch.strided:
            raise TypeError(f"{where} has layout {tensor.layout}, expected a strided tensor")
        if tensor.is_neg() or tensor.is_conj():
            raise ValueError(f"{where} is a lazy negated or conjugated view: call .resolve_neg()")

    def current_stream(self, device_id: int) -> int:
        return self.torch.cuda.current_stream(device_id).cuda_stream

    def empty(
        self, shape: Shape, dtype: str, device: DLDevice, stream: int, channels_last: bool = False
    ) -> Any:
        torch = self.torch
        options = {"dtype": getattr(torch, dtype)}
        if channels_last:
            last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
            options["memory_format"] = last
        if device[0] in _CPU_DEVICES:
            return torch.empty(shape, **options)
        # torch knows the legacy default stream as 0 only.
        ordered_on = torch.cuda.ExternalStream(0 if stream == 1 else stream, device[1])
        with torch.cuda.stream(ordered_on):
            return torch.empty(shape, **options, device=f"cuda:{device[1]}")


class _Stream:
    """A stream of somebody else by CUDA's protocol for Python."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class _CuPy(Adapter):
    name = "cupy"
    has_stream = True
    extends_numpy = True

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        import cupy

        self.cupy = cupy
        self.has_attributes = cls is cupy.ndarray and not cupy.cuda.runtime.is_hip
        # Without the Stream object that get_current_stream() makes, where this CuPy has it.
        self.stream_pointer = getattr(cupy.cuda.stream, "get_current_stream_ptr", None)
        # By CUDA's protocol, where this CuPy has that (14.2): its ExternalStream is deprecated.
        self.from_external = getattr(cupy.cuda.Stream, "from_external", None)

    def current_stream(self, device_id: int) -> int:
        if self.stream_pointer is not None:
            return self.stream_pointer(device_id)
        return self.cupy.cuda.get_current_stream(device_id).ptr

    def empty(self, shape: Shape, dtype: str, device: DLDevice, stream: int) -> Any:
        with self.cupy.cuda.Device(device[1]), self.ordered_on(stream, device[1]):
            return self.cupy.empty(shape, numpy_dtype(dtype))

    def ordered_on(self, stream: int, device_id: int) -> Any:
        """A block in which CuPy's memory pool orders what it gives on that stream."""
        if stream == self.current_stream(device_id):
            return contextlib.nullcontext()
        if self.from_external is None:
            return self.cupy.cuda.ExternalStream(stream)
        return self.from_external(_Stream(stream))


class _CudaCore(Adapter):
    """Views of cuda.core buffers: DLPack out, but no allocator and no current stream."""

    name = "cuda.core"
    allocates_by_api = False


class _Immutable(Adapter):
    """Arrays that nobody may write: outputs are filled by us, then handed over by DLPack."""

    immutable = True

    def allocate(
        self, shape: Shape, itemsize: int, device: DLDevice, stream: int
    ) -> tuple[Any, int]:
        """Memory for an output: its owner and its address, aligned to 64 bytes."""
        size = math.prod(shape) * itemsize
        if device[0] in _CPU_DEVICES:
            import numpy as np

            owner = np.empty(size + 64, np.uint8)
            return owner, -(-owner.ctypes.data // 64) * 64
        buffer = device_buffer(size, device[1], stream)
        return buffer, int(buffer.handle)

    def synchronize(self, device: DLDevice, stream: int) -> None:
        """Waits for the call.

        The framework's own streams know nothing of ours, so an input's memory might be given to
        somebody else while our kernel still reads it.
        """
        if device[0] not in _CPU_DEVICES:
            stream_object(stream).sync()

    def adopt(self, export: Any) -> Any:
        raise NotImplementedError


class _Jax(_Immutable):
    name = "jax"

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        import jax

        self.jax = jax
        if issubclass(cls, jax.core.Tracer):
            self.check = _refuse(
                "is a JAX tracer: the plain functions run at once and cannot be traced by jit, "
                "grad or vmap"
            )

    def export(self, array: Any, stream: int | None) -> Any:
        return super().export(array.block_until_ready(), stream)

    def adopt(self, export: Any) -> Any:
        return self.jax.dlpack.from_dlpack(export)


class _TensorFlow(_Immutable):
    name = "tensorflow"

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        import tensorflow as tf
        from tensorflow.python.eager.record import should_record_backprop

        self.dlpack, self.is_watched = tf.experimental.dlpack, should_record_backprop
        self.error = tf.errors.InvalidArgumentError
        self.check = self._check
        if not issubclass(cls, tf.__internal__.EagerTensor):
            self.check = _refuse(
                "is not an eager tensor: in a tf.function use dlkern.tensorflow, of a variable "
                "pass its value"
            )

    def _check(self, where: str, tensor: Any) -> None:
        dtype = tensor.dtype
        if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
            raise TypeError(f"{where}.dtype is {dtype.name}, which no dlkern op takes")
        if self.is_watched([tensor]):
            raise ValueError(
                f"{where} is watched by a GradientTape, and the plain functions record no "
                "gradients: pass tf.stop_gradient(x), or use dlkern.tensorflow"
            )

    def export(self, array: Any, stream: int | None) -> Any:
        try:
            return self.dlpack.to_dlpack(array)
        except self.error as error:
            raise BufferError(error.message) from error

    def adopt(self, export: Any) -> Any:
        return self.dlpack.from_dlpack(export.__dlpack__())


class _Check(Protocol):
    def __call__(self, where: str, array: Any) -> None: ...


def _refuse(why: str) -> _Check:
    def check(where: str, array: Any) -> None:
        raise TypeError(f"{where} {why}")

    return check


_ADAPTERS: dict[str, type[Adapter]] = {
    "numpy": _NumPy,
    "torch": _Torch,
    "cuda": _CudaCore,
    "cupy": _CuPy,
    "jax": _Jax,
    "jaxlib": _Jax,
    "tensorflow": _TensorFlow,
}


def adapter_of(cls: type) -> Adapter:
    """The adapter of an array type: its own, or that of its nearest known base class."""
    own = cls.__dict__.get("_dlkern_adapter")
    if own is not None:
        return own(cls)
    for base in cls.__mro__:
        known = _ADAPTERS.get(base.__module__.partition(".")[0])
        if known is not None:
            return known(cls)
    return Adapter(cls)
