"""Hopper's kernels for convolution, for problems that only they may take."""

from __future__ import annotations

import itertools

import conv_oracle
import numpy as np
import pytest
from oracle import assert_close, float64, rounded
from test_conv import Case, check

import dlkern
from dlkern import _dlkern

pytestmark = pytest.mark.gpu

PAD = ((1, 1), (1, 1))
CASES = {
    # Tiles that are not full, tiles of several images, every width of tiles.
    "3x3": Case(3, 64, 64, (13, 11), (3, 3), (1, 1), PAD),
    "few channels": Case(2, 8, 16, (9, 13), (3, 3), (1, 1), PAD),
    "odd chunks": Case(2, 72, 136, (10, 9), (3, 3), (1, 1), PAD),
    "wide": Case(5, 128, 264, (20, 21), (3, 3), (1, 1), PAD),
    "strided": Case(4, 64, 128, (15, 18), (3, 3), (2, 2), PAD),
    "strided, taps between": Case(2, 64, 64, (17, 16), (2, 5), (3, 2), ((0, 1), (2, 2))),
    "stride without taps": Case(3, 64, 72, (14, 15), (1, 1), (2, 3)),
    "dilated": Case(2, 64, 64, (19, 23), (3, 3), (1, 1), ((3, 3), (2, 2)), (3, 2)),
    "dilated and strided": Case(2, 64, 64, (19, 23), (3, 3), (2, 3), ((2, 3), (3, 2)), (2, 2)),
    "uneven padding": Case(2, 16, 24, (8, 9), (4, 3), (1, 1), ((0, 3), (2, 0))),
    "wide padding": Case(2, 16, 16, (5, 6), (2, 2), (1, 1), ((4, 5), (3, 2))),
    "7x7": Case(2, 16, 64, (30, 31), (7, 7), (2, 2), ((3, 3), (3, 3))),
    "groups": Case(2, 64, 128, (9, 10), (3, 3), (1, 1), PAD, groups=3),
    "groups, strided": Case(2, 128, 64, (9, 10), (3, 3), (2, 2), PAD, groups=2),
    "1d": Case(3, 64, 64, (200,), (5,), (2,), ((2, 1),)),
    "3d": Case(2, 64, 64, (5, 6, 7), (3, 2, 3), (1, 1, 1), ((1, 1), (0, 1), (1, 1))),
    "3d, strided": Case(2, 16, 64, (5, 6, 7), (3, 3, 3), (2, 1, 2), ((1, 1),) * 3),
    "many parts": Case(30, 64, 64, (24, 24), (3, 3), (1, 1), PAD),
}  # fmt: skip


@pytest.fixture(autouse=True)
def hopper(gpu):
    if dlkern.devices()[0]["compute_capability"] != (9, 0):
        pytest.skip("needs compute capability 9.0")
    _dlkern.set_implementations("wgmma_sm90")
    yield
    _dlkern.set_implementations("")


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_all_directions(gpu, rng, name, dtype):
    case = Case(**{**CASES[name].__dict__, "layout": "NHWC"})
    check(gpu, dtype, rng, case)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_copied_images(gpu, rng, layout, dtype):
    """Images that lie otherwise go to the workspace first."""
    _dlkern.set_implementations("wgmma_sm90_copied")
    check(gpu, dtype, rng, Case(5, 61, 67, (33, 31), (3, 3), (1, 1), PAD, layout=layout))
    _dlkern.set_implementations("wgmma_sm90_copied")
    case = Case(4, 64, 64, (30, 34), (3, 3), (1, 1), PAD, layout="NCHW")
    check(gpu, dtype, rng, case, "contiguous" if layout == "NCHW" else "strided")


# Channels first: results whose pixels leave 8, 4, 2 or 1 at a time, with every width of tiles.
# Large enough to be worth copies of what is read.
PLANES = {
    "8 pixels": Case(8, 64, 72, (12, 10), (3, 3), (1, 1), PAD),
    "4 pixels": Case(5, 64, 136, (14, 14), (3, 3), (1, 1), PAD),
    "2 pixels": Case(8, 64, 67, (9, 14), (3, 3), (1, 1), PAD),
    "1 pixel": Case(20, 72, 64, (7, 7), (3, 3), (1, 1), PAD),
    "wide": Case(9, 128, 264, (28, 28), (3, 3), (1, 1), PAD),
    "large": Case(3, 61, 96, (40, 56), (3, 3), (1, 1), PAD),
    "strided": Case(6, 64, 128, (15, 28), (3, 3), (2, 2), PAD),
    "groups": Case(3, 64, 128, (12, 10), (3, 3), (1, 1), PAD, groups=3),
    "5x5": Case(4, 64, 64, (14, 14), (5, 5), (1, 1), ((2, 2), (2, 2))),
    "1d": Case(9, 64, 64, (400,), (5,), (2,), ((2, 1),)),
    "3d": Case(2, 64, 64, (8, 6, 10), (3, 2, 3), (1, 1, 1), ((1, 1), (0, 1), (1, 1))),
}  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", PLANES)
def test_channels_first(gpu, rng, name, dtype):
    _dlkern.set_implementations("wgmma_sm90_copied")
    check(gpu, dtype, rng, PLANES[name])


def test_only_operands_are_copied(gpu, rng):
    """A result that is channels first leaves as it is; an image and weights are transposed."""
    _dlkern.set_implementations("wgmma_sm90_copied")
    case = PLANES["8 pixels"]
    x, w, *_ = case.arrays(rng, "bfloat16")
    (plan,) = dlkern.explain(dlkern.conv, gpu.array(x), gpu.array(w), **case.arguments)
    room = lambda a: -(-a.size * 2 // 256) * 256  # noqa: E731
    assert plan.workspace_bytes == room(x) + room(w)


@pytest.mark.parametrize("name", ["8 pixels", "4 pixels", "1 pixel"])
def test_channels_first_of_channels_last(gpu, rng, name):
    """Nothing is copied where the result alone has its channels first."""
    torch = pytest.importorskip("torch")
    case = PLANES[name]
    x, w, b, *_ = (torch.from_dlpack(gpu.array(a)) for a in case.arrays(rng, "bfloat16"))
    last = torch.channels_last
    x, w = x.to(memory_format=last), w.to(memory_format=last)
    shape = (case.batch, case.k, *case.outputs)
    empty = lambda order: torch.empty(  # noqa: E731
        shape, dtype=torch.bfloat16, device="cuda", memory_format=order
    )
    _dlkern.set_implementations("wgmma_sm90")
    options = case.arguments
    first = dlkern.conv(x, w, b, **options, out=empty(torch.contiguous_format))
    assert torch.equal(first, dlkern.conv(x, w, b, **options, out=empty(last)))


FEW_CHANNELS = {
    "7x7": Case(3, 3, 64, (30, 37), (7, 7), (2, 2), ((3, 3), (3, 3))),
    "patches": Case(2, 3, 96, (24, 32), (4, 4), (4, 4)),
    "3x3": Case(2, 3, 32, (17, 19), (3, 3), (1, 1), PAD),
    "gray": Case(2, 1, 16, (28, 28), (5, 5), (1, 1), ((2, 2), (2, 2))),
    "stride 3": Case(2, 5, 24, (20, 23), (5, 7), (2, 3), ((0, 1), (4, 2))),
    "stride 8": Case(2, 1, 8, (9, 70), (3, 16), (1, 8), ((1, 1), (5, 5))),
    "1d": Case(2, 2, 8, (100,), (9,), (2,), ((4, 4),)),
    "3d": Case(2, 3, 16, (5, 8, 9), (3, 3, 3), (1, 2, 2), ((1, 1),) * 3),
    "many taps": Case(1, 4, 8, (9, 60), (2, 33), (1, 2), ((0, 0), (16, 16))),
}  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", FEW_CHANNELS)
def test_few_channels(gpu, rng, name, layout, dtype):
    """By windows of neighbouring pixels; input gradients are another kernel's."""
    _dlkern.set_implementations("wgmma_sm90_windows,wgmma_sm90,mma_sm80_few_channels,implicit_gemm")
    if layout == "NHWC":  # y in 16 bytes, so that nothing else takes it
        case = Case(**{**FEW_CHANNELS[name].__dict__, "layout": layout})
        x, w = (gpu.array(case.place(a)) for a in case.arrays(rng, dtype)[:2])
        (plan,) = dlkern.explain(dlkern.conv, x, w, **case.arguments)
        assert plan.implementation == "wgmma_sm90_windows"
    check(gpu, dtype, rng, Case(**{**FEW_CHANNELS[name].__dict__, "layout": layout}))


FEW_RESULTS = {
    "7x7": Case(3, 3, 64, (34, 69), (7, 7), (2, 2), ((3, 3), (3, 3))),
    "3x3": Case(2, 3, 40, (17, 33), (3, 3), (1, 1), PAD),
    "patches": Case(2, 8, 72, (20, 34), (2, 2), (2, 2)),
    "many channels summed": Case(2, 1, 200, (35, 36), (3, 3), (2, 2), PAD),
    "stride along w": Case(2, 5, 64, (18, 37), (5, 4), (1, 2), ((2, 2), (1, 2))),
    "stride without taps": Case(3, 4, 64, (19, 21), (1, 1), (2, 2)),
    "taps beyond the image": Case(2, 3, 16, (3, 4), (7, 7), (2, 1), ((3, 4), (5, 3))),
}  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FEW_RESULTS)
def test_gradients_of_few_channels(gpu, rng, name, dtype):
    """Input gradients, the forward pass of the transposed convolution, and where a NaN goes."""
    case = Case(**{**FEW_RESULTS[name].__dict__, "layout": "NHWC"})
    _dlkern.set_implementations("mma_sm80_few_channels,implicit_gemm")
    x, w, _, _, dy = (gpu.array(case.place(a) if a.ndim > 1 else a)
                      for a in case.arrays(rng, dtype))  # fmt: skip
    (plan,) = dlkern.explain(dlkern.conv_backward_input, dy, w, x.shape, **case.arguments)
    assert plan.implementation == "mma_sm80_few_channels"
    check(gpu, dtype, rng, case)
    check_nan_of_gradient(gpu, rng, case)


@pytest.mark.parametrize("name", CASES)
def test_tf32(gpu, rng, name):
    """Images alone: gradients of weights are not summed by these kernels."""
    case = Case(**{**CASES[name].__dict__, "layout": "NHWC"})
    x, w, b, tb, dy = case.arrays(rng, "float32")
    values = [float64(a) for a in (x, w, b, tb, dy)]
    options = case.arguments | {"precision": "tf32"}
    y = dlkern.conv(gpu.array(case.place(x)), gpu.array(case.place(w)), gpu.array(b), **options)
    dx = dlkern.conv_backward_input(
        gpu.array(case.place(dy)), gpu.array(case.place(w)), case.place(x).shape, **options
    )
    column = (-1, *[1] * (x.ndim - 2))

    def right(x, w, b, _, dy):
        forward = conv_oracle.forward(x, w, **case.oracle) + b.reshape(column)
        return forward, conv_oracle.backward_input(dy, w, case.extents, **case.oracle)

    scales = right(*[np.abs(v) for v in values])
    for result, expected, scale in zip((y, dx), right(*values), scales, strict=True):
        # An operand's relative error is at most 2^-11 each, or 2^-10 where bits are cut off.
        assert_close(case.unplace(gpu.numpy(result)), expected, "float32", "conv",
                     scale=scale * 2.0**12)  # fmt: skip


@pytest.mark.parametrize("taps", [1, 2, 3])
def test_small_images(gpu, rng, taps):
    """Extents, paddings and strides around each other, some of which other kernels take."""
    _dlkern.set_implementations("wgmma_sm90,implicit_gemm")
    for extent, before, after, stride in itertools.product((1, 2, 3), (0, 1, 2), (0, 3), (1, 2, 3)):
        if extent + before + after < taps:
            continue
        axes = ((extent, taps, stride, (before, after)), (4, 2, 1, (1, 0)))
        for order in (axes, axes[::-1], (axes[1], axes[1], axes[0])):
            extents, kernel, strides, pads = zip(*order, strict=True)
            case = Case(2, 8, 8, extents, kernel, strides, pads, layout="NHWC")
            check(gpu, "float16", rng, case)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_views(gpu, rng, dtype):
    """Channels of a longer tensor, and pixels with room between them, on both sides."""
    torch = pytest.importorskip("torch")
    case = CASES["3x3"]
    x, w, _, _, dy = case.arrays(rng, dtype)
    place = lambda a: torch.from_dlpack(gpu.array(np.moveaxis(a, 1, -1)))  # noqa: E731

    def among_nan(t):
        n, h, width, c = t.shape
        around = torch.full(
            (n, h + 1, width + 2, c + 24), float("nan"), dtype=t.dtype, device="cuda"
        )
        view = around[:, :h, :width, 8 : 8 + c]
        view.copy_(t)
        return around, view

    options = case.arguments | {"layout": "NHWC"}
    usual = dlkern.conv(place(x), place(w), **options)
    around, out = among_nan(torch.zeros_like(usual))
    dlkern.conv(among_nan(place(x))[1], place(w), **options, out=out)
    assert torch.equal(out, usual)
    out.fill_(float("nan"))
    assert around.isnan().all()
    dx = dlkern.conv_backward_input(among_nan(place(dy))[1], place(w), place(x).shape, **options)
    assert torch.equal(dx, dlkern.conv_backward_input(place(dy), place(w), dx.shape, **options))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_channels_first(gpu, rng, dtype):
    """Weights that lie as NCHW are gathered first."""
    torch = pytest.importorskip("torch")
    case = CASES["strided"]
    x, w, _, _, dy = (torch.from_dlpack(gpu.array(a)) for a in case.arrays(rng, dtype))
    last = torch.channels_last
    options = case.arguments
    x, dy = x.to(memory_format=last), dy.to(memory_format=last)
    y = dlkern.conv(x, w, **options, out=torch.empty_like(dy))
    again = dlkern.conv(x, w.to(memory_format=last), **options, out=torch.empty_like(dy))
    assert torch.equal(y, again)
    dx = torch.empty_like(x)
    dlkern.conv_backward_input(dy, w, x.shape, **options, out=dx)
    again = dlkern.conv_backward_input(dy, w.to(memory_format=last), x.shape, **options,
                                       out=torch.empty_like(dx))  # fmt: skip
    torch.testing.assert_close(dx, again)


def check_nan_of_gradient(gpu, rng, case):
    x, w, _, _, dy = case.arrays(rng, "float16")
    at = (0, -1, *(n // 2 for n in case.outputs))
    dy[at] = np.nan
    dx = dlkern.conv_backward_input(
        gpu.array(case.place(dy)), gpu.array(case.place(w)), case.place(x).shape, **case.arguments
    )
    nan = np.isnan(float64(case.unplace(gpu.numpy(dx))))
    one = np.zeros_like(float64(dy))
    one[at] = 1
    reached = conv_oracle.backward_input(one, np.ones(w.shape), case.extents, **case.oracle) > 0
    assert (nan == reached).all()


@pytest.mark.parametrize("name", ["3x3", "strided", "stride without taps", "many parts"])
def test_infinities_stay_where_they_are(gpu, rng, name):
    """A NaN of an image or a filter reaches those results alone that have it among their terms."""
    check_nan_of_gradient(gpu, rng, Case(**{**CASES[name].__dict__, "layout": "NHWC"}))


def test_repetitions(gpu, rng):
    """Bit-identical results of all directions."""
    case = Case(**{**CASES["many parts"].__dict__, "layout": "NHWC"})
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


def test_plain_rounding(gpu, rng):
    """One product is exact, so rounded once."""
    x = rounded(rng.standard_normal((1, 8, 8, 8)), "bfloat16")
    w = np.zeros((8, 3, 3, 8), x.dtype)
    w[np.arange(8), 1, 1, np.arange(8)] = 1
    y = dlkern.conv(gpu.array(x), gpu.array(w), padding=1, layout="NHWC")
    np.testing.assert_array_equal(float64(gpu.numpy(y)), float64(x))
