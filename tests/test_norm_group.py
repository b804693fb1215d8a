"""group_norm and instance_norm, forward and backward, against float64."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import accumulator, assert_close, assert_grad, float64
from test_norm import along_channels, channel_axes, parameters, values

import dlkern

SHAPES = [
    ("NCHW", (2, 6), 3),
    ("NCHW", (3, 64), 4),
    ("NCHW", (2, 4, 5), 2),
    ("NCHW", (3, 8, 7, 7), 4),
    ("NCHW", (2, 6, 9, 11), 6),
    ("NCHW", (2, 10, 30, 31), 1),
    ("NCHW", (1, 4, 64, 96), 2),
    ("NCHW", (2, 4, 3, 4, 5), 2),
    ("NHWC", (3, 7, 7, 8), 4),
    ("NHWC", (2, 5, 6, 40), 4),
    ("NHWC", (2, 9, 130), 13),
    ("NHWC", (2, 30, 30, 64), 8),
    ("NHWC", (1, 3, 4, 5, 24), 24),
    ("NCHW", (0, 4, 3), 2),
]
ACTIVATIONS = [None, "relu", "silu"]


def grouped(x, groups, layout):
    """X as [N, groups, channels of a group, positions]."""
    if layout == "NHWC":
        x = np.moveaxis(x, -1, 1)
    return x.reshape(x.shape[0], groups, x.shape[1] // max(groups, 1), -1)


def ungrouped(v, like, layout):
    """The way back."""
    shape = like.shape if layout == "NCHW" else (like.shape[0], like.shape[-1], *like.shape[1:-1])
    v = np.broadcast_to(v, grouped(like, v.shape[1], layout).shape).reshape(shape)
    return v if layout == "NCHW" else np.moveaxis(v, 1, -1)


def statistics_f64(x, groups, layout, eps):
    g = grouped(x, groups, layout)
    mean = g.mean((2, 3), keepdims=True)
    return mean, 1 / np.sqrt(((g - mean) ** 2).mean((2, 3), keepdims=True) + eps)


def activation_f64(name, z):
    if name == "relu":
        return np.maximum(z, 0)
    return z / (1 + np.exp(-z)) if name == "silu" else z


def slope_f64(name, z):
    if name == "relu":
        return (z > 0).astype(float)
    s = 1 / (1 + np.exp(-z))
    return s * (1 + z * (1 - s)) if name == "silu" else np.ones_like(z)


def group_norm_f64(x, groups, weight, bias, layout="NCHW", activation=None, eps=1e-5):
    mean, rstd = statistics_f64(x, groups, layout, eps)
    xhat = ungrouped((grouped(x, groups, layout) - mean) * rstd, x, layout)
    z = xhat * along_channels(weight, x, layout) + along_channels(bias, x, layout)
    return activation_f64(activation, z), xhat, z


def gradients_f64(dy, xhat, z, rstd, groups, weight, layout, activation):
    """The three gradients and the sizes of what is summed up in them."""
    dz = dy * slope_f64(activation, z)
    rest, _ = channel_axes(dy, layout)
    g, h = (grouped(a, groups, layout) for a in (dz * along_channels(weight, dy, layout), xhat))
    mean = lambda v: v.mean((2, 3), keepdims=True)  # noqa: E731
    dx = rstd * (g - mean(g) - h * mean(g * h))
    scale = rstd * (abs(g) + mean(abs(g)) + abs(h) * mean(abs(g * h)))
    right = ungrouped(dx, dy, layout), (dz * xhat).sum(rest), dz.sum(rest)
    scales = ungrouped(scale, dy, layout), abs(dz * xhat).sum(rest), abs(dz).sum(rest)
    return right, scales


def check_gradients(backend, dtype, results, dy, x, groups, weight, bias, mean, rstd, layout,
                    activation=None):  # fmt: skip
    """`mean`, `rstd`: those that the call under test was given, [N, groups]."""
    mean, rstd = (float64(backend.numpy(s))[:, :, None, None] for s in (mean, rstd))
    x, dy, weight, bias = map(float64, (x, dy, weight, bias))
    xhat = ungrouped((grouped(x, groups, layout) - mean) * rstd, x, layout)
    z = xhat * along_channels(weight, x, layout) + along_channels(bias, x, layout)
    right, scales = gradients_f64(dy, xhat, z, rstd, groups, weight, layout, activation)
    for got, r, scale in zip(results, right, scales, strict=True):
        assert_close(backend.numpy(got), r, dtype, "norm_backward", scale=scale)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("layout", "shape", "groups"), SHAPES)
def test_group_norm(backend, dtype, rng, layout, shape, groups, activation):
    if activation and dtype != "float32" and shape[1] != 8:
        pytest.skip("one shape of each dtype has activations")
    x, dy = values(rng, shape, dtype, center=3), values(rng, shape, dtype)
    weight, bias = parameters(rng, shape[channel_axes(x, layout)[1]], dtype)
    arrays = [backend.array(a) for a in (x, weight, bias)]
    y, mean, rstd = dlkern.group_norm(
        arrays[0], groups, *arrays[1:], activation=activation, layout=layout, return_stats=True
    )
    assert backend.numpy(mean).shape == backend.numpy(rstd).shape == (shape[0], groups)
    results = dlkern.group_norm_backward(
        backend.array(dy), arrays[0], groups, arrays[1], mean, rstd, activation=activation,
        bias=arrays[2], layout=layout,
    )  # fmt: skip
    if x.size == 0:
        assert not backend.numpy(results[1]).any()
        return
    right, xhat, z = group_norm_f64(float64(x), groups, float64(weight), float64(bias), layout,
                                    activation)  # fmt: skip
    assert_close(backend.numpy(y), right, dtype, "norm", scale=abs(z) + abs(xhat) + 2)
    mean64, rstd64 = (s[:, :, 0, 0] for s in statistics_f64(float64(x), groups, layout, 1e-5))
    assert_close(backend.numpy(mean), mean64, accumulator(dtype), "norm", scale=4)
    assert_close(backend.numpy(rstd), rstd64, accumulator(dtype), "norm")
    check_gradients(
        backend, dtype, results, dy, x, groups, weight, bias, mean, rstd, layout, activation
    )


@pytest.mark.parametrize(
    ("layout", "shape"),
    [("NCHW", (3, 5, 7, 7)), ("NCHW", (2, 4, 40, 50)), ("NCHW", (2, 3, 9)),
     ("NHWC", (3, 7, 7, 24)), ("NHWC", (2, 30, 30, 40))],
)  # fmt: skip
def test_instance_norm(backend, dtype, rng, layout, shape):
    x, dy = values(rng, shape, dtype, center=3), values(rng, shape, dtype)
    axes, channel = channel_axes(x, layout)
    channels = shape[channel]
    weight, bias = parameters(rng, channels, dtype)
    before = parameters(rng, channels, dtype)
    running = [backend.array(r) for r in before]
    arrays = [backend.array(a) for a in (x, weight, bias)]
    y, mean, rstd = dlkern.instance_norm(
        *arrays, *running, momentum=0.3, layout=layout, return_stats=True
    )
    right, *_ = group_norm_f64(float64(x), channels, float64(weight), float64(bias), layout)
    assert_close(backend.numpy(y), right, dtype, "norm", scale=abs(right) + 2)
    of_samples = tuple(a for a in axes if a != 0)
    averages = float64(x).mean(axes), float64(x).var(of_samples, ddof=1).mean(0)
    for r, old, new in zip(running, before, averages, strict=True):
        right = 0.7 * float64(old) + 0.3 * new
        assert_close(backend.numpy(r), right, dtype, "norm", scale=np.abs(old) + np.abs(new))
    results = dlkern.instance_norm_backward(
        backend.array(dy), *arrays[:2], mean, rstd, bias=True, layout=layout
    )
    check_gradients(backend, dtype, results, dy, x, channels, weight, bias, mean, rstd, layout)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_group_norm_in_any_memory_layout(backend, rng, layout, dtype):
    """EDGE 21, 26: strides and alignment change the way to the values, not the values."""
    x, dy = values(rng, (3, 12, 4, 9), dtype), values(rng, (3, 12, 4, 9), dtype)
    weight, bias = parameters(rng, 12, dtype)
    y = backend.empty(x.shape, dtype, layout)
    mean, rstd = (backend.empty((3, 4), "float32", layout) for _ in range(2))
    arrays = [backend.array(a, layout) for a in (x, weight, bias)]
    dlkern.group_norm(
        arrays[0], 4, *arrays[1:], activation="silu", out=y, out_mean=mean, out_rstd=rstd
    )
    right, _, z = group_norm_f64(float64(x), 4, float64(weight), float64(bias), activation="silu")
    assert_close(backend.numpy(y), right, dtype, "norm", scale=abs(z) + 2)
    out = [backend.empty(a.shape, dtype, layout) for a in (x, weight, bias)]
    dlkern.group_norm_backward(
        backend.array(dy, layout), arrays[0], 4, arrays[1], mean, rstd, activation="silu",
        bias=arrays[2], out=out[0], out_weight=out[1], out_bias=out[2],
    )  # fmt: skip
    check_gradients(backend, dtype, out, dy, x, 4, weight, bias, mean, rstd, "NCHW", "silu")


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", [64, 40])
def test_channels_last_in_memory(backend, rng, channels, layout):
    """The layout that is said and the one in memory are two things."""
    x = values(rng, (2, channels, 6, 8), "bfloat16")
    weight, bias = parameters(rng, channels, "float32")
    view = backend.array(np.moveaxis(x, 1, -1).copy())
    out = backend.empty((2, 6, 8, channels), "bfloat16")
    if layout == "NCHW":
        view, out = (
            a.permute(0, 3, 1, 2) if backend.is_gpu else a.transpose(0, 3, 1, 2)
            for a in (view, out)
        )
    dlkern.group_norm(view, 4, backend.array(weight), backend.array(bias), layout=layout, out=out)
    right, *_ = group_norm_f64(float64(x), 4, float64(weight), float64(bias))
    got = backend.numpy(out)
    got = got if layout == "NCHW" else np.moveaxis(got, -1, 1)
    assert_close(got, right, "bfloat16", "norm", scale=abs(right) + 2)


def test_group_norm_gradients_by_differences(backend, rng):
    if backend.is_gpu:
        pytest.skip("float64 on the CPU is the judge")
    for activation in ACTIVATIONS:
        x, dy = rng.standard_normal((2, 4, 5)), rng.standard_normal((2, 4, 5))
        weight, bias = rng.uniform(0.5, 2, 4), rng.standard_normal(4)
        run = lambda *a, f=activation: dlkern.group_norm(a[0], 2, *a[1:], activation=f)  # noqa: E731
        _, mean, rstd = dlkern.group_norm(x, 2, weight, bias, return_stats=True)
        gradients = dlkern.group_norm_backward(
            dy, x, 2, weight, mean, rstd, activation=activation, bias=bias
        )
        assert_grad(run, (x, weight, bias), dy, gradients)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("spatial", [(7, 7), (20, 32)])
def test_a_sample_does_not_depend_on_the_others(backend, rng, layout, spatial):
    shape = (5, 32, *spatial) if layout == "NCHW" else (5, *spatial, 32)
    x, dy = values(rng, shape, "bfloat16"), values(rng, shape, "bfloat16")
    weight, _ = parameters(rng, 32, "float32")

    def both(x, dy):
        args = backend.array(x), 8, backend.array(weight)
        y, mean, rstd = dlkern.group_norm(*args, layout=layout, return_stats=True)
        dx, *_ = dlkern.group_norm_backward(backend.array(dy), *args, mean, rstd, layout=layout)
        return [backend.raw(a) for a in (y, mean, rstd, dx)]

    whole = both(x, dy)
    for i in (0, 3):
        for all_of_them, alone in zip(whole, both(x[i : i + 1], dy[i : i + 1]), strict=True):
            np.testing.assert_array_equal(all_of_them[i : i + 1], alone)


def test_group_norm_in_place(backend, dtype, rng):
    x, dy = values(rng, (4, 8, 16), dtype), values(rng, (4, 8, 16), dtype)
    weight, bias = (backend.array(p) for p in parameters(rng, 8, dtype))
    apart, mean, rstd = dlkern.group_norm(backend.array(x), 2, weight, bias, return_stats=True)
    together = backend.array(x)
    dlkern.group_norm(together, 2, weight, bias, out=together)
    np.testing.assert_array_equal(backend.numpy(together), backend.numpy(apart))
    apart = dlkern.group_norm_backward(backend.array(dy), backend.array(x), 2, weight, mean, rstd)
    for target in range(2):
        pair = [backend.array(dy), backend.array(x)]
        together = dlkern.group_norm_backward(*pair, 2, weight, mean, rstd, out=pair[target])
        for a, b in zip(apart, together, strict=True):
            np.testing.assert_array_equal(backend.numpy(a), backend.numpy(b))


@pytest.mark.parametrize("shape", [(1, 2, 2048), (1, 2, 3, 1024)])
def test_edge_01_large_mean(backend, shape):
    """EDGE 1: 256.0 but for one 255.0 in each group."""
    x = np.full(shape, 256, np.float32)
    last = (..., -1) if len(shape) == 3 else (..., -1, -1)
    x[last] = 255
    groups = 2
    y = backend.numpy(dlkern.group_norm(backend.array(x), groups))
    right, *_ = group_norm_f64(float64(x), groups, np.ones(2), np.zeros(2))
    np.testing.assert_allclose(y, right, rtol=2e-3, atol=1e-4)


def test_edge_04_one_value(backend):
    x = backend.array(np.ones((2, 3, 1), "f4"))
    with pytest.raises(ValueError, match=r"x.shape is .* per sample and channel"):
        dlkern.instance_norm(x)
    y = backend.numpy(dlkern.group_norm(x, 3, None, backend.array(np.full(3, 5, "f4"))))
    np.testing.assert_array_equal(y, np.full((2, 3, 1), 5))  # the group is its mean


def test_wrong_arguments(backend):
    x = backend.array(np.ones((2, 6, 4), "f4"))
    with pytest.raises(ValueError, match="num_groups is 4, expected a divisor of the 6 channels"):
        dlkern.group_norm(x, 4)
    with pytest.raises(ValueError, match="num_groups is 0"):
        dlkern.group_norm(x, 0)
    with pytest.raises(ValueError, match="activation is 'gelu', expected None"):
        dlkern.group_norm(x, 2, activation="gelu")
    with pytest.raises(ValueError, match="running_var is NULL"):
        dlkern.instance_norm(x, None, None, backend.array(np.ones(6, "f4")))


def test_no_positions(backend):
    x = backend.array(np.ones((2, 6, 0), "f4"))
    y, mean, rstd = dlkern.group_norm(x, 3, return_stats=True)
    assert backend.numpy(y).shape == (2, 6, 0)
    assert np.isnan(backend.numpy(mean)).all()
    assert np.isnan(backend.numpy(rstd)).all()
