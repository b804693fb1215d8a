"""permute and its shorthands, against NumPy: bytes are moved, so results are equal."""

import itertools

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import numpy_dtype

import dlkern

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "int64", "int32", "int8", "uint64", "uint8", "bool",
)  # fmt: skip


def values(rng, shape, dtype):
    """Any bytes: NaN payloads must pass too."""
    dtype = numpy_dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(shape)


def same_bytes(a, b):
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_dtypes(backend, rng, dtype):
    for shape, axes in (((37, 70), (1, 0)), ((2, 3, 33, 17), (0, 2, 3, 1)), ((6, 5), (0, 1))):
        x = values(rng, shape, dtype)
        out = backend.empty([shape[a] for a in axes], dtype)
        dlkern.permute(backend.array(x), axes, out=out)
        same_bytes(backend.raw(out), x.transpose(axes))


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (2, 1, 70, 3), (1, 65, 1, 33), (40, 9, 8, 16)])
def test_all_permutations(backend, rng, shape):
    x = values(rng, shape, "float32")
    on_device = backend.array(x)
    for axes in itertools.permutations(range(4)):
        same_bytes(backend.raw(dlkern.permute(on_device, axes)), x.transpose(axes))


# [batch, columns, rows] to be transposed, by what GPU kernels do with them.
TRANSPOSED = {
    "whole tiles": (2, 256, 256),
    "parts of tiles": (2, 80, 144),
    "x in single items": (2, 304, 275),
    "y in single items": (2, 331, 304),
    "both in single items": (2, 267, 301),
    "3 planes to pixels": (2, 3, 1104),
    "pixels to 3 planes": (2, 1104, 3),
    "3 planes of odd length": (2, 3, 1009),
    "odd pixels to 3 planes": (2, 1009, 3),
    "small maps to channels last": (3, 272, 49),
    "channels last to small maps": (3, 49, 272),
    "many planes": (2, 251, 48),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", TRANSPOSED)
def test_ways_of_transposing(backend, rng, name):
    for dtype in ("int8", "float16", "int32", "int64"):
        x = values(rng, TRANSPOSED[name], dtype)
        y = dlkern.permute(backend.array(x), (0, 2, 1))
        same_bytes(backend.raw(y), x.transpose(0, 2, 1))
        if name in ("whole tiles", "3 planes to pixels", "pixels to 3 planes"):  # 2 bytes off 16
            y = backend.empty(y.shape, dtype, "unaligned")
            dlkern.permute(backend.array(x, "unaligned"), (0, 2, 1), out=y)
            same_bytes(backend.raw(y), x.transpose(0, 2, 1))


@pytest.mark.gpu
def test_the_ways_are_what_they_are_called(gpu):
    def way(shape, axes=(0, 2, 1), dtype=np.float16):
        x = gpu.array(np.zeros(shape, dtype))
        return dlkern.explain(dlkern.permute, x, axes)[0].implementation

    for name, shape in TRANSPOSED.items():
        planes = "planes" in name or "maps" in name
        assert way(shape) == ("planes" if planes else "tiles"), name
    assert way((4, 3, 8, 64), (0, 2, 1, 3)) == "in_order"
    assert way((4, 5, 3)) == "in_order"


@pytest.mark.sanitize
@pytest.mark.parametrize("out_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout, out_layout):
    """EDGE 21, 26: any strides and alignment on both sides; the gaps stay as they were."""
    for dtype in ("float32", "float16", "int8"):
        for shape, axes in (((5, 3, 37), (2, 0, 1)), ((32, 64), (0, 1)), ((33, 40), (1, 0))):
            x = values(rng, shape, dtype)
            y = backend.empty([shape[a] for a in axes], dtype, out_layout)
            assert dlkern.permute(backend.array(x, layout), axes, out=y) is y
            same_bytes(backend.raw(y), x.transpose(axes))


def test_zero_strides(backend, rng):
    row = values(rng, (1, 19), "int32")
    y = dlkern.permute(backend.broadcast(row, (40, 19)), (1, 0),
                       out=backend.empty((19, 40), "int32"))  # fmt: skip
    same_bytes(backend.raw(y), np.tile(row, (40, 1)).T)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((), ()), ((1,), (0,)), ((0, 3), (1, 0)), ((2, 0, 4), (2, 0, 1)), ((1, 1, 1), (2, 1, 0)),
     ((2, 1, 2, 1, 2, 1, 2, 3), (7, 6, 5, 4, 3, 2, 1, 0))],
)  # fmt: skip
def test_odd_shapes(backend, rng, shape, axes):
    x = values(rng, shape, "float32")
    same_bytes(backend.raw(dlkern.permute(backend.array(x), axes)), x.transpose(axes))


@pytest.mark.parametrize("spatial", [(7,), (5, 6), (3, 4, 5)])
def test_channels_there_and_back(backend, rng, spatial):
    x = values(rng, (2, 9, *spatial), "float16")
    last = dlkern.nchw_to_nhwc(backend.array(x))
    same_bytes(backend.raw(last), np.moveaxis(x, 1, -1))
    same_bytes(backend.raw(dlkern.nhwc_to_nchw(last)), x)


def test_identity_makes_contiguous(backend, rng):
    x = values(rng, (6, 7), "int64")
    y = dlkern.permute(backend.array(x, "transposed"), (0, 1), out=backend.empty((6, 7), "int64"))
    same_bytes(backend.raw(y), x)


@pytest.mark.gpu
def test_edge_15_more_than_2_31_elements(gpu):
    torch = pytest.importorskip("torch")
    x = torch.zeros(2**21 + 8, 1024, dtype=torch.int8, device="cuda")
    x[2**21] = torch.arange(1024, device="cuda").to(torch.int8)
    y = dlkern.permute(x, (1, 0))
    assert torch.equal(y[:, 2**21], x[2**21])
    assert not y[:, : 2**21].any()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.permute(a(np.zeros((2, 3))), (0,)), ValueError, "axes is"),
        (lambda a: dlkern.permute(a(np.zeros((2, 3))), (0, 0)), ValueError, "axes is 0 at 1"),
        (lambda a: dlkern.permute(a(np.zeros((2, 3))), (0, 2)), ValueError, "axes is 2"),
        (lambda a: dlkern.permute(a(np.zeros((2, 3))), (0, 1.0)), TypeError, "axes is 1.0"),
        (lambda a: dlkern.permute(a(np.zeros((2, 3))), 1), TypeError, "axes is 1"),
        (lambda a: dlkern.permute(a(np.zeros((2, 3))), (1, 0), out=a(np.zeros((2, 3)))), ValueError,
         r"out.shape is \[2, 3\], expected \[3, 2\]"),
        (lambda a: dlkern.permute(a(np.zeros((2, 3))), (1, 0), out=a(np.zeros((3, 2), "f4"))),
         TypeError, "out.dtype is float32, expected float64"),
        (lambda a: dlkern.permute(a(np.zeros((2, 3), "c8")), (1, 0)), TypeError, "complex64"),
        (lambda a: dlkern.nchw_to_nhwc(a(np.zeros((2, 3)))), ValueError, "x has 2 dimensions"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_in_place_is_refused():
    x = np.zeros((4, 4))
    with pytest.raises(ValueError, match="out overlaps x"):
        dlkern.permute(x, (1, 0), out=x)
