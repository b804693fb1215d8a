"""A DLPack producer whose every field can be chosen: what no framework hands out on purpose.

Negative strides on a GPU, a byte offset, NULL strides, READ_ONLY, legacy capsules, and a count of
how often the consumer called the deleter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

CPU, CUDA, ROCM = 1, 2, 10
READ_ONLY = 1


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Legacy(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_EXTENSION_CODES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}


def _type_of(dtype: np.dtype) -> tuple[int, int]:
    code = _EXTENSION_CODES.get(dtype.name)
    return (_CODES[dtype.kind] if code is None else code), 8 * dtype.itemsize


class Producer:
    """An array at ``address``, as DLPack sees it.

    Parameters
    ----------
    address : int
        Of element [0, 0, ...], less ``byte_offset``.
    shape, strides : sequence of int
        Strides count elements; None hands out NULL.
    dtype : str
    device : tuple of int
        DLPack device type and index.
    owner : object, optional
        Kept alive as long as a capsule is.
    versioned, read_only, byte_offset
        Fields of the capsule.

    Attributes
    ----------
    deleted : int
        Calls of the deleter so far.
    streams : list
        The ``stream`` argument of each ``__dlpack__`` call.
    """

    def __init__(
        self,
        address: int,
        shape: Sequence[int],
        strides: Sequence[int] | None,
        dtype: str,
        device: tuple[int, int] = (CPU, 0),
        *,
        owner: Any = None,
        versioned: bool = True,
        read_only: bool = False,
        byte_offset: int = 0,
    ):
        self.address, self.shape, self.strides = address, tuple(shape), strides
        self.dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
        self.device, self.owner, self.byte_offset = device, owner, byte_offset
        self.versioned, self.read_only = versioned, read_only
        self.deleted = 0
        self.streams: list[Any] = []
        self._alive: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.streams.append(stream)
        if self.device[0] != CPU and self.owner is not None:
            # Whatever filled the memory is finished, on whichever stream it ran.
            _synchronize(self.owner)
        tensor = _Tensor(
            self.address,
            _Device(*self.device),
            len(self.shape),
            *_type_of(self.dtype),
            1,
            self._dims(self.shape),
            None if self.strides is None else self._dims(self.strides),
            self.byte_offset,
        )
        deleter = _Deleter(self._delete)
        versioned = self.versioned and max_version is not None
        if versioned:
            managed = _Versioned(1, 0, None, deleter, READ_ONLY * self.read_only, tensor)
        else:
            managed = _Legacy(tensor, None, deleter)
        # The consumer owns the memory until it calls the deleter, which may be after self is gone.
        self._alive += [managed, deleter]
        _leaked.append(self)
        name = b"dltensor_versioned" if versioned else b"dltensor"
        return _new_capsule(ctypes.addressof(managed), name, None)

    def _dims(self, values: Sequence[int]):
        array = (ctypes.c_int64 * len(values))(*values)
        self._alive.append(array)
        return ctypes.cast(array, ctypes.POINTER(ctypes.c_int64))

    def _delete(self, _managed) -> None:
        self.deleted += 1


# Nothing is freed before the process ends, so that a late deleter call is counted, not a crash.
_leaked: list[Producer] = []


def of_numpy(array: np.ndarray, **fields: Any) -> Producer:
    """A producer of a NumPy array's memory, with fields of one's own."""
    fields.setdefault("strides", [s // array.itemsize for s in array.strides])
    offset = fields.get("byte_offset", 0)
    return Producer(
        array.ctypes.data - offset, array.shape, dtype=array.dtype.name, owner=array, **fields
    )


def _synchronize(owner: Any) -> None:
    if type(owner).__module__.startswith("torch"):
        import torch

        torch.cuda.synchronize()
    else:
        owner.device.synchronize()
