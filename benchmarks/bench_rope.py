"""Rotary position embedding: ``python -m benchmarks.bench_rope [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import dlkern

from .harness import Case, compiled, main

# dtype, batch, length, heads of queries and of keys, depth.
SHAPES = {
    "cuda": [("bfloat16", 4, 4096, 32, 8, 128), ("float32", 4, 4096, 32, 8, 128),
             ("bfloat16", 16, 2048, 16, 16, 64), ("bfloat16", 1, 16384, 32, 1, 128),
             ("bfloat16", 64, 1, 32, 8, 128)],
    "cpu": [("float32", 1, 512, 8, 2, 64), ("bfloat16", 1, 512, 8, 2, 64)],
}  # fmt: skip


def tables(length: int, depth: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    frequency = 10000.0 ** (-torch.arange(0, depth, 2, dtype=torch.float64, device=device) / depth)
    t = torch.arange(length, device=device)[:, None] * frequency
    return t.cos(), t.sin()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As models write it, on [B, S, H, D]."""
    a, b = x.chunk(2, -1)
    c, s = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat((a * c - b * s, b * c + a * s), -1)


def both(q, k, cos, sin):
    return rotated(q, cos, sin), rotated(k, cos, sin)


def cases(device: str, quick: bool) -> Iterator[Case]:
    for i, (name, b, s, hq, hk, d) in enumerate(SHAPES[device][:2] if quick else SHAPES[device]):
        dtype = getattr(torch, name)
        q, k = (torch.randn(b, s, h, d, device=device).to(dtype) for h in (hq, hk))
        cos, sin = tables(s, d, device)
        c, n = cos.float(), sin.float()
        outs = [torch.empty_like(q), torch.empty_like(k)]
        label, group = f"rope {b}x{s}x{hq}+{hk}x{d} {name}", "more" if i else "table"
        theirs = {
            "torch": lambda q=q, k=k, c=c, n=n: both(q, k, c, n),
            **(compiled(both, q, k, c, n) if i == 0 else {}),
        }
        check = {
            "reference": lambda q=q, cos=cos, sin=sin: rotated(q.double(), cos, sin),
            "part": lambda result: result[0],
            "tolerance": torch.finfo(dtype).eps * (64 if dtype.itemsize >= 4 else 2),
            "bytes": 2 * (q.nbytes + k.nbytes),
            "group": group,
        }
        yield Case(
            f"{label} tables",
            {
                "dlkern": lambda q=q, k=k, c=c, n=n, o=outs: dlkern.rope(
                    [q, k], cos=c, sin=n, out=o
                ),
                **theirs,
            },
            **check,
        )
        yield Case(
            f"{label} computed",
            {
                "dlkern": lambda q=q, k=k, o=outs: dlkern.rope([q, k], out=o),
                "torch": theirs["torch"],
            },
            **check,
        )


if __name__ == "__main__":
    main("rope", cases)
