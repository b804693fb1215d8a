"""Element-wise losses and nll_loss, forward and backward, against float64."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64, rounded

import dlkern

REDUCTIONS = ("none", "mean", "sum")


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def sigmoid(x):
    w = np.exp(-np.abs(x))
    return np.where(x < 0, w, 1) / (1 + w)


def huber(d, b):
    return np.where(np.abs(d) <= b, d**2 / 2, b * (np.abs(d) - b / 2))


def relative_entropy(x, t):
    return np.where(t == 0, 0, t * (np.log(np.where(t == 0, 1, t)) - x))


# Name -> options, loss, gradient; of x, t and the weights w and p.
LOSSES = {
    "mse_loss": ({}, lambda x, t, w, p: (x - t) ** 2, lambda x, t, w, p: 2 * (x - t)),
    "l1_loss": ({}, lambda x, t, w, p: np.abs(x - t), lambda x, t, w, p: np.sign(x - t)),
    "smooth_l1_loss": (
        {"beta": 0.7},
        lambda x, t, w, p: huber(x - t, 0.7) / 0.7,
        lambda x, t, w, p: np.clip((x - t) / 0.7, -1, 1),
    ),
    "huber_loss": (
        {"delta": 1.3},
        lambda x, t, w, p: huber(x - t, 1.3),
        lambda x, t, w, p: np.clip(x - t, -1.3, 1.3),
    ),
    "binary_cross_entropy_with_logits": (
        {},
        lambda x, t, w, p: w * ((1 - t) * softplus(x) + p * t * softplus(-x)),
        lambda x, t, w, p: w * ((1 - t) * sigmoid(x) - p * t * sigmoid(-x)),
    ),
    "kl_div": ({}, lambda x, t, w, p: relative_entropy(x, t), lambda x, t, w, p: -t),
    "kl_div_log_target": (
        {"log_target": True},
        lambda x, t, w, p: np.exp(t) * (t - x),
        lambda x, t, w, p: -np.exp(t),
    ),
}


def functions(name):
    name = name.removesuffix("_log_target")
    return getattr(dlkern, name), getattr(dlkern, f"{name}_backward")


def make(rng, name, shape, dtype):
    x = rounded(2 * rng.standard_normal(shape), dtype)
    if name in ("binary_cross_entropy_with_logits", "kl_div"):
        return x, rounded(rng.uniform(0, 1, shape) * (rng.random(shape) > 0.2), dtype)
    return x, rounded(2 * rng.standard_normal(shape), dtype)


def reduced(values, reduction):
    if reduction == "none":
        return values
    with np.errstate(invalid="ignore", divide="ignore"):
        return values.sum() / (values.size if reduction == "mean" else 1)


def check(backend, name, x, t, dtype, reduction, arrays, weights=(), out=None, dx_out=None):
    """Both directions; `weights`: names of those that are given, with their values."""
    options, loss_f64, gradient_f64 = LOSSES[name]
    forward, backward = functions(name)
    values = {"weight": 1.0, "pos_weight": 1.0} | {k: float64(v) for k, v, _ in weights}
    given = {k: array for k, _, array in weights} | options
    args = float64(x), float64(t), values["weight"], values["pos_weight"]
    losses = np.broadcast_to(loss_f64(*args), x.shape)
    loss = forward(*arrays, reduction=reduction, **given, out=out)
    scale = np.abs(losses) + 8 * float64(rounded(1, dtype))  # what is subtracted
    assert_close(backend.numpy(loss), reduced(losses, reduction), dtype, "cross_entropy",
                 scale=reduced(scale, reduction) if losses.size else 1.0)  # fmt: skip
    dloss = rounded(np.random.default_rng(3).standard_normal(losses.shape if reduction == "none"
                    else ()), dtype)  # fmt: skip
    dx = backward(backend.array(dloss), *arrays, reduction=reduction, **given, out=dx_out)
    s = float64(dloss) / (max(losses.size, 1) if reduction == "mean" else 1)
    expected = np.broadcast_to(gradient_f64(*args) * s, x.shape)
    size = np.abs(s) * (np.abs(gradient_f64(*args)) + 8)
    assert_close(backend.numpy(dx), expected, dtype, "cross_entropy", scale=size)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 7), (3, 1000), (40, 1003)])
def test_forward_and_backward(backend, dtype, rng, name, shape):
    x, t = make(rng, name, shape, dtype)
    for reduction in REDUCTIONS:
        check(backend, name, x, t, dtype, reduction, (backend.array(x), backend.array(t)))


@pytest.mark.parametrize("shapes", [((), (9,)), ((4, 9), (4, 1)), ((3, 1, 1), (3, 4, 9))])
@pytest.mark.parametrize("which", [("weight",), ("pos_weight",), ("weight", "pos_weight")])
def test_weights_of_binary_cross_entropy(backend, dtype, rng, shapes, which):
    name = "binary_cross_entropy_with_logits"
    x, t = make(rng, name, (3, 4, 9), dtype)
    values = [rounded(rng.uniform(0.5, 2, s), dtype) for s in shapes[: len(which)]]
    weights = [(k, v, backend.array(v)) for k, v in zip(which, values, strict=True)]
    for reduction in REDUCTIONS:
        arrays = backend.array(x), backend.array(t)
        check(backend, name, x, t, dtype, reduction, arrays, weights)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["mse_loss", "binary_cross_entropy_with_logits"])
def test_layouts(backend, rng, name, layout):
    """EDGE 21, 26."""
    for dtype in ("float32", "bfloat16"):
        x, t = make(rng, name, (5, 3, 37), dtype)
        arrays = backend.array(x, layout), backend.array(t, layout)
        outs = (backend.empty(x.shape, dtype, layout) for _ in range(2))
        check(backend, name, x, t, dtype, "none", arrays, (), *outs)
        out, dx = backend.empty((), dtype), backend.empty(x.shape, dtype, layout)
        check(backend, name, x, t, dtype, "mean", arrays, (), out, dx)


def test_a_sum_does_not_depend_on_alignment(backend, dtype, rng):
    x, t = make(rng, "mse_loss", (70003,), dtype)
    sums = [
        backend.raw(dlkern.mse_loss(backend.array(x, a), backend.array(t, a), reduction="sum"))
        for a in ("contiguous", "unaligned")
    ]
    np.testing.assert_array_equal(*sums)


def test_large_sums(backend, rng):
    x, t = (rounded(rng.standard_normal(1 << 22), "float32") for _ in range(2))
    loss = backend.numpy(dlkern.mse_loss(backend.array(x), backend.array(t), reduction="sum"))
    right = ((float64(x) - float64(t)) ** 2).sum()
    np.testing.assert_allclose(loss, right, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_loss_beside_16_bit_x(backend, rng, dtype):
    x, t = make(rng, "mse_loss", (40, 12), dtype)
    arrays = backend.array(x), backend.array(t)
    loss = backend.empty((), "float32")
    dlkern.mse_loss(*arrays, out=loss)
    right = ((float64(x) - float64(t)) ** 2).mean()
    assert_close(backend.numpy(loss), right, "float32", "cross_entropy")
    dx = dlkern.mse_loss_backward(loss, *arrays)
    right = 2 * (float64(x) - float64(t)) * backend.numpy(loss) / x.size
    assert_close(backend.numpy(dx), right, dtype, "cross_entropy")


def test_extreme_values(backend, dtype):
    big = {"float16": 6e4}.get(dtype, 1e30)
    x, t = rounded([big, -big, big, -big, 0], dtype), rounded([0, 0, 1, 1, 0.5], dtype)
    loss = dlkern.binary_cross_entropy_with_logits(
        backend.array(x), backend.array(t), reduction="none"
    )
    big = float64(x)[0]
    assert_close(backend.numpy(loss), [big, 0, 0, big, np.log(2)], dtype, "cross_entropy")
    dx = dlkern.binary_cross_entropy_with_logits_backward(
        backend.array(rounded(np.ones(5), dtype)), backend.array(x), backend.array(t),
        reduction="none",
    )  # fmt: skip
    np.testing.assert_array_equal(backend.numpy(dx), [1, 0, 0, -1, 0])


def test_nan_stays_nan(backend, dtype):
    x, t = rounded([np.nan, 1, 2], dtype), rounded([1, np.nan, 2], dtype)
    for name in LOSSES:
        forward, backward = functions(name)
        options = LOSSES[name][0]
        loss = forward(backend.array(x), backend.array(t), reduction="none", **options)
        assert np.isnan(backend.numpy(loss)[:2]).all(), name
        loss = forward(backend.array(x), backend.array(t), **options)
        assert np.isnan(backend.numpy(loss)), name
        if not name.startswith("kl_div"):
            ones = backend.array(rounded(np.ones(3), dtype))
            dx = backward(ones, backend.array(x), backend.array(t), reduction="none", **options)
            assert np.isnan(backend.numpy(dx)[:2]).all(), name


def test_in_place(backend, dtype, rng):
    x, t = make(rng, "huber_loss", (50, 7), dtype)
    one, target = backend.array(rounded(1.0, dtype)), backend.array(t)
    apart = backend.raw(dlkern.huber_loss_backward(one, backend.array(x), target))
    together = backend.array(x)
    dlkern.huber_loss_backward(one, together, target, out=together)
    np.testing.assert_array_equal(backend.raw(together), apart)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_by_finite_differences(rng, name):
    options, forward, backward = LOSSES[name][0], *functions(name)
    x, t = make(rng, name, (3, 5), "float64")
    if name == "binary_cross_entropy_with_logits":
        options = {"weight": rng.uniform(0.5, 2, (3, 1)), "pos_weight": rng.uniform(0.5, 2, 5)}
    for reduction in REDUCTIONS:

        def loss(v, reduction=reduction):
            return forward(v, t, reduction=reduction, **options)

        dloss = np.asarray(rng.standard_normal(loss(x).shape))
        assert_grad(loss, [x], dloss, [backward(dloss, x, t, reduction=reduction, **options)])


def test_agrees_with_torch(rng):
    torch = pytest.importorskip("torch")
    for name, (options, _, _) in LOSSES.items():
        x, t = map(torch.from_numpy, make(rng, name, (4, 6), "float64"))
        theirs = getattr(torch.nn.functional, name.removesuffix("_log_target"))
        for reduction in ("none", "sum"):
            torch.testing.assert_close(
                functions(name)[0](x, t, reduction=reduction, **options),
                theirs(x, t, reduction=reduction, **options),
            )


# ---- nll_loss --------------------------------------------------------------------------------


def nll_f64(log_p, labels, weight, reduction):
    """Losses of the rows and what each counts."""
    rows = np.moveaxis(float64(log_p), min(log_p.ndim - 1, 1), -1)
    pick = np.where(labels < 0, 0, labels)
    count = np.where(labels < 0, 0, weight[pick])
    loss = -count * np.take_along_axis(rows, pick[..., None], -1)[..., 0]
    if reduction == "none":
        return loss, count
    with np.errstate(invalid="ignore"):
        return loss.sum() / (count.sum() if reduction == "mean" else 1), count


@pytest.mark.sanitize
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(7,), (6, 5), (300, 700), (2, 5, 4, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss(backend, dtype, rng, shape, reduction, weighted):
    classes = shape[min(len(shape) - 1, 1)]
    rows = shape[:0] if len(shape) == 1 else (shape[0], *shape[2:])
    labels = np.asarray(rng.integers(0, classes, rows))
    if labels.size > 2:
        labels.ravel()[::3] = -100
    log_p = rounded(-rng.uniform(0.1, 5, shape), dtype)
    weight = rounded(rng.uniform(0.5, 2, classes), dtype)
    given = {"weight": backend.array(weight)} if weighted else {}
    arrays = backend.array(log_p), backend.array(labels)
    loss = dlkern.nll_loss(*arrays, reduction=reduction, **given)
    w = float64(weight) if weighted else np.ones(classes)
    right, count = nll_f64(log_p, labels, w, reduction)
    assert_close(backend.numpy(loss), right, dtype, "cross_entropy")
    dloss = rounded(rng.standard_normal(right.shape), dtype)
    dx = dlkern.nll_loss_backward(backend.array(dloss), *arrays, reduction=reduction, **given)
    s = float64(dloss) * count / (count.sum() if reduction == "mean" else 1)
    hot = np.where(labels < 0, 0, labels)[..., None] == np.arange(classes)
    expected = np.moveaxis(hot * -np.asarray(s)[..., None], -1, min(len(shape) - 1, 1))
    assert_close(backend.numpy(dx), expected, dtype, "cross_entropy")


def test_edge_07_nll_of_ignored_labels(backend, dtype):
    log_p = backend.array(rounded(np.full((3, 4), np.nan), dtype))
    labels = backend.array(np.full(3, 2))
    for reduction, value in (("sum", 0.0), ("mean", np.nan)):
        options = {"reduction": reduction, "ignore_index": 2}
        loss = backend.numpy(dlkern.nll_loss(log_p, labels, **options))
        np.testing.assert_array_equal(loss, value)
        one = backend.array(rounded(1.0, dtype))
        dx = backend.numpy(dlkern.nll_loss_backward(one, log_p, labels, **options))
        np.testing.assert_array_equal(dx, np.zeros((3, 4)))


def test_edge_08_nll_label_out_of_range(backend):
    log_p, labels = backend.array(np.full((3, 4), -1.0)), backend.array(np.array([0, 9, 1]))
    if not backend.is_gpu:
        with pytest.raises(ValueError, match="labels holds 9 at flat index 1, expected 0 to 3"):
            dlkern.nll_loss(log_p, labels)
        return
    loss = backend.numpy(dlkern.nll_loss(log_p, labels, reduction="none"))
    np.testing.assert_array_equal(loss, [1, np.nan, 1])
    ones = backend.array(np.ones(3))
    dx = backend.numpy(dlkern.nll_loss_backward(ones, log_p, labels, reduction="none"))
    assert np.isnan(dx[1]).all()
    np.testing.assert_array_equal(dx[[0, 2]].sum(1), [-1, -1])


X = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.mse_loss(a(X), a(X[:2])), ValueError, r"target.shape is \[2, 4\]"),
        (lambda a: dlkern.mse_loss(a(X), a(X.astype("f8"))), TypeError,
         r"target.dtype is float64, expected float32 \(x.dtype\)"),
        (lambda a: dlkern.mse_loss(a(X), a(X), reduction="avg"), ValueError,
         "mse_loss: reduction is 'avg', expected one of none, mean, sum"),
        (lambda a: dlkern.huber_loss(a(X), a(X), delta=0), ValueError, "huber_loss: delta is 0"),
        (lambda a: dlkern.smooth_l1_loss(a(X), a(X), beta=-1), ValueError, "beta is -1"),
        (lambda a: dlkern.l1_loss(a(X), a(X), out=a(X)), ValueError, r"out.shape is \[3, 4\]"),
        (lambda a: dlkern.l1_loss_backward(a(X), a(X), a(X)), ValueError,
         r"dloss.shape is \[3, 4\], expected \[\]"),
        (lambda a: dlkern.binary_cross_entropy_with_logits(a(X), a(X), weight=a(X[:, :2])),
         ValueError, r"weight.shape is \[3, 2\], expected one that broadcasts to \[3, 4\]"),
        (lambda a: dlkern.nll_loss(a(X), a(X)), TypeError, "labels.dtype is float32"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)
