"""top_k and its gradient: ``python -m benchmarks.bench_topk [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import dlkern

from .harness import Case, main

# Rows, their length and k: a router of experts, sampling from a vocabulary, and odd ones.
SHAPES = {
    "cuda": [
        (16384, 64, 2), (16384, 128, 8), (16384, 256, 8), (262144, 64, 8), (8192, 1024, 32),
        (4096, 4096, 8), (2048, 128256, 1), (2048, 128256, 50), (64, 128256, 50),
        (1000, 100003, 50), (4096, 8192, 256), (512, 32768, 2048),
    ],
    "cpu": [(4096, 64, 2), (4096, 256, 8), (256, 8192, 50), (16, 128256, 50), (64, 4096, 1000)],
}  # fmt: skip
DTYPES = {"cuda": (torch.bfloat16, torch.float32), "cpu": (torch.float32,)}


def cases_of(x: torch.Tensor, k: int, label: str) -> Iterator[Case]:
    values, indices = torch.topk(x, k)
    out, out_indices, dx = (torch.empty_like(t) for t in (values, indices, x))
    size = x.nbytes + values.nbytes + indices.nbytes
    yield Case(
        f"{label} fwd",
        {
            "dlkern": lambda: dlkern.top_k(x, k, out=out, out_indices=out_indices),
            "torch": lambda: torch.topk(x, k),
        },
        reference=values.double,
        bytes=size,
        part=lambda result: result[0],
    )

    def scatter():
        return torch.zeros_like(x).scatter_(-1, indices, values)

    yield Case(
        f"{label} bwd",
        {
            "dlkern": lambda: dlkern.top_k_backward(values, indices, None, out=dx),
            "torch": scatter,
        },
        reference=lambda: scatter().double(),
        bytes=size,
    )


def cases(device: str, quick: bool) -> Iterator[Case]:
    for dtype in DTYPES[device]:
        for rows, n, k in SHAPES[device][:2] if quick else SHAPES[device]:
            x = torch.randn(rows, n, device=device, dtype=dtype)
            yield from cases_of(x, k, f"top_k {rows}x{n} k={k} {str(dtype)[6:]}")


if __name__ == "__main__":
    main("topk", cases)
