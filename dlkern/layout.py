"""Transposed copies."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def permute(x: Any, axes: tuple[int, ...], *, out: Any = None, stream: Any = None) -> Any:
    """A copy of x with its axes in another order: ``x.transpose(axes)``, stored contiguously.

    Its gradient is the inverse permutation of dy. The identity makes a strided array contiguous.

    Parameters
    ----------
    x : array
        Any array with ``__dlpack__`` and any strides, of any dtype that dlkern knows.
    axes : tuple of int
        Axis ``i`` of the result is axis ``axes[i]`` of `x`; each axis once.
    out : array, optional
        Written instead of a new array: the permuted shape, any strides, no memory of `x`.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        Dtype, framework and device of `x`.

    Raises
    ------
    ValueError
        Wrong axes, shape or device, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.permute(x, axes, out, stream)


def nchw_to_nhwc(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """[N, C, spatial...] to [N, spatial..., C], for arrays of 3 to 5 dimensions.

    Its gradient is :func:`nhwc_to_nchw` of dy. Parameters and errors are those of :func:`permute`.
    """
    return _dlkern.move_channels(x, True, out, stream)


def nhwc_to_nchw(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """[N, spatial..., C] to [N, C, spatial...], for arrays of 3 to 5 dimensions.

    Its gradient is :func:`nchw_to_nhwc` of dy. Parameters and errors are those of :func:`permute`.
    """
    return _dlkern.move_channels(x, False, out, stream)
