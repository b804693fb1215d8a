"""Matrix products and linear layers: ``python -m benchmarks.bench_gemm [--device cpu] [--quick]``.

The rivals are cuBLAS and cuBLASLt through PyTorch, and torch.compile for fused layers. Layouts are
those of BLAS in row-major terms: N for an operand stored as it is used, T for a transposed view (a
linear layer is NT). Results are checked in 256 random rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

import dlkern

from .harness import Case, Run, compiled, main

DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32,
    "fp64": torch.float64, "fp8": torch.float8_e4m3fn, "int8": torch.int8,
}  # fmt: skip
# Dense, of an H200. float32 has no one roof: it may be computed in parts on tensor cores.
PEAK_TFLOPS = {"bf16": 989, "fp16": 989, "tf32": 495, "fp8": 1979, "int8": 1979}

Shape = tuple[str, str, int, int, int]  # dtype, layout, m, n, k

LARGE: list[Shape] = [
    ("bf16", "NT", 8192, 8192, 8192),
    ("bf16", "NT", 4096, 4096, 4096),
    ("bf16", "NT", 2048, 2048, 2048),
    ("bf16", "NT", 4096, 14336, 4096),
    ("bf16", "NN", 8192, 8192, 8192),
    ("bf16", "TN", 8192, 8192, 8192),
    ("fp16", "NT", 8192, 8192, 8192),
    ("fp16", "NT", 4096, 4096, 4096),
    ("fp16", "NT", 4096, 14336, 4096),
    ("fp16", "NN", 8192, 8192, 8192),
    ("fp16", "TN", 8192, 8192, 8192),
    ("tf32", "NT", 8192, 8192, 8192),
    ("tf32", "NT", 4096, 4096, 4096),
]
FP32: list[Shape] = [("fp32", "NT", 8192, 8192, 8192), ("fp32", "NT", 4096, 4096, 4096)]
SKINNY: list[Shape] = [
    ("bf16", "NT", m, n, k)
    for n, k in ((4096, 4096), (8192, 8192), (14336, 4096))
    for m in (1, 2, 4, 8, 16, 32, 64, 128)
]
SWEEP: list[Shape] = [
    # Odd extents.
    ("bf16", "NT", 1000, 1000, 1000),
    ("bf16", "NT", 1023, 1025, 1032),
    ("bf16", "NN", 2047, 2049, 2048),
    ("bf16", "NT", 3000, 5000, 704),
    ("bf16", "NT", 4104, 4088, 4096),
    ("fp16", "TN", 777, 3333, 1111),
    ("tf32", "NT", 1500, 1500, 1500),
    ("fp32", "NT", 1023, 1025, 1027),
    # K that no vector load suits.
    ("bf16", "NT", 4096, 4096, 4092),
    ("bf16", "NT", 2048, 2048, 1001),
    ("fp16", "NT", 4096, 4096, 4090),
    ("fp32", "NT", 2048, 2048, 2046),
    # Transposed views.
    ("bf16", "TT", 4096, 4096, 4096),
    ("bf16", "TN", 4096, 1024, 8192),
    ("fp16", "NN", 2048, 8192, 1024),
    ("tf32", "TN", 2048, 2048, 2048),
    ("fp32", "NN", 2048, 2048, 2048),
    # Tall, wide, deep.
    ("bf16", "NT", 65536, 256, 512),
    ("bf16", "NN", 131072, 64, 1024),
    ("fp16", "NT", 262144, 128, 128),
    ("bf16", "NT", 256, 65536, 512),
    ("bf16", "TN", 512, 512, 32768),
    ("bf16", "TN", 128, 128, 131072),
    ("fp32", "TN", 256, 256, 16384),
    # Few rows, or few columns.
    ("bf16", "NT", 3, 4096, 4096),
    ("bf16", "NT", 24, 5120, 5120),
    ("bf16", "NT", 48, 11008, 4096),
    ("bf16", "NN", 1, 4096, 4096),
    ("fp16", "NT", 7, 4096, 11008),
    ("bf16", "NT", 8192, 8, 8192),
    ("fp32", "NT", 16, 4096, 4096),
]
BATCHED = [  # batch, and one of its products
    (256, ("bf16", "NN", 128, 128, 128)),
    (1024, ("bf16", "NT", 64, 64, 64)),
    (4096, ("fp16", "NN", 32, 32, 32)),
    (96, ("bf16", "NT", 512, 512, 64)),
    (96, ("bf16", "NN", 512, 64, 512)),
    (32, ("fp32", "NN", 256, 256, 256)),
]
GROUPED = [(8, 4096, 14336, 4096), (64, 16384, 1408, 2048), (32, 64, 4096, 4096)]  # E, T, N, K
LAYERS = [  # dtype, m, n, k, activation, residual
    ("bf16", 4096, 14336, 4096, None, False),
    ("bf16", 4096, 14336, 4096, "gelu_tanh", False),
    ("bf16", 4096, 14336, 4096, "gelu", False),
    ("bf16", 4096, 4096, 14336, "gelu", True),
    ("bf16", 4096, 4096, 4096, "relu", False),
]
CPU_PRODUCTS: list[Shape] = [
    ("fp32", "NT", 1024, 1024, 1024),
    ("fp32", "NN", 2048, 2048, 512),
    ("fp32", "TN", 512, 512, 8192),
    ("fp32", "NT", 1, 4096, 4096),
    ("fp32", "NT", 16, 4096, 4096),
    ("fp32", "NT", 333, 777, 555),
    ("bf16", "NT", 512, 512, 512),
    ("fp64", "NT", 1024, 1024, 1024),
]
CPU_BATCHED = [(64, ("fp32", "NN", 128, 128, 128))]
CPU_LAYERS = [("fp32", 512, 2048, 512, "gelu", False), ("fp32", 1024, 1024, 1024, None, False)]


def random(*shape: int, name: str, device: str) -> torch.Tensor:
    if name == "int8":
        return torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
    return torch.randn(shape, device=device).to(DTYPES[name])


def operands(name: str, layout: str, m: int, n: int, k: int, device: str, batch: tuple = ()):
    a = random(*batch, *((k, m) if layout[0] == "T" else (m, k)), name=name, device=device)
    b = random(*batch, *((n, k) if layout[1] == "T" else (k, n)), name=name, device=device)
    return a.mT if layout[0] == "T" else a, b.mT if layout[1] == "T" else b


def tolerance(name: str, k: int) -> float:
    """Of elements next to the size of a typical one; sums of k terms in float32."""
    if name == "int8":
        return 0.0
    eps = torch.finfo(DTYPES[name]).eps
    special = {
        "tf32": 2**-7,
        "fp8": 2**-5,  # tensor cores keep 14 bits of such sums
        "bf16": eps,
        "fp16": eps + 2**-22 * k**0.5,
    }
    return special.get(name, 4 * eps * max(k, 16) ** 0.5)


def case(
    label: str,
    group: str,
    name: str,
    size: tuple[int, int, int],
    tensors: list[torch.Tensor],
    contenders: dict[str, Run],
    reference: Callable[[torch.Tensor], torch.Tensor],
) -> Case:
    """An m x n x k product, or several of m rows in all.

    The last of `tensors` (what is read or written, each once) is the result; `reference` computes
    those of its rows that it is given.
    """
    m, n, k = size
    result = tensors[-1]
    count = 256 if result.ndim == 2 else 4  # rows, or items of a batch
    rows = torch.randperm(len(result), device=result.device)[:count].sort().values
    return Case(
        f"{name} {label}",
        contenders,
        reference=lambda: reference(rows),
        part=lambda y: y[rows],
        tolerance=tolerance(name, k),
        bytes=sum(t.nbytes for t in tensors),
        flops=2 * m * n * k,
        peak_tflops=PEAK_TFLOPS.get(name) if result.is_cuda else None,
        group=group,
    )


def in_tf32(allowed: bool, run: Run) -> Run:
    """PyTorch's product of float32, with tf32 or without."""

    def set_and_run():
        torch.backends.cuda.matmul.allow_tf32 = allowed
        return run()

    return set_and_run


def product(shape: Shape, device: str, group: str, batch: tuple = ()) -> Case:
    name, layout, m, n, k = shape
    a, b = operands(*shape, device, batch)
    out = torch.empty(*batch, m, n, dtype=a.dtype, device=device)
    precision = "tf32" if name == "tf32" else "ieee"
    return case(
        f"{layout} {f'{batch[0]}x ' if batch else ''}{m}x{n}x{k}",
        group,
        name,
        (m * math.prod(batch), n, k),
        [a, b, out],
        {
            "dlkern": lambda: dlkern.matmul(a, b, precision=precision, out=out),
            "torch": in_tf32(name == "tf32", lambda: torch.matmul(a, b, out=out)),
        },
        lambda rows: a[rows].double() @ (b[rows] if batch else b).double(),
    )


def scaled(m: int, n: int, k: int, by_row: bool, device: str) -> Case:
    a, b = operands("fp8", "NT", m, n, k, device)
    scale_a = torch.rand((m, 1) if by_row else (), device=device) + 0.5
    scale_b = torch.rand((1, n) if by_row else (), device=device) + 0.5
    out = torch.empty(m, n, dtype=torch.bfloat16, device=device)

    def rival(fast: bool) -> torch.Tensor:
        return torch._scaled_mm(
            a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    return case(
        f"e4m3 NT {m}x{n}x{k} -> bf16" + ", scale by row" * by_row,
        "large",
        "fp8",
        (m, n, k),
        [a, b, out],
        {
            "dlkern": lambda: dlkern.scaled_matmul(a, b, scale_a, scale_b, out=out),
            "torch": lambda: rival(False),
            "torch, fast accumulation": lambda: rival(True),
        },
        lambda rows: (a.double() * scale_a)[rows] @ (b.double() * scale_b),
    )


def integers(m: int, n: int, k: int, device: str) -> Case:
    a, b = operands("int8", "NT", m, n, k, device)
    out = torch.empty(m, n, dtype=torch.int32, device=device)
    return case(
        f"NT {m}x{n}x{k} -> int32",
        "large",
        "int8",
        (m, n, k),
        [a, b, out],
        {
            "dlkern": lambda: dlkern.scaled_matmul(a, b, out=out),
            "torch": lambda: torch._int_mm(a, b, out=out),
        },
        lambda rows: a[rows].double() @ b.double(),
    )


def layer(name, m, n, k, activation, residual, device: str, compile_too: bool) -> Case:
    x, weight = (random(r, k, name=name, device=device) for r in (m, n))
    bias = random(n, name=name, device=device)
    added = random(m, n, name=name, device=device) if residual else None
    out = torch.empty(m, n, dtype=x.dtype, device=device)
    options = {"residual": added} if residual else {}

    def forward(x, weight, bias, added):
        y = F.linear(x, weight, bias)
        if activation == "relu":
            y = F.relu(y)
        elif activation:
            y = F.gelu(y, approximate="tanh" if activation == "gelu_tanh" else "none")
        return y if added is None else y + added

    def right(rows):
        return forward(
            x[rows].double(), weight.double(), bias.double(),
            None if added is None else added[rows].double(),
        )  # fmt: skip

    contenders = {
        "dlkern": lambda: dlkern.linear(x, weight, bias, activation=activation, out=out, **options),
        "torch": lambda: forward(x, weight, bias, added),
    }
    if activation in ("relu", "gelu_tanh") and not residual and x.is_cuda:
        contenders["cublaslt epilogue"] = lambda: torch._addmm_activation(
            bias, x, weight.t(), use_gelu=activation == "gelu_tanh"
        )
    if compile_too:
        contenders |= compiled(forward, x, weight, bias, added)
    parts = "+".join(filter(None, ["linear", "bias", activation, "residual" * residual]))
    tensors = [t for t in (x, weight, bias, added, out) if t is not None]
    return case(f"{parts} {m}x{n}x{k}", "linear", name, (m, n, k), tensors, contenders, right)


def gradients(name: str, tokens: int, n: int, k: int, device: str) -> Iterator[Case]:
    """Of a layer's weight, with its bias or without, and input."""
    dy, x = (random(tokens, c, name=name, device=device) for c in (n, k))
    weight = random(n, k, name=name, device=device)
    dweight, dbias, dx = torch.empty_like(weight), torch.empty_like(dy[0]), torch.empty_like(x)

    def both():
        torch.sum(dy, 0, out=dbias)
        return torch.mm(dy.t(), x, out=dweight)

    for bias in (None, dbias):
        yield case(
            f"wgrad{'' if bias is None else '+bias'} {n}x{k}x{tokens}",
            "linear",
            name,
            (n, k, tokens),
            [dy, x, dweight],
            {
                "dlkern": lambda bias=bias: dlkern.linear_backward_weight(
                    dy, x, out=dweight, out_bias=bias
                )[0],
                "torch": (lambda: torch.mm(dy.t(), x, out=dweight)) if bias is None else both,
            },
            lambda rows: dy[:, rows].double().t() @ x.double(),
        )
    yield case(
        f"dgrad {tokens}x{k}x{n}",
        "linear",
        name,
        (tokens, k, n),
        [dy, weight, dx],
        {
            "dlkern": lambda: dlkern.linear_backward_input(dy, weight, out=dx),
            "torch": lambda: torch.mm(dy, weight, out=dx),
        },
        lambda rows: dy[rows].double() @ weight.double(),
    )


def grouped(experts: int, tokens: int, n: int, k: int, device: str) -> Case:
    """Rows dealt out at random to experts with weights of their own."""
    x = random(tokens, k, name="bf16", device=device)
    weight = random(experts, n, k, name="bf16", device=device)
    out = torch.empty(tokens, n, dtype=x.dtype, device=device)
    ends = torch.randint(tokens + 1, (experts,), device=device).sort().values.int()
    ends[-1] = tokens
    used = int((ends.diff(prepend=ends.new_zeros(1)) > 0).sum())

    def right(rows):
        expert = torch.searchsorted(ends, rows.int(), right=True)
        parts = [(x[rows[expert == e]], weight[e]) for e in expert.unique().tolist()]
        return torch.cat([a.double() @ b.double().t() for a, b in parts])

    return case(
        f"grouped {experts}x {tokens}x{n}x{k}",
        "sweep",
        "bf16",
        (tokens, n, k),
        [x, weight[:used], out],
        {
            "dlkern": lambda: dlkern.grouped_matmul(x, weight.mT, ends, out=out),
            "torch": lambda: torch._grouped_mm(x, weight.mT, offs=ends),
        },
        right,
    )


def gpu_cases(device: str, quick: bool) -> Iterator[Case]:
    step = 4 if quick else 1
    for shape in LARGE:
        yield product(shape, device, "large")
    for by_row in (False, True):
        yield scaled(8192, 8192, 8192, by_row, device)
    yield integers(4096, 4096, 4096, device)
    yield product(("bf16", "NN", 1024, 1024, 1024), device, "large", (64,))
    for shape in FP32:
        yield product(shape, device, "fp32")
    for shape in LAYERS:
        yield layer(*shape, device, compile_too=not quick)
    yield from gradients("bf16", 16384, 4096, 4096, device)
    for shape in SKINNY[::step]:
        yield product(shape, device, "skinny")
    for shape in SWEEP[::step]:
        yield product(shape, device, "sweep")
    for batch, shape in BATCHED[::step]:
        yield product(shape, device, "sweep", (batch,))
    for shape in GROUPED[::step]:
        yield grouped(*shape, device)


def cpu_cases(device: str, quick: bool) -> Iterator[Case]:
    for shape in CPU_PRODUCTS[: 2 if quick else None]:
        yield product(shape, device, "products")
    for batch, shape in CPU_BATCHED:
        yield product(shape, device, "products", (batch,))
    for shape in CPU_LAYERS:
        yield layer(*shape, device, compile_too=False)
    yield from gradients("fp32", 2048, 512, 512, device)


def cases(device: str, quick: bool) -> Iterator[Case]:
    return (gpu_cases if device == "cuda" else cpu_cases)(device, quick)


if __name__ == "__main__":
    main("gemm", cases)
