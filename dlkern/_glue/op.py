"""How a row of the table of ops becomes a function of a framework.

A row (:class:`Op`) says what is special about an op: where its gradient comes from, and what it
updates in place. All else follows from the plain function: its signature, its checks, its results.
Names carry the meaning: the arguments of a backward op are found by name among the forward's
arguments, its results and their gradients (``dy`` is that of the result ``y``), and its result
``dx`` is the gradient of the argument ``x``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import dlkern

Names = Mapping[str, Any]
Arrays = dict[str, Any]  # argument -> array, or list of arrays
Step = str | Callable[..., Mapping[str, Any]]


def is_constant(result: str) -> bool:
    """Whether a result counts as constant: a statistic, an index, a new value of an argument."""
    return result in ("mean", "var", "rstd", "amax", "indices") or result.startswith("new_")


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
        Arguments that the plain function updates in place; where arrays cannot be written, their
        new values are further results, which are constants to differentiation.
    gradient : sequence of str or callable, or None
        Steps of it. ``"softmax_backward -> dx"`` names a backward op and its results. A function's
        parameters are found by name too, and it gives further names; its parameter ``ops`` is the
        namespace of the framework's functions (see :func:`functions_of`). What ends in ``_shape``
        is the shape of an argument (``input_shape`` and ``shape``: of x); a parameter ``bias`` that
        is a flag says whether there is one. None: the op has no derivative.
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
    constant : bool
        The results are integers or do not depend on values: gradients are zero.
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
    constant: bool = False
    sequence: Callable[..., bool] = lambda: False


@functools.cache
def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def gives(*results: str) -> Callable[..., Any]:
    """Says which names a step's function gives: it is left out where nobody asks for them."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.results = results  # type: ignore[attr-defined]
        return function

    return mark


def _results_of(step: Step) -> tuple[str, ...] | None:
    if callable(step):
        return getattr(step, "results", None)
    return tuple(step.partition("->")[2].split())


def _is_left_out(name: str) -> bool:
    """Parameters of the plain functions that write to what they are given, or name a stream."""
    is_out = name == "out" or (name.startswith("out_") and name != "out_dtype")
    return is_out or name in ("stream", "accumulate", "grad_out")


class Function:
    """A row as a function: the plain one's name, arguments and results.

    A framework's own class says what its arrays are, and how they are computed with.
    """

    #: The module whose functions these are.
    module: str
    #: Those functions by name, and what else steps of gradients may call.
    ops: Any

    def __init__(self, row: Op) -> None:
        self.row, self.plain = row, getattr(dlkern, row.name)
        signature = inspect.signature(self.plain)
        kept = [p for n, p in signature.parameters.items() if not _is_left_out(n)]
        self.__name__ = self.__qualname__ = row.name
        self.__module__ = self.module
        self.__doc__ = f":func:`dlkern.{row.name}` of {self.array}s."
        self.__signature__ = signature.replace(parameters=kept)

    @property
    def title(self) -> str:
        return f"{self.module}.{self.row.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.title}: {error}") from None
        bound.apply_defaults()
        options, arrays = self._sorted(bound.arguments)
        results = self.run(options, arrays)
        if len(results) > 1:
            return results
        if not results:
            return None
        return tuple(results[0]) if isinstance(results[0], list) else results[0]

    # ---- What a framework says ------------------------------------------------------------------

    #: As the documentation calls one.
    array: str

    def is_array(self, value: Any) -> bool:
        raise NotImplementedError

    def as_array(self, name: str, value: Any) -> Any:
        """A value that is_array() as the framework's own kind of array."""
        raise NotImplementedError

    def as_option(self, name: str, value: Any) -> Any:
        """Any other value as the plain function takes it."""
        raise NotImplementedError

    def shape_of(self, array: Any) -> Any:
        return tuple(array.shape)

    def run(self, options: Names, arrays: Arrays) -> tuple[Any, ...]:
        """All results; updated arguments come last."""
        raise NotImplementedError

    def computed(self, options: Names, arrays: Arrays) -> tuple[Any, ...]:
        """The same without a thought of gradients."""
        raise NotImplementedError

    def found(self, value: Any) -> Any:
        """A gradient as steps take it; other values as they are."""
        return value

    def given(self, parameter: inspect.Parameter, names: Names) -> Any:
        """The value of a step's parameter; what is not there is None."""
        return self.found(names.get(parameter.name))

    # ---- Arguments and results ------------------------------------------------------------------

    def _sorted(self, arguments: Names) -> tuple[dict[str, Any], Arrays]:
        options, arrays = {}, {}
        for name, value in arguments.items():
            if isinstance(value, (list, tuple)) and any(map(self.is_array, value)):
                arrays[name] = [None if v is None else self.as_array(name, v) for v in value]
            elif self.is_array(value):
                arrays[name] = self.as_array(name, value)
            else:
                options[name] = self.as_option(name, value)
        if not arrays:
            raise TypeError(f"{self.title}: no argument is a {self.array}")
        return options, arrays

    def result_names(self, options: Names, arrays: Arrays) -> list[str]:
        names = self.row.results
        if callable(names):
            names = self.call(names, {**options, **arrays})
        return [*names.split(), *(f"new_{n}" for n in self.row.updates if n in arrays)]

    def is_sequence(self, options: Names, arrays: Arrays) -> bool:
        return bool(self.call(self.row.sequence, {**options, **arrays}))

    def called(self, options: Names, arrays: Arrays) -> list[Any]:
        """The results of the plain function."""
        result = self.plain(**options, **arrays)
        if self.is_sequence(options, arrays):
            return [list(result)]
        if isinstance(result, tuple):
            return list(result)
        return [] if result is None else [result]

    # ---- Gradients ------------------------------------------------------------------------------

    def completed(self, options: Names, arrays: Arrays) -> dict[str, Any]:
        """The options with those that add what the gradient needs to the results."""
        saving = self.row.saving
        more = {} if saving is None else self.call(saving, {**options, **arrays})
        return {**options, **more}

    def saved(self, options: Names, arrays: Arrays, results: Names) -> dict[str, Any]:
        """What the gradient needs, by name."""
        names = {**options, **arrays, **results}
        names.update({name: self.call(f, names) for name, f in self.row.derived.items()})
        saved = {}
        for name in self._needed():
            value = names[name] if name in names else self._shape_of(name, arrays)
            if value is not None or name in names:
                saved[name] = value
        return saved

    def backward(self, names: Names, wanted: Iterable[str]) -> Arrays:
        """Argument -> its gradient, from what was saved and the results' gradients, by name."""
        sources = {n: self.row.gradients.get(n, f"d{n}") for n in wanted}
        pool = {**names, "ops": self.ops}
        for step in self._plan(sources.values()):
            pool.update(self._run_step(step, pool))
        gradients = {}
        for name, source in sources.items():
            value = self.call(source, pool) if callable(source) else self.found(pool.get(source))
            if value is None:
                raise NotImplementedError(f"{self.title} has no derivative by {name}")
            gradients[name] = list(value) if isinstance(value, tuple) else value
        return gradients

    def _plan(self, sources: Iterable[Any]) -> list[Step]:
        """The steps that somebody asks for."""
        asked: set[str] = set()
        for source in sources:
            asked.update(parameters_of(source) if callable(source) else [source])
        plan: list[Step] = []
        for step in reversed(self.row.gradient or ()):
            results = _results_of(step)
            if results is None or not asked.isdisjoint(results):
                asked.update(parameters_of(self._function_of(step)))
                plan.insert(0, step)
        return plan

    def _needed(self) -> list[str]:
        """Names that the steps and the functions for single gradients take."""
        functions = [self._function_of(step) for step in self.row.gradient or ()]
        functions += filter(callable, self.row.gradients.values())
        return list(dict.fromkeys(name for f in functions for name in parameters_of(f)))

    def _function_of(self, step: Step) -> Callable[..., Any]:
        return step if callable(step) else getattr(self.ops, step.partition("->")[0].strip())

    def _run_step(self, step: Step, names: Names) -> Mapping[str, Any]:
        function = self._function_of(step)
        if callable(step):
            return self.call(step, names)
        arguments = {}
        for name, parameter in parameters_of(function).items():
            if name == "bias":  # whether its gradient is wanted, or the array where that is needed
                is_flag = "bool" in str(parameter.annotation)
                bias = names.get("bias")
                arguments[name] = bias is not None if is_flag or bias is None else bias
            elif name in names:
                arguments[name] = self.given(parameter, names)
        results = function(**arguments)
        products = _results_of(step) or ()
        if len(products) == 1 or not isinstance(results, tuple):
            results = (results,)
        return dict(zip(products, results, strict=False))

    def call(self, function: Callable[..., Any], names: Names) -> Any:
        """With the arguments that it names."""
        return function(*(self.given(p, names) for p in parameters_of(function).values()))

    def _shape_of(self, name: str, arrays: Arrays) -> Any:
        if name == "num_embeddings":
            return arrays["weight"].shape[0]
        stem = {"input_shape": "x", "shape": "x"}.get(name, name.removesuffix("_shape"))
        is_shape = name.endswith("shape") and stem in arrays
        return self.shape_of(arrays[stem]) if is_shape else None


Kind = TypeVar("Kind", bound=Function)


def functions_of(kind: type[Kind], rows: Iterable[Op]) -> dict[str, Kind]:
    """Every op of dlkern, by its row or the defaults."""
    by_name = {row.name: row for row in rows}
    functions: dict[str, Kind] = {}
    for name in dlkern.__all__:
        plain = vars(dlkern).get(name)  # what is imported lazily is no op
        if not inspect.isfunction(plain) or plain.__module__ == "dlkern._core":
            continue
        if "stream" in parameters_of(plain):
            functions[name] = kind(by_name.pop(name, Op(name)))
    if by_name:
        raise TypeError(f"{', '.join(by_name)}: no function of dlkern")
    return functions
