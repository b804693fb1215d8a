"""Group and instance normalisation, and their gradients."""

from __future__ import annotations

from typing import Any

from dlkern import _dlkern


def group_norm(
    x: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    *,
    activation: str | None = None,
    eps: float = 1e-5,
    layout: str = "NCHW",
    return_stats: bool = False,
    out: Any = None,
    out_mean: Any = None,
    out_rstd: Any = None,
    stream: Any = None,
) -> Any:
    r"""Normalisation of each sample over groups of neighbouring channels.

    .. math:: y = f((x - \mu_{ng}) \, r_{ng} \cdot \mathrm{weight}_c + \mathrm{bias}_c), \quad
              r = 1 / \sqrt{\sigma^2 + \epsilon}

    Parameters
    ----------
    x : array
        [N, C, spatial...] or, by `layout`, [N, spatial..., C]; rank 2 to 5, any strides. float64,
        float32, float16 or bfloat16; 16-bit values are computed in float32.
    num_groups : int
        Divides C.
    weight, bias : array, optional
        [C], of x's dtype or, beside 16-bit x, of float32. None counts as 1 and 0.
    activation : str, optional
        f: "relu" or "silu".
    eps : float
        Added to the variance.
    layout : str
        "NCHW" or "NHWC", for any rank; also "NCW", "NWC", "NCDHW", "NDHWC".
    return_stats : bool
        Return what :func:`group_norm_backward` needs, too.
    out, out_mean, out_rstd : array, optional
        Written instead of new arrays; `out` may be `x` itself. The statistics' ones imply
        `return_stats`.
    stream : int or object with ``__cuda_stream__``, optional
        The stream to run on; default: the current stream of x's framework.

    Returns
    -------
    y : array
        Shape, dtype, framework and device of `x`.
    mean, rstd : array
        With `return_stats`: [N, num_groups], float64 for float64 and float32 for all others.

    Raises
    ------
    ValueError
        Wrong shape, num_groups, layout, activation, eps or device, or an output that cannot be
        written.
    TypeError
        Wrong dtype, or not an array.
    """
    stats = return_stats or out_mean is not None or out_rstd is not None
    return _dlkern.group_norm(
        x, num_groups, weight, bias, activation, eps, layout, stats, out, out_mean, out_rstd, stream
    )


def group_norm_backward(
    dy: Any,
    x: Any,
    num_groups: int,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    activation: str | None = None,
    bias: Any = None,
    layout: str = "NCHW",
    out: Any = None,
    out_weight: Any = None,
    out_bias: Any = None,
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    r"""Gradients of :func:`group_norm`.

    With :math:`\hat{x} = (x - \mu) r`, :math:`dz = dy \, f'(\hat{x} \cdot \mathrm{weight} +
    \mathrm{bias})`, :math:`g = dz \cdot \mathrm{weight}` and averages over the group:

    .. math:: dx = r \, (g - \overline{g} - \hat{x} \, \overline{g \hat{x}}), \quad
              d\mathrm{weight} = \sum dz \, \hat{x}, \quad d\mathrm{bias} = \sum dz

    Parameters
    ----------
    dy, x : array
        Gradient of the loss with respect to y, and the input of the forward call.
    num_groups : int
        As in the forward call.
    weight : array or None
        As in the forward call.
    mean, rstd : array
        What the forward call returned.
    activation : str, optional
        As in the forward call.
    bias : array or bool, optional
        The bias of the forward call, needed where there is an activation; or whether dbias is
        wanted. Default: where `weight` is given.
    layout : str
        As in the forward call.
    out, out_weight, out_bias : array, optional
        Written instead of new arrays. `out` receives dx and may be `dy` or `x` itself; the others
        have x's dtype or, beside 16-bit x, float32.
    stream : int or object with ``__cuda_stream__``, optional
        As for :func:`group_norm`.

    Returns
    -------
    dx, dweight, dbias : array or None
        `dx` like `x`; the others [C] in weight's dtype. None in place of a gradient that is not
        wanted (dweight without `weight`).
    """
    return _dlkern.group_norm_backward(
        dy, x, num_groups, weight, mean, rstd, activation, bias, layout, out, out_weight, out_bias,
        stream,
    )  # fmt: skip


def instance_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    activation: str | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    layout: str = "NCHW",
    return_stats: bool = False,
    out: Any = None,
    out_mean: Any = None,
    out_rstd: Any = None,
    stream: Any = None,
) -> Any:
    r"""Normalisation of each channel of each sample with its own statistics.

    What :func:`group_norm` computes with a group for each channel; `x` needs at least two values
    for each. With running statistics in place of its own x is normalised by :func:`batch_norm`.

    Parameters
    ----------
    x, weight, bias, activation, eps, layout, return_stats, out, out_mean, out_rstd, stream
        As for :func:`group_norm`; mean and rstd are [N, C].
    running_mean, running_var : array, optional
        [C], both or neither. Updated in place to
        ``(1 - momentum) * running + momentum * average over N``, of the means and of the unbiased
        variances.
    momentum : float
        See above.

    Returns
    -------
    y, mean, rstd : array
        As for :func:`group_norm`.

    Raises
    ------
    ValueError
        Also where there are fewer than two values per sample and channel.
    """
    stats = return_stats or out_mean is not None or out_rstd is not None
    return _dlkern.instance_norm(
        x, weight, bias, running_mean, running_var, activation, momentum, eps, layout, stats, out,
        out_mean, out_rstd, stream,
    )  # fmt: skip


def instance_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    activation: str | None = None,
    bias: Any = None,
    layout: str = "NCHW",
    out: Any = None,
    out_weight: Any = None,
    out_bias: Any = None,
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    """Gradients of :func:`instance_norm`: as :func:`group_norm_backward`."""
    return _dlkern.group_norm_backward(
        dy, x, None, weight, mean, rstd, activation, bias, layout, out, out_weight, out_bias, stream
    )
