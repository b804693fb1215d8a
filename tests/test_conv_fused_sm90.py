"""Hopper's kernels for convolutions and what follows them: nothing is left to separate passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_conv import Case
from test_conv_fused import check
from test_conv_sm90 import CASES, PAD, hopper  # noqa: F401  (a fixture)

import dlkern
from dlkern import _dlkern

pytestmark = pytest.mark.gpu

WORK = {
    "factors": {"scale": True, "activation": "gelu"},
    "float32 factors": {"scale": True, "bias": True, "wide": True, "activation": "silu"},
    "residual": {"residual": True},
    "statistics": {"bias": True, "stats": True},
    "all": {"scale": True, "bias": True, "residual": True, "activation": "relu", "wide": True,
            "stats": True},
}  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("name", CASES)
def test_forward(gpu, rng, name, work, dtype):
    case = replace(CASES[name], layout="NHWC")
    check(gpu, dtype, rng, case, **WORK[work])


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("name", ["3x3", "odd chunks", "wide", "dilated", "groups", "3d"])
def test_transposed(gpu, rng, name, work):
    """With a stride of 1 pixels are rows of one product; else factors alone are possible."""
    check(gpu, "bfloat16", rng, replace(CASES[name], layout="NHWC"), transposed=True, **WORK[work])
    if work == "factors":
        check(gpu, "bfloat16", rng, replace(CASES["strided"], layout="NHWC"), transposed=True,
              **WORK[work])  # fmt: skip


@pytest.mark.parametrize("work", ["statistics", "all"])
def test_one_tap(gpu, rng, work):
    """A matrix product elsewhere; tiles of more rows than there are, and a last part of one."""
    for n, c, k, extent in ((1, 64, 64, 3), (2, 64, 256, 14), (3, 256, 64, 5), (5, 128, 512, 13)):
        case = Case(n, c, k, (extent, 13), (1, 1), layout="NHWC")
        check(gpu, "bfloat16", rng, case, **WORK[work])


# Tiles 64, 128 and 256 wide on a device of 132 multiprocessors. No number of pixels is a multiple
# of 16, and none of channels one of 64 but where there are groups.
RESIDUALS = {
    "narrow": Case(3, 64, 72, (7, 9), (3, 3), (1, 1), PAD, layout="NHWC"),
    "middle": Case(7, 64, 200, (30, 29), (3, 3), (1, 1), PAD, layout="NHWC"),
    "wide": Case(17, 256, 200, (31, 31), (3, 3), (1, 1), PAD, layout="NHWC"),
    "groups": Case(3, 64, 128, (9, 11), (3, 3), (1, 1), PAD, groups=3, layout="NHWC"),
}


def residual_at(gpu, values, gap, offset):
    """Pixels `gap` elements apart, from `offset` on; the last one ends the allocation."""
    n, h, w, channels = values.shape
    pitch, pixels = channels + gap, n * h * w
    base = np.full(offset + pixels * pitch, np.nan).astype(values.dtype)
    base[offset:].reshape(pixels, pitch)[:, :channels] = values.reshape(pixels, channels)
    return gpu.strided(base[: base.size - gap], values.shape,
                       [h * w * pitch, w * pitch, pitch, 1], offset)  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", RESIDUALS)
def test_residuals_of_any_rows(gpu, rng, name, dtype):
    """In pieces of 16 bytes or in pairs, the same bits come out, and gaps are not read."""
    case = RESIDUALS[name]
    check(gpu, dtype, rng, case, **WORK["residual"])
    check(gpu, dtype, rng, case, **WORK["all"])
    x, w, b, _, added = (case.place(a) if a.ndim > 1 else a for a in case.arrays(rng, dtype))
    arguments = [gpu.array(a) for a in (x, w, b)]
    for activation in (None, "gelu"):
        first = None
        for gap, offset in ((0, 0), (8, 0), (56, 8), (2, 0), (6, 8), (8, 2), (64, 4)):
            y = dlkern.conv_bias_act(*arguments, residual=residual_at(gpu, added, gap, offset),
                                     activation=activation, **case.arguments)  # fmt: skip
            first = first or gpu.numpy(y).tobytes()
            assert gpu.numpy(y).tobytes() == first, (activation, gap, offset)


@pytest.mark.parametrize("work", WORK)
def test_few_channels(gpu, rng, work):
    _dlkern.set_implementations("wgmma_sm90_windows")
    case = Case(3, 3, 64, (37, 41), (7, 7), (2, 2), ((3, 3), (3, 3)), layout="NHWC")
    check(gpu, "bfloat16", rng, case, **WORK[work])


def test_copied_images(gpu, rng):
    """The result goes through the workspace, which the statistics' parts lie in, too."""
    _dlkern.set_implementations("wgmma_sm90_copied")
    case = Case(5, 61, 67, (33, 31), (3, 3), (1, 1), PAD, layout="NHWC")
    check(gpu, "bfloat16", rng, case, scale=True, bias=True, activation="relu", stats=True)


def test_tf32(gpu, rng):
    """Statistics of float32 results, beside the same products without them."""
    case = Case(4, 64, 72, (13, 11), (3, 3), (1, 1), PAD, layout="NHWC")
    x, w, b, *_ = (case.place(a) if a.ndim > 1 else a for a in case.arrays(rng, "float32"))
    options = {"precision": "tf32", **case.arguments}
    plain = gpu.numpy(dlkern.conv(gpu.array(x), gpu.array(w), gpu.array(b), **options))
    scale = rng.uniform(0.5, 2, 72).astype("float32")
    y, mean, var = map(gpu.numpy, dlkern.conv_bias_act(
        gpu.array(x), gpu.array(w), gpu.array(b), scale=gpu.array(scale), activation="relu",
        return_stats=True, **options))  # fmt: skip
    expected = np.maximum((plain - b) * scale + b, 0)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(mean, y.mean((0, 1, 2)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, y.var((0, 1, 2)), rtol=1e-5)


def test_statistics_are_the_same_bits_every_time(gpu, rng):
    case = Case(8, 64, 256, (28, 28), (3, 3), (1, 1), PAD, layout="NHWC")
    x, w, *_ = (gpu.array(case.place(a)) for a in case.arrays(rng, "bfloat16")[:2])
    first = None
    for _ in range(20):
        result = [gpu.numpy(a).tobytes() for a in dlkern.conv_bias_act(
            x, w, return_stats=True, **case.arguments)]  # fmt: skip
        first = first or result
        assert result == first
