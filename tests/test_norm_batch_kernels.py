"""Each kind of GPU kernel for batch_norm and group_norm on its own."""

import contextlib

import pytest
import test_norm_batch
import test_norm_group

import dlkern

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["tiles", "planes", "columns", "streams"])
def kernel(request):
    """The one kind of kernel that calls may choose, where it takes the problem."""
    dlkern._dlkern.set_implementations(request.param)
    yield request.param
    dlkern._dlkern.set_implementations("")


@contextlib.contextmanager
def declined():
    try:
        yield
    except NotImplementedError as error:
        pytest.skip(str(error))


DTYPES = ["bfloat16", "float32", "float64"]
# Sets of a part of a warp up to many blocks; planes at multiples of 16 bytes and not, smaller
# ones, some of many parts, and short ones of many channels.
SHAPES = [
    ("NCHW", (70, 24, 7, 7)),
    ("NCHW", (5, 6, 55, 53)),
    ("NCHW", (9, 8, 56, 56)),
    ("NCHW", (3, 4, 150, 151)),
    ("NCHW", (2, 4, 160, 160)),
    ("NCHW", (40, 8, 3)),
    ("NCHW", (5, 520, 7, 7)),
    ("NCHW", (33, 304, 11)),
    ("NHWC", (3, 50, 20, 72)),
    ("NHWC", (2, 61, 12)),
    ("NHWC", (1000, 520)),
    ("NHWC", (2, 24, 24, 36)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layout", "shape"), SHAPES)
def test_batch_norm(gpu, kernel, rng, layout, shape, dtype):
    with declined():
        test_norm_batch.test_batch_norm_training(gpu, dtype, rng, layout, shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layout", "shape"), SHAPES)
def test_batch_norm_inference(gpu, kernel, rng, layout, shape, dtype):
    with declined():
        test_norm_batch.test_batch_norm_inference(gpu, dtype, rng, layout, shape)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layout", "shape"), SHAPES)
def test_group_norm(gpu, kernel, rng, layout, shape, dtype, activation):
    groups = 3 if shape[-1 if layout == "NHWC" else 1] % 3 == 0 else 2
    with declined():
        test_norm_group.test_group_norm(gpu, dtype, rng, layout, shape, groups, activation)
