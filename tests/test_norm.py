"""layer_norm and rms_norm, forward and backward, against float64; what all norms share."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import accumulator, assert_close, assert_grad, float64, rounded

import dlkern


def normalized_f64(x, axes, eps, rms=False):
    """xhat, mean and rstd, with the axes kept."""
    # In float64 NumPy's own sum along outer axes would be less exact than what is tested.
    mean = x.mean(axes, dtype=np.longdouble, keepdims=True).astype(float) * (not rms)
    variance = ((x - mean) ** 2).mean(axes, dtype=np.longdouble, keepdims=True).astype(float)
    rstd = 1 / np.sqrt(variance + eps)
    return (x - mean) * rstd, mean, rstd


def channel_axes(x, layout):
    channel = 1 if layout == "NCHW" else x.ndim - 1
    return tuple(a for a in range(x.ndim) if a != channel), channel


def along_channels(v, x, layout):
    return np.reshape(v, [-1 if a == channel_axes(x, layout)[1] else 1 for a in range(x.ndim)])


def batch_norm_f64(x, weight, bias, layout="NCHW", eps=1e-5):
    axes, _ = channel_axes(x, layout)
    xhat, mean, rstd = normalized_f64(x, axes, eps)
    y = xhat * along_channels(weight, x, layout) + along_channels(bias, x, layout)
    return y, mean.ravel(), rstd.ravel()


def gradient_f64(dy, xhat, rstd, weight, axes, parameter_axes, rms=False):
    """dx, dweight, dbias of y = xhat * weight + bias where xhat is normalised over ``axes``."""
    g = dy * weight
    dx = rstd * (g - xhat * (g * xhat).mean(axes, keepdims=True))
    if not rms:
        dx = dx - rstd * g.mean(axes, keepdims=True)
    return dx, (dy * xhat).sum(parameter_axes), dy.sum(parameter_axes)


def gradient_scale(dy, xhat, rstd, weight, axes, parameter_axes):
    """Sizes of the terms that may cancel in each of the three."""
    g, h = np.abs(dy * weight), np.abs(xhat)
    dx = rstd * (g + g.mean(axes, keepdims=True) + h * (g * h).mean(axes, keepdims=True))
    return dx, (np.abs(dy) * h).sum(parameter_axes), np.abs(dy).sum(parameter_axes)


def values(rng, shape, dtype, center=0.0):
    return rounded(center + 2 * rng.standard_normal(shape), dtype)


def parameters(rng, shape, dtype):
    """Weight and bias."""
    return rounded(rng.uniform(0.5, 2, shape), dtype), rounded(rng.standard_normal(shape), dtype)


ROW_SHAPES = [
    ((1,), 1),
    ((9,), 1),
    ((4, 1), 1),
    ((5, 33), 1),
    ((3, 513), 1),
    ((2, 4099), 1),
    ((2, 100003), 1),
    ((700, 65), 1),
    ((3, 4, 5), 2),
    ((3, 4, 5), 3),
    ((2, 3, 2, 3, 2, 3, 2, 3), 5),
    ((0, 5), 1),
]


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize(("shape", "ndim"), ROW_SHAPES)
def test_row_norm(backend, dtype, rng, shape, ndim, rms):
    x, dy = values(rng, shape, dtype, center=2), values(rng, shape, dtype)
    weight, bias = parameters(rng, shape[len(shape) - ndim :], dtype)
    axes, rows = tuple(range(-ndim, 0)), tuple(range(len(shape) - ndim))
    arrays = [backend.array(a) for a in (x, weight, bias)]
    if rms:
        y, rstd = dlkern.rms_norm(*arrays[:2], normalized_ndim=ndim, eps=1e-4, return_stats=True)
        gradients = dlkern.rms_norm_backward(
            backend.array(dy), *arrays[:2], rstd, normalized_ndim=ndim
        )
        mean = np.zeros(shape[: len(shape) - ndim])
    else:
        y, mean, rstd = dlkern.layer_norm(
            *arrays, normalized_ndim=ndim, eps=1e-4, return_stats=True
        )
        gradients = dlkern.layer_norm_backward(
            backend.array(dy), *arrays[:2], mean, rstd, normalized_ndim=ndim
        )
        mean = backend.numpy(mean)
    rstd = backend.numpy(rstd)
    assert mean.shape == rstd.shape == shape[: len(shape) - ndim]
    xhat, mean64, rstd64 = normalized_f64(float64(x), axes, 1e-4, rms)
    right = xhat * float64(weight) + (0 if rms else float64(bias))
    assert_close(backend.numpy(y), right, dtype, "norm", scale=np.abs(right) + np.abs(xhat) + 0.1)
    assert_close(mean, mean64.reshape(mean.shape), accumulator(dtype), "norm", scale=4)
    assert_close(rstd, rstd64.reshape(mean.shape), accumulator(dtype), "norm")

    keep = (*mean.shape, *[1] * ndim)
    mean, rstd = mean.reshape(keep), rstd.reshape(keep)
    args = float64(dy), (float64(x) - mean) * rstd, rstd, float64(weight), axes, rows
    right, scales = gradient_f64(*args, rms=rms), gradient_scale(*args)
    for got, r, scale in zip(gradients, right, scales, strict=False):
        assert_close(backend.numpy(got), r, dtype, "norm_backward", scale=scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_row_norm_in_any_memory_layout(backend, rng, layout, dtype):
    x, dy = values(rng, (5, 4, 6), dtype), values(rng, (5, 4, 6), dtype)
    weight, bias = parameters(rng, (4, 6), dtype)
    y = backend.empty(x.shape, dtype, layout)
    statistics = [backend.empty((5,), "float32", layout) for _ in range(2)]
    arrays = [backend.array(a, layout) for a in (x, weight, bias)]
    dlkern.layer_norm(
        *arrays, normalized_ndim=2, out=y, out_mean=statistics[0], out_rstd=statistics[1]
    )
    xhat, *_ = normalized_f64(float64(x), (1, 2), 1e-5)
    assert_close(backend.numpy(y), xhat * float64(weight) + float64(bias), dtype, "norm")
    out = [backend.empty(a.shape, dtype, layout) for a in (x, weight, bias)]
    dlkern.layer_norm_backward(
        backend.array(dy, layout), *arrays[:2], *statistics, normalized_ndim=2,
        out=out[0], out_weight=out[1], out_bias=out[2],
    )  # fmt: skip
    mean, rstd = (backend.numpy(s)[:, None, None] for s in statistics)
    args = float64(dy), (float64(x) - mean) * rstd, rstd, float64(weight), (1, 2), (0,)
    for got, r, scale in zip(out, gradient_f64(*args), gradient_scale(*args), strict=True):
        assert_close(backend.numpy(got), r, dtype, "norm_backward", scale=scale)


def test_row_norm_in_place(backend, dtype, rng):
    x, dy = values(rng, (40, 70), dtype), values(rng, (40, 70), dtype)
    weight, bias = (backend.array(p) for p in parameters(rng, 70, dtype))
    apart, mean, rstd = dlkern.layer_norm(backend.array(x), weight, bias, return_stats=True)
    together = backend.array(x)
    dlkern.layer_norm(together, weight, bias, out=together)
    np.testing.assert_array_equal(backend.numpy(together), backend.numpy(apart))
    apart = dlkern.layer_norm_backward(backend.array(dy), backend.array(x), weight, mean, rstd)
    for target in range(2):
        pair = [backend.array(dy), backend.array(x)]
        together = dlkern.layer_norm_backward(*pair, weight, mean, rstd, out=pair[target])
        for a, b in zip(apart, together, strict=True):
            np.testing.assert_array_equal(backend.numpy(a), backend.numpy(b))


@pytest.mark.parametrize("n", [70, 3000])
def test_rows_do_not_depend_on_the_batch(backend, dtype, rng, n):
    x, dy = values(rng, (64, n), dtype), values(rng, (64, n), dtype)
    weight, bias = (backend.array(p) for p in parameters(rng, n, dtype))
    y, mean, rstd = dlkern.layer_norm(backend.array(x), weight, bias, return_stats=True)
    y1, mean1, rstd1 = dlkern.layer_norm(backend.array(x[17:18]), weight, bias, return_stats=True)
    np.testing.assert_array_equal(backend.numpy(y)[17:18], backend.numpy(y1))
    dx, *_ = dlkern.layer_norm_backward(backend.array(dy), backend.array(x), weight, mean, rstd)
    dx1, *_ = dlkern.layer_norm_backward(
        backend.array(dy[17:18]), backend.array(x[17:18]), weight, mean1, rstd1
    )
    np.testing.assert_array_equal(backend.numpy(dx)[17:18], backend.numpy(dx1))


def test_edge_22_empty(backend, dtype):
    """Gradients of the weights over no rows are 0; statistics of no values are NaN."""
    empty = backend.array(np.zeros((0, 4), "f4"))
    weight = backend.array(np.ones(4, "f4"))
    y, mean, rstd = dlkern.layer_norm(empty, weight, return_stats=True)
    assert backend.numpy(y).shape == (0, 4)
    dx, dweight, dbias = dlkern.layer_norm_backward(empty, empty, weight, mean, rstd)
    assert backend.numpy(dx).shape == (0, 4)
    for g in (dweight, dbias):
        np.testing.assert_array_equal(backend.numpy(g), np.zeros(4))
    statistics = backend.array(np.ones(4, "f4"))
    _, dweight, dbias = dlkern.batch_norm_backward(empty, empty, weight, statistics, statistics)
    for g in (dweight, dbias):
        np.testing.assert_array_equal(backend.numpy(g), np.zeros(4))
    none = backend.array(np.zeros((3, 0), "f4"))
    y, mean, rstd = dlkern.layer_norm(none, return_stats=True)
    assert backend.numpy(y).shape == (3, 0)
    assert np.isnan(backend.numpy(mean)).all()
    assert np.isnan(backend.numpy(rstd)).all()


# ---- Edge cases ----------------------------------------------------------------------------


def test_edge_01_variance_is_not_a_difference(backend):
    short = np.float32([40000, 40001, 40002, 40003])
    long = np.full(10240, 256, np.float32)
    long[-1] = 255
    for x, first, last in ((short, -1.34164, 1.34164), (long, 0.009412, -96.373)):
        row = dlkern.layer_norm(backend.array(x[None]))
        nchw, *_ = dlkern.batch_norm_training(backend.array(x[None, None]))
        many = np.ascontiguousarray(np.broadcast_to(x[:, None], (x.size, 9)))
        nhwc, *_ = dlkern.batch_norm_training(backend.array(many[None]), layout="NHWC")
        for y in (row, nchw, nhwc):
            y = backend.numpy(y)
            np.testing.assert_allclose(y.ravel()[0], first, rtol=1e-4)
            np.testing.assert_allclose(y.ravel()[-1], last, rtol=1e-4)


@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_edge_01_far_from_zero(backend, rng, offset):
    x = rounded(offset + rng.standard_normal((3, 9, 4000)), "float32")
    expected, _, rstd = batch_norm_f64(float64(x), np.ones(9), np.zeros(9))
    y, _, got = dlkern.batch_norm_training(backend.array(x))
    np.testing.assert_allclose(backend.numpy(got), rstd, rtol=2e-6)
    np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e-5, atol=1e-5)
    y, _, got = dlkern.layer_norm(backend.array(x), return_stats=True)
    expected, _, rstd = normalized_f64(float64(x), -1, 1e-5)
    np.testing.assert_allclose(backend.numpy(got), rstd[..., 0], rtol=2e-6)
    np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e-5, atol=1e-5)


def test_nan_and_infinity_stay_in_their_channel(backend, dtype):
    x = np.tile(np.arange(6.0), (4, 3, 1))
    x[1, 0, 2], x[2, 2, 3] = np.nan, np.inf
    y, _, rstd = dlkern.batch_norm_training(backend.array(rounded(x, dtype)))
    for a in (backend.numpy(y).transpose(1, 0, 2), backend.numpy(rstd)):
        assert np.isnan(a[[0, 2]]).all()
        assert np.isfinite(a[1]).all()
    rows, _, rstd = dlkern.layer_norm(backend.array(rounded(x, dtype)), return_stats=True)
    bad = np.zeros((4, 3), bool)
    bad[1, 0] = bad[2, 2] = True
    for a in (backend.numpy(rows)[..., 0], backend.numpy(rstd)):
        np.testing.assert_array_equal(np.isnan(a), bad)


def test_extreme_values(backend, dtype):
    """The squares of large 16-bit values are no infinities in between."""
    big = {"float16": 6e4, "bfloat16": 1e15}.get(dtype, 1e15)
    x = rounded([[big, -big, big, -big], [big, big, -big, 0]], dtype)
    y = backend.numpy(dlkern.layer_norm(backend.array(x)))
    assert_close(y, normalized_f64(float64(x), -1, 1e-5)[0], dtype, "norm")
    y = backend.numpy(dlkern.rms_norm(backend.array(x)))
    assert_close(y, normalized_f64(float64(x), -1, 1e-6, True)[0], dtype, "norm")


def test_gradients_by_finite_differences(rng):
    x, dy = rng.standard_normal((2, 3, 2, 4))
    weight, bias = parameters(rng, 2, "float64")
    for layout, (w, b) in (("NCHW", (weight, bias)), ("NHWC", parameters(rng, 4, "float64"))):

        def training(x, w, b, layout=layout):
            return dlkern.batch_norm_training(x, w, b, layout=layout)[0]

        _, mean, rstd = dlkern.batch_norm_training(x, layout=layout)
        gradients = dlkern.batch_norm_backward(dy, x, w, mean, rstd, layout=layout)
        assert_grad(training, [x, w, b], dy, gradients)

        def inference(x, w, b, layout=layout):
            return dlkern.batch_norm(x, w, b, b, w, layout=layout)

        gradients = dlkern.batch_norm_inference_backward(dy, x, w, b, w, layout=layout)
        assert_grad(lambda x, inference=inference, w=w, b=b: inference(x, w, b), [x], dy,
                    gradients[:1])  # fmt: skip
    w, b = parameters(rng, (2, 4), "float64")

    def layer(x, w, b):
        return dlkern.layer_norm(x, w, b, normalized_ndim=2)

    def rms(x, w):
        return dlkern.rms_norm(x, w, normalized_ndim=2)

    _, mean, rstd = dlkern.layer_norm(x, normalized_ndim=2, return_stats=True)
    gradients = dlkern.layer_norm_backward(dy, x, w, mean, rstd, normalized_ndim=2)
    assert_grad(layer, [x, w, b], dy, gradients)
    _, rstd = dlkern.rms_norm(x, normalized_ndim=2, return_stats=True)
    gradients = dlkern.rms_norm_backward(dy, x, w, rstd, normalized_ndim=2)
    assert_grad(rms, [x, w], dy, gradients)


def test_agrees_with_torch(rng):
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    x, w, b = (torch.from_numpy(rng.standard_normal(s)) for s in ((4, 3, 5), (3,), (3,)))
    ours, theirs = [[torch.zeros(3).double(), torch.ones(3).double()] for _ in range(2)]
    y, *_ = dlkern.batch_norm_training(x, w, b, *ours, momentum=0.2)
    torch.testing.assert_close(y, f.batch_norm(x, *theirs, w, b, training=True, momentum=0.2))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(dlkern.batch_norm(x, w, b, *ours), f.batch_norm(x, *theirs, w, b))
    w, b = torch.from_numpy(rng.standard_normal((2, 3, 5)))
    y = dlkern.layer_norm(x, w, b, normalized_ndim=2)
    torch.testing.assert_close(y, f.layer_norm(x, (3, 5), w, b))
    y = dlkern.rms_norm(x, w, normalized_ndim=2)
    torch.testing.assert_close(y, f.rms_norm(x, (3, 5), w, 1e-6))


@pytest.mark.gpu
def test_edge_15_more_than_2_31_elements(gpu):
    torch = pytest.importorskip("torch")
    x = torch.randn(2**21 + 8, 1024, dtype=torch.float16, device="cuda")
    rows = dlkern.layer_norm(x)
    alone = dlkern.layer_norm(x[2**21 : 2**21 + 1].clone())
    assert torch.equal(rows[2**21 : 2**21 + 1], alone)
    del rows
    y, mean, rstd = dlkern.batch_norm_training(x)
    torch.testing.assert_close(mean, x.double().mean(0).float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(y[2**21], ((x[2**21] - mean) * rstd).half(), rtol=2e-3, atol=2e-3)


# ---- Wrong arguments -----------------------------------------------------------------------

X = np.zeros((2, 3, 4), np.float32)
C = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.batch_norm_training(a(C)), ValueError, "x has 1 dimensions, expected 2"),
        (lambda a: dlkern.batch_norm_training(a(X.astype("i4"))), TypeError, "x.dtype is int32"),
        (lambda a: dlkern.batch_norm_training(a(X), layout="NHCW"), ValueError, "layout is 'NHCW'"),
        (lambda a: dlkern.batch_norm_training(a(X), layout="NCDHW"), ValueError, "layout is"),
        (lambda a: dlkern.batch_norm_training(a(X), eps=-1), ValueError, "eps is -1"),
        (lambda a: dlkern.batch_norm_training(a(X), eps="1"), TypeError, "eps is '1'"),
        (lambda a: dlkern.batch_norm_training(a(X), momentum=np.nan), ValueError, "momentum is"),
        (lambda a: dlkern.batch_norm_training(a(X), a(C[:2])), ValueError,
         r"weight.shape is \[2\], expected \[3\] \(the number of channels of x\)"),
        (lambda a: dlkern.batch_norm_training(a(X), a(C.astype("f2"))), TypeError,
         r"weight.dtype is float16, expected float32 \(x.dtype\)"),
        (lambda a: dlkern.batch_norm_training(a(X.astype("f2")), a(C.astype("f8"))), TypeError,
         "weight.dtype is float64, expected float16 or float32"),
        (lambda a: dlkern.batch_norm_training(a(X), None, None, a(C)), ValueError,
         "running_var is NULL, expected both"),
        (lambda a: dlkern.batch_norm(a(X), None, None, None, a(C)), TypeError,
         "running_mean is NoneType"),
        (lambda a: dlkern.batch_norm_backward(a(X), a(X[:1]), None, a(C), a(C)), ValueError,
         r"x.shape is \[1, 3, 4\], expected \[2, 3, 4\] \(dy.shape\)"),
        (lambda a: dlkern.batch_norm_backward(a(X), a(X), None, a(C.astype("f2")), a(C)), TypeError,
         "mean.dtype is float16, expected float32"),
        (lambda a: dlkern.layer_norm(a(X), normalized_ndim=0), ValueError, "normalized_ndim is 0"),
        (lambda a: dlkern.layer_norm(a(X), normalized_ndim=4, return_stats=True), ValueError,
         "normalized_ndim is 4, expected 1 to 3"),
        (lambda a: dlkern.layer_norm(a(X), normalized_ndim=1.5), TypeError, "normalized_ndim is"),
        (lambda a: dlkern.layer_norm(a(X), a(C)), ValueError,
         r"weight.shape is \[3\], expected \[4\] \(the normalized dimensions of x\)"),
        (lambda a: dlkern.layer_norm(a(np.float32(1))), ValueError, "x has 0 dimensions"),
        (lambda a: dlkern.rms_norm(a(X), eps=np.inf), ValueError, "eps is inf"),
        (lambda a: dlkern.rms_norm_backward(a(X), a(X), None, a(C)), ValueError,
         r"rstd.shape is \[3\], expected \[2, 3\] \(the other dimensions of x\)"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_training_output_must_not_be_the_input(backend):
    x = backend.array(X)
    with pytest.raises(ValueError, match="out overlaps x"):
        dlkern.batch_norm_training(x, out=x)
