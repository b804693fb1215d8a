"""The table of ops: one row each. :class:`~dlkern._glue.op.Op` says what the columns mean.

An op of dlkern without a row works too, by the defaults: it has no derivative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dlkern._glue.op import Op, gives


def _summed(ops: Any, dy: Any, shape: tuple[int, ...], factor: float = 1.0) -> Any:
    """The gradient of a summand that was broadcast and multiplied."""
    return ops.add_backward(dy, shape, alpha=factor)[0]


# ---- Activations, softmax, sums ------------------------------------------------------------------

_ACTIVATIONS = ("relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "tanh", "softplus", "relu6",
                "hardswish", "hardsigmoid", "mish", "selu")  # fmt: skip

ROWS = [
    row
    for name in _ACTIVATIONS
    for row in (Op(name, gradient=[f"{name}_backward -> dx"]), Op(f"{name}_backward", "dx"))
]


def _gated_results(up: Any) -> str:
    return "dgate" if up is None else "dgate dup"


for _name in ("swiglu", "geglu", "reglu", "glu"):
    ROWS += [
        Op(_name, gradient=[f"{_name}_backward -> dgate dup"]),
        Op(f"{_name}_backward", _gated_results),
    ]


def _mask_gradient(ops: Any, dx: Any, mask_shape: tuple[int, ...], scale: float) -> Any:
    return _summed(ops, dx, mask_shape, 1 / scale)


for _name in ("softmax", "log_softmax"):
    ROWS += [
        Op(_name, gradient=[f"{_name}_backward -> dx"], gradients={"mask": _mask_gradient}),
        Op(f"{_name}_backward", "dx"),
    ]  # fmt: skip


def _added_again(ops: Any, dy_shape: tuple[int, ...], alpha: float, beta: float, dda: Any = None,
                 ddb: Any = None) -> Mapping[str, Any]:  # fmt: skip
    """None for a summand whose gradient was not computed."""
    if ddb is None:
        ddb, beta = dda, 0.0
    elif dda is None:
        dda, alpha = ddb, 0.0
    return {"ddy": ops.broadcast_to(ops.add(dda, ddb, alpha=alpha, beta=beta), dy_shape)}


ROWS += [
    Op("add", gradient=["add_backward -> da db"]),
    Op("add_backward", "da db", gradient=[_added_again]),
    Op("dropout", gradient=["dropout_backward -> dx"], gradients={"residual": "dy"}),
    Op("dropout_backward", "dx",
       gradient=[lambda ops, ddx, p, rng: {"ddy": ops.dropout_backward(ddx, p, rng=rng)}]),
    Op("embedding", gradient=["embedding_backward -> dweight"]),
    Op("one_hot", constant=True),
]  # fmt: skip


# ---- Rotary embedding ----------------------------------------------------------------------------


def _rotated(ops: Any, ddx: Any, cos: Any, sin: Any, positions: Any, offset: int, base: float,
             rotary_dim: Any, interleaved: bool, layout: str) -> Mapping[str, Any]:  # fmt: skip
    return {"ddy": ops.rope(ddx, cos=cos, sin=sin, positions=positions, offset=offset, base=base,
                            rotary_dim=rotary_dim, interleaved=interleaved,
                            layout=layout)}  # fmt: skip


ROWS += [
    Op(
        "rope",
        gradient=["rope_backward -> dx"],
        constants=("cos", "sin"),
        sequence=lambda x: isinstance(x, list),
    ),
    Op(
        "rope_backward",
        "dx",
        gradient=[_rotated],
        constants=("cos", "sin"),
        sequence=lambda dy: isinstance(dy, list),
    ),
]


# ---- Products ------------------------------------------------------------------------------------


def _through_activation(
    ops: Any,
    dy: Any,
    preactivation: Any,
    activation: str | None,
    alpha: float | None,
    dpreactivation: Any = None,
) -> Mapping[str, Any]:
    """From y to the preactivation; a residual is added behind the activation."""
    if activation is None:
        dz = dy
    elif activation == "gelu_tanh":
        dz = ops.gelu_backward(dy, preactivation, "tanh")
    else:
        options = () if alpha is None else (alpha,)
        dz = getattr(ops, f"{activation}_backward")(dy, preactivation, *options)
    return {"dz": dz if dpreactivation is None else ops.add(dz, dpreactivation)}


@gives("dx")
def _linear_input(ops: Any, dz: Any, weight: Any, precision: str,
                  batch_invariant: bool) -> Mapping[str, Any]:  # fmt: skip
    return {"dx": ops.linear_backward_input(dz, weight, precision=precision,
                                            batch_invariant=batch_invariant)}  # fmt: skip


@gives("dweight", "dbias")
def _linear_weight(ops: Any, dz: Any, x: Any, bias: Any, precision: str) -> Mapping[str, Any]:
    dweight, dbias = ops.linear_backward_weight(dz, x, bias=bias is not None, precision=precision)
    return {"dweight": dweight, "dbias": dbias}


# Second derivatives: products again.


def _linear_input_gradients(ops: Any, ddx: Any, dy: Any, weight: Any, activation: str | None,
                            precision: str) -> Mapping[str, Any]:  # fmt: skip
    if activation is not None:
        return {}
    return {"ddy": ops.linear(ddx, weight, precision=precision),
            "dweight": ops.linear_backward_weight(dy, ddx, precision=precision)[0]}  # fmt: skip


def _linear_weight_gradients(ops: Any, ddweight: Any, dy: Any, x: Any, precision: str,
                             ddbias: Any = None) -> Mapping[str, Any]:  # fmt: skip
    return {"ddy": ops.linear(x, ddweight, ddbias, precision=precision),
            "dx": ops.linear_backward_input(dy, ddweight, precision=precision)}  # fmt: skip


def _matmul_gradients(ops: Any, dda: Any, ddb: Any, dy: Any, a: Any, b: Any, alpha: float,
                      precision: str) -> Mapping[str, Any]:  # fmt: skip
    through_b = ops.matmul(a, ddb, alpha=alpha, precision=precision)
    return {
        "ddy": ops.matmul(dda, b, through_b, alpha=alpha, precision=precision),
        "da": ops.matmul_backward(dy, a, ddb, alpha=alpha, precision=precision)[0],
        "db": ops.matmul_backward(dy, dda, b, alpha=alpha, precision=precision)[1],
    }


def _grouped_gradients(ops: Any, dy: Any, a: Any, b: Any, offsets: Any, precision: str,
                       batch_invariant: bool) -> Mapping[str, Any]:  # fmt: skip
    options = {"precision": precision, "batch_invariant": batch_invariant}
    if isinstance(a, list) or b.ndim == 3:
        da, db = ops.grouped_matmul_backward(dy, a, b, offsets, **options)
        return {"da": da, "db": db}

    def product(x: Any, y: Any) -> Any:
        return ops.grouped_matmul(x, y, offsets, precision=precision)

    transpose = ops.matrix_transpose
    return {"da": transpose(product(b, transpose(dy))), "db": product(transpose(a), dy)}


def _grouped_bias(ops: Any, dy: Any, offsets: Any, precision: str) -> Any:
    ones = ops.ones((1, dy.shape[0]), dy.dtype)
    return ops.grouped_matmul(ones, dy, offsets, precision=precision)[:, 0]


ROWS += [
    Op("matmul", gradient=["matmul_backward -> da db"],
       gradients={"c": lambda ops, dy, c_shape, beta: _summed(ops, dy, c_shape, beta)}),
    Op("matmul_backward", "da db", gradient=[_matmul_gradients]),
    Op("linear", lambda preactivation: "y preactivation" if preactivation else "y",
       gradient=[_through_activation, _linear_input, _linear_weight],
       gradients={"residual": lambda ops, dy, residual_shape: _summed(ops, dy, residual_shape)},
       saving=lambda activation: {"preactivation": True} if activation is not None else {}),
    Op("linear_backward_input", "dx", gradient=[_linear_input_gradients]),
    Op("linear_backward_weight", "dweight dbias", gradient=[_linear_weight_gradients]),
    Op("grouped_matmul", gradient=[_grouped_gradients], gradients={"bias": _grouped_bias},
       constants=("scale_a", "scale_b")),
]  # fmt: skip


# ---- Convolution, pooling ------------------------------------------------------------------------


def _with_indices(return_indices: bool) -> str:
    return "y indices" if return_indices else "y"


def _save_indices(x: Any, kernel: Any, return_indices: bool) -> Mapping[str, Any]:
    """Of the smallest dtype, for a gradient that only dlkern reads."""
    if return_indices:
        return {}
    if isinstance(kernel, tuple):
        taps = math.prod(kernel)
    else:
        taps = 257 if kernel is None else kernel ** (x.ndim - 2)
    return {"return_indices": True, "index_dtype": "uint8" if taps <= 256 else "int32"}


def _conv(name: str) -> list[Op]:
    transposed = name == "conv_transpose"

    def window(stride: Any, padding: Any, output_padding: Any, dilation: Any, groups: int,
               layout: str, precision: str) -> dict[str, Any]:  # fmt: skip
        more = {"output_padding": output_padding} if transposed else {}
        return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups,
                "layout": layout, "precision": precision, **more}  # fmt: skip

    # Second derivatives: convolutions again.
    def of_input(ops: Any, ddx: Any, dy: Any, weight: Any, stride: Any, padding: Any,
                 output_padding: Any, dilation: Any, groups: int, layout: str,
                 precision: str) -> Any:  # fmt: skip
        w = window(stride, padding, output_padding, dilation, groups, layout, precision)
        dweight, _ = getattr(ops, f"{name}_backward_weight")(dy, ddx, weight.shape, **w)
        return {"ddy": getattr(ops, name)(ddx, weight, **w), "dweight": dweight}

    def of_weight(ops: Any, ddweight: Any, dy: Any, x: Any, stride: Any, padding: Any,
                  output_padding: Any, dilation: Any, groups: int, layout: str,
                  precision: str, ddbias: Any = None) -> Any:  # fmt: skip
        w = window(stride, padding, output_padding, dilation, groups, layout, precision)
        dx = getattr(ops, f"{name}_backward_input")(dy, ddweight, x.shape, **w)
        return {"ddy": getattr(ops, name)(x, ddweight, ddbias, **w), "dx": dx}

    return [
        Op(name, gradient=[f"{name}_backward_input -> dx",
                           f"{name}_backward_weight -> dweight dbias"]),
        Op(f"{name}_backward_input", "dx", gradient=[of_input]),
        Op(f"{name}_backward_weight", "dweight dbias", gradient=[of_weight]),
    ]  # fmt: skip


ROWS += [*_conv("conv"), *_conv("conv_transpose")]


def _fused_results(preactivation: bool, return_stats: bool) -> str:
    return "y" + " preactivation" * preactivation + " mean var" * return_stats


def _fused_conv(name: str) -> Op:
    """A convolution and what follows it; its statistics are constants."""

    def through_scale(ops: Any, dz: Any, x: Any, weight: Any, scale: Any, bias: Any, stride: Any,
                      padding: Any, output_padding: Any, dilation: Any, groups: int, layout: str,
                      precision: str) -> Mapping[str, Any]:  # fmt: skip
        """Scale and bias are batch norm with a mean of 0 and a variance of 1."""
        if scale is None and (bias is None or bias.dtype == x.dtype):
            return {"dsums": dz}
        more = {"output_padding": output_padding} if name == "conv_transpose" else {}
        sums = getattr(ops, name)(x, weight, stride=stride, padding=padding, dilation=dilation,
                                  groups=groups, layout=layout, precision=precision,
                                  **more)  # fmt: skip
        like = bias if scale is None else scale
        zeros, ones = ops.zeros(like.shape, like.dtype), ops.ones(like.shape, like.dtype)
        dsums, dscale, dbias = ops.batch_norm_inference_backward(
            dz, sums, ones if scale is None else scale, zeros, ones, eps=0.0, bias=True,
            layout=layout,
        )  # fmt: skip
        return {"dsums": dsums, "dscale": dscale, "dshift": dbias}

    def parameters(ops: Any, dsums: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any,
                   output_padding: Any, dilation: Any, groups: int, layout: str, precision: str,
                   dshift: Any = None) -> Mapping[str, Any]:  # fmt: skip
        more = {"output_padding": output_padding} if name == "conv_transpose" else {}
        window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups,
                  "layout": layout, "precision": precision, **more}  # fmt: skip
        dx = getattr(ops, f"{name}_backward_input")(dsums, weight, x.shape, **window)
        dweight, dbias = getattr(ops, f"{name}_backward_weight")(
            dsums, x, weight.shape, bias=bias is not None and dshift is None, **window
        )
        return {"dx": dx, "dweight": dweight, "dbias": dbias if dshift is None else dshift}

    return Op(
        f"{name}_bias_act",
        _fused_results,
        gradient=[_through_activation, through_scale, parameters],
        gradients={"residual": "dz"},
        saving=lambda activation: {"preactivation": True} if activation is not None else {},
    )


ROWS += [_fused_conv("conv"), _fused_conv("conv_transpose")]


def _averaged(ops: Any, ddx: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
              count_include_pad: bool, divisor_override: Any, layout: str) -> Any:  # fmt: skip
    return {"ddy": ops.avg_pool(ddx, kernel, stride=stride, padding=padding, ceil_mode=ceil_mode,
                                count_include_pad=count_include_pad,
                                divisor_override=divisor_override, layout=layout)}  # fmt: skip


def _extents(dy: Any, layout: str) -> tuple[int, ...]:
    return dy.shape[1:-1] if layout.endswith("C") else dy.shape[2:]


ROWS += [
    Op("avg_pool", gradient=["avg_pool_backward -> dx"]),
    Op("avg_pool_backward", "dx", gradient=[_averaged]),
    Op("adaptive_avg_pool", gradient=["adaptive_avg_pool_backward -> dx"]),
    Op("adaptive_avg_pool_backward", "dx", derived={"output_size": _extents},
       gradient=[lambda ops, ddx, output_size, layout: {
           "ddy": ops.adaptive_avg_pool(ddx, output_size, layout=layout)}]),
    Op("max_pool", _with_indices, gradient=["max_pool_backward -> dx"], saving=_save_indices),
    Op("adaptive_max_pool", _with_indices, gradient=["adaptive_max_pool_backward -> dx"],
       saving=lambda return_indices: {} if return_indices else {"return_indices": True,
                                                                "index_dtype": "int32"}),
    Op("max_pool_backward", "dx"),
    Op("adaptive_max_pool_backward", "dx"),
    Op("lp_pool", gradient=["lp_pool_backward -> dx"]),
    Op("lp_pool_backward", "dx"),
]  # fmt: skip


# ---- Normalisation -------------------------------------------------------------------------------


def _layer_norm_results(residual: Any, return_stats: bool, amax: bool) -> str:
    return (f"y{' residual_out' * (residual is not None)}{' mean rstd' * return_stats}"
            f"{' amax' * amax}")  # fmt: skip


def _rms_norm_results(residual: Any, return_stats: bool, amax: bool) -> str:
    return f"y{' residual_out' * (residual is not None)}{' rstd' * return_stats}{' amax' * amax}"


def _stats_results(return_stats: bool) -> str:
    return "y mean rstd" if return_stats else "y"


_SAVE_STATS: dict[str, Any] = {"saving": lambda: {"return_stats": True}}
_ROWS_NORM: dict[str, Any] = {
    "constants": ("scale_out",),
    "gradients": {"residual": "dx"},
    "derived": {"x": lambda x, residual_out: x if residual_out is None else residual_out},
    **_SAVE_STATS,
}
# A gradient that came in for the sum itself.
_SUM: Any = lambda dresidual_out=None: {"dresidual": dresidual_out}  # noqa: E731
_RESIDUAL = {"y": lambda y, residual: None if residual is None else y}
_CHANNELS = "dx dweight dbias"
_RUNNING = ("running_mean", "running_var")

ROWS += [
    Op("layer_norm", _layer_norm_results, gradient=[_SUM, f"layer_norm_backward -> {_CHANNELS}"],
       **_ROWS_NORM),
    Op("rms_norm", _rms_norm_results, gradient=[_SUM, "rms_norm_backward -> dx dweight"],
       **_ROWS_NORM),
    Op("batch_norm", gradient=[f"batch_norm_inference_backward -> {_CHANNELS} dresidual"],
       constants=_RUNNING, derived=_RESIDUAL),
    Op("batch_norm_training", lambda stats: "y rstd" if stats else "y mean rstd",
       (*_RUNNING, "num_batches_tracked"),
       gradient=[f"batch_norm_backward -> {_CHANNELS} dresidual"],
       constants=(*_RUNNING, "stats"),
       derived={**_RESIDUAL, "mean": lambda stats, mean: stats[0] if stats else mean}),
    Op("group_norm", _stats_results, gradient=[f"group_norm_backward -> {_CHANNELS}"],
       **_SAVE_STATS),
    Op("instance_norm", _stats_results, _RUNNING,
       gradient=[f"instance_norm_backward -> {_CHANNELS}"], constants=_RUNNING, **_SAVE_STATS),
]  # fmt: skip


# ---- Losses --------------------------------------------------------------------------------------

_NEGATIVE = {"target": lambda ops, dx: ops.add(dx, dx, alpha=-1.0, beta=0.0)}

ROWS += [
    Op("cross_entropy", "loss", gradient=["cross_entropy_backward -> dlogits"],
       constants=("weight", "labels")),
    Op("nll_loss", "loss", gradient=["nll_loss_backward -> dlog_p"], constants=("weight",)),
    *(
        Op(name, "loss", gradient=[f"{name}_backward -> dx"], gradients=_NEGATIVE)
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
    ),
    *(
        Op(name, "loss", gradient=[f"{name}_backward -> dx"],
           constants=("target", "weight", "pos_weight"))
        for name in ("binary_cross_entropy_with_logits", "kl_div")
    ),
]  # fmt: skip


# ---- Reductions ----------------------------------------------------------------------------------


def _reduced_again(name: str) -> Any:
    return lambda ops, ddx, axis, keepdims: {
        "ddy": getattr(ops, name)(ddx, axis, keepdims=keepdims)
    }


for _name in ("sum", "mean"):
    ROWS += [
        Op(_name, gradient=[f"{_name}_backward -> dx"]),
        Op(f"{_name}_backward", "dx", gradient=[_reduced_again(_name)],
           derived={"keepdims": lambda dy, shape: dy.ndim == len(shape)}),
    ]  # fmt: skip
for _name in ("max", "min", "prod", "logsumexp", "vector_norm", "var", "std"):
    ROWS += [Op(_name, gradient=[f"{_name}_backward -> dx"]), Op(f"{_name}_backward", "dx")]
ROWS += [
    Op("any", constant=True),
    Op("all", constant=True),
    Op("argmax", constant=True),
    Op("argmin", constant=True),
    Op("top_k", "y indices", gradient=["top_k_backward -> dx"]),
    Op("top_k_backward", "dx"),
]


# ---- Layout --------------------------------------------------------------------------------------


def _permuted_back(ops: Any, dy: Any, axes: tuple[int, ...]) -> Mapping[str, Any]:
    axes = tuple(a % len(axes) for a in axes)
    return {"dx": ops.permute(dy, tuple(axes.index(d) for d in range(len(axes))))}


ROWS += [
    Op("permute", gradient=[_permuted_back]),
    Op("nchw_to_nhwc", gradient=[lambda ops, dy: {"dx": ops.nhwc_to_nchw(dy)}]),
    Op("nhwc_to_nchw", gradient=[lambda ops, dy: {"dx": ops.nchw_to_nhwc(dy)}]),
    Op("contiguous", gradient=[lambda dy: {"dx": dy}]),
    Op("cast", gradient=[lambda ops, dy, x_dtype: {"dx": ops.cast(dy, x_dtype)}],
       derived={"x_dtype": lambda x: x.dtype.name}),
    Op("concat", gradient=[lambda ops, dy, extents, axis: {
           "darrays": list(ops.split(dy, extents, axis))}],
       derived={"extents": lambda arrays, axis: tuple(a.shape[axis] for a in arrays)}),
    Op("split", gradient=[lambda ops, dy, axis: {"dx": ops.concat(dy, axis)}],
       sequence=lambda: True),
]  # fmt: skip


# ---- Optimizers ----------------------------------------------------------------------------------

ROWS += [
    Op("sgd_step", "", ("param", "momentum_buffer", "copy")),
    Op("adamw_step", "", ("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "copy")),
    Op("lion_step", "", ("param", "exp_avg", "copy")),
    Op("grad_norm", "norm grad_scale found_inf"),
    Op("scale_grads", "", ("grad", "found_inf")),
    Op("update_loss_scale", "", ("loss_scale", "growth_tracker", "step")),
]
