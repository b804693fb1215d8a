"""Activations and their gradients against float64."""

import math

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64, rounded

import dlkern

cdf = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), otypes=[float])
U, CUBE = math.sqrt(2 / math.pi), 0.044715


def density(x):
    """Of the normal distribution; in long double, since exp blows up the rounding error of x^2."""
    square = np.square(np.asarray(x, np.longdouble))
    return (np.exp(-square / 2) / math.sqrt(2 * math.pi)).astype(np.float64)


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def sigmoid_slope(x):
    e = np.exp(-np.abs(x))
    return e / (1 + e) ** 2


def u2(x):  # (1 + tanh u) / 2 = sigmoid(2 u), without cancellation
    return 2 * U * (x + CUBE * x**3)


# Name -> arguments, the function, its derivative or the terms of it that may cancel.
CASES = {
    "relu": ({}, lambda x: np.where(x <= 0, 0, x), lambda x: np.where(x <= 0, 0.0, 1.0)),
    "leaky_relu": (
        {"negative_slope": 0.125},
        lambda x: np.where(x > 0, x, 0.125 * x),
        lambda x: np.where(x > 0, 1, 0.125),
    ),
    "elu": (
        {"alpha": 1.5},
        lambda x: np.where(x > 0, x, 1.5 * np.expm1(np.minimum(x, 0))),
        lambda x: np.where(x > 0, 1, 1.5 * np.exp(np.minimum(x, 0))),
    ),
    "gelu": (
        {},
        lambda x: x * cdf(x),
        lambda x: (cdf(x), x * density(x)),
    ),
    "gelu_tanh": (
        {"approximate": "tanh"},
        lambda x: x * sigmoid(u2(x)),
        lambda x: (sigmoid(u2(x)), x * sigmoid_slope(u2(x)) * 2 * U * (1 + 3 * CUBE * x * x)),
    ),
    "silu": ({}, lambda x: x * sigmoid(x), lambda x: (sigmoid(x), x * sigmoid_slope(x))),
    "sigmoid": ({}, sigmoid, sigmoid_slope),
    "tanh": ({}, np.tanh, lambda x: 4 * sigmoid_slope(2 * x)),
    "softplus": (
        {"beta": 2.0},
        lambda x: np.where(2 * x > 20, x, np.logaddexp(0, 2 * x) / 2),
        lambda x: np.where(2 * x > 20, 1, sigmoid(2 * x)),
    ),
}
SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def softplus(x):
    return np.logaddexp(0, x)


def mish_terms(x):
    """tanh(softplus(x)), and x times its derivative (1 - tanh^2) sigmoid, without cancellation."""
    two_sp = 2 * softplus(x)
    return np.tanh(softplus(x)), x * 4 * sigmoid_slope(two_sp) * sigmoid(x)


CASES |= {
    "relu6": (
        {},
        lambda x: np.clip(x, 0, 6),
        lambda x: np.where((x > 0) & (x < 6), 1.0, 0.0),
    ),
    "hardswish": (
        {},
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        lambda x: (
            np.where(np.abs(x) < 3, x / 3, 0),
            np.where(x <= -3, 0, np.where(x < 3, 0.5, 1)),
        ),
    ),
    "hardsigmoid": (
        {},
        lambda x: np.clip(x + 3, 0, 6) / 6,
        lambda x: np.where(np.abs(x) < 3, 1 / 6, 0),
    ),
    "mish": ({}, lambda x: x * np.tanh(softplus(x)), mish_terms),
    "selu": (
        {},
        lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0))),
        lambda x: SELU_SCALE * np.where(x > 0, 1, SELU_ALPHA * np.exp(np.minimum(x, 0))),
    ),
}
each_case = pytest.mark.parametrize("case", CASES)


def gradient(case, dy, x):
    """The gradient, and the size of its terms."""
    x, dy = float64(x), float64(dy)
    slope = CASES[case][2](x)
    terms = slope if isinstance(slope, tuple) else (slope,)
    scale = np.abs(dy) * sum(map(np.abs, terms))
    if case == "gelu_tanh":  # e^2u multiplies the rounding error of 2u
        scale = scale * (1 + np.abs(u2(x)) / 4)
        # ... and on a GPU, where it is subnormal, it is 0.
        scale += np.abs(dy) * 2.0**-126 * np.abs(u2(x)) / np.finfo(np.float32).eps
    return dy * sum(terms), scale


def forward(case, x, **kwargs):
    function = getattr(dlkern, case.removesuffix("_tanh"))
    return function(x, **CASES[case][0], **kwargs)


def backward(case, dy, x, **kwargs):
    function = getattr(dlkern, case.removesuffix("_tanh") + "_backward")
    return function(dy, x, **CASES[case][0], **kwargs)


@each_case
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (7,), (1029,), (3, 5, 67), (40, 1030)])
def test_forward_and_backward(backend, dtype, rng, case, shape):
    x = rounded(3 * rng.standard_normal(shape), dtype)
    dy = rounded(rng.standard_normal(shape), dtype)
    y = backend.numpy(forward(case, backend.array(x)))
    assert_close(y, CASES[case][1](float64(x)), dtype, case.removesuffix("_tanh"))
    dx = backend.numpy(backward(case, backend.array(dy), backend.array(x)))
    expected, scale = gradient(case, dy, x)
    assert_close(dx, expected, dtype, "activation_backward", scale)


@each_case
def test_gradient_by_finite_differences(rng, case):
    x, dy = 2 * rng.standard_normal((2, 3, 11))
    assert_grad(lambda v: forward(case, v), [x], dy, [backward(case, dy, x)])


@pytest.mark.parametrize(
    ("function", "exact", "low", "high", "ulp"),
    [
        (dlkern.tanh, math.tanh, -1e3, 1e3, 3),
        (dlkern.sigmoid, lambda x: float(sigmoid(x)), -80, 80, 4),
        (dlkern.elu, math.expm1, -1e3, 0, 2),
        (lambda x: dlkern.elu_backward(np.ones_like(x), x), math.exp, -86, 0, 1.5),
        (dlkern.softplus, lambda x: math.log1p(math.exp(x)), -86, 15, 4),
        (dlkern.gelu, lambda x: x * float(cdf(x)), -12.9, 20, 8),
        (dlkern.silu, lambda x: x * float(sigmoid(x)), -80, 80, 5),
        (dlkern.mish, lambda x: x * math.tanh(float(softplus(x))), -80, 80, 8),
    ],
    ids=["tanh", "sigmoid", "expm1", "exp", "log1p", "normal", "silu", "mish"],
)
def test_float32_functions_in_units_of_the_last_place(function, exact, low, high, ulp):
    """Over all magnitudes and densely where most inputs lie."""
    bits = np.arange(0, 0x7F800000, 30011, dtype=np.int64).astype(np.uint32).view(np.float32)
    x = np.concatenate([bits, -bits, np.linspace(-8, 8, 50001, dtype=np.float32)])
    x = x[(x >= low) & (x <= high)]
    expected = np.array([exact(float(v)) for v in x])
    unit = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    error = np.abs(float64(function(x)) - expected) / unit
    assert error.max() <= ulp, (x[error.argmax()], error.max())


@each_case
def test_an_element_does_not_depend_on_its_place(backend, dtype, rng, case):
    """Vector body, tail and strided walk compute the same bits."""
    x = rounded(3 * rng.standard_normal((3, 1093)), dtype)
    dy = rounded(rng.standard_normal(x.shape), dtype)
    y = backend.raw(forward(case, backend.array(x)))
    dx = backend.raw(backward(case, backend.array(dy), backend.array(x)))
    for part in (np.s_[1:2, 5:6], np.s_[:, 1:], np.s_[2:, 3:20], np.s_[::2, ::-3]):
        xs, dys = np.ascontiguousarray(x[part]), np.ascontiguousarray(dy[part])
        some = backend.raw(forward(case, backend.array(xs)))
        np.testing.assert_array_equal(some, y[part])
        some = backend.raw(backward(case, backend.array(dys), backend.array(xs)))
        np.testing.assert_array_equal(some, dx[part])


@pytest.mark.sanitize
@pytest.mark.parametrize("out_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout, out_layout):
    """EDGE 21, 26: the same bits for any strides and alignment."""
    for dtype, shape in (("float32", (3, 5, 37)), ("float16", (3, 4, 64)), ("float64", (2, 33))):
        x = rounded(rng.standard_normal(shape), dtype)
        dy = rounded(rng.standard_normal(shape), dtype)
        y = backend.empty(shape, dtype, out_layout)
        assert dlkern.gelu(backend.array(x, layout), out=y) is y
        np.testing.assert_array_equal(backend.raw(y), backend.raw(dlkern.gelu(backend.array(x))))
        dx = backend.empty(shape, dtype, out_layout)
        dlkern.gelu_backward(backend.array(dy), backend.array(x, layout), out=dx)
        expected = dlkern.gelu_backward(backend.array(dy), backend.array(x))
        np.testing.assert_array_equal(backend.raw(dx), backend.raw(expected))


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_zero_strides(backend, dtype, rng, layout):
    """A broadcast gradient, as frameworks make them for a sum."""
    x = rounded(rng.standard_normal((6, 40)), dtype)
    for dy in (rounded([[2.0]], dtype), rounded(rng.standard_normal((1, 40)), dtype)):
        dx = backend.empty(x.shape, dtype, layout)
        dlkern.silu_backward(backend.broadcast(dy, x.shape), backend.array(x), out=dx)
        expected, scale = gradient("silu", dy, x)
        assert_close(backend.numpy(dx), expected, dtype, "activation_backward", scale)


@each_case
def test_in_place(backend, dtype, rng, case):
    x = rounded(3 * rng.standard_normal((5, 1031)), dtype)
    dy = rounded(rng.standard_normal(x.shape), dtype)
    y = backend.raw(forward(case, backend.array(x)))
    dx = backend.raw(backward(case, backend.array(dy), backend.array(x)))
    a = backend.array(x)
    assert forward(case, a, out=a) is a
    np.testing.assert_array_equal(backend.raw(a), y)
    a, b = backend.array(dy), backend.array(x)
    backward(case, a, b, out=a)
    np.testing.assert_array_equal(backend.raw(a), dx)
    a, b = backend.array(dy), backend.array(x)
    backward(case, a, b, out=b)
    np.testing.assert_array_equal(backend.raw(b), dx)


def test_partial_overlap_is_refused(backend):
    base = backend.array(np.zeros(40))
    with pytest.raises(ValueError, match="out overlaps x"):
        dlkern.relu(base[:-1], out=base[1:])
    dlkern.relu(base[0::2], out=base[1::2])  # interleaved views share nothing


def test_edge_03_gelu_far_from_zero(backend, dtype):
    x = rounded([11.0, -6.0, -13.24, 60.0, -60.0], dtype)
    for case, at_6 in (("gelu", -5.92e-9), ("gelu_tanh", -8.44e-11)):
        y = backend.numpy(forward(case, backend.array(x)))
        assert y[0] == 11
        if dtype != "float16":  # where both are 0
            assert y[1] == pytest.approx(at_6, rel=5e-3 if dtype == "bfloat16" else 1e-3)
        assert abs(y[2]) < 1e-37
        assert y[3] == 60
        assert y[4] == 0
        dx = backend.numpy(backward(case, backend.array(np.ones_like(x)), backend.array(x)))
        assert dx[0] == dx[3] == 1
        assert -1e-7 < dx[1] <= 0
        assert abs(dx[2]) < 1e-36
        assert dx[4] == 0


def test_edge_03_sigmoid_and_softplus_saturate(backend, dtype):
    x = backend.array(rounded([-1000, 1000], dtype))
    one = backend.array(rounded([1, 1], dtype))
    np.testing.assert_array_equal(backend.numpy(dlkern.sigmoid(x)), [0, 1])
    np.testing.assert_array_equal(backend.numpy(dlkern.softplus(x)), [0, 1000])
    np.testing.assert_array_equal(backend.numpy(dlkern.tanh(x)), [-1, 1])
    np.testing.assert_array_equal(backend.numpy(dlkern.silu(x)), [0, 1000])
    np.testing.assert_array_equal(backend.numpy(dlkern.elu(x)), [-1, 1000])
    np.testing.assert_array_equal(backend.numpy(dlkern.sigmoid_backward(one, x)), [0, 0])
    np.testing.assert_array_equal(backend.numpy(dlkern.softplus_backward(one, x)), [0, 1])


@each_case
def test_infinities_give_the_limit_and_nan_propagates(backend, dtype, case):
    big = float(np.finfo(dtype).max) if dtype != "bfloat16" else 3e38
    x = rounded([-np.inf, -big, big, np.inf, np.nan], dtype)
    one = backend.array(rounded(np.ones(5), dtype))
    y = backend.numpy(forward(case, backend.array(x)))
    dx = backend.numpy(backward(case, one, backend.array(x)))
    low = {"leaky_relu": 0.125}.get(case, 0)  # slope
    floor = {"tanh": -1, "elu": -1.5, "selu": -SELU_SCALE * SELU_ALPHA}.get(case, 0)
    assert y[0] == (-np.inf if low else pytest.approx(floor, rel=4e-3))
    assert y[1] == pytest.approx(low * float64(x)[1] if low else floor, rel=4e-3)
    top = {"sigmoid": 1, "hardsigmoid": 1, "tanh": 1, "relu6": 6}.get(case, np.inf)
    if case != "selu":
        assert y[2] == min(top, float64(x)[2])
    assert y[3] == top
    assert np.isnan(y[4])
    high = 0 if top < np.inf else SELU_SCALE if case == "selu" else 1
    np.testing.assert_allclose(dx[:4], [low, low, high, high], rtol=4e-3, atol=0)
    at_nan = {"relu": 1, "leaky_relu": 0.125, "relu6": 1, "hardswish": 1, "hardsigmoid": 0}
    np.testing.assert_equal(dx[4], at_nan.get(case, np.nan))  # as PyTorch


def test_kinks_as_in_torch(backend):
    """Where the piecewise linear ones bend."""
    torch = pytest.importorskip("torch")
    x = np.array([-3.0, 0.0, 3.0, 6.0])
    for name in ("relu", "relu6", "hardswish", "hardsigmoid", "selu"):
        rtol = 1e-7 if name == "hardsigmoid" else 1e-15  # torch has 1 / 6 in float32
        t = torch.from_numpy(x).requires_grad_()
        y = getattr(torch.nn.functional, name)(t)
        y.sum().backward()
        got = backend.numpy(getattr(dlkern, name)(backend.array(x)))
        np.testing.assert_allclose(got, y.detach().numpy(), rtol=rtol)
        backward_of = getattr(dlkern, f"{name}_backward")
        got = backend.numpy(backward_of(backend.array(np.ones(4)), backend.array(x)))
        np.testing.assert_allclose(got, t.grad.numpy(), rtol=rtol)


def test_relu_blocks_an_infinite_gradient(backend, dtype):
    dy = backend.array(rounded([np.inf, np.nan, np.inf], dtype))
    x = backend.array(rounded([-1, 0, 1], dtype))
    np.testing.assert_array_equal(backend.numpy(dlkern.relu_backward(dy, x)), [0, 0, np.inf])


def test_softplus_threshold(backend):
    x = backend.array(np.array([0.9, 1.1, 3.0]))
    y = backend.numpy(dlkern.softplus(x, beta=1.0, threshold=1.0))
    np.testing.assert_allclose(y, [np.log1p(np.exp(0.9)), 1.1, 3.0])
    y = backend.numpy(dlkern.softplus(x, beta=-1.0, threshold=1e9))
    np.testing.assert_allclose(y, -np.log1p(np.exp([-0.9, -1.1, -3.0])))


@each_case
def test_against_torch(rng, case):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    reference = getattr(functional, case.removesuffix("_tanh"), None) or getattr(torch, case)
    x = torch.from_numpy(3 * rng.standard_normal((5, 7))).requires_grad_()
    dy = torch.from_numpy(rng.standard_normal((5, 7)))
    y = reference(x, **CASES[case][0])
    y.backward(dy)
    plain = x.detach()
    torch.testing.assert_close(forward(case, plain), y.detach(), rtol=1e-12, atol=1e-14)
    rtol = 1e-7 if case == "hardsigmoid" else 1e-12  # torch has 1 / 6 in float32
    torch.testing.assert_close(backward(case, dy, plain), x.grad, rtol=rtol, atol=1e-14)


@pytest.mark.gpu
def test_edge_15_more_than_2_31_elements(gpu):
    torch = pytest.importorskip("torch")
    n = 2**31 + 9
    if torch.cuda.mem_get_info()[0] < 2 * n + 2**30:
        pytest.skip("not enough memory on the GPU")
    x = torch.zeros(n, dtype=torch.float16, device="cuda")
    x[-9:] = torch.arange(-4, 5, device="cuda")
    dlkern.relu(x, out=x)
    assert x[-9:].tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 4]
    assert x[: 2**31].sum().item() == 0


ONES = np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.relu("text"), TypeError, "relu: x is str"),
        (lambda a: dlkern.relu(a(np.zeros(3, np.int32))), TypeError, "relu: x.dtype is int32"),
        (lambda a: dlkern.tanh(a(ONES), out=a(np.ones(3))), ValueError,
         r"tanh: out.shape is \[3\], expected \[2, 3\]"),
        (lambda a: dlkern.silu(a(ONES), out=a(np.ones((2, 3), np.float32))), TypeError,
         "silu: out.dtype is float32, expected float64"),
        (lambda a: dlkern.relu_backward(a(ONES), a(np.ones((3, 2)))), ValueError,
         r"relu_backward: x.shape is \[3, 2\]"),
        (lambda a: dlkern.gelu_backward(a(ONES), a(np.ones((2, 3), np.float32))), TypeError,
         "gelu_backward: x.dtype is float32"),
        (lambda a: dlkern.gelu(a(ONES), "sigmoid"), ValueError, "gelu: approximate is 'sigmoid'"),
        (lambda a: dlkern.gelu_backward(a(ONES), a(ONES), None), ValueError, "approximate is None"),
        (lambda a: dlkern.gelu(a(ONES), ["tanh"]), ValueError, r"gelu: approximate is \['tanh'\]"),
        (lambda a: dlkern.elu(a(ONES), 10**400), ValueError, "elu: alpha is beyond float64"),
        (lambda a: dlkern.leaky_relu(a(ONES), "steep"), TypeError, "negative_slope is 'steep'"),
        (lambda a: dlkern.elu(a(ONES), None), TypeError, "elu: alpha is None"),
        (lambda a: dlkern.softplus(a(ONES), 0), ValueError, "softplus: beta is 0"),
        (lambda a: dlkern.softplus(a(ONES), 1, "x"), TypeError, "softplus: threshold is 'x'"),
        (lambda a: dlkern.relu(a(np.zeros((1,) * 9))), ValueError, "x has 9 dimensions"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_read_only_out_is_refused(rng):
    out = np.zeros(3)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        dlkern.relu(np.ones(3), out=out)
