"""Kernels for depthwise convolution, for problems that they must take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from oracle import rounded
from test_conv import Case, check

import dlkern
from dlkern import _dlkern

pytestmark = pytest.mark.gpu

PAD = ((1, 1), (1, 1))
CASES = {
    # Tiles that are not full, more than one tile along each dimension.
    "3x3": Case(3, 1, 1, (13, 37), (3, 3), (1, 1), PAD, groups=72),
    "3x3, strided": Case(2, 1, 1, (29, 34), (3, 3), (2, 2), PAD, groups=64),
    "5x5": Case(2, 1, 1, (17, 41), (5, 5), (1, 1), ((2, 2), (2, 2)), groups=80),
    "5x5, strided": Case(2, 1, 1, (23, 40), (5, 5), (2, 2), ((1, 2), (2, 1)), groups=8),
    "rows of groups": Case(2, 1, 1, (13, 32), (3, 3), (1, 1), PAD, groups=6),
    "rows of groups, 5x5": Case(2, 1, 1, (9, 20), (5, 5), (1, 1), ((2, 2), (2, 2)), groups=5),
    "rows of groups, 7x7": Case(2, 1, 1, (11, 8), (7, 7), (1, 1), ((3, 3), (3, 3)), groups=16),
    "7x7": Case(2, 1, 1, (14, 15), (7, 7), (1, 1), ((3, 3), (3, 3)), groups=96),
    "small images": Case(5, 1, 1, (3, 2), (7, 7), (1, 1), ((3, 3), (3, 3)), groups=16),
    "dilated": Case(2, 1, 1, (31, 33), (3, 3), (1, 1), ((6, 6), (5, 7)), (6, 6), groups=24),
    "dilated and strided": Case(2, 1, 1, (31, 33), (3, 3), (2, 2), ((4, 4), (3, 5)), (4, 3),
                                groups=16),
    "tall and wide taps": Case(2, 1, 1, (20, 21), (1, 5), (1, 1), ((0, 0), (2, 2)), groups=16),
    "other taps": Case(2, 1, 1, (19, 22), (2, 6), (3, 1), ((0, 3), (5, 0)), groups=16),
    "many taps": Case(1, 1, 1, (18, 17), (11, 11), (1, 1), ((5, 5), (5, 5)), groups=16),
    "odd channels": Case(2, 1, 1, (9, 11), (3, 3), (1, 1), PAD, groups=13),
    "multiplier": Case(2, 1, 3, (9, 11), (3, 3), (1, 1), PAD, groups=40),
    "multiplier, strided": Case(2, 1, 2, (9, 11), (3, 3), (2, 2), PAD, groups=70),
    "causal": Case(3, 1, 1, (300,), (4,), (1,), ((3, 0),), groups=136),
    "1d": Case(2, 1, 1, (150,), (7,), (3,), ((2, 4),), (2,), groups=16),
    "3d": Case(2, 1, 1, (5, 6, 7), (3, 3, 3), (1, 1, 1), ((1, 1), (1, 1), (1, 1)), groups=16),
    "3d, strided": Case(2, 1, 1, (7, 8, 9), (3, 2, 3), (2, 1, 2), ((1, 1), (0, 1), (1, 0)),
                        (1, 2, 1), groups=24),
}  # fmt: skip


@pytest.fixture(autouse=True)
def depthwise(gpu):
    _dlkern.set_implementations("depthwise,depthwise_planes")
    yield
    _dlkern.set_implementations("")


def taken(op, *arguments, **options):
    (plan,) = dlkern.explain(op, *arguments, **options)
    return plan.implementation


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CASES)
def test_all_directions(gpu, dtype, rng, name, layout):
    case = replace(CASES[name], layout=layout)
    x, w, _, _, dy = (
        a if a.ndim == 1 else gpu.array(case.place(a)) for a in case.arrays(rng, dtype)
    )
    kernels = "depthwise" if layout == "NHWC" else "depthwise_planes"
    assert taken(dlkern.conv, x, w, **case.arguments) == kernels
    assert taken(dlkern.conv_backward_input, dy, w, x.shape, **case.arguments) == kernels
    assert taken(dlkern.conv_backward_weight, dy, x, w.shape, **case.arguments) == kernels
    check(gpu, dtype, rng, case)


@pytest.mark.parametrize("memory", ["contiguous", "unaligned"])
def test_images_one_by_one(gpu, rng, memory):
    """Bits of an image do not depend on the others, nor on where it lies."""
    case = replace(CASES["5x5"], layout="NHWC")
    x, w = (case.place(a) for a in case.arrays(rng, "bfloat16")[:2])
    y = gpu.numpy(dlkern.conv(gpu.array(x, memory), gpu.array(w), **case.arguments))
    for i in range(case.batch):
        one = dlkern.conv(gpu.array(x[i : i + 1]), gpu.array(w), **case.arguments)
        assert y[i : i + 1].tobytes() == gpu.numpy(one).tobytes()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_repetitions(gpu, rng, layout):
    """Bit-identical results of all directions."""
    case = replace(CASES["3x3"], batch=40, layout=layout)
    x, w, b, _, dy = (gpu.array(case.place(a) if a.ndim > 1 else a)
                      for a in case.arrays(rng, "bfloat16"))  # fmt: skip

    def run():
        return (
            dlkern.conv(x, w, b, **case.arguments),
            dlkern.conv_backward_input(dy, w, x.shape, **case.arguments),
            *dlkern.conv_backward_weight(dy, x, w.shape, bias=True, **case.arguments),
        )

    first = [gpu.numpy(a) for a in run()]
    for _ in range(100):
        for before, now in zip(first, run(), strict=True):
            assert before.tobytes() == gpu.numpy(now).tobytes()


def test_accumulate(gpu, rng):
    case = replace(CASES["5x5"], layout="NHWC")
    x, w, b, _, dy = (a if a.ndim == 1 else case.place(a) for a in case.arrays(rng, "float32"))
    dw, db = dlkern.conv_backward_weight(gpu.array(dy), gpu.array(x), w.shape, bias=True,
                                         **case.arguments)  # fmt: skip
    dw, db = gpu.numpy(dw), gpu.numpy(db)
    out, out_bias = gpu.array(w), gpu.array(b)
    dlkern.conv_backward_weight(gpu.array(dy), gpu.array(x), w.shape, bias=True, accumulate=True,
                                out=out, out_bias=out_bias, **case.arguments)  # fmt: skip
    np.testing.assert_array_equal(gpu.numpy(out), rounded(w + dw, "float32"))
    np.testing.assert_array_equal(gpu.numpy(out_bias), rounded(b + db, "float32"))
