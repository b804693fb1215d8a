"""Matrix products of 8-bit operands with factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op

_ARGUMENTS = (
    "(Tensor a, Tensor b, Tensor? scale_a=None, Tensor? scale_b=None, Tensor? bias=None,"
    " str? activation=None, float? alpha=None, ScalarType? out_dtype=None,"
    " Tensor? scale_out=None, bool batch_invariant=False)"
)


def _scaled_product(a: Tensor, b: Tensor, scale_a: Any, scale_b: Any, bias: Any, activation: Any,
                    out_dtype: Any, scale_out: Any) -> Tensor:  # fmt: skip
    exact = all(t is None for t in (scale_a, scale_b, bias, activation, scale_out))
    return a.new_empty(shapes.product(a, b), dtype=out_dtype or shapes.product_dtype(a, exact))


def _scaled_matmul(amax: bool) -> Callable[..., Any]:
    def forward(a, b, scale_a=None, scale_b=None, bias=None, activation=None, alpha=None,
                out_dtype=None, scale_out=None, batch_invariant=False):  # fmt: skip
        return dlkern.scaled_matmul(
            a, b, scale_a, scale_b, bias, activation=activation, alpha=alpha, out_dtype=out_dtype,
            scale_out=scale_out, amax=amax, batch_invariant=batch_invariant,
        )  # fmt: skip

    return forward


ROWS = [
    Op(
        f"scaled_matmul{_ARGUMENTS} -> (Tensor y)",
        _scaled_product,
        _scaled_matmul(amax=False),
    ),
    Op(
        f"scaled_matmul_with_amax{_ARGUMENTS} -> (Tensor y, Tensor amax)",
        lambda a, b, out_dtype: (
            a.new_empty(
                shapes.product(a, b), dtype=out_dtype or shapes.product_dtype(a, exact=False)
            ),
            a.new_empty((), dtype=torch.float32),
        ),
        _scaled_matmul(amax=True),
    ),
]
