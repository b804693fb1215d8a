"""softmax and log_softmax, forward and backward, against float64."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64, rounded

import dlkern

FORWARD = {"softmax": dlkern.softmax, "log_softmax": dlkern.log_softmax}
BACKWARD = {"softmax": dlkern.softmax_backward, "log_softmax": dlkern.log_softmax_backward}


def softmax_f64(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def log_softmax_f64(x, axis=-1):
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


ORACLE = {"softmax": softmax_f64, "log_softmax": log_softmax_f64}


def backward_f64(op, dy, y, axis=-1):
    if op == "softmax":
        return y * (dy - (dy * y).sum(axis, keepdims=True))
    return dy - np.exp(y) * dy.sum(axis, keepdims=True)


def backward_scale(op, dy, y, axis=-1):
    """What cancels in the gradient: the size of its two terms."""
    if op == "softmax":
        return np.abs(y) * (np.abs(dy) + (np.abs(dy * y)).sum(axis, keepdims=True))
    return np.abs(dy) + np.exp(y) * np.abs(dy).sum(axis, keepdims=True)


def logits(rng, shape, dtype, spread=3.0):
    return rounded(spread * rng.standard_normal(shape), dtype)


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1,), 0),
        ((7,), -1),
        ((3, 1), 1),
        ((4, 33), -1),
        ((5, 513), 1),
        ((2, 4099), -1),
        ((3, 100003), -1),
        ((6, 5, 17), 1),
        ((33, 40), 0),
        ((2, 3, 4, 5, 6), 2),
        ((0, 5), 1),
        ((5, 0), 1),
    ],
)
def test_forward_and_backward(backend, dtype, rng, op, shape, axis):
    x = logits(rng, shape, dtype)
    y = backend.numpy(FORWARD[op](backend.array(x), axis))
    expected = ORACLE[op](float64(x), axis) if x.size else float64(x)
    assert_close(y, expected, dtype, op, scale=np.maximum(np.abs(expected), np.abs(float64(x)))
                 if op == "log_softmax" else None)  # fmt: skip

    y, dy = rounded(expected, dtype), logits(rng, shape, dtype)
    dx = backend.numpy(BACKWARD[op](backend.array(dy), backend.array(y), axis))
    args = float64(dy), float64(y), axis
    assert_close(dx, backward_f64(op, *args), dtype, "softmax_backward",
                 scale=backward_scale(op, *args))  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("out_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout, out_layout):
    """EDGE 21, 26: any strides and alignment of input and output; the gaps stay as they were."""
    for dtype in ("float32", "float16"):
        x = logits(rng, (5, 3, 37), dtype)
        y = backend.empty(x.shape, dtype, out_layout)
        assert dlkern.softmax(backend.array(x, layout), axis=2, out=y) is y
        assert_close(backend.numpy(y), softmax_f64(float64(x)), dtype, "softmax")
        dx = backend.empty(x.shape, dtype, out_layout)
        dlkern.softmax_backward(backend.array(x, layout), y, axis=2, out=dx)
        args = float64(x), backend.numpy(y)
        assert_close(backend.numpy(dx), backward_f64("softmax", *args), dtype, "softmax_backward",
                     scale=backward_scale("softmax", *args))  # fmt: skip


def test_zero_strides(backend, dtype, rng):
    row = logits(rng, (1, 19), dtype)
    y = dlkern.softmax(backend.broadcast(row, (4, 19)), out=backend.empty((4, 19), dtype))
    assert_close(backend.numpy(y), np.tile(softmax_f64(float64(row)), (4, 1)), dtype, "softmax")


@pytest.mark.parametrize("op", FORWARD)
def test_in_place(backend, dtype, rng, op):
    x = logits(rng, (6, 70), dtype)
    apart = backend.numpy(FORWARD[op](backend.array(x)))
    together = backend.array(x)
    FORWARD[op](together, out=together)
    np.testing.assert_array_equal(backend.numpy(together), apart)


def test_partial_overlap_is_refused(backend, rng):
    base = backend.array(rng.standard_normal(40))
    with pytest.raises(ValueError, match="out overlaps x"):
        dlkern.softmax(base[:-1], out=base[1:])
    dlkern.softmax(base[0::2], out=base[1::2])  # interleaved views share nothing


@pytest.mark.parametrize("op", FORWARD)
def test_extreme_values(backend, dtype, op):
    big = {"float16": 6e4}.get(dtype, 1e30)
    x = rounded([[big, big, -big], [-big, -big, -big], [0, -big, 0]], dtype)
    y = backend.numpy(FORWARD[op](backend.array(x)))
    assert_close(y, ORACLE[op](float64(x)), dtype, op)


@pytest.mark.parametrize("op", FORWARD)
def test_edge_06_rows_of_infinities_and_nan(backend, dtype, op):
    inf, nan = np.inf, np.nan
    x = rounded([[-inf] * 3, [inf, 0, 1], [nan, 0, 1], [0, nan, -inf], [-inf, -inf, 2]], dtype)
    for n in (3, 700):  # short and long rows take different paths
        wide = np.concatenate([x, np.full((5, n - 3), -inf).astype(x.dtype)], 1)
        y = backend.numpy(FORWARD[op](backend.array(wide)))
        assert np.isnan(y[:4]).all()
        certain = np.full(n, 0.0 if op == "softmax" else -inf)
        certain[2] = 1.0 if op == "softmax" else 0.0
        np.testing.assert_array_equal(y[4], certain)


@pytest.mark.gpu
def test_edge_15_more_than_2_31_elements(gpu_2_31):
    backend, x = gpu_2_31
    y = dlkern.softmax(x, out=x)
    row = backend.array(np.linspace(-1, 1, 1024).astype(np.float16)[None])
    np.testing.assert_array_equal(backend.raw(y[2**21 : 2**21 + 1]),
                                  backend.raw(dlkern.softmax(row)))  # fmt: skip


@pytest.fixture
def gpu_2_31(gpu):
    """fp16 (2^21 + 8, 1024) whose row 2^21 is known."""
    torch = pytest.importorskip("torch")
    x = torch.randn(2**21 + 8, 1024, dtype=torch.float16, device="cuda")
    x[2**21] = torch.from_numpy(np.linspace(-1, 1, 1024).astype(np.float16)).cuda()
    return gpu, x


def test_rows_do_not_depend_on_the_batch(backend, dtype, rng):
    x = logits(rng, (64, 300), dtype)
    many = backend.raw(dlkern.softmax(backend.array(x)))
    one = backend.raw(dlkern.softmax(backend.array(x[17:18])))
    np.testing.assert_array_equal(many[17:18], one)


@pytest.mark.parametrize("n", [5, 300, 5000])
def test_columns_do_not_depend_on_the_columns_beside_them(backend, rng, n):
    x = logits(rng, (n, 70), "float32")
    columns = [
        backend.raw(dlkern.softmax(backend.array(np.ascontiguousarray(x[:, :m])), axis=0))[:, 0]
        for m in (1, 7, 8, 70)
    ]
    for column in columns[1:]:
        np.testing.assert_array_equal(column, columns[0])


@pytest.mark.parametrize("op", FORWARD)
def test_gradient_by_finite_differences(rng, op):
    x, dy = rng.standard_normal((2, 3, 5))
    y = FORWARD[op](x)
    assert_grad(lambda v: FORWARD[op](v), [x], dy, [BACKWARD[op](dy, y)])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.softmax(a(np.zeros((2, 3))), axis=2), ValueError, "axis is 2"),
        (lambda a: dlkern.softmax(a(np.zeros((2, 3))), axis=1.0), TypeError, "axis is 1.0"),
        (lambda a: dlkern.softmax(a(np.float64(1.0))), ValueError, "x has 0 dimensions"),
        (lambda a: dlkern.softmax(a(np.zeros(3, np.int32))), TypeError, "x.dtype is int32"),
        (lambda a: dlkern.softmax(a(np.zeros(3)), out=a(np.zeros(4))), ValueError,
         r"out.shape is \[4\], expected \[3\] \(x.shape\)"),
        (lambda a: dlkern.softmax(a(np.zeros(3)), out=a(np.zeros(3, np.float32))), TypeError,
         r"out.dtype is float32, expected float64 \(x.dtype\)"),
        (lambda a: dlkern.softmax_backward(a(np.zeros(3)), a(np.zeros(2))), ValueError,
         r"y.shape is \[2\]"),
        (lambda a: dlkern.softmax("text"), TypeError, "x is str"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)
