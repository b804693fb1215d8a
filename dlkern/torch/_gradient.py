"""The gradient of an operator, from the steps that its row names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import _C
from torch._library.autograd import supports_tensorlist

from dlkern.torch._modes import is_eager
from dlkern.torch._op import Step, use, written
from dlkern.torch._shapes import is_channels_last

if TYPE_CHECKING:
    from dlkern.torch._registry import Operator

_SECOND = "second derivatives are not supported here (create_graph=True)"
_TENSOR_TYPES = ("Tensor", "Optional[Tensor]")


# What arguments of backward ops are that are no inputs of the forward.
_DERIVED: dict[str, Callable[..., Any]] = {
    "input_shape": lambda x: x.shape,
    "shape": lambda x: x.shape,
    "a_shape": lambda a: a.shape,
    "b_shape": lambda b: b.shape,
    "c_shape": lambda c: None if c is None else c.shape,
    "mask_shape": lambda mask: None if mask is None else mask.shape,
    "residual_shape": lambda residual: None if residual is None else residual.shape,
    "weight_shape": lambda weight: weight.shape,
    "num_embeddings": lambda weight: weight.shape[0],
}


@dataclass(frozen=True)
class _Call:
    """A step with the names under which it finds its arguments, and leaves its results."""

    function: Callable[..., Any]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    operator: Operator | None = None  # the function, if it is one


@dataclass(frozen=True)
class _Plan:
    """What is run where some inputs need gradients.

    Both functions take what was kept and the gradients of the outputs, and give one for each input,
    None where none is wanted; one calls the plain functions, the other one operators.
    """

    wanted: list[str | None]  # of each input its name, if it needs one
    plain: Callable[..., list[Any]]
    through_torch: Callable[..., list[Any]]


class Gradient:
    """What an operator keeps of a forward call, and its backward."""

    def __init__(self, operator: Operator, operators: dict[str, Operator]) -> None:
        row = operator.row
        self.operator = operator
        self.saving = operators[row.saving] if row.saving else operator
        self.constants: dict[str, Any] = {}
        steps = [use(s) if isinstance(s, str) else s for s in row.backward]
        self.calls = [self._call(step, operators) for step in steps]
        # Input -> name of its gradient. That of an input y would be "dy", which may be another
        # input: only what a step gives, or the row names, counts.
        given = {r for call in self.calls for r in call.results}
        own = {n: f"d{n}" for n in operator.inputs if f"d{n}" in given}
        self.targets = own | dict(row.gradients)
        asked = {a for call in self.calls for a in call.arguments}
        self.flags = [(f"{n}_wanted", n) for n in operator.inputs if f"{n}_wanted" in asked]
        self._plan_keeping(asked)
        self.plans: dict[tuple[bool, ...], _Plan] = {}
        shapes = [f"{n}_shape" for n in ("input", *operator.inputs)]
        images = operator.row.images
        self.images = [
            i
            for i, n in enumerate(self.names)
            if images and (n in shapes or n.removeprefix("d") in images)
        ]

    def _call(self, step: Step, operators: dict[str, Operator]) -> _Call:
        if callable(step.function):
            return _Call(step.function, tuple(step.arguments), step.results)
        op = operators[step.function]
        names = []
        for n in op.inputs:
            name = step.arguments.get(n, n)
            if not isinstance(name, str):
                self.constants[f"={name}"], name = name, f"={name}"
            elif "bool" in op.types[n] and "Tensor" in self.operator.types.get(n, ""):
                name = f"{n}_wanted"
            names.append(name)
        return _Call(op, tuple(names), step.results or op.outputs, op)

    def _plan_keeping(self, asked: set[str]) -> None:
        """Which of inputs, outputs and derived values are kept."""
        operator, row = self.operator, self.operator.row
        known = (*operator.inputs, *self.saving.outputs)
        asked |= set(row.gradients.values())
        place = {n: f"v{i}" for i, n in enumerate(known)}
        parameters = list(place.values())
        functions: dict[str, Any] = {}
        for n, function in (_DERIVED | dict(row.derived)).items():
            arguments = tuple(inspect.signature(function).parameters)
            if n in asked and all(a in known for a in arguments):
                taken = ", ".join(f"v{known.index(a)}" for a in arguments)
                place[n] = f"f{len(functions)}({taken})"
                functions[f"f{len(functions)}"] = function
        tensors = {n for n in known if operator.types.get(n, "Tensor") in _TENSOR_TYPES}
        first = [n for n in place if n in asked and n in tensors]
        others = [n for n in place if n in asked and n not in tensors]
        # Of inputs and results in a row: what is kept, tensors apart.
        kept = ("".join(f"{place[n]}, " for n in names) for names in (first, others))
        self.kept = written(parameters, "return " + ", ".join(f"({k})" for k in kept), **functions)
        self.names = [*first, *others, *(f"d{o}" for o in self.saving.outputs)]
        # Without steps all outputs count as differentiable, so that asking for it fails; and so do
        # those that are only kept, which a second derivative would have to go through.
        count = len(operator.outputs)
        outputs = enumerate(self.saving.outputs)
        unasked = [i for i, o in outputs if self.calls and f"d{o}" not in asked]
        self.fixed = [i for i in unasked if i < count]
        self.hidden = [i for i in unasked if i >= count]
        # Of several gradients steps want each as a tensor, but for those of saving ops; of one
        # alone there is none to be made. That of a statistic would be zeros from one more kernel.
        alone = len(self.saving.outputs) - len(unasked) == 1 and not operator.has_lists
        self.takes_none = alone or self.saving is not operator

    def keep(self, ctx: Any, args: tuple[Any, ...], results: tuple[Any, ...]) -> None:
        tensors, ctx.others = self.kept(*args, *results)
        ctx.save_for_backward(*tensors)
        ctx.by_name = False
        if self.fixed:
            ctx.mark_non_differentiable(*[results[i] for i in self.fixed if results[i] is not None])
        if self.takes_none:
            ctx.set_materialize_grads(False)

    def __call__(self, ctx: Any, flags: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Gradients of the inputs from those of the outputs; flags: which are needed."""
        if all(g is None for g in gradients):
            return [None] * len(flags)
        if any(gradients[i] is not None for i in self.hidden):
            raise NotImplementedError(f"dlkern.torch.{self.operator.name}: {_SECOND}")
        plan = self._plan(tuple(map(_any, flags)) if self.operator.has_lists else tuple(flags))
        values: Sequence[Any] = (*ctx.saved_tensors, *ctx.others, *gradients)
        # What follows dy is right where that is channels last and nothing else.
        by_name = ctx.by_name and not is_channels_last(gradients[0])
        if by_name:
            values = self._channels_last(values)
        # An eager backward asks for torch's modes once, not in each call.
        direct = not torch.is_grad_enabled() and is_eager(gradients)
        results = (plan.plain if direct else plan.through_torch)(*values)
        for n, g in zip(plan.wanted, results, strict=True):
            if g is None and n is not None:
                op = self.operator.name
                message = f"dlkern.torch.{op} has no gradient with respect to {n}"
                raise NotImplementedError(f"{message}: {_SECOND}" if "_backward" in op else message)
        if not by_name:
            return results
        return [
            g.movedim(-1, 1) if n in self.operator.row.images else g
            for n, g in zip(plan.wanted, results, strict=True)
        ]

    def _channels_last(self, values: Sequence[Any]) -> list[Any]:
        """Images, weights and their shapes with the channels as the last axis; None stays None."""
        values = list(values)
        for i in self.images:
            v = values[i]
            if isinstance(v, torch.Tensor):
                values[i] = v.movedim(1, -1)
            elif v is not None:
                values[i] = [v[0], *v[2:], v[1]]
        values[self.names.index("layout")] = "NHWC"
        return values

    def _plan(self, flags: tuple[bool, ...]) -> _Plan:
        plan = self.plans.get(flags)
        if plan is None:
            inputs = zip(self.operator.inputs, flags, strict=True)
            wanted = [n if flag else None for n, flag in inputs]
            asked = {self.targets.get(n) for n in wanted if n}
            calls: list[_Call] = []
            for call in reversed(self.calls):
                if not asked.isdisjoint(call.results):
                    asked.update(call.arguments)
                    calls.insert(0, call)
            known = self.constants | {flag: n in wanted for flag, n in self.flags}
            functions = (self._steps(calls, wanted, known, plain) for plain in (True, False))
            plan = self.plans[flags] = _Plan(wanted, *functions)
        return plan

    def _steps(self, calls: list[_Call], wanted: list[str | None], known: dict[str, Any],
               plain: bool) -> Callable[..., list[Any]]:  # fmt: skip
        """The calls one after the other, of values in the order of `names`."""
        place = {n: f"v{i}" for i, n in enumerate(self.names)}
        parameters, lines = list(place.values()), []
        given: dict[str, Any] = {}  # the function's globals
        for n, value in known.items():
            place[n] = f"k{len(given)}"
            given[place[n]] = value
        for i, call in enumerate(calls):
            given[f"f{i}"] = call.operator.forward if plain and call.operator else call.function
            arguments = ", ".join(place[a] for a in call.arguments)
            place |= {r: f"r{i}_{j}" for j, r in enumerate(call.results)}
            lines.append(f"{', '.join(place[r] for r in call.results)} = f{i}({arguments})")
        results = (place.get(self.targets.get(n, ""), "None") if n else "None" for n in wanted)
        return written(parameters, *lines, f"return [{', '.join(results)}]", **given)


def _any(flag: Any) -> bool:
    return any(flag) if isinstance(flag, (list, tuple)) else flag


def function_of(operator: Operator, gradient: Gradient) -> Any:
    """The autograd.Function of an operator, with all results of the saving one.

    Its first argument is the keyset of the dispatcher, or None where that is not on the way.
    """
    saving = gradient.saving

    def forward(ctx: Any, keyset: Any, *args: Any) -> Any:
        if keyset is None:
            results = saving.forward(*args)
        else:
            with _C._AutoDispatchBelowAutograd():
                results = saving.overload.redispatch(keyset & _C._after_autograd_keyset, *args)
        gradient.keep(ctx, args, results if isinstance(results, tuple) else (results,))
        if gradient.images:
            ctx.by_name = is_channels_last(args[0])
        return results

    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, *gradient(ctx, ctx.needs_input_grad[1:], gradients))

    function = _function(operator, forward=forward, backward=backward)
    return supports_tensorlist(function) if operator.has_lists else function


def transformable_function_of(operator: Operator, gradient: Gradient) -> Any:
    """The same for the transforms of torch.func, which want its context to be set up apart.

    Gradients of images are made as dy lies in memory: tensors of a batch do not tell how they do.
    """

    def forward(*args: Any) -> Any:
        return gradient.saving.overload(*args)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        gradient.keep(ctx, inputs, output if isinstance(output, tuple) else (output,))

    def backward(ctx: Any, *gradients: Any) -> Any:
        return tuple(gradient(ctx, ctx.needs_input_grad, gradients))

    function = _function(operator, forward=forward, setup_context=setup_context, backward=backward)
    function.generate_vmap_rule = True
    return function


def _function(operator: Operator, **methods: Callable[..., Any]) -> Any:
    static = {name: staticmethod(method) for name, method in methods.items()}
    return type(f"dlkern_{operator.name}", (torch.autograd.Function,), static)
