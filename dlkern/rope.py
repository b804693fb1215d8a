"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def rope(
    x: Any,
    *,
    cos: Any = None,
    sin: Any = None,
    positions: Any = None,
    offset: int = 0,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    layout: str = "BSHD",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Rotary position embedding of queries, keys, or both at once.

    .. math::
        (a, b) \to (a \cos t - b \sin t,\; b \cos t + a \sin t), \quad
        t = \mathrm{position} \cdot \mathrm{base}^{-2 i / R}

    for pair i of the first R elements of each head; the others are copied.

    Parameters
    ----------
    x : array, or list of array
        Shape [B, S, H, D] or [B, H, S, D] by `layout`, or the same without B; those of a list may
        differ in H only. float64, float32, float16 or bfloat16, any strides; computed in float32
        (float64 for float64).
    cos, sin : array, shape (P, R / 2), optional
        Cosines and sines of each position's angles, of x's dtype or the one it is computed in.
        Without them they are computed, exactly reduced.
    positions : array of int32 or int64, shape (S,) or (B, S), optional
        Default: `offset`, `offset` + 1, ... One without a row in `cos` fails on the CPU; on a GPU
        it gives NaN, and fails in debug mode.
    offset : int
        The first position, where `positions` is not given.
    base : float
        Not used beside `cos` and `sin`.
    rotary_dim : int, optional
        R: even, at most D; default: D.
    interleaved : bool
        Pairs are neighbours (GPT-J), in place of elements i and i + R / 2 (GPT-NeoX, Llama).
    layout : {"BSHD", "BHSD"}
    out : array, or list of array, optional
        Written instead of new arrays: shape and dtype of each `x`; may be `x` itself.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array, or tuple of array
        Shape, dtype, framework and device of each `x`.

    Raises
    ------
    ValueError
        Wrong shape, device or option, a position out of range (see above), or an `out` that cannot
        be written.
    TypeError
        Wrong dtype, or not an array.

    References
    ----------
    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
    """
    return _dlkern.rope(
        x, False, cos, sin, positions, offset, base, rotary_dim, interleaved, layout, out, stream
    )


def rope_backward(
    dy: Any,
    *,
    cos: Any = None,
    sin: Any = None,
    positions: Any = None,
    offset: int = 0,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    layout: str = "BSHD",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`rope` with respect to its input: `dy` rotated back.

    Parameters
    ----------
    dy : array, or list of array
        Gradients of the loss with respect to the outputs.
    cos, sin, positions, offset, base, rotary_dim, interleaved, layout
        As in the forward call.
    out : array, or list of array, optional
        Receives dx; may be `dy` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`rope`.

    Returns
    -------
    array, or tuple of array
        dx, of the shape and dtype of each `dy`.
    """
    return _dlkern.rope(
        dy, True, cos, sin, positions, offset, base, rotary_dim, interleaved, layout, out, stream
    )
