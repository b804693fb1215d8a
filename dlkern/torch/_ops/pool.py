"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, use
from dlkern.torch._vmap import folded

_KERNEL = "SymInt[]? kernel, int[]? stride, int[]? padding"
_LAYOUT = 'str layout="NCHW"'
_MAXIMUM = f"{_KERNEL}, int[] dilation, bool ceil_mode=False, {_LAYOUT}"
_AVERAGE = (
    f"{_KERNEL}, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None,"
    f" {_LAYOUT}"
)
_NORM = f"{_KERNEL}, bool ceil_mode=False, {_LAYOUT}"
_ADAPTIVE = f"SymInt[]? output_size, {_LAYOUT}"


def _pooled(x: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
            layout: str) -> Tensor:  # fmt: skip
    return shapes.pooled(x, kernel, stride, padding, None, ceil_mode, layout)


def _with_indices(y: Tensor, index_dtype: str) -> tuple[Tensor, Tensor]:
    return y, torch.empty_like(y, dtype=getattr(torch, index_dtype))


def _index_dtype(index_dtype: str, kernel: Any) -> str:
    """Of "smallest", for a gradient that dlkern alone reads: a byte for the tap where it holds."""
    if index_dtype != "smallest":
        return index_dtype
    return "uint8" if kernel is not None and math.prod(kernel) <= 256 else "int32"


def _max_pool_with_indices(x, kernel, stride, padding, dilation, ceil_mode=False, layout="NCHW",
                           index_dtype="smallest"):  # fmt: skip
    return dlkern.max_pool(
        x, kernel, stride=stride, padding=shapes.unpaired(padding), dilation=dilation,
        ceil_mode=ceil_mode, layout=layout, return_indices=True,
        index_dtype=_index_dtype(index_dtype, kernel),
    )  # fmt: skip


def _adaptive_max_pool_with_indices(x, output_size, layout="NCHW", index_dtype="int32"):
    return dlkern.adaptive_max_pool(
        x, output_size, layout=layout, return_indices=True, index_dtype=index_dtype
    )


ROWS = [
    Op(
        f"max_pool(Tensor x, {_MAXIMUM}) -> (Tensor y)",
        shapes.pooled,
        backward=["max_pool_backward"],
        saving="max_pool_with_indices",
        images=("x", "y", "indices"),
        vmap=folded("x"),
    ),
    Op(
        f'max_pool_with_indices(Tensor x, {_MAXIMUM}, str index_dtype="smallest")'
        " -> (Tensor y, Tensor indices)",
        lambda x, kernel, stride, padding, dilation, ceil_mode, layout, index_dtype: _with_indices(
            shapes.pooled(x, kernel, stride, padding, dilation, ceil_mode, layout),
            _index_dtype(index_dtype, kernel),
        ),
        _max_pool_with_indices,
        vmap=folded("x"),
    ),
    Op(
        f"max_pool_backward(Tensor dy, Tensor indices, SymInt[] input_shape, {_MAXIMUM})"
        " -> (Tensor dx)",
        shapes.of_input,
    ),
    Op(
        f"avg_pool(Tensor x, {_AVERAGE}) -> (Tensor y)",
        _pooled,
        backward=["avg_pool_backward"],
        images=("x", "y"),
        vmap=folded("x"),
    ),
    Op(
        f"avg_pool_backward(Tensor dy, SymInt[] input_shape, {_AVERAGE}) -> (Tensor dx)",
        shapes.of_input,
        backward=[use("avg_pool", "ddy", x="ddx")],
    ),
    Op(
        f"lp_pool(Tensor x, float norm_type, {_NORM}) -> (Tensor y)",
        _pooled,
        backward=["lp_pool_backward"],
        images=("x", "y"),
        vmap=folded("x"),
    ),
    Op(
        f"lp_pool_backward(Tensor dy, Tensor x, Tensor y, float norm_type, {_NORM}) -> (Tensor dx)",
        shapes.image_like_x,
    ),
    Op(
        f"adaptive_max_pool(Tensor x, {_ADAPTIVE}) -> (Tensor y)",
        shapes.adapted,
        backward=["adaptive_max_pool_backward"],
        saving="adaptive_max_pool_with_indices",
        images=("x", "y", "indices"),
        vmap=folded("x"),
    ),
    Op(
        f'adaptive_max_pool_with_indices(Tensor x, {_ADAPTIVE}, str index_dtype="int32")'
        " -> (Tensor y, Tensor indices)",
        lambda x, output_size, layout, index_dtype: _with_indices(
            shapes.adapted(x, output_size, layout), index_dtype
        ),
        _adaptive_max_pool_with_indices,
        vmap=folded("x"),
    ),
    Op(
        f"adaptive_max_pool_backward(Tensor dy, Tensor indices, SymInt[] input_shape, {_LAYOUT})"
        " -> (Tensor dx)",
        shapes.of_input,
    ),
    Op(
        f"adaptive_avg_pool(Tensor x, {_ADAPTIVE}) -> (Tensor y)",
        shapes.adapted,
        backward=["adaptive_avg_pool_backward"],
        images=("x", "y"),
        vmap=folded("x"),
    ),
    Op(
        f"adaptive_avg_pool_backward(Tensor dy, SymInt[] input_shape, {_LAYOUT}) -> (Tensor dx)",
        shapes.of_input,
        backward=[use("adaptive_avg_pool", "ddy", x="ddx")],
        derived={"output_size": lambda dy, layout: shapes.spatial(dy.shape, layout)},
    ),
]
