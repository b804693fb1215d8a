"""How a result is judged: float64 NumPy on inputs already rounded to the tested dtype.

::

    x = rounded(rng.standard_normal((3, 5)), dtype)         # NumPy, in the tested dtype
    y = backend.numpy(dlkern.softmax(backend.array(x)))     # float64
    assert_close(y, softmax_f64(x.astype("f8")), dtype, "softmax")

An element may differ from the oracle by one rounding to its dtype plus ``factor`` roundings, of
the type the op accumulates in, of the element's *scale*::

    |actual - expected| <= eps(dtype) / 2 * |expected|       16-bit and narrower only
                         + factor * eps(accumulator) * scale

``scale`` is ``|expected|`` unless the op's row in ``TOLERANCES`` or the test says otherwise: where
a result is a sum that may cancel, pass what was summed, e.g. ``scale=abs(a) @ abs(b)``.
NaN and infinities must be in the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

FLOATS = ("float64", "float32", "float16", "bfloat16")


class Tolerance(NamedTuple):
    factor: float
    floor: float = 0.0  # scale is at least this share of the result's root mean square


# One row per op and, where they differ, per gradient.
TOLERANCES = {
    "exact": Tolerance(0),
    # activations
    "relu": Tolerance(0),
    "leaky_relu": Tolerance(1),
    "elu": Tolerance(4),
    "gelu": Tolerance(16, 1e-2),
    "silu": Tolerance(8),
    "sigmoid": Tolerance(8),
    "tanh": Tolerance(8),
    "softplus": Tolerance(8),
    "relu6": Tolerance(0),
    "hardswish": Tolerance(4),
    "hardsigmoid": Tolerance(4),
    "mish": Tolerance(8),
    "selu": Tolerance(4),
    "activation_backward": Tolerance(16, 1e-1),
    # rows
    "softmax": Tolerance(16),
    "log_softmax": Tolerance(16, 1e-1),
    "softmax_backward": Tolerance(32, 1e-1),
    "sum": Tolerance(16),
    "mean": Tolerance(16),
    "norm": Tolerance(32, 1.0),
    "norm_backward": Tolerance(64, 1.0),
    "cross_entropy": Tolerance(32, 1e-1),
    # products: give scale=|a| @ |b|
    "matmul": Tolerance(8),
    "matmul_float8": Tolerance(4096),  # tensor cores sum float8 products in about 14 bits
    "linear": Tolerance(16),
    "conv": Tolerance(16),
    # the rest
    "add": Tolerance(1),
    "pool": Tolerance(8),
    "dropout": Tolerance(2),
    "rope": Tolerance(8),
    "optim": Tolerance(16, 1e-2),
}


def numpy_dtype(dtype: str) -> np.dtype:
    """Dtype object of a name, with bfloat16 and float8 from ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def accumulator(dtype: str) -> str:
    """Name of the type that a kernel sums ``dtype`` in."""
    return "float32" if numpy_dtype(dtype).itemsize < 4 else dtype


def rounded(values: ArrayLike, dtype: str) -> NDArray:
    """``values`` rounded to ``dtype``: what both the kernel and the oracle are given."""
    return np.asarray(values).astype(numpy_dtype(dtype))


def float64(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values).astype(np.float64)


def allowed_error(
    expected: NDArray[np.float64], dtype: str, op: str, scale: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Largest error of each element that counts as right."""
    tolerance = TOLERANCES[op]
    storage, compute = ml_dtypes.finfo(dtype), np.finfo(accumulator(dtype))
    magnitude = np.abs(expected)
    if scale is None:
        finite = magnitude[np.isfinite(magnitude)]
        mean_square = np.sqrt(np.mean(finite**2)) if finite.size else 0.0
        scale = np.maximum(magnitude, tolerance.floor * mean_square)
    # An op whose factor is 0 only moves or selects values that the dtype already has.
    exact = tolerance.factor == 0
    error = tolerance.factor * float(compute.eps) * np.asarray(scale, np.float64)
    if not exact:
        error = error + float(compute.smallest_normal)
        if storage.bits < 32:
            # One rounding, and the spacing of the subnormals.
            error = error + 0.5 * float(storage.eps) * magnitude
            error = error + float(storage.smallest_subnormal)
    return np.broadcast_to(error, expected.shape)


def assert_close(
    actual: ArrayLike,
    expected: ArrayLike,
    dtype: str,
    op: str,
    scale: ArrayLike | None = None,
) -> None:
    """Fail unless every element of ``actual`` is within the op's tolerance of ``expected``.

    Parameters
    ----------
    actual : array
        The result, in any dtype (``backend.numpy(y)``).
    expected : array of float64
        The oracle's.
    dtype : str
        Dtype of the result on the device.
    op : str
        Row of ``TOLERANCES``.
    scale : array, optional
        Magnitude of what each element was computed from, broadcast against ``expected``.
    """
    actual, expected = float64(actual), float64(expected)
    assert actual.shape == expected.shape, f"{op}: shape {actual.shape}, expected {expected.shape}"
    with np.errstate(over="ignore", invalid="ignore"):
        # What lies beyond the dtype's range is an infinity there.
        in_dtype = float64(rounded(expected, dtype))
        expected = np.where(np.isinf(in_dtype), in_dtype, expected)
        error = np.abs(actual - expected)
        allowed = allowed_error(expected, dtype, op, scale)
        good = np.isfinite(expected) & (error <= allowed)
        good |= (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    if good.all():
        return
    bad = np.argwhere(~good)
    lines = [
        f"{op}, {dtype}: {len(bad)} of {good.size} elements differ from the oracle",
        *(
            f"  {list(map(int, i))}: {actual[tuple(i)]!r}, expected {expected[tuple(i)]!r}, "
            f"error {error[tuple(i)]:.3g}, allowed {allowed[tuple(i)]:.3g}"
            for i in bad[:5]
        ),
    ]
    raise AssertionError("\n".join(lines))


def numerical_gradient(
    function: Callable[..., NDArray], inputs: Sequence[NDArray], index: int, dy: ArrayLike
) -> NDArray[np.float64]:
    """Central differences of ``sum(function(*inputs) * dy)`` in ``inputs[index]``."""
    inputs = [float64(x) for x in inputs]
    x = inputs[index] = inputs[index].copy()
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        middle, step = x[i], 1e-5 * max(1.0, abs(x[i]))
        sides = []
        for x[i] in (middle + step, middle - step):
            sides.append(np.sum(float64(function(*inputs)) * dy))
        x[i] = middle
        gradient[i] = (sides[0] - sides[1]) / (2 * step)
    return gradient


def assert_grad(
    function: Callable[..., NDArray],
    inputs: Sequence[NDArray],
    dy: ArrayLike,
    gradients: Sequence[ArrayLike | None],
    rtol: float = 1e-6,
) -> None:
    """Compare ``gradients`` of float64 ``inputs`` with central differences of ``function``.

    ``None`` in place of a gradient leaves that input out. Every element of the input costs two
    evaluations: keep shapes small, and values away from kinks.
    """
    for index, gradient in enumerate(gradients):
        if gradient is None:
            continue
        expected = numerical_gradient(function, inputs, index, dy)
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        np.testing.assert_allclose(
            float64(gradient), expected, rtol=0, atol=rtol * scale, err_msg=f"input {index}"
        )
