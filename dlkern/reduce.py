"""Reductions over axes, and their gradients.

The names are those of NumPy, so they shadow builtins in here and after ``from dlkern import *``.
"""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern

Axis = int | tuple[int, ...] | None


def sum(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Sum over axes; 0 over no elements.

    The elements are added in blocks and the block sums in pairs, so the rounding error grows like
    the logarithm of their number. The order depends on shape and strides alone.

    Parameters
    ----------
    x : array
        Any array with ``__dlpack__`` and any strides: float64, float32, float16, bfloat16 (16-bit
        types are summed in float32), int32 or int64 (summed in int64).
    axis : int, tuple of int or None
        The axes to reduce; None: all.
    keepdims : bool
        Keep the reduced axes with extent 1.
    out : array, optional
        Written instead of a new array; its shape may have the reduced axes or not. It has the
        dtype of `x`, or float32 for a 16-bit `x`, or int64 for an integer one.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        Dtype (int64 for integers), framework and device of `x`.

    Raises
    ------
    ValueError
        Wrong axis, shape or device, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.reduce(x, "sum", axis, keepdims, out, stream)


def mean(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Arithmetic mean over axes, of floating dtypes; NaN over no elements.

    Parameters and errors are those of :func:`sum`.
    """
    return _dlkern.reduce(x, "mean", axis, keepdims, out, stream)


def max(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Largest element over axes; NaN where there is one.

    Parameters and errors are those of :func:`sum`, but integers keep their dtype, and a reduced
    axis without elements is a ValueError.
    """
    return _dlkern.reduce(x, "max", axis, keepdims, out, stream)


def min(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Smallest element over axes; NaN where there is one.

    Parameters and errors are those of :func:`max`.
    """
    return _dlkern.reduce(x, "min", axis, keepdims, out, stream)


def argmax(
    x: Any,
    axis: int | None = None,
    *,
    keepdims: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Index of the first largest element along an axis; of the first NaN where there is one.

    Parameters
    ----------
    x : array
        As for :func:`sum`.
    axis : int or None
        One axis. None: the index is flat, into `x` in row-major order.
    keepdims : bool
        Keep the reduced axes with extent 1.
    out : array of int64 or int32, optional
        Written instead of a new array.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`sum`, as are the errors.

    Returns
    -------
    array of int64
        Framework and device of `x`.
    """
    return _dlkern.reduce(x, "argmax", axis, keepdims, out, stream)


def argmin(
    x: Any,
    axis: int | None = None,
    *,
    keepdims: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Index of the first smallest element along an axis; of the first NaN where there is one.

    Parameters and errors are those of :func:`argmax`.
    """
    return _dlkern.reduce(x, "argmin", axis, keepdims, out, stream)


def sum_backward(
    dy: Any,
    shape: tuple[int, ...] | None = None,
    axis: Axis = None,
    *,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`sum` with respect to its input: dy, repeated along the axes.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the result, with the reduced axes as extent 1 or
        without them: float64, float32, float16 or bfloat16.
    shape : tuple of int
        Shape of the forward's input. May be left out where `out` is given.
    axis : int, tuple of int or None
        As in the forward call.
    out : array, optional
        Receives dx.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`sum`, as are the errors.

    Returns
    -------
    array
        dx, of that shape and the dtype of `dy`.
    """
    return _dlkern.reduce_backward(dy, None, None, "sum", shape, axis, out, stream)


def mean_backward(
    dy: Any,
    shape: tuple[int, ...] | None = None,
    axis: Axis = None,
    *,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`mean`: dy divided by the number of elements, repeated along the axes.

    Parameters are those of :func:`sum_backward`.
    """
    return _dlkern.reduce_backward(dy, None, None, "mean", shape, axis, out, stream)


def max_backward(
    dy: Any, x: Any, y: Any, axis: Axis = None, *, out: Any = None, stream: Any = None
) -> Any:
    """Gradient of :func:`max` with respect to its input.

    Elements that tie for the maximum share dy evenly, as in ``torch.amax``; the others get 0. Where
    the maximum is NaN, so are the gradients.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the result, with the reduced axes as extent 1 or
        without them.
    x, y : array
        Input and result of the forward call, of the dtype of `dy`.
    axis : int, tuple of int or None
        As in the forward call.
    out : array, optional
        Receives dx; may be `x` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`sum`, as are the errors.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.reduce_backward(dy, x, y, "max", None, axis, out, stream)


def min_backward(
    dy: Any, x: Any, y: Any, axis: Axis = None, *, out: Any = None, stream: Any = None
) -> Any:
    """Gradient of :func:`min` with respect to its input.

    Parameters and rules are those of :func:`max_backward`.
    """
    return _dlkern.reduce_backward(dy, x, y, "min", None, axis, out, stream)
