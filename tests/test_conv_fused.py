"""conv_bias_act, conv_transpose_bias_act and the statistics of their results against float64."""

from __future__ import annotations

from dataclasses import replace

import conv_oracle
import numpy as np
import pytest
from backends import LAYOUTS
from oracle import accumulator, assert_close, float64, rounded
from test_activation import CASES as OF_ITS_OWN
from test_conv import CASES, Case
from test_gemm import ACTIVATIONS as OF_MATMUL

import dlkern

# In NumPy: kernels of the CPU are not to be had where a test lets its own kernels alone run.
ACTIVATIONS = OF_MATMUL | {
    name: OF_ITS_OWN[name][1] for name in ("relu6", "hardswish", "hardsigmoid", "mish", "selu")
}

WORK = {
    "scale": {"scale": True},
    "residual": {"residual": True},
    "relu": {"activation": "relu"},
    "batch-norm": {"scale": True, "bias": True, "residual": True, "activation": "relu"},
    "preactivation": {"bias": True, "residual": True, "activation": "silu", "preactivation": True},
    "wide": {"scale": True, "bias": True, "activation": "gelu", "wide": True},
    "statistics": {"stats": True},
    "all": {"scale": True, "bias": True, "residual": True, "activation": "relu",
            "preactivation": True, "stats": True},
}  # fmt: skip


def column(values, dims):
    return values.reshape(-1, *[1] * dims)


def assert_statistics(y, mean, var, dtype):
    """Of y [N, C, ...] as it was stored, in float64."""
    over = (0, *range(2, y.ndim))
    right, spread = y.mean(over), y.var(over)
    wide = accumulator(dtype)
    assert_close(mean, right, wide, "mean", scale=abs(right) + np.sqrt(spread))
    # Values near each other lose nothing; 1e-30 stands for a variance of 0.
    assert_close(var, spread, wide, "norm", scale=4 * spread + 1e-30)


def check(backend, dtype, rng, case, *, transposed=False, memory="contiguous", scale=False,
          bias=False, residual=False, activation=None, preactivation=False, stats=False,
          wide=False):  # fmt: skip
    """One call, and what it wrote against the oracle."""
    x, w, _, _, dy = case.arrays(rng, dtype)
    x, y_shape = (dy, x.shape) if transposed else (x, dy.shape)
    dims, channels = x.ndim - 2, y_shape[1]
    vector = accumulator(dtype) if wide else dtype
    factors = rounded(rng.uniform(0.5, 2, channels) * rng.choice([-1, 1], channels), vector)
    shifts = rounded(rng.standard_normal(channels), vector)
    added = rounded(rng.standard_normal(y_shape), dtype)

    sums = lambda x, w: (  # noqa: E731
        conv_oracle.backward_input(x, w, case.extents, **case.oracle)
        if transposed
        else conv_oracle.forward(x, w, **case.oracle)
    )
    z, size = sums(float64(x), float64(w)), sums(abs(float64(x)), abs(float64(w)))
    if scale:
        z, size = z * column(float64(factors), dims), size * column(abs(float64(factors)), dims)
    if bias:
        z, size = z + column(float64(shifts), dims), size + column(abs(float64(shifts)), dims)
    if residual:
        z, size = z + float64(added), size + abs(float64(added))

    put = lambda a: backend.array(case.place(a) if a.ndim > 1 else a, memory)  # noqa: E731
    own = memory != "contiguous"
    image = lambda: backend.empty(case.place(np.empty(y_shape)).shape, dtype, memory)  # noqa: E731
    outputs = {"out": image()} if own else {}
    if own and preactivation:
        outputs["out_preactivation"] = image()
    if own and stats:
        outputs |= {name: backend.empty((channels,), accumulator(dtype), memory)
                    for name in ("out_mean", "out_var")}  # fmt: skip
    function = dlkern.conv_transpose_bias_act if transposed else dlkern.conv_bias_act
    window = case.arguments | ({"output_padding": case.output_padding} if transposed else {})
    arguments = (put(x), put(w), put(shifts) if bias else None)
    options = {
        "scale": put(factors) if scale else None, "residual": put(added) if residual else None,
        "activation": activation, "preactivation": preactivation, "return_stats": stats,
        **window, **outputs,
    }  # fmt: skip
    results = function(*arguments, **options)
    twice = (accumulator(dtype) != dtype
             and dlkern.explain(function, *arguments, **options)[0].implementation
             == "separate_passes")  # fmt: skip
    slack = 2**11 if twice else 1  # 2^-8 in units of 16 eps of float32
    results = [backend.numpy(r) for r in (results if isinstance(results, tuple) else [results])]
    y = case.unplace(results.pop(0))
    label = f"{case}, transposed {transposed}"
    try:
        if preactivation:
            assert_close(case.unplace(results.pop(0)), z, dtype, "conv", scale=size * slack)
        right = ACTIVATIONS[activation](z)
        assert_close(y, right, dtype, "conv", scale=size * slack)
        if stats:
            assert_statistics(y, *results, dtype)
    except AssertionError as error:
        raise AssertionError(f"{label}: {error}") from None


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("name", ["1d", "2d", "2d-strided", "2d-pointwise", "2d-groups",
                                  "2d-depthwise", "2d-depthwise-strided", "3d",
                                  "tail"])  # fmt: skip
def test_all_work(backend, dtype, rng, name, work, layout, transposed):
    case = replace(CASES[name], layout=layout)
    check(backend, dtype, rng, case, transposed=transposed, **WORK[work])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("transposed", [False, True])
def test_activations(backend, dtype, rng, transposed, activation):
    case = Case(2, 8, 16, (9, 11), (3, 3), (1, 1), ((1, 1), (1, 1)), layout="NHWC")
    check(backend, dtype, rng, case, transposed=transposed, scale=True, residual=True,
          activation=activation, stats=True)  # fmt: skip


@pytest.mark.sanitize
@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("name", ["2d-strided", "2d-depthwise", "2d-pointwise", "2d-groups"])
def test_memory_layouts(backend, rng, name, memory):
    """Any strides and alignment of all inputs and outputs."""
    for dtype in ("float32", "bfloat16"):
        for layout in ("NCHW", "NHWC"):
            for transposed in (False, True):
                check(backend, dtype, rng, replace(CASES[name], layout=layout),
                      transposed=transposed, memory=memory, **WORK["all"])  # fmt: skip


@pytest.mark.parametrize("seed", range(100))
def test_random_problems(backend, seed):
    """A failure names its seed and prints the case."""
    from test_conv import random_case

    rng = np.random.default_rng(seed)
    coin = lambda: bool(rng.integers(2))  # noqa: E731
    check(backend, ("float32", "float16", "bfloat16", "float64")[seed % 4], rng, random_case(rng),
          transposed=coin(), scale=coin(), bias=coin(), residual=coin(), wide=coin(),
          activation=[None, "relu", "silu"][rng.integers(3)], preactivation=coin(),
          stats=coin())  # fmt: skip


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mean", [0.0, 1e3, -1e6])
def test_statistics_of_a_small_deviation(backend, rng, layout, mean):
    """E[x^2] - E[x]^2 would have no right digit: a mean of a million deviations."""
    case = Case(3, 8, 24, (17, 19), (3, 3), (1, 1), ((1, 1), (1, 1)), layout=layout)
    x, w, b, _, _ = case.arrays(rng, "float32")
    b = rounded(mean + b, "float32")
    y, m, v = dlkern.conv_bias_act(
        *(backend.array(case.place(a) if a.ndim > 1 else a) for a in (x, w, b)),
        return_stats=True, **case.arguments,
    )  # fmt: skip
    assert_statistics(case.unplace(backend.numpy(y)), backend.numpy(m), backend.numpy(v), "float32")


def test_statistics_of_equal_values(backend, dtype):
    """A variance of 0, whatever the mean; an image without positions has none of the two."""
    x = np.zeros((2, 8, 33, 8))
    w, b = np.zeros((8, 3, 3, 8)), rounded(np.linspace(-3e4, 3e4, 8), dtype)
    put = lambda a: backend.array(rounded(a, dtype))  # noqa: E731
    _, mean, var = dlkern.conv_bias_act(put(x), put(w), put(b), layout="NHWC", padding=1,
                                        return_stats=True)  # fmt: skip
    assert_close(backend.numpy(mean), float64(b), accumulator(dtype), "mean")
    np.testing.assert_array_equal(backend.numpy(var), 0)
    _, mean, var = dlkern.conv_bias_act(put(x[:0]), put(w), layout="NHWC", return_stats=True)
    assert np.isnan(backend.numpy(mean)).all() and np.isnan(backend.numpy(var)).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_batch_norm_takes_the_statistics(backend, dtype, rng, layout):
    """The same y, running statistics and gradient as where batch norm reads y for them itself."""
    case = Case(3, 8, 16, (9, 11), (3, 3), (1, 1), ((1, 1), (1, 1)), layout=layout)
    x, w, _, _, dy = case.arrays(rng, dtype)
    put = lambda a: backend.array(case.place(a) if a.ndim > 1 else a)  # noqa: E731
    y, mean, var = dlkern.conv_bias_act(put(x), put(w), return_stats=True, **case.arguments)
    gamma, beta = (rounded(rng.uniform(0.5, 2, 16), dtype) for _ in range(2))
    results = []
    for stats in (None, (mean, var)):
        running = [backend.array(rounded(np.linspace(0.5, 2, 16), dtype)) for _ in range(2)]
        count = backend.array(np.array(3))
        z, *saved = dlkern.batch_norm_training(
            y, put(gamma), put(beta), *running, stats=stats, residual=put(dy), activation="relu",
            num_batches_tracked=count, layout=layout,
        )  # fmt: skip
        results.append([backend.numpy(a) for a in (z, saved[-1], *running, count)])
    for wrong in (mean, (mean,), ()):
        with pytest.raises(TypeError, match=r"batch_norm_training: stats is a .*expected \(mean"):
            dlkern.batch_norm_training(y, stats=wrong, layout=layout)
    for own, given in zip(*results, strict=True):
        eps = 2.0**-6 if dtype == "bfloat16" else 2.0**-9 if dtype == "float16" else 1e-5
        np.testing.assert_allclose(given, own, rtol=eps, atol=eps)


def test_errors(backend, rng):
    put = lambda *shape: backend.array(rng.standard_normal(shape).astype("f4"))  # noqa: E731
    x, w = put(2, 4, 5, 5), put(6, 4, 3, 3)
    call = dlkern.conv_bias_act
    with pytest.raises(ValueError, match=r"scale.shape is \[5\], expected \[6\]"):
        call(x, w, scale=put(5))
    with pytest.raises(ValueError, match="residual.shape"):
        call(x, w, residual=put(2, 6, 4, 3))
    with pytest.raises(ValueError, match="activation is 'swish'"):
        call(x, w, activation="swish")
    with pytest.raises(TypeError, match="residual.dtype"):
        call(x, w, residual=backend.array(np.zeros((2, 6, 3, 3))))
    with pytest.raises(TypeError, match="mean.dtype"):
        call(x, w, out_mean=backend.empty((6,), "float64"))
    with pytest.raises(ValueError, match=r"^conv_bias_act: weight.shape\[1\] is 3"):
        call(x, put(6, 3, 3, 3))
    with pytest.raises(ValueError, match=r"^conv_transpose_bias_act: weight.shape\[0\] is 6"):
        dlkern.conv_transpose_bias_act(x, w)
    y = backend.empty((2, 6, 3, 3), "float32")
    with pytest.raises(ValueError, match="overlaps"):
        call(x, w, residual=y, out=y)
