"""Optimizer steps in place, as ``torch.optim`` computes them, and what mixed precision needs.

Each function takes one array, or a list of them which is updated at once: on a GPU by one kernel
for a few hundred arrays. None waits for the device. Numbers that change from step to step may lie
in its memory, so that a step captured in a CUDA graph replays with new ones::

    norm, grad_scale, found_inf = dlkern.grad_norm(grads, loss_scale=scale, max_norm=1.0)
    dlkern.adamw_step(params, grads, exp_avg, exp_avg_sq, lr=lr, step=step, copy=halves,
                      grad_scale=grad_scale, found_inf=found_inf)
    dlkern.update_loss_scale(scale, growth_tracker, found_inf, step=step)
"""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def sgd_step(
    param: Any,
    grad: Any,
    momentum_buffer: Any = None,
    *,
    lr: Any,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    first_step: bool = False,
    copy: Any = None,
    grad_scale: Any = None,
    found_inf: Any = None,
    stream: Any = None,
) -> None:
    r"""One step of stochastic gradient descent; `param` and `momentum_buffer` are changed.

    .. math::

        g &= grad\_scale \cdot grad + weight\_decay \cdot param \\
        b &= momentum \cdot b + (1 - dampening) \, g \\
        param &= param - lr \cdot (g + momentum \cdot b \text{ if nesterov else } b)

    Without momentum :math:`param = param - lr \cdot g`.

    Parameters
    ----------
    param : array or list of arrays
        float64, float32, float16 or bfloat16, of any shape and strides. JAX arrays, which must not
        change, are refused. Arrays of a list may differ in shape and dtype; each other argument of
        arrays is then a list as long.
    grad : array or list of arrays
        Shape of `param`. Its dtype or, beside a 16-bit `param`, float32, or beside a float32 one
        float16 or bfloat16. All arithmetic is in float32 (float64 for float64).
    momentum_buffer : array or list of arrays, optional
        Shape of `param`; its dtype or, beside a 16-bit `param`, float32. Needed where `momentum` is
        not 0, else left alone.
    lr : float, or array of one float32 or float64
        Not negative. An array lies on the device of `param` and is read when the kernel runs.
    momentum, dampening, weight_decay : float
        Not negative, but for `dampening`.
    nesterov : bool
        Needs a momentum and no dampening.
    maximize : bool
        The gradient is negated.
    first_step : bool
        The buffer is set to the gradient, without dampening, whatever it held. (Without it a buffer
        of zeros is right where `dampening` is 0.)
    copy : array or list of arrays, optional
        float16 or bfloat16, of the shape of `param`, which is float32: receives the new values of
        `param`, rounded. (`param` then holds the master weights.)
    grad_scale : array of one float32 or float64, optional
        On the device of `param`: each gradient is multiplied by it. See :func:`grad_norm`.
    found_inf : array of one float32 or float64, optional
        On the device of `param`: where it is not 0, nothing is changed.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of param's framework.

    Raises
    ------
    ValueError
        Wrong shape, device or number, lists of different lengths, overlapping arrays, or one that
        cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    _dlkern.sgd_step(
        param, grad, momentum_buffer, copy, lr, momentum, dampening, weight_decay, nesterov,
        maximize, first_step, grad_scale, found_inf, stream,
    )  # fmt: skip


def adamw_step(
    param: Any,
    grad: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    max_exp_avg_sq: Any = None,
    *,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    step: Any,
    maximize: bool = False,
    l2: bool = False,
    copy: Any = None,
    grad_scale: Any = None,
    found_inf: Any = None,
    stream: Any = None,
) -> None:
    r"""One step of AdamW, or of Adam; `param` and the averages are changed.

    .. math::

        g &= grad\_scale \cdot grad \\
        param &= param \, (1 - lr \cdot weight\_decay) \\
        m &= \beta_1 m + (1 - \beta_1) g \\
        v &= \beta_2 v + (1 - \beta_2) g^2 \\
        param &= param - lr \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + eps}

    Parameters
    ----------
    param, grad : array or list of arrays
        As for :func:`sgd_step`, as are the errors.
    exp_avg, exp_avg_sq : array or list of arrays
        The averages m and v, zeros before the first step. Shape of `param`; both of its dtype or,
        beside a 16-bit `param`, float32.
    max_exp_avg_sq : array or list of arrays, optional
        As `exp_avg_sq`: the largest v so far, which takes its place in the last line (AMSGrad).
    lr, eps, weight_decay : float
        Not negative. `lr` may be an array as for :func:`sgd_step`.
    betas : (float, float)
        At least 0 and below 1.
    step : int, or array of one int32 or int64
        The number t of this step, from 1. An array lies on the device of `param` and is read when
        the kernel runs, for steps captured in a CUDA graph; it is not changed by the call. (See
        :func:`update_loss_scale`.)
    maximize : bool
        The gradient is negated.
    l2 : bool
        Adam instead of AdamW: :math:`weight\_decay \cdot param` is added to g, and `param` does not
        decay on its own.
    copy, grad_scale, found_inf, stream
        As for :func:`sgd_step`.

    References
    ----------
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015. Loshchilov and Hutter,
    "Decoupled Weight Decay Regularization", 2019. Reddi, Kale and Kumar, "On the Convergence of
    Adam and Beyond", 2018.
    """
    beta1, beta2 = _two_betas("adamw_step", betas)
    _dlkern.adamw_step(
        param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, copy, lr, beta1, beta2, eps, weight_decay,
        step, maximize, l2, grad_scale, found_inf, stream,
    )  # fmt: skip


def lion_step(
    param: Any,
    grad: Any,
    exp_avg: Any,
    *,
    lr: Any = 1e-4,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    maximize: bool = False,
    copy: Any = None,
    grad_scale: Any = None,
    found_inf: Any = None,
    stream: Any = None,
) -> None:
    r"""One step of Lion; `param` and `exp_avg` are changed.

    .. math::

        g &= grad\_scale \cdot grad \\
        param &= param \, (1 - lr \cdot weight\_decay)
                 - lr \operatorname{sign}(\beta_1 m + (1 - \beta_1) g) \\
        m &= \beta_2 m + (1 - \beta_2) g

    Parameters
    ----------
    param, grad : array or list of arrays
        As for :func:`sgd_step`, as are the errors.
    exp_avg : array or list of arrays
        The average m, zeros before the first step. Shape of `param`; its dtype or, beside a 16-bit
        `param`, float32.
    lr, weight_decay : float
        Not negative. `lr` may be an array as for :func:`sgd_step`.
    betas : (float, float)
        At least 0 and below 1.
    maximize : bool
        The gradient is negated.
    copy, grad_scale, found_inf, stream
        As for :func:`sgd_step`.

    References
    ----------
    Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
    """
    beta1, beta2 = _two_betas("lion_step", betas)
    _dlkern.lion_step(
        param, grad, exp_avg, copy, lr, beta1, beta2, weight_decay, maximize, grad_scale, found_inf,
        stream,
    )  # fmt: skip


def grad_norm(
    grad: Any,
    *,
    max_norm: float | None = None,
    ord: float = 2.0,
    loss_scale: Any = None,
    out: Any = None,
    out_grad_scale: Any = None,
    out_found_inf: Any = None,
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    r"""The norm of all gradients together, and what a step needs to be told of it.

    .. math::

        norm &= \Big( \textstyle\sum |grad|^{ord} \Big)^{1 / ord} \, / \, loss\_scale \\
        grad\_scale &= \min(1, max\_norm / (norm + 10^{-6})) \, / \, loss\_scale

    Parameters
    ----------
    grad : array or list of arrays
        float64, float32, float16 or bfloat16, of any shapes and strides. Powers are summed in
        float32 (float64 for float64) within parts of some thousand elements and in float64 beyond,
        in a fixed order.
    max_norm : float, optional
        What the norm is clipped to; default: it is not.
    ord : float
        Order of the norm, positive: 2 is the Euclidean norm; with infinity it is the largest
        ``|grad|``, as `norm_type` of ``torch.nn.utils.clip_grad_norm_``.
    loss_scale : array of one float32 or float64, optional
        On the device of `grad`, read when the kernel runs: the loss was multiplied by it.
    out, out_grad_scale, out_found_inf : array, optional
        Where to write the results. float32, or float64 where the first gradient is.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`sgd_step`.

    Returns
    -------
    norm : array of shape ()
        Of the gradients of the loss itself, before they are clipped.
    grad_scale : array of shape ()
        For the argument of that name of the steps, which clips and unscales.
    found_inf : array of shape ()
        1 where the norm is not finite, since a gradient is not, or since powers overflow; else 0.

    Raises
    ------
    ValueError
        Wrong shape, device or number, or an empty list.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.grad_norm(
        grad, loss_scale, max_norm, ord, out, out_grad_scale, out_found_inf, stream
    )


def scale_grads(grad: Any, scale: Any, *, found_inf: Any = None, stream: Any = None) -> None:
    """Multiplies gradients by a number in device memory, in place, and looks for inf and NaN.

    The steps take `grad_scale` and need no such pass of its own; it is for gradients that are
    looked at in between.

    Parameters
    ----------
    grad : array or list of arrays
        float64, float32, float16 or bfloat16, of any shapes and strides.
    scale : array of one float32 or float64
        On the device of `grad`, read when the kernel runs.
    found_inf : array of one float32 or float64, optional
        Set to 1 where a product, before it is rounded to 16 bits, is not finite; else left alone.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`sgd_step`, as are the errors.
    """
    _dlkern.scale_grads(grad, scale, found_inf, stream)


def update_loss_scale(
    loss_scale: Any,
    growth_tracker: Any,
    found_inf: Any,
    *,
    step: Any = None,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    stream: Any = None,
) -> None:
    """After a step: `loss_scale` and `growth_tracker` as ``torch.amp.GradScaler`` changes them.

    Where `found_inf` is not 0, the scale is multiplied by `backoff_factor` and the tracker becomes
    0. Else the tracker is counted up; when it reaches `growth_interval` it becomes 0 and the scale
    is multiplied by `growth_factor`, unless that is infinite.

    Parameters
    ----------
    loss_scale, found_inf : array of one float32 or float64
    growth_tracker : array of one int32 or int64
    step : array of one int32 or int64, optional
        The number of the next step: counted up where `found_inf` is 0, since else the step was not
        made.
    growth_factor, backoff_factor : float
        Not negative.
    growth_interval : int
        At least 1.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`sgd_step`, as are the errors.
    """
    _dlkern.update_loss_scale(
        loss_scale, growth_tracker, found_inf, step, growth_factor, backoff_factor,
        growth_interval, stream,
    )  # fmt: skip


def _two_betas(op: str, betas: tuple[float, float]) -> tuple[float, float]:
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise ValueError(f"{op}: betas is {betas!r}, expected two numbers") from None
    return beta1, beta2
