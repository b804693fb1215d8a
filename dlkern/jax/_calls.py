"""From a plain function to custom calls of XLA.

A plain function is called with :class:`Traced` arrays, which have a shape and a dtype but no
memory. Each call of the C library that it makes is checked and planned as always, and then
recorded instead of run: :meth:`_TracedAdapter.planned` turns the record into a custom call on the
JAX values that the arrays stand for. So there is no second description of any op here, neither of
its arguments nor of its results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from dlkern import _dlkern
from dlkern._frameworks import Shape, numpy_dtype
from dlkern._glue.planned import Planned, PlannedAdapter

_HANDLERS = _dlkern.xla_handlers()
if not _HANDLERS:
    raise ImportError(
        "this build of dlkern has no XLA handlers: it was built without jaxlib's headers"
    )


class _TracedAdapter(PlannedAdapter):
    """What the extension has to know of :class:`Traced`."""

    name = "jax"

    def empty(self, shape: Shape, dtype: str, device: Any, stream: int) -> Traced:
        # int64 is int32 where JAX has no 64 bits; an op that needs it refuses that.
        return Traced(None, shape, jax.dtypes.canonicalize_dtype(numpy_dtype(dtype)).name)

    def gpus(self) -> Sequence[int]:
        return _gpus()

    def planned(
        self,
        op: str,
        function: str,
        record: bytes,
        addresses: Sequence[int],
        arrays: Iterable[tuple[Traced, bool]],
        workspace_bytes: int,
    ) -> None:
        """One C call on arrays at those addresses, as a custom call."""
        written = {array.address for array, is_written in arrays if is_written}
        by_address = {array.address: array for array, _ in arrays}
        operands: list[Any] = []
        results: list[Traced] = []
        aliases: dict[int, int] = {}
        buffers: dict[int, int] = {}
        for address in dict.fromkeys(addresses):
            array = by_address[address]
            if address in written:
                buffers[address] = ~len(results)
                if array.value is not None:
                    aliases[len(operands)] = len(results)
                    operands.append(array.value)
                results.append(array)
            else:
                buffers[address] = len(operands)
                operands.append(array.value)
        placement = _placement(operands[0])
        specs = [jax.ShapeDtypeStruct(r.shape, r.dtype, **placement) for r in results]
        if workspace_bytes:
            workspace_bytes += 256  # XLA's alignment is less than ours
            specs.append(jax.ShapeDtypeStruct((workspace_bytes,), np.uint8, **placement))
        call = jax.ffi.ffi_call(
            _registered(function), specs, vmap_method="sequential", input_output_aliases=aliases
        )
        values = call(
            *operands,
            function=function,
            record=np.frombuffer(record, np.uint8),
            buffers=np.array([buffers[address] for address in addresses], np.int32),
            workspace=np.int64(workspace_bytes),
        )
        for array, value in zip(results, values, strict=False):
            array.value, array.written = value, True


class Traced(Planned):
    """A JAX value, or the place of one, as an array without memory.

    Parameters
    ----------
    value : jax.Array or None
        None for an output until a call has filled it.
    shape, dtype
        As the C functions see it; by default the value's.
    """

    _dlkern_adapter = _TracedAdapter

    def __init__(self, value: Any, shape: Shape | None = None, dtype: str | None = None) -> None:
        super().__init__(
            value.shape if shape is None else shape, value.dtype.name if dtype is None else dtype
        )
        self.value = value
        self.written = False  # by a call that was recorded


# How JAX says over which axes of a shard_map a value varies: "vma" before 0.10.
_AXIS_TYPE = "manual_axis_type" if hasattr(jax.typeof(0), "manual_axis_type") else "vma"


def _placement(value: Any) -> dict[str, Any]:
    """Of a result: inside shard_map it varies over the devices as the operand does."""
    aval = jax.typeof(value)
    if aval.sharding.mesh.empty:
        return {}
    replicated = jax.sharding.NamedSharding(aval.sharding.mesh, jax.sharding.PartitionSpec())
    return {"sharding": replicated, _AXIS_TYPE: getattr(aval, _AXIS_TYPE)}


def _varying(value: Any) -> frozenset[Any]:
    axes = getattr(jax.typeof(value), _AXIS_TYPE)
    return getattr(axes, "varying", axes)


def varying_alike(values: Sequence[Any]) -> list[Any]:
    """All as values of each device of a shard_map where one is (parameters beside a batch, say)."""
    axes = frozenset[Any]().union(*map(_varying, values))
    return [jax.lax.pcast(v, tuple(axes - _varying(v)), to="varying") for v in values]


def is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray))


def traced(called: Callable[[Any], list[Any]], arrays: dict[str, Any]) -> tuple[Any, ...]:
    """``called(arrays)`` by custom calls.

    Returns
    -------
    tuple
        What the function returns, then the new values of arguments that it updates in place, in the
        order of `arrays`.
    """
    given = {
        n: list(map(_given, a)) if isinstance(a, list) else _given(a) for n, a in arrays.items()
    }
    result = called(given)
    updated = [a for a in given.values() if any(t.written for t in jax.tree.leaves(a))]
    return tuple(jax.tree.map(lambda t: t.value, [*result, *updated]))


def _given(value: Any) -> Traced:
    return value if isinstance(value, Traced) else Traced(value)


@functools.cache
def _registered(function: str) -> str:
    """The name under which the C function is known to XLA, made known at its first use."""
    for platform, handler in _HANDLERS.items():
        jax.ffi.register_ffi_target(function, handler, platform=platform)
    return function


@functools.cache
def _gpus() -> tuple[int, ...]:
    """The GPUs of this process as dlkern counts them, where JAX has them too."""
    if len(_HANDLERS) == 1:
        return ()
    try:
        devices = jax.local_devices(backend="gpu")
    except RuntimeError:
        return ()
    return tuple(device.local_hardware_id for device in devices)
