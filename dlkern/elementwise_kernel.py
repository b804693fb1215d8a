"""Element-wise kernels that a user writes: see :func:`elementwise`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dlkern import _dlkern, _frameworks, elementwise_cuda
from dlkern.elementwise_cuda import Operand
from dlkern.elementwise_language import COMPUTED, Kernel, Program

BLOCK = 16384  # elements that the CPU computes at a time: intermediate results stay in cache
MOST_LAUNCHES = 256  # that a kernel remembers

Made = tuple[int, str, tuple[int, ...], str]  # an output that was made: place, name, shape, dtype


class ElementwiseKernel:
    """What :func:`dlkern.elementwise` returns. Any number of threads may call it."""

    def __init__(
        self, code: str, inputs: Sequence[str] | None, dtypes: Mapping[str, str] | None
    ) -> None:
        self.code = code
        self._program = Program("elementwise", code)
        self.outputs = tuple(self._program.outputs)
        self.inputs = tuple(self._program.inputs if inputs is None else inputs)
        if sorted(self.inputs) != sorted(self._program.inputs):
            raise ValueError(
                f"elementwise: inputs is {list(self.inputs)}, expected these names in any order: "
                f"{self._program.inputs}"
            )
        self._dtypes = dict(dtypes or {})
        for name, dtype in self._dtypes.items():
            if name not in self.outputs or name in self.inputs:
                raise ValueError(f"elementwise: dtypes names {name!r}, which is no output")
            if dtype not in elementwise_cuda.ITEMSIZE:
                raise TypeError(f"elementwise: dtypes[{name!r}] is {dtype!r}, which no array has")
        self._form = _dlkern.ElementwiseForm(
            "elementwise", self.inputs, self.outputs, _NUMBERS, _plain_number
        )
        self._typed: dict[Any, Kernel] = {}
        self._launches: dict[bytes | None, _dlkern.ElementwiseLaunch] = {}

    def __repr__(self) -> str:
        return f"dlkern.elementwise({self.code!r})"

    def __call__(self, *args: Any, out: Any = None, stream: Any = None, **kwargs: Any) -> Any:
        """Computes the outputs.

        Parameters
        ----------
        *args, **kwargs
            The inputs, by position or by name. Arrays of one device are broadcast as by NumPy.
        out : array or sequence of arrays, optional
            Written instead of new arrays; for several outputs one for each, or None. May be an
            input itself. Outputs that are updated in place have none.
        stream : int or object with ``__cuda_stream__``, optional
            The stream to run on; default: the current stream of the first array's framework.

        Returns
        -------
        array or tuple of arrays
            The outputs in the order in which the code assigns them, of the first array's framework.
        """
        if kwargs or len(args) != len(self.inputs):
            args = self._bind(args, kwargs)
        call = _dlkern.ElementwiseCall(self._form, args, out, stream)
        launch = self._launches.get(call.key())
        return self._first(call) if launch is None else call.run(launch)

    # ---- Arguments -------------------------------------------------------------------------------

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if len(args) > len(self.inputs):
            raise TypeError(
                f"elementwise: {len(args)} inputs are given, expected {len(self.inputs)}: "
                f"{', '.join(self.inputs)}"
            )
        values = dict(zip(self.inputs, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.inputs:
                raise TypeError(f"elementwise: {name!r} is no input of {self.code!r}")
            if name in values:
                raise TypeError(f"elementwise: {name} is given twice")
            values[name] = value
        missing = [name for name in self.inputs if name not in values]
        if missing:
            raise TypeError(f"elementwise: {', '.join(missing)} is missing")
        return tuple(values[name] for name in self.inputs)

    def _require_known(self, name: str, dtype: str) -> None:
        if dtype not in elementwise_cuda.ITEMSIZE:
            known = ", ".join(elementwise_cuda.ITEMSIZE)
            raise TypeError(f"elementwise: {name}.dtype is {dtype}, expected one of {known}")

    def _types(self, dtypes: dict[str, str], scalars: dict[str, str]) -> Kernel:
        types = {name: COMPUTED[dtype] for name, dtype in dtypes.items()} | scalars
        key = tuple(types.items())
        found = self._typed.get(key)
        if found is None:
            real = "float64" if "float64" in dtypes.values() else "float32"
            found = self._typed[key] = self._program.typed(types, real)
        return found

    def _make(
        self, call: _dlkern.ElementwiseCall, kernel: Kernel, dtypes: dict[str, str]
    ) -> list[Made]:
        """Makes the outputs that the caller did not give."""
        found: list[Made] = []
        for place, name, keyword in self._form.made:
            dtype, wanted = call.given(name), self._dtypes.get(name)
            if dtype is None:
                dtype = wanted or _default_dtype(kernel.types[name], dtypes)
                found.append((place, name, call.shape(), dtype))
                call.make(*found[-1])
            self._require_known(keyword, dtype)
            if wanted and dtype != wanted:
                raise TypeError(
                    f"elementwise: {keyword}.dtype is {dtype}, expected {wanted} (dtypes)"
                )
        return found

    # ---- Backends --------------------------------------------------------------------------------

    def _operands(
        self, places: list[tuple[int, int, tuple[int, ...]]], arrays: list[tuple[str, str]]
    ) -> list[Operand]:
        """Of the places of a walk; arrays: names and dtypes in the order of their addition."""
        found: dict[int, Operand] = {}
        for i, address, strides in places:  # one that is updated in place comes twice
            name, dtype = arrays[i]
            is_read, is_written = name in self.inputs, name in self.outputs
            found[i] = Operand(i, name, dtype, is_read, is_written, address, strides)
        return list(found.values())

    def _first(self, call: _dlkern.ElementwiseCall) -> Any:
        """A call unlike those remembered."""
        key, dtypes, numbers = call.key(), call.inputs(), call.values()
        for name, dtype in dtypes.items():
            self._require_known(name, dtype)
        kernel = self._types(dtypes, {name: type for name, (type, _) in numbers.items()})
        made = self._make(call, kernel, dtypes)
        call.arrange()
        shape, numel, places = call.walk()
        operands = self._operands(places, call.slots())
        if call.device is None:
            return self._on_cpu(call, kernel, shape, numel, operands, numbers)
        if _is_hip():
            raise NotImplementedError("elementwise: kernels on AMD GPUs are not compiled")
        layout, told = elementwise_cuda.choose(shape, operands)
        if call.explains(f"nvrtc_{layout.way}", told) or numel == 0:
            return call.result()
        types = {name: type for name, (type, _) in numbers.items()}
        device = call.device
        launch = elementwise_cuda.prepare(
            kernel, shape, numel, layout, operands, types, device, made
        )
        if key is not None:
            if len(self._launches) >= MOST_LAUNCHES:
                self._launches.clear()
            self._launches[key] = launch
        return call.run(launch)

    def _on_cpu(
        self,
        call: _dlkern.ElementwiseCall,
        kernel: Kernel,
        shape: tuple[int, ...],
        numel: int,
        operands: list[Operand],
        numbers: dict[str, tuple[str, Any]],
    ) -> Any:
        if call.explains("numpy_blocks", "numpy_blocks: chosen") or numel == 0:
            return call.result()
        with np.errstate(over="ignore"):
            fixed = {name: np.dtype(type).type(value) for name, (type, value) in numbers.items()}
        steps = np.nditer(
            [_host_array(o, shape) for o in operands],
            flags=["external_loop", "buffered"],
            op_flags=[[_FLAGS[o.is_read, o.is_written]] for o in operands],
            op_dtypes=[COMPUTED[o.dtype] for o in operands],
            order="C",
            casting="unsafe",
            buffersize=BLOCK,
        )
        with np.errstate(all="ignore"), steps:
            for block in steps:
                parts = dict(zip((o.name for o in operands), block, strict=True))
                computed = kernel.evaluate({**fixed, **parts})
                for o in operands:
                    if o.is_written:
                        parts[o.name][...] = _saturated(computed[o.name], o.dtype)
        return call.result()


@functools.cache
def _is_hip() -> bool:
    return bool(_dlkern.build_info()["gpu"] == "hip")


_FLAGS: dict[tuple[bool, bool], Literal["readonly", "writeonly", "readwrite"]] = {
    (True, False): "readonly",
    (False, True): "writeonly",
    (True, True): "readwrite",
}


_NUMBERS = (bool, int, float, np.generic)


def _plain_number(name: str, value: Any) -> bool | int | float:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    raise TypeError(f"elementwise: {name} is {value!r}, expected an array or a real number")


def _default_dtype(type: str, dtypes: Mapping[str, str]) -> str:
    if type not in ("float32", "float64"):
        return type
    floating = {dtype for dtype in dtypes.values() if "float" in dtype}
    (only,) = floating if len(floating) == 1 else (type,)
    return only if COMPUTED[only] == type else type


def _saturated(values: Any, dtype: str) -> Any:
    """What is to be rounded to `dtype`: an 8-bit float does not become infinite (core/float8.h)."""
    largest = {"float8_e4m3fn": 448, "float8_e5m2": 57344}.get(dtype)
    if largest is None:
        return values
    return np.clip(np.asarray(values, np.float32), -largest, largest)


class _Memory:
    """Somebody's memory, for np.asarray."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _host_array(operand: Operand, shape: tuple[int, ...]) -> np.ndarray:
    dtype = _frameworks.numpy_dtype(operand.dtype)
    plain = dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
    strides = tuple(dtype.itemsize * stride for stride in operand.strides)
    memory = _Memory(
        {
            "version": 3,
            "data": (operand.address, not operand.is_written),
            "shape": shape,
            "strides": strides,
            "typestr": plain.str,
        }
    )
    return np.asarray(memory).view(dtype)
