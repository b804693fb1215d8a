"""Twins of torch's modules, computed by dlkern.

Each is a subclass of its original with another ``forward``: the constructor, parameters, buffers,
``state_dict``, ``repr`` and hooks are the original's. :func:`dlkern.torch.convert` turns the
modules of a model into their twins by their class alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dlkern.torch import functional as F

Reason = str | None

# Original class -> twin.
TWINS: dict[type[nn.Module], type[nn.Module]] = {}
_WHY_NOT: dict[type[nn.Module], Callable[[Any], Reason]] = {}

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_DEVICES = ("cpu", "cuda", "meta")


def why_not(module: nn.Module) -> Reason:
    """The reason why a module has no twin, or its twin could not compute it; None: it has one."""
    original = type(module)
    if original not in TWINS:
        for base in original.__mro__[1:]:
            if base in TWINS:
                return f"a subclass of {base.__name__}, which may compute something else"
        return "dlkern has no module of this kind"
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if is_number and tensor.dtype not in _DTYPES:
            return f"{name} is {str(tensor.dtype).removeprefix('torch.')}"
        if tensor.device.type not in _DEVICES:
            return f"{name} is on {tensor.device}"
    return _WHY_NOT[original](module) if original in _WHY_NOT else None


def _twin(
    original: Any,
    function: Callable[..., Any],
    why_not: Callable[[Any], Reason] | None = None,
    method: str = "forward",
) -> Any:
    """A subclass with another `method`, which torch's own ``forward`` may call."""
    name = original.__name__
    twin = type(
        name,
        (original,),
        {
            method: function,
            "__module__": __name__,
            "__doc__": f":class:`torch.nn.{name}` by dlkern.",
        },
    )
    TWINS[original] = twin
    if why_not is not None:
        _WHY_NOT[original] = why_not
    return twin


# ---- Linear and convolutions ---------------------------------------------------------------------


def _conv_forward(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = nn.functional.pad(
                input, self._reversed_padding_repeated_twice, mode=self.padding_mode
            )
            padding = 0
        return function(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    return forward


def _conv_transpose_forward(function: Callable[..., Tensor], dims: int) -> Callable[..., Tensor]:
    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation
        )
        return function(
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups,
            self.dilation,
        )  # fmt: skip

    return forward


Linear = _twin(nn.Linear, lambda self, input: F.linear(input, self.weight, self.bias))
Conv1d = _twin(nn.Conv1d, _conv_forward(F.conv1d), method="_conv_forward")
Conv2d = _twin(nn.Conv2d, _conv_forward(F.conv2d), method="_conv_forward")
Conv3d = _twin(nn.Conv3d, _conv_forward(F.conv3d), method="_conv_forward")
ConvTranspose1d = _twin(nn.ConvTranspose1d, _conv_transpose_forward(F.conv_transpose1d, 1))
ConvTranspose2d = _twin(nn.ConvTranspose2d, _conv_transpose_forward(F.conv_transpose2d, 2))
ConvTranspose3d = _twin(nn.ConvTranspose3d, _conv_transpose_forward(F.conv_transpose3d, 3))


# ---- Normalisation -------------------------------------------------------------------------------


def _batch_norm(
    self: Any, input: Tensor, residual: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """As torch's; `residual` and `activation` as in :func:`dlkern.torch.functional.batch_norm`."""
    self._check_input_dim(input)
    training = self.training or self.running_mean is None
    tracked = self.track_running_stats if self.training else self.running_mean is not None
    return F.batch_norm(
        input,
        self.running_mean if tracked else None,
        self.running_var if tracked else None,
        self.weight,
        self.bias,
        training,
        self.momentum,
        self.eps,
        num_batches_tracked=self.num_batches_tracked if training and tracked else None,
        residual=residual,
        activation=activation,
    )


def _instance_norm(self: Any, input: Tensor) -> Tensor:
    return F.instance_norm(
        input,
        self.running_mean,
        self.running_var,
        self.weight,
        self.bias,
        self.training or not self.track_running_stats,
        0.0 if self.momentum is None else self.momentum,
        self.eps,
    )


BatchNorm1d = _twin(nn.BatchNorm1d, _batch_norm)
BatchNorm2d = _twin(nn.BatchNorm2d, _batch_norm)
BatchNorm3d = _twin(nn.BatchNorm3d, _batch_norm)
InstanceNorm1d = _twin(nn.InstanceNorm1d, _instance_norm, method="_apply_instance_norm")
InstanceNorm2d = _twin(nn.InstanceNorm2d, _instance_norm, method="_apply_instance_norm")
InstanceNorm3d = _twin(nn.InstanceNorm3d, _instance_norm, method="_apply_instance_norm")
GroupNorm = _twin(
    nn.GroupNorm,
    lambda self, input: F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps),
)
LayerNorm = _twin(
    nn.LayerNorm,
    lambda self, input: F.layer_norm(
        input, self.normalized_shape, self.weight, self.bias, self.eps
    ),
)
RMSNorm = _twin(
    nn.RMSNorm,
    lambda self, input: F.rms_norm(input, self.normalized_shape, self.weight, self.eps),
)


# ---- Pooling -------------------------------------------------------------------------------------


def _max_pool(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, input: function(
        input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
        self.return_indices,
    )  # fmt: skip


def _avg_pool(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, input: function(
        input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
        getattr(self, "divisor_override", None),
    )  # fmt: skip


def _lp_pool(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, input: function(
        input, self.norm_type, self.kernel_size, self.stride, self.ceil_mode
    )


def _lp_differs(self: Any) -> Reason:
    if self.norm_type % 2:
        return f"norm_type is {self.norm_type}: torch takes no absolute values for odd norms"
    return "ceil_mode: torch scales the last windows" if self.ceil_mode else None


def _adaptive_max(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, input: function(input, self.output_size, self.return_indices)


def _adaptive_avg(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, input: function(input, self.output_size)


MaxPool1d = _twin(nn.MaxPool1d, _max_pool(F.max_pool1d))
MaxPool2d = _twin(nn.MaxPool2d, _max_pool(F.max_pool2d))
MaxPool3d = _twin(nn.MaxPool3d, _max_pool(F.max_pool3d))
AvgPool1d = _twin(nn.AvgPool1d, _avg_pool(F.avg_pool1d))
AvgPool2d = _twin(nn.AvgPool2d, _avg_pool(F.avg_pool2d))
AvgPool3d = _twin(nn.AvgPool3d, _avg_pool(F.avg_pool3d))
LPPool1d = _twin(nn.LPPool1d, _lp_pool(F.lp_pool1d), _lp_differs)
LPPool2d = _twin(nn.LPPool2d, _lp_pool(F.lp_pool2d), _lp_differs)
LPPool3d = _twin(nn.LPPool3d, _lp_pool(F.lp_pool3d), _lp_differs)
AdaptiveMaxPool1d = _twin(nn.AdaptiveMaxPool1d, _adaptive_max(F.adaptive_max_pool1d))
AdaptiveMaxPool2d = _twin(nn.AdaptiveMaxPool2d, _adaptive_max(F.adaptive_max_pool2d))
AdaptiveMaxPool3d = _twin(nn.AdaptiveMaxPool3d, _adaptive_max(F.adaptive_max_pool3d))
AdaptiveAvgPool1d = _twin(nn.AdaptiveAvgPool1d, _adaptive_avg(F.adaptive_avg_pool1d))
AdaptiveAvgPool2d = _twin(nn.AdaptiveAvgPool2d, _adaptive_avg(F.adaptive_avg_pool2d))
AdaptiveAvgPool3d = _twin(nn.AdaptiveAvgPool3d, _adaptive_avg(F.adaptive_avg_pool3d))


# ---- Activations, dropout, tables ----------------------------------------------------------------

ReLU = _twin(nn.ReLU, lambda self, input: F.relu(input))
ReLU6 = _twin(nn.ReLU6, lambda self, input: F.relu6(input))
LeakyReLU = _twin(nn.LeakyReLU, lambda self, input: F.leaky_relu(input, self.negative_slope))
ELU = _twin(nn.ELU, lambda self, input: F.elu(input, self.alpha))
SELU = _twin(nn.SELU, lambda self, input: F.selu(input))
GELU = _twin(nn.GELU, lambda self, input: F.gelu(input, self.approximate))
SiLU = _twin(nn.SiLU, lambda self, input: F.silu(input))
Hardswish = _twin(nn.Hardswish, lambda self, input: F.hardswish(input))
Mish = _twin(nn.Mish, lambda self, input: F.mish(input))
Sigmoid = _twin(nn.Sigmoid, lambda self, input: F.sigmoid(input))
Hardsigmoid = _twin(nn.Hardsigmoid, lambda self, input: F.hardsigmoid(input))
Tanh = _twin(nn.Tanh, lambda self, input: F.tanh(input))
Softplus = _twin(nn.Softplus, lambda self, input: F.softplus(input, self.beta, self.threshold))
GLU = _twin(nn.GLU, lambda self, input: F.glu(input, self.dim))
Softmax = _twin(nn.Softmax, lambda self, input: F.softmax(input, self.dim))
LogSoftmax = _twin(nn.LogSoftmax, lambda self, input: F.log_softmax(input, self.dim))
Dropout = _twin(nn.Dropout, lambda self, input: F.dropout(input, self.p, self.training))


def _embedding_differs(self: Any) -> Reason:
    if self.max_norm is not None:
        return "max_norm changes the table in the forward call"
    return "sparse gradients" if self.sparse else None


Embedding = _twin(
    nn.Embedding,
    lambda self, input: F.embedding(
        input, self.weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
    ),
    _embedding_differs,
)


# ---- Losses --------------------------------------------------------------------------------------

CrossEntropyLoss = _twin(
    nn.CrossEntropyLoss,
    lambda self, input, target: F.cross_entropy(
        input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
        label_smoothing=self.label_smoothing,
    ),
)  # fmt: skip
NLLLoss = _twin(
    nn.NLLLoss,
    lambda self, input, target: F.nll_loss(
        input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction
    ),
)
MSELoss = _twin(
    nn.MSELoss, lambda self, input, target: F.mse_loss(input, target, reduction=self.reduction)
)
L1Loss = _twin(
    nn.L1Loss, lambda self, input, target: F.l1_loss(input, target, reduction=self.reduction)
)
SmoothL1Loss = _twin(
    nn.SmoothL1Loss,
    lambda self, input, target: F.smooth_l1_loss(
        input, target, reduction=self.reduction, beta=self.beta
    ),
)
HuberLoss = _twin(
    nn.HuberLoss,
    lambda self, input, target: F.huber_loss(
        input, target, reduction=self.reduction, delta=self.delta
    ),
)
BCEWithLogitsLoss = _twin(
    nn.BCEWithLogitsLoss,
    lambda self, input, target: F.binary_cross_entropy_with_logits(
        input, target, self.weight, pos_weight=self.pos_weight, reduction=self.reduction
    ),
)
KLDivLoss = _twin(
    nn.KLDivLoss,
    lambda self, input, target: F.kl_div(
        input, target, reduction=self.reduction, log_target=self.log_target
    ),
)

__all__ = [twin.__name__ for twin in TWINS.values()]
