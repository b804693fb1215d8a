"""Dropout: ``python -m benchmarks.bench_dropout [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import dlkern

from .harness import Case, compiled, main

SHAPES = {
    "cuda": [("bfloat16", (2**28,)), ("float32", (2**27,)), ("float16", (2**28,)),
             ("bfloat16", (16384, 4096)), ("bfloat16", (4099, 5003)), ("float64", (2**26,)),
             ("bfloat16", (512, 768)), ("float32", (100003,))],
    "cpu": [("float32", (2**22,)), ("bfloat16", (2**22,)), ("float32", (1000, 1003)),
            ("float64", (2**20,))],
}  # fmt: skip


def label(shape: tuple[int, ...]) -> str:
    return "x".join(f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else str(n) for n in shape)


def contenders(ours, x, *, compile_it: bool) -> dict:
    return {
        "dlkern": ours,
        "torch": lambda: theirs(x),
        **(compiled(theirs, x) if compile_it else {}),
    }


def theirs(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.1)


def cases(device: str, quick: bool) -> Iterator[Case]:
    rng = torch.tensor([1234, 5], device=device)
    note = "masks of rivals differ: right by tests/test_dropout.py"
    for i, (name, shape) in enumerate(SHAPES[device][:2] if quick else SHAPES[device]):
        dtype = getattr(torch, name)
        x = torch.randn(shape, device=device).to(dtype)
        y, mask = torch.empty_like(x), torch.rand(shape, device=device) >= 0.1
        text, group = f"{label(shape)} {name}", "more" if i else "table"
        yield Case(
            f"dropout {text} fwd",
            contenders(
                lambda x=x, y=y: dlkern.dropout(x, 0.1, rng=rng, out=y),
                x,
                compile_it=i == 0,
            ),
            bytes=2 * x.nbytes, note=note, group=group,
        )  # fmt: skip
        yield Case(
            f"dropout {text} bwd",
            {
                "dlkern": lambda x=x, y=y: dlkern.dropout_backward(x, 0.1, rng=rng, out=y),
                # Theirs reads the mask that the forward pass has stored.
                "torch": lambda x=x, mask=mask: torch.ops.aten.native_dropout_backward(
                    x, mask, 1 / 0.9
                ),
            },
            bytes=2 * x.nbytes, note=note, group="more",
        )  # fmt: skip
        if i < 4:
            residual = torch.randn(shape, device=device).to(dtype)
            yield Case(
                f"dropout {text} with residual",
                {
                    "dlkern": lambda x=x, y=y, r=residual: dlkern.dropout(
                        x, 0.1, rng=rng, residual=r, out=y
                    ),
                    "torch": lambda x=x, r=residual: r + theirs(x),
                },
                bytes=3 * x.nbytes, note=note, group="more",
            )  # fmt: skip
            del residual
        del x, y, mask


if __name__ == "__main__":
    main("dropout", cases)
