"""Element-wise kernels that a user writes: see :func:`elementwise`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dlkern import _dlkern, _frameworks, elementwise_cuda
from dlkern.elementwise_cuda import Operand
from dlkern.elementwise_language import COMPUTED, Kernel, Program

BLOCK = 16384  # elements that the CPU computes at a time: intermediate results stay in cache
MOST_LAUNCHES = 256  # that a kernel remembers


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
        self._fresh = [name for name in self.outputs if name not in self.inputs]
        self._typed: dict[Any, Kernel] = {}
        self._launches: dict[Any, elementwise_cuda.Launch] = {}

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
        values = self._bind(args, kwargs)
        call = _dlkern.ElementwiseCall("elementwise", stream)
        dtypes, scalars = self._take(call, values)
        kernel = self._types(dtypes, {name: type for name, (type, _) in scalars.items()})
        names = [*dtypes, *self._fresh]
        dtypes |= self._allocate(call, kernel, dtypes, out)
        call.arrange()
        run = self._run_on_cpu if call.device is None else self._run_on_gpu
        run(call, kernel, [(name, dtypes[name]) for name in names], scalars)
        results = call.result()
        return self._in_order(results) if isinstance(results, tuple) else results

    # ---- Arguments -------------------------------------------------------------------------------

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
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
        return {name: values[name] for name in self.inputs}

    def _take(
        self, call: Any, values: dict[str, Any]
    ) -> tuple[dict[str, str], dict[str, tuple[str, Any]]]:
        """Dtypes of the arrays, types and values of the scalars."""
        dtypes: dict[str, str] = {}
        numbers: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, (bool, int, float, np.generic)):
                if name in self.outputs:
                    raise TypeError(f"elementwise: {name} is updated in place, expected an array")
                numbers[name] = value
            else:
                add = call.inout if name in self.outputs else call.input
                dtypes[name] = add(name, value)
                self._require_known(name, dtypes[name])
        if not dtypes:
            raise TypeError("elementwise: no array is given, which would decide shape and device")
        real = "float64" if "float64" in dtypes.values() else "float32"
        return dtypes, {name: _scalar(name, value, real) for name, value in numbers.items()}

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

    def _allocate(
        self, call: Any, kernel: Kernel, dtypes: dict[str, str], out: Any
    ) -> dict[str, str]:
        """Dtypes of the outputs that are not updated in place."""
        if len(self._fresh) == 1:
            given = [out]
        elif out is None:
            given = [None] * len(self._fresh)
        else:
            given = list(out)
            if len(given) != len(self._fresh):
                raise ValueError(
                    f"elementwise: out has {len(given)} arrays, expected {len(self._fresh)}: "
                    f"{', '.join(self._fresh)}"
                )
        shape = call.shape()
        found = {}
        for i, (name, array) in enumerate(zip(self._fresh, given, strict=True)):
            keyword = "out" if len(self._fresh) == 1 else f"out[{i}]"
            dtype = self._dtypes.get(name) or _default_dtype(kernel.types[name], dtypes)
            found[name] = call.output(name, keyword, array, shape, dtype)
            self._require_known(keyword, found[name])
            if name in self._dtypes and found[name] != dtype:
                raise TypeError(
                    f"elementwise: {keyword}.dtype is {found[name]}, expected {dtype} (dtypes)"
                )
        return found

    def _in_order(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those updated in place were added before the others."""
        updated = [name for name in self.inputs if name in self.outputs]
        by_name = dict(zip([*updated, *self._fresh], results, strict=True))
        return tuple(by_name[name] for name in self.outputs)

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

    def _run_on_gpu(
        self,
        call: Any,
        kernel: Kernel,
        arrays: list[tuple[str, str]],
        scalars: dict[str, tuple[str, Any]],
    ) -> None:
        key = call.signature(), *((name, type) for name, (type, _) in scalars.items())
        launch = self._launches.get(key)
        if launch is None or call.is_explained:
            launch = self._prepare(call, kernel, arrays, scalars)
            if launch is None:
                return
            if len(self._launches) >= MOST_LAUNCHES:
                self._launches.clear()
            self._launches[key] = launch
        values = [value for _, value in scalars.values()]
        elementwise_cuda.run(launch, call.addresses(launch.order), values, call.device, call.stream)

    def _prepare(
        self,
        call: Any,
        kernel: Kernel,
        arrays: list[tuple[str, str]],
        scalars: dict[str, tuple[str, Any]],
    ) -> elementwise_cuda.Launch | None:
        """None where nothing is to be run."""
        if _is_hip():
            raise NotImplementedError("elementwise: kernels on AMD GPUs are not compiled")
        shape, numel, places = call.walk()
        operands = self._operands(places, arrays)
        layout, told = elementwise_cuda.choose(shape, operands)
        if call.explains(f"nvrtc_{layout.way}", told) or numel == 0:
            return None
        types = {name: type for name, (type, _) in scalars.items()}
        return elementwise_cuda.prepare(kernel, shape, numel, layout, operands, types, call.device)

    def _run_on_cpu(
        self,
        call: Any,
        kernel: Kernel,
        arrays: list[tuple[str, str]],
        scalars: dict[str, tuple[str, Any]],
    ) -> None:
        shape, numel, places = call.walk()
        operands = self._operands(places, arrays)
        if call.explains("numpy_blocks", "numpy_blocks: chosen") or numel == 0:
            return
        fixed = {name: value for name, (_, value) in scalars.items()}
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


@functools.cache
def _is_hip() -> bool:
    return bool(_dlkern.build_info()["gpu"] == "hip")


_FLAGS = {(True, False): "readonly", (False, True): "writeonly", (True, True): "readwrite"}


def _scalar(name: str, value: Any, real: str) -> tuple[str, Any]:
    """Type and NumPy value of a number, which takes part as C's literals do."""
    if isinstance(value, (bool, np.bool_)):
        return "bool", np.bool_(value)
    if isinstance(value, (int, np.integer)):
        for type in ("int32", "int64", "uint64"):
            limits = np.iinfo(type)
            if limits.min <= value <= limits.max:
                return type, np.dtype(type).type(value)
        raise ValueError(f"elementwise: {name} is {value}, expected an integer of 64 bits")
    if isinstance(value, (float, np.floating)):
        with np.errstate(over="ignore"):
            return real, np.dtype(real).type(value)
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
