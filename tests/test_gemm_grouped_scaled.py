"""grouped_matmul of float8 and int8: packed rows, a packed depth, lists; factors of every kind."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from backends import LAYOUTS, POISON_INT
from oracle import assert_close, float64, numpy_dtype, rounded
from test_gemm_grouped import ENDS, T, parts
from test_gemm_scaled import (
    FLOAT8,
    MATMUL,
    OUTPUTS,
    PAIRS,
    float8,
    int8,
    product,
    scales_of,
    spread,
)

import dlkern

KINDS_A = ("none", "tensor", "tensor1", "row", "row2", "piece", "block")
KINDS_B = ("none", "one", "one3", "tensor", "each", "row", "row2", "piece", "block")
POISON = np.frombuffer(bytes([POISON_INT]) * 4, "int32")[0]


def scales_a(kind, rng, rows, depth):
    return None if kind == "none" else scales_of(kind, rng, rows, depth, 1)


def scales_b(kind, rng, groups, columns, depth):
    """Of all groups: one number, or a factor of that kind for each."""
    if kind in ("none", "one", "one3"):
        shape = (1, 1, 1) if kind == "one3" else ()
        return None if kind == "none" else rng.uniform(0.25, 4, shape).astype("f4")
    if kind == "each":
        return rng.uniform(0.25, 4, (groups, 1, 1)).astype("f4")
    return np.stack([scales_of(kind, rng, columns, depth, 0) for _ in range(groups)])


def of_group(scale, g):
    if scale is None:
        return 1.0
    return scale.reshape(()) if scale.size == 1 else scale[g]


def rows_f64(a, b, ends, scale_a=None, scale_b=None, bias=None):
    """The result and the sums of sizes, of packed rows; NaN where nothing is written."""
    y = np.full((len(a), b.shape[2]), np.nan)
    scale = np.zeros_like(y)
    a = float64(a) * spread(1.0 if scale_a is None else scale_a, a.shape, 1)
    for g, part in enumerate(parts(ends)):
        y[part], scale[part] = product(a[part], b[g], 1.0, of_group(scale_b, g))
        if bias is not None:
            y[part] += float64(bias[g])
            scale[part] += np.abs(float64(bias[g]))
    return y, scale


def depth_f64(a, b, ends, scale_a=None, scale_b=None):
    def of(scale, g):
        return of_group(scale, g) if scale is not None and scale.ndim == 3 else scale

    both = []
    for g, part in enumerate(parts(ends)):
        of_a, of_b = (1.0 if s is None else s for s in (of(scale_a, g), of(scale_b, g)))
        shapes = (len(a), 1), (1, b.shape[1])
        left, right = spread(of_a, shapes[0], 1), spread(of_b, shapes[1], 0)
        both.append(product(float64(a[:, part]) * left, float64(b[part]) * right))
    return np.stack([y for y, _ in both]), np.stack([scale for _, scale in both])


def call(backend, a, b, ends, layout="contiguous", **options):
    """On that backend, and so bias and scales; `out` lies there."""
    arrays = [backend.array(v, layout) for v in (a, b, np.asarray(ends, "int32"))]
    for name in {"bias", "scale_a", "scale_b"} & options.keys():
        if options[name] is not None:
            options[name] = backend.array(options[name], layout)
    return dlkern.grouped_matmul(*arrays, **options)


def check(backend, y, expected, scale, dtype="float32"):
    name = MATMUL[backend.is_gpu] if dtype == "float32" else "matmul"
    assert_close(backend.numpy(y), expected, dtype, name, scale=scale)


# ---- Packed rows ---------------------------------------------------------------------------


@pytest.mark.sanitize
@pytest.mark.parametrize("kind_b", KINDS_B)
@pytest.mark.parametrize("kind_a", KINDS_A)
def test_factors_of_every_kind(backend, rng, kind_a, kind_b):
    ends = ENDS["uneven"]
    for n, k in ((140, 300), (3, 129), (129, 128)):
        a, b = float8(rng, (T, k)), float8(rng, (len(ends), k, n), "float8_e5m2")
        of_a, of_b = scales_a(kind_a, rng, T, k), scales_b(kind_b, rng, len(ends), n, k)
        y = backend.empty((T, n), "float32")
        call(backend, a, b, ends, scale_a=of_a, scale_b=of_b, out=y)
        check(backend, y, *rows_f64(a, b, ends, of_a, of_b))


@pytest.mark.sanitize
@pytest.mark.parametrize("kinds", [("row", "row"), ("piece", "block")])
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_groups_of_rows(backend, rng, ends, kinds):
    """Empty groups, one group, many; rows of no group are not written."""
    a, b = float8(rng, (T, 144)), float8(rng, (len(ends), 33, 144))
    of_a, of_b = scales_a(kinds[0], rng, T, 144), scales_b(kinds[1], rng, len(ends), 33, 144)
    weights = backend.array(b).swapaxes(1, 2)  # as models have them: [G, N, K]
    arrays = [backend.array(np.array(ends)), backend.array(of_a), backend.array(of_b)]
    y = backend.empty((T, 33), "float32")
    dlkern.grouped_matmul(
        backend.array(a), weights, arrays[0], scale_a=arrays[1], scale_b=arrays[2], out=y
    )
    check(backend, y, *rows_f64(a, np.swapaxes(b, 1, 2), ends, of_a, of_b))


@pytest.mark.parametrize(("of_a", "of_b"), PAIRS)
@pytest.mark.parametrize("out_dtype", [*OUTPUTS, *FLOAT8])
def test_formats_in_any_mixture(backend, rng, of_a, of_b, out_dtype):
    ends = ENDS["even"]
    a, b = float8(rng, (T, 130), of_a), float8(rng, (3, 130, 90), of_b)
    scale_b = scales_b("each", rng, 3, 90, 130)
    bias = rounded(rng.standard_normal((3, 90)), "float16")
    y = call(backend, a, b, ends, bias=bias, scale_b=scale_b, out_dtype=out_dtype)
    expected, scale = rows_f64(a, b, ends, None, scale_b, bias)
    if out_dtype in FLOAT8:
        largest = float(ml_dtypes.finfo(numpy_dtype(out_dtype)).max)
        expected = np.clip(expected, -largest, largest)
    check(backend, y, expected, scale, out_dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("invariant", [False, True])
def test_layouts_of_operands_factors_and_results(backend, rng, layout, invariant):
    ends = ENDS["uneven"]
    a, b = float8(rng, (T, 200)), float8(rng, (len(ends), 200, 41))
    of_a, of_b = scales_a("piece", rng, T, 200), scales_b("block", rng, len(ends), 41, 200)
    y = backend.empty((T, 41), "float32", layout)
    call(backend, a, b, ends, layout, scale_a=of_a, scale_b=of_b, out=y, batch_invariant=invariant)
    check(backend, y, *rows_f64(a, b, ends, of_a, of_b))


def test_factors_with_zero_strides(backend, rng):
    """One scale of columns for all groups is a view."""
    ends = ENDS["even"]
    a, b = float8(rng, (T, 140)), float8(rng, (3, 140, 50))
    columns = rng.uniform(0.5, 2, (1, 1, 50)).astype("f4")
    y = backend.empty((T, 50), "float32")
    arrays = [backend.array(v) for v in (a, b, np.array(ends))]
    dlkern.grouped_matmul(*arrays, scale_b=backend.broadcast(columns, (3, 1, 50)), out=y)
    check(backend, y, *rows_f64(a, b, ends, None, np.broadcast_to(columns, (3, 1, 50))))


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "unaligned", "strided"])
@pytest.mark.parametrize("ends", [ENDS["uneven"], ENDS["short"], ENDS["nothing"]])
def test_int8_sums_are_exact(backend, rng, layout, ends):
    a, b = int8(rng, (T, 100)), int8(rng, (len(ends), 100, 37))
    y = backend.empty((T, 37), "int32", layout)
    call(backend, a, b, ends, layout, out=y)
    expected = np.full((T, 37), POISON)
    for g, part in enumerate(parts(ends)):
        expected[part] = a[part].astype("i4") @ b[g].astype("i4")
    np.testing.assert_array_equal(backend.raw(y), expected)


@pytest.mark.parametrize("kinds", [("row", "row2"), ("tensor", "each"), ("none", "row")])
def test_int8_with_factors_and_bias(backend, rng, kinds):
    ends = ENDS["uneven"]
    a, b = int8(rng, (T, 300)), int8(rng, (len(ends), 300, 40))
    bias = rng.standard_normal((len(ends), 40)).astype("f4")
    of_a, of_b = scales_a(kinds[0], rng, T, 300), scales_b(kinds[1], rng, len(ends), 40, 300)
    for options in ({"scale_a": of_a, "scale_b": of_b}, {"scale_b": of_b, "bias": bias}):
        y = call(backend, a, b, ends, out=backend.empty((T, 40), "float32"), **options)
        check(backend, y, *rows_f64(a, b, ends, **options))


def test_wild_offsets_touch_nothing_out_of_bounds(backend, rng):
    """Offsets that fall or lie outside are clamped, and the scales with them."""
    a, b = float8(rng, (T, 140)), float8(rng, (4, 140, 9))
    of_a, of_b = scales_a("piece", rng, T, 140), scales_b("piece", rng, 4, 9, 140)
    guarded = backend.empty((T + 64, 9), "float32")
    arrays = [backend.array(v) for v in (a, b)]
    scales = {"scale_a": backend.array(of_a), "scale_b": backend.array(of_b)}
    for ends in ((-5, 20, 1000, 1000), (2**40, -(2**40), 50, 7)):
        offsets = backend.array(np.array(ends, "int64"))
        dlkern.grouped_matmul(*arrays, offsets, out=guarded[32:-32], **scales)
        guard = backend.numpy(guarded)
        assert np.isnan(guard[:32]).all()
        assert np.isnan(guard[-32:]).all()
    y = backend.empty((T, 9), "float32")
    offsets = backend.array(np.array((-5, 20, 1000, 1000), "int64"))
    dlkern.grouped_matmul(*arrays, offsets, out=y, **scales)
    check(backend, y, *rows_f64(a, b, (0, 20, T, T), of_a, of_b))


def test_nothing(backend):
    """No rows, no groups, no columns, no depth."""

    def result(a, b, ends, out, scale_a, scale_b):
        a, b = (np.zeros(s, numpy_dtype("float8_e4m3fn")) for s in (a, b))
        scale_a, scale_b = np.ones(scale_a, "f4"), np.ones(scale_b, "f4")
        y = backend.empty(out, "float32")
        return backend.numpy(call(backend, a, b, ends, scale_a=scale_a, scale_b=scale_b, out=y))

    assert result((0, 5), (2, 5, 3), (0, 0), (0, 3), (0, 1), (2, 1, 3)).size == 0
    assert np.isnan(result((4, 5), (0, 5, 3), (), (4, 3), (4,), (0, 1, 1))).all()
    assert result((4, 5), (2, 5, 0), (2, 4), (4, 0), (4, 1), (2, 1, 0)).size == 0
    for scales in (((4, 1), (2, 1, 3)), ((4, 0), (2, 0, 3)), ((1, 0), (2, 0, 1))):
        y = result((4, 0), (2, 0, 3), (2, 4), (4, 3), *scales)
        np.testing.assert_array_equal(y, np.zeros((4, 3)))
    y = result((4, 0), (0, 3), (0, 0), (2, 4, 3), (4,), (2, 1, 3))
    np.testing.assert_array_equal(y, np.zeros((2, 4, 3)))


def test_default_dtypes(backend, rng):
    eight, small = float8(rng, (4, 4)), int8(rng, (4, 4))
    ones = np.ones((4, 1), "f4")

    def dtype_of(x, **options):
        return backend.raw(call(backend, x, np.stack([x]), (4,), **options)).dtype

    assert dtype_of(eight) == ml_dtypes.bfloat16
    assert dtype_of(small) == np.int32
    assert dtype_of(small, scale_a=ones) == ml_dtypes.bfloat16
    assert dtype_of(small, bias=np.zeros((1, 4), "f4")) == ml_dtypes.bfloat16
    assert dtype_of(eight, out_dtype=np.float16) == np.float16
    assert dtype_of(np.ones((4, 4), "f4"), out_dtype="float64") == np.float64


@pytest.mark.parametrize("kinds", [("row", "row"), ("piece", "piece")])
def test_a_row_has_the_bits_of_the_product_alone(backend, rng, kinds):
    """In batch-invariant calls."""
    ends = ENDS["uneven"]
    a, b = float8(rng, (T, 144)), float8(rng, (len(ends), 144, 48))
    of_a, of_b = scales_a(kinds[0], rng, T, 144), scales_b(kinds[1], rng, len(ends), 48, 144)
    options = {"batch_invariant": True, "out_dtype": "float32"}
    y = backend.raw(call(backend, a, b, ends, scale_a=of_a, scale_b=of_b, **options))
    for g, part in enumerate(parts(ends)):
        operands = map(backend.array, (a[part], b[g], of_a[part], of_b[g]))
        alone = dlkern.scaled_matmul(*operands, **options)
        np.testing.assert_array_equal(y[part], backend.raw(alone))


# ---- Packed depth --------------------------------------------------------------------------


def depth_scales(kind, rng, groups, rows):
    """Of a; those of b are these transposed."""
    shape = {
        "one": (), "row": (rows,), "row2": (rows, 1), "each": (groups, 1, 1),
        "each row": (groups, rows, 1),
    }  # fmt: skip
    return rng.uniform(0.25, 4, shape[kind]).astype("f4") if kind in shape else None


@pytest.mark.parametrize("kind_a", ["none", "one", "row", "row2", "each", "each row"])
@pytest.mark.parametrize("kind_b", ["none", "row", "row2", "each", "each row"])
def test_factors_of_a_packed_depth(backend, rng, kind_a, kind_b):
    ends = ENDS["uneven"]
    a, b = float8(rng, (37, T), "float8_e5m2"), float8(rng, (T, 41))
    of_a = depth_scales(kind_a, rng, len(ends), 37)
    of_b = depth_scales(kind_b, rng, len(ends), 41)
    if of_b is not None and of_b.ndim > 1:
        of_b = np.ascontiguousarray(np.swapaxes(of_b, -1, -2))
    y = call(backend, a, b, ends, scale_a=of_a, scale_b=of_b, out_dtype="float32")
    check(backend, y, *depth_f64(a, b, ends, of_a, of_b))


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_packed_depth(backend, rng, ends, layout):
    """float8 with factors for each group; int8."""
    a, b = float8(rng, (37, T)), float8(rng, (T, 41), "float8_e5m2")
    of_a, of_b = (depth_scales("each row", rng, len(ends), r) for r in (37, 41))
    of_b = np.ascontiguousarray(np.swapaxes(of_b, 1, 2))
    y = backend.empty((len(ends), 37, 41), "float32", layout)
    call(backend, a, b, ends, layout, scale_a=of_a, scale_b=of_b, out=y)
    check(backend, y, *depth_f64(a, b, ends, of_a, of_b))
    a, b = int8(rng, (37, T)), int8(rng, (T, 41))
    y = backend.empty((len(ends), 37, 41), "int32", layout)
    call(backend, a, b, ends, layout, out=y)
    expected = [a[:, part].astype("i4") @ b[part].astype("i4") for part in parts(ends)]
    np.testing.assert_array_equal(backend.raw(y), np.stack(expected))


# ---- Lists ---------------------------------------------------------------------------------


def test_lists(backend, rng):
    """float8, int8 and others in one list, some with scales."""
    half = [rounded(rng.standard_normal(shape), "float16") for shape in ((4, 6), (6, 2))]
    a = [
        float8(rng, (30, 140)),
        int8(rng, (5, 20)),
        half[0],
        float8(rng, (0, 3)),
        int8(rng, (3, 7)),
    ]
    b = [float8(rng, (140, 17), "float8_e5m2"), int8(rng, (20, 9)), half[1], float8(rng, (3, 2)),
         int8(rng, (7, 2))]  # fmt: skip
    scale_a = [scales_of("piece", rng, 30, 140, 1), scales_of("row", rng, 5, 20, 1), *[None] * 3]
    scale_b = [scales_of("block", rng, 17, 140, 0), *[None] * 4]
    lists = [[None if v is None else backend.array(v) for v in x] for x in (a, b, scale_a, scale_b)]
    results = dlkern.grouped_matmul(*lists[:2], scale_a=lists[2], scale_b=lists[3])
    assert [str(backend.raw(y).dtype) for y in results] == [
        "bfloat16", "bfloat16", "float16", "bfloat16", "int32"
    ]  # fmt: skip
    out = [
        backend.empty((len(x), w.shape[1]), "float32") for x, w in zip(a[:4], b[:4], strict=True)
    ]
    given = dlkern.grouped_matmul(
        *(x[:4] for x in lists[:2]), scale_a=lists[2][:4], scale_b=lists[3][:4], out=out
    )
    assert all(y is z for y, z in zip(given, out, strict=True))
    new = dlkern.grouped_matmul(*(x[:1] for x in lists[:2]), out_dtype="float32")
    check(backend, new[0], *product(a[0], b[0]))
    for i in range(4):
        of_a, of_b = (1.0 if s[i] is None else s[i] for s in (scale_a, scale_b))
        expected, scale = product(a[i], b[i], of_a, of_b)
        check(backend, out[i], expected, scale)
        check(backend, results[i], expected, scale, str(backend.raw(results[i]).dtype))
    np.testing.assert_array_equal(backend.raw(results[4]), a[4].astype("i4") @ b[4].astype("i4"))


# ---- Wrong arguments -----------------------------------------------------------------------


def e(*shape, dtype="float8_e4m3fn"):
    return np.zeros(shape, numpy_dtype(dtype))


def i(*shape):
    return np.zeros(shape, "int8")


def f(*shape):
    return np.ones(shape, "float32")


A, B = e(200, 300), e(2, 300, 4)
DEPTH = e(3, 200), e(200, 4)


@pytest.mark.parametrize(
    ("operands", "options", "error", "message"),
    [
        ((e(6, 3, dtype="uint8"), e(2, 3, 4)), {}, TypeError,
         "a.dtype is uint8, expected float64 or .* or int8"),
        ((A, i(2, 300, 4)), {}, TypeError, "b.dtype is int8, expected float8_e4m3fn or"),
        ((i(200, 300), B), {}, TypeError, "b.dtype is float8_e4m3fn, expected int8"),
        ((A, f(2, 300, 4)), {}, TypeError, "b.dtype is float32"),
        ((f(200, 300), B), {}, TypeError, "b.dtype is float8_e4m3fn, expected float32"),
        ((f(200, 300), f(2, 300, 4)), {"scale_b": f()}, ValueError,
         "scale_b is given, expected none beside float32 operands"),
        ((A, B), {"scale_a": f(3)}, ValueError,
         r"scale_a.shape is \[3\], expected \[\], \[200\], \[200, 1\], \[200, 3\] or \[2, 3\]"),
        ((A, B), {"scale_a": f(2, 200, 1)}, ValueError,
         "scale_a has 3 dimensions, expected 0 to 2"),
        ((A, B), {"scale_b": f(4)}, ValueError,
         r"scale_b.shape is \[4\], expected \[\], \[2\], \[2, 4\], \[2, 1, 4\], \[2, 3, 4\] or "
         r"\[2, 3, 1\]"),
        ((A, B), {"scale_b": f(3, 4)}, ValueError, r"scale_b.shape is \[3, 4\]"),
        ((A, B), {"scale_b": f(2, 4, 1)}, ValueError, r"scale_b.shape is \[2, 4, 1\]"),
        ((A, B), {"scale_b": f(3, 1, 4)}, ValueError, r"scale_b.shape is \[3, 1, 4\]"),
        ((A, B), {"scale_b": f(1, 2, 1, 4)}, ValueError, "scale_b has 4 dimensions"),
        ((A, B), {"scale_a": f(200).astype("f8")}, TypeError, "scale_a.dtype is float64"),
        ((A, B), {"scale_b": np.ones(2, "f2")}, TypeError, "scale_b.dtype is float16"),
        ((i(200, 300), i(2, 300, 4)), {"scale_b": f(2, 3, 4)}, NotImplementedError,
         "scale_b has factors along k"),
        ((i(200, 300), i(2, 300, 4)), {"scale_a": f(200, 3)}, NotImplementedError,
         "scale_a has factors along k"),
        (DEPTH, {"scale_a": f(3, 2)}, NotImplementedError,
         r"scale_a.shape is \[3, 2\], but a packed depth takes only .* each row"),
        (DEPTH, {"scale_b": f(2, 1)}, NotImplementedError,
         r"scale_b.shape is \[2, 1\], but a packed depth takes only .* each column"),
        (DEPTH, {"scale_b": f(2, 2, 4)}, NotImplementedError, r"scale_b.shape is \[2, 2, 4\], but"),
        (DEPTH, {"scale_a": f(2)}, ValueError, r"scale_a.shape is \[2\], expected \[\], \[3\]"),
        (DEPTH, {"scale_b": f(3, 1, 4)}, ValueError, r"scale_b.shape is \[3, 1, 4\], expected"),
        (DEPTH, {"bias": f(2, 4)}, ValueError, "bias is given"),
        ((A, B), {"bias": np.ones((2, 4))}, TypeError, "bias.dtype is float64"),
        ((A, B), {"bias": f(4)}, ValueError, r"bias.shape is \[4\]"),
        ((A, B), {"out_dtype": "float64"}, TypeError, "y.dtype is float64"),
        ((A, B), {"out_dtype": "int32"}, TypeError, "y.dtype is int32"),
        ((A, B), {"out_dtype": "float9"}, ValueError, "out_dtype is 'float9'"),
        ((f(200, 300), f(2, 300, 4)), {"out_dtype": "int32"}, TypeError, "y.dtype is int32"),
        ((i(200, 300), i(2, 300, 4)), {"out_dtype": "int32", "scale_a": f()}, TypeError,
         "y.dtype is int32, expected a floating one"),
        ((A, B), {"out": f(200, 3)}, ValueError, r"out.shape is \[200, 3\]"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, operands, options, error, message):
    if "out" in options:
        options = options | {"out": backend.array(options["out"])}
    with pytest.raises(error, match=f"grouped_matmul: {message}"):
        call(backend, *operands, (100, 200), **options)


def test_an_output_overlaps_no_scale(backend):
    both = backend.array(np.ones((200, 4), "f4"))
    arrays = [backend.array(v) for v in (A, B, np.array([100, 200]))]
    with pytest.raises(ValueError, match="out overlaps scale_a|y overlaps scale_a"):
        dlkern.grouped_matmul(*arrays, scale_a=both[:, 0], out=both)


def test_wrong_lists(backend):
    a, b, scale = (backend.array(v) for v in (e(4, 4), e(4, 4), f(4)))
    floats = backend.array(f(4, 4))
    with pytest.raises(TypeError, match="scale_a is .*, expected a list as a is"):
        dlkern.grouped_matmul([a], [b], scale_a=scale)
    with pytest.raises(ValueError, match="scale_b has 2 arrays, expected 1"):
        dlkern.grouped_matmul([a], [b], scale_b=[scale, scale])
    with pytest.raises(ValueError, match="scale_b is given, expected None beside float32 operands"):
        dlkern.grouped_matmul([a, floats], [b, floats], scale_b=[None, scale])
    with pytest.raises(ValueError, match=r"out\[0\] overlaps scale_a\[1\]"):
        out = backend.array(f(4, 4))
        dlkern.grouped_matmul([a, a], [b, b], scale_a=[None, out[0]], out=[out, None])
