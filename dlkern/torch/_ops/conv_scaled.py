"""Convolutions of 8-bit images with factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op

_ARGUMENTS = (
    "(Tensor x, Tensor weight, Tensor? scale_x, Tensor? scale_weight, Tensor? bias, int[] stride,"
    ' int[]? padding, int[] dilation, int groups=1, str layout="NCHW", str? activation=None,'
    " float? alpha=None, ScalarType? out_dtype=None, Tensor? scale_out=None)"
)


def _result(amax: bool) -> Callable[..., Any]:
    def fake(x: Tensor, weight: Tensor, scale_x: Any, scale_weight: Any, bias: Any, stride: Any,
             padding: Any, dilation: Any, layout: str, activation: Any, out_dtype: Any,
             scale_out: Any) -> Any:  # fmt: skip
        applied = (scale_x, scale_weight, bias, activation, scale_out)
        exact = not amax and all(t is None for t in applied)
        dtype = out_dtype or shapes.product_dtype(x, exact)
        y = shapes.conv(x, weight, stride, padding, dilation, layout).to(dtype)
        return (y, x.new_empty((), dtype=torch.float32)) if amax else y

    return fake


def _scaled_conv(amax: bool) -> Callable[..., Any]:
    def forward(x, weight, scale_x, scale_weight, bias, stride, padding, dilation, groups=1,
                layout="NCHW", activation=None, alpha=None, out_dtype=None,
                scale_out=None):  # fmt: skip
        return dlkern.scaled_conv(
            x, weight, scale_x, scale_weight, bias, stride=stride,
            padding=shapes.unpaired(padding), dilation=dilation, groups=groups, layout=layout,
            activation=activation, alpha=alpha, out_dtype=out_dtype, scale_out=scale_out, amax=amax,
        )  # fmt: skip

    return forward


ROWS = [
    Op(f"scaled_conv{_ARGUMENTS} -> (Tensor y)", _result(amax=False), _scaled_conv(amax=False)),
    Op(
        f"scaled_conv_with_amax{_ARGUMENTS} -> (Tensor y, Tensor amax)",
        _result(amax=True),
        _scaled_conv(amax=True),
    ),
]
