"""Optimizer steps: they change their arguments and have no results.

Lists that are left out are empty; a number that may lie on the device is a number and a tensor, of
which the tensor counts where it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op

_SCALE = "Tensor? grad_scale=None, Tensor? found_inf=None"


def _or_none(tensors: Sequence[Tensor]) -> Any:
    return list(tensors) if len(tensors) else None


def _sgd_step(param, grad, momentum_buffer, copy, lr, lr_tensor=None, momentum=0.0, dampening=0.0,
              weight_decay=0.0, nesterov=False, maximize=False, first_step=False, grad_scale=None,
              found_inf=None):  # fmt: skip
    dlkern.sgd_step(
        list(param), list(grad), _or_none(momentum_buffer),
        lr=lr if lr_tensor is None else lr_tensor, momentum=momentum, dampening=dampening,
        weight_decay=weight_decay, nesterov=nesterov, maximize=maximize, first_step=first_step,
        copy=_or_none(copy), grad_scale=grad_scale, found_inf=found_inf,
    )  # fmt: skip


def _adamw_step(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, copy, lr, lr_tensor, beta1,
                beta2, eps, weight_decay, step, step_tensor=None, maximize=False, l2=False,
                grad_scale=None, found_inf=None):  # fmt: skip
    dlkern.adamw_step(
        list(param), list(grad), list(exp_avg), list(exp_avg_sq), _or_none(max_exp_avg_sq),
        lr=lr if lr_tensor is None else lr_tensor, betas=(beta1, beta2), eps=eps,
        weight_decay=weight_decay, step=step if step_tensor is None else step_tensor,
        maximize=maximize, l2=l2, copy=_or_none(copy), grad_scale=grad_scale, found_inf=found_inf,
    )  # fmt: skip


def _lion_step(param, grad, exp_avg, copy, lr, lr_tensor, beta1, beta2, weight_decay=0.0,
               maximize=False, grad_scale=None, found_inf=None):  # fmt: skip
    dlkern.lion_step(
        list(param), list(grad), list(exp_avg), lr=lr if lr_tensor is None else lr_tensor,
        betas=(beta1, beta2), weight_decay=weight_decay, maximize=maximize, copy=_or_none(copy),
        grad_scale=grad_scale, found_inf=found_inf,
    )  # fmt: skip


ROWS = [
    Op(
        "sgd_step(Tensor(a!)[] param, Tensor[] grad, Tensor(b!)[] momentum_buffer,"
        " Tensor(c!)[] copy, float lr, Tensor? lr_tensor=None, float momentum=0.0,"
        " float dampening=0.0, float weight_decay=0.0, bool nesterov=False, bool maximize=False,"
        f" bool first_step=False, {_SCALE}) -> ()",
        lambda: None,
        _sgd_step,
    ),
    Op(
        "adamw_step(Tensor(a!)[] param, Tensor[] grad, Tensor(b!)[] exp_avg,"
        " Tensor(c!)[] exp_avg_sq, Tensor(d!)[] max_exp_avg_sq, Tensor(e!)[] copy, float lr,"
        " Tensor? lr_tensor, float beta1, float beta2, float eps, float weight_decay, int step,"
        f" Tensor? step_tensor=None, bool maximize=False, bool l2=False, {_SCALE}) -> ()",
        lambda: None,
        _adamw_step,
    ),
    Op(
        "lion_step(Tensor(a!)[] param, Tensor[] grad, Tensor(b!)[] exp_avg, Tensor(c!)[] copy,"
        " float lr, Tensor? lr_tensor, float beta1, float beta2, float weight_decay=0.0,"
        f" bool maximize=False, {_SCALE}) -> ()",
        lambda: None,
        _lion_step,
    ),
    Op(
        "grad_norm(Tensor[] grad, float? max_norm=None, Tensor? loss_scale=None, float ord=2.0)"
        " -> (Tensor norm, Tensor grad_scale, Tensor found_inf)",
        lambda grad: tuple(shapes.statistic(grad[0], ()) for _ in range(3)),
        lambda grad, max_norm=None, loss_scale=None, ord=2.0: dlkern.grad_norm(
            list(grad), max_norm=max_norm, loss_scale=loss_scale, ord=ord
        ),
    ),
    Op(
        "scale_grads(Tensor(a!)[] grad, Tensor scale, Tensor(b!)? found_inf=None) -> ()",
        lambda: None,
        lambda grad, scale, found_inf=None: dlkern.scale_grads(
            list(grad), scale, found_inf=found_inf
        ),
    ),
    Op(
        "update_loss_scale(Tensor(a!) loss_scale, Tensor(b!) growth_tracker, Tensor found_inf,"
        " Tensor(c!)? step=None, float growth_factor=2.0, float backoff_factor=0.5,"
        " int growth_interval=2000) -> ()",
        lambda: None,
    ),
]
