"""add with broadcasting, and its gradients, against NumPy."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import FLOATS, assert_close, assert_grad, float64, rounded

import dlkern

SHAPES = [
    ((), ()),
    ((1,), ()),
    ((7,), (7,)),
    ((1031,), (1,)),
    ((0, 3), (3,)),
    ((1,), (0,)),
    ((4, 1), (1, 5)),
    ((3, 1030), (1030,)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((5,), (2, 3, 4, 5)),
    ((6, 1, 64), (1, 7, 64)),
    ((1, 1, 1), (2, 1, 3)),
    ((2, 1, 2, 1, 2, 1, 2, 1), (1, 3, 1, 3, 1, 3, 1, 3)),
]
DTYPES = (*FLOATS, "int32", "int64")


def values(rng, shape, dtype):
    if dtype.startswith("int"):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype)
    return rounded(rng.standard_normal(shape), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_broadcasting(backend, rng, dtype, a_shape, b_shape):
    a, b = values(rng, a_shape, dtype), values(rng, b_shape, dtype)
    y = dlkern.add(backend.array(a), backend.array(b))
    if dtype.startswith("int"):  # modulo 2^32 or 2^64
        np.testing.assert_array_equal(backend.numpy(y), np.add(a, b))
        return
    a, b = float64(a), float64(b)
    assert_close(backend.numpy(y), a + b, dtype, "add", np.abs(a) + np.abs(b))


def test_weights(backend, dtype, rng):
    a, b = rounded(rng.standard_normal((2, 3, 33)), dtype)
    y = dlkern.add(backend.array(a), backend.array(b), alpha=0.25, beta=-3)
    a, b = 0.25 * float64(a), -3 * float64(b)
    assert_close(backend.numpy(y), a + b, dtype, "add", np.abs(a) + np.abs(b))


def test_a_summand_with_factor_0_does_not_count(backend, dtype):
    a = backend.array(rounded([1, 2, 3], dtype))
    bad = backend.array(rounded([np.nan, np.inf, -np.inf], dtype))
    np.testing.assert_array_equal(backend.numpy(dlkern.add(a, bad, beta=0)), [1, 2, 3])
    np.testing.assert_array_equal(backend.numpy(dlkern.add(bad, a, alpha=0)), [1, 2, 3])


def test_integers_with_weights(backend):
    a = backend.array(np.array([2**31 - 1, -5], np.int32))
    y = dlkern.add(a, backend.array(np.array([1, 2], np.int32)), alpha=2, beta=-1)
    np.testing.assert_array_equal(backend.numpy(y), np.array([-3, -12], np.int32))
    a = backend.array(np.array([2**62 + 1]))
    y = dlkern.add(a, backend.array(np.array([1])), alpha=1, beta=2**40)
    np.testing.assert_array_equal(backend.numpy(y), [2**62 + 2**40 + 1])


def test_integer_weights_count_modulo_2_32(backend):
    a = backend.array(np.array([1, 2], np.int32))
    y = dlkern.add(a, a, alpha=2**32 + 3, beta=-(2**40) - 1)
    np.testing.assert_array_equal(backend.numpy(y), np.array([2, 4], np.int32))
    with pytest.raises(ValueError, match="add: alpha is 9007199254740993, expected"):
        dlkern.add(a, a, alpha=2**53 + 1)


@pytest.mark.sanitize
@pytest.mark.parametrize("out_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout, out_layout):
    """EDGE 21, 26: any strides and alignment of both summands and the result."""
    for dtype, shape, other in (
        ("float32", (3, 5, 17), (5, 17)),
        ("float16", (4, 6, 64), (6, 1)),
        ("int64", (5, 6), (1, 6)),
    ):
        a, b = values(rng, shape, dtype), values(rng, other, dtype)
        y = backend.empty(shape, dtype, out_layout)
        assert dlkern.add(backend.array(a, layout), backend.array(b, layout), out=y) is y
        expected = dlkern.add(backend.array(a), backend.array(b))
        np.testing.assert_array_equal(backend.raw(y), backend.raw(expected))


def test_in_place(backend, dtype, rng):
    a, b = rounded(rng.standard_normal((4, 1037)), dtype), rounded(rng.standard_normal(1037), dtype)
    expected = backend.raw(dlkern.add(backend.array(a), backend.array(b)))
    first, second = backend.array(a), backend.array(b)
    assert dlkern.add(first, second, out=first) is first
    np.testing.assert_array_equal(backend.raw(first), expected)
    first = backend.array(a)
    dlkern.add(second, first, out=first)
    np.testing.assert_array_equal(backend.raw(first), expected)
    dlkern.add(first, first, alpha=0.5, beta=0.5, out=first)
    np.testing.assert_array_equal(backend.raw(first), expected)


def test_partial_overlap_is_refused(backend):
    base = backend.array(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="out overlaps b"):
        dlkern.add(backend.array(np.zeros((3, 4))), base[:1], out=base)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_backward(backend, rng, dtype, a_shape, b_shape):
    shape = np.broadcast_shapes(a_shape, b_shape)
    dy = rounded(rng.standard_normal(shape), dtype)
    gradients = dlkern.add_backward(backend.array(dy), a_shape, b_shape, alpha=1, beta=0.5)
    for gradient, own, factor in zip(gradients, (a_shape, b_shape), (1, 0.5), strict=True):
        axes = tuple(range(len(shape) - len(own)))
        axes += tuple(len(axes) + d for d, n in enumerate(own) if n != shape[len(axes) + d])
        expected = factor * float64(dy).sum(axes).reshape(own)
        size = factor * np.abs(float64(dy)).sum(axes).reshape(own)
        assert tuple(gradient.shape) == own
        assert_close(backend.numpy(gradient), expected, dtype, "sum", size)


def test_backward_by_finite_differences(rng):
    a, b, dy = (
        rng.standard_normal((3, 1, 4)),
        rng.standard_normal(4),
        rng.standard_normal((3, 2, 4)),
    )
    b = np.stack([b, -b])

    def forward(a, b):
        return dlkern.add(a, b, alpha=2, beta=-0.5)

    assert_grad(forward, [a, b], dy, dlkern.add_backward(dy, a.shape, b.shape, alpha=2, beta=-0.5))


def test_backward_writes_nothing_where_an_argument_is_wrong(backend):
    out, small = backend.empty((2, 3), "float64"), backend.empty((2,), "float64")
    with pytest.raises(ValueError, match="out_b.shape"):
        dlkern.add_backward(backend.array(np.ones((2, 3))), out_a=out, out_b=small)
    assert np.isnan(backend.numpy(out)).all()


def test_backward_leaves_out_what_is_not_asked_for(backend):
    dy = backend.array(np.ones((2, 3)))
    assert dlkern.add_backward(dy) == (None, None)
    da, db = dlkern.add_backward(dy, b_shape=(3,))
    assert da is None
    np.testing.assert_array_equal(backend.numpy(db), [2, 2, 2])
    out = backend.empty((3,), "float64")
    da, db = dlkern.add_backward(dy, out_b=out, beta=2)
    assert db is out
    np.testing.assert_array_equal(backend.numpy(out), [4, 4, 4])


@pytest.mark.gpu
def test_edge_15_more_than_2_31_elements(gpu):
    torch = pytest.importorskip("torch")
    rows = 2**21 + 8
    if torch.cuda.mem_get_info()[0] < 2 * rows * 1024 + 2**30:
        pytest.skip("not enough memory on the GPU")
    x = torch.zeros(rows, 1024, dtype=torch.float16, device="cuda")
    x[2**21] = 1
    dlkern.add(x, torch.arange(1024, device="cuda", dtype=torch.float16), out=x)
    expected = torch.arange(1024, device="cuda", dtype=torch.float16)
    assert torch.equal(x[2**21], expected + 1)
    assert torch.equal(x[-1], expected)


ONES = np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.add(a(ONES), a(np.ones((2, 2)))), ValueError,
         r"add: b.shape is \[2, 2\], expected one that broadcasts with \[2, 3\]"),
        (lambda a: dlkern.add(a(ONES), a(np.ones((2, 3), np.float32))), TypeError,
         "b.dtype is float32, expected float64"),
        (lambda a: dlkern.add(a(ONES.astype(bool)), a(ONES.astype(bool))), TypeError,
         "a.dtype is bool"),
        (lambda a: dlkern.add(a(ONES), 1.0), TypeError, "b is float"),
        (lambda a: dlkern.add(a(ONES), a(ONES), alpha="x"), TypeError, "alpha is 'x'"),
        (lambda a: dlkern.add(a(np.ones(3, int)), a(np.ones(3, int)), beta=0.5), ValueError,
         "beta is 0.5, expected a whole number"),
        (lambda a: dlkern.add(a(np.ones(3)), a(ONES), out=a(np.ones(3))), ValueError,
         r"out.shape is \[3\], expected \[2, 3\]"),
        (lambda a: dlkern.add(a(ONES), a(ONES), out=a(np.ones((2, 3), np.float32))), TypeError,
         "out.dtype is float32"),
        (lambda a: dlkern.add_backward(a(ONES), (2,)), ValueError,
         r"a_shape is \[2\], expected one that broadcasts to \[2, 3\]"),
        (lambda a: dlkern.add_backward(a(ONES), (3,), (1, 3)), ValueError,
         r"dy.shape is \[2, 3\], expected \[1, 3\]"),
        (lambda a: dlkern.add_backward(a(ONES), (1, 2, 3)), ValueError, r"a_shape is \(1, 2, 3\)"),
        (lambda a: dlkern.add_backward(a(ONES), None, (2, 3.0)), TypeError, "b_shape is 3.0"),
        (lambda a: dlkern.add_backward(a(np.ones(3, int)), (3,)), TypeError, "dy.dtype is int64"),
        (lambda a: dlkern.add_backward(a(ONES), out_a=a(np.ones(2))), ValueError, "out_a.shape"),
        (lambda a: dlkern.add_backward(a(ONES), out_b=a(np.ones(2))), ValueError, "out_b.shape"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_read_only_out_is_refused():
    out = np.zeros((2, 3))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        dlkern.add(ONES, ONES, out=out)
