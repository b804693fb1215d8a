"""Softmax and log-softmax."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, compute
from dlkern.torch._registry import run
from dlkern.torch._vmap import along_axis


def _mask_gradient(dx: Tensor, mask_shape: Any, scale: float) -> Tensor:
    """Of an additive mask: dx over the scale, summed over the axes that the mask lacks."""
    return run("add_backward", dx, mask_shape, None, 1 / scale)[0]


def _softmax(name: str) -> list[Op]:
    return [
        Op(
            f"{name}(Tensor x, int axis=-1, float scale=1.0, Tensor? mask=None, bool causal=False)"
            " -> (Tensor y)",
            shapes.like_x,
            backward=[f"{name}_backward", compute("dmask", _mask_gradient)],
            autocast="float32",
            vmap=along_axis("x"),
        ),
        Op(
            f"{name}_backward(Tensor dy, Tensor y, int axis=-1, float scale=1.0) -> (Tensor dx)",
            shapes.like_dy,
            vmap=along_axis("dy", "y"),
        ),
    ]


ROWS = [*_softmax("softmax"), *_softmax("log_softmax")]
