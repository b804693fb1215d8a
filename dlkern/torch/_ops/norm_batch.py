"""Batch normalisation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import dlkern
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


def _training_given(x, mean, var, weight=None, bias=None, running_mean=None, running_var=None,
                    residual=None, activation=None, momentum=0.1, num_batches_tracked=None,
                    eps=1e-5, layout="NCHW"):  # fmt: skip
    return dlkern.batch_norm_training(
        x, weight, bias, running_mean, running_var, residual=residual, activation=activation,
        momentum=momentum, num_batches_tracked=num_batches_tracked, stats=(mean, var), eps=eps,
        layout=layout,
    )  # fmt: skip


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
        "batch_norm_training_given(Tensor x, Tensor mean, Tensor var, Tensor? weight=None,"
        " Tensor? bias=None, Tensor(a!)? running_mean=None, Tensor(b!)? running_var=None,"
        " Tensor? residual=None, str? activation=None, float? momentum=0.1,"
        f" Tensor(c!)? num_batches_tracked=None, {_EPS_LAYOUT}) -> (Tensor y, Tensor rstd)",
        lambda x, layout: shapes.normalized(x, layout, shapes.channels(x, layout))[:2],
        _training_given,
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
