"""Losses and their gradients: ``python -m benchmarks.bench_loss [--device cpu] [--quick]``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.functional import cross_entropy

import dlkern

from .harness import Case, compiled, main

# Rows and classes.
TABLE = {
    "cuda": {"bfloat16": [(8192, 128256), (16384, 32000)]},
    "cpu": {"float32": [(256, 32000), (4096, 1000)]},
}
# Short rows, odd columns and small batches.
MORE = {
    "cuda": {
        "bfloat16": [(4096, 32001), (2048, 100003), (65536, 1000), (262144, 100), (64, 128256),
                     (64, 1000)],
        "float32": [(8192, 32000), (65536, 1000)],
    },
    "cpu": {"float32": [(65536, 10), (8192, 100), (64, 100003)], "bfloat16": [(1024, 4096)]},
}  # fmt: skip


def gradient(logits, labels):
    """What autograd computes of cross_entropy, the loss thrown away."""
    rows = torch.arange(len(labels), device=logits.device)
    p = torch.softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
    p[rows, labels] -= 1
    return (p / len(labels)).to(logits.dtype)


def backward_of(log_p, labels, dloss):
    """The two kernels of autograd behind the forward pass, whose log_softmax is given."""
    total = torch.tensor(float(len(labels)), dtype=log_p.dtype, device=log_p.device)
    g = torch.ops.aten.nll_loss_backward(dloss, log_p, labels, None, 1, -100, total)
    return torch.ops.aten._log_softmax_backward_data(g, log_p, 1, log_p.dtype)


def by_autograd(x, labels):
    """Loss and gradient as a training step has them; x requires a gradient."""
    loss = cross_entropy(x, labels)
    return loss, torch.autograd.grad(loss, x)[0]


def cases_of(shape, dtype, device, group, quick) -> Iterator[Case]:
    x = torch.randn(shape, device=device).to(dtype)
    labels = torch.randint(shape[1], shape[:1], device=device)
    one, loss = (torch.ones((), device=device, dtype=dtype) for _ in range(2))
    dx = torch.empty_like(x)
    name = f"cross_entropy {shape[0]}x{shape[1]} {str(dtype).removeprefix('torch.')}"
    tolerance = torch.finfo(dtype).eps * (32 if dtype.itemsize >= 4 else 1)
    case = partial(Case, group=group, tolerance=tolerance)
    table = group == "table" and not quick
    yield case(
        f"{name} fwd",
        {
            "dlkern": lambda: dlkern.cross_entropy(x, labels, out=loss),
            "torch": lambda: cross_entropy(x, labels),
            **(compiled(cross_entropy, x, labels) if table else {}),
        },
        reference=lambda: cross_entropy(x.double(), labels),
        bytes=x.nbytes + labels.nbytes,
    )
    log_p = torch.log_softmax(x, -1)
    yield case(
        f"{name} bwd",
        {
            "dlkern": lambda: dlkern.cross_entropy_backward(one, x, labels, out=dx),
            "torch": lambda: backward_of(log_p, labels, one),
            **(compiled(gradient, x, labels) if table else {}),
        },
        reference=lambda: gradient(x.double(), labels),
        bytes=2 * x.nbytes + labels.nbytes,
        note="torch: after its forward pass",
    )
    with_grad = x.detach().requires_grad_()
    yield case(
        f"{name} fwd+grad",
        {
            "dlkern": lambda: dlkern.cross_entropy_with_grad(x, labels, out=loss, grad_out=dx),
            "torch": lambda: by_autograd(with_grad, labels),
        },
        reference=lambda: gradient(x.double(), labels),
        part=lambda result: result[1],
        bytes=2 * x.nbytes + labels.nbytes,
    )


# Probabilities of the classes in place of labels.
SOFT = {
    "cuda": {"bfloat16": [(16384, 8192), (16384, 32000), (65536, 1000)],
             "float32": [(16384, 4096), (65536, 1000)]},
    "cpu": {"float32": [(4096, 1000), (65536, 10)]},
}  # fmt: skip


def soft_cases(shape, dtype, device) -> Iterator[Case]:
    x = torch.randn(shape, device=device).to(dtype)
    t = torch.softmax(torch.randn(shape, device=device), -1).to(dtype)
    loss, dx = torch.empty((), device=device, dtype=dtype), torch.empty_like(x)
    with_grad = x.detach().requires_grad_()
    name = f"cross_entropy soft {shape[0]}x{shape[1]} {str(dtype).removeprefix('torch.')}"
    tolerance = torch.finfo(dtype).eps * (32 if dtype.itemsize >= 4 else 2)

    def gradient_f64():
        q, rows = t.double(), len(t)
        return (torch.softmax(x.double(), -1) * q.sum(-1, keepdim=True) - q) / rows

    yield Case(
        f"{name} fwd",
        {
            "dlkern": lambda: dlkern.cross_entropy(x, t, out=loss),
            "torch": lambda: cross_entropy(x, t),
            **compiled(cross_entropy, x, t),
        },
        reference=lambda: cross_entropy(x.double(), t.double()),
        tolerance=tolerance,
        bytes=2 * x.nbytes,
        group="soft",
    )
    yield Case(
        f"{name} fwd+grad",
        {
            "dlkern": lambda: dlkern.cross_entropy_with_grad(x, t, out=loss, grad_out=dx),
            "torch": lambda: by_autograd(with_grad, t),
        },
        reference=gradient_f64,
        part=lambda result: result[1],
        tolerance=tolerance,
        bytes=3 * x.nbytes,
        group="soft",
    )


def elements(device: str) -> Iterator[Case]:
    """Losses of single elements: their mean, and its gradient."""
    n = {"cuda": 1 << 27, "cpu": 1 << 22}[device]
    for name, dtype in (("mse_loss", torch.bfloat16), ("mse_loss", torch.float32),
                        ("binary_cross_entropy_with_logits", torch.bfloat16)):  # fmt: skip
        x, t = torch.randn(n, device=device).to(dtype), torch.rand(n, device=device).to(dtype)
        one, loss = (torch.ones((), device=device, dtype=torch.float32) for _ in range(2))
        dx, theirs = torch.empty_like(x), getattr(torch.nn.functional, name)
        label = f"{name} {n} {str(dtype).removeprefix('torch.')}"
        forward, backward = getattr(dlkern, name), getattr(dlkern, f"{name}_backward")
        case = partial(Case, group="more", tolerance=torch.finfo(dtype).eps * 4)
        yield case(
            f"{label} fwd",
            {
                "dlkern": lambda f=forward, x=x, t=t, loss=loss: f(x, t, out=loss),
                "torch": lambda f=theirs, x=x, t=t: f(x, t),
            },
            reference=lambda f=theirs, x=x, t=t: f(x.double(), t.double()),
            bytes=2 * x.nbytes,
        )
        rival = {}
        if name == "mse_loss":
            g = one.to(dtype)
            rival["torch"] = lambda x=x, t=t, g=g: torch.ops.aten.mse_loss_backward(g, x, t, 1)
        yield case(
            f"{label} bwd",
            {"dlkern": lambda f=backward, x=x, t=t, one=one, dx=dx: f(one, x, t, out=dx), **rival},
            bytes=3 * x.nbytes,
            note="not checked here: gradients are in the tests",
        )


def cases(device: str, quick: bool) -> Iterator[Case]:
    for group, shapes in (("table", TABLE), ("more", {} if quick else MORE)):
        for name, of_dtype in shapes.get(device, {}).items():
            for shape in of_dtype[:1] if quick else of_dtype:
                yield from cases_of(shape, getattr(torch, name), device, group, quick)
    if not quick:
        for name, shapes in SOFT.get(device, {}).items():
            for shape in shapes:
                yield from soft_cases(shape, getattr(torch, name), device)
        yield from elements(device)


if __name__ == "__main__":
    main("loss", cases)
