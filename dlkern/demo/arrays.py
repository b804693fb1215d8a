"""The little that the demo asks of an array framework: memory, copies and views. No numerics."""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import Any

import numpy as np

import dlkern
from dlkern import _frameworks, info

Shape = tuple[int, ...]


class NoDeviceError(RuntimeError):
    """The device asked for is not there."""


class Arrays:
    """Memory of one device. What is allocated stays, and is asked for again by name."""

    description = ""

    def __init__(self) -> None:
        self.bytes = 0
        self._buffers: dict[tuple[str, Shape], Any] = {}

    def buffer(self, name: str, shape: Shape, dtype: str = "float32") -> Any:
        """An array for the result of the same name, made on first use."""
        if (name, shape) not in self._buffers:
            self.bytes += math.prod(shape) * np.dtype(dtype).itemsize
            self._buffers[name, shape] = self._empty(shape, dtype)
        return self._buffers[name, shape]

    def fill(self, name: str, values: np.ndarray) -> Any:
        """The buffer of that name, with these values."""
        array = self.buffer(name, values.shape, values.dtype.name)
        self.write(array, np.asarray(values, order="C"))
        return array

    def part(self, array: Any, start: int, shape: Shape) -> Any:
        """A view of some elements of a contiguous array, from flat index ``start``."""
        return array.reshape(-1)[start : start + math.prod(shape)].reshape(shape)

    def write(self, array: Any, values: np.ndarray) -> None:
        array[...] = values

    def read(self, array: Any) -> np.ndarray:
        """A copy on the host, once it is computed."""
        return np.array(array)

    def _empty(self, shape: Shape, dtype: str) -> Any:
        return np.empty(shape, dtype)


class NumPyArrays(Arrays):
    def __init__(self) -> None:
        super().__init__()
        n = dlkern.get_num_threads()
        self.description = f"CPU, {n} thread" + ("s" if n > 1 else "")


class CuPyArrays(Arrays):
    def __init__(self) -> None:
        super().__init__()
        self.cupy = importlib.import_module("cupy")
        self.description = f"{dlkern.devices()[0]['name']} through CuPy"

    def write(self, array: Any, values: np.ndarray) -> None:
        array.set(values)

    def read(self, array: Any) -> np.ndarray:
        return array.get()

    def _empty(self, shape: Shape, dtype: str) -> Any:
        return self.cupy.empty(shape, dtype)


class TorchArrays(Arrays):
    def __init__(self) -> None:
        super().__init__()
        self.torch = importlib.import_module("torch")
        if not self.torch.cuda.is_available():
            raise NoDeviceError("torch was built without a GPU backend")
        self.description = f"{dlkern.devices()[0]['name']} through torch"

    def write(self, array: Any, values: np.ndarray) -> None:
        array.copy_(self.torch.from_numpy(values))

    def read(self, array: Any) -> np.ndarray:
        return array.cpu().numpy()

    def _empty(self, shape: Shape, dtype: str) -> Any:
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype), device="cuda")


class CudaCoreArrays(Arrays):
    """Buffers of cuda-python, where no array framework is installed."""

    def __init__(self) -> None:
        super().__init__()
        importlib.import_module("cuda.core")
        self.description = f"{dlkern.devices()[0]['name']} through cuda.core"

    def part(self, array: Any, start: int, shape: Shape) -> Any:
        from cuda.core import Buffer
        from cuda.core.utils import StridedMemoryView

        size = array.dtype.itemsize
        piece = Buffer.from_handle(
            array.ptr + start * size, max(1, math.prod(shape)) * size, owner=array.exporting_obj
        )
        return StridedMemoryView.from_buffer(piece, shape, dtype=array.dtype, itemsize=size)

    def write(self, array: Any, values: np.ndarray) -> None:
        _frameworks.memcpy(array.ptr, values.ctypes.data, values.nbytes)

    def read(self, array: Any) -> np.ndarray:
        host = np.empty(array.shape, array.dtype)
        _frameworks.memcpy(host.ctypes.data, array.ptr, host.nbytes)
        return host

    def _empty(self, shape: Shape, dtype: str) -> Any:
        return dlkern.device_empty(shape, dtype)


GPU_KINDS: dict[str, type[Arrays]] = {
    "cupy": CuPyArrays,
    "torch": TorchArrays,
    "cuda.core": CudaCoreArrays,
}


def arrays_on(device: str) -> Arrays:
    """Arrays on "cpu" or "cuda"; "auto" is a GPU if there is one that can be used."""
    if device == "cpu" or (device == "auto" and not dlkern.devices()):
        return NumPyArrays()
    if not dlkern.devices():
        raise NoDeviceError(info.why_no_gpu())
    for name, kind in GPU_KINDS.items():
        if not info.is_installed(name):
            continue
        try:
            return kind()
        except (ImportError, NoDeviceError):
            continue
    if device == "auto":
        return NumPyArrays()
    raise NoDeviceError('a GPU needs CuPy, torch or cuda.core: pip install "dlkern[cuda]"')
