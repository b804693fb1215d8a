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
    return _dlkern.reduce(x, "sum", axis, None, keepdims, out, stream)


def mean(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Arithmetic mean over axes, of floating dtypes; NaN over no elements.

    Parameters and errors are those of :func:`sum`.
    """
    return _dlkern.reduce(x, "mean", axis, None, keepdims, out, stream)


def max(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Largest element over axes; NaN where there is one.

    Parameters and errors are those of :func:`sum`, but integers keep their dtype, and a reduced
    axis without elements is a ValueError.
    """
    return _dlkern.reduce(x, "max", axis, None, keepdims, out, stream)


def min(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Smallest element over axes; NaN where there is one.

    Parameters and errors are those of :func:`max`.
    """
    return _dlkern.reduce(x, "min", axis, None, keepdims, out, stream)


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
    return _dlkern.reduce(x, "argmax", axis, None, keepdims, out, stream)


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
    return _dlkern.reduce(x, "argmin", axis, None, keepdims, out, stream)


def prod(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Product over axes; 1 over no elements.

    Parameters, dtypes of the result and errors are those of :func:`sum`; integers are multiplied
    modulo 2^64.
    """
    return _dlkern.reduce(x, "prod", axis, None, keepdims, out, stream)


def logsumexp(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    r"""Logarithm of the sum of exponentials over axes, without overflow; -inf over no elements.

    .. math:: y = m + \log \sum_j \exp(x_j - m), \quad m = \max_j x_j

    ``+inf`` where there is such an element and no NaN. Parameters, dtypes of the result and errors
    are those of :func:`mean`.
    """
    return _dlkern.reduce(x, "logsumexp", axis, None, keepdims, out, stream)


def any(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Whether an element over axes is true; False over no elements.

    Parameters
    ----------
    x : array of bool
        True where a byte is not 0.
    axis : int, tuple of int or None
        The axes to reduce; None: all.
    keepdims : bool
        Keep the reduced axes with extent 1.
    out : array of bool, optional
        Written instead of a new array.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`sum`, as are the errors.

    Returns
    -------
    array of bool
        Framework and device of `x`.
    """
    return _dlkern.reduce(x, "any", axis, None, keepdims, out, stream)


def all(
    x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, stream: Any = None
) -> Any:
    """Whether all elements over axes are true; True over no elements.

    Parameters and errors are those of :func:`any`.
    """
    return _dlkern.reduce(x, "all", axis, None, keepdims, out, stream)


def vector_norm(
    x: Any,
    axis: Axis = None,
    *,
    ord: float = 2,
    keepdims: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Norm of the elements along axes, as ``torch.linalg.vector_norm``.

    (sum |x|^ord)^(1 / ord); max |x| for ``ord=inf``, min |x| for ``-inf`` and the number of nonzero
    elements for 0. Powers are not rescaled: one that overflows makes the norm infinite.

    Parameters
    ----------
    x : array
        As for :func:`mean`.
    axis : int, tuple of int or None
        The axes to reduce; None: all.
    ord : float
        Any number but NaN.
    keepdims : bool
        Keep the reduced axes with extent 1.
    out, stream : optional
        As for :func:`sum`, as are the errors. With a negative or infinite `ord` a reduced axis
        without elements is a ValueError.

    Returns
    -------
    array
        Dtype, framework and device of `x`.
    """
    return _dlkern.reduce(x, "vector_norm", axis, ord, keepdims, out, stream)


def var(
    x: Any,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Variance over axes: sum (x - mean)^2 / max(n - correction, 0) over n elements.

    Of differences from elements nearby, combined by the formula of Chan, Golub and LeVeque (1983):
    no digits cancel where the mean is large.

    Parameters
    ----------
    x : array
        As for :func:`mean`.
    axis : int, tuple of int or None
        The axes to reduce; None: all.
    correction : float
        0 as in NumPy; 1, which ``torch.var`` has, for the unbiased estimate from a sample.
    keepdims : bool
        Keep the reduced axes with extent 1.
    out, stream : optional
        As for :func:`sum`, as are the errors.

    Returns
    -------
    array
        Dtype, framework and device of `x`; NaN over no elements.
    """
    return _dlkern.reduce(x, "var", axis, correction, keepdims, out, stream)


def std(
    x: Any,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Standard deviation over axes: the root of :func:`var`, whose parameters it has."""
    return _dlkern.reduce(x, "std", axis, correction, keepdims, out, stream)


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
    return _dlkern.reduce_backward(dy, None, None, "sum", shape, axis, None, out, stream)


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
    return _dlkern.reduce_backward(dy, None, None, "mean", shape, axis, None, out, stream)


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
    return _dlkern.reduce_backward(dy, x, y, "max", None, axis, None, out, stream)


def min_backward(
    dy: Any, x: Any, y: Any, axis: Axis = None, *, out: Any = None, stream: Any = None
) -> Any:
    """Gradient of :func:`min` with respect to its input.

    Parameters and rules are those of :func:`max_backward`.
    """
    return _dlkern.reduce_backward(dy, x, y, "min", None, axis, None, out, stream)


def prod_backward(
    dy: Any, x: Any, axis: Axis = None, *, out: Any = None, stream: Any = None
) -> Any:
    """Gradient of :func:`prod` with respect to its input: dy times the product of the others.

    Right where elements are 0: with one of them it alone has a gradient, with more none has.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the result, with the reduced axes as extent 1 or
        without them.
    x : array
        Input of the forward call, of the dtype of `dy`.
    axis, out, stream : optional
        As for :func:`max_backward`, as are the errors.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.reduce_backward(dy, x, None, "prod", None, axis, None, out, stream)


def logsumexp_backward(
    dy: Any, x: Any, y: Any, axis: Axis = None, *, out: Any = None, stream: Any = None
) -> Any:
    """Gradient of :func:`logsumexp` with respect to its input: dy exp(x - y), 0 where y is -inf.

    Parameters and errors are those of :func:`max_backward`. `y` is rounded to its dtype: the
    gradient of 16-bit tensors is as exact as that leaves it.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.reduce_backward(dy, x, y, "logsumexp", None, axis, None, out, stream)


def vector_norm_backward(
    dy: Any,
    x: Any,
    y: Any,
    axis: Axis = None,
    *,
    ord: float = 2,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`vector_norm`: dy sign(x) (|x| / y)^(ord - 1).

    0 where x or y is 0 (a subgradient), and for ``ord=0``. For an infinite `ord` the elements whose
    magnitude is y share dy evenly.

    Parameters
    ----------
    dy, x, y, axis, out, stream
        As for :func:`max_backward`, as are the errors.
    ord : float
        As in the forward call.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.reduce_backward(dy, x, y, "vector_norm", None, axis, ord, out, stream)


def var_backward(
    dy: Any,
    x: Any,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`var`: dy 2 (x - mean) / max(n - correction, 0).

    Parameters
    ----------
    dy, x, axis, out, stream
        As for :func:`prod_backward`, as are the errors.
    correction : float
        As in the forward call.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.reduce_backward(dy, x, None, "var", None, axis, correction, out, stream)


def std_backward(
    dy: Any,
    x: Any,
    y: Any,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`std`: dy (x - mean) / (y max(n - correction, 0)), 0 where y is 0.

    Parameters
    ----------
    dy, x, y, axis, out, stream
        As for :func:`max_backward`, as are the errors.
    correction : float
        As in the forward call.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    return _dlkern.reduce_backward(dy, x, y, "std", None, axis, correction, out, stream)
