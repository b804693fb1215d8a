"""Copies and casts: ``python -m benchmarks.bench_layout [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import dlkern

from .harness import Case, compiled, cupy_rival, main

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)

# Shape and axes of permutations.
PERMUTE = {
    "cuda": [
        ((64, 256, 56, 56), TO_FIRST), ((64, 64, 112, 112), TO_LAST), ((64, 3, 224, 224), TO_LAST),
        ((64, 224, 224, 3), TO_FIRST), ((64, 512, 7, 7), TO_LAST), ((64, 7, 7, 2048), TO_FIRST),
        ((256, 1024, 14, 14), TO_LAST), ((256, 14, 14, 1024), TO_FIRST),
        ((8192, 8192), (1, 0)), ((10007, 5003), (1, 0)), ((100003, 64), (1, 0)),
        ((16, 4096, 32, 128), (0, 2, 1, 3)), ((64, 1024, 1024), (2, 1, 0)), ((31, 33, 35, 37, 39),
        (4, 2, 0, 3, 1)), ((8, 3, 32, 32), TO_LAST), ((1000, 33), (1, 0)),
    ],
    "cpu": [((4, 64, 56, 56), TO_FIRST), ((8, 3, 224, 224), TO_LAST), ((2048, 2048), (1, 0)),
            ((8, 512, 16, 64), (0, 2, 1, 3)), ((31, 33, 35, 37), (3, 1, 0, 2))],
}  # fmt: skip
# Shapes that are joined along an axis.
CONCAT = {
    "cuda": [([(8192, 4096)] * 4, 1), ([(8192, 1000), (8192, 3095)], 1), ([(4096, 1024)] * 32, 0),
             ([(64, 128, 56, 56)] * 2, 1), ([(8, 100)] * 16, 1)],
    "cpu": [([(512, 1024)] * 4, 1), ([(2048, 100), (2048, 27)], 1), ([(64, 1024)] * 16, 0)],
}  # fmt: skip
CASTS = [
    ("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float8_e4m3fn"),
    ("float8_e5m2", "bfloat16"), ("float32", "float16"), ("uint8", "float32"), ("int64", "int32"),
    ("float64", "float32"), ("bool", "bfloat16"),
]  # fmt: skip
CAST_SHAPES = {"cuda": [(16384, 16384)], "cpu": [(2048, 2048)]}


def random(shape: tuple[int, ...], dtype: str, device: str) -> torch.Tensor:
    if dtype in ("int64", "uint8", "bool"):
        return torch.randint(0, 2 if dtype == "bool" else 200, shape, device=device).to(
            getattr(torch, dtype)
        )
    return torch.randn(shape, device=device).to(getattr(torch, dtype))


def permute_case(shape, axes, dtype, device, group) -> Case:
    x = random(shape, dtype, device)
    y = torch.empty([shape[a] for a in axes], dtype=x.dtype, device=device)
    is_table = group == "table"
    return Case(
        f"permute {'x'.join(map(str, shape))} {''.join(map(str, axes))} {dtype}",
        {
            "dlkern": lambda: dlkern.permute(x, axes, out=y),
            "torch": lambda: y.copy_(x.permute(axes)),
            **(compiled(lambda x: x.permute(axes).contiguous(), x) if is_table else {}),
            **cupy_rival(lambda cupy, v: cupy.ascontiguousarray(v.transpose(axes)), x),
        },
        reference=lambda: x.permute(axes).double(),
        bytes=2 * x.nbytes,
        group=group,
    )


def concat_case(shapes, axis, dtype, device) -> Case:
    parts = [random(shape, dtype, device) for shape in shapes]
    whole = torch.cat(parts, axis)
    out = torch.empty_like(whole)
    return Case(
        f"concat {len(shapes)} of {'x'.join(map(str, shapes[-1]))} axis {axis} {dtype}",
        {
            "dlkern": lambda: dlkern.concat(parts, axis, out=out),
            "torch": lambda: torch.cat(parts, axis, out=out),
        },
        reference=lambda: whole.double(),
        bytes=2 * whole.nbytes,
        group="more",
    )


def split_case(shapes, axis, dtype, device) -> Case:
    parts = [torch.empty(s, dtype=getattr(torch, dtype), device=device) for s in shapes]
    sizes = [p.shape[axis] for p in parts]
    x = torch.cat([random(shape, dtype, device) for shape in shapes], axis)
    return Case(
        f"split {len(shapes)} of {'x'.join(map(str, shapes[-1]))} axis {axis} {dtype}",
        {
            "dlkern": lambda: dlkern.split(x, sizes, axis, out=parts)[-1],
            "torch": lambda: torch.split_with_sizes_copy(x, sizes, axis, out=parts) or parts[-1],
        },
        reference=lambda: x.split(sizes, axis)[-1].double(),
        bytes=2 * x.nbytes,
        group="more",
    )


def cast_case(shape, dtype, to, device, group="more") -> Case:
    x = random(shape, dtype, device)
    y = torch.empty(shape, dtype=getattr(torch, to), device=device)
    return Case(
        f"cast {'x'.join(map(str, shape))} {dtype} to {to}",
        {"dlkern": lambda: dlkern.cast(x, to, out=y), "torch": lambda: y.copy_(x)},
        reference=lambda: x.to(y.dtype).double(),
        bytes=x.nbytes + y.nbytes,
        group=group,
    )


def strided_case(device) -> Case:
    rows, columns = (8192, 4000) if device == "cuda" else (1024, 1000)
    x = random((rows, columns + 96), "bfloat16", device)[:, :columns]
    y = torch.empty(x.shape, dtype=x.dtype, device=device)
    return Case(
        f"contiguous {rows}x{columns} of longer rows bfloat16",
        {"dlkern": lambda: dlkern.contiguous(x, out=y), "torch": lambda: y.copy_(x)},
        reference=lambda: x.double(),
        bytes=2 * y.nbytes,
        group="more",
    )


def cases(device: str, quick: bool) -> Iterator[Case]:
    table = (64, 256, 56, 56) if device == "cuda" else (4, 64, 56, 56)
    for dtype in ("bfloat16", "float32"):
        yield permute_case(table, TO_LAST, dtype, device, "table")
    if quick:
        yield cast_case(CAST_SHAPES[device][0], "float32", "bfloat16", device)
        return
    for shape, axes in PERMUTE[device]:
        yield permute_case(shape, axes, "bfloat16", device, "more")
    for shape, axes in PERMUTE[device][:3]:
        yield permute_case(shape, axes, "float32", device, "more")
    yield permute_case(PERMUTE[device][0][0], TO_LAST, "uint8", device, "more")
    for shapes, axis in CONCAT[device]:
        yield concat_case(shapes, axis, "bfloat16", device)
        yield split_case(shapes, axis, "bfloat16", device)
    for dtype, to in CASTS:
        for shape in CAST_SHAPES[device]:
            yield cast_case(shape, dtype, to, device)
    yield strided_case(device)


if __name__ == "__main__":
    main("layout", cases)
