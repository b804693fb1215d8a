"""Reductions over axes: ``python -m benchmarks.bench_reduce [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

import dlkern

from .harness import Case, compiled, cupy_rival, main

# Each op with its rival in torch.
OPS: dict[str, tuple[Callable, Callable]] = {
    "sum": (dlkern.sum, torch.sum),
    "mean": (dlkern.mean, torch.mean),
    "max": (dlkern.max, torch.amax),
    "argmax": (dlkern.argmax, torch.argmax),
    "prod": (dlkern.prod, lambda x, axis: torch.prod(x, axis)),
    "var": (dlkern.var, lambda x, axis: torch.var(x, axis, correction=0)),
    "norm": (dlkern.vector_norm, lambda x, axis: torch.linalg.vector_norm(x, 2, axis)),
    "any": (dlkern.any, torch.any),
    "all": (dlkern.all, torch.all),
}
EXACT = ("argmax", "any", "all")

# op, shape, axis and what to call it. None: all axes.
TABLE = {
    "cuda": [
        ("sum", (1 << 28,), None, "full 2^28"),
        ("sum", (16384, 16384), 1, "rows 16384x16384"),
        ("sum", (16384, 16384), 0, "cols 16384x16384"),
        ("max", (16384, 16384), 1, "rows 16384x16384"),
        ("argmax", (16384, 16384), 1, "rows 16384x16384"),
    ],
    "cpu": [
        ("sum", (1 << 24,), None, "full 2^24"),
        ("sum", (4096, 4096), 1, "rows 4096x4096"),
        ("sum", (4096, 4096), 0, "cols 4096x4096"),
        ("max", (4096, 4096), 1, "rows 4096x4096"),
        ("argmax", (4096, 4096), 1, "rows 4096x4096"),
    ],
}
# Short rows, tall columns, a middle axis, odd rows, and what a launch costs more than.
MORE = {
    "cuda": [
        *(("sum", (1 << 28 - k, 1 << k), 1, f"rows 2^{28 - k}x2^{k}") for k in (5, 6, 7, 8, 9)),
        ("argmax", (1 << 20, 128), 1, "rows 2^20x128"),
        ("sum", (1 << 22, 33), 1, "rows 2^22x33"),
        ("sum", (1_000_000, 64), 0, "cols 1e6x64"),
        ("max", (1_000_000, 64), 0, "cols 1e6x64"),
        ("mean", (64, 256, 56, 56), (0, 2, 3), "NCHW 64x256x56x56 over N, H, W"),
        ("mean", (64, 2048, 7, 7), (2, 3), "NCHW 64x2048x7x7 over H, W"),
        ("sum", (64, 1024, 1024), 1, "middle axis 64x1024x1024"),
        ("sum", (2000, 100_003), 1, "rows 2000x100003"),
        ("sum", (2000, 100_003), 0, "cols 2000x100003"),
        ("max", (100_000, 1001), 1, "rows 100000x1001"),
        ("sum", (64, 1000), 1, "rows 64x1000"),
        ("sum", (1, 1000), 1, "rows 1x1000"),
        ("sum", (1024, 1024), 1, "rows 1024x1024"),
        ("sum", (1024, 1024), 0, "cols 1024x1024"),
        ("sum", (8, 1 << 20), 1, "rows 8x2^20"),
        ("argmax", (1 << 27,), None, "full 2^27"),
        ("var", (16384, 8192), 1, "rows 16384x8192"),
        ("var", (8192, 16384), 0, "cols 8192x16384"),
        ("norm", (1 << 28,), None, "full 2^28"),
        ("norm", (16384, 8192), 1, "rows 16384x8192"),
        ("prod", (16384, 8192), 1, "rows 16384x8192"),
    ],
    "cpu": [
        ("sum", (65536, 64), 1, "rows 65536x64"),
        ("sum", (100_000, 64), 0, "cols 1e5x64"),
        ("mean", (16, 64, 56, 56), (0, 2, 3), "NCHW 16x64x56x56 over N, H, W"),
        ("sum", (200, 100_003), 1, "rows 200x100003"),
        ("var", (4096, 1024), 1, "rows 4096x1024"),
        ("var", (4096, 1024), 0, "cols 4096x1024"),
        ("norm", (4096, 1024), 1, "rows 4096x1024"),
        ("prod", (4096, 1024), 1, "rows 4096x1024"),
    ],
}
DTYPES = {"cuda": (torch.bfloat16, torch.float32), "cpu": (torch.float32,)}


def case_of(op: str, x: torch.Tensor, axis, label: str, group: str, compile_it: bool) -> Case:
    ours, theirs = OPS[op]
    out = torch.empty_like(theirs(x, axis))
    contenders = {
        "dlkern": lambda: ours(x, axis, out=out),
        "torch": lambda: theirs(x, axis),
    }
    if compile_it:
        contenders |= compiled(lambda v: theirs(v, axis), x)
    if op != "norm":
        contenders |= cupy_rival(lambda cupy, v: getattr(cupy, op)(v, axis), x)

    def reference():
        return theirs(x, axis).double() if op in EXACT else theirs(x.double(), axis)

    eps = 0 if op in EXACT else torch.finfo(x.dtype).eps
    return Case(
        f"{op} {label} {str(x.dtype).removeprefix('torch.')}",
        contenders,
        reference=reference,
        tolerance=eps * (512 if x.dtype.itemsize >= 4 else 1),
        bytes=x.numel() * x.element_size() + out.nbytes,
        group=group,
    )


def values(op: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Sums do not cancel and products stay in range, so that their errors are relative."""
    if op in ("sum", "mean"):
        return torch.rand(shape, device=device, dtype=dtype)
    x = torch.randn(shape, device=device, dtype=dtype)
    return x.mul_(1e-2).add_(1) if op == "prod" else x


def cases(device: str, quick: bool) -> Iterator[Case]:
    for dtype in DTYPES[device]:
        for op, shape, axis, label in TABLE[device][:2] if quick else TABLE[device]:
            x = values(op, shape, dtype, device)
            yield case_of(op, x, axis, label, "table", True)
    if quick:
        return
    for dtype in DTYPES[device]:
        for op, shape, axis, label in MORE[device]:
            x = values(op, shape, dtype, device)
            yield case_of(op, x, axis, label, "more", op == "var")
    wide = torch.rand((2048, 16384) if device == "cuda" else (512, 8192), device=device)
    yield case_of("sum", wide[:, ::2], 1, "every second column", "more", False)
    yield case_of("sum", wide.T, 1, "rows of a transposed matrix", "more", False)
    yield case_of("sum", wide[:, 1:], 1, "rows that are not aligned", "more", False)
    side = 16384 if device == "cuda" else 4096
    few = torch.rand((side, side), device=device) < 1e-4
    yield case_of("any", few, 1, f"rows {side}x{side}", "more", False)
    yield case_of("all", ~few, 0, f"cols {side}x{side}", "more", False)


if __name__ == "__main__":
    main("reduce", cases)
