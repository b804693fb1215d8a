"""scaled_matmul: float8 and int8 operands, factors of every kind, float8 results with amax."""

from __future__ import annotations

import itertools
import random

import ml_dtypes
import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, float64, numpy_dtype, rounded
from test_gemm import ACTIVATIONS, EXTENTS

import dlkern

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
OUTPUTS = ("float32", "float16", "bfloat16")
PAIRS = tuple(itertools.product(FLOAT8, FLOAT8))

# Tolerance on the CPU and on a GPU.
MATMUL = ("matmul", "matmul_float8")


def float8(rng, shape, dtype="float8_e4m3fn"):
    return rounded(rng.standard_normal(shape), dtype)


def spread(scale, shape, axis_of_k):
    """A factor for each element of an operand of that shape, [M, K] or [K, N]."""
    scale = float64(scale)
    if scale.size == 1:
        return np.broadcast_to(scale.reshape(()), shape)
    rows = shape[1 - axis_of_k]
    if scale.ndim == 1:
        scale = np.expand_dims(scale, axis_of_k)
    if scale.shape[1 - axis_of_k] != rows:
        scale = np.repeat(scale, 128, 1 - axis_of_k)
    if scale.shape[axis_of_k] != 1:
        scale = np.repeat(scale, 128, axis_of_k)
    return np.broadcast_to(scale[: shape[0], : shape[1]], shape)


def product(a, b, scale_a=1.0, scale_b=1.0):
    """The result in float64, and the sum of the sizes of what is added."""
    a, b = float64(a) * spread(scale_a, a.shape, 1), float64(b) * spread(scale_b, b.shape, 0)
    return a @ b, np.abs(a) @ np.abs(b)


def scales_of(kind, rng, rows, depth, axis_of_k):
    pieces, blocks = -(-depth // 128), -(-rows // 128)
    shape = {
        "tensor": (), "tensor1": (1,), "row": (rows,), "row2": (rows, 1),
        "piece": (rows, pieces), "block": (blocks, pieces),
    }[kind]  # fmt: skip
    values = rng.uniform(0.25, 4, shape).astype("float32")
    return values.T.copy() if axis_of_k == 0 and len(shape) == 2 else values


KINDS = ("tensor", "tensor1", "row", "row2", "piece", "block")


# ---- Conversions ---------------------------------------------------------------------------


def through(backend, values, dtype):
    """float32 values rounded to float8 by the library: the result of a product with 1."""
    one = backend.array(np.ones((1, 1), numpy_dtype("float8_e4m3fn")))
    scale = backend.array(np.asarray(values, "float32"))
    rows = np.ones((len(values), 1), numpy_dtype("float8_e4m3fn"))
    return backend.raw(dlkern.scaled_matmul(backend.array(rows), one, scale, out_dtype=dtype))[:, 0]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_code_is_read_exactly(backend, dtype):
    codes = np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype))[:, None]
    one = backend.array(np.ones((1, 1), numpy_dtype("float8_e5m2")))
    y = dlkern.scaled_matmul(backend.array(codes), one, out_dtype="float32")
    np.testing.assert_array_equal(backend.numpy(y), float64(codes))
    # As a row, where neighbours in memory are read together.
    finite = np.isfinite(float64(codes))[:, 0]
    for row in (codes[finite].T.copy(), codes[~finite].T.copy()):
        each = rounded(np.eye(row.size), dtype)
        with np.errstate(invalid="ignore"):
            expected = float64(row) @ float64(each)
        y = dlkern.scaled_matmul(backend.array(row), backend.array(each), out_dtype="float32")
        np.testing.assert_array_equal(backend.numpy(y), expected)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_rounding_to_nearest_even_with_saturation(backend, dtype):
    codes = np.arange(128, dtype=np.uint8).view(numpy_dtype(dtype))
    finite = np.sort(float64(codes[np.isfinite(float64(codes))]))
    between = (finite[1:] + finite[:-1]) / 2  # ties, exact in float32
    near = [np.nextafter(between.astype("f4"), np.float32(to)) for to in (0, np.inf)]
    tiny = np.array([1e-45, 1e-38, 1e-20], "f4")
    values = np.concatenate([finite, between, *near, tiny]).astype("float32")
    values = np.concatenate([values, -values])
    expected = values.astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(
        through(backend, values, dtype).view(np.uint8), expected.view(np.uint8)
    )
    largest = float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    beyond = np.array([largest * 1.01, largest * 1.2, 1e30, np.inf], "float32")
    for sign in (1, -1):
        saturated = float64(through(backend, sign * beyond, dtype))
        np.testing.assert_array_equal(saturated, np.full(4, sign * largest))
    assert np.isnan(float64(through(backend, np.array([np.nan], "f4"), dtype))).all()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_rounding_of_random_bits(backend, rng, dtype):
    values = rng.integers(0, 2**32, 20000, dtype=np.uint32).view("float32")
    largest = float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    with np.errstate(invalid="ignore"):
        expected = np.clip(values, -largest, largest).astype(numpy_dtype(dtype))
    result = through(backend, values, dtype)
    np.testing.assert_array_equal(float64(result), float64(expected))


# ---- float8 --------------------------------------------------------------------------------


@pytest.mark.parametrize(("of_a", "of_b"), PAIRS)
@pytest.mark.parametrize("out_dtype", OUTPUTS)
def test_formats_in_any_mixture(backend, rng, of_a, of_b, out_dtype):
    a, weight = float8(rng, (70, 130), of_a), float8(rng, (90, 130), of_b)
    y = backend.empty((70, 90), out_dtype)
    dlkern.scaled_matmul(backend.array(a), backend.array(weight.T.copy()), out=y)
    expected, scale = product(a, weight.T)
    assert_close(backend.numpy(y), expected, out_dtype, "matmul", scale=scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind_b", KINDS)
@pytest.mark.parametrize("kind_a", KINDS)
def test_factors_of_every_kind(backend, rng, kind_a, kind_b):
    for m, n, k in ((130, 140, 300), (5, 129, 128), (257, 3, 129)):
        a, b = float8(rng, (m, k)), float8(rng, (k, n), "float8_e5m2")
        of_a, of_b = scales_of(kind_a, rng, m, k, 1), scales_of(kind_b, rng, n, k, 0)
        y = dlkern.scaled_matmul(
            *map(backend.array, (a, b, of_a, of_b)), out_dtype="float32"
        )  # fmt: skip
        expected, scale = product(a, b, of_a, of_b)
        assert_close(backend.numpy(y), expected, "float32", MATMUL[backend.is_gpu], scale=scale)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_operands_factors_and_results(backend, rng, layout):
    a, b = float8(rng, (34, 200)), float8(rng, (200, 41))
    of_a, of_b = scales_of("piece", rng, 34, 200, 1), scales_of("block", rng, 41, 200, 0)
    expected, scale = product(a, b, of_a, of_b)
    y = backend.empty((34, 41), "float32", layout)
    dlkern.scaled_matmul(*(backend.array(v, layout) for v in (a, b, of_a, of_b)), out=y)
    assert_close(backend.numpy(y), expected, "float32", MATMUL[backend.is_gpu], scale=scale)


@pytest.mark.parametrize("seed", range(3))
def test_random_shapes(backend, seed):
    choose, rng = random.Random(seed), np.random.default_rng(seed)
    for _ in range(20):
        m, n, k = (choose.choice(EXTENTS) for _ in range(3))
        kinds = [choose.choice(KINDS) for _ in range(2)]
        layouts = [choose.choice(("contiguous", "transposed", "unaligned")) for _ in range(3)]
        a, b = (float8(rng, s, choose.choice(FLOAT8)) for s in ((m, k), (k, n)))
        of_a, of_b = scales_of(kinds[0], rng, m, k, 1), scales_of(kinds[1], rng, n, k, 0)
        y = backend.empty((m, n), "float32", layouts[2])
        dlkern.scaled_matmul(
            backend.array(a, layouts[0]), backend.array(b, layouts[1]), backend.array(of_a),
            backend.array(of_b), out=y,
        )  # fmt: skip
        expected, scale = product(a, b, of_a, of_b) if k else (np.zeros((m, n)), np.zeros((m, n)))
        assert_close(backend.numpy(y), expected, "float32", MATMUL[backend.is_gpu], scale=scale)


def test_rows_go_before_blocks(backend, rng):
    """A scale of M rows is one of rows: [1, 1] and [1] are the tensor's, whatever M is."""
    a, b = float8(rng, (1, 100)), float8(rng, (100, 1))
    for shape in ((), (1,), (1, 1)):
        scale = np.full(shape, 3, "float32")
        y = dlkern.scaled_matmul(*map(backend.array, (a, b, scale, scale)), out_dtype="float32")
        expected, size = product(a, b)
        assert_close(
            backend.numpy(y), 9 * expected, "float32", MATMUL[backend.is_gpu], scale=9 * size
        )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias_dtype", OUTPUTS)
def test_bias_and_activation(backend, rng, activation, bias_dtype):
    a, b = float8(rng, (2, 33, 60)), float8(rng, (60, 40))
    bias = rounded(rng.standard_normal(40), bias_dtype)
    of_a, of_b = np.float32(0.1), rng.uniform(0.5, 1, 40).astype("float32")
    y = dlkern.scaled_matmul(
        *map(backend.array, (a, b, np.array(of_a), of_b, bias)), activation=activation
    )
    z, scale = product(a.reshape(66, 60), b, of_a, of_b)
    expected = ACTIVATIONS[activation](z + float64(bias)).reshape(2, 33, 40)
    scale = (scale + np.abs(float64(bias)) + 1).reshape(2, 33, 40)
    assert_close(backend.numpy(y), expected, "bfloat16", "linear", scale=scale)


def test_batches(backend, rng):
    a, b = float8(rng, (3, 9, 200)), float8(rng, (200, 17))
    rows = rng.uniform(0.5, 2, 27).astype("float32")
    y = dlkern.scaled_matmul(*map(backend.array, (a, b, rows)), out_dtype="float32")
    expected, scale = product(a.reshape(27, 200), b, rows)
    assert_close(
        backend.numpy(y).reshape(27, 17), expected, "float32", MATMUL[backend.is_gpu], scale=scale
    )
    many = float8(rng, (3, 200, 17))
    two = np.array(2, "float32")
    y = dlkern.scaled_matmul(*map(backend.array, (a, many, two, two)), out_dtype="float32")
    expected = 4 * float64(a) @ float64(many)
    scale = 4 * np.abs(float64(a)) @ np.abs(float64(many))
    assert_close(backend.numpy(y), expected, "float32", MATMUL[backend.is_gpu], scale=scale)
    with pytest.raises(NotImplementedError, match="scale_a.shape is"):
        dlkern.scaled_matmul(*map(backend.array, (a, many, rows)), out_dtype="float32")


@pytest.mark.parametrize("out_dtype", [*FLOAT8, *OUTPUTS])
def test_scale_out_and_amax(backend, rng, out_dtype):
    a, b = float8(rng, (150, 60)), float8(rng, (60, 140))
    z, scale = product(a, b)
    for factor in (1.0, 0.01, 300.0):
        scale_out = backend.array(np.array(factor, "float32"))
        y, amax = dlkern.scaled_matmul(
            backend.array(a), backend.array(b), scale_out=scale_out, amax=True, out_dtype=out_dtype
        )
        np.testing.assert_allclose(backend.numpy(amax), np.abs(z).max(), rtol=1e-6)
        expected = np.float64(np.float32(factor)) * z
        if out_dtype in FLOAT8:
            largest = float(ml_dtypes.finfo(numpy_dtype(out_dtype)).max)
            expected = np.clip(expected, -largest, largest)
        assert_close(backend.numpy(y), expected, out_dtype, "matmul", scale=factor * scale)


def test_amax_of_nothing_and_of_nan(backend, rng):
    a, b = float8(rng, (5, 8)), float8(rng, (8, 7))
    for shape in ((0, 8), (5, 0)):
        empty = np.zeros(shape, a.dtype)
        other = b if shape[1] else np.zeros((0, 7), b.dtype)
        amax = backend.empty((1,), "float32")
        dlkern.scaled_matmul(backend.array(empty), backend.array(other), out_amax=amax)
        assert backend.numpy(amax) == 0
    a[2, 3] = np.nan
    y, amax = dlkern.scaled_matmul(backend.array(a), backend.array(b), amax=True)
    assert np.isnan(backend.numpy(amax))
    assert np.isnan(backend.numpy(y)[2]).all()


# ---- int8 ----------------------------------------------------------------------------------


def int8(rng, shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(70, 33, 600), (1, 1, 1), (129, 65, 17), (3, 5, 0)])
def test_int8_sums_are_exact(backend, rng, layout, m, n, k):
    a, b = int8(rng, (m, k)), int8(rng, (k, n))
    y = backend.empty((m, n), "int32", layout)
    dlkern.scaled_matmul(backend.array(a, layout), backend.array(b, layout), out=y)
    np.testing.assert_array_equal(backend.numpy(y), a.astype("i4") @ b.astype("i4"))


def test_int8_with_factors_and_bias(backend, rng):
    a, b, bias = int8(rng, (40, 70)), int8(rng, (70, 30)), rng.standard_normal(30).astype("f4")
    for kind_a, kind_b in (("tensor", "row"), ("row", "tensor"), ("row2", "row2")):
        of_a, of_b = scales_of(kind_a, rng, 40, 70, 1), scales_of(kind_b, rng, 30, 70, 0)
        y = dlkern.scaled_matmul(
            *map(backend.array, (a, b, of_a, of_b, bias)), out_dtype="float32"
        )  # fmt: skip
        expected, scale = product(a, b, of_a, of_b)
        assert_close(
            backend.numpy(y), expected + bias, "float32", MATMUL[backend.is_gpu], scale=scale + 10
        )


def test_default_dtypes(backend, rng):
    eight, small = float8(rng, (4, 4)), int8(rng, (4, 4))
    one = backend.array(np.array(1, "float32"))

    def dtype_of(x, **options):
        return backend.raw(
            dlkern.scaled_matmul(backend.array(x), backend.array(x), **options)
        ).dtype

    assert dtype_of(eight) == ml_dtypes.bfloat16
    assert dtype_of(small) == np.int32
    assert dtype_of(small, scale_a=one) == ml_dtypes.bfloat16
    for name in (np.float16, np.dtype("float16"), "float16"):
        assert dtype_of(eight, out_dtype=name) == np.float16


# ---- Bits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tensor", "row", "piece"])
def test_batch_invariant_rows(backend, rng, kind):
    a, b = float8(rng, (70, 300)), float8(rng, (300, 50))
    scale = scales_of(kind, rng, 70, 300, 1)
    options = {"out_dtype": "float32", "batch_invariant": True}
    every = backend.raw(dlkern.scaled_matmul(*map(backend.array, (a, b, scale)), **options))
    for m in (1, 2, 15, 33, 69):
        part = scale if kind == "tensor" else scale[:m]
        few = dlkern.scaled_matmul(*map(backend.array, (a[:m], b, part)), **options)
        np.testing.assert_array_equal(backend.raw(few), every[:m])


# ---- Wrong arguments -----------------------------------------------------------------------


def e(*shape, dtype="float8_e4m3fn"):
    return np.zeros(shape, numpy_dtype(dtype))


def f(*shape):
    return np.ones(shape, "float32")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((e(2, 3), e(4, 5)), {}, ValueError, r"b.shape is \[4, 5\], expected 3 rows"),
        ((e(2, 3, dtype="float32"), e(3, 4)), {}, TypeError, "a.dtype is float32, expected float8"),
        ((e(2, 3), e(3, 4, dtype="int8")), {}, TypeError, "b.dtype is int8"),
        ((e(2, 3, dtype="int8"), e(3, 4)), {}, TypeError,
         "b.dtype is float8_e4m3fn, expected int8"),
        ((e(3), e(3, 4)), {}, ValueError, "a has 1 dimensions"),
        ((e(200, 300), e(300, 4), f(3)), {}, ValueError,
         r"scale_a.shape is \[3\], expected \[\], \[200\], \[200, 1\], \[200, 3\] or \[2, 3\]"),
        ((e(200, 300), e(300, 4), f(2, 2)), {}, ValueError, r"scale_a.shape is \[2, 2\]"),
        ((e(200, 300), e(300, 4), f(2, 1)), {}, ValueError, r"scale_a.shape is \[2, 1\]"),
        ((e(2, 300), e(300, 4), None, f(4, 3)), {}, ValueError,
         r"scale_b.shape is \[4, 3\], expected \[\], \[4\], \[1, 4\], \[3, 4\] or \[3, 1\]"),
        ((e(2, 3), e(3, 4), f(2).astype("float64")), {}, TypeError, "scale_a.dtype is float64"),
        ((e(2, 3, dtype="int8"), e(3, 4, dtype="int8"), f(2, 1, 1)), {}, ValueError,
         "scale_a has 3 dimensions"),
        ((e(2, 300, dtype="int8"), e(300, 4, dtype="int8"), f(2, 3)), {}, NotImplementedError,
         "scale_a has factors along k"),
        ((e(2, 3), e(3, 4), None, None, f(3)), {}, ValueError, r"bias.shape is \[3\]"),
        ((e(2, 3), e(3, 4)), {"out_dtype": "float64"}, TypeError, "y.dtype is float64"),
        ((e(2, 3), e(3, 4)), {"out_dtype": "int32"}, TypeError, "y.dtype is int32"),
        ((e(2, 3), e(3, 4)), {"out_dtype": "float9"}, ValueError, "out_dtype is 'float9'"),
        ((e(2, 3, dtype="int8"), e(3, 4, dtype="int8")), {"out_dtype": "int32", "amax": True},
         TypeError, "y.dtype is int32, expected a floating one"),
        ((e(2, 3), e(3, 4)), {"activation": "swish"}, ValueError, "activation is 'swish'"),
        ((e(2, 3), e(3, 4)), {"scale_out": f(2)}, ValueError, r"scale_out.shape is \[2\]"),
        ((e(2, 3), e(3, 4)), {"out_amax": f(2)}, ValueError, r"out_amax.shape is \[2\]"),
        ((e(2, 3), e(3, 4)), {"amax": f()}, TypeError, "amax is .*, expected True or False"),
        ((e(2, 3), e(3, 4)), {"out": f(2, 3)}, ValueError, r"out.shape is \[2, 3\]"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, arguments, options, error, message):
    arguments = [None if v is None else backend.array(v) for v in arguments]
    options = {k: backend.array(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    with pytest.raises(error, match=message):
        dlkern.scaled_matmul(*arguments, **options)


def test_factors_are_applied_one_after_the_other(backend):
    """Their product may be infinite, or 0, where the result is not."""
    zeros = backend.array(rounded(np.zeros((16, 128)), "float8_e4m3fn"))
    scale = backend.array(np.full((1,), 1e30, "f4"))
    y = dlkern.scaled_matmul(zeros, backend.array(rounded(np.zeros((128, 16)), "float8_e4m3fn")),
                             scale, scale, out_dtype="float32")  # fmt: skip
    np.testing.assert_array_equal(backend.numpy(y), 0)


@pytest.mark.gpu
def test_amax_of_nan(gpu, rng):
    a = float8(rng, (256, 256))
    a[2, 3] = np.nan
    b = gpu.array(float8(rng, (256, 256))).T
    _, amax = dlkern.scaled_matmul(gpu.array(a), b, amax=True)
    assert np.isnan(gpu.numpy(amax))
