"""Deep-learning primitives as plain functions over DLPack tensors.

Arrays of PyTorch, JAX, CuPy, TensorFlow, NumPy or anything else with ``__dlpack__`` go in; results
come back as arrays of the same framework on the same device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlkern._core import (
    Plan,
    build_info,
    device_empty,
    devices,
    explain,
    get_include,
    get_library,
    get_num_threads,
    pinned_empty,
    set_num_threads,
    workspace,
)
from dlkern._dlkern import DeviceError
from dlkern.activation import (
    elu,
    elu_backward,
    geglu,
    geglu_backward,
    gelu,
    gelu_backward,
    glu,
    glu_backward,
    hardsigmoid,
    hardsigmoid_backward,
    hardswish,
    hardswish_backward,
    leaky_relu,
    leaky_relu_backward,
    mish,
    mish_backward,
    reglu,
    reglu_backward,
    relu,
    relu6,
    relu6_backward,
    relu_backward,
    selu,
    selu_backward,
    sigmoid,
    sigmoid_backward,
    silu,
    silu_backward,
    softplus,
    softplus_backward,
    swiglu,
    swiglu_backward,
    tanh,
    tanh_backward,
)
from dlkern.conv import (
    conv,
    conv_backward_input,
    conv_backward_weight,
    conv_transpose,
    conv_transpose_backward_input,
    conv_transpose_backward_weight,
)
from dlkern.dropout import dropout, dropout_backward
from dlkern.elementwise import add, add_backward
from dlkern.gemm import (
    linear,
    linear_backward_input,
    linear_backward_weight,
    matmul,
    matmul_backward,
)
from dlkern.gemm_grouped import grouped_matmul, grouped_matmul_backward
from dlkern.gemm_scaled import scaled_matmul
from dlkern.layout import (
    cast,
    concat,
    contiguous,
    nchw_to_nhwc,
    nhwc_to_nchw,
    permute,
    split,
)
from dlkern.loss import cross_entropy, cross_entropy_backward, cross_entropy_with_grad
from dlkern.norm import layer_norm, layer_norm_backward, rms_norm, rms_norm_backward
from dlkern.norm_batch import (
    batch_norm,
    batch_norm_backward,
    batch_norm_inference_backward,
    batch_norm_training,
)
from dlkern.norm_group import (
    group_norm,
    group_norm_backward,
    instance_norm,
    instance_norm_backward,
)
from dlkern.optim import (
    adamw_step,
    grad_norm,
    lion_step,
    scale_grads,
    sgd_step,
    update_loss_scale,
)
from dlkern.pool import avg_pool, avg_pool_backward, max_pool, max_pool_backward
from dlkern.reduce import (
    argmax,
    argmin,
    max,
    max_backward,
    mean,
    mean_backward,
    min,
    min_backward,
    prod,
    prod_backward,
    std,
    std_backward,
    sum,
    sum_backward,
    var,
    var_backward,
    vector_norm,
    vector_norm_backward,
)
from dlkern.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward
from dlkern.tuning import Tuning, autotune

if TYPE_CHECKING:
    from cuda.core import Event, Stream

__version__: str = build_info()["version"]

__all__ = [
    "DeviceError",
    "Event",
    "Plan",
    "Stream",
    "Tuning",
    "adamw_step",
    "add",
    "add_backward",
    "argmax",
    "argmin",
    "autotune",
    "avg_pool",
    "avg_pool_backward",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_inference_backward",
    "batch_norm_training",
    "build_info",
    "cast",
    "concat",
    "contiguous",
    "conv",
    "conv_backward_input",
    "conv_backward_weight",
    "conv_transpose",
    "conv_transpose_backward_input",
    "conv_transpose_backward_weight",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_with_grad",
    "device_empty",
    "devices",
    "dropout",
    "dropout_backward",
    "elu",
    "elu_backward",
    "explain",
    "geglu",
    "geglu_backward",
    "gelu",
    "gelu_backward",
    "get_include",
    "get_library",
    "get_num_threads",
    "glu",
    "glu_backward",
    "grad_norm",
    "group_norm",
    "group_norm_backward",
    "grouped_matmul",
    "grouped_matmul_backward",
    "hardsigmoid",
    "hardsigmoid_backward",
    "hardswish",
    "hardswish_backward",
    "instance_norm",
    "instance_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "leaky_relu",
    "leaky_relu_backward",
    "linear",
    "linear_backward_input",
    "linear_backward_weight",
    "lion_step",
    "log_softmax",
    "log_softmax_backward",
    "matmul",
    "matmul_backward",
    "max",
    "max_backward",
    "max_pool",
    "max_pool_backward",
    "mean",
    "mean_backward",
    "min",
    "min_backward",
    "mish",
    "mish_backward",
    "nchw_to_nhwc",
    "nhwc_to_nchw",
    "permute",
    "pinned_empty",
    "prod",
    "prod_backward",
    "reglu",
    "reglu_backward",
    "relu",
    "relu6",
    "relu6_backward",
    "relu_backward",
    "rms_norm",
    "rms_norm_backward",
    "scale_grads",
    "scaled_matmul",
    "selu",
    "selu_backward",
    "set_num_threads",
    "sgd_step",
    "sigmoid",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "softmax",
    "softmax_backward",
    "softplus",
    "softplus_backward",
    "split",
    "std",
    "std_backward",
    "sum",
    "sum_backward",
    "swiglu",
    "swiglu_backward",
    "tanh",
    "tanh_backward",
    "update_loss_scale",
    "var",
    "var_backward",
    "vector_norm",
    "vector_norm_backward",
    "workspace",
]


def __getattr__(name: str) -> Any:
    # cuda.core takes most of a second to import, so it waits until somebody needs it.
    if name in ("Stream", "Event"):
        import cuda.core

        return getattr(cuda.core, name)
    raise AttributeError(f"module 'dlkern' has no attribute {name!r}")
