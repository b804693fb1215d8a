"""Deep-learning primitives as plain functions over DLPack tensors.

Arrays of PyTorch, JAX, CuPy, TensorFlow, NumPy or anything else with ``__dlpack__`` go in; results
come back as arrays of the same framework on the same device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlkern._core import (
    Plan,
    build_info,
    device_empty,
    devices,
    explain,
    get_include,
    get_library,
    get_num_threads,
    pinned_empty,
    set_num_threads,
    workspace,
)
from dlkern._dlkern import DeviceError
from dlkern.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward

if TYPE_CHECKING:
    from cuda.core import Event, Stream

__version__: str = build_info()["version"]

__all__ = [
    "DeviceError",
    "Event",
    "Plan",
    "Stream",
    "build_info",
    "device_empty",
    "devices",
    "explain",
    "get_include",
    "get_library",
    "get_num_threads",
    "log_softmax",
    "log_softmax_backward",
    "pinned_empty",
    "set_num_threads",
    "softmax",
    "softmax_backward",
    "workspace",
]


def __getattr__(name: str) -> Any:
    # cuda.core takes most of a second to import, so it waits until somebody needs it.
    if name in ("Stream", "Event"):
        import cuda.core

        return getattr(cuda.core, name)
    raise AttributeError(f"module 'dlkern' has no attribute {name!r}")
