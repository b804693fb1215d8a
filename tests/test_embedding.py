"""embedding, its gradient and one_hot, against NumPy."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64, numpy_dtype, rounded
from test_layout import DTYPES, same_bytes

import dlkern

INDEX = ("int32", "int64")


def gradient(dy, ids, rows, by_freq=False, padding_idx=None):
    """The sum for each row, and that of magnitudes."""
    dy = float64(dy).reshape(ids.size, dy.shape[-1])
    dweight, scale = np.zeros((2, rows, dy.shape[1]))
    np.add.at(dweight, ids.ravel(), dy)
    np.add.at(scale, ids.ravel(), np.abs(dy))
    if by_freq:
        counts = np.maximum(np.bincount(ids.ravel(), minlength=rows), 1)[:, None]
        dweight, scale = dweight / counts, scale / counts
    if padding_idx is not None:
        dweight[padding_idx] = 0
    return dweight, scale


@pytest.mark.sanitize
@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("columns", [1, 3, 8, 64, 100])
def test_forward(backend, dtype, rng, index, columns):
    weight = rounded(rng.standard_normal((37, columns)), dtype)
    for shape in ((), (5,), (4, 9), (2, 3, 50)):
        ids = rng.integers(0, 37, shape).astype(index)
        y = dlkern.embedding(backend.array(ids), backend.array(weight))
        same_bytes(backend.raw(y), weight[ids])


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout):
    """EDGE 21, 26."""
    for dtype, columns in (("float32", 12), ("bfloat16", 16)):
        weight = rounded(rng.standard_normal((11, columns)), dtype)
        ids = rng.integers(0, 11, (6, 7))
        y = backend.empty((6, 7, columns), dtype, layout)
        dlkern.embedding(backend.array(ids, layout), backend.array(weight), out=y)
        same_bytes(np.ascontiguousarray(backend.raw(y)), weight[ids])
        y = backend.empty((6, 7, columns), dtype)
        dlkern.embedding(backend.array(ids), backend.array(weight, layout), out=y)
        same_bytes(backend.raw(y), weight[ids])
        dy = rounded(rng.standard_normal((6, 7, columns)), dtype)
        expected, scale = gradient(dy, ids, 11)
        for layouts in ((layout, layout, "contiguous"), ("contiguous", "contiguous", layout)):
            out = backend.empty((11, columns), dtype, layouts[2])
            arrays = backend.array(dy, layouts[0]), backend.array(ids, layouts[1])
            dlkern.embedding_backward(*arrays, out=out)
            assert_close(backend.numpy(out), expected, dtype, "sum", scale)


# Numbers of ids and of rows.
SETS = {
    "no ids": (0, 5),
    "one row": (900, 1),
    "few": (10, 7),
    "many rows": (300, 5000),
    "several tiles": (5000, 97),
    "three digits": (3000, 70000),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", SETS)
def test_backward(backend, dtype, rng, name):
    n, rows = SETS[name]
    ids = rng.integers(0, rows, n)
    ids[: n // 3] = rows // 2  # a row that many share
    for columns in (8, 3) if rows < 10000 else (1,):
        dy = rounded(rng.standard_normal((n, columns)), dtype)
        expected, scale = gradient(dy, ids, rows)
        out = dlkern.embedding_backward(backend.array(dy), backend.array(ids), rows)
        assert_close(backend.numpy(out), expected, dtype, "sum", scale)


@pytest.mark.parametrize("index", INDEX)
def test_backward_options(backend, dtype, rng, index):
    ids = rng.integers(0, 9, (40, 30)).astype(index)
    dy = rounded(rng.standard_normal((40, 30, 16)), dtype)
    before = rounded(rng.standard_normal((9, 16)), dtype)
    put = backend.array
    for by_freq in (False, True):
        expected, scale = gradient(dy, ids, 9, by_freq, padding_idx=-2)
        out = put(before)
        options = {"padding_idx": -2, "scale_grad_by_freq": by_freq}
        assert dlkern.embedding_backward(put(dy), put(ids), 9, out=out, **options) is out
        assert_close(backend.numpy(out), expected, dtype, "sum", scale)
        out = put(before)
        dlkern.embedding_backward(put(dy), put(ids), out=out, accumulate=True, **options)
        assert_close(backend.numpy(out), expected + float64(before), dtype, "sum",
                     scale + np.abs(float64(before)))  # fmt: skip


def test_float32_gradient_of_16_bits(backend, rng):
    ids = rng.integers(0, 5, 700)
    dy = rounded(rng.standard_normal((700, 24)), "bfloat16")
    expected, scale = gradient(dy, ids, 5)
    out = backend.empty((5, 24), "float32")
    dlkern.embedding_backward(backend.array(dy), backend.array(ids), out=out)
    assert_close(backend.numpy(out), expected, "float32", "sum", scale)


def test_edge_2_sums_of_16_bits_are_kept_in_float32(backend):
    dy = rounded(np.array([[32000.0]] * 4 + [[-32000.0]] * 4), "float16")
    out = dlkern.embedding_backward(backend.array(dy), backend.array(np.zeros(8, np.int64)), 1)
    assert backend.numpy(out)[0, 0] == 0


def test_bits_of_a_row_depend_on_its_own_ids(backend, rng):
    """A row of 1000 ids in several pieces, alone and among others."""
    n = 3000
    ids = rng.integers(0, 40, n)
    ids[rng.permutation(n)[:1000]] = 40
    dy = rng.standard_normal((n, 20)).astype(np.float32)
    many = backend.raw(dlkern.embedding_backward(backend.array(dy), backend.array(ids), 41))
    for row in (40, 7):
        own = ids == row
        only = np.zeros(own.sum(), np.int64)
        one = dlkern.embedding_backward(backend.array(dy[own]), backend.array(only), 1)
        same_bytes(backend.raw(one)[0], many[row])


def test_gradient_by_differences(rng):
    ids = rng.integers(0, 4, (2, 5))
    weight, dy = rng.standard_normal((4, 3)), rng.standard_normal((2, 5, 3))
    dweight = dlkern.embedding_backward(dy, ids, 4)
    assert_grad(lambda w: dlkern.embedding(ids, w), [weight], dy, [dweight])


# ---- one_hot -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_hot_dtypes(backend, rng, dtype):
    for classes in (1, 3, 16, 50):
        ids = rng.integers(0, classes, (7, 5))
        out = backend.empty((7, 5, classes), dtype)
        dlkern.one_hot(backend.array(ids), classes, dtype=dtype, out=out)
        expected = np.eye(classes)[ids].astype(numpy_dtype(dtype))
        same_bytes(backend.raw(out), expected)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_hot_layouts(backend, rng, layout):
    ids = rng.integers(0, 12, (3, 4)).astype("int32")
    out = backend.empty((3, 4, 12), "int64", layout)
    dlkern.one_hot(backend.array(ids, layout), 12, out=out)
    np.testing.assert_array_equal(backend.raw(out), np.eye(12)[ids])


def test_edge_22_nothing(backend):
    none = backend.array(np.zeros((0, 3), np.int64))
    assert backend.raw(dlkern.one_hot(none, 5)).shape == (0, 3, 5)
    y = dlkern.embedding(none, backend.array(np.zeros((4, 2))))
    assert backend.raw(y).shape == (0, 3, 2)
    dweight = dlkern.embedding_backward(y, none, 4)
    np.testing.assert_array_equal(backend.raw(dweight), np.zeros((4, 2)))


# ---- Ids out of range ----------------------------------------------------------------------------


@pytest.mark.sanitize
@pytest.mark.parametrize("bad", [-1, 5, 2**40, -(2**62)])
def test_edge_8_ids_out_of_range(backend, rng, bad):
    ids = np.array([1, bad, 3])
    weight, dy = rng.standard_normal((5, 4)), rng.standard_normal((3, 4))
    put = backend.array
    calls = {
        "embedding": lambda: dlkern.embedding(put(ids), put(weight)),
        "embedding_backward": lambda: dlkern.embedding_backward(put(dy), put(ids), 5),
        "one_hot": lambda: dlkern.one_hot(put(ids), 5),
    }
    if not backend.is_gpu:
        for name, call in calls.items():
            with pytest.raises(ValueError, match=f"{name}: ids holds {bad} at flat index 1"):
                call()
        return
    y = backend.numpy(calls["embedding"]())
    np.testing.assert_array_equal(y[[0, 2]], weight[[1, 3]])
    assert np.isnan(y[1]).all()
    dweight = backend.numpy(calls["embedding_backward"]())
    np.testing.assert_array_equal(dweight, gradient(dy[[0, 2]], ids[[0, 2]], 5)[0])
    hot = backend.numpy(calls["one_hot"]())
    np.testing.assert_array_equal(hot, [[0, 1, 0, 0, 0], [0] * 5, [0, 0, 0, 1, 0]])


IDS, W = np.array([0, 1]), np.ones((3, 4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.embedding(a(IDS.astype(float)), a(W)), TypeError, "ids.dtype is float64"),
        (lambda a: dlkern.embedding(a(IDS), a(np.ones(3))), ValueError, "weight has 1 dimensions"),
        (lambda a: dlkern.embedding(a(IDS), a(W.astype(int))), TypeError, "weight.dtype is int64"),
        (lambda a: dlkern.embedding(a(IDS), a(W), out=a(W)), ValueError,
         r"out.shape is \[3, 4\], expected \[2, 4\]"),
        (lambda a: dlkern.embedding_backward(a(W), a(IDS), 5), ValueError,
         r"dy.shape is \[3, 4\], expected \[2, 4\]"),
        (lambda a: dlkern.embedding_backward(a(W[:2]), a(IDS)), TypeError, "num_embeddings is"),
        (lambda a: dlkern.embedding_backward(a(W[:2]), a(IDS), 5, padding_idx=5), ValueError,
         "padding_idx is 5"),
        (lambda a: dlkern.embedding_backward(a(W[:2]), a(IDS), 5, accumulate=True), ValueError,
         "accumulate is True"),
        (lambda a: dlkern.embedding_backward(a(W[:2]), a(IDS), 5, out=a(W)), ValueError,
         "out has 3 rows, expected 5"),
        (lambda a: dlkern.one_hot(a(IDS), 2.5), TypeError, "num_classes is 2.5"),
        (lambda a: dlkern.one_hot(a(IDS), -1), ValueError, "num_classes is -1"),
        (lambda a: dlkern.one_hot(a(IDS), 3, dtype="long"), ValueError, "dtype is 'long'"),
        (lambda a: dlkern.one_hot(a(IDS), 3, out=a(np.ones((2, 3)))), TypeError,
         "out.dtype is float64, expected int64"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)
