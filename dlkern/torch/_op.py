"""What a row of the table of ops says.

A row says what is special about an op; all that torch wants to know of an operator follows from
it. Names carry the meaning: the arguments of a backward op are found by name among the forward's
inputs, its outputs and their gradients (``dy`` is that of the output ``y``), and its result ``dx``
is the gradient of the input ``x``. Only what a backward step asks for by name is kept until then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One call on the way to the gradients: see :func:`use` and :func:`compute`."""

    function: str | Callable[..., Any]
    results: tuple[str, ...]  # () for all those of an op, by their names
    arguments: Mapping[str, Any] = field(default_factory=dict)


def use(op: str, *results: str, **arguments: Any) -> Step:
    """A call of an op whose results are given these names (default: their own).

    Its arguments are found by their names, but for those given here: by another name, or as a
    constant that is no string. One of type bool with the name of an input says whether that input
    needs a gradient.
    """
    return Step(op, results, arguments)


def compute(results: str, function: Callable[..., Any]) -> Step:
    """A function of values by name, that calls ops and gives these results (separated by blanks).

    A parameter ``<input>_wanted`` says whether that input needs a gradient.
    """
    names = inspect.signature(function).parameters
    return Step(function, tuple(results.split()), {n: n for n in names})


@dataclass(frozen=True)
class Op:
    """One row.

    Parameters
    ----------
    schema : str
        As torch reads it: ``softmax(Tensor x, int axis=-1) -> (Tensor y)``. No argument is
        keyword-only, results have names.
    fake : callable
        Arguments by name -> results of the right shape and dtype, without data.
    forward : callable, optional
        The schema's arguments -> results. Default: the plain function of the same name.
    backward : sequence of str or Step
        Steps of the gradient, in order; a name alone stands for ``use(name)``. Only those are run
        whose results an input that needs a gradient, or a later step, asks for.
    gradients : mapping
        Input -> name of its gradient, where that is not "d" and the input's name.
    derived : mapping
        Name -> function of inputs and outputs by name, evaluated in the forward call. One that has
        the name of a tensor takes its place.
    saving : str, optional
        The op that is computed instead where there will be a backward: the same arguments and
        gradient, further results.
    autocast : {"lower", "float32"}, optional
        What autocast turns floating inputs into: its dtype, or float32 for 16-bit ones.
    images : sequence of str, optional
        Inputs and outputs whose gradients are computed in the memory order of the first input where
        that is channels last; a `layout` says so then. For ops whose gradients do not see it.
    vmap : callable, optional
        A rule of _vmap.py. Without it, and where it does not hold, a batch is computed item by
        item.
    """

    schema: str
    fake: Callable[..., Any]
    forward: Callable[..., Any] | None = None
    backward: Sequence[str | Step] = ()
    gradients: Mapping[str, str] = field(default_factory=dict)
    derived: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    saving: str | None = None
    autocast: str | None = None
    images: Sequence[str] = ()
    vmap: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return self.schema.partition("(")[0]


def written(parameters: Sequence[str], *lines: str, **names: Any) -> Callable[..., Any]:
    """A function written out, which finds these names: what a table says is looked up once."""
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def function({', '.join(parameters)}):\n{body}", names)
    return names["function"]
