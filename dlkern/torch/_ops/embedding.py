"""Rows of a table, one-hot vectors."""

from __future__ import annotations

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op
from dlkern.torch._vmap import leading

ROWS = [
    Op(
        "embedding(Tensor ids, Tensor weight, int? padding_idx=None,"
        " bool scale_grad_by_freq=False) -> (Tensor y)",
        lambda ids, weight: weight.new_empty([*ids.shape, weight.shape[1]]),
        lambda ids, weight, *_: dlkern.embedding(ids, weight),
        backward=["embedding_backward"],
        vmap=leading("ids"),
    ),
    Op(
        "embedding_backward(Tensor dy, Tensor ids, SymInt num_embeddings, int? padding_idx=None,"
        " bool scale_grad_by_freq=False) -> (Tensor dweight)",
        lambda dy, num_embeddings: dy.new_empty([num_embeddings, dy.shape[-1]]),
    ),
    Op(
        "one_hot(Tensor ids, int num_classes, ScalarType dtype) -> (Tensor y)",
        lambda ids, num_classes, dtype: ids.new_empty([*ids.shape, num_classes], dtype=dtype),
        lambda ids, num_classes, dtype: dlkern.one_hot(
            ids, num_classes, dtype=shapes.dtype_name(dtype)
        ),
        vmap=leading("ids"),
    ),
]
