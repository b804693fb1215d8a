"""Batch normalisation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op
from dlkern.torch._vmap import folded

_EPS_LAYOUT = 'float eps=1e-05, str layout="NCHW"'
_RESULTS = "(Tensor dx, Tensor? dweight, Tensor? dbias, Tensor? dresidual)"
# The backward wants y for the gradient of a residual alone.
_Y_FOR_RESIDUAL = {"y": lambda y, residual: None if residual is None else y}


def _gradients(x: Tensor, weight: Any, bias: Any, y: Any, layout: str) -> Any:
    dresidual = None if y is None else shapes.image_like_x(x, layout)
    return *shapes.channel_gradients(x, weight, bias, layout), dresidual


ROWS = [
    Op(
        "batch_norm(Tensor x, Tensor? weight, Tensor? bias, Tensor running_mean,"
        " Tensor running_var, Tensor? residual=None, str? activation=None,"
        f" {_EPS_LAYOUT}) -> (Tensor y)",
        shapes.image_like_x,
        backward=["batch_norm_inference_backward"],
        derived=_Y_FOR_RESIDUAL,
        vmap=folded("x", "residual"),
    ),
    Op(
        "batch_norm_inference_backward(Tensor dy, Tensor x, Tensor? weight, Tensor running_mean,"
        " Tensor running_var, Tensor? y=None, str? activation=None, float eps=1e-05,"
        f' Tensor? bias=None, str layout="NCHW") -> {_RESULTS}',
        _gradients,
    ),
    Op(
        "batch_norm_training(Tensor x, Tensor? weight=None, Tensor? bias=None,"
        " Tensor(a!)? running_mean=None, Tensor(b!)? running_var=None, Tensor? residual=None,"
        " str? activation=None, float? momentum=0.1, Tensor(c!)? num_batches_tracked=None,"
        f" {_EPS_LAYOUT}) -> (Tensor y, Tensor mean, Tensor rstd)",
        lambda x, layout: shapes.normalized(x, layout, shapes.channels(x, layout)),
        backward=["batch_norm_backward"],
        derived=_Y_FOR_RESIDUAL,
    ),
    Op(
        "batch_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd,"
        " Tensor? y=None, str? activation=None, Tensor? bias=None,"
        f' str layout="NCHW") -> {_RESULTS}',
        _gradients,
    ),
]
