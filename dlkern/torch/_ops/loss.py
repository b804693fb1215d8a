"""Losses."""

from __future__ import annotations

from torch import Tensor

from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, use

_LABELS = "Tensor labels, Tensor? weight=None, int ignore_index=-100"
_CROSS_ENTROPY = (
    f'Tensor logits, {_LABELS}, float label_smoothing=0.0, float z_loss=0.0, str reduction="mean"'
)


def _of_rows(logits: Tensor, reduction: str) -> Tensor:
    """[N, C, ...] without C, or a scalar."""
    rows = [*logits.shape[:1], *logits.shape[2:]] if logits.dim() > 1 else []
    return logits.new_empty(rows if reduction == "none" else ())


def _of_elements(name: str, options: str = "", symmetric: bool = True) -> list[Op]:
    """symmetric: the gradient of the target is the negative of that of x."""
    arguments = f'Tensor x, Tensor target{options}, str reduction="mean"'
    negative = [use("add", "dtarget", a="dx", b="dx", alpha=-1.0, beta=0.0)]
    return [
        Op(
            f"{name}({arguments}) -> (Tensor loss)",
            lambda x, reduction: x.new_empty(x.shape if reduction == "none" else ()),
            backward=[f"{name}_backward", *(negative if symmetric else [])],
            autocast="float32",
        ),
        Op(f"{name}_backward(Tensor dloss, {arguments}) -> (Tensor dx)", shapes.like_x),
    ]


ROWS = [
    Op(
        f"cross_entropy({_CROSS_ENTROPY}) -> (Tensor loss)",
        _of_rows,
        backward=["cross_entropy_backward"],
        autocast="float32",
    ),
    Op(
        f"cross_entropy_backward(Tensor dloss, {_CROSS_ENTROPY}) -> (Tensor dlogits)",
        lambda logits: shapes.like(logits),
    ),
    Op(
        f"cross_entropy_with_grad({_CROSS_ENTROPY}, Tensor? dloss=None)"
        " -> (Tensor loss, Tensor dlogits)",
        lambda logits, reduction: (_of_rows(logits, reduction), shapes.like(logits)),
    ),
    Op(
        f'nll_loss(Tensor log_p, {_LABELS}, str reduction="mean") -> (Tensor loss)',
        lambda log_p, reduction: _of_rows(log_p, reduction),
        backward=["nll_loss_backward"],
        autocast="float32",
    ),
    Op(
        f'nll_loss_backward(Tensor dloss, Tensor log_p, {_LABELS}, str reduction="mean")'
        " -> (Tensor dlog_p)",
        lambda log_p: shapes.like(log_p),
    ),
    *_of_elements("mse_loss"),
    *_of_elements("l1_loss"),
    *_of_elements("smooth_l1_loss", ", float beta=1.0"),
    *_of_elements("huber_loss", ", float delta=1.0"),
    *_of_elements(
        "binary_cross_entropy_with_logits",
        ", Tensor? weight=None, Tensor? pos_weight=None",
        symmetric=False,
    ),
    *_of_elements("kl_div", ", bool log_target=False", symmetric=False),
]
