"""What a call costs its caller: ``python -m benchmarks.bench_overhead``.

Host time alone, on arrays so small that the kernel takes no longer than the launch. Beside each
framework's own op stand the floor of any call into a C function (TVM FFI's function that does
nothing) and CuPy's launch of a ready kernel with the pointers at hand.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import torch

import dlkern

from .harness import Case, HostTimer, Run, main

TIMER = HostTimer
SHAPE = (64, 64)


def floors() -> dict[str, Run]:
    """What computes nothing, where it is installed."""
    found: dict[str, Run] = {}
    if importlib.util.find_spec("tvm_ffi"):
        import tvm_ffi

        nop = tvm_ffi.get_global_func("testing.nop", allow_missing=True)
        x = torch.zeros(SHAPE)
        if nop is not None:
            found["tvm-ffi no-op"] = lambda: nop(x, x)
    return found


def raw_kernel(x: Any, y: Any) -> dict[str, Run]:
    """CuPy's launch of one kernel."""
    import cupy

    kernel = cupy.RawKernel(
        'extern "C" __global__ void relu(const float* x, float* y) {'
        " const int i = blockIdx.x * 128 + threadIdx.x; y[i] = fmaxf(x[i], 0.f); }",
        "relu",
    )
    blocks = (x.size // 128,)
    return {"cupy RawKernel": lambda: kernel(blocks, (128,), (x, y))}


def torch_cases(device: str) -> Iterator[Case]:
    def new(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    x, y, square = new(*SHAPE), new(*SHAPE), new(*SHAPE)
    weight, bias = new(64), new(64)
    labels = torch.randint(0, 64, (64,), device=device)
    functional = torch.nn.functional
    ops: dict[str, tuple[Run, Run]] = {
        "relu out=": (lambda: dlkern.relu(x, out=y), lambda: torch.clamp_min(x, 0, out=y)),
        "relu": (lambda: dlkern.relu(x), lambda: torch.relu(x)),
        "gelu": (lambda: dlkern.gelu(x), lambda: functional.gelu(x)),
        "add out=": (lambda: dlkern.add(x, x, out=y), lambda: torch.add(x, x, out=y)),
        "softmax out=": (
            lambda: dlkern.softmax(x, out=y), lambda: torch.softmax(x, -1, out=y)
        ),
        "softmax": (lambda: dlkern.softmax(x), lambda: torch.softmax(x, -1)),
        "layer_norm": (
            lambda: dlkern.layer_norm(x, weight, bias),
            lambda: functional.layer_norm(x, (64,), weight, bias),
        ),
        "sum": (lambda: dlkern.sum(x, -1), lambda: torch.sum(x, -1)),
        "cross_entropy": (
            lambda: dlkern.cross_entropy(x, labels), lambda: functional.cross_entropy(x, labels)
        ),
        "matmul out=": (
            lambda: dlkern.matmul(x, square, out=y), lambda: torch.matmul(x, square, out=y)
        ),
        "linear": (
            lambda: dlkern.linear(x, square, bias), lambda: functional.linear(x, square, bias)
        ),
    }  # fmt: skip
    for name, (ours, theirs) in ops.items():
        yield Case(f"torch {name}", {"dlkern": ours, "torch": theirs}, group="torch")
    yield Case("torch relu out= and floors", {"dlkern": ops["relu out="][0], **floors()},
               group="floors")  # fmt: skip
    if device == "cuda" and not importlib.util.find_spec("cuda"):
        print("# kernels of users need cuda-core")
        return
    leaky = dlkern.elementwise("y = x > 0 ? x : a * x")
    yield Case(
        "torch user kernel out=",
        {"dlkern": lambda: leaky(x, 0.1, out=y), "torch": lambda: functional.leaky_relu(x, 0.1)},
        group="user",
    )


def operator_cases(device: str) -> Iterator[Case]:
    """Through dlkern.torch, without and with a gradient."""
    import dlkern.torch as dkt

    plain = [torch.randn(64, 64, device=device) for _ in range(3)]
    x, weight, dy = plain[0].clone().requires_grad_(), plain[1].clone().requires_grad_(), plain[2]
    functional = torch.nn.functional
    ops: dict[str, tuple[Any, Any]] = {
        "relu": (lambda x, w: dkt.relu(x), lambda x, w: torch.relu(x)),
        "softmax": (lambda x, w: dkt.softmax(x), lambda x, w: torch.softmax(x, -1)),
        "linear": (lambda x, w: dkt.linear(x, w), lambda x, w: functional.linear(x, w)),
    }
    for name, pair in ops.items():
        contenders = dict(zip(("dlkern", "torch"), pair, strict=True))
        yield Case(
            f"dlkern.torch {name}",
            {n: lambda f=f: f(plain[0], plain[1]) for n, f in contenders.items()},
            group="dlkern.torch",
        )
        yield Case(
            f"dlkern.torch {name}, recording",
            {n: lambda f=f: f(x, weight) for n, f in contenders.items()},
            group="dlkern.torch",
        )
        inputs = (x, weight) if name == "linear" else (x,)
        yield Case(
            f"dlkern.torch {name}, and backward",
            {n: lambda f=f, i=inputs: torch.autograd.grad(f(x, weight), i, dy)
             for n, f in contenders.items()},
            group="dlkern.torch",
        )  # fmt: skip


def numpy_cases() -> Iterator[Case]:
    x = torch.randn(*SHAPE).numpy()
    y = x.copy()
    yield Case("numpy relu out=", {"dlkern": lambda: dlkern.relu(x, out=y),
                                   "numpy": lambda: x.clip(0, out=y)}, group="numpy")  # fmt: skip


def cupy_cases() -> Iterator[Case]:
    import cupy

    x = cupy.random.standard_normal(SHAPE, dtype="float32")
    y = cupy.empty_like(x)
    contenders = {
        "dlkern": lambda: dlkern.relu(x, out=y),
        "cupy": lambda: cupy.maximum(x, 0, out=y),
        **raw_kernel(x, y),
    }
    yield Case("cupy relu out=", contenders, group="cupy")
    yield Case("cupy softmax", {"dlkern": lambda: dlkern.softmax(x)}, group="cupy")


def jax_cases(device: str) -> Iterator[Case]:
    import jax

    x = jax.random.normal(jax.random.key(0), SHAPE)
    relu = jax.jit(jax.nn.relu)
    yield Case(
        "jax relu", {"dlkern": lambda: dlkern.relu(x), "jax.jit": lambda: relu(x)},
        note="waits for its result on a GPU" if device == "cuda" else "", group="jax",
    )  # fmt: skip


def cases(device: str, quick: bool) -> Iterator[Case]:
    yield from torch_cases(device)
    yield from operator_cases(device)
    if device == "cpu":
        yield from numpy_cases()
    if device == "cuda" and importlib.util.find_spec("cupy"):
        yield from cupy_cases()
    if not quick and importlib.util.find_spec("jax"):
        yield from jax_cases(device)


if __name__ == "__main__":
    main("overhead", cases, HostTimer)
