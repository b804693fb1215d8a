"""Reductions over axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, use

_AXIS = "int[1]? axis=None"
_X_Y = "Tensor x, Tensor y"


def _reduced(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    return x.new_empty(shapes.reduced(x, axis, keepdims))


def _wide(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    """Integers give int64."""
    y = _reduced(x, axis, keepdims)
    return y if x.is_floating_point() else y.new_empty(y.shape, dtype=torch.int64)


def _index(x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    shape = shapes.reduced(x, None if axis is None else [axis], keepdims)
    return x.new_empty(shape, dtype=torch.int64)


def _reduction(name: str, given: str, options: str = "", autocast: str | None = None) -> list[Op]:
    """given: what the gradient is computed of, beside dy."""
    linear = name in ("sum", "mean")
    return [
        Op(
            f"{name}(Tensor x, {_AXIS}{options}, bool keepdims=False) -> (Tensor y)",
            _wide if name in ("sum", "prod") else _reduced,
            backward=[f"{name}_backward"],
            autocast=autocast,
        ),
        Op(
            f"{name}_backward(Tensor dy, {given}, {_AXIS}{options}) -> (Tensor dx)",
            (lambda dy, shape: dy.new_empty(shape)) if linear else shapes.like_x,
            backward=[use(name, "ddy", x="ddx")] if linear else (),
            derived={"keepdims": lambda dy, dx: dy.dim() == dx.dim()},
        ),
    ]


ROWS = [
    *_reduction("sum", "SymInt[] shape", autocast="float32"),
    *_reduction("mean", "SymInt[] shape"),
    *_reduction("prod", "Tensor x", autocast="float32"),
    *_reduction("max", _X_Y),
    *_reduction("min", _X_Y),
    *_reduction("logsumexp", _X_Y),
    *_reduction("vector_norm", _X_Y, ", float ord=2"),
    *_reduction("var", "Tensor x", ", float correction=0.0"),
    *_reduction("std", _X_Y, ", float correction=0.0"),
    Op(f"any(Tensor x, {_AXIS}, bool keepdims=False) -> (Tensor y)", _reduced),
    Op(f"all(Tensor x, {_AXIS}, bool keepdims=False) -> (Tensor y)", _reduced),
    Op("argmax(Tensor x, int? axis=None, bool keepdims=False) -> (Tensor y)", _index),
    Op("argmin(Tensor x, int? axis=None, bool keepdims=False) -> (Tensor y)", _index),
]
