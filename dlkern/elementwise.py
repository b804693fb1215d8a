"""Element-wise arithmetic with broadcasting."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def add(
    a: Any, b: Any, *, alpha: float = 1.0, beta: float = 1.0, out: Any = None, stream: Any = None
) -> Any:
    """Weighted sum ``alpha * a + beta * b``, with the broadcasting rules of NumPy.

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
