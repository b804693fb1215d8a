"""Reductions over axes and their gradients, against float64 NumPy."""

import functools
import itertools

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import FLOATS, assert_close, assert_grad, float64, rounded

import dlkern

SELECT = {"max": dlkern.max, "min": dlkern.min, "argmax": dlkern.argmax, "argmin": dlkern.argmin}
TOTAL = {"sum": dlkern.sum, "mean": dlkern.mean}
SPREAD = {"var": dlkern.var, "std": dlkern.std}
REDUCE = SELECT | TOTAL | SPREAD | {"prod": dlkern.prod}
BACKWARD = {
    "sum": dlkern.sum_backward, "mean": dlkern.mean_backward,
    "max": dlkern.max_backward, "min": dlkern.min_backward,
}  # fmt: skip
ORDERS = (0, 1, 2, 3, 0.5, -1, np.inf, -np.inf)


def check(backend, op, x, axis, y, dtype):
    """The result of an op on float x, of that dtype."""
    values = float64(x)
    if op in SELECT:
        np.testing.assert_array_equal(backend.numpy(y), getattr(np, op)(values, axis))
        return
    # NumPy adds a strided axis one by one; its own error must not count.
    wide = values.astype(np.longdouble)
    expected = float64(getattr(np, op)(wide, axis))
    if op == "prod":
        # Every factor's rounding counts.
        n = max(x.size // max(expected.size, 1), 1)
        assert_close(backend.numpy(y), expected, dtype, "sum", np.abs(expected) * np.sqrt(n))
    elif op in SPREAD:
        assert_close(backend.numpy(y), expected, dtype, "sum", expected)
    else:
        assert_close(backend.numpy(y), expected, dtype, op, getattr(np, op)(np.abs(values), axis))


def values_for(op, rng, shape):
    """Products stay in range."""
    x = rng.standard_normal(shape)
    return 1 + x / 1024 if op == "prod" else x


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize(
    "shape",
    [(), (1,), (7,), (5003,), (3, 4), (17, 600), (300, 3), (5000, 20), (20, 5000), (70003, 2),
     (6, 7, 40), (2, 3, 1, 5, 4)],
)  # fmt: skip
def test_every_axis(backend, dtype, rng, op, shape):
    x = rounded(values_for(op, rng, shape), dtype)
    on_device = backend.array(x)
    for axis in (None, *range(-1, len(shape))):
        if shape or axis is None:
            check(backend, op, x, axis, REDUCE[op](on_device, axis), dtype)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_several_axes(backend, rng, op):
    x = rounded(rng.standard_normal((3, 4, 5, 6)), "float32")
    on_device = backend.array(x)
    for count in range(5):
        for axis in itertools.combinations(range(4), count):
            check(backend, op, x, axis, REDUCE[op](on_device, axis), "float32")
            y = REDUCE[op](on_device, axis[::-1], keepdims=True)
            assert tuple(y.shape) == tuple(1 if d in axis else x.shape[d] for d in range(4))


@pytest.mark.sanitize
@pytest.mark.parametrize("out_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout, out_layout):
    """EDGE 21, 26: any strides and alignment of input and output; the gaps stay as they were."""
    for dtype, (op, function) in itertools.product(("float32", "float16"), REDUCE.items()):
        x = rounded(values_for(op, rng, (5, 23, 37)), dtype)
        for axis in (0, 1, 2, None):
            shape = np.sum(x, axis).shape
            kind = "int64" if op.startswith("arg") else dtype
            y = backend.empty(shape, kind, out_layout if shape else "contiguous")
            assert function(backend.array(x, layout), axis, out=y) is y
            check(backend, op, x, axis, y, dtype)


def test_zero_strides(backend, dtype, rng):
    row = rounded(rng.standard_normal((1, 190)), dtype)
    x = backend.broadcast(row, (400, 190))
    for axis, shape in ((0, (190,)), (1, (400,)), (None, ())):
        y = dlkern.sum(x, axis, out=backend.empty(shape, dtype))
        check(backend, "sum", np.tile(row, (400, 1)), axis, y, dtype)


def norm_f64(x, axis, order):
    x = np.abs(float64(x))
    if order == 0:
        return np.sum(x != 0, axis).astype(float)
    if np.isinf(order):
        return np.max(x, axis) if order > 0 else np.min(x, axis)
    return np.sum(x**order, axis) ** (1 / order)


@pytest.mark.sanitize
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("shape", "axis"), [((7, 300), 1), ((300, 7, 8), 0), ((5, 6, 7), (0, 2))])
def test_vector_norm(backend, dtype, rng, order, shape, axis):
    x = rounded(rng.standard_normal(shape), dtype)
    x[0, 0] = x[0, 0] * 0 if order >= 0 else x[0, 0]
    y = dlkern.vector_norm(backend.array(x), axis, ord=order)
    assert_close(backend.numpy(y), norm_f64(x, axis, order), dtype, "norm")
    y = dlkern.vector_norm(backend.array(x, "transposed"), axis, ord=order, keepdims=True)
    assert backend.numpy(y).ndim == x.ndim


def test_edge_01_variance_does_not_cancel(backend):
    """Of rows and of columns, long and short."""
    x = np.array([40000, 40001, 40002, 40003], "float32")
    y = np.full(10240, 256, "float32")
    y[-1] = 255
    for values, expected in ((x, 1.25), (y, (1 - 1 / 10240) / 10240)):
        for layout in (values[None].repeat(3, 0), values[:, None].repeat(9, 1)):
            axis = 1 if layout.shape[0] == 3 else 0
            got = backend.numpy(dlkern.var(backend.array(np.ascontiguousarray(layout)), axis))
            np.testing.assert_allclose(got, expected, rtol=2e-6)


def test_variance_of_a_large_mean(backend, rng):
    x = (1e6 + rng.standard_normal((40, 5000))).astype("float32")
    for axis in (0, 1):
        got = backend.numpy(dlkern.var(backend.array(x), axis))
        np.testing.assert_allclose(got, np.var(float64(x), axis), rtol=2e-5)


@pytest.mark.parametrize(("n", "correction"), [(1, 1), (2, 2), (3, 0.5), (3, 5), (0, 0)])
def test_corrections(backend, rng, n, correction):
    x = rng.standard_normal((4, n))
    with np.errstate(all="ignore"):
        squares = np.sum((x - x.sum(1, keepdims=True) / max(n, 1)) ** 2, 1)
        expected = squares / max(n - correction, 0.0) if n - correction > 0 else squares / 0.0
    got = backend.numpy(dlkern.var(backend.array(x), 1, correction=correction))
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(backend, rng, dtype):
    x = rng.integers(-(2**31), 2**31, (300, 70), dtype=dtype)
    x[:, 7] = np.iinfo(dtype).max
    x[17] = np.iinfo(dtype).min
    for axis in (0, 1, None):
        for op in ("max", "min", "argmax", "argmin"):
            y = REDUCE[op](backend.array(x), axis)
            assert backend.raw(y).dtype == ("int64" if op.startswith("arg") else dtype)
            np.testing.assert_array_equal(backend.numpy(y), getattr(np, op)(x, axis))
    x = rng.integers(-(2**31), 2**31, (300, 70), dtype=dtype)
    for axis, name in itertools.product((0, 1), ("sum", "prod")):
        y = REDUCE[name](backend.array(x), axis)
        assert backend.raw(y).dtype == np.int64
        np.testing.assert_array_equal(backend.numpy(y), getattr(np, name)(x, axis, dtype=np.int64))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_result_of_16_bits(backend, rng, dtype):
    x = rounded(rng.standard_normal((9, 3000)), dtype)
    y = dlkern.sum(backend.array(x), 1, out=backend.empty((9,), "float32"))
    exact = float64(x).sum(1)
    assert_close(backend.numpy(y), exact, "float32", "sum", np.abs(float64(x)).sum(1))


def test_index_of_32_bits(backend, rng):
    x = rng.standard_normal((9, 300))
    y = dlkern.argmax(backend.array(x), 1, out=backend.empty((9,), "int32"))
    np.testing.assert_array_equal(backend.numpy(y), x.argmax(1))


def test_edge_02_16_bits_are_summed_in_float32(backend):
    x = np.array([32000] * 4 + [-32000] * 4, np.float16)
    assert backend.numpy(dlkern.sum(backend.array(x))) == 0
    assert backend.numpy(dlkern.mean(backend.array(np.full(3, 40000, np.float16)))) == 40000
    columns = np.tile(x[:, None], (1, 40))
    np.testing.assert_array_equal(backend.numpy(dlkern.sum(backend.array(columns), 0)), 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_error_does_not_grow_with_the_number_of_elements(backend, axis):
    """Added one by one in float32, the sum of a million times 0.1 is wrong in its third digit."""
    x = np.full((2**20, 16), np.float32(0.1))
    y = backend.numpy(dlkern.sum(backend.array(x if axis == 0 else x.T.copy()), axis))
    np.testing.assert_allclose(y, 2**20 * float(np.float32(0.1)), rtol=4e-6)


def test_ties_and_nan(backend, dtype):
    """The first one wins; NaN is larger and smaller than anything."""
    x = rounded([[1, 5, 5, 0, 0], [1, np.nan, np.inf, np.nan, -np.inf], [-np.inf] * 5], dtype)
    for n in (1, 800):  # short and long rows take different paths
        wide = np.repeat(x, n, 1)
        for array, axis in ((wide, 1), (np.ascontiguousarray(wide.T), 0), (np.tile(wide, 9), 1)):
            y = backend.array(array)
            np.testing.assert_array_equal(backend.numpy(dlkern.argmax(y, axis)), [n, n, 0])
            np.testing.assert_array_equal(backend.numpy(dlkern.argmin(y, axis)), [3 * n, n, 0])
            np.testing.assert_array_equal(backend.numpy(dlkern.max(y, axis)), [5, np.nan, -np.inf])
            np.testing.assert_array_equal(backend.numpy(dlkern.min(y, axis)), [0, np.nan, -np.inf])


def test_no_elements(backend, dtype):
    x = backend.array(rounded(np.zeros((0, 3)), dtype))
    out = backend.empty((3,), dtype)
    np.testing.assert_array_equal(backend.numpy(dlkern.sum(x, 0, out=out)), [0, 0, 0])
    np.testing.assert_array_equal(backend.numpy(dlkern.mean(x, 0)), [np.nan] * 3)
    assert backend.numpy(dlkern.sum(x)) == 0
    assert backend.numpy(dlkern.prod(x)) == 1
    assert backend.numpy(dlkern.vector_norm(x, ord=3)) == 0
    np.testing.assert_array_equal(backend.numpy(dlkern.var(x, 0)), [np.nan] * 3)
    with pytest.raises(ValueError, match="expected elements on axis 0"):
        dlkern.vector_norm(x, 0, ord=np.inf)
    assert dlkern.max(x, 1).shape == (0,)
    for op in SELECT.values():
        with pytest.raises(ValueError, match="expected elements on axis 0"):
            op(x, 0)


def test_a_result_does_not_depend_on_the_others(backend, dtype, rng):
    """EDGE 15's rule: rows, and columns, alone or among others, have the same bits."""
    x = rounded(rng.standard_normal((64, 3000)), dtype)
    for op in (dlkern.var, dlkern.vector_norm):
        rows = backend.raw(op(backend.array(x), 1))
        for other in (x[17:18], x[17:18, :].T):
            axis = int(other.shape[0] == 1)
            one = backend.raw(op(backend.array(np.ascontiguousarray(other)), axis))
            np.testing.assert_array_equal(float64(rows[17:18]), float64(one))
    many = backend.raw(dlkern.sum(backend.array(x), 1))
    one = backend.raw(dlkern.sum(backend.array(x[17:18]), 1))
    np.testing.assert_array_equal(float64(many[17:18]), float64(one))
    for n in (40, 3000):
        columns = np.ascontiguousarray(x.T[:n])
        many = backend.raw(dlkern.sum(backend.array(columns), 0))
        for begin, end in ((16, 48), (20, 35), (20, 28), (20, 27), (20, 21)):
            some = backend.raw(dlkern.sum(backend.array(columns[:, begin:end].copy()), 0))
            np.testing.assert_array_equal(float64(many[begin:end]), float64(some))


@pytest.mark.sanitize
@pytest.mark.parametrize("n", [3, 40, 300, 700, 3000, 40000])
def test_bits_do_not_depend_on_layout(backend, dtype, rng, n):
    """One order of additions, whichever way memory is walked."""
    x = rounded(rng.standard_normal((n, 9)), dtype)
    for op in (dlkern.sum, dlkern.var):
        expected = float64(backend.raw(op(backend.array(x), 0)))
        rows = np.ascontiguousarray(x.T)
        for axis, same in (
            (1, backend.array(rows)),
            (1, backend.array(rows, "unaligned")),
            (1, backend.array(rows, "padded")),
            (0, backend.array(x, "unaligned")),
            (0, backend.array(np.ascontiguousarray(x[:, :8]))),
        ):
            got = float64(backend.raw(op(same, axis)))
            np.testing.assert_array_equal(got, expected[: len(got)])


def test_bits_do_not_depend_on_the_share(backend, rng):
    """Few long rows are cut into more parts than many are, long columns into more than a few."""
    x = rng.random((400, 70_000), dtype=np.float32)
    for op in (dlkern.sum, dlkern.var):
        many = backend.raw(op(backend.array(x), 1))
        np.testing.assert_array_equal(backend.raw(op(backend.array(x[17:19]), 1)), many[17:19])
        columns = np.ascontiguousarray(x.reshape(70_000, 400)[:9_000])
        many = backend.raw(op(backend.array(columns), 0))
        few = np.ascontiguousarray(columns[:, 40:44])
        np.testing.assert_array_equal(backend.raw(op(backend.array(few), 0)), many[40:44])


@pytest.mark.gpu
def test_edge_15_more_than_2_31_elements(gpu):
    torch = pytest.importorskip("torch")
    x = torch.zeros(2**21 + 8, 1024, dtype=torch.float16, device="cuda")
    x[2**21, 5], x[2**21, 6] = 3, -2
    assert dlkern.argmax(x).item() == 2**31 + 5
    assert dlkern.argmin(x).item() == 2**31 + 6
    assert dlkern.sum(x).item() == 1
    assert dlkern.sum(x, 1)[2**21].item() == 1
    assert dlkern.max(x, 0)[5].item() == 3


# ---- Gradients -----------------------------------------------------------------------------


def backward_f64(op, dy, x, axis):
    dy = dy.reshape(np.sum(x, axis, keepdims=True).shape)
    if op in TOTAL:
        n = x.size / max(dy.size, 1) if op == "mean" else 1
        return np.broadcast_to(dy / n, x.shape)
    hit = x == getattr(np, op)(x, axis, keepdims=True)
    return np.where(hit, dy / hit.sum(axis, keepdims=True), 0)


def run_backward(backend, op, dy, x, axis, **options):
    if op in TOTAL:
        return BACKWARD[op](dy, tuple(x.shape), axis, **options)
    return BACKWARD[op](dy, x, REDUCE[op](x, axis), axis, **options)


@pytest.mark.parametrize("op", BACKWARD)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((), None), ((1,), 0), ((7, 5), 1), ((7, 5), 0), ((300, 40), None), ((40, 9, 6), (0, -1)),
     ((2, 3, 4), ()), ((3, 40000), 1), ((9000, 33), 0)],
)  # fmt: skip
def test_backward(backend, dtype, rng, op, shape, axis):
    x = rounded(rng.integers(-9, 9, shape), dtype)  # with ties
    dy = rounded(rng.standard_normal(np.sum(float64(x), axis).shape), dtype)
    dx = run_backward(backend, op, backend.array(dy), backend.array(x), axis)
    assert_close(backend.numpy(dx), backward_f64(op, float64(dy), float64(x), axis), dtype, "sum")


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_backward_layouts(backend, rng, layout):
    x = rounded(rng.integers(-9, 9, (5, 23, 37)), "float32")
    for op, axis in itertools.product(BACKWARD, (0, 1, 2)):
        dy = rounded(rng.standard_normal(np.sum(x, axis, keepdims=True).shape), "float32")
        out = backend.empty(x.shape, "float32", layout)
        if op in TOTAL:
            BACKWARD[op](backend.array(dy, layout), x.shape, axis, out=out)
        else:
            y = backend.array(getattr(np, op)(x, axis), layout)
            BACKWARD[op](backend.array(dy, layout), backend.array(x, layout), y, axis, out=out)
        expected = backward_f64(op, float64(dy), float64(x), axis)
        assert_close(backend.numpy(out), expected, "float32", "sum")


def test_max_backward_in_place(backend, rng):
    x = rounded(rng.integers(0, 9, (6, 70)), "float32")
    dy = backend.array(rounded(rng.standard_normal(6), "float32"))
    y = backend.array(x.max(1))
    apart = backend.numpy(dlkern.max_backward(dy, backend.array(x), y, 1))
    together = backend.array(x)
    dlkern.max_backward(dy, together, y, 1, out=together)
    np.testing.assert_array_equal(backend.numpy(together), apart)


def test_max_backward_of_nan(backend, dtype):
    x = rounded([[1, np.nan, 2], [1, 2, 2]], dtype)
    y = rounded([np.nan, 2], dtype)
    dy = rounded([1, 1], dtype)
    dx = dlkern.max_backward(backend.array(dy), backend.array(x), backend.array(y), 1)
    np.testing.assert_array_equal(backend.numpy(dx), [[np.nan] * 3, [0, 0.5, 0.5]])


@pytest.mark.parametrize("op", BACKWARD)
@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
def test_gradient_by_finite_differences(rng, op, axis):
    x = rng.standard_normal((3, 4, 5))
    y = REDUCE[op](x, axis)
    dy = rng.standard_normal(np.shape(y))
    dx = run_backward(None, op, dy, x, axis)
    assert_grad(lambda v: REDUCE[op](v, axis), [x], dy, [dx])


PARAMETRIC = [
    ("prod", {}), ("var", {}), ("var", {"correction": 1}), ("std", {"correction": 1}),
    *(("vector_norm", {"ord": order}) for order in (1, 2, 3, 1.5, np.inf, -np.inf)),
]  # fmt: skip


def run_parametric_backward(op, dy, x, y, axis, **options):
    function = getattr(dlkern, f"{op}_backward")
    if op in ("prod", "var"):
        return function(dy, x, axis, **options)
    return function(dy, x, y, axis, **options)


@pytest.mark.parametrize(("op", "options"), PARAMETRIC)
@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
def test_parametric_gradient_by_finite_differences(rng, op, options, axis):
    x = rng.standard_normal((3, 4, 5))
    forward = functools.partial(getattr(dlkern, op), axis=axis, **options)
    y = forward(x)
    dy = rng.standard_normal(np.shape(y))
    assert_grad(forward, [x], dy, [run_parametric_backward(op, dy, x, y, axis, **options)])


@pytest.mark.sanitize
@pytest.mark.parametrize(("op", "options"), PARAMETRIC)
@pytest.mark.parametrize("axis", [0, 1])
def test_parametric_backward_everywhere(backend, dtype, rng, op, options, axis):
    """Against the float64 gradient, which finite differences have confirmed; in place, too."""
    x = rounded(1 + rng.standard_normal((24, 40)) / 8, dtype)
    wide = float64(x)
    y = rounded(getattr(dlkern, op)(wide, axis, **options), dtype)
    dy = rounded(rng.standard_normal(y.shape), dtype)
    expected = run_parametric_backward(op, float64(dy), wide, float64(y), axis, **options)
    args = backend.array(dy), backend.array(x), backend.array(y)
    dx = run_parametric_backward(op, *args, axis, **options)
    assert_close(backend.numpy(dx), expected, dtype, "norm_backward")
    together = args[1]
    run_parametric_backward(op, args[0], together, args[2], axis, out=together, **options)
    np.testing.assert_array_equal(backend.numpy(together), backend.numpy(dx))


def test_product_gradient_of_zeros(backend, dtype):
    x = rounded([[2, 0, 3], [0, 0, 5], [2, 3, 4]], dtype)
    dy = rounded([1, 1, 2], dtype)
    expected = [[0, 6, 0], [0, 0, 0], [24, 16, 12]]
    for axis, same in ((1, x), (0, np.ascontiguousarray(x.T))):
        dx = backend.numpy(dlkern.prod_backward(backend.array(dy), backend.array(same), axis))
        np.testing.assert_allclose(dx if axis else dx.T, expected, rtol=1e-2)


def test_gradients_at_zero(backend, dtype):
    x = rounded([[0, 0], [0, 3]], dtype)
    dy = rounded([1, 1], dtype)
    for order in (0, 0.5, 1, 2, 3, np.inf):
        y = dlkern.vector_norm(backend.array(x), 1, ord=order)
        dx = dlkern.vector_norm_backward(backend.array(dy), backend.array(x), y, 1, ord=order)
        expected = [[0, 0], [0, float(order != 0)]]
        np.testing.assert_allclose(backend.numpy(dx), expected, rtol=1e-2)
    same = rounded([[2, 2]], dtype)
    y = dlkern.std(backend.array(same), 1)
    dx = dlkern.std_backward(backend.array(dy[:1]), backend.array(same), y, 1)
    np.testing.assert_array_equal(backend.numpy(dx), [[0, 0]])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.sum(a(np.zeros((2, 3))), 2), ValueError, "sum: axis is 2"),
        (lambda a: dlkern.sum(a(np.zeros((2, 3))), (0, -2)), ValueError, "axis is -2 for a second"),
        (lambda a: dlkern.sum(a(np.zeros((2, 3))), 1.0), TypeError, "axis is 1.0"),
        (lambda a: dlkern.argmax(a(np.zeros((2, 3, 4))), (0, 1)), ValueError, "axis names 2"),
        (lambda a: dlkern.mean(a(np.zeros(3, np.int32))), TypeError, "mean: x.dtype is int32"),
        (lambda a: dlkern.max(a(np.zeros(3, bool))), TypeError, "max: x.dtype is bool"),
        (lambda a: dlkern.vector_norm(a(np.zeros(3)), ord=np.nan), ValueError, "ord is nan"),
        (lambda a: dlkern.vector_norm(a(np.zeros(3)), ord="2"), TypeError, "ord is '2'"),
        (lambda a: dlkern.var(a(np.zeros(3)), correction=np.inf), ValueError, "correction is inf"),
        (lambda a: dlkern.var(a(np.zeros(3, np.int32))), TypeError, "var: x.dtype is int32"),
        (lambda a: dlkern.sum(a(np.zeros((2, 3))), 1, out=a(np.zeros(3))), ValueError,
         r"out.shape is \[3\], expected \[2\]"),
        (lambda a: dlkern.sum(a(np.zeros((2, 3))), 1, out=a(np.zeros((1, 2)))), ValueError,
         r"out.shape is \[1, 2\]"),
        (lambda a: dlkern.sum(a(np.zeros(3, "f4")), out=a(np.zeros(()))), TypeError,
         r"out.dtype is float64, expected float32 \(x.dtype\)"),
        (lambda a: dlkern.sum(a(np.zeros(3, "f2")), out=a(np.zeros(()))), TypeError,
         "out.dtype is float64, expected float16 or float32"),
        (lambda a: dlkern.argmax(a(np.zeros(3)), out=a(np.zeros(()))), TypeError,
         "out.dtype is float64, expected int64 or int32"),
        (lambda a: dlkern.sum_backward(a(np.zeros(3)), (2, 3), 1), ValueError,
         r"dy.shape is \[3\]"),
        (lambda a: dlkern.sum_backward(a(np.zeros(3)), None, 1), TypeError, "shape is None"),
        (lambda a: dlkern.max_backward(a(np.zeros(2)), a(np.zeros((2, 3))), a(np.zeros(3)), 1),
         ValueError, r"y.shape is \[3\]"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_all_dtypes_are_covered():
    for dtype in FLOATS:
        assert dlkern.sum(rounded([1, 2], dtype)).dtype == rounded([1], dtype).dtype


LOGICAL = {"any": dlkern.any, "all": dlkern.all}


@pytest.mark.sanitize
@pytest.mark.parametrize("op", LOGICAL)
@pytest.mark.parametrize(
    "shape", [(), (1,), (5003,), (3, 4), (17, 600), (600, 17), (5, 23, 36), (2, 3, 1, 5, 4)]
)
def test_truths(backend, rng, op, shape):
    """Rare answers too: elements that are almost all true, or false; bytes other than 0 and 1."""
    for few in (1.5, 0.5 / max(np.prod(shape[:1]), 1)):
        x = rng.random(shape) < few if op == "any" else rng.random(shape) >= few
        for layout in LAYOUTS if shape else ("contiguous",):
            on_device = backend.array(x, layout)
            for axis in (None, *range(len(shape))):
                for keepdims in (False, True):
                    expected = np.asarray(getattr(np, op)(x, axis, keepdims=keepdims))
                    y = backend.empty(expected.shape, "bool")
                    LOGICAL[op](on_device, axis, keepdims=keepdims, out=y)
                    np.testing.assert_array_equal(backend.numpy(y), expected)


def test_truths_of_odd_bytes_and_of_nothing():
    x = np.array([[0, 2, 0, 0], [0, 0, 0, 0], [4, 2, 128, 255]], "uint8").view(bool)
    assert np.asarray(dlkern.any(x, 1)).tolist() == [True, False, True]
    assert np.asarray(dlkern.all(x, 1)).view("uint8").tolist() == [0, 0, 1]
    assert np.asarray(dlkern.any(x, 0)).view("uint8").tolist() == [1, 1, 1, 1]
    nothing = np.zeros((0, 3), bool)
    assert np.asarray(dlkern.any(nothing, 0)).tolist() == [False] * 3
    assert np.asarray(dlkern.all(nothing, 0)).tolist() == [True] * 3
