"""Embedding, one_hot: ``python -m benchmarks.bench_embedding [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import dlkern

from .harness import Case, compiled, main

# Ids, rows and columns of the table.
TABLES = {
    "cuda": [("bfloat16", 16384, 128256, 4096), ("float32", 16384, 32000, 1024),
             ("bfloat16", 65536, 50257, 768), ("bfloat16", 512, 32000, 4096),
             ("float32", 131072, 1000, 64), ("bfloat16", 16384, 50257, 1001)],
    "cpu": [("float32", 2048, 8000, 512), ("bfloat16", 2048, 8000, 512),
            ("float32", 10000, 100, 63)],
}  # fmt: skip
ONE_HOT = {
    "cuda": [("int64", 65536, 1000), ("bfloat16", 16384, 32000), ("float32", 100003, 10)],
    "cpu": [("int64", 4096, 100), ("float32", 4096, 1000)],
}


def skewed(n: int, rows: int, device: str) -> torch.Tensor:
    """Ids of which some are frequent, as words of a language are."""
    return (torch.rand(n, device=device).pow(4) * rows).long()


def forward_case(name, n, rows, columns, device, group) -> Case:
    weight = torch.randn(rows, columns, device=device).to(getattr(torch, name))
    ids = torch.randint(0, rows, (n,), device=device)
    out = weight.new_empty(n, columns)
    compiled_rival = (
        compiled(torch.nn.functional.embedding, ids, weight) if group == "table" else {}
    )
    return Case(
        f"embedding {n} of {rows}x{columns} {name} fwd",
        {
            "dlkern": lambda: dlkern.embedding(ids, weight, out=out),
            "torch": lambda: torch.nn.functional.embedding(ids, weight),
            **compiled_rival,
        },
        reference=lambda: weight[ids].double(),
        bytes=2 * out.nbytes + ids.nbytes,
        group=group,
    )


def backward_case(name, n, rows, columns, device) -> Case:
    dtype = getattr(torch, name)
    dy, ids = torch.randn(n, columns, device=device).to(dtype), skewed(n, rows, device)
    out = dy.new_empty(rows, columns)
    part = slice(0, 64)  # the frequent rows, with sums of many

    def reference() -> torch.Tensor:
        exact = torch.zeros(64, columns, dtype=torch.float64, device=device)
        own = ids < 64
        return exact.index_add_(0, ids[own], dy[own].double())

    return Case(
        f"embedding {n} of {rows}x{columns} {name} bwd",
        {
            "dlkern": lambda: dlkern.embedding_backward(dy, ids, out=out),
            "torch": lambda: torch.ops.aten.embedding_dense_backward(dy, ids, rows, -1, False),
        },
        reference=reference,
        part=lambda result: result[part],
        tolerance=torch.finfo(dtype).eps * (64 if dtype.itemsize >= 4 else 4),
        bytes=dy.nbytes + out.nbytes + ids.nbytes,
        group="more",
    )


def one_hot_case(name, n, classes, device) -> Case:
    ids = torch.randint(0, classes, (n,), device=device)
    out = torch.empty(n, classes, dtype=getattr(torch, name), device=device)
    return Case(
        f"one_hot {n}x{classes} {name}",
        {
            "dlkern": lambda: dlkern.one_hot(ids, classes, dtype=name, out=out),
            "torch": lambda: torch.nn.functional.one_hot(ids, classes).to(out.dtype),
        },
        reference=lambda: torch.nn.functional.one_hot(ids, classes).double(),
        bytes=out.nbytes + ids.nbytes,
        group="more",
    )


def cases(device: str, quick: bool) -> Iterator[Case]:
    for i, table in enumerate(TABLES[device][:2] if quick else TABLES[device]):
        yield forward_case(*table, device, "more" if i else "table")
        yield backward_case(*table, device)
    for name, n, classes in ONE_HOT[device]:
        yield one_hot_case(name, n, classes, device)


if __name__ == "__main__":
    main("embedding", cases)
