"""batch_norm, group_norm and instance_norm, forward and backward.

``python -m benchmarks.bench_norm_batch [--device cpu] [--quick]``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

import dlkern

from .harness import Case, compiled, main

# (op, shape as N, C, spatial..., dtype, layout, what else is fused): group "table" first.
BIG = (64, 256, 56, 56)
TABLE = {
    "cuda": [
        (op, BIG, "bfloat16", layout, "")
        for op in ("batchnorm", "groupnorm32")
        for layout in ("NCHW", "NHWC")
    ],
    "cpu": [
        (op, (8, 64, 56, 56), "float32", layout, "")
        for op in ("batchnorm", "groupnorm32")
        for layout in ("NCHW", "NHWC")
    ],
}
MORE = {
    "cuda": [
        ("batchnorm", (64, 64, 112, 112), "bfloat16", "NCHW", ""),
        ("batchnorm", (64, 64, 112, 112), "bfloat16", "NHWC", ""),
        ("batchnorm", (32, 2048, 7, 7), "bfloat16", "NCHW", ""),
        ("batchnorm", (32, 2048, 7, 7), "bfloat16", "NHWC", ""),
        ("batchnorm", (2, 256, 56, 56), "bfloat16", "NCHW", ""),
        ("batchnorm", (2, 256, 56, 56), "bfloat16", "NHWC", ""),
        ("batchnorm", (64, 3, 224, 224), "bfloat16", "NCHW", ""),
        ("batchnorm", (64, 64, 55, 53), "bfloat16", "NCHW", ""),
        ("batchnorm", (65536, 1024), "bfloat16", "NCHW", ""),
        ("batchnorm", (64, 256, 4000), "float32", "NCHW", ""),
        ("batchnorm", (4, 64, 16, 64, 64), "float16", "NCHW", ""),
        ("batchnorm", BIG, "bfloat16", "NCHW", "inference"),
        ("batchnorm", BIG, "bfloat16", "NHWC", "inference"),
        ("batchnorm", BIG, "bfloat16", "NCHW", "residual+relu"),
        ("batchnorm", BIG, "bfloat16", "NHWC", "residual+relu"),
        ("batchnorm", BIG, "bfloat16", "NHWC", "relu"),
        ("groupnorm32", (2, 320, 64, 64), "float16", "NCHW", "silu"),
        ("groupnorm32", (2, 320, 64, 64), "float16", "NHWC", "silu"),
        ("groupnorm32", (1, 128, 512, 512), "bfloat16", "NCHW", "silu"),
        ("groupnorm32", (64, 2048, 7, 7), "bfloat16", "NCHW", ""),
        ("groupnorm32", (16, 256, 56, 56), "float32", "NHWC", ""),
        ("instancenorm", (16, 64, 128, 128), "bfloat16", "NCHW", ""),
        ("instancenorm", (16, 64, 128, 128), "bfloat16", "NHWC", ""),
    ],
    "cpu": [
        ("batchnorm", (8, 64, 56, 56), "float32", "NCHW", "inference"),
        ("batchnorm", (8, 64, 56, 56), "float32", "NCHW", "residual+relu"),
        ("batchnorm", (16, 512, 7, 7), "float32", "NCHW", ""),
        ("batchnorm", (2048, 256), "float32", "NCHW", ""),
        ("groupnorm32", (2, 320, 32, 32), "float32", "NCHW", "silu"),
        ("groupnorm32", (2, 320, 32, 32), "float32", "NHWC", "silu"),
        ("instancenorm", (8, 64, 64, 64), "float32", "NCHW", ""),
    ],
}
MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def activate(y, fused: str):
    if "relu" in fused:
        return functional.relu(y)
    return functional.silu(y) if "silu" in fused else y


def forward(op: str, fused: str) -> Callable[..., Any]:
    """The rival's forward pass: f(x, weight, bias, residual, running mean, running variance)."""

    def run(x, weight, bias, residual, mean, var):
        if op == "batchnorm":
            y = functional.batch_norm(x, mean, var, weight, bias, fused != "inference")
        elif op == "instancenorm":
            y = functional.instance_norm(x, weight=weight, bias=bias)
        else:
            y = functional.group_norm(x, 32, weight, bias)
        return activate(y if residual is None else y + residual, fused)

    return run


def ours(op: str, fused: str, layout: str, x, weight, bias, residual, mean, var):
    """Forward and backward of dlkern as functions of no arguments."""
    activation = "relu" if "relu" in fused else "silu" if "silu" in fused else None
    options = {"layout": layout, "activation": activation}
    dx, y = torch.empty_like(x), torch.empty_like(x)
    if op == "batchnorm":
        if fused == "inference":
            return lambda: dlkern.batch_norm(x, weight, bias, mean, var, out=y, **options), None
        stats = torch.empty_like(mean), torch.empty_like(mean)
        run = lambda: dlkern.batch_norm_training(  # noqa: E731
            x, weight, bias, mean, var, residual=residual, out=y, out_mean=stats[0],
            out_rstd=stats[1], **options,
        )[0]  # fmt: skip
        run()
        dr = None if residual is None else torch.empty_like(x)
        grads = torch.empty_like(weight), torch.empty_like(bias)
        extra = {"y": y, "out_residual": dr} if residual is not None else {}
        return run, lambda dy: dlkern.batch_norm_backward(
            dy, x, weight, *stats, bias=bias, out=dx, out_weight=grads[0], out_bias=grads[1],
            **extra, **options,
        )  # fmt: skip
    groups = x.shape[1 if layout == "NCHW" else -1] if op == "instancenorm" else 32
    _, *stats = dlkern.group_norm(x, groups, weight, bias, return_stats=True, **options)
    grads = torch.empty_like(weight), torch.empty_like(bias)
    return (
        lambda: dlkern.group_norm(
            x, groups, weight, bias, out=y, out_mean=stats[0], out_rstd=stats[1], **options
        )[0],
        lambda dy: dlkern.group_norm_backward(
            dy, x, groups, weight, *stats, bias=bias, out=dx, out_weight=grads[0],
            out_bias=grads[1], **options,
        ),
    )  # fmt: skip


def gradients(function, dy, x, weight, bias, residual, *running):
    """The rival's backward pass alone: the graph of one forward pass, used again and again."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    if residual is not None:
        residual = residual.detach().requires_grad_()
    y = function(*leaves, residual, *running)
    wanted = leaves if residual is None else [*leaves, residual]
    return lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True)


def case_of(device: str, group: str, op, shape, name: str, layout: str, fused: str):
    dtype = getattr(torch, name)
    tolerance = torch.finfo(dtype).eps * (64 if dtype.itemsize >= 4 else 4)
    format_ = MEMORY_FORMATS[len(shape)] if layout == "NHWC" else torch.contiguous_format

    def tensor():
        return torch.randn(shape, device=device).to(dtype).to(memory_format=format_)

    x, dy = tensor(), tensor()
    residual = tensor() if "residual" in fused else None
    channels = shape[1]
    weight, bias, mean = (torch.randn(channels, device=device) for _ in range(3))
    var = torch.rand(channels, device=device) + 0.5
    # The rivals take parameters beside 16-bit data in float32 for batch norm alone.
    theirs = [p if op == "batchnorm" else p.to(dtype) for p in (weight, bias)]
    order = [0, *range(2, len(shape)), 1]
    turn = (lambda t: t.permute(order)) if layout == "NHWC" else (lambda t: t)
    back = (lambda t: t.movedim(-1, 1)) if layout == "NHWC" else (lambda t: t)
    turned = [None if t is None else turn(t) for t in (x, residual)]
    run, run_backward = ours(op, fused, layout, turned[0], weight, bias, turned[1], mean, var)
    function = forward(op, fused)
    arguments = x, *theirs, residual, mean, var
    label = f"{op} {'x'.join(map(str, shape))} {name} {layout} {fused}".strip()
    yield Case(
        f"{label} fwd",
        {
            "dlkern": lambda: back(run()),
            "torch": lambda: function(*arguments),
            **(compiled(function, *arguments) if group == "table" or fused else {}),
        },
        reference=lambda: function(*wide(arguments)),
        tolerance=tolerance,
        bytes=(2 if residual is None else 3) * x.nbytes,
        group=group,
    )
    if run_backward is None:
        return
    turned_dy = turn(dy)
    yield Case(
        f"{label} bwd",
        {
            "dlkern": lambda: back(run_backward(turned_dy)[0]),
            "torch": gradients(function, dy, *arguments),
        },
        reference=None
        if "relu" in fused
        else (lambda: gradients(function, dy.double(), *wide(arguments))()[0]),
        note="unchecked: rounding decides on which side of relu's kink some lie"
        if "relu" in fused
        else "",
        part=lambda result: result if isinstance(result, torch.Tensor) else result[0],
        tolerance=4 * tolerance,
        bytes=(3 if residual is None else 5) * x.nbytes,
        group=group,
    )


def wide(arguments):
    return [None if a is None else a.double() for a in arguments]


def cases(device: str, quick: bool) -> Iterator[Case]:
    for group, rows in (("table", TABLE[device]), ("more", MORE[device])):
        for row in rows[:2] if quick else rows:
            yield from case_of(device, group, *row)


if __name__ == "__main__":
    main("norm_batch", cases)
