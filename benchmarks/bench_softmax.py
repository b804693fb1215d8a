"""softmax and its gradient: ``python -m benchmarks.bench_softmax [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import dlkern

from .harness import Case, compiled, main

# Rows and columns: long rows, short rows, and tensors that a launch costs more than.
SHAPES = {
    "cuda": {
        "bfloat16": [(16384, 4096), (8192, 32768), (2048, 131072), (65536, 256), (65536, 32),
                     (262144, 64), (4096, 500), (64, 1000)],
        "float32": [(16384, 4096), (65536, 256), (64, 1000)],
        "float16": [(16384, 4096)],
        "float64": [(16384, 1024)],
    },
    "cpu": {
        "float32": [(4096, 1024), (1024, 4096), (128, 32768), (65536, 32), (8192, 100), (64, 1000)],
        "bfloat16": [(4096, 1024), (65536, 32)],
        "float64": [(2048, 1024)],
    },
}  # fmt: skip


def rivals(function, *args) -> dict:
    return {"torch": lambda: function(*args), **compiled(function, *args)}


def forward(x):
    return torch.softmax(x, -1)


def backward(dy, y):
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def cases(device: str, quick: bool) -> Iterator[Case]:
    for name, shapes in SHAPES[device].items():
        dtype = getattr(torch, name)
        tolerance = torch.finfo(dtype).eps * (16 if dtype.itemsize >= 4 else 1)
        for shape in shapes[:2] if quick else shapes:
            x = torch.randn(shape, device=device).to(dtype)
            out = torch.empty_like(x)
            label = f"softmax {shape[0]}x{shape[1]} {name}"
            yield Case(
                f"{label} fwd",
                {"dlkern": lambda x=x, out=out: dlkern.softmax(x, out=out), **rivals(forward, x)},
                reference=lambda x=x: forward(x.double()),
                tolerance=tolerance,
                bytes=2 * x.nbytes,
            )
            y, dy = forward(x), torch.randn(shape, device=device).to(dtype)
            yield Case(
                f"{label} bwd",
                {
                    "dlkern": lambda dy=dy, y=y, out=out: dlkern.softmax_backward(dy, y, out=out),
                    **rivals(backward, dy, y),
                },
                reference=lambda dy=dy, y=y: backward(dy.double(), y.double()),
                tolerance=tolerance,
                bytes=3 * x.nbytes,
            )


if __name__ == "__main__":
    main("softmax", cases)
