"""Max, average and Lp pooling over 1, 2 or 3 spatial dimensions, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlkern import _dlkern

PerDim = int | Sequence[int]
Padding = str | int | Sequence[int | tuple[int, int]]


def max_pool(
    x: Any,
    kernel: PerDim | None,
    *,
    stride: PerDim | None = None,
    padding: Padding = 0,
    dilation: PerDim = 1,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    return_indices: bool = False,
    index_dtype: str = "int64",
    out: Any = None,
    out_indices: Any = None,
    stream: Any = None,
) -> Any:
    """Maximum over windows.

    Padding is never the maximum. A window with a NaN gives NaN; one of all ``-inf`` gives ``-inf``.

    Parameters
    ----------
    x : array
        [N, C, spatial...] or [N, spatial..., C] by `layout`, any strides: float64, float32,
        float16 or bfloat16.
    kernel : int, tuple of int or None
        Taps of a window, for all spatial dimensions or for each. None: the whole extent of `x`
        (global pooling).
    stride : int, tuple of int or None
        Distance of two windows; None: the kernel.
    padding : int, "same", "valid", or per dimension an int or a pair (begin, end)
        At most half of a window's span. "same" gives ``ceil(extent / stride)`` windows, with the
        larger half of the padding at the end.
    dilation : int or tuple of int
        Distance of two taps.
    ceil_mode : bool
        Windows that reach past the end count too, if they start before the end of `x`.
    layout : str
        "NCHW" or "NHWC" for any number of spatial dimensions; also "NCW", "NWC", "NCDHW", "NDHWC".
    return_indices : bool
        Return the positions of the maxima too. `max_pool_backward` needs them.
    index_dtype : str
        "int64" and "int32" for the position of the maximum in the spatial dimensions of `x`, in
        row-major order, as in the frameworks; "uint8" for the number of the tap within its window
        (of at most 256), in row-major order: an eighth of the bytes.
    out, out_indices : array, optional
        Written instead of new arrays; `out_indices` implies `return_indices`.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array, or (array, array of index_dtype)
        The maxima, of the dtype, framework and device of `x`; and for each where it lies: the
        first maximum, or the first NaN.

    Raises
    ------
    ValueError
        A window that does not fit, wrong shape or device, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    window = (kernel, stride, padding, dilation, ceil_mode, layout)
    index = index_dtype if return_indices or out_indices is not None else None
    return _dlkern.max_pool("max_pool", x, window, index, out, out_indices, stream)


def max_pool_backward(
    dy: Any,
    indices: Any,
    input_shape: tuple[int, ...] | None,
    kernel: PerDim | None,
    *,
    stride: PerDim | None = None,
    padding: Padding = 0,
    dilation: PerDim = 1,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`max_pool` with respect to its input.

    Each position receives the sum of dy over the windows whose maximum it is. Where windows do not
    overlap this is unpooling, too: values go back to where the maxima were.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the maxima.
    indices : array of int64, int32 or uint8
        As :func:`max_pool` returned them.
    input_shape : tuple of int or None
        Shape of the forward's `x`. May be None where `out` is given.
    kernel, stride, padding, dilation, ceil_mode, layout
        As in the forward call.
    out : array, optional
        Receives dx.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`max_pool`, as are the errors.

    Returns
    -------
    array
        dx, of that shape and the dtype of `dy`.
    """
    window = (kernel, stride, padding, dilation, ceil_mode, layout)
    return _dlkern.max_pool_backward(
        "max_pool_backward", dy, indices, input_shape, window, out, stream
    )


def avg_pool(
    x: Any,
    kernel: PerDim | None,
    *,
    stride: PerDim | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    layout: str = "NCHW",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Mean over windows; padding counts as zeros. 16-bit types are summed in float32.

    Parameters
    ----------
    x, kernel, stride, padding, ceil_mode, layout, out, stream
        As for :func:`max_pool`, as are the errors.
    count_include_pad : bool
        Divide by the number of taps inside `x` and its padding, else by that inside `x` alone.
    divisor_override : int, optional
        Divide by this instead.

    Returns
    -------
    array
        Dtype, framework and device of `x`.
    """
    window = (kernel, stride, padding, 1, ceil_mode, layout)
    average = (count_include_pad, divisor_override)
    return _dlkern.avg_pool("avg_pool", x, window, average, out, stream)


def avg_pool_backward(
    dy: Any,
    input_shape: tuple[int, ...] | None,
    kernel: PerDim | None,
    *,
    stride: PerDim | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    layout: str = "NCHW",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`avg_pool` with respect to its input.

    Each position receives the sum of dy / divisor over the windows that hold it.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the means.
    input_shape : tuple of int or None
        Shape of the forward's `x`. May be None where `out` is given.
    kernel, stride, padding, ceil_mode, count_include_pad, divisor_override, layout
        As in the forward call.
    out : array, optional
        Receives dx.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`max_pool`, as are the errors.

    Returns
    -------
    array
        dx, of that shape and the dtype of `dy`.
    """
    window = (kernel, stride, padding, 1, ceil_mode, layout)
    average = (count_include_pad, divisor_override)
    return _dlkern.avg_pool_backward(
        "avg_pool_backward", dy, input_shape, window, average, out, stream
    )


def lp_pool(
    x: Any,
    norm_type: float,
    kernel: PerDim | None,
    *,
    stride: PerDim | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Norm of windows: ``(sum |x|**norm_type) ** (1 / norm_type)``; padding counts as zeros.

    The absolute value is taken for odd norms, too (as in ONNX's LpPool), and windows that
    `ceil_mode` lets reach past the end are not scaled up. 16-bit types are summed in float32; a sum
    that overflows gives infinity.

    Parameters
    ----------
    x, kernel, stride, padding, ceil_mode, layout, out, stream
        As for :func:`max_pool`, as are the errors.
    norm_type : float
        Positive.

    Returns
    -------
    array
        Dtype, framework and device of `x`.
    """
    window = (kernel, stride, padding, 1, ceil_mode, layout)
    return _dlkern.lp_pool(x, norm_type, window, out, stream)


def lp_pool_backward(
    dy: Any,
    x: Any,
    y: Any,
    norm_type: float,
    kernel: PerDim | None,
    *,
    stride: PerDim | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`lp_pool` with respect to its input.

    ``dx = sign(x) |x|**(norm_type - 1)`` times the sum of ``dy / y**(norm_type - 1)`` over the
    windows that hold the position; a window of zeros gives none.

    Parameters
    ----------
    dy, x, y : array
        Gradient of the loss with respect to the norms; the forward's input and result.
    norm_type, kernel, stride, padding, ceil_mode, layout
        As in the forward call.
    out : array, optional
        Receives dx; may be `x`.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`max_pool`, as are the errors.

    Returns
    -------
    array
        dx, of the shape and dtype of `x`.
    """
    window = (kernel, stride, padding, 1, ceil_mode, layout)
    return _dlkern.lp_pool_backward(dy, x, y, norm_type, window, out, stream)


def adaptive_max_pool(
    x: Any,
    output_size: int | Sequence[int | None] | None,
    *,
    layout: str = "NCHW",
    return_indices: bool = False,
    index_dtype: str = "int64",
    out: Any = None,
    out_indices: Any = None,
    stream: Any = None,
) -> Any:
    """Maximum over windows whose number is given.

    Window o of a dimension holds the positions from ``floor(o * extent / output_size)`` to below
    ``ceil((o + 1) * extent / output_size)``.

    Parameters
    ----------
    x, layout, return_indices, index_dtype, out, out_indices, stream
        As for :func:`max_pool`, as are the errors.
    output_size : int, None, or per dimension an int or None
        Number of windows; None: the extent of `x`.

    Returns
    -------
    array, or (array, array of index_dtype)
        As :func:`max_pool`.
    """
    index = index_dtype if return_indices or out_indices is not None else None
    window = (output_size, layout)
    return _dlkern.max_pool("adaptive_max_pool", x, window, index, out, out_indices, stream)


def adaptive_max_pool_backward(
    dy: Any,
    indices: Any,
    input_shape: tuple[int, ...] | None,
    *,
    layout: str = "NCHW",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`adaptive_max_pool` with respect to its input.

    Parameters
    ----------
    dy, indices, input_shape, out, stream
        As for :func:`max_pool_backward`, as is the result.
    layout : str
        As in the forward call.

    Returns
    -------
    array
        dx, of that shape and the dtype of `dy`.
    """
    return _dlkern.max_pool_backward(
        "adaptive_max_pool_backward", dy, indices, input_shape, (None, layout), out, stream
    )


def adaptive_avg_pool(
    x: Any,
    output_size: int | Sequence[int | None] | None,
    *,
    layout: str = "NCHW",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Mean over windows whose number is given: those of :func:`adaptive_max_pool`.

    Parameters
    ----------
    x, output_size, layout, out, stream
        As for :func:`adaptive_max_pool`, as are the errors.

    Returns
    -------
    array
        Dtype, framework and device of `x`; 16-bit types are summed in float32.
    """
    window, average = (output_size, layout), (True, None)
    return _dlkern.avg_pool("adaptive_avg_pool", x, window, average, out, stream)


def adaptive_avg_pool_backward(
    dy: Any,
    input_shape: tuple[int, ...] | None,
    *,
    layout: str = "NCHW",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`adaptive_avg_pool` with respect to its input.

    Parameters
    ----------
    dy, input_shape, out, stream
        As for :func:`avg_pool_backward`, as is the result.
    layout : str
        As in the forward call.

    Returns
    -------
    array
        dx, of that shape and the dtype of `dy`.
    """
    window, average = (None, layout), (True, None)
    return _dlkern.avg_pool_backward(
        "adaptive_avg_pool_backward", dy, input_shape, window, average, out, stream
    )
