"""The table of ops: a module for each family, with its rows. `dlkern.torch._op` has the columns."""

from __future__ import annotations

from dlkern.torch._ops import (
    activation,
    conv,
    conv_fused,
    conv_scaled,
    dropout,
    elementwise,
    embedding,
    gemm,
    gemm_grouped,
    gemm_scaled,
    layout,
    loss,
    norm,
    norm_batch,
    norm_group,
    optim,
    pool,
    reduce,
    rope,
    softmax,
    topk,
)
from dlkern.torch._registry import register

_FAMILIES = (
    activation,
    conv,
    conv_fused,
    conv_scaled,
    dropout,
    elementwise,
    embedding,
    gemm,
    gemm_grouped,
    gemm_scaled,
    layout,
    loss,
    norm,
    norm_batch,
    norm_group,
    optim,
    pool,
    reduce,
    rope,
    softmax,
    topk,
)

register([row for family in _FAMILIES for row in family.ROWS])
