"""Hopper's kernels for matrix products: every configuration, whichever one a call would choose."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from oracle import assert_close, float64, numpy_dtype, rounded
from test_gemm import ACTIVATIONS
from test_gemm_grouped_scaled import rows_f64, scales_a, scales_b

import dlkern
from dlkern import _dlkern

pytestmark = pytest.mark.gpu

HALVES = ("float16", "bfloat16")


@pytest.fixture(autouse=True)
def hopper(gpu):
    if dlkern.devices()[0]["compute_capability"] != (9, 0):
        pytest.skip("needs compute capability 9.0")
    _dlkern.set_implementations("wgmma_sm90,wgmma_sm90_gather")
    yield
    _dlkern.set_implementations("")


@contextlib.contextmanager
def tuned(key, choice):
    _dlkern.set_tuning(key, choice)
    try:
        yield
    finally:
        _dlkern.set_tuning(key, None)


def in_every_configuration(call, *args, **kwargs):
    """(name, result) of the call in each configuration that can compute it."""
    (plan,) = dlkern.explain(call, *args, **kwargs)
    assert plan.candidates
    for choice in plan.candidates:
        with tuned(plan.tuning_key, choice):
            yield choice, call(*args, **kwargs)


def normal(rng, shape, dtype):
    return rounded(rng.standard_normal(shape), dtype)


def product(a, b):
    a, b = float64(a), float64(b)
    return a @ b, np.abs(a) @ np.abs(b)


# Whole tiles, edges in every direction, one row, few rows, few columns, and a long sum.
SHAPES = [
    (256, 512, 128), (300, 520, 200), (129, 264, 72), (1, 264, 512), (20, 328, 1032),
    (100, 776, 320), (700, 48, 136), (130, 136, 4104),
]  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("orders", ["kk", "kr", "rk", "rr"])
@pytest.mark.parametrize("shape", SHAPES)
def test_products(gpu, dtype, orders, shape, rng):
    """Operands along k, or along their rows."""
    m, n, k = shape
    if orders[0] == "r":
        m = max(-(-m // 8) * 8, 136)  # 16 bytes; thin ones are along k
    a, b = normal(rng, (m, k), dtype), normal(rng, (k, n), dtype)
    layouts = ("contiguous" if orders[0] == "k" else "transposed",
               "transposed" if orders[1] == "k" else "contiguous")  # fmt: skip
    xs = gpu.array(a, layouts[0]), gpu.array(b, layouts[1])
    expected, scale = product(a, b)
    for out_dtype in (dtype, "float32"):
        for name, y in in_every_configuration(dlkern.matmul, *xs, out=gpu.empty((m, n), out_dtype)):
            print(name, out_dtype)  # shown where it fails
            assert_close(gpu.numpy(y), expected, out_dtype, "matmul", scale=scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(150, 264, 200), (20, 264, 328)])
def test_every_configuration_with_everything(gpu, dtype, shape, rng):
    """A batch, c, a preactivation, an activation and a residual, to y of any strides."""
    m, n, k = shape
    x, w = normal(rng, (m, k), dtype), normal(rng, (n, k), dtype)
    bias, residual = normal(rng, (n,), dtype), normal(rng, (m, n), dtype)
    z, scale = product(x, w.T)
    z = z + float64(bias)
    for layout in ("contiguous", "strided"):
        outs = [gpu.empty((m, n), dtype, layout) for _ in range(2)]
        for name, (y, pre) in in_every_configuration(
            dlkern.linear, gpu.array(x), gpu.array(w), gpu.array(bias), activation="relu",
            residual=gpu.array(residual), out=outs[0], out_preactivation=outs[1],
        ):  # fmt: skip
            print(name, layout)
            assert_close(gpu.numpy(pre), z, dtype, "linear", scale=scale + 4)
            expected = np.maximum(z, 0) + float64(residual)
            assert_close(gpu.numpy(y), expected, dtype, "linear", scale=scale + 8)
    a, b = normal(rng, (2, 3, m, k), dtype), normal(rng, (3, n, k), dtype)
    c = normal(rng, (2, 1, m, n), dtype)
    expected, scale = product(a, np.swapaxes(b, -1, -2))
    view = gpu.array(b).swapaxes(-1, -2)
    for name, y in in_every_configuration(
        dlkern.matmul, gpu.array(a), view, gpu.array(c), alpha=0.5, beta=2.0
    ):
        print(name)
        assert_close(gpu.numpy(y), 0.5 * expected + 2 * float64(c), dtype, "matmul",
                     scale=scale + 8)  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(200, 136, 264), (3000, 72, 136), (2100, 72, 136)])
def test_weight_gradient_in_every_configuration(gpu, shape, rng):
    """Row sums by a product with ones, in one piece and in parts."""
    rows, m, n = shape
    dy, x = normal(rng, (rows, m), "bfloat16"), normal(rng, (rows, n), "bfloat16")
    expected, scale = product(dy.T, x)
    for name, (dw, db) in in_every_configuration(
        dlkern.linear_backward_weight, gpu.array(dy), gpu.array(x), bias=True
    ):
        print(name)
        assert_close(gpu.numpy(dw), expected, "bfloat16", "linear", scale=scale)
        assert_close(gpu.numpy(db), float64(dy).sum(0), "bfloat16", "linear",
                     scale=np.abs(float64(dy)).sum(0))  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(256, 256, 64), (200, 520, 100), (24, 264, 516)])
def test_tf32(gpu, shape, rng):
    """Rounded to nearest on the way in: both operands have 11 bits."""
    m, n, k = shape
    a, b = normal(rng, (m, k), "float32"), normal(rng, (n, k), "float32")
    expected, scale = product(a, b.T)
    for name, y in in_every_configuration(
        dlkern.matmul, gpu.array(a), gpu.array(b).T, precision="tf32"
    ):
        error = np.abs(gpu.numpy(y) - expected)
        assert (error <= 2.0**-10.5 * scale).all(), name


@pytest.mark.parametrize("a_dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("b_dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(256, 256, 256), (200, 264, 400), (16, 264, 1040)])
@pytest.mark.parametrize(
    "kind", ["tensor", "row", pytest.param("piece", marks=pytest.mark.sanitize), "block"]
)
def test_float8(gpu, a_dtype, b_dtype, shape, kind, rng):
    m, n, k = shape
    a, b = normal(rng, (m, k), a_dtype), normal(rng, (n, k), b_dtype)
    pieces = -(-k // 128)
    of_a = {"tensor": (), "row": (m,), "piece": (m, pieces), "block": (-(-m // 128), pieces)}
    of_b = {"tensor": (), "row": (n,), "piece": (n, pieces), "block": (-(-n // 128), pieces)}
    sa, sb = (rng.uniform(0.5, 2, s[kind]).astype("f4") for s in (of_a, of_b))

    def spread(scale, rows):
        if scale.ndim < 2:
            return np.broadcast_to(scale.reshape(-1, 1) if scale.ndim else scale, (rows, k))
        full = np.repeat(scale, 128, 1)[:, :k]
        return full if len(full) == rows and kind == "piece" else np.repeat(full, 128, 0)[:rows]

    expected, scale = product(float64(a) * spread(sa, m), (float64(b) * spread(sb, n)).T)
    arrays = gpu.array(a), gpu.array(b).T, gpu.array(sa), gpu.array(sb.T.copy())
    for name, y in in_every_configuration(dlkern.scaled_matmul, *arrays, out_dtype="float32"):
        print(name)
        assert_close(gpu.numpy(y), expected, "float32", "matmul_float8", scale=scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(256, 256, 256), (200, 264, 400), (16, 264, 1040)])
def test_int8(gpu, shape, rng):
    m, n, k = shape
    a, b = (rng.integers(-128, 128, s).astype("i1") for s in ((m, k), (n, k)))
    expected = a.astype("i4") @ b.T.astype("i4")
    arrays = gpu.array(a), gpu.array(b).T
    for _, y in in_every_configuration(dlkern.scaled_matmul, *arrays, out_dtype="int32"):
        np.testing.assert_array_equal(gpu.numpy(y), expected)
    scale = np.float32(2**-7)
    for _, y in in_every_configuration(
        dlkern.scaled_matmul, *arrays, gpu.array(np.array(scale)), out_dtype="float32"
    ):
        np.testing.assert_array_equal(gpu.numpy(y), (expected * scale).astype("f4"))


@pytest.mark.sanitize
@pytest.mark.parametrize("ends", [[0, 130, 130, 400, 512], [512] * 5, [5, 6, 7, 8, 9], [0] * 5])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_groups_of_rows(gpu, ends, layout, rng):
    a, b = normal(rng, (512, 136), "bfloat16"), normal(rng, (5, 136, 264), "bfloat16")
    bias = normal(rng, (5, 264), "bfloat16")
    for name, y in in_every_configuration(
        dlkern.grouped_matmul, gpu.array(a, layout), gpu.array(b),
        gpu.array(np.array(ends, "i4")), gpu.array(bias),
    ):  # fmt: skip
        for g, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            expected, scale = product(a[begin:end], b[g])
            assert_close(gpu.numpy(y)[begin:end], expected + float64(bias[g]), "bfloat16",
                         "matmul", scale=scale + 4)  # fmt: skip
        print(name)


@pytest.mark.parametrize("a_dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("b_dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(
    "kinds",
    [
        ("none", "none"), ("row", "row"), ("tensor", "each"), ("piece", "row"),
        ("piece", "piece"), pytest.param(("piece", "block"), marks=pytest.mark.sanitize),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ends", [[0, 130, 130, 400, 512], [512] * 5, [5, 6, 7, 8, 9], [0] * 5])
def test_groups_of_float8_rows(gpu, a_dtype, b_dtype, kinds, ends, rng):
    """Factors of each group; operands where they lie, and gathered first."""
    for k, n in ((400, 264), (144, 520)):
        a, weights = normal(rng, (512, k), a_dtype), normal(rng, (5, n, k), b_dtype)
        of_a, of_b = scales_a(kinds[0], rng, 512, k), scales_b(kinds[1], rng, 5, n, k)
        scales = [None if s is None else gpu.array(s) for s in (of_a, of_b)]
        b = np.swapaxes(weights, 1, 2)
        expected, scale = rows_f64(a, b, ends, of_a, of_b)
        rows = ends[-1]
        for view in (gpu.array(weights).swapaxes(1, 2), gpu.array(b)):
            for name, y in in_every_configuration(
                dlkern.grouped_matmul, gpu.array(a), view, gpu.array(np.array(ends, "i4")), None,
                *scales, out_dtype="float32",
            ):  # fmt: skip
                print(name)
                assert_close(gpu.numpy(y)[:rows], expected[:rows], "float32", "matmul_float8",
                             scale=scale[:rows])  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("ends", [[0, 130, 130, 400, 512], [512] * 5, [5, 6, 7, 8, 9], [0] * 5])
def test_groups_of_int8_rows(gpu, ends, rng):
    a, weights = (rng.integers(-128, 128, s).astype("i1") for s in ((512, 144), (5, 264, 144)))
    arrays = gpu.array(a), gpu.array(weights).swapaxes(1, 2), gpu.array(np.array(ends, "i4"))
    of_a, of_b = scales_a("row", rng, 512, 144), scales_b("row", rng, 5, 264, 144)
    b, rows = np.swapaxes(weights, 1, 2), ends[-1]
    exact, _ = rows_f64(a, b, ends)
    expected, scale = rows_f64(a, b, ends, of_a, of_b)
    for name, y in in_every_configuration(dlkern.grouped_matmul, *arrays):
        print(name)
        np.testing.assert_array_equal(gpu.numpy(y)[:rows], exact[:rows].astype("i4"))
    for name, y in in_every_configuration(
        dlkern.grouped_matmul, *arrays, None, gpu.array(of_a), gpu.array(of_b), out_dtype="float32"
    ):
        print(name)
        assert_close(gpu.numpy(y)[:rows], expected[:rows], "float32", "matmul", scale=scale[:rows])


# ---- Float32 in full precision -------------------------------------------------------------


def float32_errors(gpu, a, b):
    """Largest error, relative to the largest element, of the planes and of multiply-adds."""
    expected = float64(a) @ float64(b)
    errors = []
    for implementation in ("wgmma_sm90_gather", "simt"):
        _dlkern.set_implementations(implementation)
        y = gpu.numpy(dlkern.matmul(gpu.array(a), gpu.array(b)))
        errors.append(np.abs(y - expected).max() / np.abs(expected).max())
    return errors


@pytest.mark.parametrize("shape", [(1024, 1024, 512), (700, 900, 2050), (4096, 2048, 64)])
@pytest.mark.parametrize("kind", ["normal", "positive", "rows", "columns", "cancelling"])
def test_planes_are_as_accurate_as_multiply_adds(gpu, shape, kind, rng):
    """float32 as three bfloat16 planes: at most twice the error of a chain of multiply-adds."""
    m, n, k = shape
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if kind == "positive":
        a, b = np.abs(a), np.abs(b)
    elif kind == "rows":  # of very different size
        a *= 10.0 ** rng.uniform(-6, 6, (m, 1))
        b *= 10.0 ** rng.uniform(-6, 6, (1, n))
    elif kind == "columns":  # what is summed differs in size
        a *= 10.0 ** rng.uniform(-6, 6, (1, k))
        b *= 10.0 ** rng.uniform(-6, 6, (k, 1))
    elif kind == "cancelling":  # big terms whose sum is small
        a[:, 1::2], b[1::2] = a[:, ::2], -b[::2] * (1 + 1e-4 * rng.standard_normal((k // 2, n)))
    planes, chain = float32_errors(gpu, a.astype("f4"), b.astype("f4"))
    assert planes <= 2 * chain + 2.0**-24, (planes, chain)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4e38, 1e-40])
def test_what_has_no_planes_is_computed_by_multiply_adds(gpu, value, rng):
    a, b = (
        rng.standard_normal((1024, 512)).astype("f4"),
        rng.standard_normal((512, 1024)).astype("f4"),
    )
    a[3, 5] = value
    b[5] = np.abs(b[5]) + 0.1  # no infinity times 0
    y = gpu.numpy(dlkern.matmul(gpu.array(a), gpu.array(b)))
    with np.errstate(all="ignore"):
        expected = float64(a) @ float64(b)
        expected = np.where(np.abs(expected) > 3.4028235e38, np.sign(expected) * np.inf, expected)
    assert_close(
        y[3], expected[3], "float32", "matmul", scale=np.abs(float64(a)[3]) @ np.abs(float64(b))
    )
    rest = np.arange(1024) != 3
    assert_close(y[rest], expected[rest], "float32", "matmul",
                 scale=np.abs(float64(a[rest])) @ np.abs(float64(b)))  # fmt: skip


@pytest.mark.parametrize("value", [1.0, 1e-35, np.inf])
def test_accumulation_in_place_where_values_have_no_planes(gpu, value, rng):
    """Whatever was tried first has not touched what is added to."""
    dy, x = (rng.standard_normal((8192, 256)).astype("f4") for _ in range(2))
    dw = rng.standard_normal((256, 256)).astype("f4")
    dy[5, 3] = value
    out = gpu.array(dw)
    dlkern.linear_backward_weight(gpu.array(dy), gpu.array(x), accumulate=True, out=out)
    expected, scale = product(dy.T, x)
    rows = np.arange(256) != 3
    assert_close(gpu.numpy(out)[rows], (expected + dw)[rows], "float32", "linear",
                 scale=scale[rows] + 4)  # fmt: skip
    assert np.isfinite(gpu.numpy(out)[3]).all() == np.isfinite(value)


def test_batch_invariance_of_whatever_way_a_product_is_turned(gpu, rng):
    """Factors of both operands, and a bias that is added with a factor."""
    a, b = normal(rng, (300, 256), "float8_e4m3fn"), normal(rng, (512, 256), "float8_e4m3fn")
    sa, sb = (rng.uniform(0.3, 3, n).astype("f4") for n in (300, 512))
    x, w, c = (normal(rng, shape, "bfloat16") for shape in ((300, 256), (512, 256), (512,)))

    def call(m):
        scaled = [
            dlkern.scaled_matmul(
                gpu.array(a[:m]), gpu.array(b).T, gpu.array(sa[:m]), gpu.array(sb),
                out_dtype=dtype, batch_invariant=True,
            )
            for dtype in ("float32", "bfloat16")
        ]  # fmt: skip
        y = dlkern.matmul(
            gpu.array(x[:m]), gpu.array(w).T, gpu.array(c), beta=0.3, batch_invariant=True,
            out=gpu.empty((m, 512), "float32"),
        )  # fmt: skip
        return [gpu.raw(result) for result in (*scaled, y)]

    many = call(300)
    for m in (1, 17, 64, 128, 129):
        for few, all_of_them in zip(call(m), many, strict=True):
            np.testing.assert_array_equal(few, all_of_them[:m])


# ---- Choice --------------------------------------------------------------------------------


def test_explanation_names_the_kernel_and_its_alternatives(gpu, rng):
    a, b = (
        gpu.array(normal(rng, (512, 512), "bfloat16")),
        gpu.array(normal(rng, (512, 512), "bfloat16")),
    )
    (plan,) = dlkern.explain(dlkern.matmul, a, b)
    assert plan.implementation == "wgmma_sm90"
    assert len(set(plan.candidates)) == len(plan.candidates) > 2
    assert plan.workspace_bytes == 0
    assert f"configuration: {plan.candidates[0]}" in str(plan)


def test_a_choice_that_does_not_exist_is_ignored(gpu, rng):
    a, b = (
        gpu.array(normal(rng, (512, 512), "bfloat16")),
        gpu.array(normal(rng, (512, 512), "bfloat16")),
    )
    (plan,) = dlkern.explain(dlkern.matmul, a, b)
    right = gpu.raw(dlkern.matmul(a, b))
    with tuned(plan.tuning_key, "1x1 imaginary"):
        np.testing.assert_array_equal(gpu.raw(dlkern.matmul(a, b)), right)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [16, 256])
def test_quick_activations(gpu, activation, dtype, rows):
    """Along their whole range, tails and NaN: within the rounding of the 16-bit result."""
    x = np.zeros((rows, 64), dtype="float32")
    x[:, 0] = 1
    points = [*np.linspace(-14, 14, 249), np.nan, 1e4, -1e4, 30, -30, 0.0, -1e-3]
    w = np.zeros((256, 64), dtype="float32")
    w[: len(points), 0] = points
    x, w = rounded(x, dtype), rounded(w, dtype)
    y = gpu.numpy(dlkern.linear(gpu.array(x), gpu.array(w), activation=activation))
    with np.errstate(over="ignore", invalid="ignore"):
        z = float64(w[:, 0])
        expected = ACTIVATIONS[activation](z)
        if activation == "gelu_tanh":  # 1 + tanh is 0 long before it should be
            expected = z / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    for row in (0, rows - 1):
        assert_close(y[row], expected, dtype, "linear", scale=64 * np.abs(expected) + 1e-30)


def test_rows_keep_their_bits_in_every_configuration_that_does_not_split(gpu, rng):
    """One chain of instructions in the order of k, whatever the tile."""
    a, b = normal(rng, (300, 520), "bfloat16"), normal(rng, (520, 264), "bfloat16")
    results = [
        gpu.raw(y)
        for name, y in in_every_configuration(dlkern.matmul, gpu.array(a), gpu.array(b))
        if "split" not in name
    ]
    for y in results[1:]:
        np.testing.assert_array_equal(y, results[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("m", [1, 70])
def test_y_amid_other_columns(gpu, dtype, m, rng):
    """Rows that end within the 16 bytes that bulk stores write at once: what follows is kept."""
    k = 4096  # also for configurations that cut it into parts
    for n in range(92, 98):
        a, b = normal(rng, (m, k), "bfloat16"), normal(rng, (k, n), "bfloat16")
        value, scale = product(a, b)
        operands = gpu.array(a), gpu.array(b, "transposed")
        whole = gpu.array(np.full((m, 104), 7, numpy_dtype(dtype)))
        for choice, y in in_every_configuration(dlkern.matmul, *operands, out=whole[:, :n]):
            assert_close(gpu.numpy(y), value, dtype, "matmul", scale=scale)
            np.testing.assert_array_equal(gpu.numpy(whole)[:, n:], 7, err_msg=f"{n} {choice}")


@pytest.mark.parametrize("n", [93, 94, 95, 96])
def test_row_sums_beside_sums_of_parts(gpu, n, rng):
    dy, x = normal(rng, (8192, 40), "bfloat16"), normal(rng, (8192, 96), "bfloat16")
    arrays = gpu.array(dy), gpu.array(x)[:, :n]
    value, scale = float64(dy).sum(0), np.abs(float64(dy)).sum(0)
    for _, (_, dbias) in in_every_configuration(dlkern.linear_backward_weight, *arrays, bias=True):
        assert_close(gpu.numpy(dbias), value, "bfloat16", "linear", scale=scale)
