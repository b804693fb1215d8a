"""Sums with broadcasting."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, compute
from dlkern.torch._registry import run
from dlkern.torch._vmap import leading


def _sum_of_both(
    dda: Tensor | None, ddb: Tensor | None, dy_shape: Any, alpha: float, beta: float
) -> Tensor:
    if dda is None or ddb is None:
        given, factor = (ddb, beta) if dda is None else (dda, alpha)
        assert given is not None
        dda, ddb, alpha, beta = given, given, factor, 0.0
    return run("add", dda.expand(dy_shape), ddb.expand(dy_shape), alpha, beta)


ROWS = [
    Op(
        "add(Tensor a, Tensor b, float alpha=1.0, float beta=1.0) -> (Tensor y)",
        lambda a, b: shapes.in_format_of(a, torch.broadcast_shapes(a.shape, b.shape)),
        backward=["add_backward"],
        vmap=leading("a", "b"),
    ),
    Op(
        "add_backward(Tensor dy, SymInt[]? a_shape=None, SymInt[]? b_shape=None, float alpha=1.0,"
        " float beta=1.0) -> (Tensor? da, Tensor? db)",
        lambda dy, a_shape, b_shape: tuple(
            None if shape is None else shapes.in_format_of(dy, shape)
            for shape in (a_shape, b_shape)
        ),
        backward=[compute("ddy", _sum_of_both)],
        derived={"dy_shape": lambda dy: dy.shape},
    ),
]
