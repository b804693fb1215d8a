"""Convolutions of float32 as bfloat16 planes on Hopper."""

from __future__ import annotations

from dataclasses import replace

import conv_oracle
import numpy as np
import pytest
from oracle import assert_close, float64
from test_conv import Case, check

import dlkern
from dlkern import _dlkern

pytestmark = pytest.mark.gpu

PAD = ((1, 1), (1, 1))
CASES = {
    # Tiles that are not full, tiles of several images, every width of tiles.
    "3x3": Case(3, 64, 64, (29, 23), (3, 3), (1, 1), PAD),
    "odd channels": Case(2, 73, 135, (20, 21), (3, 3), (1, 1), PAD),
    "few channels": Case(8, 40, 41, (25, 27), (3, 3), (1, 1), PAD),
    "wide": Case(2, 128, 264, (14, 15), (3, 3), (1, 1), PAD),
    "strided": Case(3, 64, 128, (35, 38), (3, 3), (2, 2), PAD),
    "strided, taps between": Case(8, 64, 64, (37, 36), (2, 5), (3, 2), ((0, 1), (2, 2))),
    "stride without taps": Case(8, 128, 136, (60, 60), (1, 1), (2, 3)),
    "dilated": Case(4, 64, 64, (29, 33), (3, 3), (1, 1), ((3, 3), (2, 2)), (3, 2)),
    "dilated and strided": Case(7, 64, 64, (39, 43), (3, 3), (2, 3), ((2, 3), (3, 2)), (2, 2)),
    "uneven padding": Case(5, 64, 72, (18, 19), (4, 3), (1, 1), ((0, 3), (2, 0))),
    "groups": Case(1, 64, 128, (21, 18), (3, 3), (1, 1), PAD, groups=3),
    "groups of few channels": Case(3, 40, 48, (15, 24), (3, 3), (1, 1), PAD, groups=4),
    "groups, strided": Case(5, 66, 64, (31, 30), (3, 3), (2, 2), PAD, groups=2),
    "1d": Case(3, 64, 64, (1600,), (5,), (1,), ((2, 2),)),
    "3d": Case(2, 64, 64, (7, 8, 9), (3, 2, 3), (1, 1, 1), ((1, 1), (0, 1), (1, 1))),
    "many parts": Case(6, 64, 64, (24, 24), (3, 3), (1, 1), PAD),
}  # fmt: skip


@pytest.fixture(autouse=True)
def hopper(gpu):
    if dlkern.devices()[0]["compute_capability"] != (9, 0):
        pytest.skip("needs compute capability 9.0")
    _dlkern.set_implementations("wgmma_sm90_planes")
    yield
    _dlkern.set_implementations("")


@pytest.mark.sanitize
@pytest.mark.parametrize("name", CASES)
def test_all_directions(gpu, rng, name):
    check(gpu, "float32", rng, CASES[name])


@pytest.mark.parametrize("name", ["3x3", "strided", "groups of few channels", "3d"])
def test_channels_last(gpu, rng, name):
    check(gpu, "float32", rng, replace(CASES[name], layout="NHWC"))


@pytest.mark.parametrize("memory", ["strided", "padded", "transposed", "unaligned"])
@pytest.mark.parametrize("name", ["3x3", "groups, strided"])
def test_memory_layouts(gpu, rng, name, memory):
    check(gpu, "float32", rng, CASES[name], memory)


def three_results(gpu, case, x, w, dy, **options):
    """y, dx and dw, channels first."""
    options = case.arguments | options
    put = lambda a: gpu.array(case.place(a))  # noqa: E731
    y = dlkern.conv(put(x), put(w), **options)
    dx = dlkern.conv_backward_input(put(dy), put(w), case.place(x).shape, **options)
    dw, _ = dlkern.conv_backward_weight(put(dy), put(x), case.place(w).shape, **options)
    return [case.unplace(gpu.numpy(a)) for a in (y, dx, dw)]


def three_right(case, x, w, dy):
    x, w, dy = (float64(a) for a in (x, w, dy))
    return [
        conv_oracle.forward(x, w, **case.oracle),
        conv_oracle.backward_input(dy, w, case.extents, **case.oracle),
        conv_oracle.backward_weight(dy, x, case.taps, **case.oracle),
    ]


@pytest.mark.parametrize("name", CASES)
def test_tf32(gpu, rng, name):
    """By two planes: what is left of an operand, and of a product, is below 2^-17 of it."""
    case = replace(CASES[name], layout="NHWC")
    x, w, _, _, dy = case.arrays(rng, "float32")
    scales = three_right(case, *(np.abs(a) for a in (x, w, dy)))
    results = three_results(gpu, case, x, w, dy, precision="tf32")
    for result, right, scale in zip(results, three_right(case, x, w, dy), scales, strict=True):
        assert_close(result, right, "float32", "conv", scale=scale * 2.0**3)


@pytest.mark.parametrize("name", ["3x3", "wide"])
@pytest.mark.parametrize("kind", ["normal", "positive", "channels", "cancelling"])
def test_as_accurate_as_multiply_adds(gpu, rng, name, kind):
    """In full precision at most twice the error of a chain of multiply-adds."""
    case = CASES[name]
    x, w, _, _, dy = case.arrays(rng, "float32")
    if kind == "positive":
        x, w, dy = np.abs(x), np.abs(w), np.abs(dy)
    elif kind == "channels":  # of very different size
        sizes = (10.0 ** rng.uniform(-6, 6, (1, x.shape[1], 1, 1))).astype("f4")
        x, w = x * sizes, w * sizes
    elif kind == "cancelling":  # big terms whose sum is small
        near = 1 + 1e-4 * rng.standard_normal(w[:, ::2].shape)
        x[:, 1::2], w[:, 1::2] = x[:, ::2], (-w[:, ::2] * near).astype("f4")
    right = three_right(case, x, w, dy)
    planes = three_results(gpu, case, x, w, dy)
    _dlkern.set_implementations("implicit_gemm")
    for result, chain, expected in zip(planes, three_results(gpu, case, x, w, dy), right,
                                       strict=True):  # fmt: skip
        largest = np.abs(expected).max()
        error, allowed = (np.abs(a - expected).max() / largest for a in (result, chain))
        assert error <= 2 * allowed + 2.0**-24, (error, allowed)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4e38, 1e-40])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_what_has_no_planes_is_computed_by_multiply_adds(gpu, rng, value, precision):
    case = CASES["groups of few channels"]
    x, w, _, _, dy = case.arrays(rng, "float32")
    x[1, 5, 3, 2] = w[7, 3, 1, 1] = dy[2, 6, 9, 9] = value
    results = three_results(gpu, case, x, w, dy, precision=precision)
    _dlkern.set_implementations("implicit_gemm")
    for result, expected in zip(results, three_results(gpu, case, x, w, dy), strict=True):
        assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("value", [1.0, 1e-35, np.inf])
def test_accumulation(gpu, rng, value):
    """Where values have no planes, what was tried first has not touched what is added to."""
    case = CASES["3x3"]
    x, _, _, _, dy = case.arrays(rng, "float32")
    dw = rng.standard_normal((64, 64, 3, 3)).astype("f4")
    dy[1, 5, 3, 2] = value
    out = gpu.array(dw)
    dlkern.conv_backward_weight(gpu.array(dy), gpu.array(x), None, out=out, accumulate=True,
                                **case.arguments)  # fmt: skip
    rest = np.arange(64) != 5
    expected, scale = (
        conv_oracle.backward_weight(f(float64(dy)), f(float64(x)), case.taps, **case.oracle)[rest]
        for f in (np.asarray, np.abs)
    )
    assert_close(gpu.numpy(out)[rest], expected + dw[rest], "float32", "conv", scale=scale + 4)
    assert np.isfinite(gpu.numpy(out)[5]).all() == np.isfinite(value)


def test_chosen(gpu, rng):
    """The first choice for float32, whatever the layout."""
    _dlkern.set_implementations("")
    for layout in ("NCHW", "NHWC"):
        case = replace(CASES["3x3"], layout=layout)
        x, w = (gpu.array(case.place(a)) for a in case.arrays(rng, "float32")[:2])
        (plan,) = dlkern.explain(dlkern.conv, x, w, **case.arguments)
        assert plan.implementation == "wgmma_sm90_planes"


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_repetitions(gpu, rng, precision):
    """Bit-identical results of all directions."""
    case = CASES["many parts"]
    x, w, _, _, dy = case.arrays(rng, "float32")
    first = three_results(gpu, case, x, w, dy, precision=precision)
    for _ in range(100):
        for before, now in zip(first, three_results(gpu, case, x, w, dy, precision=precision),
                               strict=True):  # fmt: skip
            assert before.tobytes() == now.tobytes()
