"""layer_norm and rms_norm: ``python -m benchmarks.bench_norm [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

import dlkern

from .harness import Case, compiled, main

TABLE = {
    "cuda": {
        "bfloat16": [(16384, 4096), (32768, 1024), (4096, 16384)],
        "float32": [(16384, 4096)],
    },
    "cpu": {"float32": [(4096, 1024), (1024, 4096)]},
}
# Short rows, long ones, odd columns, and tensors that a launch costs more than.
MORE = {
    "cuda": {
        "bfloat16": [(1 << 20, 64), (262144, 256), (131072, 512), (512, 131072), (1000, 100003),
                     (16384, 4095), (65536, 500), (64, 4096), (8, 65536)],
        "float32": [(32768, 1024), (4096, 16384)],
        "float16": [(16384, 4096)],
    },
    "cpu": {
        "float32": [(65536, 64), (8192, 100), (64, 100003), (8, 1000)],
        "bfloat16": [(4096, 1024)],
        "float64": [(2048, 1024)],
    },
}  # fmt: skip


def layer_forward(x, weight, bias):
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


def rms_forward(x, weight):
    return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)


def layer_backward(dy, x, weight, mean, rstd):
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, weight.shape, mean[:, None], rstd[:, None], weight, weight, (True, True, True)
    )


def rms_backward(dy, x, weight, rstd):
    if not x.is_cuda:
        return formula(dy, x, weight, None, rstd)
    return torch.ops.aten._fused_rms_norm_backward(
        dy, x, weight.shape, rstd[:, None], weight, (True, True)
    )


def formula(dy, x, weight, mean, rstd):
    """Gradients in the type that x is summed in; without a mean those of rms_norm."""
    wide = rstd.dtype
    dy, center = dy.to(wide), 0 if mean is None else mean[:, None]
    xhat, g = (x.to(wide) - center) * rstd[:, None], dy * weight.to(wide)
    dx = g - xhat * (g * xhat).mean(-1, keepdim=True)
    if mean is not None:
        dx = dx - g.mean(-1, keepdim=True)
    dx, dweight = (dx * rstd[:, None]).to(x.dtype), (dy * xhat).sum(0).to(weight.dtype)
    return (dx, dweight) if mean is None else (dx, dweight, dy.sum(0).to(weight.dtype))


def residual_forward(x, residual, weight):
    total = x + residual
    return rms_forward(total, weight), total


def double(*args):
    return [None if a is None else a.double() for a in args]


def cases_of(x, group: str) -> Iterator[Case]:
    """Both ops, forward and backward."""
    rows, n = x.shape
    dy, y, dx = torch.randn_like(x), torch.empty_like(x), torch.empty_like(x)
    weight, bias = torch.rand_like(x[0]) + 0.5, torch.randn_like(x[0])
    dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
    case = partial(
        Case, tolerance=torch.finfo(x.dtype).eps * (64 if x.itemsize >= 4 else 2), group=group
    )
    name = f"{rows}x{n} {str(x.dtype).removeprefix('torch.')}"
    for op in ("layernorm", "rmsnorm"):
        rms = op == "rmsnorm"
        args = (x, weight) if rms else (x, weight, bias)
        ours, theirs = (dlkern.rms_norm, rms_forward) if rms else (dlkern.layer_norm, layer_forward)
        yield case(
            f"{op} {name} fwd",
            {
                "dlkern": partial(ours, *args, out=y),
                "torch": partial(theirs, *args),
                **(compiled(theirs, *args) if group == "table" else {}),
            },
            reference=lambda theirs=theirs, args=args: theirs(*double(*args)),
            bytes=2 * x.nbytes,
        )
        *_, rstd = ours(*args, return_stats=True)
        mean = None if rms else x.to(rstd.dtype).mean(-1)
        statistics = (rstd,) if rms else (mean, rstd)
        args = (dy, x, weight, *statistics)
        outputs = {"out": dx, "out_weight": dweight} | ({} if rms else {"out_bias": dbias})
        yield case(
            f"{op} {name} bwd",
            {
                "dlkern": partial(
                    dlkern.rms_norm_backward if rms else dlkern.layer_norm_backward,
                    *args,
                    **outputs,
                ),
                "torch": partial(rms_backward if rms else layer_backward, *args),
                **(compiled(formula, dy, x, weight, mean, rstd) if group == "table" else {}),
            },
            reference=lambda: formula(*double(dy, x, weight, mean, rstd))[0],  # noqa: B023
            bytes=3 * x.nbytes,
            part=lambda results: results[0],
        )


def residual_case(x) -> Case:
    """rms_norm of a sum, which is written, too."""
    residual, y, total = torch.randn_like(x), torch.empty_like(x), torch.empty_like(x)
    args = x, residual, torch.rand_like(x[0]) + 0.5
    name = f"{x.shape[0]}x{x.shape[1]} {str(x.dtype).removeprefix('torch.')}"
    return Case(
        f"rmsnorm + residual {name} fwd",
        {
            "dlkern": lambda: dlkern.rms_norm(
                x, args[2], residual=residual, out=y, out_residual=total
            ),
            "torch": partial(residual_forward, *args),
            **compiled(residual_forward, *args),
        },
        reference=lambda: rms_forward((x + residual).double(), args[2].double()),
        tolerance=torch.finfo(x.dtype).eps * (64 if x.itemsize >= 4 else 2),
        bytes=4 * x.nbytes,
        group="more",
        part=lambda results: results[0],
    )


def cases(device: str, quick: bool) -> Iterator[Case]:
    for group, shapes_of in (("table", TABLE), ("more", MORE)):
        for name, shapes in shapes_of[device].items():
            for shape in shapes[:1] if quick else shapes:
                yield from cases_of(
                    torch.randn(shape, device=device).to(getattr(torch, name)), group
                )
    for name, shapes in TABLE[device].items():
        yield residual_case(torch.randn(shapes[0], device=device).to(getattr(torch, name)))


if __name__ == "__main__":
    main("norm", cases)
