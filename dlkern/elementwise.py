"""Element-wise arithmetic with broadcasting."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def add(
    a: Any, b: Any, *, alpha: float = 1.0, beta: float = 1.0, out: Any = None, stream: Any = None
) -> Any:
    """Weighted sum ``alpha * a + beta * b``, with the broadcasting rules of NumPy.

    A summand whose factor is 0 does not count, NaN neither.

    Parameters
    ----------
    a, b : array
        Arrays of one dtype, of any strides: float64, float32, float16, bfloat16 (16-bit types are
        added in float32), int32 or int64. Shapes are aligned at the last axis; an axis that is
        missing or has length 1 is repeated.
    alpha, beta : float
        Whole numbers where the arrays are integers.
    out : array, optional
        Written instead of a new array: the broadcast shape, dtype of `a`; may be `a` or `b` itself.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of a's framework.

    Returns
    -------
    array
        The broadcast shape; dtype, framework and device of `a`.

    Raises
    ------
    ValueError
        Shapes that do not broadcast, wrong device, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.add(a, b, alpha, beta, out, stream)


def add_backward(
    dy: Any,
    a_shape: tuple[int, ...] | None = None,
    b_shape: tuple[int, ...] | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_a: Any = None,
    out_b: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Gradients of :func:`add` with respect to `a` and `b`.

    ``alpha * dy`` and ``beta * dy``, each summed over the axes in which the array was repeated.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the result: float64, float32, float16 or bfloat16
        (16-bit types are summed in float32).
    a_shape, b_shape : tuple of int, optional
        Shapes of `a` and `b`. None, and no array to write to, leaves that gradient out.
    alpha, beta : float
        As in the forward call.
    out_a, out_b : array, optional
        Receive da and db; they have the shape of `a` and of `b`.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`add`, as are the errors.

    Returns
    -------
    (array, array)
        da and db, of the dtype, framework and device of `dy`; None for one that was left out.
    """
    da, db = _dlkern.add_backward(dy, a_shape, b_shape, out_a, out_b, stream)
    if da is not None and alpha != 1:
        da = _dlkern.add(da, da, alpha, 0.0, out_a, stream)
    if db is not None and beta != 1:
        db = _dlkern.add(db, db, beta, 0.0, out_b, stream)
    return da, db
