"""Pooling and its gradients: ``python -m benchmarks.bench_pool [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.nn import functional

import dlkern

from .harness import Case, compiled, main


@dataclass
class Pooling:
    """One shape [N, C, spatial...] and what is done with its windows.

    Parameters
    ----------
    op : str
        "max", "avg" or "lp"; "global" for the mean of all.
    shape : tuple of int
    window : tuple
        kernel, stride and padding.
    layout : str
    dtype : str
    index : str, optional
        Indices of max pooling, forward and backward.
    adaptive : int, optional
        Number of windows along each dimension.
    """

    op: str
    shape: tuple[int, ...]
    window: tuple[int, int, int] = (3, 2, 1)
    layout: str = "NCHW"
    dtype: str = "bfloat16"
    index: str | None = None
    adaptive: int | None = None
    group: str = "more"
    passes: tuple[str, ...] = field(default=("fwd", "bwd"))

    @property
    def name(self) -> str:
        k, s, p = self.window
        what = (
            f"adaptive {self.op} {self.adaptive}" if self.adaptive else f"{self.op}pool{k}s{s}p{p}"
        )
        what = "global avg" if self.op == "global" else what
        index = f" {self.index}" if self.index else ""
        size = "x".join(map(str, self.shape))
        return f"{what} {size} {self.dtype} {self.layout}{index}"

    def options(self) -> dict:
        """Dlkern's."""
        if self.adaptive:
            return {"layout": self.layout}
        if self.op == "global":
            return {"kernel": None, "layout": self.layout}
        k, s, p = self.window
        return {"kernel": k, "stride": s, "padding": p, "layout": self.layout}


GPU = [
    *[Pooling(op, (64, 64, 112, 112), layout=layout, group="table")
      for layout in ("NCHW", "NHWC") for op in ("max", "avg")],
    *[Pooling("global", (64, 2048, 7, 7), layout=layout, group="table")
      for layout in ("NCHW", "NHWC")],
    *[Pooling("max", (64, 64, 112, 112), layout=layout, index=index)
      for layout in ("NCHW", "NHWC") for index in ("int64", "uint8")],
    *[Pooling("max", (64, 128, 112, 112), (2, 2, 0), layout=layout) for layout in ("NCHW", "NHWC")],
    *[Pooling("avg", (64, 256, 28, 28), (3, 1, 1), layout=layout) for layout in ("NCHW", "NHWC")],
    *[Pooling("max", (32, 192, 55, 55), (3, 2, 0), layout=layout) for layout in ("NCHW", "NHWC")],
    Pooling("max", (64, 64, 112, 112), dtype="float32"),
    Pooling("avg", (64, 64, 112, 112), dtype="float32", layout="NHWC"),
    Pooling("avg", (64, 64, 112, 112), dtype="float16"),
    Pooling("max", (16, 64, 112, 112), dtype="float64"),
    Pooling("max", (1, 64, 112, 112)),
    Pooling("avg", (2, 64, 28, 28), layout="NHWC"),
    Pooling("avg", (64, 64, 28, 28), (5, 3, 2)),
    Pooling("max", (64, 512, 8192), (3, 2, 1)),
    Pooling("avg", (64, 100003, 7), (2, 2, 0)),
    Pooling("max", (8, 64, 16, 56, 56), (3, 2, 1)),
    Pooling("avg", (8, 64, 16, 56, 56), (2, 2, 0), layout="NHWC"),
    Pooling("lp", (64, 64, 112, 112), (2, 2, 0), passes=("fwd",)),
    *[Pooling("avg", (64, 512, 24, 24), adaptive=7, layout=layout) for layout in ("NCHW", "NHWC")],
    Pooling("max", (64, 512, 24, 24), adaptive=7),
]  # fmt: skip
CPU = [
    *[Pooling(op, (4, 64, 112, 112), layout=layout, dtype="float32", group="table")
      for layout in ("NCHW", "NHWC") for op in ("max", "avg")],
    *[Pooling("global", (16, 2048, 7, 7), layout=layout, dtype="float32", group="table")
      for layout in ("NCHW", "NHWC")],
    *[Pooling("max", (8, 64, 56, 56), (2, 2, 0), layout=layout, dtype="float32")
      for layout in ("NCHW", "NHWC")],
    Pooling("avg", (8, 128, 28, 28), (3, 1, 1), dtype="float32"),
    Pooling("max", (4, 64, 56, 56), index="int64", dtype="float32"),
    Pooling("max", (4, 64, 56, 56), dtype="bfloat16"),
    Pooling("avg", (4, 64, 55, 55), (5, 3, 2), dtype="float32"),
    Pooling("max", (8, 64, 2048), dtype="float32"),
    Pooling("avg", (2, 32, 8, 28, 28), (2, 2, 0), dtype="float32"),
    Pooling("lp", (4, 64, 56, 56), (2, 2, 0), passes=("fwd",), dtype="float32"),
    *[Pooling(op, (8, 64, 24, 24), adaptive=7, dtype="float32") for op in ("max", "avg")],
]  # fmt: skip


def torch_function(p: Pooling):
    """The same in torch, of a channels-first tensor of any strides."""
    dims = len(p.shape) - 2
    if p.adaptive:
        return lambda x: getattr(functional, f"adaptive_{p.op}_pool{dims}d")(x, p.adaptive)
    if p.op == "global":
        return lambda x: x.mean(tuple(range(2, 2 + dims)), keepdim=True)
    if p.op == "lp":
        return lambda x: getattr(functional, f"lp_pool{dims}d")(x, 2, p.window[0], p.window[1])
    return lambda x: getattr(functional, f"{p.op}_pool{dims}d")(x, *p.window)


def in_layout(x: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Dlkern's array, and torch's view of it with the channels first."""
    if layout == "NCHW":
        return x, x
    last = x.movedim(1, -1).contiguous()
    return last, last.movedim(-1, 1)


def cases_of(p: Pooling, device: str) -> Iterator[Case]:
    dtype = getattr(torch, p.dtype)
    tolerance = torch.finfo(dtype).eps * (16 if dtype.itemsize >= 4 else 1)
    ours, theirs = in_layout(torch.randn(p.shape, device=device).to(dtype), p.layout)
    function, options = torch_function(p), p.options()
    op = "avg" if p.op == "global" else p.op
    name = f"adaptive_{op}_pool" if p.adaptive else f"{op}_pool"
    forward, backward = getattr(dlkern, name), getattr(dlkern, f"{name}_backward", None)
    given = options | ({"output_size": p.adaptive} if p.adaptive else {})
    given |= {"norm_type": 2} if op == "lp" else {}
    out = forward(ours, **given)
    index = torch.empty(out.shape, dtype=getattr(torch, p.index or "int64"), device=device)
    indices = {"out_indices": index} if p.index else {}

    def first(y):
        return y if p.layout == "NCHW" else y.movedim(-1, 1)

    def run_forward():
        forward(ours, **given, out=out, **indices)
        return first(out)

    rivals = {"torch": lambda: function(theirs)}
    if p.group == "table":
        rivals |= compiled(function, theirs)
    if "fwd" in p.passes:
        yield Case(
            f"{p.name} fwd",
            {"dlkern": run_forward, **rivals},
            reference=lambda: function(theirs.double().contiguous()),
            tolerance=tolerance,
            bytes=ours.nbytes + out.nbytes + (index.nbytes if p.index else 0),
            group=p.group,
        )
    if "bwd" not in p.passes:
        return
    dy, their_dy = in_layout(torch.randn(first(out).shape, device=device).to(dtype), p.layout)
    dx = torch.empty_like(ours)
    read = (dy,)
    if op == "max":
        forward(ours, **given, out=out, out_indices=index)
        read = (dy, index)

    def run_backward():
        backward(*read, None, **options, out=dx)
        return first(dx)

    def gradient(x, g):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, g)[0]

    x = theirs.detach().requires_grad_()
    y = function(x)
    yield Case(
        f"{p.name} bwd",
        {
            "dlkern": run_backward,
            "torch": lambda: torch.autograd.grad(y, x, their_dy, retain_graph=True)[0],
        },
        reference=lambda: gradient(theirs.double().contiguous(), their_dy.double().contiguous()),
        tolerance=2 * tolerance,
        bytes=dx.nbytes + sum(t.nbytes for t in read),
        group=p.group,
    )


def cases(device: str, quick: bool) -> Iterator[Case]:
    chosen = GPU if device == "cuda" else CPU
    if quick:
        chosen = [p for p in chosen if p.group == "table" or p.index]
    for p in chosen:
        yield from cases_of(p, device)


if __name__ == "__main__":
    main("pool", cases)
