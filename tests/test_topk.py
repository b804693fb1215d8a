"""The k first elements of rows and their gradient, against sorting in NumPy."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import FLOATS, float64, rounded

import dlkern

# Rows that stay in the registers of a team or a block, that are filtered, and that are searched
# digit by digit.
CASES = [
    ((1,), 1), ((5, 7), 3), ((300, 64), 2), ((64, 256), 8), ((9, 250), 32), ((3, 2000), 5),
    ((2, 9000), 256), ((2, 5001), 300), ((2, 3000), 3000), ((1, 70000), 5000), ((4, 0), 0),
    ((2, 32768), 2048), ((1, 40000), 100),
]  # fmt: skip


def indices_f64(x, k, largest=True):
    """By value and place; NaN is the largest."""
    values = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x
    keys = [np.broadcast_to(np.arange(x.shape[-1]), x.shape)]
    nan = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
    # ~ turns the order of integers round, of the smallest too, which has no negative.
    falling = ~values if x.dtype.kind == "i" else -values
    keys += [falling, ~nan] if largest else [values, nan]
    return np.lexsort(keys, axis=-1)[..., :k]


def check(backend, x, k, result, largest=True):
    values, indices = (backend.numpy(array) for array in result)
    exact = x if x.dtype.kind == "i" else float64(x)
    expected = indices_f64(exact, k, largest)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(exact, expected, -1))


@pytest.mark.sanitize
@pytest.mark.parametrize(("shape", "k"), CASES)
def test_every_length(backend, dtype, rng, shape, k):
    x = rounded(rng.standard_normal(shape), dtype)  # 16-bit types: with ties
    for largest in (True, False):
        check(backend, x, k, dlkern.top_k(backend.array(x), k, largest=largest), largest)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(backend, rng, dtype):
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (7, 900), dtype=dtype, endpoint=True)
    x[:, 5], x[:, 9] = info.max, info.min
    for k in (4, 200, 900):
        for largest in (True, False):
            check(backend, x, k, dlkern.top_k(backend.array(x), k, largest=largest), largest)


@pytest.mark.parametrize("shape", [(6, 40), (3, 3000), (2, 20000)])
def test_ties_and_special_values(backend, dtype, rng, shape):
    """Of equal elements the first; NaN is the largest; many ties overflow the filter's buffer."""
    x = rounded(rng.choice([np.nan, np.inf, -np.inf, 0, -0.0, 1], shape), dtype)
    constant = np.full(shape, 3.0, x.dtype)
    for k in (1, 7, 30, min(shape[1], 500)):
        for largest in (True, False):
            check(backend, x, k, dlkern.top_k(backend.array(x), k, largest=largest), largest)
        check(backend, constant, k, dlkern.top_k(backend.array(constant), k))


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout):
    """EDGE 21, 26: any strides and alignment, any axis, indices of both types."""
    for n, k in ((12, 3), (2050, 40)):
        x = rounded(rng.standard_normal((3, 2, n)), "float16")
        for axis in range(3):
            moved = np.moveaxis(x, -1, axis)
            shape = tuple(k if d == axis else m for d, m in enumerate(moved.shape))
            values = backend.empty(shape, "float16", layout)
            indices = backend.empty(shape, ("int32", "int64")[axis % 2], layout)
            dlkern.top_k(
                backend.array(moved, layout), k, axis, out=values, out_indices=indices
            )  # fmt: skip
            got = [np.moveaxis(backend.numpy(a), axis, -1) for a in (values, indices)]
            exact = float64(x)
            expected = indices_f64(exact, k)
            np.testing.assert_array_equal(got[1], expected)
            np.testing.assert_array_equal(got[0], np.take_along_axis(exact, expected, -1))


def test_unsorted(backend, rng):
    x = rounded(rng.standard_normal((4, 700)), "float32")
    for k in (5, 300):
        values, indices = dlkern.top_k(backend.array(x), k, sorted=False)
        expected = np.sort(indices_f64(float64(x), k), -1)
        np.testing.assert_array_equal(np.sort(backend.numpy(indices), -1), expected)
        picked = np.take_along_axis(float64(x), backend.numpy(indices), -1)
        np.testing.assert_array_equal(backend.numpy(values), picked)


def test_a_row_does_not_depend_on_the_others(backend, dtype, rng):
    """EDGE 15's rule."""
    x = rounded(rng.standard_normal((9, 1000)), dtype)
    many = dlkern.top_k(backend.array(x), 20)
    one = dlkern.top_k(backend.array(x[4:5]), 20)
    for a, b in zip(many, one, strict=True):
        np.testing.assert_array_equal(float64(backend.raw(a))[4:5], float64(backend.raw(b)))


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_backward(backend, dtype, rng, layout):
    x = rounded(rng.standard_normal((3, 50, 4)), dtype)
    indices = np.moveaxis(indices_f64(float64(np.moveaxis(x, 1, -1)), 6), -1, 1).copy()
    dy = rounded(rng.standard_normal(indices.shape), dtype)
    expected = np.zeros(x.shape)
    np.put_along_axis(expected, indices, float64(dy), 1)
    out = backend.empty(x.shape, dtype, layout)
    dlkern.top_k_backward(
        backend.array(dy, layout), backend.array(indices, layout), None, 1, out=out
    )
    np.testing.assert_array_equal(backend.numpy(out), expected)
    dx = dlkern.top_k_backward(backend.array(dy), backend.array(indices), x.shape, 1)
    np.testing.assert_array_equal(backend.numpy(dx), expected)


def test_backward_leaves_out_what_is_out_of_range(backend):
    dy, indices = np.ones((1, 3), "float32"), np.array([[1, 7, -1]])
    dx = dlkern.top_k_backward(backend.array(dy), backend.array(indices), (1, 4))
    np.testing.assert_array_equal(backend.numpy(dx), [[0, 1, 0, 0]])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.top_k(a(np.zeros((2, 3))), 4), ValueError, "k is 4, expected at most 3"),
        (lambda a: dlkern.top_k(a(np.zeros((2, 3))), -1), ValueError, "k is -1"),
        (lambda a: dlkern.top_k(a(np.zeros((2, 3))), 1.0), TypeError, "k is 1.0"),
        (lambda a: dlkern.top_k(a(np.zeros((2, 3))), 1, 2), ValueError, "axis is 2"),
        (lambda a: dlkern.top_k(a(np.zeros(3, bool)), 1), TypeError, "top_k: x.dtype is bool"),
        (lambda a: dlkern.top_k(a(np.zeros(3)), 1, out_indices=a(np.zeros(1))), TypeError,
         "out_indices.dtype is float64, expected int64 or int32"),
        (lambda a: dlkern.top_k_backward(a(np.zeros((2, 3))), a(np.zeros((2, 2), int)), (2, 5)),
         ValueError, r"indices.shape is \[2, 2\]"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_all_dtypes_are_covered():
    for dtype in FLOATS:
        values, indices = dlkern.top_k(rounded([1, 2], dtype), 1)
        assert float64(values) == 2
        assert indices == 1
