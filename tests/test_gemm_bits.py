"""Products at random shapes, and what their bits may depend on."""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pytest
from backends import get_backend
from oracle import FLOATS, assert_close, float64, numpy_dtype, rounded
from test_gemm import EXTENTS, normal, product

import dlkern

# ---- Random shapes -------------------------------------------------------------------------

OPERANDS = (*FLOATS, "tf32", "float8_e4m3fn", "float8_e5m2", "int8")
ORDERS = ("contiguous", "transposed", "unaligned")


def operand(rng, shape, kind):
    if kind == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return rounded(rng.standard_normal(shape), "float32" if kind == "tf32" else kind)


def check_floats(backend, choose, rng, kind, a, b, layouts):
    m, n = a.shape[0], b.shape[1]
    alpha, beta = (choose.choice((0.0, 1.0, 0.5)) for _ in range(2))
    dtype = a.dtype.name
    # NaN where c is not read.
    c = normal(rng, (m, n), dtype) if beta else np.full((m, n), np.nan, numpy_dtype(dtype))
    y = backend.empty((m, n), dtype, layouts[2])
    dlkern.matmul(
        backend.array(a, layouts[0]), backend.array(b, layouts[1]), backend.array(c), alpha=alpha,
        beta=beta, out=y, precision="tf32" if kind == "tf32" else "ieee",
    )  # fmt: skip
    expected, scale = product(a, b)
    expected, scale = alpha * expected, alpha * scale
    if beta:
        expected, scale = expected + beta * float64(c), scale + np.abs(beta * float64(c))
    if kind == "tf32":
        error = np.abs(backend.numpy(y) - expected)
        assert (error <= 2.0**-9 * scale + 1e-30).all(), error.max()
    else:
        assert_close(backend.numpy(y), expected, dtype, "matmul", scale=scale)


def check_8bit(backend, choose, rng, kind, a, b, layouts):
    m, n = a.shape[0], b.shape[1]
    xs = backend.array(a, layouts[0]), backend.array(b, layouts[1])
    if kind == "int8":
        y = backend.empty((m, n), "int32", layouts[2])
        dlkern.scaled_matmul(*xs, out=y)
        np.testing.assert_array_equal(backend.numpy(y), a.astype("i4") @ b.astype("i4"))
        return
    y = backend.empty((m, n), "bfloat16", layouts[2])
    of_a = rng.uniform(0.5, 2, (m,)).astype("f4")
    dlkern.scaled_matmul(*xs, backend.array(of_a), out=y)
    expected, scale = product(float64(a) * of_a[:, None], b)
    op = "matmul_float8" if backend.is_gpu else "matmul"
    assert_close(backend.numpy(y), expected, "bfloat16", op, scale=scale)


def fuzz(backend, triples):
    seed = int(os.environ.get("DLKERN_FUZZ_SEED", time.time_ns() % 2**32))
    print(f"DLKERN_FUZZ_SEED={seed}")  # shown where the test fails
    choose, rng = random.Random(seed), np.random.default_rng(seed)
    for _ in range(triples):
        m, n, k = (choose.choice(EXTENTS) for _ in range(3))
        kind = choose.choice(OPERANDS)
        layouts = [choose.choice(ORDERS) for _ in range(3)]
        a, b = operand(rng, (m, k), kind), operand(rng, (k, n), kind)
        check = check_floats if kind in (*FLOATS, "tf32") else check_8bit
        try:
            check(backend, choose, rng, kind, a, b, layouts)
        except BaseException:
            print(f"m {m}, n {n}, k {k}, {kind}, {layouts}")
            raise


@pytest.mark.gpu
def test_500_random_products(gpu):
    fuzz(gpu, 500)


def test_random_products_on_the_cpu():
    fuzz(get_backend("cpu"), 60)


# ---- The number of rows --------------------------------------------------------------------


def products_of(backend, rng, dtype, k=150, n=70):
    """Name -> f(x): a result of as many rows as x has, from rows alone."""
    weight, bias = normal(rng, (n, k), dtype), normal(rng, (n,), dtype)
    w, c = backend.array(weight), backend.array(bias)
    transposed = backend.array(weight.T.copy())
    options = {"batch_invariant": True}
    return {
        "matmul": lambda x: dlkern.matmul(x, transposed, **options),
        "linear": lambda x: dlkern.linear(x, w, c, activation="gelu", **options),
        "backward": lambda x: dlkern.linear_backward_input(x, transposed, **options),
    }


ROWS = (1, 2, 3, 5, 6, 7, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129, 250, 299)


@pytest.mark.parametrize("name", ["matmul", "linear", "backward"])
def test_a_row_does_not_depend_on_the_number_of_rows(backend, dtype, rng, name):
    function, x = products_of(backend, rng, dtype)[name], normal(rng, (300, 150), dtype)
    every = backend.raw(function(backend.array(x)))
    for m in ROWS:
        np.testing.assert_array_equal(backend.raw(function(backend.array(x[:m]))), every[:m])
        # Nor on the place among them, nor on the batch that they come in.
        np.testing.assert_array_equal(backend.raw(function(backend.array(x[m:]))), every[m:])
    folded = backend.raw(function(backend.array(x.reshape(4, 75, 150))))
    np.testing.assert_array_equal(folded.reshape(every.shape), every)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_rows_from_1_to_4096(gpu, dtype, precision):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    x = torch.randn(4096, 512, device="cuda").to(kind)
    w = torch.randn(384, 512, device="cuda").to(kind)
    options = {"batch_invariant": True, "precision": precision}
    every = dlkern.linear(x, w, **options)
    out = torch.empty_like(every)
    wrong = torch.zeros((), dtype=torch.bool, device="cuda")
    for m in range(1, 4097):
        dlkern.linear(x[:m], w, out=out[:m], **options)
        wrong |= (out[:m] != every[:m]).any()
    assert not wrong


@pytest.mark.gpu
def test_rows_of_float8_from_1_to_4096(gpu):
    torch = pytest.importorskip("torch")
    x = torch.randn(4096, 512, device="cuda").to(torch.float8_e4m3fn)
    w = torch.randn(384, 512, device="cuda").to(torch.float8_e4m3fn)
    scale = torch.rand(4096, 4, device="cuda") + 0.5
    options = {"batch_invariant": True}
    every = dlkern.scaled_matmul(x, w.T, scale, **options)
    wrong = torch.zeros((), dtype=torch.bool, device="cuda")
    for m in range(1, 4097):
        wrong |= (dlkern.scaled_matmul(x[:m], w.T, scale[:m], **options) != every[:m]).any()
    assert not wrong


# ---- Repetition ----------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*FLOATS, "tf32", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize(("m", "n", "k"), [(300, 270, 1000), (16, 513, 4096), (2049, 1023, 257)])
def test_1000_repetitions_give_the_same_bits(gpu, kind, m, n, k):
    torch = pytest.importorskip("torch")
    values = [torch.randn(*shape, device="cuda") for shape in ((m, k), (k, n))]
    if kind == "int8":
        a, b = ((40 * v).clamp(-128, 127).to(torch.int8) for v in values)
    else:
        a, b = (v.to(torch.float32 if kind == "tf32" else getattr(torch, kind)) for v in values)
    if kind in ("int8", "float8_e4m3fn"):

        def call(out):
            return dlkern.scaled_matmul(a, b, out=out)
    else:

        def call(out):
            return dlkern.matmul(a, b, out=out, precision="tf32" if kind == "tf32" else "ieee")

    first = call(None)
    out = torch.empty_like(first)
    wrong = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(1000):
        call(out)
        wrong |= (out != first).any()
    assert not wrong


@pytest.mark.gpu
def test_1000_repetitions_of_gradients_and_of_amax(gpu):
    """Sums in parts, and the atomic maximum."""
    torch = pytest.importorskip("torch")
    dy, x = (torch.randn(30000, n, device="cuda").to(torch.bfloat16) for n in (65, 130))
    a, b = (torch.randn(300, 300, device="cuda").to(torch.float8_e5m2) for _ in range(2))

    def call():
        gradients = dlkern.linear_backward_weight(dy, x, bias=True)
        return *gradients, *dlkern.scaled_matmul(a, b, amax=True)

    first = call()
    for _ in range(1000):
        assert all(torch.equal(y, f) for y, f in zip(call(), first, strict=True))
    assert first[3].item() == pytest.approx((a.double() @ b.double()).abs().max().item(), rel=1e-3)
