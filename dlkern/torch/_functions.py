"""The plain functions over registered operators: the same names, arguments and results.

``out=`` and ``stream=`` are gone (torch's current stream is taken). Most functions follow from the
signature of the plain one; those whose results or arguments depend on options are written out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dlkern
from dlkern.norm_batch import given_statistics
from dlkern.torch import _ops  # noqa: F401  (registers the operators)
from dlkern.torch._op import written
from dlkern.torch._registry import OPERATORS, Operator, run
from dlkern.torch._shapes import pairs, per_dim

_PER_DIM = ("kernel", "stride", "dilation", "output_padding", "output_size")


def _generated(operator: Operator, result: str = "{}") -> Callable[..., Any]:
    """Of the plain function's signature; windows become what schemas take."""
    parameters = inspect.signature(getattr(dlkern, operator.name)).parameters.values()
    taken = [p.replace(annotation=p.empty) for p in parameters if p.name in operator.inputs]
    passed = list(operator.inputs)
    if "stride" in passed or "output_size" in passed:
        dims = f"{passed[0]}.dim() - 2"
        passed = [f"per_dim({n}, {dims})" if n in _PER_DIM else n for n in passed]
        passed = [f"pairs({n}, {dims})" if n == "padding" else n for n in passed]
    return written(
        [str(inspect.Signature(taken))[1:-1]],
        "return " + result.format(f"operator({', '.join(passed)})"),
        operator=operator, per_dim=per_dim, pairs=pairs, given=_given,
    )  # fmt: skip


def _given(results: tuple[Any, ...], least: int) -> Any:
    """Without the results at the end that are absent, as the plain functions return them."""
    while len(results) > least and results[-1] is None:
        results = results[:-1]
    return results if len(results) > 1 else results[0]


def _or_list(tensors: Any) -> list[Tensor]:
    if tensors is None:
        return []
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def _dtype(dtype: Any) -> torch.dtype | None:
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


# ---- Written out ---------------------------------------------------------------------------------

_WRITTEN: dict[str, Callable[..., Any]] = {}


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    _WRITTEN[function.__name__] = function
    return function


@_written
def linear(x, weight, bias=None, *, activation=None, alpha=None, residual=None,
           preactivation=False, precision="ieee", batch_invariant=False):  # fmt: skip
    after, how = (activation, alpha, residual), (precision, batch_invariant)
    if not preactivation:
        return run("linear", x, weight, bias, *after, *how)
    y, z = run("linear_with_preactivation", x, weight, bias, *after, *how)
    if z is None:  # without an activation none is kept for the gradient
        z = (
            y.clone()
            if residual is None
            else run("linear", x, weight, bias, None, None, None, *how)
        )
    return y, z


@_written
def grouped_matmul(a, b, offsets=None, bias=None, scale_a=None, scale_b=None, *, precision="ieee",
                   out_dtype=None, batch_invariant=False):  # fmt: skip
    if isinstance(a, (list, tuple)):
        if offsets is not None or bias is not None:
            raise ValueError(
                "grouped_matmul: offsets and bias are for packed groups, not for lists"
            )
        none = [None] * len(a)
        scales = (scale_a or none, scale_b or none)
        return [
            run("scaled_matmul", *group, None, None, None, _dtype(out_dtype), None, batch_invariant)
            if group[0].element_size() == 1
            else run("matmul", *group[:2], None, 1.0, 1.0, precision, batch_invariant)
            for group in zip(a, b, *scales, strict=True)
        ]
    return run("grouped_matmul", a, b, offsets, bias, scale_a, scale_b, precision,
               _dtype(out_dtype), batch_invariant)  # fmt: skip


@_written
def grouped_matmul_backward(dy, a, b, offsets=None, *, precision="ieee", batch_invariant=False):
    if not isinstance(a, (list, tuple)):
        return run("grouped_matmul_backward", dy, a, b, offsets, precision, batch_invariant)
    gradients = [
        run("matmul_backward", *group, 1.0, precision) for group in zip(dy, a, b, strict=True)
    ]
    return [da for da, _ in gradients], [db for _, db in gradients]


@_written
def scaled_matmul(a, b, scale_a=None, scale_b=None, bias=None, *, activation=None, alpha=None,
                  out_dtype=None, scale_out=None, amax=False, batch_invariant=False):  # fmt: skip
    name = "scaled_matmul_with_amax" if amax else "scaled_matmul"
    return run(name, a, b, scale_a, scale_b, bias, activation, alpha, _dtype(out_dtype), scale_out,
               batch_invariant)  # fmt: skip


@_written
def scaled_conv(x, weight, scale_x=None, scale_weight=None, bias=None, *, stride=1, padding=0,
                dilation=1, groups=1, layout="NCHW", activation=None, alpha=None, out_dtype=None,
                scale_out=None, amax=False):  # fmt: skip
    name, dims = "scaled_conv_with_amax" if amax else "scaled_conv", x.dim() - 2
    return run(name, x, weight, scale_x, scale_weight, bias, per_dim(stride, dims),
               pairs(padding, dims), per_dim(dilation, dims), groups, layout, activation, alpha,
               _dtype(out_dtype), scale_out)  # fmt: skip


def _conv_bias_act(name, x, channels, activation, alpha, window, preactivation, return_stats):
    arguments = (x, *channels, activation, alpha, *window, return_stats)
    if not preactivation:
        return _given(run(name, *arguments), 1)
    y, mean, var, z = run(f"{name}_with_preactivation", *arguments)
    if z is None:  # without an activation none is kept for the gradient
        z = y.clone()
    return (y, z, mean, var) if return_stats else (y, z)


@_written
def conv_bias_act(x, weight, bias=None, *, scale=None, residual=None, activation=None, alpha=None,
                  preactivation=False, return_stats=False, stride=1, padding=0, dilation=1,
                  groups=1, layout="NCHW", precision="ieee"):  # fmt: skip
    dims = x.dim() - 2
    window = (per_dim(stride, dims), pairs(padding, dims), per_dim(dilation, dims), groups, layout,
              precision)  # fmt: skip
    return _conv_bias_act("conv_bias_act", x, (weight, bias, scale, residual), activation, alpha,
                          window, preactivation, return_stats)  # fmt: skip


@_written
def conv_transpose_bias_act(x, weight, bias=None, *, scale=None, residual=None, activation=None,
                            alpha=None, preactivation=False, return_stats=False, stride=1,
                            padding=0, output_padding=0, dilation=1, groups=1, layout="NCHW",
                            precision="ieee"):  # fmt: skip
    dims = x.dim() - 2
    window = (per_dim(stride, dims), pairs(padding, dims), per_dim(output_padding, dims),
              per_dim(dilation, dims), groups, layout, precision)  # fmt: skip
    return _conv_bias_act("conv_transpose_bias_act", x, (weight, bias, scale, residual),
                          activation, alpha, window, preactivation, return_stats)  # fmt: skip


@_written
def batch_norm_training(x, weight=None, bias=None, running_mean=None, running_var=None, *,
                        residual=None, activation=None, momentum=0.1, num_batches_tracked=None,
                        stats=None, eps=1e-5, layout="NCHW"):  # fmt: skip
    options = (residual, activation, momentum, num_batches_tracked, eps, layout)
    if stats is None:
        return run("batch_norm_training", x, weight, bias, running_mean, running_var, *options)
    return run("batch_norm_training_given", x, *given_statistics(stats), weight, bias,
               running_mean, running_var, *options)  # fmt: skip


def _present(results: tuple[Any, ...]) -> Any:
    """Those that are not None: one alone, or a tuple."""
    results = tuple(r for r in results if r is not None)
    return results if len(results) > 1 else results[0]


def _rows_norm_result(results: tuple[Any, ...], residual: Any) -> Any:
    results = results if residual is not None else (results[0], *results[2:])
    return results if len(results) > 1 else results[0]


def _as_float8(x: Tensor, out_dtype: Any, scale_out: Any, amax: bool) -> bool:
    return amax or scale_out is not None or _dtype(out_dtype) not in (None, x.dtype)


@_written
def layer_norm(x, weight=None, bias=None, *, residual=None, normalized_ndim=1, eps=1e-5,
               weight_offset=0.0, out_dtype=None, scale_out=None, amax=False,
               return_stats=False):  # fmt: skip
    options = (weight, bias, residual, normalized_ndim, eps, weight_offset)
    if _as_float8(x, out_dtype, scale_out, amax):
        return _present(run("layer_norm_float8", x, _dtype(out_dtype) or x.dtype, *options,
                            scale_out, amax, return_stats))  # fmt: skip
    results = run("layer_norm_with_stats" if return_stats else "layer_norm", x, *options)
    return _rows_norm_result(results, residual)


@_written
def rms_norm(x, weight=None, *, residual=None, normalized_ndim=1, eps=1e-6, weight_offset=0.0,
             out_dtype=None, scale_out=None, amax=False, return_stats=False):  # fmt: skip
    options = (weight, residual, normalized_ndim, eps, weight_offset)
    if _as_float8(x, out_dtype, scale_out, amax):
        return _present(run("rms_norm_float8", x, _dtype(out_dtype) or x.dtype, *options,
                            scale_out, amax, return_stats))  # fmt: skip
    results = run("rms_norm_with_stats" if return_stats else "rms_norm", x, *options)
    return _rows_norm_result(results, residual)


@_written
def group_norm(x, num_groups, weight=None, bias=None, *, activation=None, eps=1e-5, layout="NCHW",
               return_stats=False):  # fmt: skip
    name = "group_norm_with_stats" if return_stats else "group_norm"
    return run(name, x, num_groups, weight, bias, activation, eps, layout)


@_written
def instance_norm(x, weight=None, bias=None, running_mean=None, running_var=None, *,
                  activation=None, momentum=0.1, eps=1e-5, layout="NCHW",
                  return_stats=False):  # fmt: skip
    name = "instance_norm_with_stats" if return_stats else "instance_norm"
    return run(name, x, weight, bias, running_mean, running_var, activation, momentum, eps, layout)


@_written
def max_pool(x, kernel, *, stride=None, padding=0, dilation=1, ceil_mode=False, layout="NCHW",
             return_indices=False, index_dtype="int64"):  # fmt: skip
    dims = x.dim() - 2
    window = (per_dim(kernel, dims), per_dim(stride, dims), pairs(padding, dims),
              per_dim(dilation, dims), ceil_mode, layout)  # fmt: skip
    if return_indices:
        return run("max_pool_with_indices", x, *window, index_dtype)
    return run("max_pool", x, *window)


@_written
def adaptive_max_pool(x, output_size, *, layout="NCHW", return_indices=False,
                      index_dtype="int64"):  # fmt: skip
    size = _output_size(x, output_size, layout)
    if return_indices:
        return run("adaptive_max_pool_with_indices", x, size, layout, index_dtype)
    return run("adaptive_max_pool", x, size, layout)


@_written
def adaptive_avg_pool(x, output_size, *, layout="NCHW"):
    return run("adaptive_avg_pool", x, _output_size(x, output_size, layout), layout)


def _output_size(x: Tensor, output_size: Any, layout: str) -> list[Any] | None:
    """None, also within, is the extent of x."""
    size = per_dim(output_size, x.dim() - 2)
    first = 1 if layout.endswith("C") else 2
    if size is None:
        return None
    return [x.shape[first + i] if n is None else n for i, n in enumerate(size)]


@_written
def dropout(x, p=0.5, *, rng=None, residual=None):
    """`rng` left out is drawn from torch's generator of x's device: see dlkern.dropout."""
    if rng is None:
        rng = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=x.device)
    return run("dropout", x, rng, residual, p)


@_written
def embedding(ids, weight, *, padding_idx=None, scale_grad_by_freq=False):
    """The keywords are those of dlkern.embedding_backward."""
    return run("embedding", ids, weight, padding_idx, scale_grad_by_freq)


@_written
def one_hot(ids, num_classes, *, dtype="int64"):
    return run("one_hot", ids, num_classes, _dtype(dtype))


def _rope(name: str, x: Any, *args: Any) -> Any:
    results = run(name, _or_list(x), *args)
    return tuple(results) if isinstance(x, (list, tuple)) else results[0]


@_written
def rope(x, *, cos=None, sin=None, positions=None, offset=0, base=10000.0, rotary_dim=None,
         interleaved=False, layout="BSHD"):  # fmt: skip
    return _rope("rope", x, cos, sin, positions, offset, base, rotary_dim, interleaved, layout)


@_written
def rope_backward(dy, *, cos=None, sin=None, positions=None, offset=0, base=10000.0,
                  rotary_dim=None, interleaved=False, layout="BSHD"):  # fmt: skip
    return _rope("rope_backward", dy, cos, sin, positions, offset, base, rotary_dim, interleaved,
                 layout)  # fmt: skip


@_written
def dropout_backward(dy, p=0.5, *, rng):
    return run("dropout_backward", dy, p, rng)


@_written
def concat(arrays, axis=0):
    return run("concat", list(arrays), axis)


@_written
def split(x, sections, axis=0):
    if isinstance(sections, int):
        if sections < 1 or x.shape[axis] % sections:
            raise ValueError(
                f"split: sections is {sections}, expected a divisor of {x.shape[axis]}"
            )
        sections = [x.shape[axis] // sections] * sections
    return tuple(run("split", x, list(sections), axis))


@_written
def cast(x, dtype):
    return run("cast", x, _dtype(dtype))


def _number(value: Any) -> tuple[Any, Tensor | None]:
    """A number that may lie on the device: (number, tensor)."""
    return (0, value) if isinstance(value, Tensor) else (value, None)


@_written
def sgd_step(param, grad, momentum_buffer=None, *, lr, momentum=0.0, dampening=0.0,
             weight_decay=0.0, nesterov=False, maximize=False, first_step=False, copy=None,
             grad_scale=None, found_inf=None):  # fmt: skip
    run("sgd_step", _or_list(param), _or_list(grad), _or_list(momentum_buffer), _or_list(copy),
        *_number(lr), momentum, dampening, weight_decay, nesterov, maximize, first_step,
        grad_scale, found_inf)  # fmt: skip


@_written
def adamw_step(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq=None, *, lr=1e-3,
               betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, step, maximize=False, l2=False,
               copy=None, grad_scale=None, found_inf=None):  # fmt: skip
    beta1, beta2 = betas
    run("adamw_step", _or_list(param), _or_list(grad), _or_list(exp_avg), _or_list(exp_avg_sq),
        _or_list(max_exp_avg_sq), _or_list(copy), *_number(lr), beta1, beta2, eps, weight_decay,
        *_number(step), maximize, l2, grad_scale, found_inf)  # fmt: skip


@_written
def lion_step(param, grad, exp_avg, *, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0,
              maximize=False, copy=None, grad_scale=None, found_inf=None):  # fmt: skip
    beta1, beta2 = betas
    run("lion_step", _or_list(param), _or_list(grad), _or_list(exp_avg), _or_list(copy),
        *_number(lr), beta1, beta2, weight_decay, maximize, grad_scale, found_inf)  # fmt: skip


@_written
def grad_norm(grad, *, max_norm=None, ord=2.0, loss_scale=None):
    return run("grad_norm", _or_list(grad), max_norm, loss_scale, ord)


@_written
def scale_grads(grad, scale, *, found_inf=None):
    run("scale_grads", _or_list(grad), scale, found_inf)


# ---- All of them ---------------------------------------------------------------------------------


# Operators whose last results are absent for some arguments -> how many there always are.
_LEAST = {
    **dict.fromkeys(("swiglu_backward", "geglu_backward", "reglu_backward", "glu_backward"), 1),
    **dict.fromkeys(("batch_norm_backward", "batch_norm_inference_backward"), 3),
}


def _made() -> dict[str, Callable[..., Any]]:
    made: dict[str, Callable[..., Any]] = {}
    for name, operator in OPERATORS.items():
        if not hasattr(dlkern, name):
            continue
        result = f"given({{}}, {_LEAST[name]})" if name in _LEAST else "{}"
        function = _WRITTEN.get(name) or _generated(operator, result)
        more = function.__doc__ or ""
        function.__name__ = function.__qualname__ = name
        function.__module__ = "dlkern.torch"
        function.__doc__ = f":func:`dlkern.{name}` as an operator of torch. {more}".strip()
        made[name] = function
    return made


#: By name: all ops of dlkern.
functions = _made()
