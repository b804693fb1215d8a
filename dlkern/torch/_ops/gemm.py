"""Matrix products and fully-connected layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, compute, use
from dlkern.torch._registry import run
from dlkern.torch._vmap import leading

_PRECISION = 'str precision="ieee"'
_INVARIANT = f"{_PRECISION}, bool batch_invariant=False"

# ---- matmul --------------------------------------------------------------------------------------


def _matmul_twice(
    dda: Tensor, ddb: Tensor, dy: Tensor, a: Tensor, b: Tensor, alpha: float, precision: str
) -> tuple[Tensor, Tensor, Tensor]:
    through_b = run("matmul", a, ddb, None, alpha, 1.0, precision)
    return (
        run("matmul", dda, b, through_b, alpha, 1.0, precision),
        run("matmul_backward", dy, a, ddb, alpha, precision)[0],
        run("matmul_backward", dy, dda, b, alpha, precision)[1],
    )


_MATMUL = [
    Op(
        "matmul(Tensor a, Tensor b, Tensor? c=None, float alpha=1.0, float beta=1.0,"
        f" {_INVARIANT}) -> (Tensor y)",
        lambda a, b: a.new_empty(shapes.product(a, b)),
        backward=[
            "matmul_backward",
            compute("dc", lambda dy, c_shape, beta: _summed(dy, c_shape, beta)),
        ],
        autocast="lower",
    ),
    Op(
        f"matmul_backward(Tensor dy, Tensor a, Tensor b, float alpha=1.0, {_PRECISION})"
        " -> (Tensor da, Tensor db)",
        lambda a, b: (shapes.like(a), shapes.like(b)),
        backward=[compute("ddy da db", _matmul_twice)],
    ),
]


def _summed(dy: Tensor, shape: Any, factor: float = 1.0) -> Tensor:
    """The gradient of what was added with a factor and broadcasting."""
    return run("add_backward", dy, shape, None, factor)[0]


# ---- linear --------------------------------------------------------------------------------------

_LINEAR = (
    "(Tensor x, Tensor weight, Tensor? bias=None, str? activation=None, float? alpha=None,"
    f" Tensor? residual=None, {_INVARIANT})"
)
# Of linear_backward_input, whose options are those of the layer below.
_NO_LAYER_BELOW = {"activation": None, "alpha": None, "preactivation": None}
_BACKWARD_OF: dict[str, tuple[Any, ...]] = {"gelu_tanh": ("gelu_backward", "tanh")}


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty([*x.shape[:-1], weight.shape[0]])


def _linear_with_preactivation(x, weight, bias=None, activation=None, alpha=None, residual=None,
                               precision="ieee", batch_invariant=False):  # fmt: skip
    result = dlkern.linear(
        x, weight, bias, activation=activation, alpha=alpha, residual=residual,
        preactivation=activation is not None, precision=precision, batch_invariant=batch_invariant,
    )  # fmt: skip
    return result if activation is not None else (result, None)


def _through_activation(
    dy: Tensor | None,
    dpreactivation: Tensor | None,
    preactivation: Tensor | None,
    activation: str | None,
    alpha: float | None,
) -> Tensor | None:
    """From y, and where it is a result too, to the preactivation z."""
    if activation is None or dy is None:
        return dpreactivation if dy is None else dy
    name, *options = _BACKWARD_OF.get(activation, (f"{activation}_backward",))
    dz = run(name, dy, preactivation, *(options if alpha is None else [alpha]))
    return dz if dpreactivation is None else run("add", dz, dpreactivation)


def _residual_gradient(dy: Tensor | None, dz: Tensor, residual_shape: Any) -> Tensor:
    """A residual is added behind the activation."""
    return dz.new_zeros(residual_shape) if dy is None else _summed(dy, residual_shape)


_LINEARS = [
    Op(
        f"linear{_LINEAR} -> (Tensor y)",
        _linear,
        backward=[
            compute("dz", _through_activation),
            use("linear_backward_input", dy="dz", **_NO_LAYER_BELOW),
            use("linear_backward_weight", dy="dz"),
            compute("dresidual", _residual_gradient),
        ],
        saving="linear_with_preactivation",
        autocast="lower",
        vmap=leading("x"),
    ),
    Op(
        f"linear_with_preactivation{_LINEAR} -> (Tensor y, Tensor? preactivation)",
        lambda x, weight, activation: (
            _linear(x, weight),
            None if activation is None else _linear(x, weight),
        ),
        _linear_with_preactivation,
        autocast="lower",
        vmap=leading("x"),
    ),
    Op(
        "linear_backward_input(Tensor dy, Tensor weight, str? activation=None, float? alpha=None,"
        f" Tensor? preactivation=None, {_INVARIANT}) -> (Tensor dx)",
        lambda dy, weight: dy.new_empty([*dy.shape[:-1], weight.shape[1]]),
        backward=[
            compute("dproduct", lambda ddx, activation: None if activation else ddx),
            use("linear", "ddy", x="dproduct", bias=None, activation=None, alpha=None,
                residual=None),
            use("linear_backward_weight", x="dproduct", bias=False),
        ],
        vmap=leading("dy"),
    ),
    Op(
        f"linear_backward_weight(Tensor dy, Tensor x, bool bias=False, {_PRECISION})"
        " -> (Tensor dweight, Tensor? dbias)",
        lambda dy, x, bias: (
            dy.new_empty([dy.shape[-1], x.shape[-1]]),
            dy.new_empty(dy.shape[-1:]) if bias else None,
        ),
        backward=[
            use("linear", "ddy", weight="ddweight", bias="ddbias", activation=None, alpha=None,
                residual=None, batch_invariant=False),
            use("linear_backward_input", weight="ddweight", batch_invariant=False,
                **_NO_LAYER_BELOW),
        ],
    ),
]  # fmt: skip

ROWS = [*_MATMUL, *_LINEARS]
