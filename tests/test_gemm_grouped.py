"""grouped_matmul: packed rows, a packed depth, lists; and the gradients."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64
from test_gemm import normal, product

import dlkern

# Where groups end, of T = 150 packed rows: empty ones first, between and last; all rows in one;
# rows that belong to no group; none at all.
ENDS = {
    "even": (50, 100, 150),
    "uneven": (0, 3, 3, 67, 67, 149, 150, 150),
    "one": (0, 150, 150),
    "single": (150,),
    "short": (10, 40),
    "nothing": (0, 0, 0),
    "each": tuple(range(1, 151)),
}
T = 150


def parts(ends):
    return [slice(a, b) for a, b in zip((0, *ends), ends, strict=False)]


def rows_f64(a, b, ends, bias=None):
    """y, its scale, of packed rows; NaN where nothing is written."""
    y = np.full((len(a), b.shape[2]), np.nan)
    scale = np.zeros_like(y)
    for g, part in enumerate(parts(ends)):
        y[part], scale[part] = product(a[part], b[g])
        if bias is not None:
            y[part] += float64(bias[g])
            scale[part] += np.abs(float64(bias[g]))
    return y, scale


def depth_f64(a, b, ends):
    both = [product(a[:, part], b[part]) for part in parts(ends)]
    return np.stack([y for y, _ in both]), np.stack([scale for _, scale in both])


@pytest.mark.sanitize
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_packed_rows(backend, dtype, rng, ends, index):
    a, b = normal(rng, (T, 37), dtype), normal(rng, (len(ends), 37, 41), dtype)
    bias = normal(rng, (len(ends), 41), dtype)
    offsets = backend.array(np.array(ends, index))
    for more in ((), (bias,)):
        y = backend.empty((T, 41), dtype)
        arrays = [backend.array(v) for v in (a, b)]
        dlkern.grouped_matmul(*arrays, offsets, *map(backend.array, more), out=y)
        expected, scale = rows_f64(a, b, ends, *more)
        assert_close(backend.numpy(y), expected, dtype, "matmul", scale=scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_packed_depth(backend, dtype, rng, ends):
    a, b = normal(rng, (37, T), dtype), normal(rng, (T, 41), dtype)
    y = backend.empty((len(ends), 37, 41), dtype)
    dlkern.grouped_matmul(*map(backend.array, (a, b, np.array(ends, "int32"))), out=y)
    expected, scale = depth_f64(a, b, ends)
    assert_close(backend.numpy(y), expected, dtype, "matmul", scale=scale)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("invariant", [False, True])
def test_layouts(backend, rng, layout, invariant):
    ends = np.array(ENDS["uneven"])
    a, b = normal(rng, (T, 37), "float32"), normal(rng, (len(ends), 37, 41), "float32")
    for kind, x, w, shape in (
        (rows_f64, a, b, (T, 41)),
        (depth_f64, normal(rng, (37, T), "float32"), a, (len(ends), 37, 37)),
    ):
        y = backend.empty(shape, "float32", layout)
        arrays = [backend.array(v, layout) for v in (x, w, ends)]
        dlkern.grouped_matmul(*arrays, batch_invariant=invariant, out=y)
        expected, scale = kind(x, w, ends)
        assert_close(backend.numpy(y), expected, "float32", "matmul", scale=scale)


def test_nothing(backend, rng):
    """No rows, no groups, no columns, no depth."""

    def call(a, b, ends, out):
        y = backend.empty(out, "float32")
        arrays = (np.zeros(a, "f4"), np.zeros(b, "f4"), np.array(ends, "int64"))
        return backend.numpy(dlkern.grouped_matmul(*map(backend.array, arrays), out=y))

    assert call((0, 5), (2, 5, 3), (0, 0), (0, 3)).size == 0
    assert np.isnan(call((4, 5), (0, 5, 3), (), (4, 3))).all()
    assert call((4, 5), (2, 5, 0), (2, 4), (4, 0)).size == 0
    np.testing.assert_array_equal(call((4, 0), (2, 0, 3), (2, 4), (4, 3)), np.zeros((4, 3)))
    np.testing.assert_array_equal(call((4, 0), (0, 3), (0, 0), (2, 4, 3)), np.zeros((2, 4, 3)))


def test_output_of_another_dtype(backend, rng):
    a, b = normal(rng, (T, 30), "bfloat16"), normal(rng, (3, 30, 20), "bfloat16")
    y = backend.empty((T, 20), "float32")
    dlkern.grouped_matmul(*map(backend.array, (a, b, np.array(ENDS["even"]))), out=y)
    expected, scale = rows_f64(a, b, ENDS["even"])
    assert_close(backend.numpy(y), expected, "float32", "matmul", scale=scale)


def test_wild_offsets_touch_nothing_out_of_bounds(backend, rng):
    """Offsets that fall or lie outside are clamped; the other groups are right."""
    a, b = normal(rng, (T, 8), "float32"), normal(rng, (4, 8, 9), "float32")
    guarded = backend.empty((T + 64, 9), "float32")
    for ends in ((-5, 20, 1000, 1000), (2**40, -(2**40), 50, 7)):
        offsets = backend.array(np.array(ends, "int64"))
        dlkern.grouped_matmul(backend.array(a), backend.array(b), offsets, out=guarded[32:-32])
        guard = backend.numpy(guarded)
        assert np.isnan(guard[:32]).all()
        assert np.isnan(guard[-32:]).all()
        dlkern.grouped_matmul(backend.array(a.T.copy()), backend.array(a), offsets)
    y = backend.empty((T, 9), "float32")
    ends = (-5, 20, 1000, 1000)
    dlkern.grouped_matmul(backend.array(a), backend.array(b), backend.array(np.array(ends)), out=y)
    expected, scale = rows_f64(a, b, (0, 20, T, T))
    assert_close(backend.numpy(y), expected, "float32", "matmul", scale=scale)


def test_debug_mode_checks_offsets():
    program = """
import numpy as np, dlkern
a, b = np.ones((6, 3), "f4"), np.ones((3, 3, 2), "f4")
for ends in ([2, 1, 6], [1, 2, 7], [-1, 2, 6]):
    try:
        dlkern.grouped_matmul(a, b, np.array(ends))
    except ValueError as error:
        assert "offsets holds" in str(error), error
    else:
        raise AssertionError(ends)
dlkern.grouped_matmul(a, b, np.array([0, 6, 6]))
"""
    environment = os.environ | {"DLKERN_DEBUG": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_items_have_the_bits_of_the_product_alone(backend, rng):
    """In a batch-invariant call a row has the bits of the same row in a plain product."""
    ends = ENDS["uneven"]
    a, b = normal(rng, (T, 70), "float32"), normal(rng, (len(ends), 70, 33), "float32")
    y = dlkern.grouped_matmul(
        *map(backend.array, (a, b, np.array(ends))), batch_invariant=True
    )  # fmt: skip
    for g, part in enumerate(parts(ends)):
        alone = dlkern.matmul(backend.array(a[part]), backend.array(b[g]), batch_invariant=True)
        np.testing.assert_array_equal(backend.raw(y)[part], backend.raw(alone))


# ---- Lists ---------------------------------------------------------------------------------


def test_lists(backend, rng):
    shapes = ((3, 4, 5), (64, 1, 7), (1, 100, 1), (0, 3, 2))
    a = [normal(rng, (m, k), "float32") for m, k, _ in shapes]
    b = [normal(rng, (k, n), "float32") for _, k, n in shapes]
    results = dlkern.grouped_matmul([backend.array(x) for x in a], [backend.array(x) for x in b])
    assert isinstance(results, list)
    for x, w, y in zip(a, b, results, strict=True):
        expected, scale = product(x, w)
        assert_close(backend.numpy(y), expected, "float32", "matmul", scale=scale)
    dy = [normal(rng, (m, n), "float32") for m, _, n in shapes]
    lists = [[backend.array(v) for v in list_] for list_ in (dy, a, b)]
    gradients = dlkern.grouped_matmul_backward(*lists)
    for g, x, w, da, db in zip(dy, a, b, *gradients, strict=True):
        for result, (expected, scale) in ((da, product(g, w.T)), (db, product(x.T, g))):
            assert_close(backend.numpy(result), expected, "float32", "matmul", scale=scale)
    out = [backend.empty((m, n), "float32") for m, _, n in shapes]
    given = dlkern.grouped_matmul(*lists[1:], out=out)
    assert all(x is y for x, y in zip(given, out, strict=True))


# ---- Gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_gradients(backend, dtype, rng, ends):
    dy, a, b = (normal(rng, s, dtype) for s in ((T, 21), (T, 18), (len(ends), 18, 21)))
    arrays = [backend.array(v) for v in (dy, a, b, np.array(ends))]
    da, db = backend.empty((T, 18), dtype), backend.empty(b.shape, dtype)
    dlkern.grouped_matmul_backward(*arrays, out=da, out_b=db)
    expected, scale = rows_f64(dy, np.swapaxes(b, 1, 2), ends)
    assert_close(backend.numpy(da), expected, dtype, "matmul", scale=scale)
    expected, scale = depth_f64(a.T, dy, ends)
    assert_close(backend.numpy(db), expected, dtype, "matmul", scale=scale)
    # That of the bias, as the documentation says.
    ones = backend.array(np.ones((1, T), dy.dtype))
    dbias = dlkern.grouped_matmul(ones, arrays[0], arrays[3])
    expected = np.stack([float64(dy[part]).sum(0) for part in parts(ends)])
    assert_close(backend.numpy(dbias)[:, 0], expected, dtype, "matmul", scale=200.0)


def test_gradients_by_finite_differences(rng):
    a, b, dy = (rng.standard_normal(s) for s in ((7, 3), (3, 3, 2), (7, 2)))
    offsets = np.array([2, 2, 7])
    assert_grad(
        lambda a, b: dlkern.grouped_matmul(a, b, offsets), [a, b], dy,
        dlkern.grouped_matmul_backward(dy, a, b, offsets),
    )  # fmt: skip


# ---- Wrong arguments -----------------------------------------------------------------------


def z(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


ENDS_2 = np.array([1, 2])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((z(2, 3), z(2, 4, 5), ENDS_2), {}, ValueError,
         r"b.shape is \[2, 4, 5\], expected \[2, 3, 5\]"),
        ((z(2, 3), z(3, 3, 5), ENDS_2), {}, ValueError, r"offsets.shape is \[2\], expected \[3\]"),
        ((z(2, 3), z(2, 3, 5), z(2)), {}, TypeError, "offsets.dtype is float32, expected int32"),
        ((z(2, 3), z(2, 3, 5), z(2, 1, dtype="int32")), {}, ValueError, "offsets has 2 dim"),
        ((z(2, 3), z(2, 3, 5), None), {}, TypeError, "offsets is NoneType"),
        ((z(3), z(2, 3, 5), ENDS_2), {}, ValueError, "a has 1 dimensions"),
        ((z(2, 3), z(3), ENDS_2), {}, ValueError, "b has 1 dimensions"),
        ((z(2, 3), z(4, 5), ENDS_2), {}, ValueError, r"b.shape is \[4, 5\], expected \[3, 5\]"),
        ((z(2, 3), z(3, 5), ENDS_2, z(2, 5)), {}, ValueError, "bias is given"),
        ((z(2, 3), z(2, 3, 5), ENDS_2, z(5)), {}, ValueError, r"bias.shape is \[5\]"),
        ((z(2, 3), z(2, 3, 5, dtype="float64"), ENDS_2), {}, TypeError, "b.dtype is float64"),
        ((z(2, 3, dtype="int16"), z(2, 3, 5, dtype="int16"), ENDS_2), {}, TypeError,
         "a.dtype is int16"),
        ((z(2, 3), z(2, 3, 5), ENDS_2), {"out": z(2, 4)}, ValueError, r"out.shape is \[2, 4\]"),
        ((z(2, 3), z(2, 3, 5), ENDS_2), {"precision": "half"}, ValueError, "precision is 'half'"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, arguments, options, error, message):
    arguments = [None if v is None else backend.array(v) for v in arguments]
    options = {k: backend.array(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    with pytest.raises(error, match=f"grouped_matmul: {message}"):
        dlkern.grouped_matmul(*arguments, **options)


def test_wrong_lists():
    x = np.ones((2, 2))
    with pytest.raises(TypeError, match="b is ndarray, expected a list as a is"):
        dlkern.grouped_matmul([x], x)
    with pytest.raises(ValueError, match="b has 2 arrays, expected 1"):
        dlkern.grouped_matmul([x], [x, x])
    with pytest.raises(ValueError, match="offsets is given, expected None beside lists"):
        dlkern.grouped_matmul([x], [x], np.array([1]))
    with pytest.raises(ValueError, match="dy has 2 arrays, expected 1"):
        dlkern.grouped_matmul_backward([x, x], [x], [x])


def test_outputs_of_a_list_overlap_nothing(backend, rng):
    """Products come one after the other: one must not write what a later one reads."""
    a, b = (backend.array(normal(rng, (4, 4), "float32")) for _ in range(2))
    x, y = (backend.array(normal(rng, (4, 4), "float32")) for _ in range(2))
    with pytest.raises(ValueError, match=r"grouped_matmul: out\[0\] overlaps a\[1\]"):
        dlkern.grouped_matmul([a, x], [b, b], out=[x, None])
    with pytest.raises(ValueError, match=r"out\[0\] overlaps out\[1\]"):
        dlkern.grouped_matmul([a, a], [b, b], out=[y, y])
    with pytest.raises(ValueError, match=r"out_b\[0\] overlaps dy\[1\]"):
        dlkern.grouped_matmul_backward([a, x], [b, b], [a, a], out_b=[x, None])
