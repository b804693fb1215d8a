"""``dlkern info``: what this build is, what it runs on, and which frameworks it works with.

Nothing is guessed: each framework that is installed gets an array made, and an op run on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import unittest.mock
from typing import Any

import numpy as np

import dlkern
from dlkern import _frameworks

REBUILD = "DLKERN_GPU=cuda pip install --force-reinstall . (in its sources)"
_X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def facts() -> dict[str, Any]:
    """Everything that ``dlkern info`` says, as JSON types."""
    devices = [device | {"driver": _driver()} for device in dlkern.devices()]
    return {
        "dlkern": dlkern.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "build": dlkern.build_info(),
        "threads": dlkern.get_num_threads(),
        "devices": devices,
        "no_gpu": None if devices else why_no_gpu(),
        "frameworks": {name: _framework(name, len(devices) > 0) for name in PROBES},
    }


def why_no_gpu() -> str:
    if dlkern.build_info()["gpu"] == "none":
        return f"this build of dlkern is for CPUs only; with a GPU backend: {REBUILD}"
    return "this machine has no GPU, or its driver is not usable"


def _driver() -> str | None:
    """The NVIDIA driver's version, which the CUDA runtime does not tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return output.split("\n")[0].strip() or None


# ---- Frameworks --------------------------------------------------------------------------


class _Probe:
    """How arrays of one framework are made and looked at."""

    distribution = ""  # name on PyPI, where the version is asked for
    devices: tuple[str, ...] = ("cpu", "gpu")

    def __init__(self, name: str) -> None:
        self.module = importlib.import_module(name)

    def has_gpu(self) -> bool:
        return True

    def array(self, values: np.ndarray, gpu: bool) -> Any:
        raise NotImplementedError

    def address(self, array: Any) -> int:
        raise NotImplementedError

    def values(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def run(self, gpu: bool) -> None:
        """One op into ``out=``; fails unless the memory given is the memory written."""
        x, out = self.array(_X, gpu), self.array(np.zeros_like(_X), gpu)
        before = self.address(out)
        _require(dlkern.softmax(x, out=out) is out, "another array came back")
        _require(self.address(out) == before, "the output was moved")
        self.compare(out)

    def compare(self, result: Any) -> None:
        expected = np.exp(_X) / np.exp(_X).sum(1, keepdims=True)
        _require(np.allclose(self.values(result), expected, atol=1e-6), "the values are wrong")


class _NumPy(_Probe):
    devices = ("cpu",)

    def array(self, values: np.ndarray, gpu: bool) -> Any:
        return values.copy()

    def address(self, array: Any) -> int:
        return array.ctypes.data


class _Torch(_Probe):
    def has_gpu(self) -> bool:
        return self.module.cuda.is_available()

    def array(self, values: np.ndarray, gpu: bool) -> Any:
        return self.module.from_numpy(values.copy()).to("cuda" if gpu else "cpu")

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def values(self, array: Any) -> np.ndarray:
        return array.cpu().numpy()


class _CuPy(_Probe):
    devices = ("gpu",)

    def array(self, values: np.ndarray, gpu: bool) -> Any:
        return self.module.asarray(values)

    def address(self, array: Any) -> int:
        return array.data.ptr

    def values(self, array: Any) -> np.ndarray:
        return self.module.asnumpy(array)


class _CudaCore(_Probe):
    """Buffers of cuda-python, for programs without an array framework."""

    distribution = "cuda-core"
    devices = ("gpu",)

    def array(self, values: np.ndarray, gpu: bool) -> Any:
        array = dlkern.device_empty(values.shape, values.dtype.name)
        _frameworks.memcpy(array.ptr, values.ctypes.data, values.nbytes)
        return array

    def address(self, array: Any) -> int:
        return array.ptr

    def values(self, array: Any) -> np.ndarray:
        host = np.empty(array.shape, array.dtype)
        _frameworks.memcpy(host.ctypes.data, array.ptr, host.nbytes)
        return host


class _Immutable(_Probe):
    """``out=`` is impossible: the memory that dlkern fills must become the result itself."""

    def run(self, gpu: bool) -> None:
        filled = []
        allocate = _frameworks._Immutable.allocate

        def recorded(*arguments: Any) -> tuple[Any, int]:
            filled.append(allocate(*arguments))
            return filled[-1]

        with unittest.mock.patch.object(_frameworks._Immutable, "allocate", recorded):
            result = dlkern.softmax(self.array(_X, gpu))
        _require(self.address(result) == filled[0][1], "the result was copied")
        self.compare(result)


class _Jax(_Immutable):
    def has_gpu(self) -> bool:
        return bool(self._devices("gpu"))

    def _devices(self, kind: str) -> list[Any]:
        with contextlib.suppress(RuntimeError):  # no such backend
            return self.module.devices(kind)
        return []

    def array(self, values: np.ndarray, gpu: bool) -> Any:
        return self.module.device_put(values, self._devices("gpu" if gpu else "cpu")[0])

    def address(self, array: Any) -> int:
        return array.unsafe_buffer_pointer()


class _TensorFlow(_Immutable):
    def has_gpu(self) -> bool:
        return bool(self.module.config.list_physical_devices("GPU"))

    def array(self, values: np.ndarray, gpu: bool) -> Any:
        with self.module.device("/GPU:0" if gpu else "/CPU:0"):
            return self.module.identity(self.module.constant(values))

    def address(self, array: Any) -> int:
        capsule = self.module.experimental.dlpack.to_dlpack(array)
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype = ctypes.c_void_p
        get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
        tensor = get_pointer(capsule, b"dltensor")  # its first field is the address
        return ctypes.c_void_p.from_address(tensor).value or 0

    def values(self, array: Any) -> np.ndarray:
        return array.numpy()


PROBES: dict[str, type[_Probe]] = {
    "numpy": _NumPy,
    "torch": _Torch,
    "cupy": _CuPy,
    "jax": _Jax,
    "tensorflow": _TensorFlow,
    "cuda.core": _CudaCore,
}


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise RuntimeError(otherwise)


def _framework(name: str, gpu: bool) -> dict[str, Any]:
    """``{"version", "zero_copy": {"cpu" or "gpu": "yes", or what failed}}``."""
    if not is_installed(name):
        return {"version": None, "zero_copy": {}}
    probe_type = PROBES[name]
    try:
        version = importlib.metadata.version(probe_type.distribution or name)
    except importlib.metadata.PackageNotFoundError:  # cupy is cupy-cuda13x there
        version = getattr(importlib.import_module(name), "__version__", "unknown")
    try:
        probe = probe_type(name)
        usable = [d for d in probe_type.devices if d == "cpu" or (gpu and probe.has_gpu())]
    except Exception as error:
        return {"version": version, "zero_copy": {"import": _line(error)}}
    return {"version": version, "zero_copy": {device: _try(probe, device) for device in usable}}


def _try(probe: _Probe, device: str) -> str:
    try:
        probe.run(device == "gpu")
    except Exception as error:
        return _line(error)
    return "yes"


def _line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return f"no: {type(error).__name__}: {text}" if text else f"no: {type(error).__name__}"


def is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


# ---- Output ------------------------------------------------------------------------------


def as_json() -> str:
    return json.dumps(facts(), indent=2)


def as_text() -> str:
    """The report for people."""
    found = facts()
    build = found["build"]
    backend = build["gpu"].upper() if build["gpu"] != "none" else "none"
    lines = [
        f"dlkern {found['dlkern']}, Python {found['python']}, {found['platform']}",
        "",
        "Build",
        f"  GPU backend    {backend} {' '.join(build['architectures'])}".rstrip(),
        f"  CPU code       {build['cpu_arch'] or 'compiler default'}, {found['threads']} threads",
        f"  compilers      {build['compilers']}",
        f"  BLAS           {build['blas']}",
        "",
        "Devices",
    ]
    for device in found["devices"]:
        major, minor = device["compute_capability"]
        lines.append(
            f"  {device['index']}: {device['name']}, compute capability {major}.{minor}, "
            f"{device['free_memory_bytes'] / 2**30:.1f} of "
            f"{device['total_memory_bytes'] / 2**30:.1f} GiB free, "
            f"driver {device['driver'] or 'unknown'} (CUDA {_cuda(device['driver_version'])})"
        )
    if found["no_gpu"]:
        lines.append(f"  no GPU: {found['no_gpu']}")
    lines += ["", "Frameworks         version        zero-copy round trip"]
    for name, framework in found["frameworks"].items():
        version = framework["version"] or "not installed"
        tried = ", ".join(f"{where} {result}" for where, result in framework["zero_copy"].items())
        lines.append(f"  {name:<16} {version:<14} {tried}".rstrip())
    return "\n".join(lines)


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
