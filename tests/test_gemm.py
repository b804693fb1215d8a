"""matmul and linear, forward and backward, against float64."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import FLOATS, assert_close, assert_grad, float64, rounded

import dlkern

EXTENTS = (0, 1, 2, 7, 8, 15, 16, 31, 64, 65, 127, 128, 129, 255, 257, 1000)


def normal(rng, shape, dtype):
    return rounded(rng.standard_normal(shape), dtype)


def product(a, b):
    """Product in float64, and the sum of the sizes of what is added."""
    a, b = float64(a), float64(b)
    return a @ b, np.abs(a) @ np.abs(b)


def check_matmul(backend, a, b, y, dtype, op="matmul"):
    expected, scale = product(a, b)
    assert_close(backend.numpy(y), expected, dtype, op, scale=scale)


# ---- matmul --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_random_shapes(backend, dtype, seed):
    """Any extents, each operand row-major or column-major, the output too."""
    choose, rng = random.Random(seed), np.random.default_rng(seed)
    for _ in range(12):
        m, n, k = (choose.choice(EXTENTS) for _ in range(3))
        layouts = [choose.choice(("contiguous", "transposed")) for _ in range(3)]
        a, b = normal(rng, (m, k), dtype), normal(rng, (k, n), dtype)
        y = backend.empty((m, n), dtype, layouts[2])
        dlkern.matmul(backend.array(a, layouts[0]), backend.array(b, layouts[1]), out=y)
        check_matmul(backend, a, b, y, dtype)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["a", "b", "out"])
def test_layouts(backend, rng, layout, which):
    """EDGE 21, 26: any strides and alignment, also inside a batch."""
    for dtype in ("float64", "float32", "bfloat16"):
        a, b = normal(rng, (3, 34, 37), dtype), normal(rng, (3, 37, 41), dtype)
        layouts = dict.fromkeys(("a", "b", "out"), "contiguous") | {which: layout}
        y = backend.empty((3, 34, 41), dtype, layouts["out"])
        xa, xb = backend.array(a, layouts["a"]), backend.array(b, layouts["b"])
        assert dlkern.matmul(xa, xb, out=y) is y
        check_matmul(backend, a, b, y, dtype)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5,), (5,)),
        ((5,), (5, 3)),
        ((4, 5), (5,)),
        ((5,), (2, 5, 3)),
        ((2, 4, 5), (5,)),
        ((2, 4, 5), (5, 3)),
        ((4, 5), (2, 5, 3)),
        ((2, 4, 5), (2, 5, 3)),
        ((1, 4, 5), (6, 5, 3)),
        ((6, 1, 4, 5), (2, 5, 3)),
        ((6, 1, 4, 5), (1, 2, 5, 3)),
        ((2, 3, 1, 5), (2, 3, 5, 1)),
        ((2, 3, 1, 5), (5, 7)),
        ((0, 4, 5), (5, 3)),
        ((2, 0, 5), (5, 3)),
        ((2, 4, 0), (0, 3)),
    ],
)
def test_broadcasting_as_numpy(backend, dtype, rng, a, b):
    a, b = normal(rng, a, dtype), normal(rng, b, dtype)
    y = dlkern.matmul(backend.array(a), backend.array(b))
    check_matmul(backend, a, b, y, dtype)
    dy = normal(rng, (float64(a) @ float64(b)).shape, dtype)
    da, db = dlkern.matmul_backward(backend.array(dy), backend.array(a), backend.array(b))
    for gradient, (expected, scale) in zip((da, db), backward_f64(dy, a, b), strict=True):
        assert_close(backend.numpy(gradient), expected, dtype, "matmul", scale=scale)


def backward_f64(dy, a, b):
    """(da, its scale), (db, its scale) in float64."""
    pairs = []
    for size in (lambda x: x, np.abs):
        g, fa, fb = (size(float64(x)) for x in (dy, a, b))
        if b.ndim == 1:
            g, fb = g[..., None], fb[:, None]
        if a.ndim == 1:
            g, fa = g[..., None, :], fa[None]
        pairs.append(
            (
                sum_to(g @ np.swapaxes(fb, -1, -2), fa.shape).reshape(a.shape),
                sum_to(np.swapaxes(fa, -1, -2) @ g, fb.shape).reshape(b.shape),
            )
        )
    return list(zip(*pairs, strict=True))


def sum_to(x, shape):
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(i for i, n in enumerate(shape) if n != x.shape[i]), keepdims=True)


def test_zero_strides(backend, dtype, rng):
    row, column = normal(rng, (1, 40), dtype), normal(rng, (40, 1), dtype)
    a, b = backend.broadcast(row, (33, 40)), backend.broadcast(column, (40, 35))
    y = backend.empty((33, 35), dtype)
    dlkern.matmul(a, b, out=y)
    check_matmul(backend, np.tile(row, (33, 1)), np.tile(column, (1, 35)), y, dtype)
    dlkern.matmul(backend.broadcast(row[:, :1], (33, 40)), b, out=y)
    check_matmul(backend, np.full((33, 40), row[0, 0]), np.tile(column, (1, 35)), y, dtype)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_alpha_and_beta(backend, dtype, rng, alpha, beta):
    a, b = normal(rng, (2, 33, 20), dtype), normal(rng, (20, 45), dtype)
    summed, scale = product(a, b)
    for shape in [(2, 33, 45), (33, 45), (45,), (2, 1, 1), ()]:
        c = normal(rng, shape, dtype)
        y = dlkern.matmul(*map(backend.array, (a, b, c)), alpha=alpha, beta=beta)
        expected = alpha * summed + beta * float64(c)
        assert_close(backend.numpy(y), expected, dtype, "matmul",
                     scale=abs(alpha) * scale + np.abs(beta * float64(c)))  # fmt: skip


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_in_place_accumulation(backend, dtype, rng, layout):
    a, b, c = (normal(rng, s, dtype) for s in ((40, 30), (30, 50), (40, 50)))
    y = backend.array(c, layout)
    dlkern.matmul(backend.array(a), backend.array(b), y, alpha=0.5, beta=2.0, out=y)
    summed, scale = product(a, b)
    assert_close(backend.numpy(y), 0.5 * summed + 2 * float64(c), dtype, "matmul",
                 scale=0.5 * scale + 2 * np.abs(float64(c)))  # fmt: skip


def test_edge_11_sum_over_nothing(backend, dtype, rng):
    """K = 0: C with alpha = beta = 1, zeros with beta = 0 or without C, whatever `out` holds."""
    c = normal(rng, (5, 7), dtype)
    a, b = backend.array(np.zeros((5, 0), c.dtype)), backend.array(np.zeros((0, 7), c.dtype))
    np.testing.assert_array_equal(backend.numpy(dlkern.matmul(a, b, backend.array(c))), float64(c))
    for more in ({}, {"c": backend.array(c), "beta": 0.0}):
        y = dlkern.matmul(a, b, **more, out=backend.empty((5, 7), dtype))
        np.testing.assert_array_equal(backend.numpy(y), np.zeros((5, 7)))
    x, w = backend.array(np.zeros((5, 0), c.dtype)), backend.array(np.zeros((7, 0), c.dtype))
    y = dlkern.linear(x, w, backend.array(c[0]), activation="relu")
    np.testing.assert_array_equal(backend.numpy(y), np.tile(np.maximum(float64(c[0]), 0), (5, 1)))


def test_edge_12_beta_0_does_not_read_c(backend, dtype, rng):
    a, b = normal(rng, (17, 9), dtype), normal(rng, (9, 33), dtype)
    for y in (backend.empty((17, 33), dtype), backend.empty((17, 33), dtype, "strided")):
        dlkern.matmul(backend.array(a), backend.array(b), y, beta=0.0, out=y)
        check_matmul(backend, a, b, y, dtype)
    nan = backend.array(np.full_like(a, np.nan))
    y = dlkern.matmul(nan, backend.array(b), backend.array(b[:1]), alpha=0.0)
    np.testing.assert_array_equal(backend.numpy(y), np.tile(float64(b[:1]), (17, 1)))


def test_edge_14_batch_65537(backend, rng):
    a, b = normal(rng, (65537, 3, 5), "float32"), normal(rng, (65537, 5, 2), "float32")
    y = dlkern.matmul(backend.array(a), backend.array(b))
    check_matmul(backend, a, b, y, "float32")
    alone = dlkern.matmul(backend.array(a[-1:]), backend.array(b[-1:]))
    np.testing.assert_array_equal(backend.raw(y)[-1:], backend.raw(alone))


def test_edge_16_strides_of_size_1_dimensions_do_not_matter(backend, rng):
    a, b = normal(rng, (1, 19), "float32"), normal(rng, (19, 1), "float32")
    expected = backend.raw(dlkern.matmul(backend.array(a), backend.array(b)))
    for odd in (0, 1, 7, 10**6):
        if backend.is_gpu:
            torch = pytest.importorskip("torch")
            xa = torch.as_strided(torch.from_numpy(a).cuda(), (1, 19), (odd, 1))
            xb = torch.as_strided(torch.from_numpy(b).cuda(), (19, 1), (1, odd))
        else:
            xa = np.lib.stride_tricks.as_strided(a, a.shape, (4 * odd, 4))
            xb = np.lib.stride_tricks.as_strided(b, b.shape, (4, 4 * odd))
        np.testing.assert_array_equal(backend.raw(dlkern.matmul(xa, xb)), expected)


@pytest.mark.gpu
def test_edge_15_more_than_2_31_elements(gpu):
    torch = pytest.importorskip("torch")
    a = torch.randn(2**16 + 8, 8, dtype=torch.float16, device="cuda")
    b = torch.randn(8, 2**15, dtype=torch.float16, device="cuda")
    y = dlkern.matmul(a, b)
    assert torch.equal(y[2**16 :], dlkern.matmul(a[2**16 :], b))
    expected = a[2**16 :].double() @ b.double()
    torch.testing.assert_close(y[2**16 :].double(), expected, rtol=1e-3, atol=1e-3)


def test_nan_and_infinity(backend, dtype):
    a, b = rounded([[1, 2], [0, 1], [1, -1]], dtype), rounded([[np.inf, 0], [1, np.nan]], dtype)
    y = backend.numpy(dlkern.matmul(backend.array(a), backend.array(b)))
    np.testing.assert_array_equal(y[[0, 2]], [[np.inf, np.nan], [np.inf, np.nan]])
    assert np.isnan(y[1]).all()  # 0 * inf


def test_sums_are_kept_in_float32(backend):
    """EDGE 2: what overflows or drowns in 16 bits does not in the sum."""
    a = rounded([[32000.0] * 4 + [-32000.0] * 4], "float16")
    ones = np.ones((8, 1), np.float16)
    assert backend.numpy(dlkern.matmul(backend.array(a), backend.array(ones))) == 0
    ones = rounded(np.ones((1, 4096)), "bfloat16")
    assert backend.numpy(dlkern.matmul(backend.array(ones), backend.array(ones.T.copy()))) == 4096


@pytest.mark.parametrize("out_dtype", FLOATS)
def test_output_of_another_dtype(backend, dtype, rng, out_dtype):
    """The sum is rounded once, to the dtype of the output."""
    a, b = normal(rng, (40, 30), dtype), normal(rng, (30, 45), dtype)
    c, bias = normal(rng, (40, 45), out_dtype), normal(rng, (45,), dtype)
    y = backend.empty((40, 45), out_dtype)
    dlkern.matmul(backend.array(a), backend.array(b), backend.array(c), out=y)
    summed, scale = product(a, b)
    judge = {"scale": scale + np.abs(float64(c)) + 1}
    # Float32 sums stay float32 sums in a float64 array.
    judged = out_dtype if out_dtype != "float64" or dtype == "float64" else "float32"
    assert_close(backend.numpy(y), summed + float64(c), judged, "matmul", **judge)
    dlkern.linear(backend.array(a), backend.array(b.T.copy()), backend.array(bias), out=y)
    assert_close(backend.numpy(y), summed + float64(bias), judged, "linear", **judge)


def test_items_of_a_batch_have_the_bits_of_the_item_alone(backend, dtype, rng):
    a, b = normal(rng, (5, 70, 130), dtype), normal(rng, (5, 130, 90), dtype)
    many = backend.raw(dlkern.matmul(backend.array(a), backend.array(b)))
    for i in range(5):
        alone = backend.raw(dlkern.matmul(backend.array(a[i]), backend.array(b[i])))
        np.testing.assert_array_equal(many[i], alone)


@pytest.mark.gpu
def test_rows_do_not_depend_on_the_rows_beside_them(gpu, dtype, rng):
    """Whatever tile computes them."""
    a, b = normal(rng, (600, 70), dtype), normal(rng, (70, 500), dtype)
    options = {"batch_invariant": True}
    many = gpu.raw(dlkern.matmul(gpu.array(a), gpu.array(b), **options))
    for m in (1, 5, 31, 129):
        few = gpu.raw(dlkern.matmul(gpu.array(a[:m]), gpu.array(b), **options))
        np.testing.assert_array_equal(many[:m], few)


@pytest.mark.gpu
def test_all_tiles_of_the_gpu(gpu, dtype, rng):
    """Large, medium and small tiles, by products with many and with few of them."""
    for m, n, k in ((2100, 2050, 33), (1100, 900, 40), (300, 70, 70)):
        a, b = normal(rng, (m, k), dtype), normal(rng, (k, n), dtype)
        for layout in ("contiguous", "transposed"):
            y = dlkern.matmul(gpu.array(a, layout), gpu.array(b, layout))
            check_matmul(gpu, a, b, y, dtype)


# ---- linear --------------------------------------------------------------------------------


ACTIVATIONS = {
    None: lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "leaky_relu": lambda z: np.where(z > 0, z, 0.01 * z),
    "elu": lambda z: np.where(z > 0, z, np.expm1(z)),
    "gelu": lambda z: z * 0.5 * np.vectorize(math.erfc)(-z / math.sqrt(2)),
    "gelu_tanh": lambda z: z * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
    "silu": lambda z: z / (1 + np.exp(-z)),
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "tanh": np.tanh,
    "softplus": lambda z: np.where(z > 20, z, np.log1p(np.exp(z))),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_with_bias_and_activation(backend, dtype, rng, activation):
    x, weight, bias = (normal(rng, s, dtype) for s in ((3, 11, 40), (37, 40), (37,)))
    arrays = [backend.array(v) for v in (x, weight, bias)]
    y, preactivation = dlkern.linear(*arrays, activation=activation, preactivation=True)
    z, scale = product(x, weight.T)
    z, scale = z + float64(bias), scale + np.abs(float64(bias))
    assert_close(backend.numpy(preactivation), z, dtype, "linear", scale=scale)
    assert_close(backend.numpy(y), ACTIVATIONS[activation](z), dtype, "linear", scale=scale + 1)
    alone = dlkern.linear(*arrays, activation=activation)
    np.testing.assert_array_equal(backend.raw(alone), backend.raw(y))


@pytest.mark.parametrize("activation", [None, "gelu", "relu"])
@pytest.mark.parametrize("shape", [(3, 11, 37), (11, 37), (3, 1, 37), (37,), (3, 11, 1), (1,), ()])
def test_residual(backend, dtype, rng, activation, shape):
    """Added after the activation; it broadcasts, and may have the dtype of x or of y."""
    x, weight, bias = (normal(rng, s, dtype) for s in ((3, 11, 40), (37, 40), (37,)))
    arrays = [backend.array(v) for v in (x, weight, bias)]
    z, scale = product(x, weight.T)
    z, scale = z + float64(bias), scale + np.abs(float64(bias))
    for residual_dtype in (dtype, "float32"):
        residual = normal(rng, shape, residual_dtype)
        y, preactivation = (backend.empty((3, 11, 37), residual_dtype) for _ in range(2))
        dlkern.linear(
            *arrays, activation=activation, residual=backend.array(residual), out=y,
            out_preactivation=preactivation,
        )  # fmt: skip
        expected = ACTIVATIONS[activation](z) + float64(residual)
        judged = "float32" if (dtype, residual_dtype) == ("float64", "float32") else residual_dtype
        assert_close(backend.numpy(y), expected, judged, "linear", scale=scale + 4)
        assert_close(backend.numpy(preactivation), z, judged, "linear", scale=scale)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("invariant", [False, True])
def test_residual_in_place(backend, rng, layout, invariant):
    """Added to y itself, as a residual stream is updated."""
    for dtype in ("float32", "bfloat16"):
        x, weight, stream = (normal(rng, s, dtype) for s in ((33, 40), (37, 40), (33, 37)))
        y = backend.array(stream, layout)
        dlkern.linear(
            backend.array(x, layout), backend.array(weight), activation="relu", residual=y, out=y,
            batch_invariant=invariant,
        )  # fmt: skip
        z, scale = product(x, weight.T)
        expected = np.maximum(z, 0) + float64(stream)
        assert_close(backend.numpy(y), expected, dtype, "linear", scale=scale + 4)


def test_alpha_of_the_activation(backend, rng):
    x, weight = rng.standard_normal((7, 5)), rng.standard_normal((6, 5))
    for name, alpha, function in (
        ("leaky_relu", 0.3, lambda z: np.where(z > 0, z, 0.3 * z)),
        ("elu", 2.0, lambda z: np.where(z > 0, z, 2 * np.expm1(z))),
        ("softplus", 3.0, lambda z: np.where(3 * z > 20, z, np.log1p(np.exp(3 * z)) / 3)),
    ):
        y = dlkern.linear(backend.array(x), backend.array(weight), activation=name, alpha=alpha)
        assert_close(backend.numpy(y), function(x @ weight.T), "float64", "linear", scale=10.0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lead", [(), (1,), (65,), (2, 3, 4), (0,), (2, 0)])
def test_linear_and_its_gradients(backend, rng, layout, lead):
    """Leading dimensions of any number, order and stride are rows."""
    for dtype in ("float64", "float16"):
        x, dy = normal(rng, (*lead, 18), dtype), normal(rng, (*lead, 21), dtype)
        weight, bias = normal(rng, (21, 18), dtype), normal(rng, (21,), dtype)
        xs = [backend.array(v, layout) for v in (x, dy, weight, bias)]

        def close(y, expected, scale, dtype=dtype):
            assert_close(backend.numpy(y), expected, dtype, "linear", scale=scale)

        y = dlkern.linear(xs[0], xs[2], xs[3], out=backend.empty((*lead, 21), dtype, layout))
        expected, scale = product(x, weight.T)
        close(y, expected + float64(bias), scale + np.abs(float64(bias)))
        dx = backend.empty((*lead, 18), dtype, layout)
        close(dlkern.linear_backward_input(xs[1], xs[2], out=dx), *product(dy, weight))
        rows_x, rows_dy = x.reshape(-1, 18), dy.reshape(-1, 21)
        dweight, dbias = dlkern.linear_backward_weight(
            xs[1], xs[0], out=backend.empty((21, 18), dtype, layout),
            out_bias=backend.empty((21,), dtype, layout),
        )  # fmt: skip
        close(dweight, *product(rows_dy.T, rows_x))
        close(dbias, float64(rows_dy).sum(0), np.abs(float64(rows_dy)).sum(0))


def test_gradients_are_accumulated(backend, dtype, rng):
    """Micro-batches add up in a float32 gradient of 16-bit layers."""
    wide = "float64" if dtype == "float64" else "float32"
    dweight, dbias = normal(rng, (33, 20), wide), normal(rng, (33,), wide)
    out, out_bias = backend.array(dweight), backend.array(dbias)
    expected, expected_bias = float64(dweight), float64(dbias)
    for _ in range(3):
        dy, x = normal(rng, (50, 33), dtype), normal(rng, (50, 20), dtype)
        results = dlkern.linear_backward_weight(
            backend.array(dy), backend.array(x), accumulate=True, out=out, out_bias=out_bias
        )
        assert results[0] is out
        assert results[1] is out_bias
        expected = expected + float64(dy).T @ float64(x)
        expected_bias = expected_bias + float64(dy).sum(0)
    assert_close(backend.numpy(out), expected, wide, "linear", scale=100.0)
    assert_close(backend.numpy(out_bias), expected_bias, wide, "linear", scale=100.0)


def test_bias_gradient_of_a_long_batch(backend, rng):
    """Many rows and few columns."""
    dy = rounded(1 + rng.random((20000, 3)), "float32")
    x = rounded(rng.standard_normal((20000, 2)), "float32")
    dweight, dbias = dlkern.linear_backward_weight(backend.array(dy), backend.array(x), bias=True)
    expected, scale = product(dy.T, x)
    assert_close(backend.numpy(dweight), expected, "float32", "linear", scale=scale)
    np.testing.assert_allclose(backend.numpy(dbias), float64(dy).sum(0), rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.sanitize
def test_long_sums_are_cut_into_parts(gpu, dtype, rng):
    """Parts of unequal length, added in order, with bias, accumulation and strided gradients."""
    dy, x = normal(rng, (3001, 33), dtype), normal(rng, (3001, 70), dtype)
    dweight, dbias = normal(rng, (33, 70), dtype), normal(rng, (33,), dtype)
    arrays = gpu.array(dy), gpu.array(x)
    plan = dlkern.explain(dlkern.linear_backward_weight, *arrays, bias=True)[0]
    assert plan.implementation.endswith("split_k")
    for layout in ("contiguous", "strided"):
        out, out_bias = gpu.array(dweight, layout), gpu.array(dbias, layout)
        dlkern.linear_backward_weight(*arrays, accumulate=True, out=out, out_bias=out_bias)
        expected, scale = product(dy.T, x)
        assert_close(gpu.numpy(out), expected + float64(dweight), dtype, "linear", scale=scale + 1)
        assert_close(gpu.numpy(out_bias), float64(dy).sum(0) + float64(dbias), dtype, "linear",
                     scale=np.abs(float64(dy)).sum(0) + 1)  # fmt: skip
    short = [gpu.array(v[:100]) for v in (dy, x)]
    plan = dlkern.explain(dlkern.linear_backward_weight, *short)[0]
    assert not plan.implementation.endswith("split_k")


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name])
def test_gradient_through_the_activation_below(backend, dtype, rng, activation):
    """The fused gradient is that of the layer followed by that of the activation."""
    dy, weight, z = (normal(rng, s, dtype) for s in ((2, 35, 21), (21, 40), (2, 35, 40)))
    arrays = [backend.array(v) for v in (dy, weight, z)]
    for invariant in (False, True):
        dx = dlkern.linear_backward_input(
            *arrays[:2], activation=activation, preactivation=arrays[2], batch_invariant=invariant
        )
        summed, scale = product(dy, weight)
        step = 1e-6
        f = ACTIVATIONS[activation]
        slope = (f(float64(z) + step) - f(float64(z) - step)) / (2 * step)
        if activation in ("relu", "leaky_relu"):
            slope = np.where(float64(z) > 0, 1.0, 0.0 if activation == "relu" else 0.01)
        judged = dtype if dtype != "float64" else "float32"  # of the differences
        assert_close(backend.numpy(dx), summed * slope, judged, "linear", scale=8 * scale)


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name])
def test_gradient_through_the_activation_by_finite_differences(rng, activation):
    z, weight, dy = (rng.standard_normal(s) for s in ((3, 4), (5, 4), (3, 5)))
    alpha = {"leaky_relu": 0.3, "elu": 0.7, "softplus": 1.5}.get(activation)
    options = {"activation": activation, "alpha": alpha}

    def layers(z):
        return dlkern.linear(dlkern.linear(z, np.eye(4), **options), weight)

    dz = dlkern.linear_backward_input(dy, weight, preactivation=z, **options)
    assert_grad(layers, [z], dy, [dz])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_through_the_activation_of_any_layout(backend, rng, layout):
    dy, weight, z = (normal(rng, s, "float32") for s in ((3, 35, 21), (21, 40), (3, 35, 40)))
    dx = backend.empty((3, 35, 40), "float32", layout)
    xs = [backend.array(v, layout) for v in (dy, weight, z)]
    dlkern.linear_backward_input(*xs[:2], activation="relu", preactivation=xs[2], out=dx)
    summed, scale = product(dy, weight)
    assert_close(backend.numpy(dx), summed * (z > 0), "float32", "linear", scale=scale)


def test_gradients_by_finite_differences(rng):
    a, b, dy = (rng.standard_normal(s) for s in ((2, 1, 3, 4), (3, 4, 2), (2, 3, 3, 2)))
    assert_grad(lambda a, b: dlkern.matmul(a, b, alpha=0.7), [a, b], dy,
                dlkern.matmul_backward(dy, a, b, alpha=0.7))  # fmt: skip

    x, weight, bias, dy = (rng.standard_normal(s) for s in ((2, 3, 5), (4, 5), (4,), (2, 3, 4)))
    _, z = dlkern.linear(x, weight, bias, activation="gelu", preactivation=True)
    dz = dlkern.gelu_backward(dy, z)
    assert_grad(
        lambda x, weight, bias: dlkern.linear(x, weight, bias, activation="gelu"),
        [x, weight, bias], dy,
        [dlkern.linear_backward_input(dz, weight),
         *dlkern.linear_backward_weight(dz, x, bias=True)],
    )  # fmt: skip


# ---- Wrong arguments -----------------------------------------------------------------------


def z(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.matmul(a(z(2, 3)), a(z(4, 5))), ValueError,
         r"matmul: b.shape is \[4, 5\], expected 3 rows"),
        (lambda a: dlkern.matmul(a(z(2, 3)), a(z(4))), ValueError, r"b.shape is \[4\], expected 3"),
        (lambda a: dlkern.matmul(a(z(2, 2, 3)), a(z(3, 3, 4))), ValueError,
         r"b.shape is \[3, 3, 4\], expected batch dimensions that broadcast with a.shape"),
        (lambda a: dlkern.matmul(a(z()), a(z(3))), ValueError, "a has 0 dimensions"),
        (lambda a: dlkern.matmul(a(z(2, 3)), a(z(3, 4, dtype="float64"))), TypeError,
         "b.dtype is float64, expected float32"),
        (lambda a: dlkern.matmul(a(z(2, 3, dtype="int32")), a(z(3, 4, dtype="int32"))), TypeError,
         "a.dtype is int32"),
        (lambda a: dlkern.matmul(a(z(2, 3)), a(z(3, 4)), a(z(3, 4))), ValueError,
         r"c.shape is \[3, 4\], expected one that broadcasts to \[2, 4\]"),
        (lambda a: dlkern.matmul(a(z(2, 3)), a(z(3, 4)), a(z(4, dtype="float64"))), TypeError,
         "c.dtype is float64"),
        (lambda a: dlkern.matmul(a(z(2, 3)), a(z(3, 4)), out=a(z(1, 4))), ValueError,
         r"out.shape is \[1, 4\], expected \[2, 4\] \(the shape of a @ b\)"),
        (lambda a: dlkern.matmul(a(z(2, 3)), a(z(3, 4)), out=a(z(2, 4, dtype="int32"))), TypeError,
         "out.dtype is int32"),
        (lambda a: dlkern.matmul(a(z(2, 3)), a(z(3, 4)), precision="half"), ValueError,
         "precision is 'half'"),
        (lambda a: dlkern.matmul(a(z(2, 3)), a(z(3, 4)), alpha="x"), TypeError, "alpha is 'x'"),
        (lambda a: dlkern.matmul("text", a(z(3, 4))), TypeError, "a is str"),
        (lambda a: dlkern.matmul_backward(a(z(2, 5)), a(z(2, 3)), a(z(3, 4))), ValueError,
         r"dy.shape is \[2, 5\], expected \[2, 4\]"),
        (lambda a: dlkern.matmul_backward(a(z(2, 4)), a(z(2, 3)), a(z(3, 4)), out_b=a(z(4, 3))),
         ValueError, r"out_b.shape is \[4, 3\], expected \[3, 4\] \(b.shape\)"),
        (lambda a: dlkern.linear(a(z(2, 3)), a(z(4, 5))), ValueError,
         r"linear: weight.shape is \[4, 5\], expected \[4, 3\]"),
        (lambda a: dlkern.linear(a(z(2, 3)), a(z(3))), ValueError, "weight has 1 dimensions"),
        (lambda a: dlkern.linear(a(z(2, 3)), a(z(4, 3)), a(z(3))), ValueError,
         r"bias.shape is \[3\], expected \[4\]"),
        (lambda a: dlkern.linear(a(z(2, 3)), a(z(4, 3)), a(z(4, dtype="float64"))), TypeError,
         "bias.dtype is float64"),
        (lambda a: dlkern.linear(a(z(2, 3)), a(z(4, 3)), activation="swish"), ValueError,
         "activation is 'swish'"),
        (lambda a: dlkern.linear(a(z(2, 3)), a(z(4, 3)), activation="softplus", alpha=0),
         ValueError, "alpha is 0"),
        (lambda a: dlkern.linear(a(z(2, 3)), a(z(4, 3)), out=a(z(2, 3))), ValueError,
         r"out.shape is \[2, 3\], expected \[2, 4\]"),
        (lambda a: dlkern.linear(a(z(2, 3)), a(z(4, 3)), out_preactivation=a(z(4, 2))),
         ValueError, r"out_preactivation.shape is \[4, 2\]"),
        (lambda a: dlkern.linear(a(z(2, 3)), a(z(4, 3)), residual=a(z(3, 4))), ValueError,
         r"residual.shape is \[3, 4\], expected one that broadcasts to \[2, 4\]"),
        (lambda a: dlkern.linear(a(z(2, 3)), a(z(4, 3)), residual=a(z(4, dtype="float64"))),
         TypeError, "residual.dtype is float64"),
        (lambda a: dlkern.linear_backward_input(a(z(2, 3)), a(z(3, 5)), activation="relu"),
         ValueError, "preactivation is missing"),
        (lambda a: dlkern.linear_backward_input(a(z(2, 3)), a(z(3, 5)), activation="relu",
                                                preactivation=a(z(2, 3))),
         ValueError, r"preactivation.shape is \[2, 3\], expected \[2, 5\]"),
        (lambda a: dlkern.linear_backward_input(a(z(2, 3)), a(z(4, 5))), ValueError,
         r"weight.shape is \[4, 5\], expected \[3, 5\]"),
        (lambda a: dlkern.linear_backward_weight(a(z(2, 3)), a(z(3, 5))), ValueError,
         r"x.shape is \[3, 5\], expected \[2, 5\]"),
        (lambda a: dlkern.linear_backward_weight(a(z(2, 3)), a(z(2, 5)), out_bias=a(z(5))),
         ValueError, r"out_bias.shape is \[5\], expected \[3\]"),
        (lambda a: dlkern.linear_backward_weight(a(z(2, 3)), a(z(2, 5)), accumulate=True),
         ValueError, "accumulate is True, expected out"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_overlap_is_refused(backend, rng):
    x = backend.array(rng.standard_normal((8, 8)))
    with pytest.raises(ValueError, match="out overlaps a"):
        dlkern.matmul(x, backend.array(np.eye(8)), out=x)
    with pytest.raises(ValueError, match="out overlaps c"):
        dlkern.matmul(backend.array(np.eye(4)), backend.array(np.eye(4, 8)), x[4:], out=x[3:7])
    with pytest.raises(ValueError, match="out overlaps weight"):
        dlkern.linear_backward_input(backend.array(np.eye(8)), x, out=x)
