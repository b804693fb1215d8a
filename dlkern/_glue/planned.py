"""Arrays that have a shape and a dtype but no memory.

A plain function that is called with them checks its arguments and plans its calls of the C library
as always, and then runs none of them. So it tells the shapes and dtypes of its results, and there
is no second description of any op in the glue, neither of its arguments nor of its results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dlkern import _dlkern
from dlkern._frameworks import Adapter, Shape, numpy_dtype

_numbers = itertools.count()


def _next_address() -> int:
    """A made-up address, farther from all others in use than any array is large."""
    return (1 + next(_numbers) % (1 << 18)) << 44


class PlannedAdapter(Adapter):
    """What the extension has to know of :class:`Planned`."""

    name = "planned"
    traced = True

    def empty(self, shape: Shape, dtype: str, device: Any, stream: int) -> Planned:
        return self.cls(shape, dtype)

    def gpus(self) -> Sequence[int]:
        """Those on which the calls may run: they are planned for them besides."""
        return ()

    def planned(
        self,
        op: str,
        function: str,
        record: bytes,
        addresses: Sequence[int],
        arrays: Iterable[tuple[Any, bool]],
        workspace_bytes: int,
    ) -> None:
        """One C call on arrays at those addresses; (array, whether it is written) for each."""


class Planned:
    """An array without memory."""

    _dlkern_adapter = PlannedAdapter

    def __init__(self, shape: Shape, dtype: str) -> None:
        self.shape = shape
        self.dtype = np.dtype(numpy_dtype(dtype))
        self.ndim = len(shape)
        self.address = _next_address()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU

    def __dlpack__(self, **kwargs: Any) -> Any:
        device = self.__dlpack_device__()
        export = _dlkern.Export(self, self.address, self.shape, self.dtype.name, device)
        return export.__dlpack__(**kwargs)

    def __repr__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"
