"""Memory layout and element types: copies, concatenation, splitting, casts."""

from __future__ import annotations

from collections.abc import Sequence
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


def contiguous(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """A row-major copy of x without gaps, whatever its strides.

    Parameters and errors are those of :func:`permute`.
    """
    return _dlkern.contiguous(x, out, stream)


def concat(arrays: Sequence[Any], axis: int = 0, *, out: Any = None, stream: Any = None) -> Any:
    """Arrays one after the other along an axis. Its gradient is :func:`split` of dy.

    Parameters
    ----------
    arrays : list of array
        One or more, of one dtype (any that dlkern knows), of rank 1 or more and the same shape but
        for that axis, where extents may be 0. Any strides.
    axis : int
        The axis to join them along.
    out : array, optional
        Written instead of a new array: any strides, no memory of `arrays`.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`permute`.

    Returns
    -------
    array
        Dtype, framework and device of the first array.

    Raises
    ------
    ValueError
        No array, a wrong axis, shapes that do not fit, a wrong device, or an `out` that cannot be
        written.
    TypeError
        Dtypes that differ, or not arrays.
    """
    return _dlkern.concat(arrays, axis, out, stream)


def split(
    x: Any,
    sections: int | Sequence[int],
    axis: int = 0,
    *,
    out: Sequence[Any] | None = None,
    stream: Any = None,
) -> tuple[Any, ...]:
    """Copies of the parts of x along an axis. Its gradient is :func:`concat` of the dy.

    Parameters
    ----------
    x : array
        Of rank 1 or more, any strides, any dtype that dlkern knows.
    sections : int or sequence of int
        The number of parts, which must divide the extent, or the extents of the parts, which must
        add up to it.
    axis : int
        The axis to cut.
    out : list of array, optional
        Written instead of new arrays, one for each part: any strides, no memory of `x` or of each
        other.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`permute`.

    Returns
    -------
    tuple of array
        The parts, in order; dtype, framework and device of `x`.

    Raises
    ------
    ValueError
        Wrong `sections`, axis, shape or device, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    return _dlkern.split(x, sections, axis, out, stream)


def cast(x: Any, dtype: str, *, out: Any = None, stream: Any = None) -> Any:
    """X in another dtype. Its gradient is the cast of dy to x's dtype.

    To floats: rounded to nearest even, once; float8 saturates: what is beyond its largest finite
    number, infinity too, becomes that number. To integers: from floats truncated and saturated to
    the range, NaN becomes 0; from integers the low bits. To bool: whether it is not 0.

    Parameters
    ----------
    x : array
        Any strides, any dtype that dlkern knows.
    dtype : str
        Name of the new dtype: "float64", "float32", "float16", "bfloat16", "float8_e4m3fn",
        "float8_e5m2", "int64", "int32", "int8", "uint64", "uint8" or "bool".
    out : array, optional
        Written instead of a new array: shape of `x`, any strides, that dtype. Where `x` has the
        dtype already it may be `x` itself.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`permute`.

    Returns
    -------
    array
        Shape, framework and device of `x`.

    Raises
    ------
    ValueError
        An unknown dtype, a wrong shape or device, or an `out` that cannot be written.
    TypeError
        A dtype that dlkern does not take, or not an array.
    """
    return _dlkern.cast(x, dtype, out, stream)
