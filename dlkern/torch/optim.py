"""Optimizers whose step is one kernel for all parameters of a group.

Each has the options of its namesake in ``torch.optim`` that dlkern's steps know, and its state by
the same names, so that state_dicts are exchanged (the ``step`` of :class:`AdamW` excepted, which
is an int here and understood as a tensor when loaded). A learning rate may be a tensor on the
parameters' device, which is read when the kernel runs. Gradients are unscaled by
``torch.amp.GradScaler`` itself. Steps can be captured in a CUDA graph once one was made outside
of it, which makes the state; :class:`AdamW` and :class:`Adam` count on the device then, for
``capturable=True``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dlkern.torch._functions import functions as ops

Params = Iterable[Tensor] | Iterable[dict[str, Any]]

__all__ = ["SGD", "Adam", "AdamW", "Lion"]


class _Optimizer(torch.optim.Optimizer):
    #: What a group holds for the step; one that torch saved holds more.
    _options: tuple[str, ...] = ()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step; `closure`, if given, computes the loss anew and is called first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            devices: dict[torch.device, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    if p.grad.is_sparse:
                        raise RuntimeError("dlkern.torch.optim: sparse gradients are not supported")
                    devices[p.device].append(p)
            for params in devices.values():
                self._update(params, [p.grad for p in params], group)
        return loss

    def _update(self, params: list[Tensor], grads: list[Any], group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _of(self, group: dict[str, Any]) -> dict[str, Any]:
        return {name: group[name] for name in self._options}

    def _average(self, params: list[Tensor], name: str) -> list[Tensor]:
        """A state of each parameter that begins as zeros."""
        for p in params:
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(p)
        return [self.state[p][name] for p in params]


class SGD(_Optimizer):
    """``torch.optim.SGD``: see :func:`dlkern.sgd_step` for the formula."""

    _options = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr, "momentum": momentum, "dampening": dampening,
                "weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize,
            },
        )  # fmt: skip

    def _update(self, params: list[Tensor], grads: list[Any], group: dict[str, Any]) -> None:
        options = self._of(group)
        if not group["momentum"]:
            ops["sgd_step"](params, grads, **options)
            return
        buffers = [self.state[p].get("momentum_buffer") for p in params]
        for first in (True, False):  # of the parameters that have no buffer yet, and of the others
            at = [i for i, b in enumerate(buffers) if (b is None) is first]
            if at:
                chosen = [params[i] for i in at]
                ops["sgd_step"](
                    chosen, [grads[i] for i in at], self._buffers(chosen), first_step=first,
                    **options,
                )  # fmt: skip

    def _buffers(self, params: list[Tensor]) -> list[Tensor]:
        for p in params:
            if self.state[p].get("momentum_buffer") is None:
                self.state[p]["momentum_buffer"] = torch.empty_like(p)
        return [self.state[p]["momentum_buffer"] for p in params]


class AdamW(_Optimizer):
    """``torch.optim.AdamW``: see :func:`dlkern.adamw_step` for the formula."""

    _options = ("lr", "betas", "eps", "weight_decay", "maximize")
    _l2 = False

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                "amsgrad": amsgrad, "maximize": maximize, "capturable": capturable,
            },
        )  # fmt: skip

    def _update(self, params: list[Tensor], grads: list[Any], group: dict[str, Any]) -> None:
        count = self._count_on_device if group.get("capturable") else self._count
        options = self._of(group)
        for step, at in count(params):
            chosen = [params[i] for i in at]
            largest = self._average(chosen, "max_exp_avg_sq") if group["amsgrad"] else None
            ops["adamw_step"](
                chosen, [grads[i] for i in at], self._average(chosen, "exp_avg"),
                self._average(chosen, "exp_avg_sq"), largest, step=step, l2=self._l2, **options,
            )  # fmt: skip

    def _count(self, params: list[Tensor]) -> Iterable[tuple[int, list[int]]]:
        """The number of this step, and the indices of the parameters whose number it is."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{type(self).__name__} counts its steps on the host: pass capturable=True for "
                "steps in a CUDA graph"
            )
        steps: dict[int, list[int]] = defaultdict(list)
        for i, p in enumerate(params):
            self.state[p]["step"] = int(self.state[p].get("step", 0)) + 1
            steps[self.state[p]["step"]].append(i)
        return steps.items()

    def _count_on_device(self, params: list[Tensor]) -> Iterable[tuple[Tensor, list[int]]]:
        """As _count; parameters that began together share one tensor."""
        if any("step" not in self.state[p] for p in params):
            fresh = torch.zeros((), dtype=torch.int64, device=params[0].device)
            for p in params:
                self.state[p].setdefault("step", fresh)
        steps: dict[int, tuple[Tensor, list[int]]] = {}
        for i, p in enumerate(params):
            step = self.state[p]["step"]
            steps.setdefault(id(step), (step, []))[1].append(i)
        for step, _ in steps.values():
            step += 1
        return steps.values()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; numbers of steps on the device are shared again where they are the same."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            if not group.get("capturable"):
                continue
            shared: dict[tuple[torch.device, int], Tensor] = {}
            for p in group["params"]:
                if "step" in self.state[p]:
                    key = p.device, int(self.state[p]["step"])
                    if key not in shared:
                        shared[key] = torch.tensor(key[1], dtype=torch.int64, device=p.device)
                    self.state[p]["step"] = shared[key]


class Adam(AdamW):
    """``torch.optim.Adam``: the decay is added to the gradient."""

    _l2 = True

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, capturable=capturable
        )


class Lion(_Optimizer):
    """See :func:`dlkern.lion_step` for the formula."""

    _options = ("lr", "betas", "weight_decay", "maximize")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        )

    def _update(self, params: list[Tensor], grads: list[Any], group: dict[str, Any]) -> None:
        ops["lion_step"](params, grads, self._average(params, "exp_avg"), **self._of(group))
