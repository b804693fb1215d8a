"""Convolutions and transposed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, use
from dlkern.torch._vmap import folded

_WINDOW = (
    "int[] stride, int[]? padding, int[] dilation, int groups=1,"
    ' str layout="NCHW", str precision="ieee"'
)
_TRANSPOSED = _WINDOW.replace("padding,", "padding, int[] output_padding,")


def _weight_gradients(dy: Tensor, x: Tensor, weight_shape: Any, bias: bool, layout: str) -> Any:
    filters = shapes.channels(dy, layout)
    dweight = shapes.in_format_of(x, weight_shape, layout)
    return dweight, dy.new_empty([filters]) if bias else None


def _conv(name: str, window: str, shape: Callable[..., Tensor]) -> list[Op]:
    by_input, by_weight = f"{name}_backward_input", f"{name}_backward_weight"
    return [
        Op(
            f"{name}(Tensor x, Tensor weight, Tensor? bias, {window}) -> (Tensor y)",
            shape,
            backward=[by_input, by_weight],
            autocast="lower",
            images=("x", "weight", "y"),
            vmap=folded("x"),
        ),
        # Their own gradients are convolutions again.
        Op(
            f"{by_input}(Tensor dy, Tensor weight, SymInt[] input_shape, {window}) -> (Tensor dx)",
            shapes.of_input,
            backward=[
                use(name, "ddy", x="ddx", bias=None),
                use(by_weight, x="ddx", bias=False),
            ],
        ),
        Op(
            f"{by_weight}(Tensor dy, Tensor x, SymInt[] weight_shape, {window}, bool bias=False)"
            " -> (Tensor dweight, Tensor? dbias)",
            _weight_gradients,
            backward=[
                use(name, "ddy", weight="ddweight", bias="ddbias"),
                use(by_input, weight="ddweight"),
            ],
        ),
    ]


ROWS = [
    *_conv("conv", _WINDOW, shapes.conv),
    *_conv("conv_transpose", _TRANSPOSED, shapes.conv_transpose),
]
