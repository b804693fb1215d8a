"""softmax and its gradient: ``python -m benchmarks.bench_softmax [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

import dlkern

from .harness import Case, compiled, main

TABLE = {
    "cuda": {
        "bfloat16": [(16384, 4096), (8192, 32768), (2048, 131072), (65536, 256)],
        "float32": [(16384, 4096)],
    },
    "cpu": {"float32": [(4096, 1024), (1024, 4096)]},
}
# Short rows, odd columns, small batches, and tensors that a launch costs more than.
MORE = {
    "cuda": {
        "bfloat16": [(65536, 32), (262144, 64), (4096, 500), (64, 1000), (16384, 4095),
                     (2048, 100003), (32768, 8192), (8, 131072)],
        "float32": [(65536, 256), (64, 1000)],
        "float16": [(16384, 4096)],
        "float64": [(16384, 1024)],
    },
    "cpu": {
        "float32": [(128, 32768), (65536, 32), (8192, 100), (64, 1000)],
        "bfloat16": [(4096, 1024), (65536, 32)],
        "float64": [(2048, 1024)],
    },
}  # fmt: skip
# Attention scores [B, H, Sq, Sk].
SCORES = {"cuda": (4, 32, 1024, 1024), "cpu": (1, 4, 256, 256)}
# Channels of images: the axis in the middle.
IMAGES = {"cuda": (32, 64, 128, 128), "cpu": (2, 32, 64, 64)}


def rivals(function, *args) -> dict:
    return {"torch": lambda: function(*args), **compiled(function, *args)}


def forward(x):
    return torch.softmax(x, -1)


def backward(dy, y):
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def tolerance_of(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps * (16 if dtype.itemsize >= 4 else 1)


def rows(device: str, name: str, shape, group: str) -> Iterator[Case]:
    dtype = getattr(torch, name)
    case = partial(Case, group=group, tolerance=tolerance_of(dtype))
    x = torch.randn(shape, device=device).to(dtype)
    out = torch.empty_like(x)
    label = f"softmax {shape[0]}x{shape[1]} {name}"
    yield case(
        f"{label} fwd",
        {"dlkern": lambda: dlkern.softmax(x, out=out), **rivals(forward, x)},
        reference=lambda: forward(x.double()),
        bytes=2 * x.nbytes,
    )
    y, dy = forward(x), torch.randn(shape, device=device).to(dtype)
    yield case(
        f"{label} bwd",
        {
            "dlkern": lambda: dlkern.softmax_backward(dy, y, out=out),
            **rivals(backward, dy, y),
        },
        reference=lambda: backward(dy.double(), y.double()),
        bytes=3 * x.nbytes,
    )


def masked(x, mask):
    return torch.softmax(0.125 * x + mask, -1)


def masked_rows(device: str) -> Iterator[Case]:
    """An additive mask, and a causal one, which torch adds."""
    dtype = torch.bfloat16
    x = torch.randn(SCORES[device], device=device).to(dtype)
    out, sizes = torch.empty_like(x), "x".join(map(str, x.shape))
    case = partial(Case, group="more", tolerance=tolerance_of(dtype), bytes=2 * x.nbytes)
    square = x.shape[-2:]
    mask = torch.randn(square, device=device).to(dtype)
    after = torch.full(square, -torch.inf, device=device).triu(1).to(dtype)
    for name, options, added in (
        ("mask", {"mask": mask}, mask),
        ("causal", {"causal": True}, after),
    ):
        yield case(
            f"softmax {sizes} bfloat16 {name}",
            {
                "dlkern": lambda options=options: dlkern.softmax(
                    x, scale=0.125, out=out, **options
                ),
                **rivals(masked, x, added),
            },
            reference=lambda added=added: masked(x.double(), added.double()),
        )


def channels(device: str) -> Iterator[Case]:
    """Along the axis in the middle."""
    for name in ("float32", "bfloat16"):
        x = torch.randn(IMAGES[device], device=device).to(getattr(torch, name))
        out, sizes = torch.empty_like(x), "x".join(map(str, x.shape))
        yield Case(
            f"softmax {sizes} {name} axis 1 fwd",
            {
                "dlkern": lambda x=x, out=out: dlkern.softmax(x, 1, out=out),
                "torch": lambda x=x: torch.softmax(x, 1),
            },
            reference=lambda x=x: torch.softmax(x.double(), 1),
            tolerance=tolerance_of(x.dtype),
            bytes=2 * x.nbytes,
            group="more",
        )


def cases(device: str, quick: bool) -> Iterator[Case]:
    for group, shapes in (("table", TABLE), ("more", {} if quick else MORE)):
        for name, of_dtype in shapes.get(device, {}).items():
            for shape in of_dtype[:2] if quick else of_dtype:
                yield from rows(device, name, shape, group)
    if not quick:
        yield from masked_rows(device)
        yield from channels(device)


if __name__ == "__main__":
    main("softmax", cases)
