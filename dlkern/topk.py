"""The k largest or smallest elements of each row, and their gradient."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def top_k(
    x: Any,
    k: int,
    axis: int = -1,
    *,
    largest: bool = True,
    sorted: bool = True,
    out: Any = None,
    out_indices: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """The k largest (smallest) elements along an axis and their indices, as ``torch.topk``.

    Of equal elements the first ones are taken, and stand first: unlike PyTorch's, the indices are
    unique. NaN is larger than any number; 0 and -0 are equal.

    Parameters
    ----------
    x : array
        Any array with ``__dlpack__`` and any strides: float64, float32, float16, bfloat16, int32 or
        int64; fewer than 2^31 elements along the axis.
    k : int
        0 to the extent of the axis.
    axis : int
    largest : bool
        False: the smallest.
    sorted : bool
        In falling (rising) order. False leaves the order free, but the same in every run.
    out : array, optional
        Receives the values.
    out_indices : array of int64 or int32, optional
        Receives the indices.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    values : array
        Of x's dtype, framework and device, and of its shape with k in place of the axis' extent.
    indices : array of int64
        Of the same shape.

    Raises
    ------
    ValueError
        Wrong axis, k, shape or device, or an output that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.top_k(x, k, axis, largest, sorted, out, out_indices, stream)


def top_k_backward(
    dy: Any,
    indices: Any,
    input_shape: tuple[int, ...] | None,
    axis: int = -1,
    *,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`top_k` with respect to its input: dy where elements were taken, else 0.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the values: float64, float32, float16 or bfloat16.
    indices : array of int64 or int32
        As :func:`top_k` returned them: distinct along the axis. Those out of range are left out.
    input_shape : tuple of int or None
        Shape of the forward's `x`. May be None where `out` is given.
    axis : int
        As in the forward call.
    out : array, optional
        Receives dx.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`top_k`, as are the errors.

    Returns
    -------
    array
        dx, of that shape and the dtype of `dy`.
    """
    return _dlkern.top_k_backward(dy, indices, input_shape, axis, out, stream)
