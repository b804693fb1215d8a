"""Batches as one call: the rule of each op that has one. Others are computed item by item."""

from __future__ import annotations

from dlkern.jax._batches import along_axis, broadcast, elements, folded, leading, reduced
from dlkern.jax._ops import Rule

_ACTIVATIONS = ("relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "tanh", "softplus", "relu6",
                "hardswish", "hardsigmoid", "mish", "selu")  # fmt: skip
_GATED = ("swiglu", "geglu", "reglu", "glu")
_OF_X_AND_Y = ("max", "min", "logsumexp", "vector_norm", "std")

RULES: dict[str, Rule] = {
    **{name: leading("x") for name in _ACTIVATIONS},
    **{f"{name}_backward": leading("dy", "x") for name in _ACTIVATIONS},
    **{name: leading("gate", "up") for name in _GATED},
    **{f"{name}_backward": leading("dy", "gate", "up") for name in _GATED},
    **{name: along_axis("x") for name in ("softmax", "log_softmax", "top_k")},
    **{name: along_axis("dy", "y") for name in ("softmax_backward", "log_softmax_backward")},
    "add": broadcast(0),
    "embedding": leading("ids"),
    "one_hot": leading("ids"),
    "matmul": broadcast(2),
    "linear": leading("x", "residual"),
    "linear_backward_input": leading("dy", "preactivation"),
    "conv": folded("x"),
    "conv_transpose": folded("x"),
    "conv_backward_input": folded("dy"),
    "conv_transpose_backward_input": folded("dy"),
    **{name: folded("x") for name in ("avg_pool", "adaptive_avg_pool", "lp_pool")},
    **{name: folded("x") for name in ("max_pool", "adaptive_max_pool")},
    "avg_pool_backward": folded("dy"),
    "adaptive_avg_pool_backward": folded("dy"),
    "max_pool_backward": folded("dy", "indices"),
    "adaptive_max_pool_backward": folded("dy", "indices"),
    "lp_pool_backward": folded("dy", "x", "y"),
    "layer_norm": leading("x", "residual", unless="amax"),
    "rms_norm": leading("x", "residual", unless="amax"),
    "batch_norm": folded("x", "residual"),
    "group_norm": folded("x"),
    **{name: elements("x", "target")
       for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div",
                    "binary_cross_entropy_with_logits")},
    **{name: reduced("x") for name in ("sum", "mean", "prod", "var", "any", "all", *_OF_X_AND_Y)},
    **{f"{name}_backward": reduced("dy") for name in ("sum", "mean")},
    **{f"{name}_backward": reduced("dy", "x") for name in ("prod", "var")},
    **{f"{name}_backward": reduced("dy", "y", "x") for name in _OF_X_AND_Y},
    "nchw_to_nhwc": folded("x"),
    "nhwc_to_nchw": folded("x"),
    "contiguous": leading("x"),
    "cast": leading("x"),
}  # fmt: skip
