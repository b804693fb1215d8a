"""concat, split and cast, against NumPy."""

import ml_dtypes
import numpy as np
import pytest
from backends import LAYOUTS
from oracle import numpy_dtype
from test_layout import DTYPES, same_bytes, values

import dlkern

# ---- concat, split -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_there_and_back(backend, rng, dtype, axis):
    extents = (1, 0, 8, 5)
    shapes = [[e if d == axis % 3 else n for d, n in enumerate((3, 4, 6))] for e in extents]
    parts = [values(rng, shape, dtype) for shape in shapes]
    whole = np.concatenate(parts, axis)
    out = backend.empty(whole.shape, dtype)
    dlkern.concat([backend.array(p) for p in parts], axis, out=out)
    same_bytes(backend.raw(out), whole)
    outs = [backend.empty(p.shape, dtype) for p in parts]
    result = dlkern.split(out, extents, axis, out=outs)
    assert isinstance(result, tuple)
    for got, part in zip(result, parts, strict=True):
        same_bytes(backend.raw(got), part)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_pieces(backend, rng, layout):
    """EDGE 21, 26: pieces of all layouts at once, on either side."""
    shapes = [(3, n, 16) for n in (4, 9, 1)]
    parts = [values(rng, shape, "float16") for shape in shapes]
    layouts = (layout, "contiguous", "padded")
    arrays = [backend.array(p, a) for p, a in zip(parts, layouts, strict=True)]
    whole = np.concatenate(parts, 1)
    out = backend.empty(whole.shape, "float16", layout)
    dlkern.concat(arrays, 1, out=out)
    same_bytes(backend.raw(out), whole)
    layouts = ("transposed", layout, layout)
    outs = [backend.empty(s, "float16", a) for s, a in zip(shapes, layouts, strict=True)]
    dlkern.split(backend.array(whole, layout), (4, 9, 1), 1, out=outs)
    for got, part in zip(outs, parts, strict=True):
        same_bytes(backend.raw(got), part)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", ["contiguous", "unaligned", "padded"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows(backend, rng, dtype, layout):
    """Rows of more than 64 bytes that begin at all kinds of addresses."""
    extents = (67, 128, 301)
    parts = [values(rng, (5, n), dtype) for n in extents]
    whole = np.concatenate(parts, 1)
    out = backend.empty(whole.shape, dtype, layout)
    dlkern.concat([backend.array(p, layout) for p in parts], 1, out=out)
    same_bytes(backend.raw(out), whole)
    outs = [backend.empty(p.shape, dtype, layout) for p in parts]
    dlkern.split(out, extents, 1, out=outs)
    for got, part in zip(outs, parts, strict=True):
        same_bytes(backend.raw(got), part)


@pytest.mark.sanitize
def test_many_pieces(backend, rng):
    """More than one launch takes, and than a call has room for at first."""
    parts = [values(rng, (2, 1 + i % 5, 7), "int8") for i in range(150)]
    whole = np.concatenate(parts, 1)
    y = dlkern.concat([backend.array(p) for p in parts], 1)
    same_bytes(backend.raw(y), whole)
    pieces = dlkern.split(y, [p.shape[1] for p in parts], 1)
    for got, part in zip(pieces, parts, strict=True):
        same_bytes(backend.raw(got), part)


def test_equal_parts(backend, rng):
    x = values(rng, (6, 4), "float32")
    for got, part in zip(dlkern.split(backend.array(x), 3), np.split(x, 3), strict=True):
        same_bytes(backend.raw(got), part)
    (whole,) = dlkern.split(backend.array(x), 1, axis=1)
    same_bytes(backend.raw(whole), x)
    same_bytes(backend.raw(dlkern.concat([backend.array(x)])), x)


def test_nothing_to_move(backend):
    x = backend.array(np.zeros((0, 3), np.float32))
    assert backend.raw(dlkern.concat([x, x])).shape == (0, 3)
    assert [backend.raw(p).shape for p in dlkern.split(x, 2)] == [(0, 3), (0, 3)]


X = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.concat([]), ValueError, "concat: arrays is empty"),
        (lambda a: dlkern.concat(a(X)), TypeError, "concat: arrays is .*, expected a list"),
        (lambda a: dlkern.concat([a(X), a(X)], 2), ValueError, "concat: axis is 2"),
        (lambda a: dlkern.concat([a(X), a(np.zeros((2, 4)))]), ValueError,
         r"arrays\[1\].shape is \[2, 4\], expected \[2, 3\]"),
        (lambda a: dlkern.concat([a(X), a(np.zeros(3))]), ValueError, r"arrays\[1\] has 1 dim"),
        (lambda a: dlkern.concat([a(X), a(X.astype("f4"))]), TypeError,
         r"arrays\[1\].dtype is float32, expected float64"),
        (lambda a: dlkern.concat([a(np.float64(1))]), ValueError, "axis is 0"),
        (lambda a: dlkern.concat([a(X)], out=a(np.zeros((3, 3)))), ValueError,
         r"out.shape is \[3, 3\], expected 2 on axis 0"),
        (lambda a: dlkern.split(a(X), 2, 1), ValueError, "sections is 2, expected a number that"),
        (lambda a: dlkern.split(a(X), (1, 1), 1), ValueError, "expected extents that add up to 3"),
        (lambda a: dlkern.split(a(X), (4, -1), 1), ValueError, "expected extents that add up to 3"),
        (lambda a: dlkern.split(a(X), 0), ValueError, "sections is 0"),
        (lambda a: dlkern.split(a(X), 1.0), TypeError, "sections is 1.0, expected an integer"),
        (lambda a: dlkern.split(a(X), 2, out=[a(X)]), ValueError, "out is 1 of them, expected a"),
        (lambda a: dlkern.split(a(X), 1, out=a(X)), TypeError, "out is .*, expected a list of 1"),
        (lambda a: dlkern.split(a(X), 2, out=[a(X), a(X)]), ValueError, r"out\[0\] has 2 on axis"),
        (lambda a: dlkern.cast(a(X), "float128"), ValueError, "cast: dtype is 'float128'"),
        (lambda a: dlkern.cast(a(X), "int16"), TypeError, "int16"),
        (lambda a: dlkern.cast(a(X), "int8", out=a(X)), TypeError,
         "out.dtype is float64, expected int8"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_overlap_is_refused():
    x = np.zeros((4, 4))
    with pytest.raises(ValueError, match=r"out overlaps arrays\[1\]"):
        dlkern.concat([x[:2].copy(), x[2:]], out=x)
    with pytest.raises(ValueError, match=r"out\[0\] overlaps x"):
        dlkern.split(x, 2, out=[x[:2], np.zeros((2, 4))])
    with pytest.raises(ValueError, match="out overlaps x"):
        dlkern.cast(x, "float32", out=x.view("f4")[:, :4])


# ---- cast ----------------------------------------------------------------------------------------

LIMITS = [127, 128, 255, 256, 448, 480, 57344, 61440, 65504, 65520, 2.0**31, 2.0**53 + 2, 2.0**63]
TIES = [
    1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-9, 1 + 2.0**-11 + 2.0**-50, 1.1875, 1.3125,
    2.0**-24, 2.0**-25, 2.0**-25 * (1 + 2.0**-30), 2.0**-133, 2.0**-150, 1e-300,
]  # fmt: skip
NUMBERS = [0, 0.5, 1, 1.5, 2.5, 3, 7, 100.7, 1e6, 1e20, 1e300, np.inf]


def inputs_of(dtype):
    """Values of that dtype that are hard to convert, more than a kernel takes at once."""
    dtype = numpy_dtype(dtype)
    if dtype.kind == "b":
        return np.arange(64) % 3 == 0
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        few = [info.min, info.max, info.max // 2 + 1, 0, 1, 255 % (info.max + 1), info.max - 1]
        powers = [1 << k for k in range(dtype.itemsize * 8 - 1)]
        many = [v + d for v in powers for d in (-1, 0, 1)]
        wide = [2**62 + 2**54 + 1, 2**62 + 2**54, 2**53 + 1, 2**61 + 2**37 + 1, 65519, 65520]
        some = [v for v in many + wide if v <= info.max]
        every = few + some + [-v for v in some] * (info.min < 0)
        return np.resize(np.array(every, object).astype(dtype), 1600)
    numbers = np.array(NUMBERS + LIMITS + TIES)
    with np.errstate(over="ignore"):
        every = np.concatenate([numbers, -numbers, [np.nan]])
        return np.resize(every.astype(dtype), 1600)


def sticky_float32(v):
    """float64 rounded to odd: what a further rounding sees of it is exact."""
    with np.errstate(over="ignore"):
        f = v.astype(np.float32)
    inexact = np.isfinite(v) & (f.astype(np.float64) != v)
    bits = f.view(np.uint32).copy()
    away = inexact & (np.abs(f.astype(np.float64)) > np.abs(v))
    bits[away] -= 1
    bits[inexact] |= 1
    return bits.view(np.float32)


def converted(x, dtype):
    """The oracle: what core/cast.h promises, by exact arithmetic on Python integers and float64."""
    to = numpy_dtype(dtype)
    is_int = x.dtype.kind in "iub"
    if to.kind == "b":
        return x.astype(np.float64) != 0
    if to.kind in "iu":
        info = np.iinfo(to)
        if is_int:
            return np.array([int(v) % 2 ** (8 * to.itemsize) for v in x], np.uint64).astype(to)
        wide = x.astype(np.float64)
        return np.array(
            [0 if np.isnan(v) else info.max if v > info.max else info.min if v < info.min
             else min(int(v), info.max) for v in wide], dtype=object).astype(to)  # fmt: skip
    if (
        is_int and to.itemsize < 4
    ):  # integers of 64 bits: the last bit says what float64 cannot hold
        signs = [-1 if int(v) < 0 else 1 for v in x]
        folded = [abs(int(v)) for v in x]
        folded = [v >> 11 << 11 | bool(v & 0x7FF) << 11 if v >> 53 else v for v in folded]
        wide = np.array([s * float(v) for s, v in zip(signs, folded, strict=True)])
    elif is_int:
        return x.astype(to)
    else:
        wide = x.astype(np.float64)
    if to.itemsize < 4 and x.dtype != np.float32:
        wide = sticky_float32(wide)
    with np.errstate(over="ignore"):
        if to.itemsize == 1:
            largest = float(ml_dtypes.finfo(to).max)
            wide = np.clip(wide.astype(np.float32), -largest, largest)
        return wide.astype(to)


def same_numbers(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    nan = (a != a) & (b != b)
    item = f"u{a.dtype.itemsize}"
    different = (a.view(item) != b.view(item)) & ~nan
    assert not different.any(), (a[different][:5], b[different][:5])


@pytest.mark.sanitize
@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cast_any_to_any(backend, dtype, to):
    x = inputs_of(dtype)
    expected = x if to == dtype else converted(x, to)
    for count in (x.size, x.size - 3):  # packs, and single elements
        out = backend.empty((count,), to)
        assert dlkern.cast(backend.array(x[:count]), to, out=out) is out
        same_numbers(backend.raw(out), expected[:count])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cast_layouts(backend, rng, layout):
    x = rng.standard_normal((5, 6, 16)).astype(np.float32)
    for to in ("bfloat16", "int64"):
        expected = converted(x.ravel(), to).reshape(x.shape)
        for layouts in ((layout, "contiguous"), ("contiguous", layout), (layout, layout)):
            out = backend.empty(x.shape, to, layouts[1])
            dlkern.cast(backend.array(x, layouts[0]), to, out=out)
            same_numbers(np.ascontiguousarray(backend.raw(out)), expected)


def test_cast_to_the_same_dtype_and_of_nothing(backend, rng):
    x = backend.array(values(rng, (4, 5), "float16"))
    assert dlkern.cast(x, "float16", out=x) is x
    y = dlkern.cast(backend.array(np.float32(2.5)), "int8")
    assert backend.raw(y) == 2
    assert backend.raw(dlkern.cast(backend.array(np.zeros((0, 3))), "int8")).shape == (0, 3)


def test_any_byte_but_0_is_true(backend):
    x = np.array([0, 1, 2, 255, 128], np.uint8)
    y = dlkern.cast(backend.array(x.view(bool)), "float32")
    np.testing.assert_array_equal(backend.raw(y), [0, 1, 1, 1, 1])
