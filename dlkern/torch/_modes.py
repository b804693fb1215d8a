"""Which of torch's modes want to see a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import _C, Tensor

_PLAIN_TYPES = frozenset((Tensor, torch.nn.Parameter))
_NO_TENSORS = frozenset((bool, int, float, str, type(None), torch.dtype, tuple, torch.Size))


def is_eager(args: Sequence[Any]) -> bool:
    """Nothing of torch's, but autocast, wants to see the call; tensors are plain ones with data."""
    if (
        torch.compiler.is_compiling()
        or _C._len_torch_dispatch_stack()
        or _C._are_functorch_transforms_active()
        or _C._is_torch_function_mode_enabled()
        or _C._get_tracing_state() is not None
    ):
        return False
    for a in args:
        kind = type(a)
        if kind in _PLAIN_TYPES:
            if a.is_meta:
                return False
        elif kind in _NO_TENSORS or (kind is list and (not a or type(a[0]) in _NO_TENSORS)):
            continue  # asking isinstance() takes as long as all the rest
        elif isinstance(a, Tensor) or (
            isinstance(a, list) and a and isinstance(a[0], Tensor) and not is_eager(a)
        ):
            return False
    return True


def is_transformed() -> bool:
    return not torch.compiler.is_compiling() and _C._are_functorch_transforms_active()
