"""Convolution of 8-bit numbers with factors that undo their quantisation."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern
from dlkern.conv import Ints, Layout, Padding
from dlkern.gemm_scaled import dtype_name


def scaled_conv(
    x: Any,
    weight: Any,
    scale_x: Any = None,
    scale_weight: Any = None,
    bias: Any = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    activation: str | None = None,
    alpha: float | None = None,
    out_dtype: Any = None,
    scale_out: Any = None,
    amax: bool = False,
    out: Any = None,
    out_amax: Any = None,
    stream: Any = None,
) -> Any:
    r"""Convolution of float8 or int8 images with factors that undo their quantisation.

    .. math::

        z[n, k, o] = f\Big(s^x s^w_k \sum_{c, t} x[n, c, o \cdot stride - pad + t \cdot dilation]
        \, w[k, c, t] + b_k\Big), \quad y = z \cdot \mathrm{scale\_out}, \quad
        \mathrm{amax} = \max |z|

    There are no zero points: the code 0 is the number 0, and so is padding.

    Parameters
    ----------
    x, weight : array
        As in :func:`~dlkern.conv`, of 8 bits: float8_e4m3fn and float8_e5m2 in any mixture, whose
        products are summed in float32, or both int8, summed exactly in int32, beyond which sums
        wrap around (from 131072 products of -128 by -128 on). Any strides.
    scale_x : array, optional
        One float32 on the device of `x`.
    scale_weight : array, optional
        One float32, or [K]: one for each output channel.
    bias : array, optional
        [K]; float32, float16 or bfloat16.
    stride, padding, dilation, groups, layout
        As in :func:`~dlkern.conv`.
    activation, alpha
        As in :func:`~dlkern.linear`.
    out_dtype : str or dtype, optional
        Of a new result: bfloat16 (default), float16, float32, float8_e4m3fn or float8_e5m2. Of int8
        operands also int8 and, without scales, bias, activation, `scale_out` and `amax`, int32,
        which is then the default: exact sums.
    scale_out : array, optional
        One float32 on the device; multiplies the result before it is rounded. Results of 8 bits are
        rounded to nearest even, and saturate: what is beyond the largest finite number, infinity
        too, becomes that number. NaN stays NaN, or of int8 becomes 0.
    amax : bool
        Return max |z| too, before `scale_out` (NaN where any z is); so does passing `out_amax`.
    out, out_amax : array, optional
        Written instead of new arrays; `out` of any of the dtypes above, `out_amax` one float32.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    y : array
        Of the shape that :func:`~dlkern.conv` gives.
    amax : array
        float32, rank 0; only where asked for.

    Raises
    ------
    ValueError
        Wrong shape, device or window, or an `out` that cannot be written or overlaps an input.
    TypeError
        Wrong dtype, or not an array.
    """
    window = (stride, padding, dilation, groups, layout, "ieee", 0)
    return _dlkern.scaled_conv(
        x, weight, scale_x, scale_weight, bias, window, activation, alpha, dtype_name(out_dtype),
        scale_out, amax, out, out_amax, stream,
    )  # fmt: skip
