"""Softmax and log-softmax over one axis, and their gradients."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def softmax(
    x: Any,
    axis: int = -1,
    *,
    scale: float = 1.0,
    mask: Any = None,
    causal: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Softmax over one axis, of scaled and masked logits.

    .. math:: y_i = \exp(l_i - m) / \sum_j \exp(l_j - m), \quad m = \max_j l_j, \quad
              l_i = \mathrm{scale} \, x_i + \mathrm{mask}_i

    A row of nothing but ``-inf`` gives NaN, or zeros where there is a mask. A row that holds
    ``+inf`` or NaN gives NaN.

    Parameters
    ----------
    x : array
        Any array with ``__dlpack__``, of rank 1 or more and any strides. float64, float32,
        float16 or bfloat16; 16-bit rows are computed in float32.
    axis : int
        The axis to normalise over.
    scale : float
        Positive.
    mask : array, optional
        Its shape broadcasts to that of `x`. bool: elements where it is False are left out. float64,
        float32, float16 or bfloat16: added, and elements where it is ``-inf`` are left out. What
        `x` holds in an element that is left out is not looked at; its y is 0.
    causal : bool
        Leaves out what comes after a row's own place: of rows and columns, the last two axes
        [Sq, Sk] aligned at their ends, row q keeps columns up to q + Sk - Sq. `axis` must be the
        last one.
    out : array, optional
        Written instead of a new array: shape and dtype of `x`; may be `x` itself.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        Shape, dtype, framework and device of `x`.

    Raises
    ------
    ValueError
        Wrong axis, scale, shape or device, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.softmax(x, axis, scale, mask, causal, False, out, stream)


def log_softmax(
    x: Any,
    axis: int = -1,
    *,
    scale: float = 1.0,
    mask: Any = None,
    causal: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Logarithm of softmax over one axis, without the loss of precision of ``log(softmax(x))``.

    .. math:: y_i = l_i - m - \log \sum_j \exp(l_j - m), \quad m = \max_j l_j, \quad
              l_i = \mathrm{scale} \, x_i + \mathrm{mask}_i

    Parameters and errors are those of :func:`softmax`. Elements that are left out have
    y = ``-inf``, and so do rows of nothing else.
    """
    return _dlkern.softmax(x, axis, scale, mask, causal, True, out, stream)


def softmax_backward(
    dy: Any, y: Any, axis: int = -1, *, scale: float = 1.0, out: Any = None, stream: Any = None
) -> Any:
    r"""Gradient of :func:`softmax` with respect to its input.

    .. math:: dx_i = \mathrm{scale} \; y_i \Big( dy_i - \sum_j dy_j y_j \Big)

    An element that the mask left out has y = 0. Wherever y is 0 the gradient is 0 and dy is not
    looked at, so that no mask is needed here. The gradient with respect to an additive mask is dx
    over `scale`, summed over the axes that the mask lacks.

    Parameters
    ----------
    dy, y : array
        Gradient of the loss with respect to the output, and the output itself: same shape and
        dtype.
    axis : int
        As in the forward call.
    scale : float
        As in the forward call.
    out : array, optional
        Receives dx; may be `dy` or `y` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`softmax`.

    Returns
    -------
    array
        dx, of the shape and dtype of `dy`.
    """
    return _dlkern.softmax_backward(dy, y, axis, scale, False, out, stream)


def log_softmax_backward(
    dy: Any, y: Any, axis: int = -1, *, scale: float = 1.0, out: Any = None, stream: Any = None
) -> Any:
    r"""Gradient of :func:`log_softmax` with respect to its input.

    .. math:: dx_i = \mathrm{scale} \Big( dy_i - \exp(y_i) \sum_j dy_j \Big)

    An element that the mask left out has y = ``-inf``. Wherever y is that the gradient is 0, and dy
    is not part of the sum. Parameters are those of :func:`softmax_backward`; `y` is the output of
    :func:`log_softmax`.
    """
    return _dlkern.softmax_backward(dy, y, axis, scale, True, out, stream)
