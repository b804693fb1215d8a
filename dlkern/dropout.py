"""Dropout, with a mask that is a function of a seed and an offset and is never stored."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def dropout(
    x: Any, p: float = 0.5, *, rng: Any, residual: Any = None, out: Any = None, stream: Any = None
) -> Any:
    r"""Sets elements to 0 with probability `p` and scales the others by ``1 / (1 - p)``.

    Whether an element is kept depends on `rng` and on its position in `x` in row-major order: the
    mask is the same on CPU and GPU, for every dtype and memory layout. ``p = 0`` keeps all,
    ``p = 1`` drops all. A dropped element is 0 whatever it was, NaN too.

    Parameters
    ----------
    x : array
        Any array with ``__dlpack__``, of any shape and strides. float64, float32, float16 or
        bfloat16.
    p : float
        Probability of an element to be dropped, from 0 to 1.
    rng : array of int64 or uint64, shape (2,)
        Seed and offset, on the device of `x`. Use another offset for every call that is to have
        another mask. They are read when the kernel runs: a captured CUDA graph draws a new mask in
        each replay if the offset is changed in between. Not changed by the call.
    residual : array, optional
        Added to the result, which is rounded once: shape and dtype of `x`. Its gradient is that of
        the result.
    out : array, optional
        Written instead of a new array: shape and dtype of `x`; may be `x` or `residual` itself.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        Shape, dtype, framework and device of `x`.

    Raises
    ------
    ValueError
        `p` out of range, wrong shape or device, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.

    Notes
    -----
    Element i is dropped where its 32 random bits are below ``p * 2**32``. Their upper half is
    half-word ``i % 8`` of Philox4x32-10 with the seed as key and the counter ``(i // 8, offset)``,
    their lower half that of the counter ``(i // 8 + 2**63, offset)``.

    References
    ----------
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    return _dlkern.dropout(x, rng, residual, p, out, stream)


def dropout_backward(
    dy: Any, p: float = 0.5, *, rng: Any, out: Any = None, stream: Any = None
) -> Any:
    """Gradient of :func:`dropout`: `dy` with the same mask and scale.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the output.
    p : float
    rng : array
        As in the forward call, with the same values: the mask is made again from them.
    out : array, optional
        Receives dx; may be `dy` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`dropout`.

    Returns
    -------
    array
        dx, of the shape and dtype of `dy`.
    """
    return _dlkern.dropout_backward(dy, rng, p, out, stream)
