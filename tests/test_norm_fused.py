"""layer_norm and rms_norm with a residual, a weight offset and float8 results."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64, rounded
from test_norm import gradient_f64, gradient_scale, normalized_f64, parameters, values

import dlkern

# Lanes of a warp, several pieces of a thread, a block; whole pieces or not.
LENGTHS = (5, 64, 77, 1000, 4096, 9001)
FLOAT8 = {"float8_e4m3fn": (448.0, 2.0**-4), "float8_e5m2": (57344.0, 2.0**-3)}


def forward(rms, x, weight, bias=None, **options):
    if rms:
        return dlkern.rms_norm(x, weight, **options)
    return dlkern.layer_norm(x, weight, bias, **options)


def sum_of(x, residual, dtype):
    return rounded(float64(x) + float64(residual), dtype)


@pytest.mark.sanitize
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("n", LENGTHS)
def test_residual(backend, dtype, rng, n, rms):
    x, residual, dy, dresidual = (values(rng, (19, n), dtype) for _ in range(4))
    weight, bias = parameters(rng, n, dtype)
    x_, residual_, dy_, dresidual_, weight_, bias_ = (
        backend.array(a) for a in (x, residual, dy, dresidual, weight, bias)
    )
    y, total, *stats = forward(
        rms, x_, weight_, bias_, residual=residual_, weight_offset=1, return_stats=True
    )
    right_sum = sum_of(x, residual, dtype)
    np.testing.assert_array_equal(backend.numpy(total), right_sum)
    eps = 1e-6 if rms else 1e-5
    xhat, _, rstd = normalized_f64(float64(right_sum), -1, eps, rms)
    scaled, shift = xhat * (1 + float64(weight)), 0 if rms else float64(bias)
    scale = np.abs(scaled) + np.abs(shift) + 1  # terms that may cancel, and the mean
    assert_close(backend.numpy(y), scaled + shift, dtype, "norm", scale=scale)

    back = dlkern.rms_norm_backward if rms else dlkern.layer_norm_backward
    got = back(dy_, total, weight_, *stats, dresidual=dresidual_, weight_offset=1)
    args = float64(dy), xhat, rstd, 1 + float64(weight), -1, 0
    right, scales = list(gradient_f64(*args, rms=rms)), list(gradient_scale(*args))
    right[0], scales[0] = right[0] + float64(dresidual), scales[0] + np.abs(float64(dresidual))
    for g, r, scale in zip(got, right, scales, strict=False):
        assert_close(backend.numpy(g), r, dtype, "norm_backward", scale=scale)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 4, 6), (3, 2, 700)])
def test_residual_in_any_memory_layout(backend, rng, layout, shape):
    x, residual, dy, dresidual = (values(rng, shape, "float16") for _ in range(4))
    weight, bias = parameters(rng, shape[1:], "float16")
    results = []
    for each in ("contiguous", layout):
        arrays = [backend.array(a, each) for a in (x, weight, bias, residual)]
        y, total, dx = (backend.empty(shape, "float16", each) for _ in range(3))
        _, _, *stats = dlkern.layer_norm(
            *arrays[:3], residual=arrays[3], normalized_ndim=2, out=y, out_residual=total,
            return_stats=True,
        )  # fmt: skip
        dlkern.layer_norm_backward(
            backend.array(dy, each), total, arrays[1], *stats,
            dresidual=backend.array(dresidual, each), normalized_ndim=2, out=dx,
        )  # fmt: skip
        results.append([float64(backend.numpy(a)) for a in (y, total, dx)])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("n", [70, 1001, 5000])
def test_residual_in_place(backend, rng, n):
    x, residual, dy, dresidual = (values(rng, (30, n), "bfloat16") for _ in range(4))
    weight, bias = (backend.array(p) for p in parameters(rng, n, "bfloat16"))
    apart = dlkern.layer_norm(
        backend.array(x), weight, bias, residual=backend.array(residual), return_stats=True
    )
    pair = [backend.array(x), backend.array(residual)]
    for first, second in ((0, 1), (1, 0)):
        pair = [backend.array(x), backend.array(residual)]
        together = dlkern.layer_norm(
            pair[0], weight, bias, residual=pair[1], out=pair[first], out_residual=pair[second]
        )
        for a, b in zip(apart, together, strict=False):
            np.testing.assert_array_equal(backend.numpy(a), backend.numpy(b))
    args = apart[1], weight, *apart[2:]
    right = dlkern.layer_norm_backward(backend.array(dy), *args, dresidual=backend.array(dresidual))
    target = backend.array(dresidual)
    got = dlkern.layer_norm_backward(backend.array(dy), *args, dresidual=target, out=target)
    for a, b in zip(right, got, strict=True):
        np.testing.assert_array_equal(backend.numpy(a), backend.numpy(b))


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", FLOAT8)
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("n", [5, 64, 1000, 4099, 20000])
def test_float8(backend, dtype, rng, n, rms, kind):
    largest, half_ulp = FLOAT8[kind]
    x, residual = values(rng, (21, n), dtype), values(rng, (21, n), dtype)
    weight, bias = parameters(rng, n, dtype)
    scale = np.float32(largest / 4)  # some are beyond
    y, _, amax = forward(
        rms, *(backend.array(a) for a in (x, weight, bias)), residual=backend.array(residual),
        out_dtype=kind, scale_out=backend.array(scale), amax=True,
    )  # fmt: skip
    xhat, *_ = normalized_f64(float64(sum_of(x, residual, dtype)), -1, 1e-6 if rms else 1e-5, rms)
    right = xhat * float64(weight) + (0 if rms else float64(bias))
    got = float64(backend.numpy(y))
    error = np.abs(got - np.clip(right * float(scale), -largest, largest))
    assert (error <= 1.01 * half_ulp * np.abs(right) * scale + 1e-2).all()
    assert float64(backend.numpy(amax)) == pytest.approx(np.abs(right).max(), rel=1e-4)


@pytest.mark.parametrize("n", [64, 3000])
def test_float8_of_nan(backend, rng, n):
    x = values(rng, (40, n), "float32")
    x[7, 3] = np.nan
    y, amax = dlkern.rms_norm(backend.array(x), out_dtype="float8_e4m3fn", amax=True)
    assert np.isnan(backend.numpy(amax))
    np.testing.assert_array_equal(np.isnan(float64(backend.numpy(y))).any(1), np.arange(40) == 7)


def test_float8_of_nothing(backend):
    empty = backend.array(np.zeros((0, 5), "f4"))
    _, amax = dlkern.layer_norm(empty, out_dtype="float8_e5m2", amax=True)
    assert float64(backend.numpy(amax)) == 0


def test_rows_do_not_depend_on_the_batch(backend, dtype, rng):
    x, residual = values(rng, (64, 1030), dtype), values(rng, (64, 1030), dtype)
    weight = backend.array(parameters(rng, 1030, dtype)[0])
    rows = dlkern.rms_norm(backend.array(x), weight, residual=backend.array(residual))
    alone = dlkern.rms_norm(
        backend.array(x[17:18]), weight, residual=backend.array(residual[17:18])
    )
    for many, one in zip(rows, alone, strict=True):
        np.testing.assert_array_equal(backend.numpy(many)[17:18], backend.numpy(one))


def test_gradients_by_finite_differences(rng):
    x, residual, dy, dtotal = rng.standard_normal((4, 3, 8))
    weight, bias = parameters(rng, 8, "float64")
    _, total, *stats = dlkern.layer_norm(
        x, weight, bias, residual=residual, weight_offset=0.5, return_stats=True
    )
    gradients = dlkern.layer_norm_backward(
        dy, total, weight, *stats, dresidual=dtotal, weight_offset=0.5
    )

    def layer(x, residual, weight, bias):
        y, total = dlkern.layer_norm(x, weight, bias, residual=residual, weight_offset=0.5)
        return np.concatenate([y, total])

    assert_grad(
        layer, [x, residual, weight, bias], np.concatenate([dy, dtotal]),
        [gradients[0], *gradients],
    )  # fmt: skip


X = np.zeros((4, 6), np.float32)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"residual": X[:2]}, ValueError, "residual.shape"),
        ({"residual": X.astype("f8")}, TypeError, "residual.dtype is float64"),
        ({"out_residual": X.copy()}, ValueError, "out_residual is given without residual"),
        ({"amax": True}, ValueError, "amax is given for y of float32"),
        ({"scale_out": np.ones(1, "f4")}, ValueError, "scale_out is given for y of float32"),
        (
            {"out_dtype": "float8_e5m2", "scale_out": np.ones(2, "f4")},
            ValueError,
            "scale_out.shape",
        ),
        ({"out_dtype": "float16"}, TypeError, "out.dtype is float16|y.dtype is float16"),
        ({"out_dtype": "float9"}, ValueError, "out_dtype is 'float9'"),
        ({"weight_offset": np.inf}, ValueError, "weight_offset is inf"),
    ],
)
def test_wrong_arguments(backend, options, error, message):
    given = {k: backend.array(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    with pytest.raises(error, match=message):
        dlkern.layer_norm(backend.array(X), **given)
