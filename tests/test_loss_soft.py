"""cross_entropy against probabilities of the classes, forward and backward, against float64."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64, rounded

import dlkern

REDUCTIONS = ("none", "mean", "sum")
CASES = [  # smoothing, weighted, z_loss
    (0.0, False, 0.0),
    (0.3, True, 0.1),
]

# ---- Oracle --------------------------------------------------------------------------------


def soft_f64(logits, target, weight=None, smoothing=0.0, reduction="mean", z_loss=0.0, dloss=1.0):
    """Losses and gradients, and the sizes of what is summed in each."""
    axis = 0 if logits.ndim == 1 else 1
    x, t = (np.moveaxis(float64(a), axis, -1) for a in (logits, target))
    classes = x.shape[-1]
    w = np.ones(classes) if weight is None else float64(weight)
    q = w * ((1 - smoothing) * t + smoothing / classes)
    with np.errstate(invalid="ignore", divide="ignore"):
        top = x.max(-1, keepdims=True, initial=-np.inf)
        e = np.exp(x - top)
        log_sum = np.log(e.sum(-1, keepdims=True))
        lse = top + log_sum
        terms = np.where(q == 0, 0, q * (top - x + log_sum))
        loss = terms.sum(-1) + (z_loss * lse[..., 0] ** 2 if z_loss else 0)
        size = np.abs(terms).sum(-1) + np.abs(q).sum(-1) * 3 + z_loss * lse[..., 0] ** 2
        p = e / e.sum(-1, keepdims=True)
        total = q.sum(-1, keepdims=True)
        dx = p * total - q + 2 * z_loss * lse * p
        dsize = p * np.abs(total) + np.abs(q) + np.abs(2 * z_loss * lse * p)
        scale = np.asarray(dloss, float)[..., None] if reduction == "none" else float(dloss)
        if reduction == "mean":
            scale = scale / np.float64(loss.size)
        dx, dsize = dx * scale, dsize * np.abs(scale)
        if reduction != "none":
            loss, size = (a.sum() / (a.size if reduction == "mean" else 1) for a in (loss, size))
    return loss, size, *(np.moveaxis(a, -1, axis) for a in (dx, dsize))


def case(rng, shape, dtype, target_dtype=None):
    """Logits, probabilities (some of them 0) and class weights."""
    axis = 0 if len(shape) == 1 else 1
    target = rng.uniform(0, 1, shape) * (rng.random(shape) > 0.2) + 1e-3
    target /= target.sum(axis, keepdims=True)
    logits = rounded(3 * rng.standard_normal(shape), dtype)
    weight = rounded(rng.uniform(0.5, 2, shape[axis]), dtype)
    return logits, rounded(target, target_dtype or dtype), weight


def check(backend, rng, dtype, logits, target, weight, options):
    """All three calls against float64."""
    given = backend.array(logits), backend.array(target)
    loss, size, _, _ = soft_f64(logits, target, weight, *options)
    smoothing, reduction, z_loss = options
    keywords = {"label_smoothing": smoothing, "reduction": reduction, "z_loss": z_loss}
    if weight is not None:
        keywords["weight"] = backend.array(weight)
    found = backend.numpy(dlkern.cross_entropy(*given, **keywords))
    assert_close(found, loss, dtype, "cross_entropy", scale=size)

    dloss = rounded(rng.standard_normal(np.shape(loss)), dtype)
    _, _, dx, dsize = soft_f64(logits, target, weight, *options, dloss=float64(dloss))
    alone = dlkern.cross_entropy_backward(backend.array(dloss), *given, **keywords)
    assert_close(backend.numpy(alone), dx, dtype, "cross_entropy", scale=dsize)

    inplace = backend.array(logits)
    both, grad = dlkern.cross_entropy_with_grad(
        inplace, given[1], dloss=backend.array(dloss), **keywords, grad_out=inplace
    )
    assert grad is inplace
    assert_close(backend.numpy(both), loss, dtype, "cross_entropy", scale=size)
    np.testing.assert_array_equal(backend.raw(grad), backend.raw(alone))


SHAPES = [(1,), (7,), (4, 1), (6, 5), (300, 10), (9, 64), (5, 513), (3, 5001), (2, 21, 9, 31),
          (2, 70, 33), (2, 3, 2, 3, 4), (5, 600, 1)]  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("smoothing", "weighted", "z_loss"), CASES)
def test_all_three_calls(backend, dtype, rng, shape, reduction, smoothing, weighted, z_loss):
    """Also: the very bits of a gradient alone, and into the logits."""
    logits, target, weight = case(rng, shape, dtype)
    options = smoothing, reduction, z_loss
    check(backend, rng, dtype, logits, target, weight if weighted else None, options)


# Of a warp, a block, a cluster, and too many for those; whole 16 bytes and not.
@pytest.mark.parametrize("classes", [1024, 4099, 16384, 32774, 131071, 131080])
@pytest.mark.parametrize(("smoothing", "weighted", "z_loss"), CASES)
def test_long_rows(backend, dtype, rng, classes, smoothing, weighted, z_loss):
    logits, target, weight = case(rng, (3, classes), dtype)
    options = smoothing, "none", z_loss
    check(backend, rng, dtype, logits, target, weight if weighted else None, options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(7,), (40, 12), (5, 700), (3, 9001), (2, 70, 33)])
def test_float32_probabilities_beside_16_bit_logits(backend, rng, dtype, shape):
    logits, target, weight = case(rng, shape, dtype, "float32")
    check(backend, rng, dtype, logits, target, weight, (0.1, "mean", 0.0))


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(6, 9), (4, 70, 5), (3, 600)])
def test_layouts(backend, rng, layout, shape):
    for dtype in ("float32", "float16"):
        logits, target, weight = case(rng, shape, dtype)
        arrays = [backend.array(a, layout) for a in (logits, target, weight)]
        rows = (shape[0], *shape[2:])
        options = {"weight": arrays[2], "label_smoothing": 0.1, "reduction": "none"}
        loss, dx = backend.empty(rows, dtype, layout), backend.empty(shape, dtype, layout)
        dlkern.cross_entropy(*arrays[:2], **options, out=loss)
        right, size, _, _ = soft_f64(logits, target, weight, 0.1, "none")
        assert_close(backend.numpy(loss), right, dtype, "cross_entropy", scale=size)
        dlkern.cross_entropy_backward(loss, *arrays[:2], **options, out=dx)
        _, _, right, size = soft_f64(logits, target, weight, 0.1, "none", dloss=backend.numpy(loss))
        assert_close(backend.numpy(dx), right, dtype, "cross_entropy", scale=size)


@pytest.mark.parametrize("shape", [(40, 12), (6, 700), (3, 5, 8)])
def test_one_hot_probabilities_are_labels(backend, dtype, rng, shape):
    logits, _, weight = case(rng, shape, dtype)
    logits[0, 1] = -np.inf  # of a class that no row has
    labels = rng.integers(2, shape[1], (shape[0], *shape[2:]))
    hot = np.moveaxis(np.eye(shape[1])[labels], -1, 1)
    options = {"weight": backend.array(weight), "reduction": "none"}
    x, t, hot = backend.array(logits), backend.array(labels), backend.array(rounded(hot, dtype))
    ones = backend.array(rounded(np.ones(labels.shape), dtype))
    calls = (
        lambda t: dlkern.cross_entropy(x, t, **options),
        lambda t: dlkern.cross_entropy_backward(ones, x, t, **options),
    )
    for call in calls:
        right = backend.numpy(call(t))
        scale = np.abs(right) + 3
        assert_close(backend.numpy(call(hot)), right, dtype, "cross_entropy", scale=scale)


@pytest.mark.parametrize("classes", [10, 700, 5000])
def test_rows_do_not_depend_on_the_batch(backend, dtype, rng, classes):
    logits, target, _ = case(rng, (64, classes), dtype)
    many, one = (
        dlkern.cross_entropy(backend.array(x), backend.array(t), reduction="none")
        for x, t in ((logits, target), (logits[17:18].copy(), target[17:18].copy()))
    )
    np.testing.assert_array_equal(backend.numpy(many)[17:18], backend.numpy(one))


@pytest.mark.parametrize("classes", [3, 700])
def test_edge_06_rows_of_infinities_and_nan(backend, dtype, classes):
    inf = np.inf
    x = np.full((5, classes), -inf)
    x[1, :2], x[2, :2], x[3, 2], x[4, :3] = (inf, 0), (np.nan, 0), 2, (1, 2, 3)
    t = np.zeros((5, classes))
    t[:, 1], t[3] = 1, 0
    t[3, 2] = 1
    x, t = backend.array(rounded(x, dtype)), backend.array(rounded(t, dtype))
    loss = backend.numpy(dlkern.cross_entropy(x, t, reduction="none"))
    assert np.isnan(loss[:3]).all()
    assert_close(loss[3:], [0, 1.4076059644443806], dtype, "cross_entropy", scale=3)
    ones = backend.array(rounded(np.ones(5), dtype))
    dx = backend.numpy(dlkern.cross_entropy_backward(ones, x, t, reduction="none"))
    assert np.isnan(dx[:3]).all()
    np.testing.assert_array_equal(dx[3], np.zeros(classes))
    np.testing.assert_array_equal(dx[4, 3:], np.zeros(classes - 3))


def test_extreme_values(backend, dtype):
    big = {"float16": 3e4}.get(dtype, 1e30)
    logits = rounded([[big, -big, 0], [big, big, big], [-big, -big, -big]], dtype)
    target = rounded([[0.25, 0.5, 0.25]] * 3, dtype)
    loss = dlkern.cross_entropy(backend.array(logits), backend.array(target), reduction="none")
    right, _, _, _ = soft_f64(logits, target, reduction="none")
    assert_close(backend.numpy(loss), right, dtype, "cross_entropy", scale=np.abs(right) + 3)


def test_edge_22_no_rows_and_no_classes(backend):
    for shape, sums in (((0, 5), (0.0, np.nan)), ((3, 0), (np.nan, np.nan))):
        x, t = backend.array(np.zeros(shape, "f4")), backend.array(np.zeros(shape, "f4"))
        for reduction, right in zip(("sum", "mean"), sums, strict=True):
            loss, dx = dlkern.cross_entropy_with_grad(x, t, reduction=reduction)
            np.testing.assert_array_equal(backend.numpy(loss), right)
            assert backend.numpy(dx).shape == shape


def test_gradient_by_finite_differences(rng):
    for shape in ((3, 5), (2, 4, 3), (2, 70)):
        logits, target, weight = case(rng, shape, "float64")
        for reduction in REDUCTIONS:
            options = {
                "weight": weight, "label_smoothing": 0.2, "z_loss": 0.1, "reduction": reduction
            }  # fmt: skip

            def forward(x, target=target, options=options):
                return dlkern.cross_entropy(x, target, **options)

            dloss = np.asarray(rng.standard_normal(forward(logits).shape))
            dx = dlkern.cross_entropy_backward(dloss, logits, target, **options)
            assert_grad(forward, [logits], dloss, [dx])


def test_agrees_with_torch(rng):
    torch = pytest.importorskip("torch")
    for shape in ((6,), (4, 6), (4, 6, 5)):
        logits, target, weight = map(torch.from_numpy, case(rng, shape, "float64"))
        for reduction in REDUCTIONS:
            for smoothing in (0.0, 0.3):
                options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
                expected = torch.nn.functional.cross_entropy(logits, target, **options)
                found = dlkern.cross_entropy(logits, target, **options)
                torch.testing.assert_close(found, expected)


X = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.cross_entropy(a(X), a(X.astype("f8"))), TypeError,
         "labels.dtype is float64, expected float32"),
        (lambda a: dlkern.cross_entropy(a(X), a(X[:, :2])), ValueError,
         r"labels.shape is \[3, 2\], expected \[3, 4\]"),
        (lambda a: dlkern.cross_entropy(a(X), a(X[:, 0])), ValueError,
         r"labels.shape is \[3\], expected \[3, 4\]"),
        (lambda a: dlkern.cross_entropy(a(X), a(X), reduction="none", out=a(X)), ValueError,
         r"out.shape is \[3, 4\], expected \[3\] \(logits.shape without the classes\)"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)
