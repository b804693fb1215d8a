"""The functions of ``torch.nn.functional`` that dlkern has, with its names, order and defaults.

``import dlkern.torch.functional as F`` in place of ``import torch.nn.functional as F``. Images that
are contiguous in torch's channels-last format are computed and returned in it. What is different:
``inplace=True`` frees no memory (a new tensor is returned); `lp_pool` takes absolute values for odd
norms, too, and does not scale windows up that `ceil_mode` lets reach past the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dlkern.torch._functions import functions as ops
from dlkern.torch._shapes import is_channels_last


def _on_images(dims: int, x: Tensor, function: Callable[[Tensor], Any]) -> Any:
    """function(images) of a batch of images, or one image."""
    if x.dim() != dims + 1:
        return function(x)
    result = function(x.unsqueeze(0))
    return tuple(r.squeeze(0) for r in result) if isinstance(result, tuple) else result.squeeze(0)


# ---- Activations ---------------------------------------------------------------------------------


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    return ops["relu"](input)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return ops["relu6"](input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return ops["leaky_relu"](input, negative_slope)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return ops["elu"](input, alpha)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    return ops["selu"](input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    return ops["gelu"](input, approximate)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    return ops["silu"](input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    return ops["hardswish"](input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    return ops["mish"](input)


def sigmoid(input: Tensor) -> Tensor:
    return ops["sigmoid"](input)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    return ops["hardsigmoid"](input)


def tanh(input: Tensor) -> Tensor:
    return ops["tanh"](input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return ops["softplus"](input, beta, threshold)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    if dim in (-1, input.dim() - 1):
        return ops["glu"](input, gate_last=True)
    return ops["glu"](input.movedim(dim, -1), gate_last=True).movedim(-1, dim)


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    return ops["softmax"](_as(input, dtype), _softmax_dim(input, dim))


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    return ops["log_softmax"](_as(input, dtype), _softmax_dim(input, dim))


def _as(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x if dtype is None else x.to(dtype)


def _softmax_dim(x: Tensor, dim: int | None) -> int:
    """Torch's rule for a `dim` that is left out."""
    if dim is not None:
        return dim
    return 0 if x.dim() in (0, 1, 3) else 1


# ---- Products, convolutions ----------------------------------------------------------------------


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return ops["linear"](input, weight, bias)


def _conv(dims: int) -> Callable[..., Tensor]:
    def conv(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
             padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Tensor:  # fmt: skip
        if padding == "same" and any(n != 1 for n in _each(stride)):
            raise ValueError(f"conv{dims}d: stride is {stride}, expected 1 beside padding='same'")
        return _on_images(dims, input, lambda x: ops["conv"](
            x, weight, bias, stride=_single(stride), padding=_single(padding),
            dilation=_single(dilation), groups=groups))  # fmt: skip

    return conv


def _conv_transpose(dims: int) -> Callable[..., Tensor]:
    def conv_transpose(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
                       padding: Any = 0, output_padding: Any = 0, groups: int = 1,
                       dilation: Any = 1) -> Tensor:  # fmt: skip
        return _on_images(dims, input, lambda x: ops["conv_transpose"](
            x, weight, bias, stride=_single(stride), padding=_single(padding),
            output_padding=_single(output_padding), dilation=_single(dilation),
            groups=groups))  # fmt: skip

    return conv_transpose


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _single(value: Any) -> Any:
    """A sequence of one number counts for all dimensions."""
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose, (1, 2, 3))


# ---- Pooling -------------------------------------------------------------------------------------


def _max_pool(dims: int) -> Callable[..., Any]:
    def max_pool(input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
                 dilation: Any = 1, ceil_mode: bool = False,
                 return_indices: bool = False) -> Any:  # fmt: skip
        return _on_images(dims, input, lambda x: ops["max_pool"](
            x, _single(kernel_size), stride=_single(stride) or None, padding=_single(padding),
            dilation=_single(dilation), ceil_mode=ceil_mode,
            return_indices=return_indices))  # fmt: skip

    return max_pool


def _avg_pool(dims: int) -> Callable[..., Tensor]:
    def avg_pool(input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
                 ceil_mode: bool = False, count_include_pad: bool = True,
                 divisor_override: int | None = None) -> Tensor:  # fmt: skip
        return _on_images(dims, input, lambda x: ops["avg_pool"](
            x, _single(kernel_size), stride=_single(stride) or None, padding=_single(padding),
            ceil_mode=ceil_mode, count_include_pad=count_include_pad,
            divisor_override=divisor_override))  # fmt: skip

    return avg_pool


def _lp_pool(dims: int) -> Callable[..., Tensor]:
    def lp_pool(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None,
                ceil_mode: bool = False) -> Tensor:  # fmt: skip
        return _on_images(dims, input, lambda x: ops["lp_pool"](
            x, float(norm_type), _single(kernel_size), stride=_single(stride) or None,
            ceil_mode=ceil_mode))  # fmt: skip

    return lp_pool


def _adaptive_max_pool(dims: int) -> Callable[..., Any]:
    def adaptive_max_pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        return _on_images(dims, input, lambda x: ops["adaptive_max_pool"](
            x, _single(output_size), return_indices=return_indices))  # fmt: skip

    return adaptive_max_pool


def _adaptive_avg_pool(dims: int) -> Callable[..., Tensor]:
    def adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
        return _on_images(dims, input, lambda x: ops["adaptive_avg_pool"](
            x, _single(output_size)))  # fmt: skip

    return adaptive_avg_pool


max_pool1d, max_pool2d, max_pool3d = map(_max_pool, (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = map(_avg_pool, (1, 2, 3))
lp_pool1d, lp_pool2d, lp_pool3d = map(_lp_pool, (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = map(_adaptive_max_pool, (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_adaptive_avg_pool, (1, 2, 3))


# ---- Normalisation -------------------------------------------------------------------------------


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    num_batches_tracked: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Beyond torch's: ``momentum=None`` beside `num_batches_tracked`, counted on the device.

    `residual`, of input's shape, is added to what was normalized, and `activation` ("relu" or
    "silu") applied to the sum, in the same kernel.
    """
    options = {"residual": residual, "activation": activation, "eps": eps}
    if not training:
        return ops["batch_norm"](input, weight, bias, running_mean, running_var, **options)
    return ops["batch_norm_training"](
        input, weight, bias, running_mean, running_var, momentum=momentum,
        num_batches_tracked=num_batches_tracked, **options,
    )[0]  # fmt: skip


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    return ops["instance_norm"](
        input, weight, bias, running_mean, running_var, momentum=momentum, eps=eps
    )


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return ops["group_norm"](input, num_groups, weight, bias, eps=eps)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    ndim = _normalized_ndim("layer_norm", input, normalized_shape)
    return ops["layer_norm"](input, weight, bias, normalized_ndim=ndim, eps=eps)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    ndim = _normalized_ndim("rms_norm", input, normalized_shape)
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return ops["rms_norm"](input, weight, normalized_ndim=ndim, eps=eps)


def _normalized_ndim(op: str, x: Tensor, normalized_shape: Sequence[int]) -> int:
    ndim = len(normalized_shape)
    if list(x.shape[x.dim() - ndim :]) != list(normalized_shape):
        raise ValueError(
            f"{op}: input has shape {tuple(x.shape)}, expected [..., {normalized_shape}]"
        )
    return ndim


# ---- Dropout, tables -----------------------------------------------------------------------------


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """The mask is drawn by dlkern from torch's generator: reproducible, other than torch's own."""
    if not training:
        return input
    if is_channels_last(input):  # elements are counted by their axes: in the order of memory
        return ops["dropout"](input.movedim(1, -1), p).movedim(-1, 1)
    return ops["dropout"](input, p)


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if max_norm is not None or sparse:
        raise NotImplementedError("embedding: max_norm and sparse gradients are not supported")
    return ops["embedding"](
        input, weight, padding_idx=padding_idx, scale_grad_by_freq=scale_grad_by_freq
    )


# ---- Losses --------------------------------------------------------------------------------------


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    _no_legacy(size_average, reduce)
    return ops["cross_entropy"](
        input, target, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
        reduction=reduction,
    )  # fmt: skip


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    _no_legacy(size_average, reduce)
    return ops["nll_loss"](
        input, target, weight=weight, ignore_index=ignore_index, reduction=reduction
    )


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    _no_legacy(size_average, reduce)
    return ops["mse_loss"](input, target, reduction=reduction)


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    _no_legacy(size_average, reduce)
    return ops["l1_loss"](input, target, reduction=reduction)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    _no_legacy(size_average, reduce)
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    return ops["smooth_l1_loss"](input, target, beta=beta, reduction=reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    return ops["huber_loss"](input, target, delta=delta, reduction=reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    _no_legacy(size_average, reduce)
    return ops["binary_cross_entropy_with_logits"](
        input, target, weight=weight, pos_weight=pos_weight, reduction=reduction
    )


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    _no_legacy(size_average, reduce)
    if reduction == "batchmean":
        total = ops["kl_div"](input, target, log_target=log_target, reduction="sum")
        return total / input.shape[0] if input.dim() else total
    return ops["kl_div"](input, target, log_target=log_target, reduction=reduction)


def _no_legacy(size_average: bool | None, reduce: bool | None) -> None:
    if size_average is not None or reduce is not None:
        raise TypeError("size_average and reduce are deprecated in torch: pass reduction")
