"""softmax and log_softmax, forward and backward, against float64."""

import itertools

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


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("n", [40, 700, 5000])
def test_elements_far_below_zero_beside_minus_infinity(backend, dtype, op, n):
    """Some threads have nothing but -inf, whose maximum is less than that of the row."""
    x = np.full((2, n), -np.inf)
    x[:, n // 2 :] = -300 + np.arange(n - n // 2) % 7
    x = rounded(x, dtype)
    expected = ORACLE[op](float64(x))
    for options in ({}, {"causal": True}):
        if options:
            expected[0] = 0 if op == "softmax" else -np.inf
            expected[0, : n - 1] = ORACLE[op](float64(x)[:1, : n - 1])
        y = backend.numpy(FORWARD[op](backend.array(x), **options))
        assert_close(y, expected, dtype, op)


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


# ---- Scale and masks -----------------------------------------------------------------------

MASKS = ("none", "bool", "float64", "float32", "float16", "bfloat16")


def make_mask(rng, kind, shape):
    """About a third left out; None for "none"."""
    if kind == "none":
        return None
    keep = rng.random(shape) > 0.3
    if kind == "bool":
        return keep
    return rounded(np.where(keep, rng.standard_normal(shape), -np.inf), kind)


def masked_logits(x, scale=1.0, mask=None, causal=False):
    """The logits in float64, -inf where left out."""
    logits = scale * float64(x)
    if mask is not None and mask.dtype == bool:
        logits = np.where(mask, logits, -np.inf)
    elif mask is not None:
        logits = np.where(np.isneginf(float64(mask)), -np.inf, logits + float64(mask))
    if causal:
        rows, columns = logits.shape[-2:]
        after = np.arange(columns) > np.arange(rows)[:, None] + columns - rows
        logits = np.where(after, -np.inf, logits)
    return logits


def masked_f64(op, logits, axis=-1):
    """Softmax with zeros (log: -inf) in rows of nothing but -inf."""
    with np.errstate(invalid="ignore", divide="ignore"):
        y = ORACLE[op](logits, axis)
    dead = np.isneginf(logits).all(axis, keepdims=True)
    return np.where(dead, 0.0 if op == "softmax" else -np.inf, y)


def assert_masked(backend, y, op, logits, x, dtype, axis=-1):
    expected = masked_f64(op, logits, axis)
    size = np.abs(np.where(np.isfinite(logits), logits, 0)).max(initial=1) + np.abs(x).max()
    if op == "softmax":  # a rounding error of a logit is a relative one of y
        size = (1 + size / 16) * expected
    assert_close(backend.numpy(y), expected, dtype, op, scale=size)


@pytest.mark.sanitize
@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("kind", MASKS)
def test_masks(backend, dtype, rng, op, kind):
    """Of each kind, broadcast along no, some and all axes but one."""
    x = logits(rng, (2, 3, 7, 40), dtype)
    shapes = (2, 3, 7, 40), (2, 1, 1, 40), (7, 40), (3, 7, 1), (40,)
    for shape, causal in itertools.product(shapes, (False, True)):
        mask = make_mask(rng, kind, shape)
        given = None if mask is None else backend.array(mask)
        y = FORWARD[op](backend.array(x), mask=given, causal=causal, scale=0.7)
        right = masked_logits(x, 0.7, mask, causal)
        assert_masked(backend, y, op, right, float64(x), dtype)


@pytest.mark.parametrize("kind", ["bool", "float32"])
@pytest.mark.parametrize("shape", [(5, 1, 9), (2, 30, 513), (3, 2, 4100), (1, 2, 40000)])
def test_masks_of_long_and_odd_rows(backend, dtype, rng, kind, shape):
    x, mask = logits(rng, shape, dtype), make_mask(rng, kind, shape[1:])
    for causal in (False, True):
        y = dlkern.softmax(backend.array(x), mask=backend.array(mask), causal=causal)
        right = masked_logits(x, 1.0, mask, causal)
        assert_masked(backend, y, "softmax", right, float64(x), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, 2])
def test_mask_layouts(backend, rng, layout, axis):
    for dtype, kind in (("float32", "bool"), ("bfloat16", "bfloat16"), ("float16", "float32")):
        x, mask = logits(rng, (5, 3, 37), dtype), make_mask(rng, kind, (5, 1, 37))
        y = backend.empty(x.shape, dtype, layout)
        given = backend.array(mask, layout)
        dlkern.softmax(backend.array(x, layout), axis, mask=given, scale=2.0, out=y)
        right = masked_logits(x, 2.0, mask)
        assert_masked(backend, y, "softmax", right, float64(x), dtype, axis)


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("axis", [0, -1])
def test_scale(backend, dtype, rng, op, axis):
    x = logits(rng, (70, 90), dtype)
    y = FORWARD[op](backend.array(x), axis, scale=0.25)
    assert_masked(backend, y, op, 0.25 * float64(x), float64(x), dtype, axis)
    y, dy = rounded(ORACLE[op](0.25 * float64(x), axis), dtype), logits(rng, x.shape, dtype)
    dx = BACKWARD[op](backend.array(dy), backend.array(y), axis, scale=0.25)
    args = float64(dy), float64(y), axis
    assert_close(backend.numpy(dx), 0.25 * backward_f64(op, *args), dtype, "softmax_backward",
                 scale=0.25 * backward_scale(op, *args))  # fmt: skip


@pytest.mark.parametrize("kind", ["bool", "float32"])
@pytest.mark.parametrize("n", [3, 700, 5000])
@pytest.mark.parametrize("op", FORWARD)
def test_edge_06_fully_masked_rows(backend, dtype, rng, op, kind, n):
    """Zeros (log: -inf) and zero gradients, whatever x and dy hold there."""
    x = logits(rng, (4, n), dtype)
    x[1] = np.nan
    keep = np.ones((4, n), bool)
    keep[1], keep[2, 1:] = False, False
    mask = keep if kind == "bool" else rounded(np.where(keep, 0, -np.inf), kind)
    y = FORWARD[op](backend.array(x), mask=backend.array(mask))
    nothing = 0.0 if op == "softmax" else -np.inf
    host = backend.numpy(y)
    np.testing.assert_array_equal(host[1], np.full(n, nothing))
    np.testing.assert_array_equal(host[2, 1:], np.full(n - 1, nothing))
    assert host[2, 0] == (1 if op == "softmax" else 0)
    dy = logits(rng, (4, n), dtype)
    dy[~keep] = np.nan
    dx = backend.numpy(BACKWARD[op](backend.array(dy), y))
    np.testing.assert_array_equal(dx[~keep], np.zeros((~keep).sum()))
    assert np.isfinite(dx).all()


@pytest.mark.parametrize("n", [4, 600])
def test_edge_17_causal_is_aligned_at_the_end(backend, dtype, n):
    """5 rows, 2 columns: rows 0 to 2 see nothing; and wider than high."""
    y = backend.numpy(dlkern.softmax(backend.array(rounded(np.zeros((5, 2)), dtype)), causal=True))
    np.testing.assert_array_equal(y, [[0, 0], [0, 0], [0, 0], [1, 0], [0.5, 0.5]])
    y = backend.numpy(dlkern.softmax(backend.array(rounded(np.zeros((2, n)), dtype)), causal=True))
    assert_close(y, [[1 / (n - 1)] * (n - 1) + [0], [1 / n] * n], dtype, "softmax")


def test_edge_20_nan_that_is_left_out_does_not_matter(backend, dtype, rng):
    x = logits(rng, (6, 90), dtype)
    bad = x.copy()
    bad[:, 50:] = np.nan
    keep = backend.array(np.arange(90) < 50)
    clean, spoilt = (backend.numpy(dlkern.softmax(backend.array(v), mask=keep)) for v in (x, bad))
    np.testing.assert_array_equal(spoilt, clean)
    square = logits(rng, (90, 90), dtype)
    bad = np.where(np.arange(90) > np.arange(90)[:, None], np.nan, float64(square))
    clean, spoilt = (
        backend.numpy(dlkern.softmax(backend.array(v), causal=True))
        for v in (square, rounded(bad, dtype))
    )
    np.testing.assert_array_equal(spoilt, clean)


@pytest.mark.parametrize("n", [40, 700, 9000])
def test_masked_rows_do_not_depend_on_the_batch(backend, dtype, rng, n):
    x, keep = logits(rng, (24, n), dtype), rng.random((24, n)) > 0.3
    many = backend.raw(dlkern.softmax(backend.array(x), mask=backend.array(keep)))
    one = backend.raw(dlkern.softmax(backend.array(x[17:18]), mask=backend.array(keep[17:18])))
    np.testing.assert_array_equal(many[17:18], one)


def test_in_place_with_a_mask(backend, dtype, rng):
    x, keep = logits(rng, (6, 70), dtype), backend.array(rng.random(70) > 0.3)
    apart = backend.numpy(dlkern.softmax(backend.array(x), mask=keep, causal=True))
    together = backend.array(x)
    dlkern.softmax(together, mask=keep, causal=True, out=together)
    np.testing.assert_array_equal(backend.numpy(together), apart)


@pytest.mark.parametrize("op", FORWARD)
def test_gradient_by_finite_differences(rng, op):
    x, dy = rng.standard_normal((2, 3, 5))
    y = FORWARD[op](x)
    assert_grad(lambda v: FORWARD[op](v), [x], dy, [BACKWARD[op](dy, y)])
    mask = np.array([0.5, -np.inf, 0, 1, -2])
    y = dlkern.softmax(x, scale=0.7, mask=mask, causal=True)
    assert_grad(lambda v: dlkern.softmax(v, scale=0.7, mask=mask, causal=True), [x], dy,
                [dlkern.softmax_backward(dy, y, scale=0.7)])  # fmt: skip


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
        (lambda a: dlkern.softmax(a(np.zeros((2, 3))), scale=0), ValueError,
         "scale is 0, expected a positive number"),
        (lambda a: dlkern.softmax(a(np.zeros((2, 3))), mask=a(np.zeros((3, 1)))), ValueError,
         r"mask.shape is \[3, 1\], expected one that broadcasts to \[2, 3\] \(x.shape\)"),
        (lambda a: dlkern.softmax(a(np.zeros((2, 3))), mask=a(np.zeros(3, np.int32))), TypeError,
         "mask.dtype is int32, expected bool, float64"),
        (lambda a: dlkern.softmax(a(np.zeros((2, 3))), axis=0, causal=True), ValueError,
         "axis is 0 of 2 dimensions, expected the last of two or more for a causal mask"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)
