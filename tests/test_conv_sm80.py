"""Convolutions by mma.sync, which on Hopper take what its own kernels decline."""

from __future__ import annotations

from dataclasses import replace

import conv_oracle
import numpy as np
import pytest
from backends import LAYOUTS
from oracle import float64, rounded
from test_conv import Case, check, random_case

import dlkern
from dlkern import _dlkern

pytestmark = pytest.mark.gpu

PAD = ((1, 1), (1, 1))
DTYPES = ("float16", "bfloat16", "tf32", "float64")
CASES = {
    # Copies of 16, 8, 4 bytes and of an element of 16 bits, in channels last.
    "16 bytes": Case(3, 24, 40, (13, 11), (3, 3), (1, 1), PAD),
    "8 bytes": Case(2, 20, 28, (10, 9), (3, 3), (1, 1), PAD),
    "4 bytes": Case(2, 22, 30, (9, 13), (3, 3), (1, 1), PAD),
    "2 bytes": Case(2, 61, 67, (12, 11), (3, 3), (1, 1), PAD),
    "one channel": Case(2, 1, 6, (17, 16), (5, 5), (1, 1), ((2, 2), (2, 2))),
    "first layer": Case(3, 3, 64, (30, 37), (7, 7), (2, 2), ((3, 3), (3, 3))),
    # Tiles of 128 x 128 and 128 x 64 elements, whole and not.
    "large tiles": Case(9, 24, 136, (32, 33), (2, 2), (1, 1), ((1, 0), (0, 1))),
    "large tiles, odd": Case(9, 19, 135, (31, 33), (2, 2)),
    "strided": Case(4, 64, 72, (15, 18), (3, 3), (2, 2), PAD),
    "strided, taps between": Case(2, 16, 24, (17, 16), (2, 5), (3, 2), ((0, 1), (2, 2))),
    "stride without taps": Case(3, 8, 16, (14, 15), (1, 1), (2, 3)),
    "wide stride": Case(2, 8, 8, (43, 9), (3, 3), (17, 3), PAD),
    "dilated": Case(2, 16, 16, (160, 7), (3, 3), (1, 1), ((70, 70), (1, 1)), (70, 1)),
    "dilated and strided": Case(2, 8, 16, (19, 23), (3, 3), (2, 3), ((2, 3), (3, 2)), (2, 2)),
    "uneven padding": Case(2, 16, 24, (8, 9), (4, 3), (1, 1), ((0, 3), (2, 0))),
    "wide padding": Case(1, 8, 8, (5, 3), (2, 2), (3, 1), ((150, 140), (0, 1))),
    "long filter": Case(2, 12, 8, (150,), (67,), (1,), ((33, 33),)),
    "groups": Case(2, 24, 12, (9, 10), (3, 3), (1, 1), PAD, groups=3),
    "groups, odd, strided": Case(2, 13, 7, (9, 10), (3, 3), (2, 2), PAD, groups=5),
    "1d": Case(3, 48, 64, (200,), (5,), (2,), ((2, 1),)),
    "3d": Case(2, 16, 24, (5, 6, 7), (3, 2, 3), (1, 1, 1), ((1, 1), (0, 1), (1, 1))),
    "3d, strided": Case(2, 10, 17, (5, 6, 7), (3, 3, 3), (2, 1, 2), ((1, 1),) * 3),
    "many parts": Case(10, 24, 40, (24, 24), (3, 3), (1, 1), PAD),
    "one pixel": Case(1, 8, 8, (1, 1), (1, 1), (2, 2)),
}  # fmt: skip


class Tf32(Case):
    """In float32 numbers that tf32 holds: products are exact, and errors those of float32."""

    @property
    def arguments(self):
        return super().arguments | {"precision": "tf32"}

    def arrays(self, rng, dtype):
        return [float64(a).astype("float32") for a in super().arrays(rng, "bfloat16")]


def check_in(dtype, backend, rng, case, memory="contiguous"):
    if dtype == "tf32":
        case, dtype = Tf32(**case.__dict__), "float32"
    check(backend, dtype, rng, case, memory)


@pytest.fixture(autouse=True)
def this_kernel(gpu):
    if dlkern.devices()[0]["compute_capability"] < (8, 0):
        pytest.skip("needs compute capability 8.0")
    _dlkern.set_implementations("mma_sm80")
    yield
    _dlkern.set_implementations("")


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CASES)
def test_all_directions(gpu, rng, name, layout, dtype):
    check_in(dtype, gpu, rng, replace(CASES[name], layout=layout))


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float16", "tf32"])
@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["16 bytes", "groups, odd, strided", "3d", "1d"])
def test_memory_layouts(gpu, rng, name, layout, memory, dtype):
    check_in(dtype, gpu, rng, replace(CASES[name], layout=layout), memory)


@pytest.mark.parametrize("seed", range(400))
def test_random_problems(gpu, seed):
    """A failure names its seed and prints the case."""
    _dlkern.set_implementations("mma_sm80,direct")
    rng = np.random.default_rng(10_000 + seed)
    check_in(DTYPES[seed % 4], gpu, rng, random_case(rng))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["16 bytes", "2 bytes", "strided", "large tiles"])
def test_images_do_not_depend_on_the_batch(gpu, rng, name, layout, dtype):
    """An image of many is computed in other tiles than alone."""
    case = replace(CASES[name], layout=layout)
    x, w, b, _, dy = case.arrays(rng, dtype)
    put = lambda a: gpu.array(case.place(a))  # noqa: E731
    options = case.arguments
    one = slice(1, 2)
    many = dlkern.conv(put(x), put(w), gpu.array(b), **options)
    alone = dlkern.conv(put(x[one]), put(w), gpu.array(b), **options)
    np.testing.assert_array_equal(gpu.numpy(many)[one], gpu.numpy(alone))
    many = dlkern.conv_backward_input(put(dy), put(w), case.place(x).shape, **options)
    alone = dlkern.conv_backward_input(put(dy[one]), put(w), case.place(x[one]).shape, **options)
    np.testing.assert_array_equal(gpu.numpy(many)[one], gpu.numpy(alone))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["16 bytes", "many parts"])
def test_views(gpu, rng, name, layout):
    """Bits do not depend on strides and addresses: tensors that are parts of longer ones."""
    torch = pytest.importorskip("torch")
    case = replace(CASES[name], layout=layout)
    x, w, _, _, dy = case.arrays(rng, "bfloat16")
    place = lambda a: torch.from_dlpack(gpu.array(case.place(a)))  # noqa: E731

    def among_nan(t):
        around = torch.full([n + 9 for n in t.shape], float("nan"), dtype=t.dtype, device="cuda")
        view = around[tuple(slice(3, 3 + n) for n in t.shape)]
        view.copy_(t)
        return around, view

    options = case.arguments
    usual = dlkern.conv(place(x), place(w), **options)
    around, out = among_nan(torch.zeros_like(usual))
    dlkern.conv(among_nan(place(x))[1], among_nan(place(w))[1], **options, out=out)
    assert torch.equal(out, usual)
    out.fill_(float("nan"))
    assert around.isnan().all()
    dx = dlkern.conv_backward_input(among_nan(place(dy))[1], place(w), place(x).shape, **options)
    assert torch.equal(dx, dlkern.conv_backward_input(place(dy), place(w), dx.shape, **options))
    dw, _ = dlkern.conv_backward_weight(
        among_nan(place(dy))[1], among_nan(place(x))[1], place(w).shape, **options
    )
    again, _ = dlkern.conv_backward_weight(place(dy), place(x), dw.shape, **options)
    assert torch.equal(dw, again)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["16 bytes", "2 bytes", "strided", "groups"])
def test_infinities_stay_where_they_are(gpu, rng, name, layout):
    """A NaN of an image reaches those results alone that have it among their terms."""
    case = replace(CASES[name], layout=layout)
    x, w, _, _, dy = case.arrays(rng, "float16")
    dy[0, 3, 2, 1] = np.nan
    dx = dlkern.conv_backward_input(
        gpu.array(case.place(dy)), gpu.array(case.place(w)), case.place(x).shape, **case.arguments
    )
    nan = np.isnan(float64(case.unplace(gpu.numpy(dx))))
    one = np.zeros_like(float64(dy))
    one[0, 3, 2, 1] = 1
    reached = conv_oracle.backward_input(one, np.ones(w.shape), case.extents, **case.oracle) > 0
    assert (nan == reached).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_repetitions(gpu, rng, layout):
    """Bit-identical results of all directions."""
    case = replace(CASES["many parts"], layout=layout)
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


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["16 bytes", "many parts"])
def test_accumulate(gpu, rng, name, layout):
    """The sum is rounded once, whether or not it was made in parts."""
    case = replace(CASES[name], layout=layout)
    x, w, _, _, dy = (a.astype("float64") for a in case.arrays(rng, "bfloat16"))
    put = lambda a: gpu.array(case.place(a))  # noqa: E731
    out = put(w)
    dlkern.conv_backward_weight(put(dy), put(x), None, accumulate=True, out=out, **case.arguments)
    right = w + conv_oracle.backward_weight(dy, x, case.taps, **case.oracle)
    np.testing.assert_allclose(case.unplace(gpu.numpy(out)), right, rtol=1e-12, atol=1e-11)


def test_what_is_chosen(gpu):
    """Dilation beyond a tensor map's is no reason to do without tensor cores."""
    _dlkern.set_implementations("")
    case = replace(CASES["dilated"], layout="NHWC", dilation=(300, 1), extents=(700, 7))
    x = gpu.array(rounded(np.zeros((2, 700, 7, 16)), "bfloat16"))
    w = gpu.array(rounded(np.zeros((16, 3, 3, 16)), "bfloat16"))
    (plan,) = dlkern.explain(dlkern.conv, x, w, **case.arguments)
    assert plan.implementation == "mma_sm80"
