"""What src/pyx/*.pxi define: the extension, which only the modules beside it use."""

from collections.abc import Callable
from typing import Any, final

class DeviceError(RuntimeError): ...

@final
class Export:
    def __init__(
        self, owner: Any, address: int, shape: tuple[int, ...], dtype: str, device: tuple[int, int]
    ) -> None: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

# call.pxi
def stream_handle(stream: Any) -> int: ...
def explained(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, str, str, int, str, tuple[str, ...], int | None, int]]: ...
def set_workspace(array: Any) -> tuple[int, int, int] | None: ...
def restore_workspace(previous: tuple[int, int, int] | None) -> None: ...

# recorded.pxi
def xla_handlers() -> dict[str, Any]: ...

# tuning.pxi
def set_tuning(key: str | None, choice: str | None) -> None: ...
def get_tuning(key: str) -> str | None: ...

# info.pxi
def build_info() -> dict[str, Any]: ...
def device_info(index: int) -> dict[str, Any]: ...
def devices() -> list[dict[str, Any]]: ...
def set_implementations(names: str) -> None: ...
def set_num_threads(n: int) -> None: ...
def get_num_threads() -> int: ...

# loss.pxi
def cross_entropy(
    logits: Any,
    labels: Any,
    weight: Any,
    reduction: Any,
    ignore_index: Any,
    label_smoothing: Any,
    z_loss: Any,
    out: Any,
    stream: Any,
) -> Any: ...
def cross_entropy_backward(
    dloss: Any,
    logits: Any,
    labels: Any,
    weight: Any,
    reduction: Any,
    ignore_index: Any,
    label_smoothing: Any,
    z_loss: Any,
    out: Any,
    stream: Any,
) -> Any: ...
def cross_entropy_with_grad(
    logits: Any,
    labels: Any,
    weight: Any,
    dloss: Any,
    reduction: Any,
    ignore_index: Any,
    label_smoothing: Any,
    z_loss: Any,
    out: Any,
    grad_out: Any,
    stream: Any,
) -> Any: ...
def nll_loss(
    log_p: Any,
    labels: Any,
    weight: Any,
    reduction: Any,
    ignore_index: Any,
    out: Any,
    stream: Any,
) -> Any: ...
def nll_loss_backward(
    dloss: Any,
    log_p: Any,
    labels: Any,
    weight: Any,
    reduction: Any,
    ignore_index: Any,
    out: Any,
    stream: Any,
) -> Any: ...
def element_loss(
    x: Any,
    target: Any,
    weight: Any,
    pos_weight: Any,
    kind: str,
    reduction: Any,
    threshold: Any,
    out: Any,
    stream: Any,
) -> Any: ...
def element_loss_backward(
    dloss: Any,
    x: Any,
    target: Any,
    weight: Any,
    pos_weight: Any,
    kind: str,
    reduction: Any,
    threshold: Any,
    out: Any,
    stream: Any,
) -> Any: ...

# norm.pxi
def layer_norm(
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    normalized_ndim: Any,
    eps: Any,
    weight_offset: Any,
    out_dtype: Any,
    scale_out: Any,
    amax: Any,
    stats: bool,
    out: Any,
    out_residual: Any,
    out_mean: Any,
    out_rstd: Any,
    out_amax: Any,
    stream: Any,
) -> Any: ...
def layer_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    dresidual: Any,
    normalized_ndim: Any,
    weight_offset: Any,
    bias: Any,
    out: Any,
    out_weight: Any,
    out_bias: Any,
    stream: Any,
) -> Any: ...
def rms_norm(
    x: Any,
    weight: Any,
    residual: Any,
    normalized_ndim: Any,
    eps: Any,
    weight_offset: Any,
    out_dtype: Any,
    scale_out: Any,
    amax: Any,
    stats: bool,
    out: Any,
    out_residual: Any,
    out_rstd: Any,
    out_amax: Any,
    stream: Any,
) -> Any: ...
def rms_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    rstd: Any,
    dresidual: Any,
    normalized_ndim: Any,
    weight_offset: Any,
    out: Any,
    out_weight: Any,
    stream: Any,
) -> Any: ...

# norm_batch.pxi
def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    residual: Any,
    activation: Any,
    eps: Any,
    layout: Any,
    out: Any,
    stream: Any,
) -> Any: ...
def batch_norm_training(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    residual: Any,
    activation: Any,
    momentum: Any,
    num_batches_tracked: Any,
    mean: Any,
    var: Any,
    eps: Any,
    layout: Any,
    out: Any,
    out_mean: Any,
    out_rstd: Any,
    stream: Any,
) -> Any: ...
def batch_norm_backward(
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    training: bool,
    y: Any,
    activation: Any,
    eps: Any,
    bias: Any,
    layout: Any,
    out: Any,
    out_weight: Any,
    out_bias: Any,
    out_residual: Any,
    stream: Any,
) -> Any: ...

# norm_group.pxi
def group_norm(
    x: Any,
    num_groups: Any,
    weight: Any,
    bias: Any,
    activation: Any,
    eps: Any,
    layout: Any,
    stats: bool,
    out: Any,
    out_mean: Any,
    out_rstd: Any,
    stream: Any,
) -> Any: ...
def instance_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    activation: Any,
    momentum: Any,
    eps: Any,
    layout: Any,
    stats: bool,
    out: Any,
    out_mean: Any,
    out_rstd: Any,
    stream: Any,
) -> Any: ...
def group_norm_backward(
    dy: Any,
    x: Any,
    num_groups: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    activation: Any,
    bias: Any,
    layout: Any,
    out: Any,
    out_weight: Any,
    out_bias: Any,
    stream: Any,
) -> Any: ...

# softmax.pxi
def softmax(
    x: Any, axis: Any, scale: Any, mask: Any, causal: bool, log: bool, out: Any, stream: Any
) -> Any: ...
def softmax_backward(
    dy: Any, y: Any, axis: Any, scale: Any, log: bool, out: Any, stream: Any
) -> Any: ...

# activation.pxi
def activation(name: Any, x: Any, numbers: Any, out: Any, stream: Any) -> Any: ...
def activation_backward(name: Any, dy: Any, x: Any, numbers: Any, out: Any, stream: Any) -> Any: ...
def gated(
    name: str, gate: Any, up: Any, tanh: bool, gate_last: bool, out: Any, stream: Any
) -> Any: ...
def gated_backward(
    name: str,
    dy: Any,
    gate: Any,
    up: Any,
    tanh: bool,
    gate_last: bool,
    out: Any,
    out_up: Any,
    stream: Any,
) -> Any: ...

# dropout.pxi
def dropout(x: Any, rng: Any, residual: Any, p: Any, out: Any, stream: Any) -> Any: ...
def dropout_backward(dy: Any, rng: Any, p: Any, out: Any, stream: Any) -> Any: ...

# elementwise.pxi
def add(a: Any, b: Any, alpha: Any, beta: Any, out: Any, stream: Any) -> Any: ...
def add_backward(
    dy: Any, a_shape: Any, b_shape: Any, out_a: Any, out_b: Any, stream: Any
) -> tuple[Any, Any]: ...

@final
class ElementwiseForm:
    made: tuple[tuple[int, str, str], ...]
    def __init__(
        self,
        op: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        number_types: tuple[type, ...],
        plain_number: Any,
    ) -> None: ...

@final
class ElementwiseLaunch:
    def __init__(
        self,
        kernel: Any,
        handle: int,
        blocks: int,
        threads: int,
        numel: int,
        order: list[int],
        integers: tuple[int, ...],
        made: list[tuple[int, str, tuple[int, ...], str]],
    ) -> None: ...

@final
class ElementwiseCall:
    def __init__(
        self, form: ElementwiseForm, args: tuple[Any, ...], out: Any, stream: Any
    ) -> None: ...
    def key(self) -> bytes | None: ...
    def run(self, launch: ElementwiseLaunch) -> Any: ...
    def inputs(self) -> dict[str, str]: ...
    def values(self) -> dict[str, tuple[str, Any]]: ...
    def given(self, name: str) -> str | None: ...
    def slots(self) -> list[tuple[str, str]]: ...
    def shape(self) -> tuple[int, ...]: ...
    def make(self, place: int, name: str, shape: tuple[int, ...], dtype: str) -> None: ...
    def arrange(self) -> None: ...
    def walk(self) -> tuple[tuple[int, ...], int, list[tuple[int, int, tuple[int, ...]]]]: ...
    @property
    def is_explained(self) -> bool: ...
    @property
    def device(self) -> int | None: ...
    def explains(self, implementation: str, explanation: str) -> bool: ...
    def result(self) -> Any: ...

# embedding.pxi
def embedding(ids: Any, weight: Any, out: Any, stream: Any) -> Any: ...
def embedding_backward(
    dy: Any,
    ids: Any,
    num_embeddings: Any,
    padding_idx: Any,
    scale_grad_by_freq: bool,
    accumulate: bool,
    out: Any,
    stream: Any,
) -> Any: ...
def one_hot(ids: Any, num_classes: Any, dtype: Any, out: Any, stream: Any) -> Any: ...

# optim.pxi
def sgd_step(
    param: Any,
    grad: Any,
    momentum_buffer: Any,
    copy: Any,
    lr: Any,
    momentum: Any,
    dampening: Any,
    weight_decay: Any,
    nesterov: bool,
    maximize: bool,
    first_step: bool,
    grad_scale: Any,
    found_inf: Any,
    stream: Any,
) -> Any: ...
def adamw_step(
    param: Any,
    grad: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    max_exp_avg_sq: Any,
    copy: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    eps: Any,
    weight_decay: Any,
    step: Any,
    maximize: bool,
    l2: bool,
    grad_scale: Any,
    found_inf: Any,
    stream: Any,
) -> Any: ...
def lion_step(
    param: Any,
    grad: Any,
    exp_avg: Any,
    copy: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    weight_decay: Any,
    maximize: bool,
    grad_scale: Any,
    found_inf: Any,
    stream: Any,
) -> Any: ...
def grad_norm(
    grad: Any,
    loss_scale: Any,
    max_norm: Any,
    ord: Any,
    out: Any,
    out_grad_scale: Any,
    out_found_inf: Any,
    stream: Any,
) -> tuple[Any, Any, Any]: ...
def scale_grads(grad: Any, scale: Any, found_inf: Any, stream: Any) -> Any: ...
def update_loss_scale(
    loss_scale: Any,
    growth_tracker: Any,
    found_inf: Any,
    step: Any,
    growth_factor: Any,
    backoff_factor: Any,
    growth_interval: Any,
    stream: Any,
) -> Any: ...

# conv.pxi
def conv(
    x: Any, weight: Any, bias: Any, transposed: bool, window: tuple, out: Any, stream: Any
) -> Any: ...
def conv_bias_act(
    x: Any,
    weight: Any,
    bias: Any,
    scale: Any,
    residual: Any,
    activation: Any,
    alpha: Any,
    preactivation: bool,
    stats: bool,
    transposed: bool,
    window: tuple,
    out: Any,
    out_preactivation: Any,
    out_mean: Any,
    out_var: Any,
    stream: Any,
) -> Any: ...
def conv_backward_input(
    dy: Any, weight: Any, input_shape: Any, transposed: bool, window: tuple, out: Any, stream: Any
) -> Any: ...
def conv_backward_weight(
    dy: Any,
    x: Any,
    weight_shape: Any,
    transposed: bool,
    window: tuple,
    bias: bool,
    accumulate: bool,
    out: Any,
    out_bias: Any,
    stream: Any,
) -> Any: ...

# layout.pxi
def permute(x: Any, axes: tuple[int, ...], out: Any, stream: Any) -> Any: ...
def contiguous(x: Any, out: Any, stream: Any) -> Any: ...
def move_channels(x: Any, last: bool, out: Any, stream: Any) -> Any: ...
def concat(arrays: Any, axis: Any, out: Any, stream: Any) -> Any: ...
def split(x: Any, sections: Any, axis: Any, out: Any, stream: Any) -> tuple[Any, ...]: ...
def cast(x: Any, dtype: Any, out: Any, stream: Any) -> Any: ...

# pool.pxi
def max_pool(
    op: str,
    x: Any,
    window: tuple[Any, ...],
    index_dtype: str | None,
    out: Any,
    out_indices: Any,
    stream: Any,
) -> Any: ...
def max_pool_backward(
    op: str,
    dy: Any,
    indices: Any,
    input_shape: Any,
    window: tuple[Any, ...],
    out: Any,
    stream: Any,
) -> Any: ...
def avg_pool(
    op: str, x: Any, window: tuple[Any, ...], average: tuple[Any, ...], out: Any, stream: Any
) -> Any: ...
def avg_pool_backward(
    op: str,
    dy: Any,
    input_shape: Any,
    window: tuple[Any, ...],
    average: tuple[Any, ...],
    out: Any,
    stream: Any,
) -> Any: ...
def lp_pool(x: Any, norm_type: Any, window: tuple[Any, ...], out: Any, stream: Any) -> Any: ...
def lp_pool_backward(
    dy: Any, x: Any, y: Any, norm_type: Any, window: tuple[Any, ...], out: Any, stream: Any
) -> Any: ...

# reduce.pxi
def reduce(
    x: Any, kind: str, axis: Any, number: Any, keepdims: bool, out: Any, stream: Any
) -> Any: ...
def reduce_backward(
    dy: Any, x: Any, y: Any, kind: str, shape: Any, axis: Any, number: Any, out: Any, stream: Any
) -> Any: ...

# rope.pxi
def rope(
    x: Any,
    backward: bool,
    cos: Any,
    sin: Any,
    positions: Any,
    offset: Any,
    base: Any,
    rotary_dim: Any,
    interleaved: bool,
    layout: Any,
    out: Any,
    stream: Any,
) -> Any: ...

# topk.pxi
def top_k(
    x: Any,
    k: Any,
    axis: Any,
    largest: bool,
    in_order: bool,
    out: Any,
    out_indices: Any,
    stream: Any,
) -> tuple[Any, Any]: ...
def top_k_backward(
    dy: Any, indices: Any, input_shape: Any, axis: Any, out: Any, stream: Any
) -> Any: ...

# gemm.pxi
def matmul(
    a: Any,
    b: Any,
    c: Any,
    alpha: Any,
    beta: Any,
    precision: Any,
    batch_invariant: bool,
    out: Any,
    stream: Any,
) -> Any: ...
def matmul_backward(
    dy: Any, a: Any, b: Any, alpha: Any, precision: Any, out: Any, out_b: Any, stream: Any
) -> Any: ...
def linear(
    x: Any,
    weight: Any,
    bias: Any,
    activation: Any,
    alpha: Any,
    residual: Any,
    preactivation: bool,
    precision: Any,
    batch_invariant: bool,
    out: Any,
    out_preactivation: Any,
    stream: Any,
) -> Any: ...
def linear_backward_input(
    dy: Any,
    weight: Any,
    activation: Any,
    alpha: Any,
    preactivation: Any,
    precision: Any,
    batch_invariant: bool,
    out: Any,
    stream: Any,
) -> Any: ...
def linear_backward_weight(
    dy: Any,
    x: Any,
    bias: bool,
    accumulate: bool,
    precision: Any,
    out: Any,
    out_bias: Any,
    stream: Any,
) -> Any: ...

# gemm_scaled.pxi
def scaled_matmul(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any,
    activation: Any,
    alpha: Any,
    out_dtype: Any,
    scale_out: Any,
    amax: bool,
    batch_invariant: bool,
    out: Any,
    out_amax: Any,
    stream: Any,
) -> Any: ...

# conv_scaled.pxi
def scaled_conv(
    x: Any,
    weight: Any,
    scale_x: Any,
    scale_weight: Any,
    bias: Any,
    window: tuple,
    activation: Any,
    alpha: Any,
    out_dtype: Any,
    scale_out: Any,
    amax: bool,
    out: Any,
    out_amax: Any,
    stream: Any,
) -> Any: ...

# gemm_grouped.pxi
def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any,
    bias: Any,
    scale_a: Any,
    scale_b: Any,
    precision: Any,
    out_dtype: Any,
    batch_invariant: bool,
    out: Any,
    stream: Any,
) -> Any: ...
def product_of_list(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    precision: Any,
    out_dtype: Any,
    batch_invariant: bool,
    out: Any,
    stream: Any,
) -> Any: ...
def grouped_matmul_backward(
    dy: Any,
    a: Any,
    b: Any,
    offsets: Any,
    precision: Any,
    batch_invariant: bool,
    out: Any,
    out_b: Any,
    stream: Any,
) -> Any: ...
def require_disjoint_lists(op: str, written: Any, used: Any) -> None: ...
