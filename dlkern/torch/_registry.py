"""Operators of torch from rows of the table of ops.

An operator has the plain function as its kernel for the CPU and CUDA, and around it what its row
says: shapes without data, gradient, autocast, vmap. Called from an eager program it goes straight
to the plain function, since the way through torch's dispatcher and back costs more than a small op.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import _C, Tensor

import dlkern
from dlkern.torch._gradient import Gradient, function_of, transformable_function_of
from dlkern.torch._modes import is_eager, is_transformed
from dlkern.torch._op import Op, written
from dlkern.torch._shapes import unpaired

OPERATORS: dict[str, Operator] = {}

_LIBRARY = torch.library.Library("dlkern", "DEF")
_DEVICES = ("CPU", "CUDA")
_AUTOCAST_KEYS = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU) | _C.DispatchKeySet(
    _C.DispatchKey.AutocastCUDA
)


def register(rows: Sequence[Op]) -> None:
    savers = {row.saving: row for row in rows if row.saving}
    for row in rows:
        like = savers.get(row.name)
        if like is not None:
            row = replace(
                row, backward=like.backward, gradients=like.gradients, derived=like.derived
            )
        OPERATORS[row.name] = Operator(row)
    for row in rows:
        OPERATORS[row.name].connect()


def run(name: str, *args: Any) -> Any:
    """Calls an operator, its arguments by position."""
    return OPERATORS[name](*args)


class Operator:
    """A registered row; calling it computes it, in any of torch's modes."""

    def __init__(self, row: Op) -> None:
        self.row, self.name = row, row.name
        _LIBRARY.define(row.schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.overload = getattr(torch.ops.dlkern, self.name).default
        schema = self.overload._schema
        self.inputs = tuple(a.name for a in schema.arguments)
        self.outputs = tuple(r.name for r in schema.returns)
        self.types = {a.name: str(a.type) for a in schema.arguments}
        self.defaults = tuple(
            a.default_value if a.has_default_value() else inspect.Parameter.empty
            for a in schema.arguments
        )
        self.is_mutable = schema.is_mutable
        self.has_lists = any(
            "List[Tensor]" in str(a.type) for a in (*schema.arguments, *schema.returns)
        )
        self.forward = row.forward or _plain(self)
        if self.is_mutable:
            self.forward = _counting_versions(self.forward, schema)

    def connect(self) -> None:
        """What may need the other operators."""
        gradient = Gradient(self, OPERATORS)
        self.function = function_of(self, gradient)
        # The one in C: an eager call has nothing of what torch's in Python looks for.
        in_c = vars(_C._FunctionBase)["apply"].__get__(None, self.function)
        self.apply = self.function.apply if self.has_lists else in_c
        self.transformable = transformable_function_of(self, gradient)
        for key in _DEVICES:
            _LIBRARY.impl(self.name, self.forward, key)
        torch.library.register_fake(self.overload, self._fake(), lib=_LIBRARY)
        _LIBRARY.impl(self.name, self._autograd, "Autograd", with_keyset=True)
        if self.row.autocast:
            for device in _DEVICES:
                _LIBRARY.impl(self.name, self._autocast(device.lower()), f"Autocast{device}")
        if not self.is_mutable:
            torch.library.register_vmap(self.overload, self._vmap, lib=_LIBRARY)

    def __call__(self, *args: Any) -> Any:
        if is_eager(args) and not (self.row.autocast and _C._is_any_autocast_enabled()):
            if self._needs_grad(args):
                return self._own(self.apply(None, *_filled(args, self.defaults)))
            return self.forward(*args)
        if is_transformed() and not self.has_lists and not self.is_mutable:
            # Gradients of torch.func do not come through the dispatcher.
            return self._own(self.transformable.apply(*_filled(args, self.defaults)))
        return self.overload(*args)

    def _needs_grad(self, args: tuple[Any, ...]) -> bool:
        if not (_C.is_grad_enabled() and _C._any_requires_grad(*args)):
            return False
        if not self.outputs:
            raise RuntimeError(
                f"dlkern.torch.{self.name} changes tensors that require grad: call it under "
                "torch.no_grad()"
            )
        return True

    def _own(self, results: Any) -> Any:
        """Of the saving operator's results those of this one."""
        if not isinstance(results, tuple):
            return results
        count = len(self.outputs)
        return results[:count] if count > 1 else results[0]

    # ---- Kernels of the dispatcher, from the outside in -----------------------------------------

    def _vmap(self, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        dims = dict(zip(self.inputs, in_dims, strict=False))
        batched = {n for n, d in dims.items() if _is_batched(d)}
        if self.row.vmap is not None:
            arguments = dict(zip(self.inputs, _filled(args, self.defaults), strict=True))
            arguments |= {n: arguments[n].movedim(dims[n], 0) for n in batched}
            plan = self.row.vmap(arguments, batched)
            if plan is not None:
                arguments, undo = plan
                results = self.overload(*(arguments[n] for n in self.inputs))
                if isinstance(results, Tensor):
                    return undo(results), 0
                return tuple(map(undo, results)), tuple(None if r is None else 0 for r in results)
        items = [
            self.overload(*(_item(a, d, i) for a, d in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if isinstance(items[0], Tensor):
            return torch.stack(items), 0
        kind = type(items[0])
        results = [None if r[0] is None else torch.stack(r) for r in zip(*items, strict=True)]
        return kind(results), kind(None if r is None else 0 for r in results)

    def _autocast(self, device: str) -> Callable[..., Any]:
        def cast(value: Any, dtype: torch.dtype) -> Any:
            if isinstance(value, (list, tuple)):
                return [cast(v, dtype) for v in value]
            eligible = (
                isinstance(value, Tensor)
                and value.is_floating_point()
                and value.dtype is not torch.float64
                and value.device.type == device
            )
            return value.to(dtype) if eligible else value

        def kernel(*args: Any) -> Any:
            lower = self.row.autocast == "lower"
            dtype = torch.get_autocast_dtype(device) if lower else torch.float32
            with _C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
                return self.overload(*(cast(a, dtype) for a in args))

        return kernel

    def _autograd(self, keyset: Any, *args: Any) -> Any:
        if self._needs_grad(args):
            return self._own(self.function.apply(keyset, *_filled(args, self.defaults)))
        with _C._AutoDispatchBelowAutograd():
            return self.overload.redispatch(keyset & _C._after_autograd_keyset, *args)

    def _fake(self) -> Callable[..., Any]:
        names = tuple(inspect.signature(self.row.fake).parameters)
        places = [self.inputs.index(n) for n in names]

        def fake(*args: Any) -> Any:
            args = _filled(args, self.defaults)
            return self.row.fake(*(args[i] for i in places))

        return fake


# ---- Functions of a schema's arguments -----------------------------------------------------------


def _plain(operator: Operator) -> Callable[..., Any]:
    """The plain function as a function of the schema's arguments by position.

    It has as many results as the schema, None for those that the plain function leaves out.
    """
    plain = getattr(dlkern, operator.name)
    passed = [
        n if p.kind is p.POSITIONAL_OR_KEYWORD else f"{n}={n}"
        for n, p in inspect.signature(plain).parameters.items()
        if n in operator.inputs
    ]
    passed = ["padding=unpaired(padding)" if p == "padding=padding" else p for p in passed]
    call, count = f"plain({', '.join(passed)})", len(operator.outputs)
    required = inspect.Parameter.empty
    parameters = [
        n if d is required else f"{n}=defaults[{i}]"
        for i, (n, d) in enumerate(zip(operator.inputs, operator.defaults, strict=True))
    ]
    return written(
        parameters, f"return padded({call}, {count})" if count > 1 else f"return {call}",
        plain=plain, unpaired=unpaired, padded=_padded, defaults=operator.defaults,
    )  # fmt: skip


def _padded(results: Any, count: int) -> tuple[Any, ...]:
    results = results if isinstance(results, tuple) else (results,)
    return results + (None,) * (count - len(results))


def _counting_versions(forward: Callable[..., Any], schema: Any) -> Callable[..., Any]:
    """With the inputs that it writes marked as changed, which DLPack does not do."""
    written = [i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]

    def wrapped(*args: Any) -> Any:
        results = forward(*args)
        changed: list[Tensor] = []
        for a in [args[i] for i in written if i < len(args)]:
            if isinstance(a, list):
                changed += a
            elif a is not None:
                changed.append(a)
        torch.autograd.graph.increment_version(changed)
        return results

    return wrapped


def _filled(args: tuple[Any, ...], defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    """With the trailing defaults that the dispatcher leaves out."""
    return args + defaults[len(args) :] if len(args) < len(defaults) else args


def _is_batched(dim: Any) -> bool:
    return any(d is not None for d in dim) if isinstance(dim, (list, tuple)) else dim is not None


def _item(value: Any, dim: Any, i: int) -> Any:
    if isinstance(dim, (list, tuple)):
        return [_item(v, d, i) for v, d in zip(value, dim, strict=True)]
    return value if dim is None else value.select(dim, i)
