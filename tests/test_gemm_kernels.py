"""Each kind of GPU kernel for matrix products on its own, whichever one a call would choose."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, float64, numpy_dtype, rounded
from test_gemm_grouped_scaled import depth_f64, depth_scales, rows_f64, scales_a, scales_b

import dlkern

pytestmark = pytest.mark.gpu

KERNELS = ("mma_sm80", "simt")
EXTENTS = (1, 2, 7, 8, 15, 16, 31, 33, 64, 65, 127, 128, 129, 255, 257)
# Operands, and the precision that is asked for.
OPERANDS = ("float64", "tf32", "float16", "bfloat16")


@pytest.fixture(params=KERNELS)
def kernel(request):
    """The name of the one kind of kernel that calls may choose."""
    if request.param == "mma_sm80" and dlkern.devices()[0]["compute_capability"] < (8, 0):
        pytest.skip("needs compute capability 8.0")
    dlkern._dlkern.set_implementations(f"{request.param},{request.param}_split_k")
    yield request.param
    dlkern._dlkern.set_implementations("")


def normal(rng, shape, kind):
    """Normal numbers of an operand of that kind, and its dtype; tf32 has 10 bits of fraction."""
    x = rng.standard_normal(shape)
    if kind == "tf32":
        bits = x.astype("float32").view("uint32") & np.uint32(0xFFFFE000)
        return bits.view("float32"), "float32"
    return rounded(x, kind), kind


def precision(kind):
    return {"precision": "tf32"} if kind == "tf32" else {}


def check(gpu, y, a, b, dtype):
    a, b = float64(a), float64(b)
    assert_close(gpu.numpy(y), a @ b, dtype, "matmul", scale=np.abs(a) @ np.abs(b))


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("seed", range(3))
def test_random_shapes_and_layouts(gpu, kernel, kind, seed):
    """EDGE 21, 26: any extents, each operand in any layout."""
    choose, rng = random.Random(seed), np.random.default_rng(seed)
    for _ in range(20):
        m, n, k = (choose.choice(EXTENTS) for _ in range(3))
        a, dtype = normal(rng, (m, k), kind)
        b, _ = normal(rng, (k, n), kind)
        y = gpu.empty((m, n), dtype, choose.choice(LAYOUTS))
        arrays = (gpu.array(x, choose.choice(LAYOUTS)) for x in (a, b))
        dlkern.matmul(*arrays, out=y, **precision(kind))
        check(gpu, y, a, b, dtype)


def padded_operands(gpu, rng, order, sizes, pad, kind):
    """Operands a and b, each on the host and as a view on the GPU.

    They are stored in `order` ("ik,jk": b transposed), with rows `pad` elements longer.
    """
    extent, operands = dict(zip("ijk", sizes, strict=True)), []
    for stored, wanted in zip(order.split(","), ("ik", "kj"), strict=True):
        rows, columns = (extent[letter] for letter in stored)
        whole = normal(rng, (rows, columns + pad), kind)[0]
        pair = whole[:, :columns], gpu.array(whole)[:, :columns]
        operands.append(pair if stored == wanted else tuple(x.T for x in pair))
    return operands


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize(
    "pad", [*(pytest.param(p, marks=pytest.mark.sanitize) for p in (0, 1)), 2, 4, 8]
)
@pytest.mark.parametrize("order", ["ik,jk", "ik,kj", "ki,jk", "ki,kj"])
def test_copies_of_every_width(gpu, kernel, kind, pad, order, rng):
    """Rows of k + pad elements: copies of 16, 8 and 4 bytes, and element by element."""
    m, n, k = 70, 66, 72
    (a, view_a), (b, view_b) = padded_operands(gpu, rng, order, (m, n, k), pad, kind)
    dtype = "float32" if kind == "tf32" else kind
    out = gpu.empty((m, n), dtype)
    dlkern.matmul(view_a, view_b, out=out, **precision(kind))
    check(gpu, out, a, b, dtype)


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("extents", [(2100, 2050, 100), (1100, 900, 100), (40, 70, 700)])
def test_all_tiles(gpu, kernel, kind, extents, rng):
    m, n, k = extents
    a, dtype = normal(rng, (m, k), kind)
    b, _ = normal(rng, (k, n), kind)
    for layout in ("contiguous", "transposed"):
        y = gpu.empty((m, n), dtype)
        dlkern.matmul(gpu.array(a, layout), gpu.array(b, layout), out=y, **precision(kind))
        check(gpu, y, a, b, dtype)


@pytest.mark.parametrize("kind", OPERANDS)
def test_a_row_has_the_same_bits_among_any_number_of_rows(gpu, kernel, kind, rng):
    (a, _), (b, _) = normal(rng, (2500, 200), kind), normal(rng, (200, 1100), kind)
    few = {"batch_invariant": True} | precision(kind)
    many = gpu.raw(dlkern.matmul(gpu.array(a), gpu.array(b), **few))
    for m in (1, 2, 16, 17, 64, 100, 129, 1000, 2048):
        some = gpu.raw(dlkern.matmul(gpu.array(a[:m]), gpu.array(b), **few))
        np.testing.assert_array_equal(some.view("uint8"), many[:m].view("uint8"))


@pytest.mark.parametrize("kind", OPERANDS)
def test_the_same_bits_every_time(gpu, kernel, kind, rng):
    (a, _), (b, _) = normal(rng, (300, 500), kind), normal(rng, (500, 200), kind)
    a, b = gpu.array(a), gpu.array(b)
    first = gpu.raw(dlkern.matmul(a, b, **precision(kind))).tobytes()
    for _ in range(100):
        assert gpu.raw(dlkern.matmul(a, b, **precision(kind))).tobytes() == first


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("shape", [(1, 33, 70), (33, 1, 70), (33, 35, 37), (34, 38, 42)])
def test_nothing_is_read_past_the_end(gpu, kernel, kind, shape, rng):
    """Lines that end within a copy of 16 bytes, the last one with its array."""
    m, n, k = shape
    (a, dtype), (b, _) = normal(rng, (m, k), kind), normal(rng, (k, n), kind)
    for layout_a, layout_b in itertools.product(("contiguous", "transposed"), repeat=2):
        y = dlkern.matmul(gpu.array(a, layout_a), gpu.array(b, layout_b), **precision(kind))
        check(gpu, y, a, b, dtype)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", OPERANDS)
def test_batches_and_summed_batches(gpu, kernel, kind, rng):
    """A batch with broadcasting, and a gradient that is summed over one: k of two dimensions."""
    (a, dtype), (b, _) = normal(rng, (3, 2, 40, 50), kind), normal(rng, (2, 50, 33), kind)
    y = dlkern.matmul(gpu.array(a), gpu.array(b), **precision(kind))
    check(gpu, y, a, b, dtype)
    dy, _ = normal(rng, (3, 2, 40, 33), kind)
    arrays = (gpu.array(x) for x in (dy, a, b))
    _, db = dlkern.matmul_backward(*arrays, **precision(kind))
    parts = [np.swapaxes(size(float64(a)), -1, -2) @ size(float64(dy)) for size in (np.array, abs)]
    expected, scale = (part.sum(0) for part in parts)
    assert_close(gpu.numpy(db), expected, dtype, "matmul", scale=scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("rows", [0, 1, 100, 3001])
def test_weight_gradient_with_bias(gpu, kernel, kind, rows, rng):
    """Row sums as a by-product, in one piece and in parts of unequal length."""
    (dy, dtype), (x, _) = normal(rng, (rows, 33), kind), normal(rng, (rows, 70), kind)
    arrays = [gpu.array(dy), gpu.array(x)]
    options = {"bias": True} | precision(kind)
    plan = dlkern.explain(dlkern.linear_backward_weight, *arrays, **options)[0]
    assert plan.implementation == kernel + ("_split_k" if rows > 3000 else "")
    dweight, dbias = dlkern.linear_backward_weight(*arrays, **options)
    check(gpu, dweight, dy.T, x, dtype)
    total, scale = float64(dy).sum(0), np.abs(float64(dy)).sum(0)
    assert_close(gpu.numpy(dbias), total, dtype, "linear", scale=scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("order", ["ik,jk", "ik,kj", "ki,jk", "ki,kj"])
def test_long_sums_in_parts(gpu, kernel, kind, order, rng):
    """Any product with a small y, its last part shorter; one chain where bits must not change."""
    (a, dtype), (b, _) = normal(rng, (70, 3001), kind), normal(rng, (3001, 66), kind)
    (c, _), (bias, _) = normal(rng, (70, 66), kind), normal(rng, (66,), kind)
    layouts = ["contiguous" if part in ("ik", "kj") else "transposed" for part in order.split(",")]
    x, y = (gpu.array(v, layout) for v, layout in zip((a, b), layouts, strict=True))
    plan = dlkern.explain(dlkern.matmul, x, y, **precision(kind))[0]
    assert plan.implementation == f"{kernel}_split_k"
    check(gpu, dlkern.matmul(x, y, **precision(kind)), a, b, dtype)
    plan = dlkern.explain(dlkern.matmul, x, y, batch_invariant=True, **precision(kind))[0]
    assert plan.implementation == kernel
    expected, scale = float64(a) @ float64(b), np.abs(float64(a)) @ np.abs(float64(b))
    for layout in ("contiguous", "transposed"):
        out = gpu.array(c, layout)
        dlkern.matmul(x, y, out, alpha=0.5, beta=2.0, out=out, **precision(kind))
        assert_close(gpu.numpy(out), 0.5 * expected + 2 * float64(c), dtype, "matmul",
                     scale=scale + 2 * np.abs(float64(c)))  # fmt: skip
    weight = gpu.array(b.T.copy())
    relu = dlkern.linear(x, weight, gpu.array(bias), activation="relu", **precision(kind))
    assert_close(gpu.numpy(relu), np.maximum(expected + float64(bias), 0), dtype, "linear",
                 scale=scale + np.abs(float64(bias)))  # fmt: skip


def test_no_parts_where_they_do_not_help(gpu, kernel, rng):
    """Short sums, and a y with a tile for every block."""
    for m, n, k in ((70, 66, 1000), (1500, 1500, 1100)):
        a, b = (gpu.array(rng.standard_normal(s).astype("float16")) for s in ((m, k), (k, n)))
        assert dlkern.explain(dlkern.matmul, a, b)[0].implementation == kernel


def test_weight_gradient_of_no_columns_has_a_bias(gpu, kernel, rng):
    dy, x = rounded(rng.standard_normal((20, 5)), "float16"), np.zeros((20, 0), "float16")
    _, dbias = dlkern.linear_backward_weight(gpu.array(dy), gpu.array(x), bias=True)
    assert_close(gpu.numpy(dbias), float64(dy).sum(0), "float16", "linear", scale=20.0)


@pytest.mark.parametrize("kind", OPERANDS)
def test_nan_infinity_and_the_smallest(gpu, kernel, kind):
    dtype = "float32" if kind == "tf32" else kind
    tiny = 2.0**-24 if kind == "float16" else 2.0**-126
    a = rounded([[1, 2], [0, 1], [1, -1], [tiny, 0]], dtype)
    b = rounded([[np.inf, 0, 1], [1, np.nan, 1]], dtype)
    y = gpu.numpy(dlkern.matmul(gpu.array(a), gpu.array(b), **precision(kind)))
    np.testing.assert_array_equal(y[[0, 2], :2], [[np.inf, np.nan], [np.inf, np.nan]])
    assert np.isnan(y[1, :2]).all()  # 0 * inf
    assert y[3, 2] == tiny


# ---- float32 -------------------------------------------------------------------------------


def test_full_precision_is_not_rounded_to_tf32(gpu, rng):
    x = gpu.array(rng.standard_normal((8, 8)).astype("float32"))
    plan = dlkern.explain(dlkern.matmul, x, x)[0]
    assert "mma_sm80: declined, float32 products are wanted in full precision" in plan.explanation


def test_tf32_is_rounded_to_nearest(gpu, kernel):
    """Ties away from zero, as cvt.rna does; the portable kernel does not round at all."""
    a = np.array([[1 + 2**-11], [1 + 2**-12], [-1 - 2**-11]], "float32")
    one = np.ones((1, 1), "float32")
    y = gpu.numpy(dlkern.matmul(gpu.array(a), gpu.array(one), precision="tf32"))
    expected = [[1 + 2**-10], [1], [-1 - 2**-10]] if kernel == "mma_sm80" else a
    np.testing.assert_array_equal(y, expected)


# ---- 8 bits --------------------------------------------------------------------------------


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "unaligned", "strided"])
def test_int8_is_exact(gpu, kernel, layout, rng):
    for m, n, k in ((70, 90, 130), (2100, 2050, 40), (3, 5, 1000)):
        a, b = (rng.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n)))
        y = gpu.empty((m, n), "int32")
        dlkern.scaled_matmul(gpu.array(a, layout), gpu.array(b, layout), out=y)
        np.testing.assert_array_equal(gpu.numpy(y), a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.sanitize
@pytest.mark.parametrize("of_a", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("of_b", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("blocks", [False, True])
def test_float8_with_scales(gpu, kernel, of_a, of_b, blocks, rng):
    """Factors of rows and columns, and of blocks of 128 along k (the last one short)."""
    for m, n, k in ((70, 90, 300), (2100, 2050, 140), (3, 5, 1000)):
        a = rounded(rng.standard_normal((m, k)), of_a)
        b = rounded(rng.standard_normal((n, k)), of_b)
        pieces = -(-k // 128)
        scale_a = rng.uniform(0.5, 2, (m, pieces if blocks else 1)).astype("float32")
        scale_b = rng.uniform(0.5, 2, (-(-n // 128), pieces) if blocks else (n, 1))
        scale_b = scale_b.astype("float32")
        y = gpu.empty((m, n), "float32")
        dlkern.scaled_matmul(*map(gpu.array, (a, b.T, scale_a, scale_b.T.copy())), out=y)
        wide_a, wide_b = float64(scale_a), float64(scale_b)
        if blocks:
            wide_a = np.repeat(wide_a, 128, 1)[:, :k]
            wide_b = np.repeat(np.repeat(wide_b, 128, 0)[:n], 128, 1)[:, :k]
        check(gpu, y, float64(a) * wide_a, (float64(b) * wide_b).T, "float32")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_every_float8(gpu, kernel, dtype):
    codes = np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype))[:, None]
    one = gpu.array(np.ones((1, 1), numpy_dtype(dtype)))
    y = gpu.empty((256, 1), "float32")
    dlkern.scaled_matmul(gpu.array(codes), one, out=y)
    np.testing.assert_array_equal(gpu.numpy(y), float64(codes))


# ---- Groups --------------------------------------------------------------------------------


OFFSETS = ([0, 5, 5, 133, 300], [300] * 5, [0] * 5, [1, 2, 3, 4, 250])


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("index", [pytest.param("int32", marks=pytest.mark.sanitize), "int64"])
@pytest.mark.parametrize("offsets", OFFSETS)
def test_groups_of_rows(gpu, kernel, kind, index, offsets, rng):
    """Empty groups, groups that begin within a tile, rows beyond the last one."""
    (a, dtype), (b, _) = normal(rng, (300, 40), kind), normal(rng, (5, 40, 70), kind)
    y = gpu.empty((300, 70), dtype)
    dlkern.grouped_matmul(
        gpu.array(a), gpu.array(b), gpu.array(np.array(offsets, index)), out=y, **precision(kind)
    )
    result, begin = gpu.numpy(y), 0
    for g, end in enumerate(offsets):
        fa, fb = float64(a[begin:end]), float64(b[g])
        assert_close(result[begin:end], fa @ fb, dtype, "matmul", scale=np.abs(fa) @ np.abs(fb))
        begin = end
    assert np.isnan(result[begin:]).all()  # not written


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize(
    "layout", [pytest.param("contiguous", marks=pytest.mark.sanitize), "transposed"]
)
@pytest.mark.parametrize("offsets", OFFSETS)
def test_groups_of_the_depth(gpu, kernel, kind, layout, offsets, rng):
    """Empty groups give zeros; k begins anywhere."""
    (a, dtype), (b, _) = normal(rng, (65, 300), kind), normal(rng, (300, 33), kind)
    y = gpu.empty((5, 65, 33), dtype)
    arrays = gpu.array(a, layout), gpu.array(b, layout), gpu.array(np.array(offsets, "int32"))
    dlkern.grouped_matmul(*arrays, out=y, **precision(kind))
    result, begin = gpu.numpy(y), 0
    for g, end in enumerate(offsets):
        fa, fb = float64(a[:, begin:end]), float64(b[begin:end])
        assert_close(result[g], fa @ fb, dtype, "matmul", scale=np.abs(fa) @ np.abs(fb))
        begin = end


FACTORS = (
    ("none", "none"),
    ("row", "row2"),
    ("tensor", "each"),
    ("piece", "block"),
    ("block", "row"),
)


def eight_bits(rng, shape, dtype):
    if dtype == "int8":
        return rng.integers(-128, 128, shape, np.int8)
    return rounded(rng.standard_normal(shape), dtype)


@pytest.mark.sanitize
@pytest.mark.parametrize("dtypes", [("float8_e4m3fn", "float8_e5m2"), ("int8", "int8")])
@pytest.mark.parametrize("kinds", FACTORS)
@pytest.mark.parametrize("offsets", OFFSETS)
def test_groups_of_rows_with_scales(gpu, kernel, dtypes, kinds, offsets, rng):
    """Each group has factors of its own; those of rows are of the packed tensor."""
    if dtypes[0] == "int8" and "block" in kinds:
        pytest.skip("int8 has no factors along k")
    for n, layout in ((70, "contiguous"), (129, "transposed"), (5, "unaligned")):
        a, b = eight_bits(rng, (300, 200), dtypes[0]), eight_bits(rng, (5, 200, n), dtypes[1])
        of_a, of_b = scales_a(kinds[0], rng, 300, 200), scales_b(kinds[1], rng, 5, n, 200)
        scales = (None if s is None else gpu.array(s) for s in (of_a, of_b))
        y = gpu.empty((300, n), "float32")
        arrays = gpu.array(a, layout), gpu.array(b, layout), gpu.array(np.array(offsets))
        dlkern.grouped_matmul(*arrays, None, *scales, out=y)
        expected, scale = rows_f64(a, b, offsets, of_a, of_b)
        assert_close(gpu.numpy(y), expected, "float32", "matmul", scale=scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("dtypes", [("float8_e4m3fn", "float8_e5m2"), ("int8", "int8")])
@pytest.mark.parametrize("kind", ["none", "row2", "each row"])
@pytest.mark.parametrize("offsets", OFFSETS)
def test_groups_of_the_depth_with_scales(gpu, kernel, dtypes, kind, offsets, rng):
    for layout in ("contiguous", "transposed", "unaligned"):
        a, b = eight_bits(rng, (65, 300), dtypes[0]), eight_bits(rng, (300, 33), dtypes[1])
        of_a, of_b = (depth_scales(kind, rng, 5, rows) for rows in (65, 33))
        if of_b is not None:
            of_b = np.swapaxes(of_b, -1, -2)
        scales = (None if s is None else gpu.array(s) for s in (of_a, of_b))
        y = gpu.empty((5, 65, 33), "float32")
        arrays = gpu.array(a, layout), gpu.array(b, layout), gpu.array(np.array(offsets))
        dlkern.grouped_matmul(*arrays, None, *scales, out=y)
        expected, scale = depth_f64(a, b, offsets, of_a, of_b)
        assert_close(gpu.numpy(y), expected, "float32", "matmul", scale=scale)


# ---- Thin products -------------------------------------------------------------------------

THIN = (1, 2, 4, 5, 8, 9, 16, 17, 32)
LONG = (64, 65, 127, 128, 130, 256, 257, 1000, 2500)
DEPTHS = (0, 1, 2, 7, 63, 64, 65, 128, 130, 257, 1000, 1024, 2049, 5000)
TYPES = ("float64", "float32", "tf32", "float16", "bfloat16")


@pytest.fixture
def thin(gpu):
    """The kernel for thin products, which leaves some to tensor cores: the rest goes to simt."""
    dlkern._dlkern.set_implementations("simt_thin,simt")
    yield
    dlkern._dlkern.set_implementations("")


def is_thin(*args, **options):
    return dlkern.explain(*args, **options)[0].implementation == "simt_thin"


def thin_shape(choose):
    shape = (choose.choice(THIN), choose.choice(LONG))
    return *(shape if choose.random() < 0.5 else shape[::-1]), choose.choice(DEPTHS)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(4))
def test_thin_shapes_and_layouts(gpu, thin, kind, seed):
    """Few rows and few columns, each operand in any layout, parts of unequal length, K = 0."""
    choose, rng = random.Random(seed), np.random.default_rng(seed)
    counted = 0
    for _ in range(25):
        m, n, k = thin_shape(choose)
        (a, dtype), (b, _) = normal(rng, (m, k), kind), normal(rng, (k, n), kind)
        y = gpu.empty((m, n), dtype, choose.choice(LAYOUTS))
        arrays = [gpu.array(x, choose.choice(LAYOUTS)) for x in (a, b)]
        options = {"out": y} | precision(kind)
        counted += is_thin(dlkern.matmul, *arrays, **options)
        dlkern.matmul(*arrays, **options)
        check(gpu, y, a, b, dtype)
    assert counted > 12


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    "pad", [*(pytest.param(p, marks=pytest.mark.sanitize) for p in (0, 1)), 2, 4, 8]
)
@pytest.mark.parametrize("order", ["ik,jk", "ik,kj", "ki,jk", "ki,kj"])
def test_thin_by_vectors_and_by_elements(gpu, thin, kind, pad, order, rng):
    """Rows of k + pad elements, of the long operand and of the short one."""
    for m, n, k in ((3, 200, 328), (200, 1, 328), (8, 72, 1096), (64, 6, 2056)):
        (a, view_a), (b, view_b) = padded_operands(gpu, rng, order, (m, n, k), pad, kind)
        dtype = "float32" if kind == "tf32" else kind
        out = gpu.empty((m, n), dtype)
        options = {"out": out} | precision(kind)
        assert is_thin(dlkern.matmul, view_a, view_b, **options)
        dlkern.matmul(view_a, view_b, **options)
        check(gpu, out, a, b, dtype)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(1, 97, 200), (97, 1, 203), (8, 66, 2051), (66, 5, 2052)])
def test_thin_reads_nothing_past_the_end(gpu, thin, kind, shape, rng):
    m, n, k = shape
    (a, dtype), (b, _) = normal(rng, (m, k), kind), normal(rng, (k, n), kind)
    for layout_a, layout_b in itertools.product(("contiguous", "transposed"), repeat=2):
        arrays = gpu.array(a, layout_a), gpu.array(b, layout_b)
        assert is_thin(dlkern.matmul, *arrays, **precision(kind))
        check(gpu, dlkern.matmul(*arrays, **precision(kind)), a, b, dtype)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "unaligned"])
def test_thin_batches(gpu, thin, kind, layout, rng):
    """Items of their own, and one operand for all items."""
    for shape_a, shape_b in (
        ((3, 2, 4, 130), (2, 130, 96)),
        ((5, 70, 130), (130, 3)),
        ((5, 1, 200), (5, 200, 65)),
        ((70, 130), (4, 130, 7)),
        ((3, 2, 1100), (3, 1100, 2)),
    ):
        (a, dtype), (b, _) = normal(rng, shape_a, kind), normal(rng, shape_b, kind)
        arrays = gpu.array(a, layout), gpu.array(b, layout)
        check(gpu, dlkern.matmul(*arrays, **precision(kind)), a, b, dtype)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("extents", [(4, 300, 200), (300, 4, 200), (8, 64, 5000), (64, 8, 5000)])
def test_thin_with_the_whole_epilogue(gpu, thin, kind, extents, rng):
    """Bias, activation and residual; accumulation into the result; in one piece and in parts."""
    m, n, k = extents
    (x, dtype), (w, _), (bias, _) = (normal(rng, s, kind) for s in ((m, k), (n, k), (n,)))
    residual, _ = normal(rng, (m, n), kind)
    options = {"activation": "gelu"} | precision(kind)
    arrays = [gpu.array(v) for v in (x, w, bias)]
    assert is_thin(dlkern.linear, *arrays, residual=gpu.array(residual), **options)
    y, pre = dlkern.linear(
        *arrays, residual=gpu.array(residual), preactivation=True, **options
    )  # fmt: skip
    z = float64(x) @ float64(w).T + float64(bias)
    scale = np.abs(float64(x)) @ np.abs(float64(w)).T + np.abs(float64(bias)) + 1
    assert_close(gpu.numpy(pre), z, dtype, "linear", scale=scale)
    gelu = z * 0.5 * np.vectorize(math.erfc)(-z / math.sqrt(2))
    assert_close(gpu.numpy(y), gelu + float64(residual), dtype, "linear",
                 scale=scale + np.abs(float64(residual)))  # fmt: skip
    for layout in ("contiguous", "transposed", "strided"):
        out = gpu.array(residual, layout)
        dlkern.matmul(arrays[0], gpu.array(w.T.copy()), out, alpha=0.5, beta=-1.0, out=out,
                      **precision(kind))  # fmt: skip
        expected = 0.5 * (z - float64(bias)) - float64(residual)
        assert_close(gpu.numpy(out), expected, dtype, "matmul",
                     scale=scale + np.abs(float64(residual)))  # fmt: skip


@pytest.mark.parametrize("out_dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_thin_result_of_another_dtype(gpu, thin, kind, out_dtype, rng):
    a, b = (rounded(rng.standard_normal(s), kind) for s in ((3, 5000), (5000, 100)))
    y = gpu.empty((3, 100), out_dtype)
    dlkern.matmul(gpu.array(a), gpu.array(b), out=y)
    check(gpu, y, a, b, "float32" if out_dtype == "float64" else out_dtype)


def test_edge_11_12_thin_sum_over_nothing(gpu, thin, dtype, rng):
    """K = 0 and beta = 0 give zeros, also into NaN; NaN in c does not matter."""
    c = rounded(rng.standard_normal((5, 100)), dtype)
    a, b = gpu.array(np.zeros((5, 0), c.dtype)), gpu.array(np.zeros((0, 100), c.dtype))
    assert is_thin(dlkern.matmul, a, b)
    out = gpu.empty((5, 100), dtype)
    dlkern.matmul(a, b, out=out)
    np.testing.assert_array_equal(gpu.numpy(out), 0)
    dlkern.matmul(a, b, gpu.array(c), out=out)
    np.testing.assert_array_equal(gpu.numpy(out), float64(c))
    nan = gpu.empty((5, 100), dtype)
    a, b = (rounded(rng.standard_normal(s), dtype) for s in ((5, 300), (300, 100)))
    dlkern.matmul(gpu.array(a), gpu.array(b), nan, beta=0.0, out=nan)
    check(gpu, nan, a, b, dtype)


def test_thin_nan_and_infinity(gpu, thin, dtype):
    """They stay where they belong: in one row, and where zeros multiply them."""
    w, x = np.ones((100, 200)), np.zeros((2, 200))
    w[3, 5], w[4, 6], w[5, 199] = np.inf, np.nan, -np.inf
    x[1] = 1
    arrays = gpu.array(rounded(x, dtype)), gpu.array(rounded(w.T.copy(), dtype))
    y = gpu.numpy(dlkern.matmul(*arrays))
    assert np.isnan(y[0, 3:6]).all()
    np.testing.assert_array_equal(y[1, 3:6], [np.inf, np.nan, -np.inf])
    rest = np.delete(y, (3, 4, 5), 1)
    np.testing.assert_array_equal(rest, np.array([[0], [200]]) + np.zeros((2, 97)))


def test_thin_leaves_other_products_alone(gpu, thin, rng):
    a = gpu.array(rng.standard_normal((4, 300)).astype("float32"))
    b = gpu.array(rng.standard_normal((300, 200)).astype("float32"))
    assert is_thin(dlkern.matmul, a, b)
    assert not is_thin(dlkern.matmul, a, b, batch_invariant=True)
    assert not is_thin(dlkern.matmul, a.T, a)  # nothing of this y is thin
    assert not is_thin(dlkern.linear_backward_weight, a.T, b, bias=True)


@pytest.mark.parametrize("kind", TYPES)
def test_thin_has_the_same_bits_every_time(gpu, thin, kind, rng):
    (a, _), (b, _) = normal(rng, (7, 5000), kind), normal(rng, (5000, 300), kind)
    a, b = gpu.array(a), gpu.array(b)
    first = gpu.raw(dlkern.matmul(a, b, **precision(kind))).tobytes()
    for _ in range(100):
        assert gpu.raw(dlkern.matmul(a, b, **precision(kind))).tobytes() == first
