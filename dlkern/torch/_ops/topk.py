"""The k largest or smallest elements."""

from __future__ import annotations

import torch

from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op
from dlkern.torch._vmap import along_axis

ROWS = [
    Op(
        "top_k(Tensor x, SymInt k, int axis=-1, bool largest=True, bool sorted=True)"
        " -> (Tensor y, Tensor indices)",
        lambda x, k, axis: (
            x.new_empty(shapes.replaced(x.shape, axis, k)),
            x.new_empty(shapes.replaced(x.shape, axis, k), dtype=torch.int64),
        ),
        backward=["top_k_backward"],
        vmap=along_axis("x"),
    ),
    Op(
        "top_k_backward(Tensor dy, Tensor indices, SymInt[] input_shape, int axis=-1)"
        " -> (Tensor dx)",
        lambda dy, input_shape: dy.new_empty(input_shape),
    ),
]
