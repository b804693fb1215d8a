"""Matrix products of many groups."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, compute
from dlkern.torch._registry import run

_PRECISION = 'str precision="ieee"'


def _grouped(a: Tensor, b: Tensor, offsets: Tensor, bias: Any, scale_a: Any, scale_b: Any,
             out_dtype: Any) -> Tensor:  # fmt: skip
    exact = bias is None and scale_a is None and scale_b is None
    of_depth = b.dim() == 2
    shape = [offsets.shape[0], a.shape[0], b.shape[1]] if of_depth else [a.shape[0], b.shape[2]]
    return a.new_empty(shape, dtype=out_dtype or shapes.product_dtype(a, exact))


def _grouped_gradients(
    dy: Tensor, a: Tensor, b: Tensor, offsets: Tensor, precision: str, batch_invariant: bool
) -> tuple[Tensor, Tensor]:
    if b.dim() == 3:
        return run("grouped_matmul_backward", dy, a, b, offsets, precision, batch_invariant)
    return _product(b, dy.mT, offsets, precision).mT, _product(a.mT, dy, offsets, precision)


def _grouped_bias_gradient(dy: Tensor, offsets: Tensor, precision: str) -> Tensor:
    return _product(dy.new_ones([1, dy.shape[0]]), dy, offsets, precision).squeeze(1)


def _product(a: Tensor, b: Tensor, offsets: Tensor, precision: str) -> Tensor:
    return run("grouped_matmul", a, b, offsets, None, None, None, precision)


ROWS = [
    Op(
        "grouped_matmul(Tensor a, Tensor b, Tensor offsets, Tensor? bias=None,"
        f" Tensor? scale_a=None, Tensor? scale_b=None, {_PRECISION}, ScalarType? out_dtype=None,"
        " bool batch_invariant=False) -> (Tensor y)",
        _grouped,
        backward=[compute("da db", _grouped_gradients), compute("dbias", _grouped_bias_gradient)],
    ),
    Op(
        "grouped_matmul_backward(Tensor dy, Tensor a, Tensor b, Tensor offsets,"
        f" {_PRECISION}, bool batch_invariant=False) -> (Tensor da, Tensor db)",
        lambda a, b: (shapes.like(a), shapes.like(b)),
    ),
]
