"""Convolutions with what follows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dlkern
from dlkern.torch import _shapes as shapes
from dlkern.torch._op import Op, compute, use
from dlkern.torch._ops.conv import _TRANSPOSED, _WINDOW
from dlkern.torch._ops.gemm import _through_activation
from dlkern.torch._registry import run


def _results(x: Tensor, y: Tensor, layout: str, return_stats: bool) -> tuple[Any, Any, Any]:
    if not return_stats:
        return y, None, None
    channels = [shapes.channels(y, layout)]
    return y, shapes.statistic(x, channels), shapes.statistic(x, channels)


def _conv(x, weight, stride, padding, dilation, layout, return_stats):
    y = shapes.conv(x, weight, stride, padding, dilation, layout)
    return _results(x, y, layout, return_stats)


def _conv_transpose(x, weight, stride, padding, output_padding, dilation, groups, layout,
                    return_stats):  # fmt: skip
    y = shapes.conv_transpose(x, weight, stride, padding, output_padding, dilation, groups, layout)
    return _results(x, y, layout, return_stats)


def _with_preactivation(results: tuple[Any, ...], activation: str | None) -> tuple[Any, ...]:
    return *results, None if activation is None else torch.empty_like(results[0])


def _conv_saving(x, weight, activation, stride, padding, dilation, layout, return_stats):
    results = _conv(x, weight, stride, padding, dilation, layout, return_stats)
    return _with_preactivation(results, activation)


def _conv_transpose_saving(x, weight, activation, stride, padding, output_padding, dilation,
                           groups, layout, return_stats):  # fmt: skip
    results = _conv_transpose(x, weight, stride, padding, output_padding, dilation, groups, layout,
                              return_stats)  # fmt: skip
    return _with_preactivation(results, activation)


def _through_scale(sums: Callable[[], Tensor], dz: Tensor, x: Tensor, bias: Any, scale: Any,
                   layout: str) -> tuple[Any, Any, Any]:  # fmt: skip
    """Scale and bias are batch norm with a mean of 0 and a variance of 1."""
    like = bias if scale is None else scale
    if scale is None and (bias is None or bias.dtype == x.dtype):
        return dz, None, None
    zeros, ones = torch.zeros_like(like), torch.ones_like(like)
    dsums, dscale, dshift, _ = run(
        "batch_norm_inference_backward", dz, sums(), ones if scale is None else scale, zeros, ones,
        None, None, 0.0, bias, layout,
    )  # fmt: skip
    return dsums, dscale, dshift


def _through_conv_scale(dz, x, weight, bias, scale, stride, padding, dilation, groups, layout,
                        precision):  # fmt: skip
    def sums() -> Tensor:
        window = (stride, padding, dilation, groups, layout, precision)
        return run("conv", x, weight, None, *window)

    return _through_scale(sums, dz, x, bias, scale, layout)


def _through_conv_transpose_scale(dz, x, weight, bias, scale, stride, padding, output_padding,
                                  dilation, groups, layout, precision):  # fmt: skip
    def sums() -> Tensor:
        window = (stride, padding, output_padding, dilation, groups, layout, precision)
        return run("conv_transpose", x, weight, None, *window)

    return _through_scale(sums, dz, x, bias, scale, layout)


def _bias_gradient(dchannels: Tensor | None, dshift: Tensor | None) -> Tensor | None:
    return dchannels if dshift is None else dshift


def _forward(name: str, preactivation: bool) -> Callable[..., Any]:
    plain = getattr(dlkern, f"{name}_bias_act")
    more = ["output_padding"] if name == "conv_transpose" else []
    names = ["stride", "padding", *more, "dilation", "groups", "layout", "precision"]
    defaults = {"groups": 1, "layout": "NCHW", "precision": "ieee", "return_stats": False}

    def forward(x, weight, bias, scale, residual, activation, alpha, *rest):
        options = defaults | dict(zip([*names, "return_stats"], rest, strict=False))
        options["padding"] = shapes.unpaired(options["padding"])
        keeps = preactivation and activation is not None
        results = plain(x, weight, bias, scale=scale, residual=residual, activation=activation,
                        alpha=alpha, preactivation=keeps, **options)  # fmt: skip
        y, *others = results if isinstance(results, tuple) else (results,)
        z = others.pop(0) if keeps else None
        mean, var = others or (None, None)
        return (y, mean, var, z) if preactivation else (y, mean, var)

    return forward


def _fused(name: str, window: str, fake: Callable[..., Any], fake_saving: Callable[..., Any],
           through: Callable[..., Any]) -> list[Op]:  # fmt: skip
    arguments = (
        "(Tensor x, Tensor weight, Tensor? bias, Tensor? scale, Tensor? residual,"
        f" str? activation, float? alpha, {window}, bool return_stats=False)"
    )
    results, saving = "Tensor y, Tensor? mean, Tensor? var", f"{name}_bias_act_with_preactivation"
    return [
        Op(
            f"{name}_bias_act{arguments} -> ({results})",
            fake,
            _forward(name, False),
            backward=[
                compute("dz", _through_activation),
                compute("dsums dscale dshift", through),
                use(f"{name}_backward_input", dy="dsums"),
                use(f"{name}_backward_weight", "dweight", "dchannels", dy="dsums"),
                compute("dbias", _bias_gradient),
            ],
            gradients={"residual": "dz"},
            saving=saving,
            autocast="lower",
        ),
        Op(
            f"{saving}{arguments} -> ({results}, Tensor? preactivation)",
            fake_saving,
            _forward(name, True),
            autocast="lower",
        ),
    ]


ROWS = [
    *_fused("conv", _WINDOW, _conv, _conv_saving, _through_conv_scale),
    *_fused("conv_transpose", _TRANSPOSED, _conv_transpose, _conv_transpose_saving,
            _through_conv_transpose_scale),
]  # fmt: skip
