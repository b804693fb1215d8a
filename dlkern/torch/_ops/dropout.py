"""Dropout."""

from __future__ import annotations

from torch import Tensor

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, use


def _dropout(x: Tensor, rng: Tensor, residual: Tensor | None = None, p: float = 0.5) -> Tensor:
    return dlkern.dropout(x, p, rng=rng, residual=residual)


ROWS = [
    Op(
        "dropout(Tensor x, Tensor rng, Tensor? residual=None, float p=0.5) -> (Tensor y)",
        shapes.like_x,
        _dropout,
        backward=["dropout_backward"],
        gradients={"residual": "dy"},
    ),
    Op(
        "dropout_backward(Tensor dy, float p, Tensor rng) -> (Tensor dx)",
        shapes.like_dy,
        backward=[use("dropout_backward", "ddy", dy="ddx")],
    ),
]
