"""Matrix products bound by memory: many rows times a small matrix, long sums for a small y."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import assert_close, float64, rounded

import dlkern

pytestmark = pytest.mark.gpu

ROWS, LONG = 4099, 33001
# k, n: in vectors, and element by element on either side and on both.
SHAPES = ((16, 96), (96, 16), (144, 24), (24, 144), (64, 56), (8, 8), (160, 32), (120, 56),
          (64, 2), (40, 31), (2, 64), (13, 40), (3, 21), (1, 3))  # fmt: skip
SIDES = ((96, 16), (16, 96), (24, 144), (144, 24), (2, 64), (64, 48), (6, 10))  # of long sums


@pytest.fixture(params=["float16", "bfloat16"])
def kind(gpu, request):
    if dlkern.devices()[0]["compute_capability"] < (8, 0):
        pytest.skip("needs compute capability 8.0")
    return request.param


@pytest.fixture
def only():
    """Limits which implementations calls may choose."""
    yield dlkern._dlkern.set_implementations
    dlkern._dlkern.set_implementations("")


def chosen(op, *args, **options):
    return dlkern.explain(op, *args, **options)[0].implementation


def normal(rng, shape, kind):
    return rounded(rng.standard_normal(shape), kind)


def check(gpu, y, a, b, kind, addend=0.0):
    a, b = float64(a), float64(b)
    scale = np.abs(a) @ np.abs(b) + np.abs(addend)
    assert_close(gpu.numpy(y), a @ b + addend, kind, "matmul", scale=scale)


# ---- Many rows -----------------------------------------------------------------------------


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("k, n", SHAPES)
def test_many_rows(gpu, kind, k, n, layout, rng):
    """Rows that fill no tile; the small operand along k and along n; with and without a bias."""
    a, b, bias = (normal(rng, s, kind) for s in ((ROWS, k), (k, n), (n,)))
    x, w, of_columns = gpu.array(a), gpu.array(b, layout), gpu.array(bias)
    assert chosen(dlkern.matmul, x, w) == "mma_sm80_stream"
    check(gpu, dlkern.matmul(x, w), a, b, kind)
    assert chosen(dlkern.matmul, x, w, of_columns) == "mma_sm80_stream"
    check(gpu, dlkern.matmul(x, w, of_columns), a, b, kind, float64(bias))


def test_padded_rows_and_batches(gpu, kind, rng):
    """Rows longer than k, items apart from each other; nothing is written between rows of y."""
    whole, b = normal(rng, (3, 2000, 40), kind), normal(rng, (24, 16), kind)
    a, w = gpu.array(whole)[:, :1997, 8:32], gpu.array(b)
    y = gpu.array(np.full_like(normal(rng, (3, 2000, 32), kind), 7))
    out = y[:, :1997, 8:24]
    assert chosen(dlkern.matmul, a, w, out=out) == "mma_sm80_stream"
    dlkern.matmul(a, w, out=out)
    check(gpu, out, whole[:, :1997, 8:32], b, kind)
    around = np.array(gpu.numpy(y))
    around[:, :1997, 8:24] = 7
    np.testing.assert_array_equal(around, 7)


@pytest.mark.parametrize("k, n", SHAPES)
def test_a_row_has_the_same_bits_among_any_number_of_rows(gpu, kind, k, n, rng):
    a, b = normal(rng, (ROWS, k), kind), gpu.array(normal(rng, (k, n), kind))
    many = gpu.raw(dlkern.matmul(gpu.array(a), b, batch_invariant=True))
    for m in (1, 2, 15, 16, 17, 33, 100, 4095):
        some = gpu.array(a[:m])
        assert chosen(dlkern.matmul, some, b, batch_invariant=True) == "mma_sm80_stream"
        few = gpu.raw(dlkern.matmul(some, b, batch_invariant=True))
        np.testing.assert_array_equal(few.view("uint8"), many[:m].view("uint8"))


def test_an_addend_of_any_shape_gives_the_same_bits(gpu, kind, rng):
    """A row, a matrix of equal rows, the result itself; one row of y and many."""
    a, b, row = (normal(rng, s, kind) for s in ((ROWS, 24), (24, 40), (1, 40)))
    x, w, c, equal = gpu.array(a), gpu.array(b), gpu.array(row), np.repeat(row, ROWS, 0)
    expected = gpu.raw(dlkern.matmul(x, w, c, batch_invariant=True))[0].tobytes()
    out = gpu.array(equal)
    unaligned = gpu.array(np.repeat(row, ROWS, 0), "unaligned")
    for addend, m in ((c, ROWS), (gpu.array(equal), ROWS), (unaligned, ROWS), (out, ROWS), (c, 1)):
        options = {"batch_invariant": True} | ({"out": out} if addend is out else {})
        assert chosen(dlkern.matmul, x[:m], w, addend, **options) == "mma_sm80_stream"
        y = dlkern.matmul(x[:m], w, addend, **options)
        check(gpu, y, a[:m], b, kind, float64(row))
        assert gpu.raw(y)[0].tobytes() == expected


def test_nan_stays_in_its_row_and_column(gpu, kind, rng):
    """Also past the end of k, where registers hold zeros."""
    a, b = normal(rng, (ROWS, 24), kind), normal(rng, (24, 40), kind)
    a[5], b[3, 7] = np.nan, np.inf
    y = gpu.numpy(dlkern.matmul(gpu.array(a), gpu.array(b)))
    assert np.isnan(y[5]).all() and not np.isfinite(y[:, 7]).any()
    assert np.isfinite(np.delete(np.delete(y, 5, 0), 7, 1)).all()


def test_many_rows_leaves_other_products_alone(gpu, kind, rng):
    def name(k, n, rows=ROWS, shift=0, **options):
        a = gpu.array(normal(rng, (rows, k + shift), kind))[:, shift:]
        return chosen(dlkern.matmul, a, gpu.array(normal(rng, (k, n), kind)), **options)

    assert name(16, 32) == "mma_sm80_stream"
    for k, n in ((20, 32), (16, 34), (168, 16), (64, 264), (128, 96)):
        assert name(k, n) != "mma_sm80_stream"
    assert name(16, 32, rows=100) != "mma_sm80_stream"
    assert name(16, 32, shift=1) == "mma_sm80_stream"
    assert name(24, 32, shift=1) != "mma_sm80_stream"
    assert name(16, 32, alpha=0.5) != "mma_sm80_stream"


@pytest.mark.parametrize("c, k", [(16, 96), (96, 16)])
def test_pointwise_convolution(gpu, kind, c, k, rng):
    x, w = normal(rng, (3, 37, 41, c), kind), normal(rng, (k, 1, 1, c), kind)
    y = dlkern.conv(gpu.array(x), gpu.array(w), layout="NHWC")
    check(gpu, y, x, w[:, 0, 0].T, kind)
    one = dlkern.conv(gpu.array(x[1:2]), gpu.array(w), layout="NHWC")
    np.testing.assert_array_equal(gpu.raw(one)[0].view("uint8"), gpu.raw(y)[1].view("uint8"))


# ---- Long sums -----------------------------------------------------------------------------


@pytest.mark.sanitize
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("m, n", SIDES)
def test_long_sums(gpu, kind, m, n, bias, rng):
    """Few rows, few columns, neither; copies of 16 and 4 bytes; sums of rows beside them."""
    dy, x = normal(rng, (LONG, m), kind), normal(rng, (LONG, n), kind)
    arrays = gpu.array(dy), gpu.array(x)
    assert chosen(dlkern.linear_backward_weight, *arrays, bias=bias) == "mma_sm80_long_sum"
    dw, db = dlkern.linear_backward_weight(*arrays, bias=bias)
    check(gpu, dw, dy.T, x, kind)
    if bias:
        total, scale = float64(dy).sum(0), np.abs(float64(dy)).sum(0)
        assert_close(gpu.numpy(db), total, kind, "linear", scale=scale)


def test_long_sums_accumulate_with_the_same_bits_every_time(gpu, kind, rng):
    dy, x, before = (normal(rng, s, kind) for s in ((LONG, 96), (LONG, 16), (96, 16)))
    arrays, bits = (gpu.array(dy), gpu.array(x)), set()
    for _ in range(20):
        out = gpu.array(before)
        dlkern.linear_backward_weight(*arrays, accumulate=True, out=out)
        bits.add(gpu.raw(out).tobytes())
    check(gpu, out, dy.T, x, kind, float64(before))
    assert len(bits) == 1


def test_long_sums_leaves_other_products_alone(gpu, kind, only, rng):
    dy, x = gpu.array(normal(rng, (LONG, 96), kind)), gpu.array(normal(rng, (LONG, 16), kind))
    odd = gpu.array(normal(rng, (LONG, 15), kind))
    name = "mma_sm80_long_sum"
    assert chosen(dlkern.linear_backward_weight, dy, odd) != name
    assert chosen(dlkern.linear_backward_weight, dy, dy) != name
    assert chosen(dlkern.linear_backward_weight, dy[:30000], x[:30000]) != name
    only("mma_sm80_split_k")
    dw, _ = dlkern.linear_backward_weight(dy, x)
    check(gpu, dw, gpu.numpy(dy).T, gpu.numpy(x), kind)
