"""Activations and gated linear units."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, compute, use
from dlkern.torch._vmap import leading

_APPROXIMATE = ', str approximate="none"'
_ACTIVATIONS = {
    "relu": "",
    "relu6": "",
    "leaky_relu": ", float negative_slope=0.01",
    "elu": ", float alpha=1.0",
    "selu": "",
    "gelu": _APPROXIMATE,
    "silu": "",
    "hardswish": "",
    "mish": "",
    "sigmoid": "",
    "hardsigmoid": "",
    "tanh": "",
    "softplus": ", float beta=1.0, float threshold=20.0",
}
_PIECEWISE_LINEAR = ("relu", "relu6", "leaky_relu", "hardsigmoid")
# Their gradients are the same functions of y as of x, and y is what the next layer keeps anyway.
_KEEP_Y = ("relu", "relu6")


def _activation(name: str, options: str) -> list[Op]:
    twice = (
        use(f"{name}_backward", "ddy", dy="ddx"),
        compute("zero", lambda x: x.new_zeros(x.shape)),
    )
    return [
        Op(
            f"{name}(Tensor x{options}) -> (Tensor y)",
            shapes.pointwise_of_x,
            backward=[f"{name}_backward"],
            derived={"x": lambda y: y} if name in _KEEP_Y else {},
            vmap=leading("x"),
            autocast="float32" if name == "softplus" else None,
        ),
        Op(
            f"{name}_backward(Tensor dy, Tensor x{options}) -> (Tensor dx)",
            shapes.pointwise_of_x,
            backward=twice if name in _PIECEWISE_LINEAR else (),
            gradients={"x": "zero"} if name in _PIECEWISE_LINEAR else {},
            vmap=leading("dy", "x"),
        ),
    ]


def _gated(name: str, options: str) -> list[Op]:
    arguments = f"Tensor gate, Tensor? up=None{options}, bool gate_last=False"
    return [
        Op(
            f"{name}({arguments}) -> (Tensor y)",
            _half,
            backward=[f"{name}_backward"],
            vmap=leading("gate", "up"),
        ),
        Op(
            f"{name}_backward(Tensor dy, {arguments}) -> (Tensor dgate, Tensor? dup)",
            lambda gate, up: (shapes.like(gate), None if up is None else shapes.like(up)),
            vmap=leading("dy", "gate", "up"),
        ),
    ]


def _half(gate: Tensor, up: Tensor | None) -> Tensor:
    if up is not None:
        return shapes.like(gate)
    return gate.new_empty(shapes.replaced(gate.shape, -1, gate.shape[-1] // 2))


_GATED: dict[str, Any] = {"swiglu": "", "geglu": _APPROXIMATE, "reglu": "", "glu": ""}
ROWS = [
    *(op for name, options in _ACTIVATIONS.items() for op in _activation(name, options)),
    *(op for name, options in _GATED.items() for op in _gated(name, options)),
]
