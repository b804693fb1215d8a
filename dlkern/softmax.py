"""Softmax and log-softmax over one axis, and their gradients."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def softmax(x: Any, axis: int = -1, *, out: Any = None, stream: Any = None) -> Any:
    r"""Softmax over one axis.

    .. math:: y_i = \exp(x_i - m) / \sum_j \exp(x_j - m), \quad m = \max_j x_j

    A row that is all ``-inf``, or that holds ``+inf`` or NaN, gives NaN.

    Parameters
    ----------
    x : array
        Any array with ``__dlpack__``, of rank 1 or more and any strides. float64, float32,
        float16 or bfloat16; 16-bit rows are summed in float32.
    axis : int
        The axis to normalise over.
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
        Wrong axis, shape or device, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.softmax(x, axis, False, out, stream)


def log_softmax(x: Any, axis: int = -1, *, out: Any = None, stream: Any = None) -> Any:
    r"""Logarithm of softmax over one axis, without the loss of precision of ``log(softmax(x))``.

    .. math:: y_i = x_i - m - \log \sum_j \exp(x_j - m), \quad m = \max_j x_j

    Parameters and errors are those of :func:`softmax`.
    """
    return _dlkern.softmax(x, axis, True, out, stream)


def softmax_backward(
    dy: Any, y: Any, axis: int = -1, *, out: Any = None, stream: Any = None
) -> Any:
    r"""Gradient of :func:`softmax` with respect to its input.

    .. math:: dx_i = y_i (dy_i - \sum_j dy_j y_j)

    Parameters
    ----------
    dy, y : array
        Gradient of the loss with respect to the output, and the output itself: same shape and
        dtype.
    axis : int
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
    return _dlkern.softmax_backward(dy, y, axis, False, out, stream)


def log_softmax_backward(
    dy: Any, y: Any, axis: int = -1, *, out: Any = None, stream: Any = None
) -> Any:
    r"""Gradient of :func:`log_softmax` with respect to its input.

    .. math:: dx_i = dy_i - \exp(y_i) \sum_j dy_j

    Parameters are those of :func:`softmax_backward`; `y` is the output of :func:`log_softmax`.
    """
    return _dlkern.softmax_backward(dy, y, axis, True, out, stream)
