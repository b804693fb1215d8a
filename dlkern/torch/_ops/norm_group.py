"""Group and instance normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op
from dlkern.torch._vmap import folded

_EPS_LAYOUT = 'float eps=1e-05, str layout="NCHW"'
_GROUP = f"Tensor? weight=None, Tensor? bias=None, str? activation=None, {_EPS_LAYOUT}"
_BACKWARD = (
    "Tensor? weight, Tensor mean, Tensor rstd, str? activation=None, Tensor? bias=None,"
    ' str layout="NCHW") -> (Tensor dx, Tensor? dweight, Tensor? dbias)'
)
_INSTANCE = (
    "Tensor x, Tensor? weight=None, Tensor? bias=None, Tensor(a!)? running_mean=None,"
    f" Tensor(b!)? running_var=None, str? activation=None, float momentum=0.1, {_EPS_LAYOUT}"
)


def _with_stats(plain: Callable[..., Any], count: int, *names: str) -> Callable[..., Any]:
    """The plain function with statistics; of its arguments `count` are positional."""

    def forward(*args: Any) -> Any:
        options = dict(zip(names, args[count:], strict=False))
        return plain(*args[:count], **options, return_stats=True)

    return forward


ROWS = [
    Op(
        f"group_norm(Tensor x, int num_groups, {_GROUP}) -> (Tensor y)",
        shapes.image_like_x,
        backward=["group_norm_backward"],
        saving="group_norm_with_stats",
        autocast="float32",
        vmap=folded("x"),
    ),
    Op(
        f"group_norm_with_stats(Tensor x, int num_groups, {_GROUP})"
        " -> (Tensor y, Tensor mean, Tensor rstd)",
        lambda x, num_groups, layout: shapes.normalized(x, layout, x.shape[0], num_groups),
        _with_stats(dlkern.group_norm, 4, "activation", "eps", "layout"),
        vmap=folded("x"),
    ),
    Op(
        f"group_norm_backward(Tensor dy, Tensor x, int num_groups, {_BACKWARD}",
        shapes.channel_gradients,
    ),
    Op(
        f"instance_norm({_INSTANCE}) -> (Tensor y)",
        shapes.image_like_x,
        backward=["instance_norm_backward"],
        saving="instance_norm_with_stats",
    ),
    Op(
        f"instance_norm_with_stats({_INSTANCE}) -> (Tensor y, Tensor mean, Tensor rstd)",
        lambda x, layout: shapes.normalized(x, layout, x.shape[0], shapes.channels(x, layout)),
        _with_stats(dlkern.instance_norm, 5, "activation", "momentum", "eps", "layout"),
    ),
    Op(f"instance_norm_backward(Tensor dy, Tensor x, {_BACKWARD}", shapes.channel_gradients),
]
