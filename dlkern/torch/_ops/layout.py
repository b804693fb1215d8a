"""Order in memory, concatenation, casts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, compute, use
from dlkern.torch._registry import run
from dlkern.torch._vmap import folded, leading


def _permuted_back(dy: Tensor, axes: Any) -> Tensor:
    places = [a % len(axes) for a in axes]
    return run("permute", dy, [places.index(i) for i in range(len(axes))])


def _concatenated(arrays: list[Tensor], axis: int) -> Tensor:
    extent = sum(a.shape[axis] for a in arrays)
    return arrays[0].new_empty(shapes.replaced(arrays[0].shape, axis, extent))


ROWS = [
    Op(
        "permute(Tensor x, int[] axes) -> (Tensor y)",
        lambda x, axes: x.new_empty([x.shape[a] for a in axes]),
        backward=[compute("dx", _permuted_back)],
    ),
    Op(
        "nchw_to_nhwc(Tensor x) -> (Tensor y)",
        lambda x: x.new_empty([x.shape[0], *x.shape[2:], x.shape[1]]),
        backward=[use("nhwc_to_nchw", "dx", x="dy")],
        vmap=folded("x"),
    ),
    Op(
        "nhwc_to_nchw(Tensor x) -> (Tensor y)",
        lambda x: x.new_empty([x.shape[0], x.shape[-1], *x.shape[1:-1]]),
        backward=[use("nchw_to_nhwc", "dx", x="dy")],
        vmap=folded("x"),
    ),
    Op(
        "contiguous(Tensor x) -> (Tensor y)",
        shapes.like_x,
        backward=[compute("dx", lambda dy: dy)],
        vmap=leading("x"),
    ),
    Op(
        "concat(Tensor[] arrays, int axis=0) -> (Tensor y)",
        _concatenated,
        backward=[use("split", "darrays", x="dy")],
        derived={"sections": lambda arrays, axis: [a.shape[axis] for a in arrays]},
    ),
    Op(
        "split(Tensor x, SymInt[] sections, int axis=0) -> (Tensor[] y)",
        lambda x, sections, axis: [
            x.new_empty(shapes.replaced(x.shape, axis, n)) for n in sections
        ],
        lambda x, sections, axis=0: list(dlkern.split(x, tuple(sections), axis)),
        backward=[use("concat", "dx", arrays="dy")],
    ),
    Op(
        "cast(Tensor x, ScalarType dtype) -> (Tensor y)",
        lambda x, dtype: x.new_empty(x.shape, dtype=dtype),
        lambda x, dtype: dlkern.cast(x, shapes.dtype_name(dtype)),
        backward=[use("cast", "dx", x="dy", dtype="x_dtype")],
        derived={"x_dtype": lambda x: x.dtype},
        vmap=leading("x"),
    ),
]
