"""logsumexp, forward and backward, against float64."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64, rounded

import dlkern


def logsumexp_f64(x, axis=None, keepdims=False):
    with np.errstate(divide="ignore"):
        m = x.max(axis, keepdims=True, initial=-np.inf)
        m = np.where(np.isinf(m), 0, m)
        y = m + np.log(np.exp(x - m).sum(axis, keepdims=True))
    return y if keepdims else y.squeeze(axis)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((7,), None),
        ((3, 1), 1),
        ((4, 33), -1),
        ((5, 4099), 1),
        ((2, 100003), -1),
        ((33, 70), 0),
        ((6, 5, 17), (0, 2)),
        ((6, 5, 17), None),
        ((5, 0), 1),
    ],
)
def test_forward_and_backward(backend, dtype, rng, shape, axis):
    x = rounded(3 * rng.standard_normal(shape), dtype)
    for keepdims in (False, True):
        y = dlkern.logsumexp(backend.array(x), axis, keepdims=keepdims)
        right = logsumexp_f64(float64(x), axis, keepdims)
        scale = np.where(np.isfinite(right), np.abs(right), 0) + 10
        assert_close(backend.numpy(y), right, dtype, "cross_entropy", scale=scale)
    y = rounded(right, dtype)
    dy = rounded(rng.standard_normal(y.shape), dtype)
    dx = dlkern.logsumexp_backward(backend.array(dy), backend.array(x), backend.array(y), axis)
    expected = float64(dy) * np.exp(float64(x) - float64(y))
    assert_close(backend.numpy(dx), expected, dtype, "softmax", scale=8 * np.abs(expected))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, (1, 2)])
def test_layouts(backend, rng, layout, axis):
    x = rounded(rng.standard_normal((5, 3, 37)), "float32")
    right = logsumexp_f64(float64(x), axis)
    y = backend.empty(right.shape, "float32", layout)
    dlkern.logsumexp(backend.array(x, layout), axis, out=y)
    assert_close(backend.numpy(y), right, "float32", "cross_entropy", scale=np.abs(right) + 4)


@pytest.mark.parametrize("n", [3, 700])
def test_edge_06_rows_of_infinities_and_nan(backend, dtype, n):
    inf = np.inf
    x = np.full((5, n), -inf)
    x[1, :2], x[2, :2], x[3, :2], x[4, 2] = (inf, 0), (np.nan, 0), (inf, np.nan), 2
    x = backend.array(rounded(x, dtype))
    y = dlkern.logsumexp(x, 1)
    np.testing.assert_array_equal(backend.numpy(y), [-inf, inf, np.nan, np.nan, 2])
    ones = backend.array(rounded(np.ones(5), dtype))
    dx = backend.numpy(dlkern.logsumexp_backward(ones, x, y, 1))
    np.testing.assert_array_equal(dx[0], np.zeros(n))
    np.testing.assert_array_equal(dx[4], np.eye(n)[2])


def test_extreme_values(backend, dtype):
    big = {"float16": 6e4}.get(dtype, 1e30)
    x = rounded([[big, big, -big], [-big, -big, -big], [0, -big, 0]], dtype)
    right = logsumexp_f64(float64(x), 1)
    y = dlkern.logsumexp(backend.array(x), 1)
    assert_close(backend.numpy(y), right, dtype, "cross_entropy", scale=np.abs(right) + 1)


def test_gradient_by_finite_differences(rng):
    x = rng.standard_normal((3, 5))
    for axis in (None, 0, 1):
        y = np.asarray(dlkern.logsumexp(x, axis))
        dy = np.asarray(rng.standard_normal(y.shape))
        dx = dlkern.logsumexp_backward(dy, x, y, axis)
        assert_grad(lambda v, axis=axis: dlkern.logsumexp(v, axis), [x], dy, [dx])
