"""GPU kernels for convolutions of many small groups, for problems that only they may take."""

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
    # Every width of a warp's results, groups that fill a slice and that do not, odd channels.
    "8 of 8": Case(3, 8, 8, (13, 19), (3, 3), (1, 1), PAD, groups=12),
    "4 of 4": Case(2, 4, 4, (9, 11), (3, 3), (1, 1), PAD, groups=16),
    "2 to 6": Case(2, 2, 6, (9, 11), (3, 3), (1, 1), PAD, groups=5),
    "3 to 5": Case(2, 3, 5, (8, 9), (2, 3), (1, 1), ((0, 1), (1, 0)), groups=7),
    "16 of 16": Case(2, 16, 16, (10, 12), (3, 3), (1, 1), PAD, groups=6),
    "12 to 20": Case(2, 12, 20, (7, 9), (3, 3), (1, 1), PAD, groups=3),
    "32 of 32": Case(1, 32, 32, (9, 8), (3, 3), (1, 1), PAD, groups=3),
    "24 to 32": Case(1, 24, 32, (6, 7), (2, 2), (1, 1), groups=2),
    # Windows.
    "strided": Case(2, 8, 8, (15, 18), (3, 3), (2, 2), PAD, groups=8),
    "strided, taps between": Case(2, 4, 8, (17, 16), (2, 5), (3, 2), ((0, 1), (2, 2)), groups=4),
    "stride without taps": Case(2, 8, 16, (14, 15), (1, 1), (2, 3), groups=4),
    "dilated": Case(2, 8, 8, (19, 23), (3, 3), (1, 1), ((3, 3), (2, 2)), (3, 2), groups=4),
    "dilated, strided": Case(2, 8, 4, (19, 23), (3, 3), (2, 3), ((2, 3), (3, 2)), (2, 2), groups=4),
    "uneven padding": Case(2, 8, 8, (8, 9), (4, 3), (1, 1), ((0, 3), (2, 0)), groups=4),
    "wide padding": Case(2, 8, 8, (3, 2), (2, 2), (1, 1), ((4, 5), (3, 2)), groups=4),
    "1d": Case(3, 8, 8, (600,), (5,), (2,), ((2, 1),), groups=4),
    "3d": Case(2, 8, 4, (5, 6, 7), (3, 2, 3), (2, 1, 1), ((1, 1), (0, 1), (1, 1)), groups=3),
    "tiles of several images": Case(40, 8, 8, (5, 5), (3, 3), (1, 1), PAD, groups=8),
    "many tiles": Case(6, 8, 8, (56, 57), (3, 3), (1, 1), PAD, groups=8),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_groups(gpu):
    if dlkern.devices()[0]["compute_capability"] < (8, 0):
        pytest.skip("needs compute capability 8.0")
    _dlkern.set_implementations("small_groups")
    yield
    _dlkern.set_implementations("")


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CASES)
def test_all_directions(gpu, rng, name, layout, dtype):
    check(gpu, dtype, rng, replace(CASES[name], layout=layout))


@pytest.mark.parametrize("memory", ["strided", "negative", "unaligned"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["8 of 8", "3 to 5", "strided"])
def test_memory_layouts(gpu, rng, name, layout, dtype, memory):
    """Images and weights that cannot be read or written 16 bytes at a time."""
    check(gpu, dtype, rng, replace(CASES[name], layout=layout), memory)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CASES)
def test_tf32(gpu, rng, name, layout):
    case = replace(CASES[name], layout=layout)
    x, w, _, _, dy = case.arrays(rng, "float32")
    options = case.arguments | {"precision": "tf32"}
    put = lambda a: gpu.array(case.place(a))  # noqa: E731
    results = (
        dlkern.conv(put(x), put(w), **options),
        dlkern.conv_backward_input(put(dy), put(w), case.place(x).shape, **options),
        dlkern.conv_backward_weight(put(dy), put(x), case.place(w).shape, **options)[0],
    )

    def right(x, w, dy):
        return (
            conv_oracle.forward(x, w, **case.oracle),
            conv_oracle.backward_input(dy, w, case.extents, **case.oracle),
            conv_oracle.backward_weight(dy, x, case.taps, **case.oracle),
        )

    values = [float64(a) for a in (x, w, dy)]
    scales = right(*[np.abs(v) for v in values])
    for result, expected, scale in zip(results, right(*values), scales, strict=True):
        # An operand's relative error is at most 2^-11 each.
        assert_close(case.unplace(gpu.numpy(result)), expected, "float32", "conv",
                     scale=scale * 2.0**12)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["8 of 8", "4 of 4", "3 to 5", "strided"])
def test_nan_stays_in_its_group(gpu, rng, name, layout, dtype):
    """Results that do not have it among their terms are as without it."""
    case = replace(CASES[name], layout=layout)
    x, w, _, _, dy = case.arrays(rng, dtype)
    put = lambda a: gpu.array(case.place(a))  # noqa: E731

    def results(x, dy):
        images, gradients, weights = put(x), put(dy), put(w)
        dw, _ = dlkern.conv_backward_weight(gradients, images, weights.shape, **case.arguments)
        return [
            float64(case.unplace(gpu.numpy(a)))
            for a in (
                dlkern.conv(images, weights, **case.arguments),
                dlkern.conv_backward_input(gradients, weights, images.shape, **case.arguments),
                dw,
            )
        ]

    clean = results(x, dy)
    # The last channel of group 1.
    at_x, at_dy = (1, 2 * case.c - 1, 3, 2), (1, 2 * case.k - 1, 3, 2)
    one_x, one_dy = np.zeros(x.shape), np.zeros(dy.shape)
    one_x[at_x] = one_dy[at_dy] = 1
    x[at_x] = dy[at_dy] = np.nan
    dirty = results(x, dy)
    ones = np.ones(w.shape)
    reached = (
        conv_oracle.forward(one_x, ones, **case.oracle) > 0,
        conv_oracle.backward_input(one_dy, ones, case.extents, **case.oracle) > 0,
    )
    for before, now, nan in zip(clean, dirty, reached, strict=False):
        assert (np.isnan(now) == nan).all()
        np.testing.assert_array_equal(now[~nan], before[~nan])
    others = np.arange(case.groups * case.k) // case.k != 1
    np.testing.assert_array_equal(dirty[2][others], clean[2][others])
    assert np.isnan(dirty[2][~others]).any()


def test_results_among_nan(gpu, rng):
    """Channels of longer tensors, and pixels with room between them: nothing else is touched."""
    torch = pytest.importorskip("torch")
    case = replace(CASES["8 of 8"], layout="NHWC")
    x, w, _, _, dy = case.arrays(rng, "bfloat16")
    place = lambda a: torch.from_dlpack(gpu.array(case.place(a)))  # noqa: E731

    def among_nan(t):
        n, h, width, c = t.shape
        around = torch.full(
            (n, h + 1, width + 2, c + 24), float("nan"), dtype=t.dtype, device="cuda"
        )
        view = around[:, :h, :width, 8 : 8 + c]
        view.copy_(t)
        return around, view

    usual = dlkern.conv(place(x), place(w), **case.arguments)
    around, out = among_nan(torch.zeros_like(usual))
    dlkern.conv(among_nan(place(x))[1], place(w), **case.arguments, out=out)
    assert torch.equal(out, usual)
    out.fill_(float("nan"))
    assert around.isnan().all()
    shape = (w.shape[0], 3, 3, 8)
    dw, _ = dlkern.conv_backward_weight(place(dy), place(x), shape, **case.arguments)
    again, _ = dlkern.conv_backward_weight(
        among_nan(place(dy))[1], among_nan(place(x))[1], shape, **case.arguments
    )
    assert torch.equal(dw, again)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_repetitions(gpu, rng, dtype):
    """Bit-identical results of all directions; an image's bits do not depend on the others."""
    case = replace(CASES["many tiles"], layout="NHWC")
    x, w, b, _, dy = (gpu.array(case.place(a) if a.ndim > 1 else a)
                      for a in case.arrays(rng, dtype))  # fmt: skip

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
    alone = dlkern.conv(x[4:5], w, b, **case.arguments)
    assert gpu.numpy(alone).tobytes() == first[0][4:5].tobytes()


def test_who_takes_what(gpu, rng):
    """ResNeXt's layers are these kernels'; dense ones, wide groups and empty tensors are not."""
    _dlkern.set_implementations("")

    def chosen(case):
        x, w, *_ = (gpu.array(case.place(a)) for a in case.arrays(rng, "bfloat16")[:2])
        return dlkern.explain(dlkern.conv, x, w, **case.arguments)[0].implementation

    small = replace(CASES["8 of 8"], layout="NHWC")
    assert chosen(small) == "small_groups"
    assert chosen(replace(small, layout="NCHW")) == "small_groups"
    assert chosen(replace(small, groups=1)) != "small_groups"
    assert chosen(replace(small, c=128, k=128, groups=2)) != "small_groups"
    assert chosen(replace(small, batch=0)) != "small_groups"
