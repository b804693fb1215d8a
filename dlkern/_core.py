"""What is common to all ops: explanations, workspaces, memory, threads, facts of the build."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dlkern import _dlkern, _frameworks


class Plan(NamedTuple):
    """How one call of the C library would be computed."""

    op: str
    implementation: str
    #: One line for each implementation that was asked, with the reason why it declined.
    explanation: str
    workspace_bytes: int
    #: Under which a choice of configuration is kept; "" where there is nothing to choose.
    tuning_key: str
    #: The configurations that :func:`dlkern.autotune` would time, the one that a call uses first.
    candidates: tuple[str, ...]
    #: Index of the GPU, None for the CPU.
    device: int | None
    #: Handle of the stream.
    stream: int

    def __str__(self) -> str:
        lines = self.explanation.rstrip().replace("\n", "\n    ")
        chosen = f"\n    configuration: {self.candidates[0]}" if self.candidates else ""
        return f"{self.op}\n    {lines}{chosen}"


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Plan]:
    """Which implementation ``function(*args, **kwargs)`` would run, without running it.

    Parameters
    ----------
    function : callable
        A dlkern function, or anything that calls some.
    *args, **kwargs
        Its arguments.

    Returns
    -------
    list of Plan
        One for each call of the C library. Printing a plan gives the reasons.
    """
    return [Plan(*plan) for plan in _dlkern.explained(function, args, kwargs)]


@contextlib.contextmanager
def workspace(buffer: Any) -> Iterator[None]:
    """Gives the ops inside the block this memory as scratch space.

    Without it an op that needs scratch space on a GPU takes it from the framework of its inputs.
    `explain` tells how many bytes a call needs. Two calls that may run at the same time must not
    share a workspace. In a CUDA graph captured otherwise than by torch (whose graphs keep a memory
    pool of their own), give a workspace that lives as long as the graph.

    Parameters
    ----------
    buffer : array
        Contiguous device memory of any dtype, aligned to 256 bytes. Host memory is accepted and
        ignored, since the CPU backend needs none.
    """
    previous = _dlkern.set_workspace(buffer)
    try:
        yield
    finally:
        _dlkern.restore_workspace(previous)


def device_empty(
    shape: tuple[int, ...], dtype: str = "float32", *, device: int = 0, stream: Any = None
) -> Any:
    """An uninitialised GPU array for programs without an array framework.

    Parameters
    ----------
    shape : tuple of int
    dtype : str
        A name such as ``"float32"`` or ``"bfloat16"``.
    device : int
        Index of the GPU.
    stream : cuda.core.Stream or int, optional
        The allocation is ordered on it; default: the legacy default stream.

    Returns
    -------
    cuda.core.utils.StridedMemoryView
        A view of a :class:`cuda.core.Buffer`, which all dlkern functions take.
    """
    handle = 0 if stream is None else _dlkern.stream_handle(stream)
    return _frameworks.device_empty(tuple(shape), dtype, device, handle)


def pinned_empty(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """An uninitialised NumPy array in page-locked host memory, for fast copies to and from a GPU.

    Parameters
    ----------
    shape : tuple of int
    dtype : str
        A name such as ``"float32"`` or ``"bfloat16"``.

    Returns
    -------
    numpy.ndarray
        It keeps its :class:`cuda.core.Buffer` alive.
    """
    return _frameworks.pinned_empty(tuple(shape), dtype)


def set_num_threads(n: int) -> None:
    """Sets the number of threads of the CPU backend, for the whole process.

    The default is ``OMP_NUM_THREADS``, else the number of cores that the process may use.
    Results do not depend on it.
    """
    _dlkern.set_num_threads(n)


def get_num_threads() -> int:
    """Number of threads of the CPU backend."""
    return _dlkern.get_num_threads()


def build_info() -> dict[str, Any]:
    """What this build holds: version, GPU backend, architectures, compilers, BLAS, CPU target."""
    return _dlkern.build_info()


def devices() -> list[dict[str, Any]]:
    """The GPUs that this build can use; empty for a CPU-only build or without a driver."""
    return _dlkern.devices()


# Beside the extension, which in an editable install is not beside this file.
_INSTALLED = pathlib.Path(_dlkern.__file__).parent


def get_include() -> str:
    """Folder of the C headers (``dlkern/*.h`` and ``dlpack/dlpack.h``) for C and C++ programs."""
    return str(_INSTALLED / "include")


def get_library() -> str:
    """Path of the shared library with the C API, for hosts other than Python."""
    return str(_INSTALLED / "lib" / "libdlkern.so")
