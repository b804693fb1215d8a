"""scaled_conv: float8 and int8 images, factors, results of 8 bits, by exact or float64 sums."""

from __future__ import annotations

import itertools
from dataclasses import replace

import conv_oracle
import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, float64, numpy_dtype, rounded
from test_conv import Case
from test_gemm import ACTIVATIONS

import dlkern

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
PAIRS = (*itertools.product(FLOAT8, FLOAT8), ("int8", "int8"))
OUTPUTS = ("float32", "float16", "bfloat16")


def tolerance(backend, kind, activation=None):
    """On a GPU sums of float8 may keep 14 bits, and activations are within 2^-13."""
    if backend.is_gpu and (kind != "int8" or activation not in (None, "relu")):
        return "matmul_float8"
    return "linear"


PAD = ((1, 1), (1, 1))
CASES = {
    "1d": Case(2, 3, 5, (37,), (3,), (2,), ((1, 2),), (2,)),
    "3x3": Case(3, 21, 18, (13, 11), (3, 3), (1, 1), PAD),
    "strided": Case(2, 4, 3, (12, 17), (3, 2), (2, 3), ((1, 0), (2, 1))),
    "dilated": Case(2, 2, 3, (14, 11), (3, 3), (1, 2), ((2, 2), (0, 3)), (2, 3)),
    "3d": Case(2, 3, 4, (5, 6, 7), (3, 2, 3), (1, 2, 1), ((1, 1), (0, 1), (1, 1))),
    "pointwise": Case(3, 33, 40, (7, 9), (1, 1)),
    "pointwise, strided": Case(2, 20, 17, (9, 8), (1, 1), (2, 2)),
    "groups": Case(2, 5, 7, (9, 10), (3, 3), (1, 1), PAD, groups=3),
    "pointwise groups": Case(2, 16, 24, (6, 5), (1, 1), groups=2),
    "depthwise": Case(2, 1, 1, (9, 13), (3, 3), (1, 1), PAD, groups=19),
    "depthwise, strided": Case(2, 1, 2, (9, 13), (5, 3), (2, 2), ((2, 2), (1, 1)), groups=7),
    # Tensor cores take these where channels are last.
    "whole chunks": Case(2, 128, 128, (10, 9), (3, 3), (1, 1), PAD),
    "odd chunks": Case(3, 48, 72, (13, 11), (3, 3), (2, 1), PAD),
    "many channels": Case(2, 272, 264, (6, 7), (3, 3), (1, 1), PAD),
    "whole groups": Case(2, 128, 256, (9, 10), (3, 3), (1, 1), PAD, groups=2),
    "wide": Case(5, 32, 192, (20, 21), (3, 3), (1, 1), ((1, 0), (0, 1))),
}  # fmt: skip


def draw(rng, shape, dtype):
    if dtype == "int8":
        return rng.integers(-128, 128, shape, dtype=np.int8)
    return rounded(rng.standard_normal(shape), dtype)


def operands(rng, case, of_x="int8", of_w="int8"):
    """X and weight, channels first."""
    g = case.groups
    return (draw(rng, (case.batch, g * case.c, *case.extents), of_x),
            draw(rng, (g * case.k, case.c, *case.taps), of_w))  # fmt: skip


def sums(case, x, w):
    """In float64, which is exact for int8; and the sums of the sizes of what is added."""
    x, w = float64(x), float64(w)
    forward = lambda a, b: conv_oracle.forward(a, b, **case.oracle)  # noqa: E731
    return forward(x, w), forward(np.abs(x), np.abs(w))


def column(values, ndim):
    return float64(values).reshape(-1, *[1] * (ndim - 2))


def run(backend, case, x, w, *rest, memory="contiguous", **options):
    """The result in the case's layout, channels first."""
    put = lambda a: backend.array(case.place(a), memory)  # noqa: E731
    arrays = [None if a is None else backend.array(a) for a in rest]
    y = dlkern.scaled_conv(put(x), put(w), *arrays, **case.arguments, **options)
    return case.unplace(backend.raw(y))


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CASES)
def test_exact_sums(backend, rng, name, layout):
    case = replace(CASES[name], layout=layout)
    x, w = operands(rng, case)
    y = run(backend, case, x, w)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, sums(case, x, w)[0])


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CASES)
def test_float8(backend, rng, name, layout):
    case = replace(CASES[name], layout=layout)
    x, w = operands(rng, case, "float8_e4m3fn", "float8_e4m3fn")
    of_w = rng.uniform(0.5, 2, case.groups * case.k).astype("f4")
    bias = rng.standard_normal(case.groups * case.k).astype("f4")
    y = run(backend, case, x, w, np.float32(0.5), of_w, bias, out_dtype="float32")
    right, scale = sums(case, x, w)
    factor, added = 0.5 * column(of_w, x.ndim), column(bias, x.ndim)
    assert_close(y, right * factor + added, "float32", tolerance(backend, "float8_e4m3fn"),
                 scale=scale * factor + np.abs(added))  # fmt: skip


@pytest.mark.parametrize(("of_x", "of_w"), PAIRS)
@pytest.mark.parametrize("out_dtype", OUTPUTS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_mixtures_factors_and_activation(backend, rng, of_x, of_w, out_dtype, layout):
    for name in ("3x3", "whole chunks", "pointwise"):
        case = replace(CASES[name], layout=layout)
        x, w = operands(rng, case, of_x, of_w)
        of_x_, bias = np.array([0.01], "f4"), rounded(rng.standard_normal(case.k), out_dtype)
        for of_w_ in (np.float32(0.1), rng.uniform(0.05, 0.2, case.k).astype("f4")):
            y = run(backend, case, x, w, of_x_, of_w_, bias, activation="silu", out_dtype=out_dtype)
            right, scale = sums(case, x, w)
            factor, added = 0.01 * column(of_w_, x.ndim), column(bias, x.ndim)
            with np.errstate(over="ignore"):
                expected = ACTIVATIONS["silu"](right * factor + added)
            scale = scale * factor + np.abs(added) + 1
            assert_close(y, expected, out_dtype, tolerance(backend, of_x, "silu"), scale=scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["3x3", "whole chunks", "pointwise", "depthwise", "groups"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_requantised(backend, rng, name, layout):
    """Powers of two as factors: all but the last rounding is exact."""
    case = replace(CASES[name], layout=layout)
    x, w = operands(rng, case)
    of_w = (2.0 ** rng.integers(-12, -8, case.groups * case.k)).astype("f4")
    right, _ = sums(case, x, w)
    z = right * column(of_w, x.ndim)
    put = lambda a: backend.array(case.place(a))  # noqa: E731
    for out_dtype in ("int8", *FLOAT8):
        y, amax = dlkern.scaled_conv(
            put(x), put(w), None, backend.array(of_w), **case.arguments, out_dtype=out_dtype,
            scale_out=backend.array(np.float32(4)), amax=True,
        )  # fmt: skip
        if out_dtype == "int8":
            expected = np.clip(np.rint(4 * z), -128, 127)
        else:
            largest = {"float8_e4m3fn": 448, "float8_e5m2": 57344}[out_dtype]
            expected = np.clip(4 * z, -largest, largest).astype(numpy_dtype(out_dtype))
        np.testing.assert_array_equal(float64(case.unplace(backend.raw(y))), float64(expected))
        assert float(backend.numpy(amax)) == np.abs(z).max()


def test_int8_results_round_to_nearest_even_and_saturate(backend):
    values = np.array([0.5, 1.5, -0.5, -2.5, 126.5, 127.5, 200, -128.5, -129, 1e30, -1e30, np.inf,
                       -np.inf, np.nan, 0.49999997, -127.49999], "f4")  # fmt: skip
    expected = [0, 2, 0, -2, 126, 127, 127, -128, -128, 127, -128, 127, -128, 0, 0, -127]
    # As a bias: sums of nothing but zeros.
    x, w = np.zeros((1, 1, 1, 1), np.int8), np.zeros((len(values), 1, 1, 1), np.int8)
    y = dlkern.scaled_conv(
        backend.array(x), backend.array(w), None, None, backend.array(values), out_dtype="int8"
    )
    np.testing.assert_array_equal(backend.raw(y).ravel(), expected)
    y = dlkern.scaled_matmul(
        backend.array(x[0, 0]), backend.array(np.ascontiguousarray(w[:, 0, 0].T)), None, None,
        backend.array(values), out_dtype="int8",
    )  # fmt: skip
    np.testing.assert_array_equal(backend.raw(y).ravel(), expected)


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_memory_layouts(backend, rng, memory, layout):
    for name, kind in (("3x3", "int8"), ("odd chunks", "int8"), ("wide", "float8_e4m3fn")):
        case = replace(CASES[name], layout=layout)
        x, w = operands(rng, case, kind, kind)
        shape = case.place(np.empty((case.batch, case.k, *case.outputs), bool)).shape
        right, scale = sums(case, x, w)
        for out_dtype in ("float32", "int8" if kind == "int8" else kind):
            out = backend.empty(shape, out_dtype, memory)
            # Not to be rounded: integers, or within the tolerance.
            run(backend, case, x, w, np.float32(1 / 64), memory=memory, out=out)
            y = float64(case.unplace(backend.numpy(out)))
            if out_dtype == "int8":
                np.testing.assert_array_equal(y, np.clip(np.rint(right / 64), -128, 127))
            else:
                assert_close(y, right / 64, out_dtype, tolerance(backend, kind), scale=scale / 64)


def test_long_sums_wrap(backend):
    """Sums of int8 are those modulo 2^32, and right where float32 would have lost bits."""
    c = 140000
    x, w = np.full((1, c, 1), 127, np.int8), np.full((2, c, 1), 127, np.int8)
    w[1, 1:] = -128
    y = dlkern.scaled_conv(backend.array(x), backend.array(w))
    right = np.array([127 * 127 * c, 127 * 127 - 127 * 128 * (c - 1)])
    np.testing.assert_array_equal(backend.raw(y).ravel(), right.astype(np.uint32).view(np.int32))


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn"])
def test_empty(backend, kind):
    zeros = lambda *shape: backend.array(np.zeros(shape, numpy_dtype(kind)))  # noqa: E731
    bias = backend.array(np.array([1.5, -2], "f4"))
    y, amax = dlkern.scaled_conv(zeros(2, 0, 4, 4), zeros(2, 0, 3, 3), None, None, bias, amax=True,
                                 out_dtype="float32")  # fmt: skip
    assert y.shape == (2, 2, 2, 2)
    np.testing.assert_array_equal(backend.numpy(y)[:, :, 0, 0], [[1.5, -2]] * 2)
    assert float(backend.numpy(amax)) == 2
    y, amax = dlkern.scaled_conv(zeros(0, 3, 4, 4), zeros(2, 3, 3, 3), amax=True)
    assert y.shape == (0, 2, 2, 2)
    assert float(backend.numpy(amax)) == 0


def test_groups_and_channels_do_not_meet(backend, rng):
    """NaN of one group is in the results of that group alone."""
    for name in ("groups", "depthwise", "whole groups"):
        for layout in ("NCHW", "NHWC"):
            case = replace(CASES[name], layout=layout)
            x, w = operands(rng, case, *["float8_e5m2"] * 2)
            x[:, : case.c] = np.nan
            y = float64(run(backend, case, x, w, out_dtype="float32"))
            assert np.isnan(y[:, : case.k]).all()
            assert not np.isnan(y[:, case.k :]).any()


def test_bits_do_not_depend_on_the_batch(backend, rng):
    case = replace(CASES["odd chunks"], batch=7, layout="NHWC")
    x, w = operands(rng, case, "float8_e4m3fn", "float8_e5m2")
    whole = run(backend, case, x, w, out_dtype="float32")
    for n in (0, 6):
        one = run(backend, case, x[n : n + 1], w, out_dtype="float32")
        np.testing.assert_array_equal(one[0], whole[n])


def test_errors(backend):
    zeros = lambda shape, dtype: backend.array(np.zeros(shape, numpy_dtype(dtype)))  # noqa: E731
    x, w = zeros((1, 2, 5, 5), "int8"), zeros((3, 2, 3, 3), "int8")
    one = zeros((1,), "float32")
    with pytest.raises(TypeError, match=r"x\.dtype is float32"):
        dlkern.scaled_conv(zeros((1, 2, 5, 5), "float32"), w)
    with pytest.raises(TypeError, match=r"weight\.dtype is float8_e4m3fn, expected int8"):
        dlkern.scaled_conv(x, zeros((3, 2, 3, 3), "float8_e4m3fn"))
    with pytest.raises(TypeError, match=r"y\.dtype is int8"):
        dlkern.scaled_conv(*[zeros(t.shape, "float8_e5m2") for t in (x, w)], out_dtype="int8")
    with pytest.raises(TypeError, match=r"y\.dtype is int32, expected a floating one"):
        dlkern.scaled_conv(x, w, one, out_dtype="int32")
    with pytest.raises(ValueError, match=r"scale_weight\.shape is \[2\], expected \[3\]"):
        dlkern.scaled_conv(x, w, None, zeros((2,), "float32"))
    with pytest.raises(ValueError, match=r"scale_x\.shape is \[2\]"):
        dlkern.scaled_conv(x, w, zeros((2,), "float32"))
    with pytest.raises(TypeError, match=r"bias\.dtype is int8"):
        dlkern.scaled_conv(x, w, None, None, zeros((3,), "int8"))
    with pytest.raises(ValueError, match="^scaled_conv: .*output extent of 0"):
        dlkern.scaled_conv(x, zeros((3, 2, 7, 3), "int8"))
    with pytest.raises(ValueError, match="out_dtype is 'int5'"):
        dlkern.scaled_conv(x, w, out_dtype="int5")
