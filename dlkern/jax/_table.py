"""The table of ops: one row each. :class:`~dlkern.jax._ops.Op` says what the columns mean.

An op of dlkern without a row works too, by the defaults: it has no derivative, and a batch of it is
computed item by item.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dlkern.jax import _batches as batch
from dlkern.jax._ops import FUNCTIONS, Op


def _run(name: str, *args: Any, **kwargs: Any) -> Any:
    return FUNCTIONS[name](*args, **kwargs)


def _summed(dy: Any, shape: tuple[int, ...], factor: float = 1.0) -> Any:
    """The gradient of a summand that was broadcast and multiplied."""
    return _run("add_backward", dy, shape, alpha=factor)[0]


# ---- Activations, softmax, sums ------------------------------------------------------------------

_ACTIVATIONS = ("relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "tanh", "softplus", "relu6",
                "hardswish", "hardsigmoid", "mish", "selu")  # fmt: skip

ROWS = [
    row
    for name in _ACTIVATIONS
    for row in (
        Op(name, gradient=[f"{name}_backward -> dx"], batch=batch.leading("x")),
        Op(f"{name}_backward", "dx", batch=batch.leading("dy", "x")),
    )
]


def _gated_results(up: Any) -> str:
    return "dgate" if up is None else "dgate dup"


for _name in ("swiglu", "geglu", "reglu", "glu"):
    ROWS += [
        Op(_name, gradient=[f"{_name}_backward -> dgate dup"], batch=batch.leading("gate", "up")),
        Op(f"{_name}_backward", _gated_results, batch=batch.leading("dy", "gate", "up")),
    ]


def _mask_gradient(dx: Any, mask_shape: tuple[int, ...], scale: float) -> Any:
    return _summed(dx, mask_shape, 1 / scale)


for _name in ("softmax", "log_softmax"):
    ROWS += [
        Op(_name, gradient=[f"{_name}_backward -> dx"], gradients={"mask": _mask_gradient},
           batch=batch.along_axis("x")),
        Op(f"{_name}_backward", "dx", batch=batch.along_axis("dy", "y")),
    ]  # fmt: skip


def _added_again(
    dy_shape: tuple[int, ...], alpha: float, beta: float, dda: Any = None, ddb: Any = None
) -> Mapping[str, Any]:
    """None for a summand whose gradient was not computed."""
    if ddb is None:
        ddb, beta = dda, 0.0
    elif dda is None:
        dda, alpha = ddb, 0.0
    return {"ddy": jnp.broadcast_to(_run("add", dda, ddb, alpha=alpha, beta=beta), dy_shape)}


def _words(rng: Any) -> Any:
    """Seed and offset; of a key the seed, with the offset 0."""
    if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        rng = jax.random.key_data(rng)
    if rng.dtype == jnp.uint32 and rng.shape == (2,):
        rng = jnp.concatenate([rng, jnp.zeros(2, jnp.uint32)])
    return rng


_RNG: dict[str, Any] = {"prepare": {"rng": _words}, "views": {"rng": "uint64"}}

ROWS += [
    Op("add", gradient=["add_backward -> da db"], batch=batch.broadcast(0)),
    Op("add_backward", "da db", gradient=[_added_again]),
    Op("dropout", gradient=["dropout_backward -> dx"], gradients={"residual": "dy"}, **_RNG),
    Op("dropout_backward", "dx", **_RNG,
       gradient=[lambda ddx, p, rng: {"ddy": _run("dropout_backward", ddx, p, rng=rng)}]),
    Op("embedding", gradient=["embedding_backward -> dweight"], batch=batch.leading("ids")),
    Op("one_hot", constant=True, batch=batch.leading("ids")),
]  # fmt: skip


# ---- Rotary embedding ----------------------------------------------------------------------------


def _rotated(ddx: Any, cos: Any, sin: Any, positions: Any, offset: int, base: float,
             rotary_dim: Any, interleaved: bool, layout: str) -> Mapping[str, Any]:  # fmt: skip
    return {"ddy": _run("rope", ddx, cos=cos, sin=sin, positions=positions, offset=offset,
                        base=base, rotary_dim=rotary_dim, interleaved=interleaved,
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
        dz = _run("gelu_backward", dy, preactivation, "tanh")
    else:
        options = () if alpha is None else (alpha,)
        dz = _run(f"{activation}_backward", dy, preactivation, *options)
    return {"dz": dz if dpreactivation is None else _run("add", dz, dpreactivation)}


def _linear_input(dz: Any, weight: Any, precision: str,
                  batch_invariant: bool) -> Mapping[str, Any]:  # fmt: skip
    return {"dx": _run("linear_backward_input", dz, weight, precision=precision,
                       batch_invariant=batch_invariant)}  # fmt: skip


def _linear_weight(dz: Any, x: Any, bias: Any, precision: str) -> Mapping[str, Any]:
    dweight, dbias = _run("linear_backward_weight", dz, x, bias=bias is not None,
                          precision=precision)  # fmt: skip
    return {"dweight": dweight, "dbias": dbias}


# Second derivatives: products again.


def _linear_input_gradients(ddx: Any, dy: Any, weight: Any, activation: str | None,
                            precision: str) -> Mapping[str, Any]:  # fmt: skip
    if activation is not None:
        return {}
    return {"ddy": _run("linear", ddx, weight, precision=precision),
            "dweight": _run("linear_backward_weight", dy, ddx, precision=precision)[0]}  # fmt: skip


def _linear_weight_gradients(ddweight: Any, dy: Any, x: Any, precision: str,
                             ddbias: Any = None) -> Mapping[str, Any]:  # fmt: skip
    return {"ddy": _run("linear", x, ddweight, ddbias, precision=precision),
            "dx": _run("linear_backward_input", dy, ddweight, precision=precision)}  # fmt: skip


def _matmul_gradients(dda: Any, ddb: Any, dy: Any, a: Any, b: Any, alpha: float,
                      precision: str) -> Mapping[str, Any]:  # fmt: skip
    through_b = _run("matmul", a, ddb, alpha=alpha, precision=precision)
    return {
        "ddy": _run("matmul", dda, b, through_b, alpha=alpha, precision=precision),
        "da": _run("matmul_backward", dy, a, ddb, alpha=alpha, precision=precision)[0],
        "db": _run("matmul_backward", dy, dda, b, alpha=alpha, precision=precision)[1],
    }


def _grouped_gradients(dy: Any, a: Any, b: Any, offsets: Any, precision: str,
                       batch_invariant: bool) -> Mapping[str, Any]:  # fmt: skip
    options = {"precision": precision, "batch_invariant": batch_invariant}
    if isinstance(a, list) or b.ndim == 3:
        da, db = _run("grouped_matmul_backward", dy, a, b, offsets, **options)
        return {"da": da, "db": db}

    def product(x: Any, y: Any) -> Any:
        return _run("grouped_matmul", x, y, offsets, precision=precision)

    return {"da": product(b, dy.mT).mT, "db": product(a.mT, dy)}


def _grouped_bias(dy: Any, offsets: Any, precision: str) -> Any:
    ones = jnp.ones((1, dy.shape[0]), dy.dtype)
    return _run("grouped_matmul", ones, dy, offsets, precision=precision)[:, 0]


ROWS += [
    Op("matmul", gradient=["matmul_backward -> da db"], batch=batch.broadcast(2),
       gradients={"c": lambda dy, c_shape, beta: _summed(dy, c_shape, beta)}),
    Op("matmul_backward", "da db", gradient=[_matmul_gradients]),
    Op("linear", lambda preactivation: "y preactivation" if preactivation else "y",
       gradient=[_through_activation, _linear_input, _linear_weight],
       gradients={"residual": lambda dy, residual_shape: _summed(dy, residual_shape)},
       saving=lambda activation: {"preactivation": True} if activation is not None else {},
       batch=batch.leading("x", "residual")),
    Op("linear_backward_input", "dx", gradient=[_linear_input_gradients],
       batch=batch.leading("dy", "preactivation")),
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
    def of_input(ddx: Any, dy: Any, weight: Any, stride: Any, padding: Any, output_padding: Any,
                 dilation: Any, groups: int, layout: str, precision: str) -> Any:  # fmt: skip
        w = window(stride, padding, output_padding, dilation, groups, layout, precision)
        dweight, _ = _run(f"{name}_backward_weight", dy, ddx, weight.shape, **w)
        return {"ddy": _run(name, ddx, weight, **w), "dweight": dweight}

    def of_weight(ddweight: Any, dy: Any, x: Any, stride: Any, padding: Any,
                  output_padding: Any, dilation: Any, groups: int, layout: str,
                  precision: str, ddbias: Any = None) -> Any:  # fmt: skip
        w = window(stride, padding, output_padding, dilation, groups, layout, precision)
        dx = _run(f"{name}_backward_input", dy, ddweight, x.shape, **w)
        return {"ddy": _run(name, x, ddweight, ddbias, **w), "dx": dx}

    return [
        Op(name, gradient=[f"{name}_backward_input -> dx",
                           f"{name}_backward_weight -> dweight dbias"], batch=batch.folded("x")),
        Op(f"{name}_backward_input", "dx", gradient=[of_input], batch=batch.folded("dy")),
        Op(f"{name}_backward_weight", "dweight dbias", gradient=[of_weight]),
    ]  # fmt: skip


ROWS += [*_conv("conv"), *_conv("conv_transpose")]


def _averaged(ddx: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
              count_include_pad: bool, divisor_override: Any, layout: str) -> Any:  # fmt: skip
    return {"ddy": _run("avg_pool", ddx, kernel, stride=stride, padding=padding,
                        ceil_mode=ceil_mode, count_include_pad=count_include_pad,
                        divisor_override=divisor_override, layout=layout)}  # fmt: skip


def _extents(dy: Any, layout: str) -> tuple[int, ...]:
    return dy.shape[1:-1] if layout.endswith("C") else dy.shape[2:]


ROWS += [
    Op("avg_pool", gradient=["avg_pool_backward -> dx"], batch=batch.folded("x")),
    Op("avg_pool_backward", "dx", gradient=[_averaged], batch=batch.folded("dy")),
    Op("adaptive_avg_pool", gradient=["adaptive_avg_pool_backward -> dx"],
       batch=batch.folded("x")),
    Op("adaptive_avg_pool_backward", "dx", derived={"output_size": _extents},
       gradient=[lambda ddx, output_size, layout: {
           "ddy": _run("adaptive_avg_pool", ddx, output_size, layout=layout)}],
       batch=batch.folded("dy")),
    Op("max_pool", _with_indices, gradient=["max_pool_backward -> dx"], saving=_save_indices,
       batch=batch.folded("x")),
    Op("adaptive_max_pool", _with_indices, gradient=["adaptive_max_pool_backward -> dx"],
       saving=lambda return_indices: {} if return_indices else {"return_indices": True,
                                                                "index_dtype": "int32"},
       batch=batch.folded("x")),
    Op("max_pool_backward", "dx", batch=batch.folded("dy", "indices")),
    Op("adaptive_max_pool_backward", "dx", batch=batch.folded("dy", "indices")),
    Op("lp_pool", gradient=["lp_pool_backward -> dx"], batch=batch.folded("x")),
    Op("lp_pool_backward", "dx", batch=batch.folded("dy", "x", "y")),
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
    "batch": batch.leading("x", "residual", unless="amax"),
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
       constants=_RUNNING, derived=_RESIDUAL, batch=batch.folded("x", "residual")),
    Op("batch_norm_training", "y mean rstd", (*_RUNNING, "num_batches_tracked"),
       gradient=[f"batch_norm_backward -> {_CHANNELS} dresidual"], constants=_RUNNING,
       derived=_RESIDUAL),
    Op("group_norm", _stats_results, gradient=[f"group_norm_backward -> {_CHANNELS}"],
       batch=batch.folded("x"), **_SAVE_STATS),
    Op("instance_norm", _stats_results, _RUNNING,
       gradient=[f"instance_norm_backward -> {_CHANNELS}"], constants=_RUNNING, **_SAVE_STATS),
]  # fmt: skip


# ---- Losses --------------------------------------------------------------------------------------

_NEGATIVE = {"target": lambda dx: _run("add", dx, dx, alpha=-1.0, beta=0.0)}

ROWS += [
    Op("cross_entropy", "loss", gradient=["cross_entropy_backward -> dlogits"],
       constants=("weight", "labels")),
    Op("nll_loss", "loss", gradient=["nll_loss_backward -> dlog_p"], constants=("weight",)),
    *(
        Op(name, "loss", gradient=[f"{name}_backward -> dx"], gradients=_NEGATIVE,
           batch=batch.elements("x", "target"))
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
    ),
    *(
        Op(name, "loss", gradient=[f"{name}_backward -> dx"],
           constants=("target", "weight", "pos_weight"), batch=batch.elements("x", "target"))
        for name in ("binary_cross_entropy_with_logits", "kl_div")
    ),
]  # fmt: skip


# ---- Reductions ----------------------------------------------------------------------------------


def _reduced_again(name: str) -> Any:
    return lambda ddx, axis, keepdims: {"ddy": _run(name, ddx, axis, keepdims=keepdims)}


for _name in ("sum", "mean"):
    ROWS += [
        Op(_name, gradient=[f"{_name}_backward -> dx"], batch=batch.reduced("x")),
        Op(f"{_name}_backward", "dx", gradient=[_reduced_again(_name)], batch=batch.reduced("dy"),
           derived={"keepdims": lambda dy, shape: dy.ndim == len(shape)}),
    ]  # fmt: skip
for _name, _saved in (("max", ("x", "y")), ("min", ("x", "y")),
                      ("prod", ("x",)), ("logsumexp", ("x", "y")), ("vector_norm", ("x", "y")),
                      ("var", ("x",)), ("std", ("x", "y"))):  # fmt: skip
    ROWS += [
        Op(_name, gradient=[f"{_name}_backward -> dx"], batch=batch.reduced("x")),
        Op(f"{_name}_backward", "dx", batch=batch.reduced("dy", *reversed(_saved))),
    ]
ROWS += [
    Op("any", constant=True, batch=batch.reduced("x")),
    Op("all", constant=True, batch=batch.reduced("x")),
    Op("argmax", constant=True),
    Op("argmin", constant=True),
    Op("top_k", "y indices", gradient=["top_k_backward -> dx"], batch=batch.along_axis("x")),
    Op("top_k_backward", "dx"),
]


# ---- Layout --------------------------------------------------------------------------------------


def _permuted_back(dy: Any, axes: tuple[int, ...]) -> Mapping[str, Any]:
    axes = tuple(a % len(axes) for a in axes)
    return {"dx": _run("permute", dy, tuple(axes.index(d) for d in range(len(axes))))}


ROWS += [
    Op("permute", gradient=[_permuted_back]),
    Op("nchw_to_nhwc", gradient=[lambda dy: {"dx": _run("nhwc_to_nchw", dy)}],
       batch=batch.folded("x")),
    Op("nhwc_to_nchw", gradient=[lambda dy: {"dx": _run("nchw_to_nhwc", dy)}],
       batch=batch.folded("x")),
    Op("contiguous", gradient=[lambda dy: {"dx": dy}], batch=batch.leading("x")),
    Op("cast", gradient=[lambda dy, x_dtype: {"dx": _run("cast", dy, x_dtype)}],
       derived={"x_dtype": lambda x: x.dtype.name}, batch=batch.leading("x")),
    Op("concat", gradient=[lambda dy, extents, axis: {
           "darrays": list(_run("split", dy, extents, axis))}],
       derived={"extents": lambda arrays, axis: tuple(a.shape[axis] for a in arrays)}),
    Op("split", gradient=[lambda dy, axis: {"dx": _run("concat", dy, axis)}],
       sequence=lambda: True),
]  # fmt: skip
