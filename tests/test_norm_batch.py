"""batch_norm, forward and backward, against float64."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import accumulator, assert_close, assert_grad, float64, rounded
from test_norm import (
    along_channels,
    batch_norm_f64,
    channel_axes,
    gradient_f64,
    gradient_scale,
    normalized_f64,
    parameters,
    values,
)

import dlkern

BATCH_SHAPES = [
    ("NCHW", (2, 1)),
    ("NCHW", (7, 5)),
    ("NCHW", (300, 70)),
    ("NCHW", (3, 4, 5)),
    ("NCHW", (2, 3, 2, 2)),
    ("NCHW", (4, 9, 7, 7)),
    ("NCHW", (2, 3, 67, 65)),
    ("NCHW", (2, 2, 3, 4, 5)),
    ("NCHW", (1, 600, 5, 5)),
    ("NHWC", (9, 3)),
    ("NHWC", (4, 6, 33)),
    ("NHWC", (3, 5, 6, 8)),
    ("NHWC", (2, 40, 41, 5)),
    ("NHWC", (2, 9, 9, 130)),
    ("NHWC", (2, 3, 4, 5, 17)),
    ("NCHW", (3, 0, 4)),
]


def check_batch_gradients(backend, dtype, results, dy, x, xhat, rstd, weight, layout):
    axes, _ = channel_axes(x, layout)
    args = dy, xhat, along_channels(rstd, x, layout), along_channels(weight, x, layout), axes, axes
    for got, right, scale in zip(results, gradient_f64(*args), gradient_scale(*args), strict=True):
        assert_close(backend.numpy(got), right, dtype, "norm_backward", scale=scale)


@pytest.mark.parametrize(("layout", "shape"), BATCH_SHAPES)
def test_batch_norm_training(backend, dtype, rng, layout, shape):
    x = values(rng, shape, dtype, center=3)
    channels = shape[channel_axes(x, layout)[1]]
    (weight, bias), before = parameters(rng, channels, dtype), parameters(rng, channels, dtype)
    running = [backend.array(r) for r in before]
    y, mean, rstd = dlkern.batch_norm_training(
        *map(backend.array, (x, weight, bias)), *running, momentum=0.3, layout=layout
    )
    args = float64(x), float64(weight), float64(bias), layout
    expected, mean64, rstd64 = batch_norm_f64(*args) if x.size else (float64(x), *[np.zeros(0)] * 2)
    assert_close(backend.numpy(y), expected, dtype, "norm")
    wide = accumulator(dtype)
    assert_close(backend.numpy(mean), mean64, wide, "norm", scale=np.abs(mean64) + 2)
    assert_close(backend.numpy(rstd), rstd64, wide, "norm")
    if x.size:
        axes, _ = channel_axes(x, layout)
        statistics = mean64, float64(x).var(axes, ddof=1)
        for r, old, new in zip(running, before, statistics, strict=True):
            right = 0.7 * float64(old) + 0.3 * new
            assert_close(backend.numpy(r), right, dtype, "norm", scale=np.abs(old) + np.abs(new))

    dy = values(rng, shape, dtype)
    results = dlkern.batch_norm_backward(
        *map(backend.array, (dy, x, weight)), mean, rstd, layout=layout
    )
    if x.size:
        mean, rstd = backend.numpy(mean), backend.numpy(rstd)
        xhat = (float64(x) - along_channels(mean, x, layout)) * along_channels(rstd, x, layout)
        check_batch_gradients(
            backend, dtype, results, float64(dy), float64(x), xhat, rstd, float64(weight), layout
        )


@pytest.mark.parametrize(("layout", "shape"), [*BATCH_SHAPES, ("NCHW", (0, 3, 2))])
def test_batch_norm_inference(backend, dtype, rng, layout, shape):
    x = values(rng, shape, dtype)
    channels = shape[channel_axes(x, layout)[1]]
    weight, bias = parameters(rng, channels, dtype)
    var, mean = parameters(rng, channels, dtype)
    arrays = [backend.array(a) for a in (x, weight, bias, mean, var)]
    y = dlkern.batch_norm(*arrays, layout=layout, eps=1e-3)
    m, v, w, b = (along_channels(float64(a), x, layout) for a in (mean, var, weight, bias))
    rstd = 1 / np.sqrt(v + 1e-3)
    xhat = (float64(x) - m) * rstd
    assert_close(backend.numpy(y), xhat * w + b, dtype, "norm", scale=np.abs(xhat * w) + np.abs(b))

    dy = values(rng, shape, dtype)
    dx, dweight, dbias = dlkern.batch_norm_inference_backward(
        backend.array(dy), arrays[0], arrays[1], arrays[3], arrays[4], layout=layout, eps=1e-3
    )
    axes, _ = channel_axes(x, layout)
    g = float64(dy)
    assert_close(backend.numpy(dx), g * w * rstd, dtype, "norm_backward")
    assert_close(backend.numpy(dweight), (g * xhat).sum(axes), dtype, "norm_backward",
                 scale=np.abs(g * xhat).sum(axes))  # fmt: skip
    assert_close(backend.numpy(dbias), g.sum(axes), dtype, "norm_backward",
                 scale=np.abs(g).sum(axes))  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_batch_norm_in_any_memory_layout(backend, rng, layout, dtype):
    """EDGE 21, 26: strides and alignment change the way to the values, not the values."""
    x, dy = values(rng, (3, 11, 4, 9), dtype), values(rng, (3, 11, 4, 9), dtype)
    weight, bias = parameters(rng, 11, dtype)
    y = backend.empty(x.shape, dtype, layout)
    statistics = [backend.empty((11,), "float32", layout) for _ in range(2)]
    dlkern.batch_norm_training(
        *(backend.array(a, layout) for a in (x, weight, bias)),
        out=y, out_mean=statistics[0], out_rstd=statistics[1],
    )  # fmt: skip
    expected, *_ = batch_norm_f64(float64(x), float64(weight), float64(bias))
    assert_close(backend.numpy(y), expected, dtype, "norm")
    gradients = [backend.empty(s, dtype, layout) for s in (x.shape, (11,), (11,))]
    dlkern.batch_norm_backward(
        *(backend.array(a, layout) for a in (dy, x, weight)), *statistics,
        out=gradients[0], out_weight=gradients[1], out_bias=gradients[2],
    )  # fmt: skip
    mean, rstd = map(backend.numpy, statistics)
    xhat = (float64(x) - mean[:, None, None]) * rstd[:, None, None]
    check_batch_gradients(
        backend, dtype, gradients, float64(dy), float64(x), xhat, rstd, float64(weight), "NCHW"
    )


def test_layout_says_what_strides_do_not(backend, rng):
    """The same memory as NCHW and, transposed, as NHWC: the same bits."""
    x = values(rng, (4, 5, 6, 16), "float32")
    y, mean, rstd = dlkern.batch_norm_training(backend.array(x), layout="NHWC")
    turned, out = (
        a.permute(0, 3, 1, 2) if backend.is_gpu else a.transpose(0, 3, 1, 2)
        for a in (backend.array(x), backend.empty(x.shape, "float32"))
    )
    _, mean2, rstd2 = dlkern.batch_norm_training(turned, out=out)
    np.testing.assert_array_equal(backend.numpy(y).transpose(0, 3, 1, 2), backend.numpy(out))
    np.testing.assert_array_equal(backend.numpy(mean), backend.numpy(mean2))
    np.testing.assert_array_equal(backend.numpy(rstd), backend.numpy(rstd2))


def test_zero_strides(backend, rng):
    """EDGE 16: an image broadcast over the batch, and size-1 dimensions."""
    image = values(rng, (1, 3, 5), "float32")
    whole = np.broadcast_to(image, (4, 3, 5))
    x = backend.broadcast(image, (4, 3, 5))
    y = backend.empty((4, 3, 5), "float32")
    dlkern.batch_norm_training(x, out=y, out_mean=backend.empty((3,), "float32"),
                               out_rstd=backend.empty((3,), "float32"))  # fmt: skip
    expected, *_ = batch_norm_f64(float64(whole), np.ones(3), np.zeros(3))
    assert_close(backend.numpy(y), expected, "float32", "norm")
    y = dlkern.layer_norm(x, out=backend.empty((4, 3, 5), "float32"))
    expected, *_ = normalized_f64(float64(whole), -1, 1e-5)
    assert_close(backend.numpy(y), expected, "float32", "norm")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_parameters_beside_16_bit_data(backend, rng, dtype):
    x, dy = values(rng, (6, 5, 7), dtype), values(rng, (6, 5, 7), dtype)
    weight, bias = parameters(rng, 5, "float32")
    running = [backend.array(r) for r in (np.zeros(5, "f4"), np.ones(5, "f4"))]
    dx_, dw_, db_ = batch_both_ways(backend, x, dy, weight, bias, running)
    assert {str(backend.raw(a).dtype) for a in (dw_, db_, *running)} == {"float32"}
    assert str(backend.raw(dx_).dtype) == dtype
    expected, *_ = batch_norm_f64(float64(x), float64(weight), float64(bias))
    y = dlkern.batch_norm_training(*map(backend.array, (x, weight, bias)))[0]
    assert_close(backend.numpy(y), expected, dtype, "norm")
    statistics = float64(x).mean((0, 2)), float64(x).var((0, 2), ddof=1)
    assert_close(backend.numpy(running[0]), 0.1 * statistics[0], "float32", "norm",
                 scale=1)  # fmt: skip
    assert_close(backend.numpy(running[1]), 0.9 + 0.1 * statistics[1], "float32", "norm")

    weight, bias = parameters(rng, 7, "float32")
    y, mean, rstd = dlkern.layer_norm(*map(backend.array, (x, weight, bias)), return_stats=True)
    xhat, *_ = normalized_f64(float64(x), -1, 1e-5)
    assert_close(backend.numpy(y), xhat * weight + bias, dtype, "norm")
    _, dweight, dbias = dlkern.layer_norm_backward(*map(backend.array, (dy, x, weight)), mean, rstd)
    assert {str(backend.raw(a).dtype) for a in (dweight, dbias)} == {"float32"}
    assert_close(backend.numpy(dbias), float64(dy).sum((0, 1)), "float32", "norm_backward",
                 scale=np.abs(float64(dy)).sum((0, 1)))  # fmt: skip


def batch_both_ways(backend, x, dy, weight, bias, running):
    arrays = [backend.array(a) for a in (x, weight, bias)]
    _, mean, rstd = dlkern.batch_norm_training(*arrays, *running)
    return dlkern.batch_norm_backward(backend.array(dy), arrays[0], arrays[1], mean, rstd)


def test_absent_parameters(backend, rng):
    x = values(rng, (4, 3, 5), "float32")
    y, mean, rstd = dlkern.batch_norm_training(backend.array(x))
    expected, *_ = batch_norm_f64(float64(x), np.ones(3), np.zeros(3))
    assert_close(backend.numpy(y), expected, "float32", "norm")
    dx, dweight, dbias = dlkern.batch_norm_backward(y, backend.array(x), None, mean, rstd)
    assert (dweight, dbias) == (None, None)
    assert np.isfinite(backend.numpy(dx)).all()
    *_, dbias = dlkern.batch_norm_backward(y, backend.array(x), None, mean, rstd, bias=True)
    assert backend.numpy(dbias).shape == (3,)
    weight = backend.array(np.ones(5, np.float32))
    y, rstd = dlkern.rms_norm(backend.array(x), weight, return_stats=True)
    assert dlkern.rms_norm_backward(y, backend.array(x), None, rstd)[1] is None
    y, mean, rstd = dlkern.layer_norm(backend.array(x), weight, return_stats=True)
    _, dweight, dbias = dlkern.layer_norm_backward(
        y, backend.array(x), weight, mean, rstd, bias=False
    )
    assert dbias is None
    assert backend.numpy(dweight).shape == (5,)


def test_batch_norm_in_place(backend, dtype, rng):
    x, dy = values(rng, (4, 9, 5), dtype), values(rng, (4, 9, 5), dtype)
    weight, bias = parameters(rng, 9, dtype)
    arrays = [backend.array(a) for a in (weight, bias, bias, weight)]
    apart = backend.numpy(dlkern.batch_norm(backend.array(x), *arrays))
    together = backend.array(x)
    dlkern.batch_norm(together, *arrays, out=together)
    np.testing.assert_array_equal(backend.numpy(together), apart)
    _, mean, rstd = dlkern.batch_norm_training(backend.array(x))
    args = backend.array(weight), mean, rstd
    apart = dlkern.batch_norm_backward(backend.array(dy), backend.array(x), *args)
    for target in range(2):
        pair = [backend.array(dy), backend.array(x)]
        together = dlkern.batch_norm_backward(*pair, *args, out=pair[target])
        for a, b in zip(apart, together, strict=True):
            np.testing.assert_array_equal(backend.numpy(a), backend.numpy(b))


def test_edge_01_first_value_is_an_outlier(backend, rng):
    """A shift by the first value must not bring the cancellation back."""
    x = rounded(4000 + rng.standard_normal((2, 3, 5000)), "float32")
    x[0, :, 0] = 0
    _, _, got = dlkern.batch_norm_training(backend.array(x))
    _, _, rstd = batch_norm_f64(float64(x), np.ones(3), np.zeros(3))
    np.testing.assert_allclose(backend.numpy(got), rstd, rtol=1e-4)


def test_edge_01_constant_channels(backend):
    x = np.full((4, 3, 50), 0.1, np.float32)
    for eps in (0.0, 1e-5):
        y, _, rstd = dlkern.batch_norm_training(backend.array(x), eps=eps)
        assert not np.isnan(backend.numpy(rstd)).any()
    assert np.abs(backend.numpy(y)).max() < 1e-5


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (1, 3), (0, 3, 4)])
def test_edge_04_one_value_per_channel(backend, shape):
    running = [backend.array(np.ones(3, "f4")) for _ in range(2)]
    x = backend.array(np.zeros(shape, "f4"))
    with pytest.raises(ValueError, match=r"x.shape is .* per channel, expected at least 2"):
        dlkern.batch_norm_training(x, None, None, *running)
    for r in running:
        np.testing.assert_array_equal(backend.numpy(r), np.ones(3))


# ---- Residual, activation, running averages -----------------------------------------------------

FUSED_SHAPES = [
    ("NCHW", (3, 5, 7, 7)),
    ("NCHW", (2, 4, 33, 32)),
    ("NHWC", (3, 6, 7, 24)),
    ("NHWC", (2, 5, 6, 11)),
]


def fused_f64(z, residual, activation):
    z = z + residual
    if activation == "relu":
        return np.maximum(z, 0)
    return z / (1 + np.exp(-z)) if activation == "silu" else z


@pytest.mark.sanitize
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize(("layout", "shape"), FUSED_SHAPES)
def test_fused_forward(backend, rng, layout, shape, activation, with_residual):
    dtype = "bfloat16" if shape[0] == 2 else "float32"
    x, r = values(rng, shape, dtype), values(rng, shape, dtype)
    channels = shape[channel_axes(x, layout)[1]]
    weight, bias = parameters(rng, channels, "float32")
    var, mean = parameters(rng, channels, "float32")
    arrays = [backend.array(a) for a in (x, weight, bias)]
    options = {"activation": activation, "layout": layout}
    if with_residual:
        options["residual"] = backend.array(r)
    added = float64(r) if with_residual else 0.0
    y, *_ = dlkern.batch_norm_training(*arrays, **options)
    z, *_ = batch_norm_f64(float64(x), float64(weight), float64(bias), layout)
    scale = abs(z) + abs(added) + 2
    assert_close(backend.numpy(y), fused_f64(z, added, activation), dtype, "norm", scale=scale)
    y = dlkern.batch_norm(*arrays, backend.array(mean), backend.array(var), **options)
    m, v, w, b = (along_channels(float64(a), x, layout) for a in (mean, var, weight, bias))
    z = (float64(x) - m) / np.sqrt(v + 1e-5) * w + b
    scale = abs(z) + abs(added) + 2
    assert_close(backend.numpy(y), fused_f64(z, added, activation), dtype, "norm", scale=scale)


@pytest.mark.sanitize
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", ["relu", "silu", "relu of y"])
@pytest.mark.parametrize(("layout", "shape"), FUSED_SHAPES)
def test_fused_backward(backend, rng, layout, shape, mode, training):
    dtype = "bfloat16" if shape[0] == 2 else "float32"
    x, r, dy = (values(rng, shape, dtype) for _ in range(3))
    axes, channel = channel_axes(x, layout)
    weight, bias = parameters(rng, shape[channel], "float32")
    var, mean = parameters(rng, shape[channel], "float32")
    arrays = {name: backend.array(a) for name, a in
              {"x": x, "w": weight, "b": bias, "dy": dy, "r": r}.items()}  # fmt: skip
    activation = mode.partition(" ")[0]
    options = {"activation": activation, "layout": layout}
    if training:
        _, *statistics = dlkern.batch_norm_training(
            arrays["x"], arrays["w"], arrays["b"], layout=layout
        )
        mean, rstd = map(backend.numpy, statistics)
    else:
        statistics = [backend.array(mean), backend.array(var)]
        rstd = 1 / np.sqrt(float64(var) + 1e-5)
    xhat = (float64(x) - along_channels(float64(mean), x, layout)) * along_channels(rstd, x, layout)
    w, b = (along_channels(float64(a), x, layout) for a in (weight, bias))
    z = xhat * w + b
    if mode == "relu of y":
        y = rounded(np.maximum(z + float64(r), 0), dtype)
        options["y"], z = backend.array(y), float64(y)
    else:
        options["bias"] = arrays["b"]
    s = 1 / (1 + np.exp(-z))
    slope = s * (1 + z * (1 - s)) if activation == "silu" else (z > 0).astype(float)
    dz = float64(dy) * slope
    function = dlkern.batch_norm_backward if training else dlkern.batch_norm_inference_backward
    results = function(arrays["dy"], arrays["x"], arrays["w"], *statistics, **options)
    args = dz, xhat, along_channels(rstd, x, layout), w, axes, axes
    right, scales = gradient_f64(*args), gradient_scale(*args)
    if not training:
        right = (dz * w * along_channels(rstd, x, layout), *right[1:])
    for got, expected, scale in zip(results, right, scales, strict=False):
        assert_close(backend.numpy(got), expected, dtype, "norm_backward", scale=scale)
    if mode == "relu of y":
        np.testing.assert_array_equal(backend.numpy(results[3]), dz)


def test_fused_gradients_by_differences(backend, rng):
    if backend.is_gpu:
        pytest.skip("float64 on the CPU is the judge")
    x, dy, r = (rng.standard_normal((3, 4, 5)) for _ in range(3))
    weight, bias = rng.uniform(0.5, 2, 4), rng.standard_normal(4)
    for activation in (None, "relu", "silu"):
        run = lambda *a, f=activation: dlkern.batch_norm_training(*a, activation=f)[0]  # noqa: E731
        _, mean, rstd = dlkern.batch_norm_training(x, weight, bias)
        gradients = dlkern.batch_norm_backward(
            dy, x, weight, mean, rstd, activation=activation, bias=bias
        )
        assert_grad(run, (x, weight, bias), dy, gradients)
    run = lambda x, w, b, r: dlkern.batch_norm_training(  # noqa: E731
        x, w, b, residual=r, activation="relu"
    )[0]
    y, mean, rstd = dlkern.batch_norm_training(x, weight, bias, residual=r, activation="relu")
    gradients = dlkern.batch_norm_backward(dy, x, weight, mean, rstd, y=y, activation="relu")
    assert_grad(run, (x, weight, bias, r), dy, gradients)


def test_cumulative_running_statistics(backend, rng):
    """momentum=None: the running statistics are plain averages, counted on the device."""
    running = [backend.array(np.full(4, np.pi, "f4")) for _ in range(2)]
    count = backend.array(np.zeros((), "i8"))
    batches = [values(rng, (3, 4, 5), "float32") for _ in range(3)]
    for x in batches:
        dlkern.batch_norm_training(
            backend.array(x), None, None, *running, momentum=None, num_batches_tracked=count
        )
    assert backend.numpy(count) == 3
    for r, statistic in zip(running, (np.mean, lambda x, a: np.var(x, a, ddof=1)), strict=True):
        right = np.mean([statistic(float64(x), (0, 2)) for x in batches], 0)
        assert_close(backend.numpy(r), right, "float32", "norm", scale=4)
    with pytest.raises(ValueError, match="num_batches_tracked is None"):
        dlkern.batch_norm_training(backend.array(x), None, None, *running, momentum=None)
    with pytest.raises(TypeError, match="num_batches_tracked.dtype is float32, expected int64"):
        dlkern.batch_norm_training(
            backend.array(x), None, None, *running, num_batches_tracked=running[0]
        )


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_batches_are_counted_beside_a_momentum(backend, rng, layout):
    x = values(rng, (3, 4, 5, 6), "float32")
    running = [backend.array(np.zeros(x.shape[1 if layout == "NCHW" else -1], "f4")) for _ in "mv"]
    count = backend.array(np.full((), 2**33, "i8"))
    for _ in range(3):
        dlkern.batch_norm_training(
            backend.array(x), None, None, *running, num_batches_tracked=count, layout=layout
        )
    assert backend.numpy(count) == 2**33 + 3


def test_a_residual_needs_its_y(backend, rng):
    x = backend.array(values(rng, (3, 4, 5), "float32"))
    _, mean, rstd = dlkern.batch_norm_training(x)
    with pytest.raises(ValueError, match="y is NULL, expected it for dresidual"):
        dlkern.batch_norm_backward(
            x,
            x,
            None,
            mean,
            rstd,
            activation="relu",
            out_residual=backend.empty((3, 4, 5), "float32"),
        )
    with pytest.raises(ValueError, match="activation is DLK_ACTIVATION_SILU"):
        dlkern.batch_norm_backward(x, x, None, mean, rstd, activation="silu", y=x)


def test_batch_norm_in_place_of_the_residual(backend, rng):
    x, r = values(rng, (4, 9, 32), "float32"), values(rng, (4, 9, 32), "float32")
    apart, *_ = dlkern.batch_norm_training(
        backend.array(x), residual=backend.array(r), activation="relu"
    )
    together = backend.array(r)
    dlkern.batch_norm_training(backend.array(x), residual=together, activation="relu", out=together)
    np.testing.assert_array_equal(backend.numpy(together), backend.numpy(apart))
