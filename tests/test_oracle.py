"""The checker itself: it accepts rounding and nothing else."""

import numpy as np
import pytest
from oracle import FLOATS, assert_close, assert_grad, numpy_dtype, rounded


@pytest.fixture
def expected(rng):
    return rng.uniform(0.5, 2.0, (7, 11))


@pytest.mark.parametrize("dtype", FLOATS)
def test_accepts_correct_rounding(expected, dtype):
    assert_close(rounded(expected, dtype), expected, dtype, "softmax")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, "one bit too many"])
def test_rejects_one_bad_element(expected, dtype, value):
    actual = rounded(expected, dtype)
    if value == "one bit too many":
        value = float(actual[3, 4]) * (1 + 64 * float(np.finfo("f4").eps))
        if dtype == "float64":
            value = float(actual[3, 4]) * (1 + 64 * float(np.finfo("f8").eps))
        if dtype in ("float16", "bfloat16"):
            value = float(np.nextafter(actual[3, 4], numpy_dtype(dtype).type(9)))
            value = float(np.nextafter(rounded(value, dtype), numpy_dtype(dtype).type(9)))
    actual = actual.astype(np.float64)
    actual[3, 4] = value
    with pytest.raises(AssertionError, match=r"1 of 77 elements.*\n  \[3, 4\]"):
        assert_close(actual, expected, dtype, "softmax")


def test_not_finite_values_must_be_in_the_same_places():
    special = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert_close(special, special, "float32", "softmax")
    for wrong in ([0, np.inf, -np.inf, 1], [np.nan, -np.inf, -np.inf, 1], [np.nan] * 4):
        with pytest.raises(AssertionError):
            assert_close(np.array(wrong), special, "float32", "softmax")


def test_overflow_of_the_dtype_is_infinity():
    assert_close([np.inf], [1e6], "float16", "matmul")
    with pytest.raises(AssertionError):
        assert_close([65504.0], [1e6], "float16", "matmul")


def test_exact_rows_allow_no_error():
    assert_close([1.0, -0.0], [1.0, 0.0], "float32", "exact")
    with pytest.raises(AssertionError):
        assert_close([np.nextafter(np.float32(1), 2)], [1.0], "float32", "exact")


def test_scale_is_what_was_summed():
    assert_close([1e-4], [0.0], "float32", "matmul", scale=1e3)
    with pytest.raises(AssertionError):
        assert_close([1e-4], [0.0], "float32", "matmul", scale=1.0)


def test_rejects_another_shape_and_an_unknown_op():
    with pytest.raises(AssertionError, match="shape"):
        assert_close(np.zeros((2, 1)), np.zeros(2), "float32", "softmax")
    with pytest.raises(KeyError):
        assert_close([0.0], [0.0], "float32", "no such op")


def test_gradient_checker_rejects_a_wrong_gradient(rng):
    x, dy = rng.standard_normal(5), rng.standard_normal(5)
    assert_grad(np.tanh, [x], dy, [dy * (1 - np.tanh(x) ** 2)])
    wrong = dy * (1 - np.tanh(x) ** 2)
    wrong[2] *= 1.001
    with pytest.raises(AssertionError):
        assert_grad(np.tanh, [x], dy, [wrong])
