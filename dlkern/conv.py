"""Convolution over 1, 2 or 3 spatial dimensions, its gradients, and its transpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from dlkern import _dlkern

Ints = int | Sequence[int]
Padding = int | Sequence[int | tuple[int, int]] | Literal["same", "valid"]
Layout = Literal["NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"]
Precision = Literal["ieee", "tf32"]


def conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    precision: Precision = "ieee",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Convolution (cross-correlation) of a batch of images with a filter bank.

    .. math::
        y[n, k, o] = b[k] + \sum_{c, t} x[n, c, o \cdot stride - pad + t \cdot dilation] \,
        w[k, c, t]

    Parameters
    ----------
    x : array
        [N, C, spatial...], or [N, spatial..., C] with an NHWC-like layout; 1, 2 or 3 spatial
        dimensions, any strides. float64, float32, float16 or bfloat16; 16-bit products are summed
        in float32.
    weight : array
        [K, C / groups, taps...], or [K, taps..., C / groups] with an NHWC-like layout.
    bias : array, optional
        [K].
    stride, dilation : int or sequence of int
        For all spatial dimensions, or one each.
    padding : int, sequence, "same" or "valid"
        Zeros around the image: one number, or per dimension a number or a pair (begin, end).
        ``[((taps - 1) * dilation, 0)]`` makes a convolution over time causal. "same" is the rule of
        TensorFlow and JAX: the output has ``ceil(extent / stride)`` positions and an odd padding
        has its larger half at the end. "valid" is 0.
    groups : int
        Divides C and K; output channels of a group see the input channels of that group alone.
    layout : str
        "NCHW" or "NHWC" for any number of spatial dimensions, or "NCW", "NWC", "NCDHW", "NDHWC".
    precision : "ieee" or "tf32"
        How float32 products are computed on a GPU.
    out : array, optional
        Written instead of a new array.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        y, of x's framework, device and dtype: [N, K, positions...] or [N, positions..., K] with
        ``(extent + pad_begin + pad_end - dilation * (taps - 1) - 1) // stride + 1`` positions.

    Raises
    ------
    ValueError
        Wrong shape, device or window, no output position, or an `out` that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    window = (stride, padding, dilation, groups, layout, precision, 0)
    return _dlkern.conv(x, weight, bias, False, window, out, stream)


def conv_bias_act(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    scale: Any = None,
    residual: Any = None,
    activation: str | None = None,
    alpha: float | None = None,
    preactivation: bool = False,
    return_stats: bool = False,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    precision: Precision = "ieee",
    out: Any = None,
    out_preactivation: Any = None,
    out_mean: Any = None,
    out_var: Any = None,
    stream: Any = None,
) -> Any:
    r"""Convolution with a scale, a bias, a residual and an activation in one pass.

    .. math:: z_k = \mathrm{scale}_k \, (x * w)_k + \mathrm{bias}_k + \mathrm{residual},
              \quad y = f(z)

    The residual comes before the activation, as in cuDNN's fused convolution and in the blocks of
    residual networks; in :func:`linear` it comes behind it. Batch norm with given statistics is
    ``scale = weight / sqrt(running_var + eps)``, ``bias = bias - running_mean * scale``.

    Parameters
    ----------
    x, weight : array
        As for :func:`conv`.
    bias, scale : array, optional
        [K], both of x's dtype or, beside 16-bit x, of float32.
    residual : array, optional
        Shape and dtype of y.
    activation : str, optional
        f: one of the names of :func:`activation`; None is the identity.
    alpha : float, optional
        Parameter of leaky_relu, elu or softplus; default: theirs.
    preactivation : bool
        Return z too, for the gradient.
    return_stats : bool
        Return the statistics of y that :func:`batch_norm_training` takes as `stats`, and so need
        not read y for. They are of y as it is stored, and right however large the mean is beside
        the deviation.
    stride, padding, dilation, groups, layout, precision, stream
        As for :func:`conv`.
    out, out_preactivation, out_mean, out_var : array, optional
        Written instead of new arrays; that of an array which is not asked for asks for it.

    Returns
    -------
    y : array
        As from :func:`conv`. Rounded once, from the sums; where no kernel of a GPU does all of what
        is asked for, 16-bit sums are rounded before the rest as well (:func:`explain` then says
        "separate_passes").
    z : array
        With `preactivation`: like y.
    mean, var : array
        With `return_stats`: [K], the variance being the biased one; float64 for float64 and float32
        for all others. NaN where y has no elements.

    Raises
    ------
    ValueError
        Wrong shape, device, window or activation, no output position, or an output that cannot be
        written.
    TypeError
        Wrong dtype, or not an array.
    """
    window = (stride, padding, dilation, groups, layout, precision, 0)
    return _bias_act(x, weight, bias, scale, residual, activation, alpha, preactivation,
                     return_stats, False, window, out, out_preactivation, out_mean, out_var,
                     stream)  # fmt: skip


def conv_backward_input(
    dy: Any,
    weight: Any,
    input_shape: Sequence[int] | None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    precision: Precision = "ieee",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`conv` with respect to x.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the output.
    weight : array
        As in the forward call.
    input_shape : sequence of int, or None
        Shape of x: several of them can give the same output. None with `out`.
    stride, padding, dilation, groups, layout, precision
        As in the forward call.
    out : array, optional
        Receives dx, in the shape of x.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`conv`.

    Returns
    -------
    array
        dx.
    """
    window = (stride, padding, dilation, groups, layout, precision, 0)
    return _dlkern.conv_backward_input(dy, weight, input_shape, False, window, out, stream)


def conv_backward_weight(
    dy: Any,
    x: Any,
    weight_shape: Sequence[int] | None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    precision: Precision = "ieee",
    bias: bool = False,
    accumulate: bool = False,
    out: Any = None,
    out_bias: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Gradients of :func:`conv` with respect to weight and bias.

    Parameters
    ----------
    dy : array
        Gradient of the loss with respect to the output.
    x : array
        As in the forward call.
    weight_shape : sequence of int, or None
        Shape of weight; None with `out`.
    stride, padding, dilation, groups, layout, precision
        As in the forward call.
    bias : bool
        Compute the gradient of bias too, the sum of dy over batch and positions; so does passing
        `out_bias`.
    accumulate : bool
        Add to `out` and `out_bias` instead of overwriting them.
    out, out_bias : array, optional
        Receive dweight and dbias.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`conv`.

    Returns
    -------
    dweight : array
    dbias : array or None
        None without `bias`.
    """
    window = (stride, padding, dilation, groups, layout, precision, 0)
    return _backward_weight(
        dy, x, weight_shape, False, window, bias, accumulate, out, out_bias, stream
    )


def conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    precision: Precision = "ieee",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Transposed convolution: the gradient of a convolution with respect to its input.

    Parameters
    ----------
    x : array
        [N, C_in, spatial...], or [N, spatial..., C_in] with an NHWC-like layout.
    weight : array
        [C_in, C_out / groups, taps...], or [C_in, taps..., C_out / groups]: the weight of the
        convolution that this one transposes.
    bias : array, optional
        [C_out].
    stride, padding, dilation : see :func:`conv`
        Those of the convolution from y to x. "same" gives ``extent * stride`` positions.
    output_padding : int or sequence of int
        Added to the output's extents, smaller than the larger one of stride and dilation.
    groups, layout, precision, out, stream
        As for :func:`conv`.

    Returns
    -------
    array
        y with ``(extent - 1) * stride - pad_begin - pad_end + dilation * (taps - 1) + 1 +
        output_padding`` positions.
    """
    window = (stride, padding, dilation, groups, layout, precision, output_padding)
    return _dlkern.conv(x, weight, bias, True, window, out, stream)


def conv_transpose_bias_act(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    scale: Any = None,
    residual: Any = None,
    activation: str | None = None,
    alpha: float | None = None,
    preactivation: bool = False,
    return_stats: bool = False,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    precision: Precision = "ieee",
    out: Any = None,
    out_preactivation: Any = None,
    out_mean: Any = None,
    out_var: Any = None,
    stream: Any = None,
) -> Any:
    """Transposed convolution with what follows it in one pass.

    Parameters and results are those of :func:`conv_transpose` and :func:`conv_bias_act`; `scale`,
    `bias` and the statistics are [C_out].
    """
    window = (stride, padding, dilation, groups, layout, precision, output_padding)
    return _bias_act(x, weight, bias, scale, residual, activation, alpha, preactivation,
                     return_stats, True, window, out, out_preactivation, out_mean, out_var,
                     stream)  # fmt: skip


def conv_transpose_backward_input(
    dy: Any,
    weight: Any,
    input_shape: Sequence[int] | None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    precision: Precision = "ieee",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`conv_transpose` with respect to x.

    Parameters are those of :func:`conv_transpose` and :func:`conv_backward_input`.
    """
    window = (stride, padding, dilation, groups, layout, precision, output_padding)
    return _dlkern.conv_backward_input(dy, weight, input_shape, True, window, out, stream)


def conv_transpose_backward_weight(
    dy: Any,
    x: Any,
    weight_shape: Sequence[int] | None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    precision: Precision = "ieee",
    bias: bool = False,
    accumulate: bool = False,
    out: Any = None,
    out_bias: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Gradients of :func:`conv_transpose` with respect to weight and bias.

    Parameters and results are those of :func:`conv_transpose` and :func:`conv_backward_weight`.
    """
    window = (stride, padding, dilation, groups, layout, precision, output_padding)
    return _backward_weight(
        dy, x, weight_shape, True, window, bias, accumulate, out, out_bias, stream
    )


def _bias_act(x, weight, bias, scale, residual, activation, alpha, preactivation, stats, transposed,
              window, out, out_preactivation, out_mean, out_var, stream):  # fmt: skip
    preactivation = preactivation or out_preactivation is not None
    stats = stats or out_mean is not None or out_var is not None
    return _dlkern.conv_bias_act(
        x, weight, bias, scale, residual, activation, alpha, preactivation, stats, transposed,
        window, out, out_preactivation, out_mean, out_var, stream,
    )  # fmt: skip


def _backward_weight(dy, x, weight_shape, transposed, window, bias, accumulate, out, out_bias,
                     stream):  # fmt: skip
    bias = bias or out_bias is not None
    result = _dlkern.conv_backward_weight(
        dy, x, weight_shape, transposed, window, bias, accumulate, out, out_bias, stream
    )
    return result if bias else (result, None)
