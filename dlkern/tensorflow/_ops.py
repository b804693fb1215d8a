"""The ops as functions of TensorFlow's tensors: at once where it is eager, deferred in a graph.

Both go the same way, through ``tf.custom_gradient``. In a graph, forward and backward are nodes
that call back into Python when the graph runs (``tf.py_function``); they are told the shapes of
their results by the plain function (:mod:`dlkern._glue.planned`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

import dlkern
from dlkern import _dlkern
from dlkern._frameworks import adapter_of
from dlkern._glue.op import Arrays, Function, Names, is_constant
from dlkern._glue.planned import Planned

# For extents that are not known yet: results that differ between the two depend on them.
_STAND_INS = (840, 1680)  # with many divisors


class TensorFlowFunction(Function):
    """A row as a function of tensors."""

    module = "dlkern.tensorflow"
    array = "TensorFlow tensor"

    # There is nothing here that depends on values, for AutoGraph to rewrite.
    __call__ = tf.autograph.experimental.do_not_convert(Function.__call__)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, np.ndarray) or tf.is_tensor(value)  # variables, and Keras', too

    def as_array(self, name: str, value: Any) -> Any:
        return tf.convert_to_tensor(value)

    def as_option(self, name: str, value: Any) -> Any:
        if isinstance(value, tf.TensorShape):
            return tuple(value.as_list())
        if name.endswith("dtype") and value is not None:
            return tf.as_dtype(value).name
        return value

    def shape_of(self, array: Any) -> Any:
        shape = array.shape
        return tuple(shape) if shape.is_fully_defined() else _Extents(tf.shape(array))

    def run(self, options: Names, arrays: Arrays) -> tuple[Any, ...]:
        watched = self._watched(arrays)
        if not tf.executing_eagerly():
            self._check_graph(arrays)
            return self._recorded(options, arrays, watched, self._deferred, self._deferred_backward)
        if not watched:
            return self.computed(options, arrays)
        return self._recorded(options, arrays, watched, self.computed, self.backward)

    def _watched(self, arrays: Arrays) -> list[str]:
        """Arguments by which a derivative may be asked for; in a graph nobody knows that yet."""
        if self.row.constant:
            return []
        leaves = {n: _leaves([a]) for n, a in arrays.items()}
        watched = {n for n, ts in leaves.items() if record.should_record_backprop(ts)}
        if not tf.executing_eagerly():
            floats = {n for n, ts in leaves.items() if all(t.dtype.is_floating for t in ts)}
            watched |= floats.difference(self.row.constants)
        return [n for n in arrays if n in watched]

    def computed(self, options: Names, arrays: Arrays) -> tuple[Any, ...]:
        """By the plain function, on copies of the arguments that it updates."""
        with record.stop_recording():
            updated = {n: _map(_writable, a) for n, a in arrays.items() if n in self.row.updates}
            results = self.called(options, {**arrays, **updated})
            return (*results, *(_map(_adopted, a) for a in updated.values()))

    # ---- Gradients ------------------------------------------------------------------------------

    def _recorded(
        self,
        options: Names,
        arrays: Arrays,
        watched: list[str],
        compute: Callable[..., tuple[Any, ...]],
        backward: Callable[..., Arrays],
    ) -> tuple[Any, ...]:
        """By `compute`, with a gradient by `backward`."""
        full = self.completed(options, arrays)
        results: tuple[Any, ...] = ()

        @tf.custom_gradient
        def call(*leaves: Any) -> Any:
            nonlocal results
            results = compute(full, _rebuilt(arrays, leaves))
            return _leaves(results), gradient

        def gradient(*gradients: Any) -> list[Any]:
            if not watched:
                return [None] * len(_leaves(arrays.values()))
            self._check_derivatives(watched)
            # Results as they are recorded: second derivatives by them are seen, and refused.
            named = dict(zip(self.result_names(full, arrays), results, strict=True))
            given = _rebuilt({f"d{n}": r for n, r in named.items()}, gradients)
            asked = [f"d{n}" for n in self.result_names(options, arrays)]
            names = self.saved(full, arrays, named) | {n: given[n] for n in asked}
            return _by_leaf(arrays, backward(names, {n: arrays[n] for n in watched}))

        recorded = call(*_leaves(arrays.values()))
        results = tuple(_rebuilt(dict(enumerate(results)), recorded).values())
        if self.row.gradient is None:
            return results
        names = zip(self.result_names(full, arrays), results, strict=True)
        asked = self.result_names(options, arrays)
        return tuple(
            tf.nest.map_structure(tf.stop_gradient, result) if is_constant(name) else result
            for name, result in names
            if name in asked
        )

    def _check_derivatives(self, watched: Iterable[str]) -> None:
        if self.row.gradient is None:
            why = ": a second derivative" if "_backward" in self.row.name else ""
            raise NotImplementedError(f"{self.title} has no derivative{why}")
        for name in watched:
            if name in self.row.constants:
                raise NotImplementedError(
                    f"{self.title} has no derivative by {name}: pass it through tf.stop_gradient"
                )

    # ---- Graphs ---------------------------------------------------------------------------------

    def _check_graph(self, arrays: Arrays) -> None:
        if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise NotImplementedError(
                f"{self.title} cannot be compiled by TensorFlow's XLA: leave out jit_compile=True"
            )
        for name, array in arrays.items():
            if any(t.shape.rank is None for t in _leaves([array])):
                raise ValueError(f"{self.title}: {name} has an unknown rank, expected a known one")

    def _deferred(self, options: Names, arrays: Arrays) -> tuple[Any, ...]:
        """What computed() will give when the graph runs."""
        forward = functools.partial(self.computed, options)
        return _deferred(forward, arrays, self._specs(options, arrays))

    def _deferred_backward(self, names: Names, wanted: Arrays) -> Arrays:
        specs = tuple(_map(lambda t: tf.TensorSpec(t.shape, t.dtype), a) for a in wanted.values())

        def backward(names: Names) -> tuple[Any, ...]:
            gradients = self.backward(names, wanted)
            return tuple(gradients[n] for n in wanted)

        return dict(zip(wanted, _deferred(backward, names, specs), strict=True))

    def _specs(self, options: Names, arrays: Arrays) -> tuple[Any, ...]:
        """Of the results; extents that follow from unknown ones are unknown."""
        if all(t.shape.is_fully_defined() for t in _leaves(arrays.values())):
            return tf.nest.map_structure(_spec, self._planned(options, arrays, 0))
        try:
            planned = [self._planned(options, arrays, extent) for extent in _STAND_INS]
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"{error} (with {_STAND_INS[0]} for extents that are not known in this graph; "
                "tf.ensure_shape or an input_signature makes them known)"
            ) from error
        return tf.nest.map_structure(_spec, *planned)

    def _planned(self, options: Names, arrays: Arrays, extent: int) -> tuple[Any, ...]:
        planned = {n: _map(lambda t: _without_memory(t, extent), a) for n, a in arrays.items()}
        updated = [a for n, a in planned.items() if n in self.row.updates]
        return (*self.called(options, planned), *updated)


class _Extents:
    """A shape that is known when the graph runs: a tensor, which becomes a tuple then."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def _deferred(
    function: Callable[[dict[str, Any]], tuple[Any, ...]], names: Names, specs: tuple[Any, ...]
) -> tuple[Any, ...]:
    """``function(names)``, called when the graph runs; its results are as `specs` says."""
    tensors = {n: v.tensor if isinstance(v, _Extents) else v for n, v in names.items()}

    def call(*leaves: Any) -> list[Any]:
        given = _rebuilt(tensors, leaves)
        for name, value in names.items():
            if isinstance(value, _Extents):
                given[name] = tuple(given[name].numpy().tolist())
        return _leaves(function(given))

    expected = _leaves(specs)
    results = tf.py_function(call, _leaves(tensors.values()), [s.dtype for s in expected])
    for result, spec in zip(results, expected, strict=True):
        result.set_shape(spec.shape)
    return tuple(_rebuilt(dict(enumerate(specs)), results).values())


def _without_memory(tensor: Any, extent: int) -> Planned:
    return Planned(tuple(extent if n is None else n for n in tensor.shape), tensor.dtype.name)


def _spec(first: Planned | None, *others: Planned) -> Any:
    if first is None:
        return None
    shapes = zip(first.shape, *(o.shape for o in others), strict=True)
    shape = [n if set(more) <= {n} else None for n, *more in shapes]
    return tf.TensorSpec(shape, first.dtype.name)


# ---- Arguments that are updated ------------------------------------------------------------------


def _writable(tensor: Any) -> Any:
    """A copy in memory that becomes a tensor later."""
    device, dtype = tensor.__dlpack_device__(), tensor.dtype
    adapter: Any = adapter_of(type(tensor))
    owner, address = adapter.allocate(tensor.shape, dtype.size, device, 0)
    copy = _dlkern.Export(owner, address, tuple(tensor.shape), dtype.name, device)
    dlkern.contiguous(tensor, out=copy)
    return copy


def _adopted(copy: Any) -> Any:
    return tf.experimental.dlpack.from_dlpack(copy.__dlpack__())


# ---- Arrays and lists of them, which may have gaps -----------------------------------------------


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.TensorSpec))


def _leaves(values: Iterable[Any]) -> list[Any]:
    leaves: list[Any] = []
    for value in values:
        leaves += filter(_is_leaf, value if isinstance(value, list) else [value])
    return leaves


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Of an array, or of each one in a list."""
    if isinstance(value, list):
        return [None if v is None else function(v) for v in value]
    return function(value)


def _rebuilt(like: Mapping[Any, Any], leaves: Iterable[Any]) -> dict[Any, Any]:
    """The same with other leaves."""
    rest: Iterator[Any] = iter(leaves)

    def replaced(value: Any) -> Any:
        return next(rest) if _is_leaf(value) else value

    return {
        n: [replaced(v) for v in value] if isinstance(value, list) else replaced(value)
        for n, value in like.items()
    }


def _by_leaf(arrays: Arrays, gradients: Names) -> list[Any]:
    """For each leaf of the arrays its gradient, None where there is none."""
    result: list[Any] = []
    for name, array in arrays.items():
        of_array = array if isinstance(array, list) else [array]
        given = gradients.get(name)
        each = given if isinstance(given, list) else [given] * len(of_array)
        result += [g for a, g in zip(of_array, each, strict=True) if a is not None]
    return result
