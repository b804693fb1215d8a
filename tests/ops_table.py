"""Every public op once, with arguments that are small, valid and not trivial.

An op's row is all that the cross-cutting tests (test_contract.py, test_runtime_gpu.py) know of it::

    Op("softmax", {"x": normal(5, 37)}, {"out": (5, 37)})

gives ``dlkern.softmax(x=..., out=...)`` with a float array of the dtype under test. A new op gets a
row here, and with it the tests of argument errors, bit-equality between frameworks, ``out=``,
determinism, streams and graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracle import rounded

import dlkern

# Public, but no ops.
NOT_OPS = {
    "DeviceError", "Event", "Plan", "Stream", "build_info", "device_empty", "devices", "explain",
    "get_include", "get_library", "get_num_threads", "pinned_empty", "set_num_threads", "workspace",
}  # fmt: skip

Shape = tuple[int, ...]
Make = Callable[[np.random.Generator, str], NDArray[Any]]


def normal(*shape: int) -> Make:
    """Floats of the dtype under test."""
    return lambda rng, dtype: rounded(rng.standard_normal(shape), dtype)


def positive(*shape: int) -> Make:
    return lambda rng, dtype: rounded(rng.uniform(0.5, 2, shape), dtype)


def statistic(make: Make) -> Make:
    """In the type that the dtype under test is summed in."""
    return lambda rng, dtype: make(rng, "float64" if dtype == "float64" else "float32")


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> Make:
    return lambda rng, _: rng.integers(low, high, shape).astype(dtype)


@dataclass(frozen=True)
class Op:
    """How one op is called.

    Parameters
    ----------
    name : str
        In ``dlkern``.
    arrays : mapping
        Parameter name -> maker of its array.
    outputs : mapping
        Keyword of each output array -> its shape, or (shape, dtype) where the dtype is not the one
        under test; "statistic" is the type that is summed in.
    options : mapping
        Further keyword arguments.
    needed_without_out : mapping
        Arguments that take the place of ``out=`` (the shape of a gradient).
    inout : tuple of str
        Arrays that are updated in place.
    """

    name: str
    arrays: Mapping[str, Make]
    outputs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    needed_without_out: Mapping[str, Any] = field(default_factory=dict)
    inout: tuple[str, ...] = ()
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @property
    def function(self) -> Callable[..., Any]:
        return getattr(dlkern, self.name)

    def make(self, dtype: str = "float32", seed: int = 1) -> dict[str, NDArray[Any]]:
        """NumPy arrays, the same in every call."""
        rng = np.random.default_rng(seed)
        return {name: make(rng, dtype) for name, make in self.arrays.items()}

    def output_specs(self, dtype: str = "float32") -> dict[str, tuple[Shape, str]]:
        """Keyword -> shape and dtype."""
        specs = {}
        for keyword, spec in self.outputs.items():
            shape, kind = spec if len(spec) == 2 and isinstance(spec[1], str) else (spec, dtype)
            if kind == "statistic":
                kind = "float64" if dtype == "float64" else "float32"
            specs[keyword] = (shape, kind)
        return specs

    def arguments(
        self, arrays: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """All keyword arguments of a call, with outputs given or made."""
        if outputs is None:
            return {**arrays, **self.options, **self.needed_without_out}
        return {**arrays, **self.options, **dict.fromkeys(self.needed_without_out), **outputs}

    def call(
        self, arrays: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
    ) -> tuple[Any, ...]:
        """Run it; all results as a tuple, the arrays that were updated in place last."""
        result = self.function(**self.arguments(arrays, outputs))
        results = result if isinstance(result, tuple) else (result,)
        updated = tuple(arrays[name] for name in self.inout)
        fresh = (r for r in results if r is not None and not any(r is u for u in updated))
        return (*fresh, *updated)


OPS = [
    Op("softmax", {"x": normal(5, 37)}, {"out": (5, 37)}),
    Op("softmax", {"x": normal(4, 9, 6)}, {"out": (4, 9, 6)}, {"axis": 1}, variant="axis"),
    Op("log_softmax", {"x": normal(5, 37)}, {"out": (5, 37)}),
    Op("softmax_backward", {"dy": normal(5, 37), "y": positive(5, 37)}, {"out": (5, 37)}),
    Op("log_softmax_backward", {"dy": normal(5, 37), "y": normal(5, 37)}, {"out": (5, 37)}),
]
