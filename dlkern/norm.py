"""Layer and RMS normalisation, and their gradients."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern
from dlkern.gemm_scaled import dtype_name


def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    residual: Any = None,
    normalized_ndim: int = 1,
    eps: float = 1e-5,
    weight_offset: float = 0.0,
    out_dtype: Any = None,
    scale_out: Any = None,
    amax: bool = False,
    return_stats: bool = False,
    out: Any = None,
    out_residual: Any = None,
    out_mean: Any = None,
    out_rstd: Any = None,
    out_amax: Any = None,
    stream: Any = None,
) -> Any:
    r"""Layer normalisation over the last dimensions, also of the sum with a residual.

    .. math:: s = x + \mathrm{residual}, \quad
              y = (s - \mu) \, r \, (\mathrm{weight} + \mathrm{weight\_offset}) + \mathrm{bias},
              \quad r = 1 / \sqrt{\sigma^2 + \epsilon}

    Parameters
    ----------
    x : array
        Rank 1 or more, any strides. float64, float32, float16 or bfloat16; 16-bit values are
        computed in float32.
    weight, bias : array, optional
        Of the shape of the normalised dimensions, and of x's dtype or, beside 16-bit x, float32.
    residual : array, optional
        Like `x`. The sum s is rounded to x's dtype before it is normalised, and returned.
    normalized_ndim : int
        How many of the last dimensions are normalised together.
    eps : float
        Added to the variance.
    weight_offset : float
        Added to the weight: 1 for models that keep their weights as the distance from 1. Nothing
        where there is no weight.
    out_dtype : str or dtype, optional
        Of y: that of `x` (default), ``"float8_e4m3fn"`` or ``"float8_e5m2"``. float8 is rounded to
        nearest; what is beyond its largest finite number becomes that.
    scale_out : array, optional
        One float32 on the device of `x`, beside a float8 y: y times it is what is written.
    amax : bool
        Beside a float8 y: return max \|y\| too, before `scale_out` (NaN where any y is); so does
        passing `out_amax`.
    return_stats : bool
        Return what :func:`layer_norm_backward` needs, too.
    out, out_residual, out_mean, out_rstd, out_amax : array, optional
        Written instead of new arrays; `out` and `out_residual` may each be `x` or `residual`
        itself. The statistics' ones imply `return_stats`.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    y : array
        Shape, framework and device of `x`.
    residual_out : array
        With `residual`: s, like `x`.
    mean, rstd : array
        With `return_stats`: shape of the dimensions that are not normalised; float64 for float64
        and float32 for all others.
    amax : array
        With `amax`: one float32.

    Raises
    ------
    ValueError
        Wrong shape, normalized_ndim, eps or device, or an output that cannot be written.
    TypeError
        Wrong dtype, or not an array.
    """
    stats = return_stats or out_mean is not None or out_rstd is not None
    return _dlkern.layer_norm(
        x, weight, bias, residual, normalized_ndim, eps, weight_offset, dtype_name(out_dtype),
        scale_out, amax, stats, out, out_residual, out_mean, out_rstd, out_amax, stream,
    )  # fmt: skip


def layer_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    dresidual: Any = None,
    normalized_ndim: int = 1,
    weight_offset: float = 0.0,
    bias: bool | None = None,
    out: Any = None,
    out_weight: Any = None,
    out_bias: Any = None,
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    r"""Gradients of :func:`layer_norm`.

    With :math:`g = dy \, (\mathrm{weight} + \mathrm{weight\_offset})`,
    :math:`\hat{x} = (x - \mu) r`, averages over a row:

    .. math:: dx = r \, (g - \overline{g} - \hat{x} \, \overline{g \hat{x}})
              + \mathrm{dresidual}, \quad
              d\mathrm{weight} = \sum_\mathrm{rows} dy \, \hat{x}, \quad
              d\mathrm{bias} = \sum_\mathrm{rows} dy

    Parameters
    ----------
    dy, x : array
        Gradient of the loss with respect to y, and what was normalised: the input of the forward
        call, or the residual_out that it returned.
    weight : array or None
        As in the forward call.
    mean, rstd : array
        What the forward call returned.
    dresidual : array, optional
        Like `x`: the gradient that residual_out has from elsewhere. dx is that of x and of the
        residual alike.
    normalized_ndim, weight_offset
        As in the forward call.
    bias : bool, optional
        Whether dbias is wanted; default: where `weight` is given.
    out, out_weight, out_bias : array, optional
        Written instead of new arrays. `out` receives dx and may be `dy`, `x` or `dresidual` itself;
        the others have x's dtype or, beside 16-bit x, float32.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`layer_norm`.

    Returns
    -------
    dx, dweight, dbias : array or None
        `dx` like `x`; the others of the normalised shape in weight's dtype. None in place of a
        gradient that is not wanted (dweight without `weight`).
    """
    return _dlkern.layer_norm_backward(
        dy, x, weight, mean, rstd, dresidual, normalized_ndim, weight_offset, bias, out, out_weight,
        out_bias, stream,
    )  # fmt: skip


def rms_norm(
    x: Any,
    weight: Any = None,
    *,
    residual: Any = None,
    normalized_ndim: int = 1,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    out_dtype: Any = None,
    scale_out: Any = None,
    amax: bool = False,
    return_stats: bool = False,
    out: Any = None,
    out_residual: Any = None,
    out_rstd: Any = None,
    out_amax: Any = None,
    stream: Any = None,
) -> Any:
    r"""Normalisation by the root mean square over the last dimensions.

    .. math:: s = x + \mathrm{residual}, \quad
              y = s \, r \, (\mathrm{weight} + \mathrm{weight\_offset}), \quad
              r = 1 / \sqrt{\overline{s^2} + \epsilon}

    Parameters and errors are those of :func:`layer_norm`.

    Returns
    -------
    y : array
        Shape, framework and device of `x`.
    residual_out, rstd, amax : array
        With `residual`, with `return_stats` and with `amax`: as for :func:`layer_norm`.
    """
    stats = return_stats or out_rstd is not None
    return _dlkern.rms_norm(
        x, weight, residual, normalized_ndim, eps, weight_offset, dtype_name(out_dtype), scale_out,
        amax, stats, out, out_residual, out_rstd, out_amax, stream,
    )  # fmt: skip


def rms_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    rstd: Any,
    *,
    dresidual: Any = None,
    normalized_ndim: int = 1,
    weight_offset: float = 0.0,
    out: Any = None,
    out_weight: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    r"""Gradients of :func:`rms_norm`.

    .. math:: dx = r \, (g - \hat{x} \, \overline{g \hat{x}}) + \mathrm{dresidual}, \quad
              \hat{x} = x r, \quad g = dy \, (\mathrm{weight} + \mathrm{weight\_offset}), \quad
              d\mathrm{weight} = \sum_\mathrm{rows} dy \, \hat{x}

    Parameters are those of :func:`layer_norm_backward`.

    Returns
    -------
    dx, dweight : array or None
        `dx` like `x`; `dweight` like `weight`, None without it.
    """
    return _dlkern.rms_norm_backward(
        dy, x, weight, rstd, dresidual, normalized_ndim, weight_offset, out, out_weight, stream
    )
