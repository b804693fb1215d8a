"""Arrays of one backend: how a test gets its data onto a device, in any layout, and back.

A test takes the ``backend`` fixture (and ``dtype``, ``rng``) of conftest.py and writes::

    x = rounded(rng.standard_normal((3, 5)), dtype)            # NumPy; bfloat16 by ml_dtypes
    y = dlkern.softmax(backend.array(x, "strided"), out=backend.empty(x.shape, dtype))
    assert_close(backend.numpy(y), expected, dtype, "softmax")

On the CPU the arrays are NumPy's; on a GPU they are torch's, else CuPy's, and those of each of the
two in tests that take ``each_gpu``. A layout that the framework cannot hold (negative strides in
torch) comes as a bare DLPack producer: pass ``out=`` then, since there is no framework to allocate
the result.

The GPU's backends know of streams and graphs, too: ``stream``, ``spin``, ``copy`` and ``capture``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from oracle import float64, numpy_dtype
from producer import CUDA, ROCM, Producer

import dlkern

# Memory layouts of ``Backend.array`` and ``Backend.empty``; the values are always those given.
LAYOUTS = (
    "contiguous",
    "strided",  # every second element of every axis
    "padded",  # rows further apart than they are long
    "transposed",  # axes in memory in reverse order
    "negative",  # every axis runs backwards
    "unaligned",  # contiguous, but x[1:] of its buffer
)

POISON_INT = 0x55

SPIN_CYCLES = 40_000_000  # 20 ms, long enough for any test to queue its work behind it


def _place(shape: Sequence[int], layout: str) -> tuple[int, list[int], int]:
    """Buffer size, strides and offset, in elements, of an array of that layout."""
    order = range(len(shape)) if layout == "transposed" else reversed(range(len(shape)))
    strides, pitch = [0] * len(shape), 1
    for position, axis in enumerate(order):
        step = 2 if layout == "strided" else 1
        strides[axis] = pitch * step
        pitch *= max(shape[axis], 1) * step
        if layout == "padded" and position == 0:
            pitch += 3
    offset = 1 if layout == "unaligned" else 0
    if layout == "negative":
        offset = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n)
        strides = [-s for s in strides]
    return pitch + (layout == "unaligned"), strides, offset


def _is_builtin(dtype: np.dtype) -> bool:
    """A type of NumPy's own: isbuiltin is 2 for the types that ml_dtypes registers."""
    return dtype.isbuiltin == 1


def _poison(size: int, dtype: np.dtype) -> NDArray[Any]:
    if dtype.kind in "iub":
        return np.frombuffer(bytes([POISON_INT]) * (size * dtype.itemsize), dtype).copy()
    return np.full(size, np.nan).astype(dtype)


def _view(base: NDArray[Any], shape: Sequence[int], strides: list[int], offset: int):
    # As integers where the type is not NumPy's: as_strided does not know all of those.
    items = base if _is_builtin(base.dtype) else base.view(f"u{base.itemsize}")
    view = np.lib.stride_tricks.as_strided(
        items[offset:], shape, [s * base.itemsize for s in strides]
    )
    return view.view(base.dtype)


class Backend:
    """The CPU: NumPy arrays."""

    name = "cpu"
    is_gpu = False

    def array(self, values: ArrayLike, layout: str = "contiguous") -> Any:
        """``values``, dtype kept, in that layout; the gaps hold NaN."""
        values = np.asarray(values)
        size, strides, offset = _place(values.shape, layout)
        base = _poison(size, values.dtype)
        _view(base, values.shape, strides, offset)[...] = values
        return self.strided(base, values.shape, strides, offset)

    def empty(self, shape: Sequence[int], dtype: str, layout: str = "contiguous") -> Any:
        """An array full of NaN (integers: 0x55 bytes), to be passed as ``out=``."""
        size, strides, offset = _place(tuple(shape), layout)
        return self.strided(_poison(size, numpy_dtype(dtype)), tuple(shape), strides, offset)

    def broadcast(self, values: ArrayLike, shape: Sequence[int]) -> Any:
        """``values`` with zero strides, as ``np.broadcast_to`` makes them."""
        base = np.ascontiguousarray(values)
        view = np.broadcast_to(base, shape)
        strides = [s // base.itemsize for s in view.strides]
        return self.strided(base.ravel(), view.shape, strides, 0)

    def raw(self, x: Any) -> NDArray[Any]:
        """A NumPy copy in the array's own dtype, to compare bits with."""
        return np.array(x)

    def numpy(self, x: Any) -> NDArray[Any]:
        """A NumPy copy: floats as float64, integers and booleans as they are."""
        copy = self.raw(x)
        return copy if copy.dtype.kind in "iub" else float64(copy)

    def address(self, x: Any) -> int:
        return x.ctypes.data

    def synchronize(self) -> None:
        pass

    def strided(self, base: NDArray[Any], shape: Any, strides: Any, offset: int = 0) -> Any:
        """A flat array's elements from ``offset`` on, in that shape with those strides."""
        return _view(base, shape, strides, offset)


def _producer_of(owner, address, itemsize, shape, strides, offset, dtype, kind):
    return Producer(address + offset * itemsize, shape, strides, dtype.name, (kind, 0), owner=owner)


class TorchBackend(Backend):
    """A GPU through torch."""

    is_gpu = True
    framework = "torch"
    #: What is allocated during a capture stays the graph's.
    graphs_keep_memory = True

    def __init__(self, name: str):
        import torch

        self.name, self.torch = name, torch
        self.device_type = ROCM if name == "hip" else CUDA

    def strided(self, base, shape, strides, offset=0):
        buffer = self._upload(base)
        if min(strides, default=0) >= 0:
            return buffer.as_strided(shape, strides, offset)
        return _producer_of(
            buffer, buffer.data_ptr(), base.itemsize, shape, strides, offset, base.dtype,
            self.device_type,
        )  # fmt: skip

    def _upload(self, base):
        torch = self.torch
        if _is_builtin(base.dtype):
            return torch.from_numpy(base).cuda()
        integers = base.view({1: np.uint8, 2: np.int16}[base.itemsize])
        return torch.from_numpy(integers).cuda().view(getattr(torch, base.dtype.name))

    def raw(self, x):
        torch = self.torch
        if isinstance(x, Producer):
            return _download(x, self.raw(x.owner), x.owner.data_ptr())
        x = x.detach().cpu()
        name = str(x.dtype).removeprefix("torch.")
        if _is_builtin(numpy_dtype(name)):
            return x.numpy().copy()
        integers = {1: torch.uint8, 2: torch.int16}[x.element_size()]
        return x.contiguous().view(integers).numpy().view(numpy_dtype(name)).copy()

    def address(self, x):
        return x.address if isinstance(x, Producer) else x.data_ptr()

    def synchronize(self):
        self.torch.cuda.synchronize()

    def current_stream(self) -> Any:
        return self.torch.cuda.current_stream()

    @contextlib.contextmanager
    def stream(self) -> Iterator[Any]:
        """A new stream as the current one."""
        side = self.torch.cuda.Stream()
        with self.torch.cuda.stream(side):
            yield side

    def spin(self) -> None:
        """Keeps the current stream busy for a while."""
        self.torch.cuda._sleep(SPIN_CYCLES)

    def copy(self, target: Any, source: Any) -> None:
        """In order with the current stream."""
        target.copy_(source)

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Runs ``call`` once, then captures it: the replay, and what ``call`` returned."""
        call()
        self.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            results = call()
        return graph.replay, results

    @contextlib.contextmanager
    def allocations(self) -> Iterator[list[int]]:
        """The sizes of what is allocated in the block, or just their sum: filled at its end."""
        sizes: list[int] = []
        before = self.torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
        yield sizes
        total = self.torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before
        sizes += [total] if total else []


class CupyBackend(Backend):
    """A GPU through CuPy."""

    is_gpu = True
    framework = "cupy"
    graphs_keep_memory = False

    def __init__(self, name: str):
        import cupy

        self.name, self.cupy = name, cupy
        self.device_type = ROCM if name == "hip" else CUDA

    def strided(self, base, shape, strides, offset=0):
        if _is_builtin(base.dtype):
            buffer = self.cupy.asarray(base)
        else:  # a type of ml_dtypes, through its bits
            buffer = self.cupy.asarray(base.view(f"u{base.itemsize}")).view(base.dtype)
        return self.cupy.ndarray(
            shape, base.dtype, buffer.data + offset * base.itemsize,
            [s * base.itemsize for s in strides],
        )  # fmt: skip

    def raw(self, x):
        if _is_builtin(np.dtype(x.dtype)):
            return self.cupy.asnumpy(x)
        return self.cupy.asnumpy(x.view(f"u{x.itemsize}")).view(x.dtype)

    def address(self, x):
        return x.data.ptr

    def synchronize(self):
        self.cupy.cuda.runtime.deviceSynchronize()

    def current_stream(self):
        return self.cupy.cuda.get_current_stream()

    @contextlib.contextmanager
    def stream(self):
        # Non-blocking, as torch's: the legacy default stream does not wait for it.
        with self.cupy.cuda.Stream(non_blocking=True) as side:
            yield side

    @functools.cached_property
    def _spin_kernel(self):
        return self.cupy.RawKernel(
            'extern "C" __global__ void spin(long long cycles) {'
            " long long start = clock64(); while (clock64() - start < cycles) {} }",
            "spin",
        )

    def spin(self):
        self._spin_kernel((1,), (1,), (np.int64(SPIN_CYCLES),))

    def copy(self, target, source):
        bits = f"u{target.itemsize}"  # which CuPy copies of every type
        target.view(bits)[...] = source.view(bits)

    def capture(self, call):
        call()
        self.synchronize()
        with self.stream() as side:
            # The strictest mode in which other threads go on: an allocation would end the capture.
            side.begin_capture(self.cupy.cuda.runtime.streamCaptureModeThreadLocal)
            try:
                results = call()
            finally:
                graph = side.end_capture()
        return (lambda: graph.launch(side)), results

    @contextlib.contextmanager
    def allocations(self):
        sizes = []

        class Hook(self.cupy.cuda.MemoryHook):
            name = "sizes"

            def malloc_preprocess(self, *, size, **_):
                sizes.append(size)

        with Hook():
            yield sizes


def _download(x: Producer, buffer: NDArray[Any], start: int) -> NDArray[Any]:
    """A producer's values from a copy of the buffer that starts at ``start``."""
    base = buffer.view(x.dtype)
    return _view(base, x.shape, list(x.strides), (x.address - start) // base.itemsize).copy()


@functools.cache
def gpu_name() -> str:
    """The GPU backend that this build of dlkern has, or would have: "cuda" or "hip"."""
    return "hip" if dlkern.build_info()["gpu"] == "hip" else "cuda"


@functools.cache
def why_no_gpu() -> str | None:
    """None where GPU tests can run, else the reason why not."""
    if dlkern.build_info()["gpu"] == "none":
        return "this build of dlkern has no GPU backend"
    if not dlkern.devices():
        return "no GPU"
    if _gpu_framework() is None:
        return "GPU tests need torch or CuPy with a GPU"
    return None


GPU_BACKENDS = {"torch": TorchBackend, "cupy": CupyBackend}


@functools.cache
def _gpu_framework() -> str | None:
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            return "torch"
    return "cupy" if importlib.util.find_spec("cupy") else None


@functools.cache
def get_gpu(framework: str) -> Backend:
    """The GPU through "torch" or "cupy"; ``why_no_gpu`` must be None."""
    return GPU_BACKENDS[framework](gpu_name())


@functools.cache
def get_backend(name: str) -> Backend:
    """The backend called "cpu", "cuda" or "hip"; for the last two ``why_no_gpu`` must be None."""
    return Backend() if name == "cpu" else get_gpu(_gpu_framework())
