"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, use

_OPTIONS = (
    ", Tensor? cos=None, Tensor? sin=None, Tensor? positions=None, int offset=0,"
    " float base=10000.0, int? rotary_dim=None, bool interleaved=False, str layout="
    '"BSHD"'
)


def _of_lists(plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(
        arrays, cos=None, sin=None, positions=None, offset=0, base=10000.0, rotary_dim=None,
        interleaved=False, layout="BSHD",
    ):  # fmt: skip
        results = plain(
            list(arrays), cos=cos, sin=sin, positions=positions, offset=offset, base=base,
            rotary_dim=rotary_dim, interleaved=interleaved, layout=layout,
        )  # fmt: skip
        return list(results)

    return forward


ROWS = [
    Op(
        f"rope(Tensor[] x{_OPTIONS}) -> (Tensor[] y)",
        lambda x: [shapes.like(t) for t in x],
        _of_lists(dlkern.rope),
        backward=["rope_backward"],
    ),
    Op(
        f"rope_backward(Tensor[] dy{_OPTIONS}) -> (Tensor[] dx)",
        lambda dy: [shapes.like(t) for t in dy],
        _of_lists(dlkern.rope_backward),
        backward=[use("rope", "ddy", x="ddx")],
    ),
]
