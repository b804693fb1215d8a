"""How a row of the table of ops becomes a function of JAX.

A row (:class:`Op`) says what is special about an op: where its gradient comes from and how a batch
of it is computed at once. All else follows from the plain function: its signature, its checks, the
shapes of its results (see ``_calls``). Names carry the meaning: the arguments of a backward op are
found by name among the forward's arguments, its results and their gradients (``dy`` is that of the
result ``y``), and its result ``dx`` is the gradient of the argument ``x``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

import dlkern
from dlkern.jax import _calls

Names = Mapping[str, Any]
Arrays = dict[str, Any]  # argument -> array, or list of arrays
Step = str | Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Batched:
    """A batch as one call: its arguments, and what makes the batch's results of that call's."""

    options: Names
    arrays: Arrays
    undo: Callable[[Any], Any] = lambda result: result


@dataclass(frozen=True)
class Op:
    """One row.

    Parameters
    ----------
    name : str
        In ``dlkern``.
    results : str or callable
        Names of the results, or a function of the arguments by name that gives them.
    updates : tuple of str
        Arguments that the plain function updates in place; their new values are further results,
        which are constants to differentiation.
    gradient : sequence of str or callable, or None
        Steps of it. ``"softmax_backward -> dx"`` names a backward op and its results. A function's
        parameters are found by name too, and it gives further names. What ends in ``_shape`` is the
        shape of an argument (``input_shape`` and ``shape``: of x); a parameter ``bias`` that is a
        flag says whether there is one. None: the op has no derivative.
    gradients : mapping
        Argument -> the name of its gradient where that is not "d" and the argument's name, or a
        function that computes it.
    constants : tuple of str
        Floating-point arguments without a gradient.
    derived : mapping
        Name -> function of arguments and results by name, evaluated in the forward call.
    saving : callable, optional
        Arguments by name -> options that are set besides where there will be a gradient, and which
        add results.
    batch : callable, optional
        (options, arrays, set of those that are batched, on axis 0) -> :class:`Batched`, or None.
        Without it, and there, a batch is computed item by item.
    constant : bool
        The results are integers or do not depend on values: gradients are zero.
    prepare : mapping
        Array -> function that it is passed through first.
    views : mapping
        Array -> the dtype that its memory is read as, where JAX has it as uint32.
    sequence : callable
        Arguments by name -> whether the results are one, a list.
    """

    name: str
    results: str | Callable[..., str] = "y"
    updates: tuple[str, ...] = ()
    gradient: Sequence[Step] | None = None
    gradients: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    derived: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    saving: Callable[..., Names] | None = None
    batch: Callable[[Names, Arrays, set[str]], Batched | None] | None = None
    constant: bool = False
    prepare: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    sequence: Callable[..., bool] = lambda: False


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    """Names whose values are no arrays, beside saved arrays."""

    items: tuple[tuple[str, Any], ...]


FUNCTIONS: dict[str, Function] = {}
# Results that count as constants.
_STATISTICS = ("mean", "rstd", "amax", "indices")


def register(rows: Iterable[Op]) -> None:
    """Fills FUNCTIONS: every op of dlkern, by its row or the defaults."""
    by_name = {row.name: row for row in rows}
    for name in dlkern.__all__:
        plain = vars(dlkern).get(name)  # what is imported lazily is no op
        if not inspect.isfunction(plain) or plain.__module__ == "dlkern._core":
            continue
        if "stream" in _parameters(plain):
            FUNCTIONS[name] = Function(by_name.pop(name, Op(name)))
    if by_name:
        raise TypeError(f"{', '.join(by_name)}: no function of dlkern")


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _is_left_out(name: str) -> bool:
    """Parameters of the plain functions that write to what they are given, or name a stream."""
    is_out = name == "out" or (name.startswith("out_") and name != "out_dtype")
    return is_out or name in ("stream", "accumulate", "grad_out")


class Function:
    """A row as a function: the plain one's name, arguments and results, on JAX arrays."""

    def __init__(self, row: Op) -> None:
        self.row, self.plain = row, getattr(dlkern, row.name)
        signature = inspect.signature(self.plain)
        kept = [p for n, p in signature.parameters.items() if not _is_left_out(n)]
        self.__name__ = self.__qualname__ = row.name
        self.__module__ = "dlkern.jax"
        self.__doc__ = f":func:`dlkern.{row.name}` of JAX arrays."
        self.__signature__ = signature.replace(parameters=kept)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"dlkern.jax.{self.row.name}: {error}") from None
        bound.apply_defaults()
        options, arrays = self._sorted(bound.arguments)
        results = self.run(options, arrays)
        if len(results) > 1:
            return results
        return tuple(results[0]) if isinstance(results[0], list) else results[0]

    def run(self, options: Names, arrays: Arrays) -> tuple[Any, ...]:
        """All results; updated arguments come last."""
        arrays = {n: jax.tree.map(self._prepared(n), a) for n, a in arrays.items()}
        leaves, tree = jax.tree.flatten(arrays)
        arrays = jax.tree.unflatten(tree, _calls.varying_alike(leaves))
        if self.row.gradient is None:
            return _batchable(self.row.name, self._frozen(options), compiled=True)(arrays)
        results = _differentiable(self.row.name, self._frozen(options))(arrays)
        return tuple(
            jax.lax.stop_gradient(r) if n in _STATISTICS or n.startswith("new_") else r
            for n, r in zip(self.result_names(options, arrays), results, strict=True)
        )

    def _prepared(self, argument: str) -> Callable[[Any], Any]:
        """For each array of an argument: its derivative is zero, refused, or will be found."""
        name, row = f"dlkern.jax.{self.row.name}", self.row
        if row.constant:
            return jax.lax.stop_gradient
        if argument in row.constants:
            return _refusing(
                f"{name} has no derivative by {argument}: pass it through jax.lax.stop_gradient"
            )
        if row.gradient is None:
            why = ": a second derivative" if "_backward" in row.name else ""
            return _refusing(f"{name} has no derivative{why}")
        return lambda array: array

    def _sorted(self, arguments: Names) -> tuple[dict[str, Any], Arrays]:
        options, arrays = {}, {}
        for name, value in arguments.items():
            is_list = isinstance(value, (list, tuple)) and any(map(_calls.is_array, value))
            if is_list:
                arrays[name] = [None if v is None else jnp.asarray(v) for v in value]
            elif _calls.is_array(value):
                arrays[name] = self.row.prepare.get(name, jnp.asarray)(value)
            elif name.endswith("dtype") and value is not None:
                options[name] = jax.dtypes.canonicalize_dtype(value).name
            else:
                options[name] = value
        if not arrays:
            raise TypeError(f"dlkern.jax.{self.row.name}: no argument is a JAX or NumPy array")
        return options, arrays

    def _frozen(self, options: Names) -> tuple[tuple[str, Any], ...]:
        frozen = tuple((name, _frozen(value)) for name, value in options.items())
        for name, value in frozen:
            try:
                hash(value)
            except TypeError:
                kind = type(value).__name__
                raise TypeError(
                    f"dlkern.jax.{self.row.name}: {name} is {kind}, expected a static value"
                ) from None
        return frozen

    # ---- The pieces that JAX's transformations are given ----------------------------------------

    def computed(self, options: Names, arrays: Arrays) -> tuple[Any, ...]:
        """By custom calls; a batch one after the other."""
        ordered = {n: arrays[n] for n in _parameters(self.plain) if n in arrays}
        for name, dtype in self.row.views.items():
            if name in ordered and ordered[name].dtype == jnp.uint32:
                words = ordered[name]
                ordered[name] = _calls.Traced(words, (words.size // 2,), dtype)
        is_sequence = _call(self.row.sequence, {**options, **arrays})
        return _calls.traced(self.plain, dict(options), ordered, is_sequence)

    def result_names(self, options: Names, arrays: Arrays) -> list[str]:
        names = self.row.results
        if callable(names):
            names = _call(names, {**options, **arrays})
        return [*names.split(), *(f"new_{n}" for n in self.row.updates if n in arrays)]

    # What is saved may depend on shapes, dtypes and options alone, never on which arguments are
    # differentiated by: JAX differentiates a program that it traced once in several ways, and takes
    # the structure of what was saved from any of them. What nobody asks for, XLA leaves out.

    def forward(self, options: Names, arrays: Arrays) -> Any:
        """The results, and what the gradient needs of arguments and results."""
        full = dict(options)
        if self.row.saving is not None:
            full.update(_call(self.row.saving, {**options, **arrays}))
        values = _differentiable(self.row.name, self._frozen(full))(arrays)
        results = dict(zip(self.result_names(full, arrays), values, strict=True))
        names = {**options, **arrays, **results}
        names.update({name: _call(f, names) for name, f in self.row.derived.items()})
        saved: Arrays = {}
        static: dict[str, Any] = {}
        for name in self._needed():
            value = names[name] if name in names else _shape_of(name, arrays)
            if isinstance(value, (jax.Array, list)):
                saved[name] = value
            elif value is not None or name in names:
                static[name] = value
        outputs = tuple(results[name] for name in self.result_names(options, arrays))
        return outputs, (saved, _Static(tuple((n, _frozen(v)) for n, v in static.items())))

    def backward(self, names: dict[str, Any], arguments: Iterable[str]) -> Arrays:
        """Argument -> its gradient, from what was saved and the cotangents, by name."""
        for step in self.row.gradient or ():
            names.update(_run_step(step, names))
        gradients = {}
        for name in arguments:
            source = self.row.gradients.get(name, f"d{name}")
            value = _call(source, names) if callable(source) else _instantiated(names.get(source))
            if value is None:
                raise NotImplementedError(f"dlkern.jax.{self.row.name} has no derivative by {name}")
            gradients[name] = list(value) if isinstance(value, tuple) else value
        return gradients

    def _needed(self) -> list[str]:
        """Names that the steps and the functions for single gradients take."""
        functions = [_function_of(step) for step in self.row.gradient or ()]
        functions += filter(callable, self.row.gradients.values())
        return list(dict.fromkeys(name for f in functions for name in _parameters(f)))


# ---- Steps of a gradient -------------------------------------------------------------------------


def _products(step: str) -> list[str]:
    return step.partition("->")[2].split()


def _function_of(step: Step) -> Callable[..., Any]:
    return step if callable(step) else FUNCTIONS[step.partition("->")[0].strip()]


def _run_step(step: Step, names: Names) -> Mapping[str, Any]:
    function = _function_of(step)
    if callable(step):
        return _call(step, names)
    arguments = {}
    for name, parameter in _parameters(function).items():
        if name == "bias":  # whether its gradient is wanted, or the array where that is needed
            is_flag = "bool" in str(parameter.annotation)
            bias = names.get("bias")
            arguments[name] = bias is not None if is_flag or bias is None else bias
        elif name in names:
            arguments[name] = _argument(parameter, names)
    results = function(**arguments)
    products = _products(step)
    if len(products) == 1 or not isinstance(results, tuple):
        results = (results,)
    return dict(zip(products, results, strict=False))


def _call(function: Callable[..., Any], names: Names) -> Any:
    """With the arguments that it names."""
    return function(*(_argument(p, names) for p in _parameters(function).values()))


def _argument(parameter: inspect.Parameter, names: Names) -> Any:
    """By name; what is not there is None, and a zero cotangent too where that is the default."""
    value = names.get(parameter.name)
    if isinstance(value, SymbolicZero) and parameter.default is None:
        return None
    return _instantiated(value)


def _shape_of(name: str, arrays: Arrays) -> tuple[int, ...] | int | None:
    if name == "num_embeddings":
        return arrays["weight"].shape[0]
    stem = {"input_shape": "x", "shape": "x"}.get(name, name.removesuffix("_shape"))
    return arrays[stem].shape if name.endswith("shape") and stem in arrays else None


def _has_gradient(value: Any) -> bool:
    return all(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(value))


def _is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, SymbolicZero) or cotangent.dtype == jax.dtypes.float0


def _instantiated(value: Any) -> Any:
    """A cotangent as an array, a list of them, or None for that of integers; else as it is."""
    if isinstance(value, list):
        return [_instantiated(v) for v in value]
    if isinstance(value, (SymbolicZero, jax.Array, np.ndarray)):
        if value.dtype == jax.dtypes.float0:
            return None
        if isinstance(value, SymbolicZero):
            return jnp.zeros(value.shape, value.dtype)
    return value


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


# ---- JAX's transformations -----------------------------------------------------------------------
# For each op and each choice of its options one function of arrays alone.


@functools.lru_cache(maxsize=4096)
def _differentiable(name: str, options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    function, named = FUNCTIONS[name], dict(options)
    constants = function.row.constants

    @jax.custom_vjp
    def call(arrays: Arrays) -> Any:
        return _batchable(name, options)(arrays)

    def forward(primals: Arrays) -> Any:
        arrays = jax.tree.map(lambda primal: primal.value, primals)
        outputs, residuals = function.forward(named, arrays)
        wanted = {n: _has_gradient(a) and n not in constants for n, a in arrays.items()}
        return outputs, (residuals, _Static(tuple(wanted.items())))

    def backward(residuals: Any, cotangents: Any) -> tuple[Arrays]:
        (saved, static), arguments = residuals
        wanted = dict(arguments.items)
        outputs = function.result_names(named, wanted)
        given = {f"d{name}": c for name, c in zip(outputs, cotangents, strict=True)}
        if all(map(_is_zero, jax.tree.leaves(given))):
            return (dict.fromkeys(wanted),)
        names = {**dict(static.items), **saved, **given}
        gradients = function.backward(names, [n for n, w in wanted.items() if w])
        return ({n: gradients.get(n) for n in wanted},)

    call.defvjp(forward, backward, symbolic_zeros=True)
    call.__name__ = name
    return jax.jit(call, inline=True)


@functools.cache
def _refusing(message: str) -> Callable[[Any], Any]:
    """The identity, which has no derivative."""

    @jax.custom_jvp
    def identity(x: Any) -> Any:
        return x

    @identity.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(message)

    return lambda x: identity(x) if isinstance(x, jax.core.Tracer) else x


@functools.lru_cache(maxsize=4096)
def _batchable(
    name: str, options: tuple[tuple[str, Any], ...], compiled: bool = False
) -> Callable[..., Any]:
    if compiled:
        return jax.jit(_batchable(name, options), inline=True)
    function, named = FUNCTIONS[name], dict(options)

    def call(arrays: Arrays) -> Any:
        return function.computed(named, arrays)

    if function.row.batch is None:
        return call
    batch = function.row.batch
    with_rule = custom_vmap(call)

    @with_rule.def_vmap
    def rule(axis_size: int, in_batched: list[Any], arrays: Arrays) -> Any:
        (is_batched,) = in_batched
        names = {n for n, b in is_batched.items() if any(jax.tree.leaves(b))}
        form = None
        if all(all(jax.tree.leaves(is_batched[n])) for n in names):
            form = batch(named, arrays, names)
        if form is None:
            axes = jax.tree.map(lambda b: 0 if b else None, is_batched)
            results = jax.vmap(call, in_axes=(axes,), axis_size=axis_size)(arrays)
        else:
            results = _batchable(name, function._frozen(form.options))(form.arrays)
            results = jax.tree.map(form.undo, results)
        return results, jax.tree.map(lambda _: True, results)

    return with_rule
