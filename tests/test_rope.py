"""Rotary position embedding, against NumPy."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64, rounded

import dlkern


def angles(positions, rotary, base=10000.0):
    """[..., S, R / 2] in float64, from exact products."""
    frequency = np.longdouble(base) ** (-np.arange(0, rotary, 2, dtype=np.longdouble) / rotary)
    return np.asarray(positions, np.longdouble)[..., None] * frequency


def expected_of(x, t, rotary, interleaved=False, sign=1):
    """The result for x [B, S, H, D] and t [B or 1, S, R / 2], and its scale."""
    x = float64(x)
    half = rotary // 2
    a = slice(0, rotary, 2) if interleaved else slice(0, half)
    b = slice(1, rotary, 2) if interleaved else slice(half, rotary)
    cos = np.cos(t).astype(np.float64)[:, :, None]
    sin = sign * np.sin(t).astype(np.float64)[:, :, None]
    y, scale = x.copy(), np.abs(x)
    y[..., a], y[..., b] = (
        x[..., a] * cos - x[..., b] * sin,
        x[..., b] * cos + x[..., a] * sin,
    )
    scale[..., a] = scale[..., b] = np.abs(x[..., a]) + np.abs(x[..., b])
    return y, scale


@pytest.mark.sanitize
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("depth", "rotary"), [(64, 64), (128, 64), (10, 6), (7, 4), (2, 2)])
def test_forward_and_backward(backend, dtype, rng, depth, rotary, interleaved):
    x = rounded(rng.standard_normal((2, 9, 5, depth)), dtype)
    t = angles(np.arange(3, 12), rotary)[None]
    options = {"offset": 3, "rotary_dim": rotary, "interleaved": interleaved}
    for function, sign in ((dlkern.rope, 1), (dlkern.rope_backward, -1)):
        expected, scale = expected_of(x, t, rotary, interleaved, sign)
        y = backend.numpy(function(backend.array(x), **options))
        assert_close(y, expected, dtype, "rope", scale)
        swapped = np.ascontiguousarray(x.swapaxes(1, 2))
        y = backend.numpy(function(backend.array(swapped), layout="BHSD", **options))
        assert_close(y.swapaxes(1, 2), expected, dtype, "rope", scale)
        out = backend.array(x)
        assert function(out, out=out, **options) is out
        assert_close(backend.numpy(out), expected, dtype, "rope", scale)


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_tables_and_positions(backend, dtype, rng, index):
    x = rounded(rng.standard_normal((3, 6, 2, 32)), dtype)
    t = angles(np.arange(20), 32).astype(np.float64)
    kinds = {dtype, "float64" if dtype == "float64" else "float32"}
    for kind in kinds:
        cos, sin = rounded(np.cos(t), kind), rounded(np.sin(t), kind)
        for shape in ((6,), (3, 6)):
            positions = rng.integers(0, 20, shape).astype(index)
            y = dlkern.rope(
                backend.array(x), cos=backend.array(cos), sin=backend.array(sin, "transposed"),
                positions=backend.array(positions),
            )  # fmt: skip
            c, s = (float64(v)[positions].reshape(-1, 6, 1, 16) for v in (cos, sin))
            a, b = float64(x)[..., :16], float64(x)[..., 16:]
            expected = np.concatenate([a * c - b * s, b * c + a * s], -1)
            scale = np.tile(np.abs(a) + np.abs(b), 2)
            assert_close(backend.numpy(y), expected, dtype, "rope", scale)


def test_positions_are_reduced_exactly(backend, rng):
    """In float32 the angle of position 10^6 would be off by 0.03."""
    x = rng.standard_normal((1, 4, 1, 8)).astype(np.float32)
    positions = np.array([10**6, 10**6 + 1, 10**7 + 5, -(10**7)])
    expected, scale = expected_of(x, angles(positions, 8)[None], 8)
    y = dlkern.rope(backend.array(x), positions=backend.array(positions))
    assert_close(backend.numpy(y), expected, "float32", "rope", scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout):
    """EDGE 21, 26."""
    for dtype in ("float32", "bfloat16"):
        x = rounded(rng.standard_normal((2, 5, 3, 32)), dtype)
        expected, scale = expected_of(x, angles(np.arange(5), 16)[None], 16)
        for layouts in ((layout, "contiguous"), ("contiguous", layout), (layout, layout)):
            y = backend.empty(x.shape, dtype, layouts[1])
            dlkern.rope(backend.array(x, layouts[0]), rotary_dim=16, out=y)
            assert_close(backend.numpy(y), expected, dtype, "rope", scale)


@pytest.mark.sanitize
def test_lists_give_the_bits_of_single_tensors(backend, dtype, rng):
    """Queries and keys with fewer heads, and more tensors than a launch takes."""
    many = [rounded(rng.standard_normal((2, 7, h, 16)), dtype) for h in (8, 2, 0, *[1] * 10)]
    results = dlkern.rope([backend.array(x) for x in many], base=500.0)
    assert isinstance(results, tuple)
    for x, y in zip(many, results, strict=True):
        alone = backend.raw(dlkern.rope(backend.array(x), base=500.0))
        assert alone.tobytes() == backend.raw(y).tobytes()


def test_rows_do_not_depend_on_the_batch(backend, rng):
    x = rng.standard_normal((4, 6, 5, 64)).astype(np.float32)
    many = backend.raw(dlkern.rope(backend.array(x), offset=11))
    one = backend.raw(dlkern.rope(backend.array(x[2:3, 3:4, 1:2]), offset=14))
    np.testing.assert_array_equal(one[0, 0, 0], many[2, 3, 1])


def test_without_batch_and_empty(backend, rng):
    x = rng.standard_normal((6, 3, 8))
    y = backend.raw(dlkern.rope(backend.array(x)))
    np.testing.assert_array_equal(y, backend.raw(dlkern.rope(backend.array(x[None])))[0])
    assert backend.raw(dlkern.rope(backend.array(x[:0]))).shape == (0, 3, 8)


def test_gradient_by_differences(rng):
    x, dy = rng.standard_normal((2, 1, 3, 2, 6))
    for options in ({}, {"interleaved": True, "rotary_dim": 4, "offset": 5}):
        dx = dlkern.rope_backward(dy, **options)
        assert_grad(lambda v, o=options: dlkern.rope(v, **o), [x], dy, [dx])


def test_edge_8_positions_out_of_the_table(backend):
    x = backend.array(np.ones((1, 2, 1, 4)))
    table = backend.array(np.ones((3, 2)))
    positions = backend.array(np.array([1, 3]))
    with pytest.raises(ValueError, match="rope: positions holds 3 at flat index 1"):
        dlkern.rope(x, cos=table, sin=table, offset=2)
    if not backend.is_gpu:
        with pytest.raises(ValueError, match="rope: positions holds 3 at flat index 1"):
            dlkern.rope(x, cos=table, sin=table, positions=positions)
        return
    y = backend.numpy(dlkern.rope(x, cos=table, sin=table, positions=positions))
    assert np.isfinite(y[:, 0]).all()
    assert np.isnan(y[:, 1]).all()


X, T = np.ones((2, 3, 4, 8)), np.ones((9, 4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.rope(a(X[0, 0])), ValueError, "rope: x has 2 dimensions, expected"),
        (lambda a: dlkern.rope([a(X), a(X[:, :2])]), ValueError,
         r"x\[1\].shape is \[2, 2, 4, 8\], expected \[2, 3, 4, 8\]"),
        (lambda a: dlkern.rope([a(X), a(X.astype("f4"))]), TypeError, r"x\[1\].dtype is float32"),
        (lambda a: dlkern.rope([]), ValueError, "x is empty"),
        (lambda a: dlkern.rope(a(X), rotary_dim=5), ValueError, "rotary_dim is 5, expected"),
        (lambda a: dlkern.rope(a(X), rotary_dim=10), ValueError, "rotary_dim is 10"),
        (lambda a: dlkern.rope(a(X[..., :7])), ValueError, "rotary_dim is 7"),
        (lambda a: dlkern.rope(a(X), layout="SBHD"), ValueError, "layout is 'SBHD'"),
        (lambda a: dlkern.rope(a(X), base=0), ValueError, "base is 0"),
        (lambda a: dlkern.rope(a(X), cos=a(T)), ValueError, "sin is NULL, expected both"),
        (lambda a: dlkern.rope(a(X), cos=a(T), sin=a(T[:8])), ValueError, "sin.shape is"),
        (lambda a: dlkern.rope(a(X), cos=a(T[:, :3]), sin=a(T)), ValueError, "cos.shape is"),
        (lambda a: dlkern.rope(a(X), positions=a(np.arange(4))), ValueError,
         r"positions.shape is \[4\], expected \[3\]"),
        (lambda a: dlkern.rope(a(X), out=a(X[:1])), ValueError, "out.shape is"),
        (lambda a: dlkern.rope([a(X)], out=a(X)), ValueError, "out is .*, expected a list of 1"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)
