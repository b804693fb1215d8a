"""Batch normalisation and its gradients."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    *,
    residual: Any = None,
    activation: str | None = None,
    eps: float = 1e-5,
    layout: str = "NCHW",
    out: Any = None,
    stream: Any = None,
) -> Any:
    r"""Batch normalisation with given statistics: what a network does in inference.

    .. math:: y = f\left(\frac{x - \mathrm{running\_mean}_c}{\sqrt{\mathrm{running\_var}_c
              + \epsilon}} \cdot \mathrm{weight}_c + \mathrm{bias}_c + \mathrm{residual}\right)

    Parameters
    ----------
    x : array
        [N, C, spatial...] or, by `layout`, [N, spatial..., C]; rank 2 to 5, any strides. float64,
        float32, float16 or bfloat16; 16-bit values are computed in float32.
    weight, bias : array or None
        [C], of x's dtype or, beside 16-bit x, of float32. None counts as 1 and 0.
    running_mean, running_var : array
        [C], dtypes as for `weight`.
    residual : array, optional
        Added before the activation: shape and dtype of `x`.
    activation : str, optional
        f: "relu" or "silu".
    eps : float
        Added to the variance.
    layout : str
        "NCHW" or "NHWC", for any rank; also "NCW", "NWC", "NCDHW", "NDHWC".
    out : array, optional
        Written instead of a new array: shape and dtype of `x`; may be `x` or `residual` itself.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    array
        y, of the shape, dtype, framework and device of `x`.

    Raises
    ------
    ValueError
        Wrong shape, layout, activation, eps or device, or an output that cannot be written.
    TypeError
        Wrong dtype, or not an array.

    See Also
    --------
    batch_norm_training : with the statistics of `x` itself.
    """
    return _dlkern.batch_norm(
        x, weight, bias, running_mean, running_var, residual, activation, eps, layout, out, stream
    )


def given_statistics(stats: Any) -> tuple[Any, Any]:
    """Mean and var of `stats`."""
    if not isinstance(stats, (tuple, list)) or len(stats) != 2:
        n = f" of {len(stats)}" if isinstance(stats, (tuple, list)) else ""
        kind = type(stats).__name__
        raise TypeError(f"batch_norm_training: stats is a {kind}{n}, expected (mean, var)")
    return stats[0], stats[1]


def batch_norm_training(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    residual: Any = None,
    activation: str | None = None,
    momentum: float | None = 0.1,
    num_batches_tracked: Any = None,
    stats: tuple[Any, Any] | None = None,
    eps: float = 1e-5,
    layout: str = "NCHW",
    out: Any = None,
    out_mean: Any = None,
    out_rstd: Any = None,
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    r"""Batch normalisation with the statistics of `x` itself, per channel.

    .. math:: y = f((x - \mu_c) \, r_c \cdot \mathrm{weight}_c + \mathrm{bias}_c
              + \mathrm{residual}), \quad r_c = 1 / \sqrt{\sigma_c^2 + \epsilon}

    Parameters
    ----------
    x, weight, bias, residual, activation, eps, layout, stream
        As for :func:`batch_norm`. Each channel needs at least two values.
    running_mean, running_var : array, optional
        [C], both or neither. Updated in place to
        ``(1 - momentum) * running + momentum * statistic of x``, the variance by the unbiased one.
    momentum : float or None
        See above. None: 1 / n in the n-th call, which makes a plain average; n is counted in
        `num_batches_tracked`.
    num_batches_tracked : array, optional
        int64 of shape () or (1,): counted up by 1, on the device.
    stats : tuple (mean, var), optional
        The statistics of `x`, where something has them already (:func:`conv_bias_act` with
        ``return_stats=True``): [C] each, the variance being the biased one, of the dtype of the
        statistics below. `x` is then read once.
    out, out_mean, out_rstd : array, optional
        Written instead of new arrays. `out` must not overlap `x`, which the gradient needs; it may
        be `residual` itself. There is no `out_mean` beside `stats`.

    Returns
    -------
    y, mean, rstd : array
        `y` like `x`; the statistics [C] that :func:`batch_norm_backward` needs, float64 for float64
        and float32 for all others. Beside `stats`, whose mean it is, only `y` and `rstd`.

    Raises
    ------
    ValueError
        Also where a channel has fewer than two values.
    """
    mean, var = (None, None) if stats is None else given_statistics(stats)
    if stats is not None and (mean is None or var is None or out_mean is not None):
        raise ValueError("batch_norm_training: stats without mean or var, or beside out_mean")
    return _dlkern.batch_norm_training(
        x, weight, bias, running_mean, running_var, residual, activation, momentum,
        num_batches_tracked, mean, var, eps, layout, out, out_mean, out_rstd, stream,
    )  # fmt: skip


def batch_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    y: Any = None,
    activation: str | None = None,
    bias: Any = None,
    layout: str = "NCHW",
    out: Any = None,
    out_weight: Any = None,
    out_bias: Any = None,
    out_residual: Any = None,
    stream: Any = None,
) -> tuple[Any, ...]:
    r"""Gradients of :func:`batch_norm_training`.

    With M values per channel, :math:`\hat{x} = (x - \mu) r` and the gradient before the activation
    :math:`dz = dy \, f'(\hat{x} \cdot \mathrm{weight} + \mathrm{bias})`:

    .. math:: d\mathrm{bias} = \sum dz, \quad d\mathrm{weight} = \sum dz \, \hat{x}, \quad
              dx = \mathrm{weight} \cdot r \, (dz - d\mathrm{bias} / M
                   - \hat{x} \, d\mathrm{weight} / M), \quad d\mathrm{residual} = dz

    Parameters
    ----------
    dy, x : array
        Gradient of the loss with respect to y, and the input of the forward call.
    weight : array or None
        As in the forward call.
    mean, rstd : array
        What the forward call returned.
    y : array, optional
        The result of the forward call, where it had a residual: dz of "relu" is taken from it.
    activation : str, optional
        As in the forward call.
    bias : array or bool, optional
        The bias of the forward call, needed where there are an activation and no `y`; or whether
        dbias is wanted. Default: where `weight` is given.
    layout : str
        As in the forward call.
    out, out_weight, out_bias, out_residual : array, optional
        Written instead of new arrays. `out` receives dx and may be `dy` or `x` itself;
        `out_residual` may be `dy`; the others have x's dtype or, beside 16-bit x, float32.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`batch_norm`.

    Returns
    -------
    dx, dweight, dbias : array or None
        `dx` like `x`; the others [C] in weight's dtype. None in place of a gradient that is not
        wanted (dweight without `weight`).
    dresidual : array
        Like `x`; only beside `y` or `out_residual`.
    """
    return _dlkern.batch_norm_backward(
        dy, x, weight, mean, rstd, True, y, activation, 0.0, bias, layout, out, out_weight,
        out_bias, out_residual, stream,
    )  # fmt: skip


def batch_norm_inference_backward(
    dy: Any,
    x: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    *,
    y: Any = None,
    activation: str | None = None,
    eps: float = 1e-5,
    bias: Any = None,
    layout: str = "NCHW",
    out: Any = None,
    out_weight: Any = None,
    out_bias: Any = None,
    out_residual: Any = None,
    stream: Any = None,
) -> tuple[Any, ...]:
    r"""Gradients of :func:`batch_norm`, whose statistics are constants (frozen batch norm).

    .. math:: dx = \mathrm{weight} \cdot dz / \sqrt{\mathrm{running\_var} + \epsilon}

    All else is as for :func:`batch_norm_backward`.
    """
    return _dlkern.batch_norm_backward(
        dy, x, weight, running_mean, running_var, False, y, activation, eps, bias, layout, out,
        out_weight, out_bias, out_residual, stream,
    )  # fmt: skip
