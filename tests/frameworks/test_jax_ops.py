"""dlkern.jax: each op of ops_table.py computes what the plain function does, transformed too."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from backends import get_backend, gpu_name
from jax.test_util import check_grads
from ops_table import OPS
from oracle import FLOATS

import dlkern
import dlkern.jax as dkj


@pytest.fixture(autouse=True)
def in_64_bits_on_the_cpu():
    """``jax_device`` changes the device."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


def ids(op):
    return str(op)


def row_of(op):
    return dkj.FUNCTIONS[op.name].row


def run(op, arrays):
    """Its results as a flat list."""
    return jax.tree.leaves(getattr(dkj, op.name)(**op.arguments(arrays)))


def plain(op, arrays, device):
    backend = get_backend("cpu" if device.platform == "cpu" else gpu_name())
    results = op.call({name: backend.array(a) for name, a in arrays.items()})
    return [backend.raw(r) for r in jax.tree.leaves(list(results))]


def assert_same_bits(got, expected):
    assert [(g.dtype, g.shape) for g in got] == [(e.dtype, e.shape) for e in expected]
    assert [np.asarray(g).tobytes() for g in got] == [e.tobytes() for e in expected]


def test_every_op_is_there():
    assert {op.name for op in OPS} == set(dkj.__all__)


@pytest.mark.parametrize("op", OPS, ids=ids)
def test_same_bits_as_the_plain_function(op, jax_device):
    arrays = op.make("float32")
    assert_same_bits(run(op, arrays), plain(op, arrays, jax_device))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [op for op in OPS if str(op) in ("softmax", "linear")], ids=ids)
def test_dtypes(op, dtype, jax_device):
    arrays = op.make(dtype)
    assert_same_bits(run(op, arrays), plain(op, arrays, jax_device))


@pytest.mark.parametrize("shape", [(0, 5), (5, 1), (1,)])
def test_empty_and_small(shape, jax_device):
    x = np.ones(shape, "float32")
    np.testing.assert_allclose(dkj.softmax(x), dlkern.softmax(x), rtol=1e-6)
    assert_same_bits([jax.jit(dkj.relu)(x)], [dlkern.relu(x)])


# ---- Derivatives ---------------------------------------------------------------------------------


def is_float(array):
    return jnp.issubdtype(array.dtype, jnp.floating)


# Of few digits, of no floating-point argument, or a second derivative of an activation.
NOT_BY_DIFFERENCES = {
    "cast", "grouped_matmul-float8", "grouped_matmul-int8-depth",
    "linear_backward_input-activation", "batch_norm_training-stats",
}  # fmt: skip
WITH_GRADIENT = [
    op for op in OPS if row_of(op).gradient is not None and str(op) not in NOT_BY_DIFFERENCES
]


def differentiable(op, arrays):
    constants = row_of(op).constants
    return {n: jnp.asarray(a) for n, a in arrays.items() if is_float(a) and n not in constants}


@pytest.mark.parametrize("op", WITH_GRADIENT, ids=ids)
def test_gradient(op, jax_device):
    """By finite differences, of the first result; the others are statistics and indices."""
    arrays = op.make("float64")
    by = differentiable(op, arrays)
    check_grads(
        lambda by: run(op, {**arrays, **by})[0], (by,), order=1, modes=["rev"], eps=1e-6,
        atol=1e-5, rtol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("op", [op for op in OPS if row_of(op).constants], ids=ids)
def test_gradient_by_a_constant_is_refused(op):
    arrays = op.make("float64")
    for name in set(row_of(op).constants) & set(arrays):
        if is_float(arrays[name]):
            with pytest.raises(NotImplementedError, match=f"no derivative by {name}: pass it"):
                jax.grad(lambda v, n=name: run(op, {**arrays, n: v})[0].sum())(
                    jnp.asarray(arrays[name])
                )
    if str(op) not in NOT_BY_DIFFERENCES:  # and after that all goes on
        by = differentiable(op, arrays)
        jax.grad(lambda by: run(op, {**arrays, **by})[0].sum())(by)


def test_gradient_of_a_list():
    x = [jnp.ones((2, 4, 3, 8)), jnp.ones((2, 4, 1, 8))]
    gradient = jax.grad(lambda x: sum(y.sum() for y in dkj.rope(x)))(x)
    expected = dlkern.rope_backward([np.ones(a.shape) for a in x])
    assert isinstance(gradient, list)
    assert_same_bits(gradient, expected)


def test_both_results_of_linear_have_a_gradient():
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((3, 4)), rng.standard_normal((5, 4))

    def both(x, weight):
        y, before = dkj.linear(x, weight, activation="gelu", preactivation=True)
        return y * before

    check_grads(both, (x, weight), order=1, modes=["rev"], rtol=1e-5)


@pytest.mark.parametrize("activation", [None, "relu"])
def test_gradient_of_a_sum_with_a_residual(activation):
    rng = np.random.default_rng(0)
    x, residual = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))

    def both(x, residual):
        y, added = dkj.layer_norm(x, residual=residual)
        return y * (added if activation is None else dkj.relu(added))

    check_grads(both, (x, residual), order=1, modes=["rev"], rtol=1e-5)


def test_only_what_is_needed_is_computed_and_saved():
    x, weight, bias = jnp.ones((3, 4)), jnp.ones((5, 4)), jnp.ones(5)

    def calls(by):
        gradient = jax.jit(jax.grad(lambda *a: dkj.linear(*a).sum(), by))
        text = gradient.lower(x, weight, bias).compile().as_text()
        return set(re.findall(r'custom_call_target="dlk_(\w+)"', text))

    assert calls(0) == {"linear_backward_input"}
    assert calls((1, 2)) == {"linear_backward_weight"}
    _, pullback = jax.vjp(dkj.softmax, x)
    assert [a.shape for a in jax.tree.leaves(pullback)] == [(3, 4)]  # y, and not x
    _, pullback = jax.vjp(lambda x: dkj.max_pool(x, 2), jnp.ones((1, 1, 4, 4)))
    assert [(a.shape, a.dtype.name) for a in jax.tree.leaves(pullback)] == [((1, 1, 2, 2), "uint8")]


def test_one_program_differentiated_in_several_ways():
    """JAX traces it once and mixes up what depends on the arguments that are differentiated by."""
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(shape) for shape in ((3, 4), (5, 4), (5,))]

    @jax.jit
    def loss(x, weight, bias):
        return (dkj.linear(x, weight, bias, activation="gelu") ** 2).sum()

    expected = jax.grad(loss, (0, 1, 2))(*arguments)
    for by in ((0,), (1, 2), (2,), (0, 1, 2), (1,), (0,)):
        for got, i in zip(jax.grad(loss, by)(*arguments), by, strict=True):
            np.testing.assert_allclose(got, expected[i], rtol=1e-12)
    some = [
        jax.vjp(lambda *a, by=by: loss(*(a[by.index(i)] if i in by else arguments[i]
                                         for i in range(3))), *(arguments[i] for i in by))[1]
        for by in ((0,), (1, 2), (0, 1, 2))
    ]  # fmt: skip
    for pullback, by in zip(some, ((0,), (1, 2), (0, 1, 2)), strict=True):
        for got, i in zip(pullback(1.0), by, strict=True):
            np.testing.assert_allclose(got, expected[i], rtol=1e-12)


SECOND = (
    "add", "matmul", "linear_backward_input", "linear_backward_weight", "conv-NHWC",
    "conv_transpose", "avg_pool", "adaptive_avg_pool", "sum", "mean", "dropout", "rope", "permute",
)  # fmt: skip


@pytest.mark.parametrize("op", [op for op in OPS if str(op) in SECOND], ids=ids)
def test_second_derivatives_where_they_are_ops_again(op):
    arrays = op.make("float64")
    by = differentiable(op, arrays)
    check_grads(
        lambda by: run(op, {**arrays, **by})[0] ** 2, (by,), order=2, modes=["rev"], eps=1e-5,
        atol=1e-3, rtol=1e-3,
    )  # fmt: skip


def test_other_derivatives_are_refused():
    x = jnp.ones((3, 4))
    with pytest.raises(NotImplementedError, match=r"softmax_backward has no derivative"):
        jax.grad(lambda x: jax.grad(lambda x: dkj.softmax(x)[0, 0])(x).sum())(x)
    with pytest.raises(NotImplementedError, match=r"dlkern\.jax\.sgd_step has no derivative"):
        jax.grad(lambda x: dkj.sgd_step(x, x, lr=0.1).sum())(x)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(dkj.relu, (x,), (x,))


def test_integer_results_are_constants():
    x = jnp.arange(6.0).reshape(2, 3)
    gradient = jax.grad(lambda x: (x[0, 0] * dkj.argmax(x, 1)).sum())(x)
    np.testing.assert_array_equal(gradient, [[4, 0, 0], [0, 0, 0]])
    assert dkj.top_k(x, 2)[1].dtype == jnp.int64
    assert jax.grad(lambda x: dkj.top_k(x, 2)[0].sum())(x).tolist() == [[0, 1, 1], [0, 1, 1]]


# ---- Batches -------------------------------------------------------------------------------------


def batches():
    """Each op with a rule, of its first array and of all; and some without one."""
    for op in OPS:
        names = list(op.arrays)
        if op.name in dkj.BATCHES:
            yield op, names[:1]
        if op.name in ("add", "softmax", "swiglu", "matmul", "linear", "mse_loss", "dropout",
                       "sgd_step", "layer_norm_backward", "concat") and len(names) > 1:  # fmt: skip
            yield op, names


@pytest.mark.parametrize(
    ("op", "batched"),
    list(batches()),
    ids=lambda v: "all" if isinstance(v, list) and v[1:] else str(v),
)
def test_vmap(op, batched):
    items = [op.make("float64", seed) for seed in (1, 2)]
    fixed = {n: jnp.asarray(a) for n, a in items[0].items() if n not in batched}
    batch = {n: jnp.stack([item[n] for item in items]) for n in batched}
    got = jax.vmap(lambda batch: run(op, {**op.make("float64"), **fixed, **batch}))(batch)
    each = [run(op, {**op.make("float64"), **fixed, **{n: i[n] for n in batched}}) for i in items]
    for result, *expected in zip(got, *each, strict=True):
        np.testing.assert_allclose(
            np.asarray(result, float), np.stack(expected).astype(float), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (dkj.gelu, (3,)),
        (dkj.softmax, (2, 3)),
        (lambda x: dkj.softmax(x, 0), (2, 3)),
        (lambda x: dkj.sum(x, (0, -1)), (2, 3, 4)),
        (lambda x: dkj.layer_norm(x, jnp.ones(3)), (2, 3)),
        (lambda x: dkj.linear(x, jnp.ones((2, 3)), activation="silu"), (4, 3)),
        (lambda x: dkj.matmul(x, jnp.ones((5, 3, 2))), (4, 3)),
        (lambda x: dkj.max_pool(x, 2), (1, 2, 4, 4)),
        (lambda x: dkj.conv(x, jnp.ones((3, 2, 2, 2))), (1, 2, 4, 4)),
    ],
)
def test_a_batch_is_one_call(function, shape):
    text = str(jax.make_jaxpr(jax.vmap(function))(jnp.ones((7, *shape))))
    assert text.count("ffi_call[") == 1
    assert "scan[" not in text
    text = str(jax.make_jaxpr(jax.vmap(jax.vmap(function)))(jnp.ones((2, 7, *shape))))
    assert text.count("ffi_call[") == 1
    assert "scan[" not in text


def test_gradients_of_each_example():
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((5, 3, 4)), rng.standard_normal((2, 4))

    def loss(weight, x):
        return dkj.logsumexp(dkj.linear(dkj.gelu(x), weight)).sum()

    gradients = jax.vmap(jax.grad(loss), (None, 0))(weight, x)
    expected = np.stack([jax.grad(loss)(weight, item) for item in x])
    np.testing.assert_allclose(gradients, expected, rtol=1e-12)
