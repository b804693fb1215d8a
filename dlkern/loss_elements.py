"""Element-wise losses and their gradients."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def mse_loss(
    x: Any,
    target: Any,
    *,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Squared error.

    .. math:: \mathrm{loss} = (x - t)^2

    Parameters
    ----------
    x : array
        Predictions, any shape and strides. float64, float32, float16 or bfloat16; 16-bit ones are
        computed in float32.
    target : array
        Shape and dtype of `x`.
    reduction : str
        "none": the losses of all elements. "sum": their sum. "mean": their sum over their number.
    out : array, optional
        Written instead of a new array: shape and dtype of `x`, or () for "sum" and "mean", which
        may be float32 beside a 16-bit `x`.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        The loss, in x's dtype.

    Raises
    ------
    ValueError
        Wrong shape, reduction, number or device.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.element_loss(x, target, None, None, "mse_loss", reduction, 1.0, out, stream)


def mse_loss_backward(
    dloss: Any,
    x: Any,
    target: Any,
    *,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`mse_loss` with respect to `x`.

    .. math:: dx = s \; 2 (x - t)

    where s is the element's dloss for "none", dloss for "sum", and dloss over the number of
    elements for "mean". That with respect to `target` is its negative.

    Parameters
    ----------
    dloss : array
        Gradient with respect to the loss, of its shape.
    x, target, reduction
        As in the forward call.
    out : array, optional
        Receives dx; may be `x` or `target` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`mse_loss`.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.element_loss_backward(
        dloss, x, target, None, None, "mse_loss", reduction, 1.0, out, stream
    )


def l1_loss(
    x: Any,
    target: Any,
    *,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Absolute error.

    .. math:: \mathrm{loss} = |x - t|

    Parameters
    ----------
    x : array
        Predictions, any shape and strides. float64, float32, float16 or bfloat16; 16-bit ones are
        computed in float32.
    target : array
        Shape and dtype of `x`.
    reduction : str
        "none": the losses of all elements. "sum": their sum. "mean": their sum over their number.
    out : array, optional
        Written instead of a new array: shape and dtype of `x`, or () for "sum" and "mean", which
        may be float32 beside a 16-bit `x`.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        The loss, in x's dtype.

    Raises
    ------
    ValueError
        Wrong shape, reduction, number or device.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.element_loss(x, target, None, None, "l1_loss", reduction, 1.0, out, stream)


def l1_loss_backward(
    dloss: Any,
    x: Any,
    target: Any,
    *,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`l1_loss` with respect to `x`.

    .. math:: dx = s \; \mathrm{sign}(x - t)

    where s is the element's dloss for "none", dloss for "sum", and dloss over the number of
    elements for "mean". That with respect to `target` is its negative.

    Parameters
    ----------
    dloss : array
        Gradient with respect to the loss, of its shape.
    x, target, reduction
        As in the forward call.
    out : array, optional
        Receives dx; may be `x` or `target` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`l1_loss`.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.element_loss_backward(
        dloss, x, target, None, None, "l1_loss", reduction, 1.0, out, stream
    )


def smooth_l1_loss(
    x: Any,
    target: Any,
    *,
    beta: float = 1.0,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Squared error near 0, absolute error beyond.

    .. math:: \mathrm{loss} = \begin{cases} d^2 / (2 \beta) & |d| < \beta \\
              |d| - \beta / 2 & \text{otherwise} \end{cases}, \quad d = x - t

    Parameters
    ----------
    x : array
        Predictions, any shape and strides. float64, float32, float16 or bfloat16; 16-bit ones are
        computed in float32.
    target : array
        Shape and dtype of `x`.
    beta : float
        Not negative; with 0 this is :func:`l1_loss`.
    reduction : str
        "none": the losses of all elements. "sum": their sum. "mean": their sum over their number.
    out : array, optional
        Written instead of a new array: shape and dtype of `x`, or () for "sum" and "mean", which
        may be float32 beside a 16-bit `x`.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        The loss, in x's dtype.

    Raises
    ------
    ValueError
        Wrong shape, reduction, number or device.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.element_loss(
        x, target, None, None, "smooth_l1_loss", reduction, beta, out, stream
    )


def smooth_l1_loss_backward(
    dloss: Any,
    x: Any,
    target: Any,
    *,
    beta: float = 1.0,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`smooth_l1_loss` with respect to `x`.

    .. math:: dx = s \; \max(-1, \min(1, (x - t) / \beta))

    where s is the element's dloss for "none", dloss for "sum", and dloss over the number of
    elements for "mean". That with respect to `target` is its negative.

    Parameters
    ----------
    dloss : array
        Gradient with respect to the loss, of its shape.
    x, target, beta, reduction
        As in the forward call.
    out : array, optional
        Receives dx; may be `x` or `target` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`smooth_l1_loss`.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.element_loss_backward(
        dloss, x, target, None, None, "smooth_l1_loss", reduction, beta, out, stream
    )


def huber_loss(
    x: Any,
    target: Any,
    *,
    delta: float = 1.0,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Squared error near 0, absolute error beyond: ``delta`` times :func:`smooth_l1_loss`.

    .. math:: \mathrm{loss} = \begin{cases} d^2 / 2 & |d| \le \delta \\
              \delta (|d| - \delta / 2) & \text{otherwise} \end{cases}, \quad d = x - t

    Parameters
    ----------
    x : array
        Predictions, any shape and strides. float64, float32, float16 or bfloat16; 16-bit ones are
        computed in float32.
    target : array
        Shape and dtype of `x`.
    delta : float
        Positive.
    reduction : str
        "none": the losses of all elements. "sum": their sum. "mean": their sum over their number.
    out : array, optional
        Written instead of a new array: shape and dtype of `x`, or () for "sum" and "mean", which
        may be float32 beside a 16-bit `x`.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        The loss, in x's dtype.

    Raises
    ------
    ValueError
        Wrong shape, reduction, number or device.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.element_loss(x, target, None, None, "huber_loss", reduction, delta, out, stream)


def huber_loss_backward(
    dloss: Any,
    x: Any,
    target: Any,
    *,
    delta: float = 1.0,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`huber_loss` with respect to `x`.

    .. math:: dx = s \; \max(-\delta, \min(\delta, x - t))

    where s is the element's dloss for "none", dloss for "sum", and dloss over the number of
    elements for "mean". That with respect to `target` is its negative.

    Parameters
    ----------
    dloss : array
        Gradient with respect to the loss, of its shape.
    x, target, delta, reduction
        As in the forward call.
    out : array, optional
        Receives dx; may be `x` or `target` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`huber_loss`.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.element_loss_backward(
        dloss, x, target, None, None, "huber_loss", reduction, delta, out, stream
    )


def binary_cross_entropy_with_logits(
    x: Any,
    target: Any,
    *,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Cross entropy of binary targets, from logits: no digits cancel.

    .. math:: \mathrm{loss} = -w \left[ p \, t \log \sigma(x) + (1 - t) \log (1 - \sigma(x)) \right]

    Parameters
    ----------
    x : array
        Predictions, any shape and strides. float64, float32, float16 or bfloat16; 16-bit ones are
        computed in float32.
    target : array
        Shape and dtype of `x`; numbers between 0 and 1.
    weight, pos_weight : array, optional
        w and p, 1 where left out: dtype of `x`, shapes that broadcast to its shape.
    reduction : str
        "none": the losses of all elements. "sum": their sum. "mean": their sum over their number.
    out : array, optional
        Written instead of a new array: shape and dtype of `x`, or () for "sum" and "mean", which
        may be float32 beside a 16-bit `x`.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        The loss, in x's dtype.

    Raises
    ------
    ValueError
        Wrong shape, reduction, number or device.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.element_loss(
        x,
        target,
        weight,
        pos_weight,
        "binary_cross_entropy_with_logits",
        reduction,
        1.0,
        out,
        stream,
    )


def binary_cross_entropy_with_logits_backward(
    dloss: Any,
    x: Any,
    target: Any,
    *,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`binary_cross_entropy_with_logits` with respect to `x`.

    .. math:: dx = s \; w \left[ (1 - t) \, \sigma(x) - p \, t \, \sigma(-x) \right]

    where s is the element's dloss for "none", dloss for "sum", and dloss over the number of
    elements for "mean".

    Parameters
    ----------
    dloss : array
        Gradient with respect to the loss, of its shape.
    x, target, weight, pos_weight, reduction
        As in the forward call.
    out : array, optional
        Receives dx; may be `x` or `target` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`binary_cross_entropy_with_logits`.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.element_loss_backward(
        dloss,
        x,
        target,
        weight,
        pos_weight,
        "binary_cross_entropy_with_logits",
        reduction,
        1.0,
        out,
        stream,
    )


def kl_div(
    x: Any,
    target: Any,
    *,
    log_target: bool = False,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Kullback-Leibler divergence from log-probabilities `x` to probabilities.

    For the mean over a batch take "sum" and divide by its size.

    .. math:: \mathrm{loss} = t (\log t - x), \quad 0 \text{ where } t = 0

    Parameters
    ----------
    x : array
        Predictions, any shape and strides. float64, float32, float16 or bfloat16; 16-bit ones are
        computed in float32.
    target : array
        Probabilities, shape and dtype of `x`.
    log_target : bool
        `target` is a logarithm as well: loss = exp(t) (t - x).
    reduction : str
        "none": the losses of all elements. "sum": their sum. "mean": their sum over their number.
    out : array, optional
        Written instead of a new array: shape and dtype of `x`, or () for "sum" and "mean", which
        may be float32 beside a 16-bit `x`.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        The loss, in x's dtype.

    Raises
    ------
    ValueError
        Wrong shape, reduction, number or device.
    TypeError
        Wrong dtype, or not an array.
    """
    kind = "kl_div_log_target" if log_target else "kl_div"
    return _dlkern.element_loss(x, target, None, None, kind, reduction, 1.0, out, stream)


def kl_div_backward(
    dloss: Any,
    x: Any,
    target: Any,
    *,
    log_target: bool = False,
    reduction: str = "mean",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Gradient of :func:`kl_div` with respect to `x`.

    .. math:: dx = s \; (-t), \quad \text{or } -e^t \text{ with log\_target}

    where s is the element's dloss for "none", dloss for "sum", and dloss over the number of
    elements for "mean".

    Parameters
    ----------
    dloss : array
        Gradient with respect to the loss, of its shape.
    x, target, log_target, reduction
        As in the forward call.
    out : array, optional
        Receives dx; may be `x` or `target` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`kl_div`.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    kind = "kl_div_log_target" if log_target else "kl_div"
    return _dlkern.element_loss_backward(
        dloss, x, target, None, None, kind, reduction, 1.0, out, stream
    )
