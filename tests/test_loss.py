"""cross_entropy, forward and backward, against float64."""

import os
import subprocess
import sys

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64, rounded

import dlkern

REDUCTIONS = ("none", "mean", "sum")

# ---- Oracle --------------------------------------------------------------------------------


def rows_of(logits, labels):
    """Logits as [rows, C], labels as [rows]."""
    axis = 0 if logits.ndim == 1 else 1
    return np.moveaxis(logits, axis, -1).reshape(-1, logits.shape[axis]), labels.ravel()


def losses_f64(
    logits, labels, weight=None, ignore=-100, smoothing=0.0, reduction="mean", z_loss=0.0
):
    x, t = rows_of(float64(logits), labels)
    w = np.ones(x.shape[1]) if weight is None else float64(weight)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = x - x.max(1, keepdims=True, initial=-np.inf)
        log_sum = np.log(np.exp(shifted).sum(1, keepdims=True))
        logp = shifted - log_sum
        used = t != ignore
        pick = np.where(used, t, 0)
        row_weight = np.where(used, w[pick], 0)
        loss = -(1 - smoothing) * w[pick] * np.take_along_axis(logp, pick[:, None], 1)[:, 0]
        if smoothing:
            loss = loss - smoothing / x.shape[1] * (w * logp).sum(1)
        if z_loss:
            loss = loss + z_loss * (x.max(1, initial=-np.inf) + log_sum[:, 0]) ** 2
        loss = np.where(used, loss, 0)
        if reduction == "none":
            return loss.reshape(labels.shape)
        return loss.sum() / (row_weight.sum() if reduction == "mean" else 1)


def gradient_f64(
    dloss, logits, labels, weight=None, ignore=-100, smoothing=0.0, reduction="mean", z_loss=0.0
):
    x, t = rows_of(float64(logits), labels)
    n, c = x.shape
    w = np.ones(c) if weight is None else float64(weight)
    used = t != ignore
    pick = np.where(used, t, 0)
    row_weight = np.where(used, w[pick], 0)
    p = np.exp(x - x.max(1, keepdims=True))
    lse = x.max(1, keepdims=True) + np.log(p.sum(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    scale = np.broadcast_to(float64(dloss).ravel(), n).astype(float)
    if reduction == "mean":
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = scale / row_weight.sum()
    hot = np.arange(c) == pick[:, None]
    g = (1 - smoothing) * row_weight[:, None] * (p - hot) + smoothing / c * (p * w.sum() - w)
    size = (1 - smoothing) * row_weight[:, None] * (p + hot) + smoothing / c * (p * w.sum() + w)
    g, size = g + 2 * z_loss * lse * p, size + np.abs(2 * z_loss * lse * p)
    g, size = (np.where(used[:, None], a * scale[:, None], 0) for a in (g, size))
    axis = 0 if logits.ndim == 1 else 1
    back = (*(s for a, s in enumerate(logits.shape) if a != axis), c)
    return [np.moveaxis(a.reshape(back), -1, axis) for a in (g, np.abs(size))]


def case(rng, shape, dtype, ignored=True, index="int64"):
    """Logits, labels and class weights."""
    classes = shape[0] if len(shape) == 1 else shape[1]
    rows = () if len(shape) == 1 else (shape[0], *shape[2:])
    labels = rng.integers(0, classes, rows) if classes else np.full(rows, -100)
    if ignored and labels.size > 2:
        labels.ravel()[::3] = -100
    logits = rounded(3 * rng.standard_normal(shape), dtype)
    return logits, np.asarray(labels, index), rounded(rng.uniform(0.5, 2, classes), dtype)


SHAPES = [
    (1,),
    (7,),
    (4, 1),
    (6, 5),
    (300, 10),
    (9, 64),
    (5, 513),
    (3, 5001),
    (3, 4, 5),
    (2, 21, 9, 31),
    (2, 70, 33),
    (2, 3, 2, 3, 4),
    (5, 600, 1),
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("smoothing", "weighted"), [(0.0, False), (0.0, True), (0.3, True)])
def test_forward_and_backward(backend, dtype, rng, shape, reduction, smoothing, weighted):
    logits, labels, weight = case(rng, shape, dtype)
    arrays = [backend.array(logits), backend.array(labels)]
    options = {"reduction": reduction, "label_smoothing": smoothing}
    given = {"weight": backend.array(weight)} if weighted else {}
    loss = backend.numpy(dlkern.cross_entropy(*arrays, **options, **given))
    args = weight if weighted else None, -100, smoothing, reduction
    scale = losses_f64(logits, labels, *args) + 3  # logits of this size are subtracted
    if reduction == "sum":
        scale = scale + 3 * labels.size
    assert_close(loss, losses_f64(logits, labels, *args), dtype, "cross_entropy", scale=scale)

    dloss = rounded(rng.standard_normal(loss.shape), dtype)
    dx = dlkern.cross_entropy_backward(backend.array(dloss), *arrays, **options, **given)
    expected, size = gradient_f64(dloss, logits, labels, *args)
    assert_close(backend.numpy(dx), expected, dtype, "cross_entropy", scale=size)


# Of a warp, a block, a cluster of 2, 4 and 8 blocks (16-bit types), and too many for those; whole
# 16 bytes and not.
LONG_ROWS = [1024, 4099, 32000, 32774, 128256, 131071, 200003, 262144, 262145]


@pytest.mark.parametrize("classes", LONG_ROWS)
@pytest.mark.parametrize(
    ("smoothing", "weighted"), [(0.0, False), (0.0, True), (0.3, False), (0.3, True)]
)
def test_long_rows(backend, dtype, rng, classes, smoothing, weighted):
    logits, labels, weight = case(rng, (5, classes), dtype)
    labels[1], labels[2] = classes - 1, 0
    arrays = [backend.array(logits), backend.array(labels)]
    options = {"reduction": "none", "label_smoothing": smoothing}
    if weighted:
        options["weight"] = backend.array(weight)
    loss = backend.numpy(dlkern.cross_entropy(*arrays, **options))
    args = weight if weighted else None, -100, smoothing, "none"
    right = losses_f64(logits, labels, *args)
    assert_close(loss, right, dtype, "cross_entropy", scale=right + 3)

    dloss = rounded(rng.standard_normal(5), dtype)
    dx = dlkern.cross_entropy_backward(backend.array(dloss), *arrays, **options)
    expected, size = gradient_f64(dloss, logits, labels, *args)
    assert_close(backend.numpy(dx), expected, dtype, "cross_entropy", scale=size)
    dlkern.cross_entropy_backward(backend.array(dloss), *arrays, **options, out=arrays[0])
    np.testing.assert_array_equal(backend.raw(arrays[0]), backend.raw(dx))


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(6, 9), (4, 70, 5), (3, 600)])
def test_layouts(backend, rng, layout, shape):
    """EDGE 21, 26: any strides and alignment of every array."""
    for dtype, index in (("float32", "int64"), ("float16", "int32")):
        logits, labels, weight = case(rng, shape, dtype, index=index)
        arrays = [backend.array(a, layout) for a in (logits, labels, weight)]
        loss = backend.empty(labels.shape, dtype, layout)
        options = {"weight": arrays[2], "label_smoothing": 0.1, "reduction": "none"}
        dlkern.cross_entropy(*arrays[:2], **options, out=loss)
        args = weight, -100, 0.1, "none"
        right = losses_f64(logits, labels, *args)
        assert_close(backend.numpy(loss), right, dtype, "cross_entropy", scale=right + 3)
        dx = backend.empty(shape, dtype, layout)
        dlkern.cross_entropy_backward(loss, *arrays[:2], **options, out=dx)
        expected, size = gradient_f64(backend.numpy(loss), logits, labels, *args)
        assert_close(backend.numpy(dx), expected, dtype, "cross_entropy", scale=size)


def test_zero_strides(backend, rng):
    logits, labels, _ = case(rng, (1, 9), "float32", ignored=False)
    many = backend.broadcast(logits, (5, 9)), backend.broadcast(labels, (5,))
    loss = dlkern.cross_entropy(*many, reduction="none", out=backend.empty((5,), "float32"))
    expected = losses_f64(logits, labels, reduction="none")
    assert_close(backend.numpy(loss), np.tile(expected, 5), "float32", "cross_entropy",
                 scale=expected + 3)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_loss_and_weight_beside_16_bit_logits(backend, rng, dtype):
    logits, labels, _ = case(rng, (40, 12), dtype)
    weight = rounded(rng.uniform(0.5, 2, 12), "float32")
    arrays = [backend.array(a) for a in (logits, labels)]
    given = {"weight": backend.array(weight)}
    loss = backend.empty((), "float32")
    dlkern.cross_entropy(*arrays, **given, out=loss)
    expected = losses_f64(logits, labels, weight)
    assert_close(backend.numpy(loss), expected, "float32", "cross_entropy", scale=expected + 3)
    dx = dlkern.cross_entropy_backward(loss, *arrays, **given)
    right, size = gradient_f64(backend.numpy(loss), logits, labels, weight)
    assert_close(backend.numpy(dx), right, dtype, "cross_entropy", scale=size)


@pytest.mark.parametrize("shape", [(50, 10), (7, 700), (2, 9, 40)])
def test_in_place(backend, dtype, rng, shape):
    logits, labels, _ = case(rng, shape, dtype)
    one, labels = backend.array(rounded(1.0, dtype)), backend.array(labels)
    apart = backend.numpy(dlkern.cross_entropy_backward(one, backend.array(logits), labels))
    together = backend.array(logits)
    dlkern.cross_entropy_backward(one, together, labels, out=together)
    np.testing.assert_array_equal(backend.numpy(together), apart)


@pytest.mark.parametrize("classes", [10, 700, 5000])
def test_rows_do_not_depend_on_the_batch(backend, dtype, rng, classes):
    logits, labels, _ = case(rng, (64, classes), dtype, ignored=False)
    many = dlkern.cross_entropy(backend.array(logits), backend.array(labels), reduction="none")
    one = dlkern.cross_entropy(
        backend.array(logits[17:18]), backend.array(labels[17:18]), reduction="none"
    )
    np.testing.assert_array_equal(backend.numpy(many)[17:18], backend.numpy(one))


@pytest.mark.parametrize("classes", [3, 700])
def test_edge_06_rows_of_infinities_and_nan(backend, dtype, classes):
    inf = np.inf
    x = np.full((5, classes), -inf)
    x[1, :2], x[2, :2], x[3, 2], x[4, :3] = (inf, 0), (np.nan, 0), 2, (1, 2, 3)
    labels = backend.array(np.array([0, 1, 1, 2, 1]))
    x = backend.array(rounded(x, dtype))
    loss = backend.numpy(dlkern.cross_entropy(x, labels, reduction="none"))
    assert np.isnan(loss[:3]).all()
    assert_close(loss[3:], [0, 1.4076059644443806], dtype, "cross_entropy", scale=3)
    ones = backend.array(rounded(np.ones(5), dtype))
    dx = backend.numpy(dlkern.cross_entropy_backward(ones, x, labels, reduction="none"))
    assert np.isnan(dx[:3]).all()
    np.testing.assert_array_equal(dx[3], np.zeros(classes))
    np.testing.assert_array_equal(dx[4, 3:], np.zeros(classes - 3))


def test_extreme_values(backend, dtype):
    big = {"float16": 6e4}.get(dtype, 1e30)
    logits = rounded([[big, -big, 0], [big, big, big], [-big, -big, -big]], dtype)
    labels = np.array([1, 2, 0])
    for smoothing in (0.0, 0.1):
        loss = dlkern.cross_entropy(
            backend.array(logits), backend.array(labels), reduction="none",
            label_smoothing=smoothing,
        )  # fmt: skip
        right = losses_f64(logits, labels, None, -100, smoothing, "none")
        assert_close(backend.numpy(loss), right, dtype, "cross_entropy", scale=np.abs(right) + 3)


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(7,), (9, 12), (5, 700), (3, 5001), (2, 21, 9), (4, 33000)])
@pytest.mark.parametrize(
    ("smoothing", "weighted", "z_loss"), [(0.0, False, 0.0), (0.2, True, 0.1), (0.2, False, 0.1)]
)
def test_loss_and_gradient_at_once(backend, dtype, rng, shape, smoothing, weighted, z_loss):
    """The loss, and the very bits of the gradient of the two calls, also into the logits."""
    logits, labels, weight = case(rng, shape, dtype)
    for reduction in REDUCTIONS:
        arrays = [backend.array(logits), backend.array(labels)]
        options = {"reduction": reduction, "label_smoothing": smoothing, "z_loss": z_loss}
        if weighted:
            options["weight"] = backend.array(weight)
        loss, dx = dlkern.cross_entropy_with_grad(*arrays, **options)
        alone = dlkern.cross_entropy(*arrays, **options)
        args = weight if weighted else None, -100, smoothing, reduction, z_loss
        right = losses_f64(logits, labels, *args)
        size = np.abs(right) + 3 + z_loss * 60 + (3 * labels.size if reduction == "sum" else 0)
        for found in (loss, alone):
            assert_close(backend.numpy(found), right, dtype, "cross_entropy", scale=size)
        expected, size = gradient_f64(1.0, logits, labels, *args)
        assert_close(backend.numpy(dx), expected, dtype, "cross_entropy", scale=size)

        dloss = backend.array(rounded(rng.standard_normal(right.shape), dtype))
        alone = dlkern.cross_entropy_backward(dloss, *arrays, **options)
        _, dx = dlkern.cross_entropy_with_grad(*arrays, dloss=dloss, **options, grad_out=arrays[0])
        assert dx is arrays[0]
        np.testing.assert_array_equal(backend.raw(dx), backend.raw(alone))


def test_z_loss_is_that_of_the_formula(backend, rng):
    logits, labels, _ = case(rng, (6, 50), "float64")
    arrays = [backend.array(logits), backend.array(labels)]
    plain, with_z = (
        backend.numpy(dlkern.cross_entropy(*arrays, reduction="none", z_loss=z)) for z in (0, 0.5)
    )
    lse = np.log(np.exp(logits).sum(1))
    np.testing.assert_allclose(with_z - plain, np.where(labels < 0, 0, 0.5 * lse**2), rtol=1e-10)


# ---- Edge cases ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 5), (4, 600), (2, 5, 7)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_edge_07_every_label_ignored(backend, dtype, rng, shape, smoothing):
    logits, labels, _ = case(rng, shape, dtype)
    logits[0] = np.nan  # not looked at
    logits, labels = backend.array(logits), backend.array(np.full_like(labels, 3))
    one = backend.array(rounded(1.0, dtype))
    for reduction in ("sum", "mean"):
        options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": 3}
        loss = backend.numpy(dlkern.cross_entropy(logits, labels, **options))
        np.testing.assert_array_equal(loss, 0.0 if reduction == "sum" else np.nan)
        dx = dlkern.cross_entropy_backward(one, logits, labels, **options)
        np.testing.assert_array_equal(backend.numpy(dx), np.zeros(shape))
        both, dx = dlkern.cross_entropy_with_grad(logits, labels, z_loss=0.1, **options)
        np.testing.assert_array_equal(backend.numpy(both), loss)
        np.testing.assert_array_equal(backend.numpy(dx), np.zeros(shape))


@pytest.mark.parametrize("bad", [-1, 5, 2**40, -(2**62)])
@pytest.mark.parametrize("classes_last", [True, False])
def test_edge_08_label_out_of_range(backend, rng, bad, classes_last):
    """On the CPU an error with nothing written; on a GPU a NaN row. Both go on working."""
    shape = (4, 5) if classes_last else (2, 5, 2)
    logits, labels, weight = case(rng, shape, "float32", ignored=False)
    labels.ravel()[2] = bad
    arrays = [backend.array(a) for a in (logits, labels)]
    given = {"weight": backend.array(weight), "reduction": "none"}
    loss, dx = backend.empty(labels.shape, "float32"), backend.empty(shape, "float32")
    ones = backend.array(np.ones(labels.shape, "f4"))
    calls = (
        lambda: dlkern.cross_entropy(*arrays, **given, out=loss),
        lambda: dlkern.cross_entropy_backward(ones, *arrays, **given, out=dx),
    )
    good = labels.copy()
    good.ravel()[2] = -100
    expected = losses_f64(logits, good, weight, reduction="none").ravel()
    for call in calls:
        if backend.is_gpu:
            call()
        else:
            with pytest.raises(ValueError, match=f"labels holds {bad} at flat index 2, expected 0"):
                call()
    rows, _ = rows_of(backend.numpy(dx), labels)
    if backend.is_gpu:
        assert np.isnan(rows[2]).all()
        assert np.isfinite(np.delete(rows, 2, 0)).all()
        expected[2] = np.nan
        np.testing.assert_allclose(backend.numpy(loss).ravel(), expected, rtol=1e-5)
    else:
        assert np.isnan(rows).all()
        assert np.isnan(backend.numpy(loss)).all()
    fine = dlkern.cross_entropy(arrays[0], backend.array(good), **given)
    expected[2] = 0
    np.testing.assert_allclose(backend.numpy(fine).ravel(), expected, rtol=1e-5)


@pytest.mark.gpu
def test_edge_08_debug_mode_reports_the_label(gpu):
    script = (
        "import numpy as np, torch, dlkern\n"
        "x = torch.zeros(3, 5, device='cuda')\n"
        "t = torch.tensor([0, 7, 1], device='cuda')\n"
        "out = torch.full((3,), 9.0, device='cuda')\n"
        "try:\n"
        "    dlkern.cross_entropy(x, t, reduction='none', out=out)\n"
        "except ValueError as error:\n"
        "    assert 'labels holds 7 at flat index 1' in str(error), error\n"
        "    assert (out == 9).all()\n"
        "    print('reported')\n"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False,
        env=os.environ | {"DLKERN_DEBUG": "1"},
    )  # fmt: skip
    assert run.stdout.strip() == "reported", run.stderr


def test_edge_09_each_row_has_its_own_upstream_gradient(backend, rng):
    logits, labels, _ = case(rng, (5, 7), "float64", ignored=False)
    w = np.array([0, 1, -2, 1e3, 0.5])
    arrays = backend.array(logits), backend.array(labels)
    dx, unit = (
        backend.numpy(dlkern.cross_entropy_backward(backend.array(d), *arrays, reduction="none"))
        for d in (w, np.ones(5))
    )
    np.testing.assert_allclose(dx, unit * w[:, None], rtol=1e-14)


def test_edge_10_backward_leaves_its_inputs_alone(backend, rng):
    logits, labels, weight = case(rng, (5, 7), "float32")
    given = [backend.array(a) for a in (np.float32(1), logits, labels, weight)]
    dlkern.cross_entropy_backward(*given[:3], weight=given[3])
    for array, before in zip(given, (np.float32(1), logits, labels, weight), strict=True):
        np.testing.assert_array_equal(backend.raw(array), before)


def test_edge_22_no_rows(backend):
    x, t = backend.array(np.zeros((0, 5), "f4")), backend.array(np.zeros(0, "i8"))
    for reduction, expected in (("none", np.zeros(0)), ("sum", 0.0), ("mean", np.nan)):
        loss = backend.numpy(dlkern.cross_entropy(x, t, reduction=reduction))
        np.testing.assert_array_equal(loss, expected)
    dx = dlkern.cross_entropy_backward(backend.array(np.float32(1)), x, t)
    assert backend.numpy(dx).shape == (0, 5)


def test_gradient_by_finite_differences(rng):
    for shape in ((3, 5), (2, 4, 3)):
        logits, labels, weight = case(rng, shape, "float64")
        for reduction in REDUCTIONS:
            options = {
                "weight": weight, "label_smoothing": 0.2, "z_loss": 0.1, "reduction": reduction
            }  # fmt: skip

            def forward(x, labels=labels, options=options):
                return dlkern.cross_entropy(x, labels, **options)

            dloss = rng.standard_normal(forward(logits).shape)
            dx = dlkern.cross_entropy_backward(np.asarray(dloss), logits, labels, **options)
            assert_grad(forward, [logits], dloss, [dx])


def test_agrees_with_torch(rng):
    torch = pytest.importorskip("torch")
    logits, labels, weight = map(torch.from_numpy, case(rng, (4, 6, 5), "float64"))
    for reduction in REDUCTIONS:
        for smoothing in (0.0, 0.3):
            options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
            expected = torch.nn.functional.cross_entropy(logits, labels, **options)
            torch.testing.assert_close(dlkern.cross_entropy(logits, labels, **options), expected)


# ---- Wrong arguments -----------------------------------------------------------------------

X = np.zeros((3, 4), np.float32)
T = np.zeros(3, np.int64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.cross_entropy(a(X), a(T.astype("u1"))), TypeError,
         "labels.dtype is uint8, expected int64 or int32"),
        (lambda a: dlkern.nll_loss(a(X), a(X)), TypeError,
         "labels.dtype is float32, expected int64 or int32"),
        (lambda a: dlkern.cross_entropy(a(X), a(T[:2])), ValueError,
         r"labels.shape is \[2\], expected \[3\] \(logits.shape without the classes\)"),
        (lambda a: dlkern.cross_entropy(a(np.float32(1)), a(T)), ValueError,
         "logits has 0 dimensions"),
        (lambda a: dlkern.cross_entropy(a(T), a(T)), TypeError, "logits.dtype is int64"),
        (lambda a: dlkern.cross_entropy(a(X), a(T), weight=a(X[0, :3])), ValueError,
         r"weight.shape is \[3\], expected \[4\] \(the number of classes of logits\)"),
        (lambda a: dlkern.cross_entropy(a(X), a(T), weight=a(X[0].astype("f8"))), TypeError,
         "weight.dtype is float64"),
        (lambda a: dlkern.cross_entropy(a(X), a(T), reduction="avg"), ValueError,
         "reduction is 'avg', expected one of none, mean, sum"),
        (lambda a: dlkern.cross_entropy(a(X), a(T), label_smoothing=1.5), ValueError,
         "label_smoothing is 1.5"),
        (lambda a: dlkern.cross_entropy(a(X), a(T), label_smoothing=np.nan), ValueError,
         "label_smoothing is nan"),
        (lambda a: dlkern.cross_entropy(a(X), a(T), z_loss=-1.0), ValueError, "z_loss is -1"),
        (lambda a: dlkern.cross_entropy(a(X), a(T), ignore_index=0.5), TypeError,
         "ignore_index is 0.5"),
        (lambda a: dlkern.cross_entropy(a(X), a(T), out=a(X[:, 0])), ValueError,
         r"out.shape is \[3\], expected \[\] \(a scalar"),
        (lambda a: dlkern.cross_entropy(a(X), a(T), out=a(np.float64(0)[None])), TypeError,
         "out.dtype is float64, expected float32"),
        (lambda a: dlkern.cross_entropy_backward(a(X[0, 0]), a(X), a(T), reduction="none"),
         ValueError, r"dloss.shape is \[\], expected \[3\]"),
        (lambda a: dlkern.cross_entropy_backward(a(X[:, 0]), a(X), a(T)), ValueError,
         r"dloss.shape is \[3\], expected \[\]"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)
