"""Optimizer steps on one parameter array, in place, as ``torch.optim`` computes them."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def sgd_step(
    param: Any,
    grad: Any,
    momentum_buffer: Any = None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    first_step: bool = False,
    stream: Any = None,
) -> None:
    r"""One step of stochastic gradient descent; `param` and `momentum_buffer` are changed.

    .. math::

        g &= grad + weight\_decay \cdot param \\
        b &= momentum \cdot b + (1 - dampening) \, g \\
        param &= param - lr \cdot (g + momentum \cdot b \text{ if nesterov else } b)

    Without momentum :math:`param = param - lr \cdot g`.

    Parameters
    ----------
    param : array
        float64, float32, float16 or bfloat16, of any shape and strides. JAX arrays, which must not
        change, are refused.
    grad : array
        Shape of `param`; its dtype or, beside a 16-bit `param`, float32. All arithmetic is in
        float32 (float64 for float64).
    momentum_buffer : array, optional
        Shape and dtypes as for `grad`. Needed where `momentum` is not 0, else left alone.
    lr, momentum, dampening, weight_decay : float
        Not negative, but for `dampening`.
    nesterov : bool
        Needs a momentum and no dampening.
    maximize : bool
        The gradient is negated.
    first_step : bool
        The buffer is set to the gradient, without dampening, whatever it held. (Without it a buffer
        of zeros is right where `dampening` is 0.)
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of param's framework.

    Raises
    ------
    ValueError
        Wrong shape, device or number, overlapping arrays, or one that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    _dlkern.sgd_step(
        param, grad, momentum_buffer, lr, momentum, dampening, weight_decay, nesterov, maximize,
        first_step, stream,
    )  # fmt: skip


def adamw_step(
    param: Any,
    grad: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    step: Any,
    maximize: bool = False,
    stream: Any = None,
) -> None:
    r"""One step of AdamW; `param`, `exp_avg` and `exp_avg_sq` are changed.

    .. math::

        param &= param \, (1 - lr \cdot weight\_decay) \\
        m &= \beta_1 m + (1 - \beta_1) g \\
        v &= \beta_2 v + (1 - \beta_2) g^2 \\
        param &= param - lr \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + eps}

    Parameters
    ----------
    param, grad : array
        As for :func:`sgd_step`, as are the errors.
    exp_avg, exp_avg_sq : array
        The averages m and v, zeros before the first step. Shape of `param`; both of its dtype or,
        beside a 16-bit `param`, float32.
    lr, eps, weight_decay : float
        Not negative.
    betas : (float, float)
        At least 0 and below 1.
    step : int, or array of one int32 or int64
        The number t of this step, from 1. An array lies on the device of `param` and is read when
        the kernel runs, for steps captured in a CUDA graph; it is not changed by the call.
    maximize : bool
        The gradient is negated.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`sgd_step`.

    References
    ----------
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.
    """
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise ValueError(f"adamw_step: betas is {betas!r}, expected two numbers") from None
    _dlkern.adamw_step(
        param, grad, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, weight_decay, step, maximize,
        stream,
    )  # fmt: skip
