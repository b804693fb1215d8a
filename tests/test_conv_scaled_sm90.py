"""Hopper's kernels for convolutions of 8-bit images, for problems that only they may take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from oracle import assert_close, float64
from test_conv import Case
from test_conv_scaled import PAD, PAIRS, column, operands, sums, tolerance
from test_gemm import ACTIVATIONS

import dlkern
from dlkern import _dlkern

pytestmark = pytest.mark.gpu

CASES = {
    # Every width of tiles, tiles that are not full, tiles of several images, parts of 128 channels.
    "narrow": Case(3, 64, 64, (13, 11), (3, 3), (1, 1), PAD),
    "middle": Case(2, 128, 128, (10, 9), (3, 3), (1, 1), PAD),
    "wide": Case(5, 144, 320, (20, 21), (3, 3), (1, 1), PAD),
    "many tiles": Case(12, 16, 256, (28, 28), (3, 3), (1, 1), PAD),
    "few channels": Case(2, 16, 16, (9, 13), (3, 3), (1, 1), PAD),
    "strided": Case(4, 64, 128, (15, 18), (3, 3), (2, 2), PAD),
    "dilated": Case(2, 64, 64, (19, 23), (3, 3), (1, 1), ((3, 3), (2, 2)), (3, 2)),
    "uneven padding": Case(2, 16, 32, (8, 9), (4, 3), (1, 1), ((0, 3), (2, 0))),
    "groups": Case(2, 128, 256, (9, 10), (3, 3), (1, 1), PAD, groups=3),
    "stride without taps": Case(3, 64, 80, (14, 15), (1, 1), (2, 3)),
    "1d": Case(3, 64, 64, (200,), (5,), (2,), ((4, 0),)),
    "3d": Case(2, 32, 64, (5, 6, 7), (3, 2, 3), (1, 1, 1), ((1, 1), (0, 1), (1, 1))),
}  # fmt: skip
CASES = {name: replace(case, layout="NHWC") for name, case in CASES.items()}


@pytest.fixture(autouse=True)
def hopper(gpu):
    if dlkern.devices()[0]["compute_capability"] != (9, 0):
        pytest.skip("needs compute capability 9.0")
    _dlkern.set_implementations("wgmma_sm90")
    yield
    _dlkern.set_implementations("")


def arrays_of(gpu, rng, case, kinds):
    x, w = operands(rng, case, *kinds)
    return x, w, gpu.array(case.place(x)), gpu.array(case.place(w))


@pytest.mark.sanitize
@pytest.mark.parametrize("name", CASES)
def test_exact_sums(gpu, rng, name):
    case = CASES[name]
    x, w, *placed = arrays_of(gpu, rng, case, ("int8", "int8"))
    y = gpu.raw(dlkern.scaled_conv(*placed, **case.arguments))
    np.testing.assert_array_equal(case.unplace(y), sums(case, x, w)[0])


@pytest.mark.sanitize
@pytest.mark.parametrize("of_scale", ["none", "tensor", "channels"])
@pytest.mark.parametrize("kinds", [("int8", "int8"), ("float8_e4m3fn",) * 2])
@pytest.mark.parametrize("name", CASES)
def test_results_in_slabs(gpu, rng, name, kinds, of_scale):
    """16 and 32 bits, with what is done in registers."""
    case = CASES[name]
    x, w, *placed = arrays_of(gpu, rng, case, kinds)
    right, scale = sums(case, x, w)
    filters = case.groups * case.k
    of_x = np.float32(1 / 128)
    of_w = rng.uniform(0.5, 2, filters if of_scale == "channels" else ()).astype("f4")
    bias = rng.standard_normal(filters).astype("f4")
    factor = 1.0
    scales = [None, None]
    if of_scale != "none":
        scales, factor = [gpu.array(of_x), gpu.array(of_w)], of_x * column(of_w, x.ndim)
    kinds_of_result = [
        ("bfloat16", None, None),
        ("bfloat16", bias, "relu"),
        ("float32", bias, None),
    ]
    if of_scale != "none":  # else beyond its range
        kinds_of_result.append(("float16", bias, "gelu"))
    for out_dtype, added, activation in kinds_of_result:
        of_channels = None if added is None else gpu.array(added)
        y = dlkern.scaled_conv(
            *placed, *scales, of_channels, **case.arguments, activation=activation,
            out_dtype=out_dtype,
        )  # fmt: skip
        z = right * factor + (0 if added is None else column(added, x.ndim))
        if activation:
            z = ACTIVATIONS[activation](z)
        assert_close(case.unplace(gpu.numpy(y)), z, out_dtype,
                     tolerance(gpu, kinds[0], activation), scale=scale * factor + 4)  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("activation", [None, "relu", "leaky_relu"])
@pytest.mark.parametrize("kinds", PAIRS)
@pytest.mark.parametrize("name", ["narrow", "middle", "odd filters", "groups", "many tiles", "3d"])
def test_quantised_results(gpu, rng, name, kinds, activation):
    """Amax and 8 bits: in slabs, or of any number of channels and after any activation in runs."""
    case = replace(CASES["middle"], k=77) if name == "odd filters" else CASES[name]
    x, w, *placed = arrays_of(gpu, rng, case, kinds)
    right, scale = sums(case, x, w)
    bias = rng.integers(-64, 64, case.groups * case.k).astype("f4")  # stays exact
    z = ACTIVATIONS[activation](right * 2.0**-7 + column(bias, x.ndim))
    for out_dtype in ("float32", "int8" if kinds[0] == "int8" else "float8_e4m3fn"):
        y, amax = dlkern.scaled_conv(
            *placed, gpu.array(np.float32(2**-7)), None, gpu.array(bias), **case.arguments,
            amax=True, scale_out=gpu.array(np.float32(0.5)), out_dtype=out_dtype,
            activation=activation,
        )  # fmt: skip
        y = float64(case.unplace(gpu.numpy(y)))
        np.testing.assert_allclose(gpu.numpy(amax), np.abs(z).max(), rtol=1e-3)
        if out_dtype == "int8" and activation != "leaky_relu":
            np.testing.assert_array_equal(y, np.clip(np.rint(z / 2), -128, 127))
        elif out_dtype == "int8":
            np.testing.assert_allclose(y, np.clip(np.rint(z / 2), -128, 127), atol=1)
        else:
            largest = np.inf if out_dtype == "float32" else 448
            expected = np.clip(z / 2, -largest, largest)
            assert_close(y, expected, out_dtype, tolerance(gpu, kinds[0], activation),
                         scale=scale * 2.0**-8 + 64)  # fmt: skip


@pytest.mark.parametrize("kinds", [("int8", "int8"), ("float8_e4m3fn",) * 2])
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_copied_images(gpu, rng, layout, kinds, out_dtype):
    _dlkern.set_implementations("wgmma_sm90_copied")
    case = Case(5, 61, 67, (33, 31), (3, 3), (1, 1), PAD, layout=layout)
    x, w, *placed = arrays_of(gpu, rng, case, kinds)
    right, scale = sums(case, x, w)
    y = dlkern.scaled_conv(*placed, gpu.array(np.float32(1 / 128)), **case.arguments,
                           out_dtype=out_dtype)  # fmt: skip
    largest = 448 if out_dtype == "float8_e4m3fn" else np.inf
    assert_close(case.unplace(gpu.numpy(y)), np.clip(right / 128, -largest, largest), out_dtype,
                 tolerance(gpu, kinds[0]), scale=scale / 128)  # fmt: skip


@pytest.mark.parametrize("out_dtype", ["int32", "int8", "bfloat16"])
def test_pixels_with_room_between(gpu, rng, out_dtype):
    """Channels of a longer tensor, and rows with gaps, on both sides."""
    torch = pytest.importorskip("torch")
    case = CASES["narrow"]
    _, _, x, w = arrays_of(gpu, rng, case, ("int8", "int8"))
    x, w = torch.from_dlpack(x), torch.from_dlpack(w)
    n, h, width, c = x.shape
    wide = torch.full((n, h + 1, width + 2, c + 32), 99, dtype=torch.int8, device="cuda")
    view = wide[:, :h, :width, 16 : 16 + c]
    view.copy_(x)
    usual = dlkern.scaled_conv(x, w, **case.arguments, out_dtype=out_dtype)
    n, h, width, k = usual.shape
    around = torch.full((n, h + 1, width + 2, k + 32), -7, dtype=usual.dtype, device="cuda")
    out = around[:, :h, :width, 16 : 16 + k]
    dlkern.scaled_conv(view, w, **case.arguments, out=out)
    assert torch.equal(out, usual)
    out.fill_(-7)
    assert (around == -7).all()


def test_repetitions(gpu, rng):
    for kinds in (("int8", "int8"), ("float8_e4m3fn",) * 2):
        case = CASES["many tiles"]
        *_, x, w = arrays_of(gpu, rng, case, kinds)
        first = gpu.raw(dlkern.scaled_conv(x, w, **case.arguments, out_dtype="float32"))
        for _ in range(50):
            again = gpu.raw(dlkern.scaled_conv(x, w, **case.arguments, out_dtype="float32"))
            assert first.tobytes() == again.tobytes()
