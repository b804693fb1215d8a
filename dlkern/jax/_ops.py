"""The ops as functions of JAX: under ``jit``, ``grad``, ``vmap`` and ``shard_map``.

The rows of :mod:`dlkern._glue.table` say where gradients come from, the rules of ``_table`` how a
batch is one call; the shapes of results and the custom calls themselves follow from the plain
functions (see ``_calls``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from dlkern._glue.op import Arrays, Function, Names, is_constant, parameters_of
from dlkern.jax import _calls


@dataclass(frozen=True)
class Batched:
    """A batch as one call: its arguments, and what makes the batch's results of that call's."""

    options: Names
    arrays: Arrays
    undo: Callable[[Any], Any] = lambda result: result


#: (options, arrays, set of those that are batched, on axis 0) -> the batch, or None.
Rule = Callable[[Names, Arrays, set[str]], Batched | None]


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    """Names whose values are no arrays, beside saved arrays."""

    items: tuple[tuple[str, Any], ...]


FUNCTIONS: dict[str, JaxFunction] = {}
#: Op -> its rule. A batch of others is computed item by item.
BATCHES: dict[str, Rule] = {}


class JaxFunction(Function):
    """A row as a function of JAX arrays, tracers and NumPy arrays."""

    module = "dlkern.jax"
    array = "JAX or NumPy array"

    def is_array(self, value: Any) -> bool:
        return _calls.is_array(value)

    def as_array(self, name: str, value: Any) -> Any:
        return _words(value) if name == "rng" else jnp.asarray(value)

    def as_option(self, name: str, value: Any) -> Any:
        if name.endswith("dtype") and value is not None:
            return jax.dtypes.canonicalize_dtype(value).name
        return value

    def found(self, value: Any) -> Any:
        return _instantiated(value)

    def given(self, parameter: inspect.Parameter, names: Names) -> Any:
        """A zero cotangent is None where that is the default."""
        is_zero = isinstance(names.get(parameter.name), SymbolicZero)
        return None if is_zero and parameter.default is None else super().given(parameter, names)

    def run(self, options: Names, arrays: Arrays) -> tuple[Any, ...]:
        arrays = {n: jax.tree.map(self._prepared(n), a) for n, a in arrays.items()}
        leaves, tree = jax.tree.flatten(arrays)
        arrays = jax.tree.unflatten(tree, _calls.varying_alike(leaves))
        if self.row.gradient is None:
            return _batchable(self.row.name, self._frozen(options), compiled=True)(arrays)
        results = _differentiable(self.row.name, self._frozen(options))(arrays)
        return tuple(
            jax.lax.stop_gradient(r) if is_constant(n) else r
            for n, r in zip(self.result_names(options, arrays), results, strict=True)
        )

    def _prepared(self, argument: str) -> Callable[[Any], Any]:
        """For each array of an argument: its derivative is zero, refused, or will be found."""
        row = self.row
        if row.constant:
            return jax.lax.stop_gradient
        if argument in row.constants:
            return _refusing(
                f"{self.title} has no derivative by {argument}: pass it through "
                "jax.lax.stop_gradient"
            )
        if row.gradient is None:
            why = ": a second derivative" if "_backward" in row.name else ""
            return _refusing(f"{self.title} has no derivative{why}")
        return lambda array: array

    def _frozen(self, options: Names) -> tuple[tuple[str, Any], ...]:
        frozen = tuple((name, _frozen(value)) for name, value in options.items())
        for name, value in frozen:
            try:
                hash(value)
            except TypeError:
                kind = type(value).__name__
                raise TypeError(
                    f"{self.title}: {name} is {kind}, expected a static value"
                ) from None
        return frozen

    # ---- The pieces that JAX's transformations are given ----------------------------------------

    def computed(self, options: Names, arrays: Arrays) -> tuple[Any, ...]:
        """By custom calls; a batch one after the other."""
        ordered = {n: arrays[n] for n in parameters_of(self.plain) if n in arrays}
        if "rng" in ordered and ordered["rng"].dtype == jnp.uint32:
            words = ordered["rng"]
            ordered["rng"] = _calls.Traced(words, (words.size // 2,), "uint64")
        return _calls.traced(functools.partial(self.called, options), ordered)

    # What is saved may depend on shapes, dtypes and options alone, never on which arguments are
    # differentiated by: JAX differentiates a program that it traced once in several ways, and takes
    # the structure of what was saved from any of them. What nobody asks for, XLA leaves out.

    def forward(self, options: Names, arrays: Arrays) -> Any:
        """The results, and what the gradient needs of arguments and results."""
        full = self.completed(options, arrays)
        values = _differentiable(self.row.name, self._frozen(full))(arrays)
        results = dict(zip(self.result_names(full, arrays), values, strict=True))
        saved = self.saved(full, arrays, results)
        kept = {n: v for n, v in saved.items() if isinstance(v, (jax.Array, list))}
        static = _Static(tuple((n, _frozen(v)) for n, v in saved.items() if n not in kept))
        return tuple(results[n] for n in self.result_names(options, arrays)), (kept, static)


def _words(rng: Any) -> Any:
    """Seed and offset of `dropout`; of a key the seed, with the offset 0."""
    rng = jnp.asarray(rng)
    if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        rng = jax.random.key_data(rng)
    if rng.dtype == jnp.uint32 and rng.shape == (2,):
        rng = jnp.concatenate([rng, jnp.zeros(2, jnp.uint32)])
    return rng


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
        outputs = function.result_names(named, dict.fromkeys(wanted, True))  # all are present
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
    function, named, batch = FUNCTIONS[name], dict(options), BATCHES.get(name)

    def call(arrays: Arrays) -> Any:
        return function.computed(named, arrays)

    if batch is None:
        return call
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
