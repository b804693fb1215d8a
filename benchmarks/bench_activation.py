"""Activations, gated ones, kernels of users: ``python -m benchmarks.bench_activation``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

import dlkern
from dlkern.info import is_installed

from .harness import Case, compiled, main

aten = torch.ops.aten
Tensors = tuple[torch.Tensor, ...]


def tanh_gelu(x):
    return functional.gelu(x, approximate="tanh")


def swiglu(gate, up):
    return functional.silu(gate) * up


def geglu(gate, up):
    return functional.gelu(gate) * up


def swiglu_packed(x):
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def swiglu_backward(dy, gate, up):
    s = torch.sigmoid(gate)
    return dy * up * (s * (1 + gate * (1 - s))), dy * gate * s


def swiglu_packed_backward(dy, x):
    return torch.cat(swiglu_backward(dy, *x.chunk(2, -1)), -1)


# Name -> torch's function and its gradient from dy and x.
ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (torch.relu, lambda dy, x: aten.threshold_backward(dy, x, 0)),
    "gelu": (functional.gelu, lambda dy, x: aten.gelu_backward(dy, x)),
    "silu": (functional.silu, lambda dy, x: aten.silu_backward(dy, x)),
    "tanh": (torch.tanh, lambda dy, x: aten.tanh_backward(dy, torch.tanh(x))),
    "sigmoid": (torch.sigmoid, lambda dy, x: aten.sigmoid_backward(dy, torch.sigmoid(x))),
    "relu6": (functional.relu6, lambda dy, x: aten.hardtanh_backward(dy, x, 0, 6)),
    "hardswish": (functional.hardswish, lambda dy, x: aten.hardswish_backward(dy, x)),
    "mish": (functional.mish, lambda dy, x: aten.mish_backward(dy, x)),
    "selu": (
        functional.selu,
        lambda dy, x: aten.elu_backward(dy, 1.6732632423543772, 1.0507009873554805, 1, False, x),
    ),
    "softplus": (functional.softplus, lambda dy, x: aten.softplus_backward(dy, x, 1, 20)),
}
# torch's gradients of these take the output: a rival is given it.
FROM_OUTPUT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "tanh": (torch.tanh, lambda dy, y: aten.tanh_backward(dy, y)),
    "sigmoid": (torch.sigmoid, lambda dy, y: aten.sigmoid_backward(dy, y)),
}
TABLE = ("relu", "gelu", "silu", "tanh", "sigmoid")


class Maker:
    """Cases of one device. References are of a slice, which takes long enough in float64."""

    def __init__(self, device: str):
        self.device = device

    def numbers(self, shape: tuple[int, ...], dtype: str, n: int) -> Tensors:
        like = {"device": self.device, "dtype": getattr(torch, dtype)}
        return tuple(torch.randn(shape, **like) for _ in range(n))

    def case(
        self,
        name: str,
        ours: Callable[[], Any],
        rival: Callable[..., Any],
        inputs: Tensors,
        bytes: int,
        *,
        exact: Callable[..., Any] | None = None,
        rival_inputs: Tensors | None = None,
        compile: bool = False,
        rivals: dict[str, Callable[[], Any]] | None = None,
        group: str = "more",
    ) -> Case:
        n = inputs[0].ndim
        rows = 4096 if n == 1 else 4
        theirs = inputs if rival_inputs is None else rival_inputs

        def part(result):
            first = result[0] if isinstance(result, tuple) else result
            return first[:rows]

        eps = torch.finfo(inputs[0].dtype).eps
        return Case(
            name,
            {
                "dlkern": ours,
                "torch": lambda: rival(*theirs),
                **(compiled(rival, *theirs) if compile else {}),
                **(rivals or {}),
            },
            reference=lambda: part(
                (exact or rival)(
                    *(t[:rows].double() if t.ndim == n else t.double() for t in inputs)
                )
            ),
            tolerance=eps if eps > 1e-5 else 64 * eps,
            bytes=bytes,
            group=group,
            part=part,
        )

    def forward(self, kind: str, shape, dtype: str, label: str, view=lambda x: x, **options):
        (x,) = self.numbers(shape, dtype, 1)
        x, out = view(x), view(torch.empty_like(x))
        function = getattr(dlkern, kind)
        return self.case(
            f"{kind} {label} {dtype} fwd", lambda: function(x, out=out), ACTIVATIONS[kind][0],
            (x,), 2 * x.numel() * x.element_size(), **options,
        )  # fmt: skip

    def backward(self, kind: str, shape, dtype: str, label: str, view=lambda x: x, **options):
        dy, x = (view(t) for t in self.numbers(shape, dtype, 2))
        out = view(torch.empty(shape, device=dy.device, dtype=dy.dtype))
        function, rival = getattr(dlkern, f"{kind}_backward"), ACTIVATIONS[kind][1]
        if kind in FROM_OUTPUT:
            of_input, rival = rival, FROM_OUTPUT[kind][1]
            options |= {"exact": of_input, "rival_inputs": (dy, FROM_OUTPUT[kind][0](x))}
        return self.case(
            f"{kind} {label} {dtype} bwd", lambda: function(dy, x, out=out), rival, (dy, x),
            3 * x.numel() * x.element_size(), **options,
        )  # fmt: skip

    def gated(self, shape, dtype: str, **options) -> Iterator[Case]:
        dy, gate, up = self.numbers(shape, dtype, 3)
        out, out_up = torch.empty_like(dy), torch.empty_like(dy)
        label = f"swiglu {shape[0]}x{shape[1]} {dtype}"
        yield self.case(
            f"{label} fwd", lambda: dlkern.swiglu(gate, up, out=out), swiglu, (gate, up),
            3 * dy.nbytes, **options,
        )  # fmt: skip
        yield self.case(
            f"{label} bwd",
            lambda: dlkern.swiglu_backward(dy, gate, up, out=out, out_up=out_up),
            swiglu_backward, (dy, gate, up), 5 * dy.nbytes, **options,
        )  # fmt: skip

    def gated_more(self, shape, dtype: str, quick: bool) -> Iterator[Case]:
        rows, n = shape
        (x,) = self.numbers((rows, 2 * n), dtype, 1)
        dy, gate, up = self.numbers(shape, dtype, 3)
        out, dx = torch.empty_like(dy), torch.empty_like(x)
        yield self.case(
            f"swiglu packed {rows}x2x{n} {dtype} fwd", lambda: dlkern.swiglu(x, out=out),
            swiglu_packed, (x,), 3 * out.nbytes, compile=True,
        )  # fmt: skip
        if quick:
            return
        yield self.case(
            f"swiglu packed {rows}x2x{n} {dtype} bwd",
            lambda: dlkern.swiglu_backward(dy, x, out=dx),
            swiglu_packed_backward, (dy, x), 5 * out.nbytes,
        )  # fmt: skip
        yield self.case(
            f"geglu {rows}x{n} {dtype} fwd", lambda: dlkern.geglu(gate, up, out=out), geglu,
            (gate, up), 3 * out.nbytes,
        )  # fmt: skip


def sizes(device: str) -> dict[str, Any]:
    if device == "cuda":
        return {"large": 2**28, "middle": 2**22, "rows": 16384, "ffn": 14336, "small": 2**16}
    return {"large": 2**22, "middle": 2**19, "rows": 512, "ffn": 2048, "small": 2**12}


def table(make: Maker, device: str, quick: bool) -> Iterator[Case]:
    size = sizes(device)
    n, power = size["large"], size["large"].bit_length() - 1
    dtypes = ("bfloat16", "float32")
    for dtype in dtypes:
        for kind in ("relu", "gelu") if quick else TABLE:
            options = {"group": "table", "compile": not quick and kind == "gelu"}
            yield make.forward(kind, (n,), dtype, f"2^{power}", **options)
            yield make.backward(kind, (n,), dtype, f"2^{power}", **options)
    yield from make.gated((size["rows"], size["ffn"]), "bfloat16", group="table", compile=not quick)


def more(make: Maker, device: str, quick: bool) -> Iterator[Case]:
    size = sizes(device)
    middle, small, rows, ffn = (size[k] for k in ("middle", "small", "rows", "ffn"))
    yield from make.gated_more((rows // 2, ffn), "bfloat16", quick)
    if quick:
        return
    large = size["large"] // 4
    power = large.bit_length() - 1
    for kind in ("relu6", "hardswish", "mish", "selu", "softplus"):
        yield make.forward(kind, (large,), "bfloat16", f"2^{power}")
        yield make.backward(kind, (large,), "bfloat16", f"2^{power}")
    yield make.forward("mish", (large,), "float32", f"2^{power}")
    yield make.forward("gelu", (large,), "float16", f"2^{power}")
    yield make.forward("gelu", (large // 4,), "float64", f"2^{power - 2}")
    for count in (small, middle):
        yield make.forward("gelu", (count,), "bfloat16", str(count))
        yield make.backward("gelu", (count,), "bfloat16", str(count))
    odd = (max(rows // 64, 8), 100003)
    yield make.forward("silu", odd, "bfloat16", "{}x{}".format(*odd))
    yield make.forward(
        "silu", odd, "bfloat16", "{}x{} padded rows".format(*odd), lambda t: t[:, 1:-1]
    )
    yield make.forward("gelu", (middle,), "bfloat16", f"{middle} unaligned", lambda t: t[1:])
    square = (2 * rows // 8, rows // 4)
    yield make.forward("gelu", square, "float32", "{}x{} transposed".format(*square), lambda t: t.T)
    yield make.forward("relu", (rows, 500), "bfloat16", f"{rows}x500")
    yield from make.gated((64, ffn), "bfloat16")
    yield from make.gated((rows // 4, ffn), "float32")


# Name -> dlkern's code, torch's function of the arrays, CuPy's code; scalars are written out.
USER_KERNELS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "leaky": (
        "y = x > 0 ? x : 0.1 * x",
        lambda x: torch.where(x > 0, x, 0.1 * x),
        "y = x > 0 ? x : 0.1f * x",
    ),
    "gate": (
        "y = x / (1 + exp(-x)) * b",
        lambda x, b: x / (1 + torch.exp(-x)) * b,
        "y = x / (1 + expf(-x)) * b",
    ),
}


def cupy_kernel(code: str, arrays: Tensors) -> dict[str, Callable[[], Any]]:
    """The same as CuPy's ElementwiseKernel, where CuPy is; it has no bfloat16."""
    if not arrays[0].is_cuda or not is_installed("cupy"):
        return {}
    with contextlib.suppress(Exception):
        import cupy

        names = ("x", "b")[: len(arrays)]
        kernel = cupy.ElementwiseKernel(", ".join(f"T {n}" for n in names), "T y", code)
        given = [cupy.from_dlpack(a) for a in arrays]
        return {"cupy": lambda: torch.from_dlpack(kernel(*given))}
    return {}


def user_kernels(make: Maker, device: str, quick: bool) -> Iterator[Case]:
    if device == "cuda" and not is_installed("cuda.core"):
        print("# kernels of users need cuda-core")
        return
    size = sizes(device)
    rows, ffn = size["rows"], size["ffn"]
    for name, dtype, view, label in (
        ("leaky", "bfloat16", lambda x: x, ""),
        ("gate", "float32", lambda x: x, ""),
        ("gate", "bfloat16", lambda x: x[:, : ffn // 2], " half rows"),
        ("gate", "bfloat16", lambda x: x[:, 1:-1], " unaligned rows"),
    )[: 1 if quick else None]:
        code, rival, cupy_code = USER_KERNELS[name]
        x = view(make.numbers((rows // 2, ffn), dtype, 1)[0])
        b = make.numbers((x.shape[1],), dtype, 1)[0]
        inputs = (x,) if name == "leaky" else (x, b)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        kernel = dlkern.elementwise(code)
        try:
            kernel(*inputs, out=out)
        except Exception as error:  # NVRTC is not on every machine
            print(f"# kernels of users fail: {error}")
            return
        yield make.case(
            f"user {name} {x.shape[0]}x{x.shape[1]}{label} {dtype}",
            lambda kernel=kernel, inputs=inputs, out=out: kernel(*inputs, out=out),
            rival, inputs, 2 * out.nbytes, compile=not quick,
            rivals=cupy_kernel(cupy_code, inputs), group="user",
        )  # fmt: skip


def cases(device: str, quick: bool) -> Iterator[Case]:
    make = Maker(device)
    yield from table(make, device, quick)
    yield from more(make, device, quick)
    yield from user_kernels(make, device, quick)


if __name__ == "__main__":
    main("activation", cases)
