"""Made by scripts/torch_stub.py from the table of operators."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, dtype

from dlkern.torch import functional as functional
from dlkern.torch import kernels as kernels
from dlkern.torch import nn as nn
from dlkern.torch import optim as optim
from dlkern.torch._convert import Entry as Entry
from dlkern.torch._convert import Report as Report
from dlkern.torch._convert import convert as convert
from dlkern.torch._convert import revert as revert

def adamw_step(
    param: Tensor | Sequence[Tensor],
    grad: Tensor | Sequence[Tensor],
    exp_avg: Tensor | Sequence[Tensor],
    exp_avg_sq: Tensor | Sequence[Tensor],
    max_exp_avg_sq: Tensor | Sequence[Tensor] | None = None,
    *,
    lr: float | Tensor = 0.001,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-08,
    weight_decay: float = 0.01,
    step: int | Tensor,
    maximize: bool = False,
    l2: bool = False,
    copy: Tensor | Sequence[Tensor] | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None: ...
def adaptive_avg_pool(
    x: Tensor,
    output_size: int | Sequence[int] | None,
    *,
    layout: str = "NCHW",
) -> Any: ...
def adaptive_avg_pool_backward(
    dy: Tensor,
    input_shape: int | Sequence[int],
    *,
    layout: str = "NCHW",
) -> Tensor: ...
def adaptive_max_pool(
    x: Tensor,
    output_size: int | Sequence[int] | None,
    *,
    layout: str = "NCHW",
    return_indices: bool = False,
    index_dtype: dtype | str = "int64",
) -> Any: ...
def adaptive_max_pool_backward(
    dy: Tensor,
    indices: Tensor,
    input_shape: int | Sequence[int],
    *,
    layout: str = "NCHW",
) -> Tensor: ...
def add(a: Tensor, b: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor: ...
def add_backward(
    dy: Tensor,
    a_shape: int | Sequence[int] | None = None,
    b_shape: int | Sequence[int] | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Any: ...
def all(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
) -> Tensor: ...
def any(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
) -> Tensor: ...
def argmax(x: Tensor, axis: int | None = None, *, keepdims: bool = False) -> Tensor: ...
def argmin(x: Tensor, axis: int | None = None, *, keepdims: bool = False) -> Tensor: ...
def avg_pool(
    x: Tensor,
    kernel: int | Sequence[int] | None,
    *,
    stride: int | Sequence[int] | None = None,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    layout: str = "NCHW",
) -> Tensor: ...
def avg_pool_backward(
    dy: Tensor,
    input_shape: int | Sequence[int],
    kernel: int | Sequence[int] | None,
    *,
    stride: int | Sequence[int] | None = None,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    layout: str = "NCHW",
) -> Tensor: ...
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    residual: Tensor | None = None,
    activation: str | None = None,
    eps: float = 1e-05,
    layout: str = "NCHW",
) -> Tensor: ...
def batch_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    *,
    y: Tensor | None = None,
    activation: str | None = None,
    bias: Tensor | None = None,
    layout: str = "NCHW",
) -> Any: ...
def batch_norm_inference_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    y: Tensor | None = None,
    activation: str | None = None,
    eps: float = 1e-05,
    bias: Tensor | None = None,
    layout: str = "NCHW",
) -> Any: ...
def batch_norm_training(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    activation: str | None = None,
    momentum: float | None = 0.1,
    num_batches_tracked: Tensor | None = None,
    stats: Any = None,
    eps: float = 1e-05,
    layout: str = "NCHW",
) -> Any: ...
def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor: ...
def binary_cross_entropy_with_logits_backward(
    dloss: Tensor,
    x: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor: ...
def cast(x: Tensor, dtype: dtype | str) -> Any: ...
def concat(arrays: Tensor | Sequence[Tensor], axis: int = 0) -> Any: ...
def contiguous(x: Tensor) -> Tensor: ...
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    precision: str = "ieee",
) -> Tensor: ...
def conv_backward_input(
    dy: Tensor,
    weight: Tensor,
    input_shape: int | Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    precision: str = "ieee",
) -> Tensor: ...
def conv_backward_weight(
    dy: Tensor,
    x: Tensor,
    weight_shape: int | Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    precision: str = "ieee",
    bias: bool = False,
) -> Any: ...
def conv_bias_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    alpha: float | None = None,
    preactivation: bool = False,
    return_stats: bool = False,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    precision: str = "ieee",
) -> Any: ...
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    precision: str = "ieee",
) -> Tensor: ...
def conv_transpose_backward_input(
    dy: Tensor,
    weight: Tensor,
    input_shape: int | Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    precision: str = "ieee",
) -> Tensor: ...
def conv_transpose_backward_weight(
    dy: Tensor,
    x: Tensor,
    weight_shape: int | Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    precision: str = "ieee",
    bias: bool = False,
) -> Any: ...
def conv_transpose_bias_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    alpha: float | None = None,
    preactivation: bool = False,
    return_stats: bool = False,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    precision: str = "ieee",
) -> Any: ...
def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
) -> Tensor: ...
def cross_entropy_backward(
    dloss: Tensor,
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
) -> Tensor: ...
def cross_entropy_with_grad(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    dloss: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
def dropout(
    x: Tensor,
    p: float = 0.5,
    *,
    rng: Tensor | None = None,
    residual: Tensor | None = None,
) -> Any: ...
def dropout_backward(dy: Tensor, p: float = 0.5, *, rng: Tensor) -> Any: ...
def elu(x: Tensor, alpha: float = 1.0) -> Tensor: ...
def elu_backward(dy: Tensor, x: Tensor, alpha: float = 1.0) -> Tensor: ...
def embedding(
    ids: Tensor,
    weight: Tensor,
    *,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
) -> Any: ...
def embedding_backward(
    dy: Tensor,
    ids: Tensor,
    num_embeddings: int | None = None,
    *,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
) -> Tensor: ...
def geglu(
    gate: Tensor,
    up: Tensor | None = None,
    approximate: str = "none",
    *,
    gate_last: bool = False,
) -> Tensor: ...
def geglu_backward(
    dy: Tensor,
    gate: Tensor,
    up: Tensor | None = None,
    approximate: str = "none",
    *,
    gate_last: bool = False,
) -> Any: ...
def gelu(x: Tensor, approximate: str = "none") -> Tensor: ...
def gelu_backward(dy: Tensor, x: Tensor, approximate: str = "none") -> Tensor: ...
def glu(gate: Tensor, up: Tensor | None = None, *, gate_last: bool = False) -> Tensor: ...
def glu_backward(
    dy: Tensor,
    gate: Tensor,
    up: Tensor | None = None,
    *,
    gate_last: bool = False,
) -> Any: ...
def grad_norm(
    grad: Tensor | Sequence[Tensor],
    *,
    max_norm: float | None = None,
    ord: float = 2.0,
    loss_scale: Tensor | None = None,
) -> Any: ...
def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    eps: float = 1e-05,
    layout: str = "NCHW",
    return_stats: bool = False,
) -> Any: ...
def group_norm_backward(
    dy: Tensor,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    *,
    activation: str | None = None,
    bias: Tensor | None = None,
    layout: str = "NCHW",
) -> Any: ...
def grouped_matmul(
    a: Tensor,
    b: Tensor,
    offsets: Tensor | None = None,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    *,
    precision: str = "ieee",
    out_dtype: dtype | str | None = None,
    batch_invariant: bool = False,
) -> Any: ...
def grouped_matmul_backward(
    dy: Tensor,
    a: Tensor,
    b: Tensor,
    offsets: Tensor | None = None,
    *,
    precision: str = "ieee",
    batch_invariant: bool = False,
) -> Any: ...
def hardsigmoid(x: Tensor) -> Tensor: ...
def hardsigmoid_backward(dy: Tensor, x: Tensor) -> Tensor: ...
def hardswish(x: Tensor) -> Tensor: ...
def hardswish_backward(dy: Tensor, x: Tensor) -> Tensor: ...
def huber_loss(
    x: Tensor,
    target: Tensor,
    *,
    delta: float = 1.0,
    reduction: str = "mean",
) -> Tensor: ...
def huber_loss_backward(
    dloss: Tensor,
    x: Tensor,
    target: Tensor,
    *,
    delta: float = 1.0,
    reduction: str = "mean",
) -> Tensor: ...
def instance_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    *,
    activation: str | None = None,
    momentum: float = 0.1,
    eps: float = 1e-05,
    layout: str = "NCHW",
    return_stats: bool = False,
) -> Any: ...
def instance_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    *,
    activation: str | None = None,
    bias: Tensor | None = None,
    layout: str = "NCHW",
) -> Any: ...
def kl_div(
    x: Tensor,
    target: Tensor,
    *,
    log_target: bool = False,
    reduction: str = "mean",
) -> Tensor: ...
def kl_div_backward(
    dloss: Tensor,
    x: Tensor,
    target: Tensor,
    *,
    log_target: bool = False,
    reduction: str = "mean",
) -> Tensor: ...
def l1_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor: ...
def l1_loss_backward(
    dloss: Tensor,
    x: Tensor,
    target: Tensor,
    *,
    reduction: str = "mean",
) -> Tensor: ...
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    normalized_ndim: int = 1,
    eps: float = 1e-05,
    weight_offset: float = 0.0,
    out_dtype: dtype | str | None = None,
    scale_out: Tensor | None = None,
    amax: bool = False,
    return_stats: bool = False,
) -> Any: ...
def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    *,
    dresidual: Tensor | None = None,
    normalized_ndim: int = 1,
    weight_offset: float = 0.0,
    bias: bool | None = None,
) -> Any: ...
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor: ...
def leaky_relu_backward(dy: Tensor, x: Tensor, negative_slope: float = 0.01) -> Tensor: ...
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    alpha: float | None = None,
    residual: Tensor | None = None,
    preactivation: bool = False,
    precision: str = "ieee",
    batch_invariant: bool = False,
) -> Any: ...
def linear_backward_input(
    dy: Tensor,
    weight: Tensor,
    *,
    activation: str | None = None,
    alpha: float | None = None,
    preactivation: Tensor | None = None,
    precision: str = "ieee",
    batch_invariant: bool = False,
) -> Tensor: ...
def linear_backward_weight(
    dy: Tensor,
    x: Tensor,
    *,
    bias: bool = False,
    precision: str = "ieee",
) -> Any: ...
def lion_step(
    param: Tensor | Sequence[Tensor],
    grad: Tensor | Sequence[Tensor],
    exp_avg: Tensor | Sequence[Tensor],
    *,
    lr: float | Tensor = 0.0001,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    maximize: bool = False,
    copy: Tensor | Sequence[Tensor] | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None: ...
def log_softmax(
    x: Tensor,
    axis: int = -1,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor: ...
def log_softmax_backward(
    dy: Tensor,
    y: Tensor,
    axis: int = -1,
    *,
    scale: float = 1.0,
) -> Tensor: ...
def logsumexp(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
) -> Tensor: ...
def logsumexp_backward(
    dy: Tensor,
    x: Tensor,
    y: Tensor,
    axis: int | Sequence[int] | None = None,
) -> Tensor: ...
def lp_pool(
    x: Tensor,
    norm_type: float,
    kernel: int | Sequence[int] | None,
    *,
    stride: int | Sequence[int] | None = None,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    ceil_mode: bool = False,
    layout: str = "NCHW",
) -> Tensor: ...
def lp_pool_backward(
    dy: Tensor,
    x: Tensor,
    y: Tensor,
    norm_type: float,
    kernel: int | Sequence[int] | None,
    *,
    stride: int | Sequence[int] | None = None,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    ceil_mode: bool = False,
    layout: str = "NCHW",
) -> Tensor: ...
def matmul(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    precision: str = "ieee",
    batch_invariant: bool = False,
) -> Tensor: ...
def matmul_backward(
    dy: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    precision: str = "ieee",
) -> tuple[Tensor, Tensor]: ...
def max(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
) -> Tensor: ...
def max_backward(
    dy: Tensor,
    x: Tensor,
    y: Tensor,
    axis: int | Sequence[int] | None = None,
) -> Tensor: ...
def max_pool(
    x: Tensor,
    kernel: int | Sequence[int] | None,
    *,
    stride: int | Sequence[int] | None = None,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    return_indices: bool = False,
    index_dtype: dtype | str = "int64",
) -> Any: ...
def max_pool_backward(
    dy: Tensor,
    indices: Tensor,
    input_shape: int | Sequence[int],
    kernel: int | Sequence[int] | None,
    *,
    stride: int | Sequence[int] | None = None,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    layout: str = "NCHW",
) -> Tensor: ...
def mean(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
) -> Tensor: ...
def mean_backward(
    dy: Tensor,
    shape: int | Sequence[int] | None = None,
    axis: int | Sequence[int] | None = None,
) -> Tensor: ...
def min(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
) -> Tensor: ...
def min_backward(
    dy: Tensor,
    x: Tensor,
    y: Tensor,
    axis: int | Sequence[int] | None = None,
) -> Tensor: ...
def mish(x: Tensor) -> Tensor: ...
def mish_backward(dy: Tensor, x: Tensor) -> Tensor: ...
def mse_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor: ...
def mse_loss_backward(
    dloss: Tensor,
    x: Tensor,
    target: Tensor,
    *,
    reduction: str = "mean",
) -> Tensor: ...
def nchw_to_nhwc(x: Tensor) -> Tensor: ...
def nhwc_to_nchw(x: Tensor) -> Tensor: ...
def nll_loss(
    log_p: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor: ...
def nll_loss_backward(
    dloss: Tensor,
    log_p: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor: ...
def one_hot(ids: Tensor, num_classes: int, *, dtype: dtype | str = "int64") -> Any: ...
def permute(x: Tensor, axes: int | Sequence[int]) -> Tensor: ...
def prod(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
) -> Tensor: ...
def prod_backward(dy: Tensor, x: Tensor, axis: int | Sequence[int] | None = None) -> Tensor: ...
def reglu(gate: Tensor, up: Tensor | None = None, *, gate_last: bool = False) -> Tensor: ...
def reglu_backward(
    dy: Tensor,
    gate: Tensor,
    up: Tensor | None = None,
    *,
    gate_last: bool = False,
) -> Any: ...
def relu(x: Tensor) -> Tensor: ...
def relu6(x: Tensor) -> Tensor: ...
def relu6_backward(dy: Tensor, x: Tensor) -> Tensor: ...
def relu_backward(dy: Tensor, x: Tensor) -> Tensor: ...
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    normalized_ndim: int = 1,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    out_dtype: dtype | str | None = None,
    scale_out: Tensor | None = None,
    amax: bool = False,
    return_stats: bool = False,
) -> Any: ...
def rms_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    *,
    dresidual: Tensor | None = None,
    normalized_ndim: int = 1,
    weight_offset: float = 0.0,
) -> Any: ...
def rope(
    x: Tensor | Sequence[Tensor],
    *,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    offset: int = 0,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    layout: str = "BSHD",
) -> Any: ...
def rope_backward(
    dy: Tensor | Sequence[Tensor],
    *,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    offset: int = 0,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    layout: str = "BSHD",
) -> Any: ...
def scale_grads(
    grad: Tensor | Sequence[Tensor],
    scale: Tensor,
    *,
    found_inf: Tensor | None = None,
) -> None: ...
def scaled_conv(
    x: Tensor,
    weight: Tensor,
    scale_x: Tensor | None = None,
    scale_weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: str | None = None,
    alpha: float | None = None,
    out_dtype: dtype | str | None = None,
    scale_out: Tensor | None = None,
    amax: bool = False,
) -> Any: ...
def scaled_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    alpha: float | None = None,
    out_dtype: dtype | str | None = None,
    scale_out: Tensor | None = None,
    amax: bool = False,
    batch_invariant: bool = False,
) -> Any: ...
def selu(x: Tensor) -> Tensor: ...
def selu_backward(dy: Tensor, x: Tensor) -> Tensor: ...
def sgd_step(
    param: Tensor | Sequence[Tensor],
    grad: Tensor | Sequence[Tensor],
    momentum_buffer: Tensor | Sequence[Tensor] | None = None,
    *,
    lr: float | Tensor,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    first_step: bool = False,
    copy: Tensor | Sequence[Tensor] | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None: ...
def sigmoid(x: Tensor) -> Tensor: ...
def sigmoid_backward(dy: Tensor, x: Tensor) -> Tensor: ...
def silu(x: Tensor) -> Tensor: ...
def silu_backward(dy: Tensor, x: Tensor) -> Tensor: ...
def smooth_l1_loss(
    x: Tensor,
    target: Tensor,
    *,
    beta: float = 1.0,
    reduction: str = "mean",
) -> Tensor: ...
def smooth_l1_loss_backward(
    dloss: Tensor,
    x: Tensor,
    target: Tensor,
    *,
    beta: float = 1.0,
    reduction: str = "mean",
) -> Tensor: ...
def softmax(
    x: Tensor,
    axis: int = -1,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor: ...
def softmax_backward(dy: Tensor, y: Tensor, axis: int = -1, *, scale: float = 1.0) -> Tensor: ...
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor: ...
def softplus_backward(
    dy: Tensor,
    x: Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> Tensor: ...
def split(x: Tensor, sections: int | Sequence[int], axis: int = 0) -> Any: ...
def std(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
) -> Tensor: ...
def std_backward(
    dy: Tensor,
    x: Tensor,
    y: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    correction: float = 0.0,
) -> Tensor: ...
def sum(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
) -> Tensor: ...
def sum_backward(
    dy: Tensor,
    shape: int | Sequence[int] | None = None,
    axis: int | Sequence[int] | None = None,
) -> Tensor: ...
def swiglu(gate: Tensor, up: Tensor | None = None, *, gate_last: bool = False) -> Tensor: ...
def swiglu_backward(
    dy: Tensor,
    gate: Tensor,
    up: Tensor | None = None,
    *,
    gate_last: bool = False,
) -> Any: ...
def tanh(x: Tensor) -> Tensor: ...
def tanh_backward(dy: Tensor, x: Tensor) -> Tensor: ...
def top_k(
    x: Tensor,
    k: int,
    axis: int = -1,
    *,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Tensor, Tensor]: ...
def top_k_backward(
    dy: Tensor,
    indices: Tensor,
    input_shape: int | Sequence[int],
    axis: int = -1,
) -> Tensor: ...
def update_loss_scale(
    loss_scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    *,
    step: Tensor | None = None,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
) -> None: ...
def var(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
) -> Tensor: ...
def var_backward(
    dy: Tensor,
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    correction: float = 0.0,
) -> Tensor: ...
def vector_norm(
    x: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    ord: float = 2,
    keepdims: bool = False,
) -> Tensor: ...
def vector_norm_backward(
    dy: Tensor,
    x: Tensor,
    y: Tensor,
    axis: int | Sequence[int] | None = None,
    *,
    ord: float = 2,
) -> Tensor: ...
