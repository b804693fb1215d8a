"""dlkern.tensorflow: each op of ops_table.py computes what the plain function does, with gradients.

All of it twice: eagerly, and in a graph.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops_table import OPS
from oracle import FLOATS

import dlkern
import dlkern.tensorflow as dktf

OPS = [op for op in OPS if "float8" not in str(op)]  # which TensorFlow does not export


def ids(op):
    return str(op)


def row_of(name):
    return getattr(dktf.TensorFlowFunction.ops, name).row


def flat(results):
    """Tensors, or what stands for them, as a list."""
    return [r for r in tf.nest.flatten(results) if r is not None]


def run(op, arrays):
    return flat(getattr(dktf, op.name)(**op.arguments(arrays)))


def plain(op, arrays):
    return flat(list(op.call({n: a.copy() for n, a in arrays.items()})))


@pytest.fixture(params=["eager", "graph"])
def mode(request):
    """Wraps a function of tensors."""
    return (lambda f: f) if request.param == "eager" else tf.function


def without_subnormals(array):
    """TensorFlow's threads, which run graphs, take them for zero."""
    if array.dtype.kind in "iub":
        return array
    tiny = np.finfo(array.dtype).tiny if array.dtype.kind == "f" else 1e-38
    return np.where(np.abs(array.astype("float64")) < tiny, 0, array).astype(array.dtype)


def assert_same_bits(got, expected):
    got = [g.numpy() for g in got]
    assert [(g.dtype, g.shape) for g in got] == [(e.dtype, e.shape) for e in expected]
    for g, e in zip(got, expected, strict=True):
        assert without_subnormals(g).tobytes() == without_subnormals(e).tobytes()


def test_every_op_is_there():
    assert {op.name for op in OPS} == set(dktf.__all__)


@pytest.mark.parametrize("op", OPS, ids=ids)
def test_same_bits_as_the_plain_function(op, mode):
    arrays = op.make("float32")
    results = mode(lambda given: run(op, given))({n: tf.constant(a) for n, a in arrays.items()})
    assert_same_bits(results, plain(op, arrays))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [op for op in OPS if str(op) in ("softmax", "linear")], ids=ids)
def test_dtypes(op, dtype, mode):
    arrays = op.make(dtype)
    results = mode(lambda given: run(op, given))({n: tf.constant(a) for n, a in arrays.items()})
    assert_same_bits(results, plain(op, arrays))


# ---- Derivatives ---------------------------------------------------------------------------------

# Of few digits, of no floating-point argument, or a second derivative of an activation.
NOT_BY_DIFFERENCES = {
    "cast", "grouped_matmul-int8-depth", "linear_backward_input-activation",
    "batch_norm_training-stats",
}  # fmt: skip
WITH_GRADIENT = [
    op for op in OPS if row_of(op.name).gradient is not None and str(op) not in NOT_BY_DIFFERENCES
]


def differentiable(op, arrays):
    constants = row_of(op.name).constants
    return {
        n: tf.constant(a)
        for n, a in arrays.items()
        if a.dtype.kind == "f" and n.partition("[")[0] not in constants
    }


def check_gradient(function, by, order=1):
    """Of the sum of the results with random weights, in a random direction."""
    rng = np.random.default_rng(5)
    weights: list = []

    def value(by):
        results = function(by)
        if not weights:
            weights.extend(tf.constant(rng.standard_normal(r.shape)) for r in results)
        return sum(tf.reduce_sum(w * r) for w, r in zip(weights, results, strict=True))

    directions = {n: tf.constant(rng.standard_normal(b.shape)) for n, b in by.items()}
    eps = 1e-6

    def derivative(by):
        with tf.GradientTape() as tape:
            tape.watch(by)
            loss = value(by)
        gradients = tape.gradient(loss, by)
        assert {n: (g.shape, g.dtype) for n, g in gradients.items()} == {
            n: (b.shape, b.dtype) for n, b in by.items()
        }
        return [sum(tf.reduce_sum(gradients[n] * directions[n]) for n in by)]

    ahead, behind = (
        value({n: b + sign * eps * directions[n] for n, b in by.items()}) for sign in (1, -1)
    )
    got, expected = derivative(by)[0].numpy(), ((ahead - behind) / (2 * eps)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    if order > 1:
        check_gradient(derivative, by, order - 1)


@pytest.mark.parametrize("op", WITH_GRADIENT, ids=ids)
def test_gradient(op, mode):
    """By finite differences, of the first result; the others are statistics and indices."""
    arrays = op.make("float64")
    check_gradient(mode(lambda by: run(op, {**arrays, **by})[:1]), differentiable(op, arrays))


@pytest.mark.parametrize(
    "op", [op for op in OPS if set(row_of(op.name).constants) & set(op.arrays)], ids=ids
)
def test_gradient_by_a_constant_is_refused(op):
    arrays = op.make("float64")
    for name in set(row_of(op.name).constants) & set(arrays):
        if arrays[name].dtype.kind != "f":
            continue
        with tf.GradientTape() as tape:
            value = tf.constant(arrays[name])
            tape.watch(value)
            result = run(op, {**arrays, name: value})[0]
        with pytest.raises(NotImplementedError, match=f"no derivative by {name}: pass it through"):
            tape.gradient(result, value)


def test_both_results_of_linear_have_a_gradient(mode):
    rng = np.random.default_rng(0)
    by = {"x": tf.constant(rng.standard_normal((3, 4))),
          "weight": tf.constant(rng.standard_normal((5, 4)))}  # fmt: skip
    check_gradient(
        mode(lambda by: list(dktf.linear(**by, activation="gelu", preactivation=True))), by
    )


@pytest.mark.parametrize("activation", [None, "relu"])
def test_gradient_of_a_sum_with_a_residual(activation, mode):
    rng = np.random.default_rng(0)
    by = {n: tf.constant(rng.standard_normal((3, 4))) for n in ("x", "residual")}

    def both(by):
        y, added = dktf.layer_norm(**by)
        return [y * (added if activation is None else dktf.relu(added))]

    check_gradient(mode(both), by)


def test_gradient_of_a_list(mode):
    rng = np.random.default_rng(0)
    by = {n: tf.constant(rng.standard_normal((2, 4, n, 8))) for n in (3, 1)}
    check_gradient(mode(lambda by: list(dktf.rope(list(by.values())))), by)


SECOND = (
    "add", "matmul", "linear_backward_input", "linear_backward_weight", "conv-NHWC",
    "conv_transpose", "avg_pool", "adaptive_avg_pool", "sum", "mean", "dropout", "rope", "permute",
)  # fmt: skip


@pytest.mark.parametrize("op", [op for op in OPS if str(op) in SECOND], ids=ids)
def test_second_derivatives_where_they_are_ops_again(op):
    arrays = op.make("float64")
    check_gradient(
        lambda by: [run(op, {**arrays, **by})[0] ** 2], differentiable(op, arrays), order=2
    )


@pytest.mark.parametrize("name", ["softmax", "gelu", "rms_norm"])
def test_other_second_derivatives_are_refused(name):
    x = tf.ones((3, 4))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = getattr(dktf, name)(x)
        dx = inner.gradient(y, x, output_gradients=tf.ones_like(y))
    with pytest.raises(NotImplementedError, match=rf"{name}_backward has no derivative: a second"):
        outer.gradient(dx, x)


def test_an_op_without_derivative():
    x = tf.ones((3, 4))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = dktf.sgd_step(x, x, lr=0.1)
    with pytest.raises(NotImplementedError, match=r"dlkern\.tensorflow\.sgd_step has no"):
        tape.gradient(y, x)


def test_integer_results_are_constants(mode):
    @mode
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x[0, 0] * tf.cast(dktf.argmax(x, 1), x.dtype))
        return tape.gradient(loss, x)

    x = tf.reshape(tf.range(6.0), (2, 3))
    np.testing.assert_array_equal(gradient(x), [[4, 0, 0], [0, 0, 0]])


def test_only_what_is_watched_is_computed(monkeypatch):
    called = []
    for name in ("linear_backward_input", "linear_backward_weight"):
        function = getattr(dktf.TensorFlowFunction.ops, name)
        monkeypatch.setattr(
            function,
            "plain",
            lambda *a, f=function.plain, **k: called.append(f.__name__) or f(*a, **k),
        )
    x, weight, bias = tf.ones((3, 4)), tf.Variable(tf.ones((5, 4))), tf.Variable(tf.ones(5))
    with tf.GradientTape() as tape:
        y = dktf.linear(x, weight, bias)
    tape.gradient(y, [weight, bias])
    assert called == ["linear_backward_weight"]
    called.clear()
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        y = dktf.linear(x, weight, bias)
    tape.gradient(y, x)
    assert called == ["linear_backward_input"]


def test_variables_are_updated_by_new_values(mode):
    param, momentum = tf.Variable(tf.ones(5)), tf.Variable(tf.zeros(5))

    @mode
    def step():
        new, new_momentum = dktf.sgd_step(param, tf.ones(5), momentum, lr=0.5, momentum=0.9)
        param.assign(new)
        momentum.assign(new_momentum)

    before = param.read_value()
    for _ in range(2):
        step()
    np.testing.assert_allclose(param, 1 - 0.5 * (1 + 1.9))
    np.testing.assert_allclose(momentum, 1.9)
    np.testing.assert_array_equal(before, 1)


def test_dropout_draws_from_the_generator_of_tensorflow(mode):
    draw = mode(lambda: dktf.dropout(tf.ones(1000)))
    masks = [draw().numpy() for _ in range(2)]
    assert (masks[0] != masks[1]).any()
    tf.random.set_seed(3)
    first = mode(lambda: dktf.dropout(tf.ones(1000)))()
    tf.random.set_seed(3)
    np.testing.assert_array_equal(mode(lambda: dktf.dropout(tf.ones(1000)))(), first)


# ---- Graphs --------------------------------------------------------------------------------------


def test_an_unknown_batch():
    """Of images through a network, forward and back."""
    rng = np.random.default_rng(0)
    filters, table = (tf.constant(rng.standard_normal(s)) for s in ((4, 3, 3, 2), (5, 36)))

    def loss(x, labels, known):
        y = dktf.max_pool(dktf.conv(x, filters, padding="same", layout="NHWC"), 2, layout="NHWC")
        if known is not None:
            assert y.shape.as_list() == [None, 3, 3, 4]
        y = dktf.linear(dktf.gelu(tf.reshape(y, (-1, 36))), table)
        return dktf.cross_entropy(dktf.layer_norm(y), labels)

    def gradient(x, labels, known=None):
        with tf.GradientTape() as tape:
            tape.watch([x, filters, table])
            value = loss(x, labels, known)
        return value, *tape.gradient(value, [x, filters, table])

    images = tf.TensorSpec((None, 6, 6, 2), tf.float64)
    graph = tf.function(
        lambda x, labels: gradient(x, labels, True),
        input_signature=[images, tf.TensorSpec((None,), tf.int64)],
    )
    for n in (1, 7):
        x, labels = tf.constant(rng.standard_normal((n, 6, 6, 2))), tf.constant([3] * n, tf.int64)
        for got, expected in zip(graph(x, labels), gradient(x, labels), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


def test_unknown_extents_that_contradict_known_ones():
    shapes = (tf.TensorSpec((None, None), tf.float32), tf.TensorSpec((3, 5), tf.float32))
    graph = tf.function(lambda x, weight: dktf.linear(x, weight), input_signature=shapes)
    with pytest.raises(ValueError, match=r"(?s)expected .3, 840.*ensure_shape"):
        graph.get_concrete_function()
    graph = tf.function(lambda x: dktf.gelu(x), input_signature=[tf.TensorSpec(None, tf.float32)])
    with pytest.raises(ValueError, match=r"gelu: x has an unknown rank"):
        graph.get_concrete_function()


def test_mistakes_are_found_when_the_graph_is_made():
    graph = tf.function(lambda x: dktf.softmax(x, axis=3))
    with pytest.raises(ValueError, match="softmax: axis is 3"):
        graph(tf.ones((2, 3)))


def test_gradient_of_a_loop_in_a_graph():
    weight = tf.constant(np.random.default_rng(0).standard_normal((4, 4)))

    def repeated(by):
        x = by["x"]
        for _ in tf.range(3):
            x = dktf.linear(x, weight, activation="tanh")
        return [x]

    check_gradient(tf.function(repeated), {"x": tf.ones((2, 4), tf.float64)})


def test_xla_is_refused():
    with pytest.raises(NotImplementedError, match="leave out jit_compile=True"):
        tf.function(dktf.relu, jit_compile=True)(tf.ones(3))


def test_a_data_set():
    """Whose functions run on threads of TensorFlow's own."""
    rows = tf.data.Dataset.from_tensor_slices(tf.reshape(tf.range(24.0), (8, 3)))
    results = list(rows.map(dktf.softmax, num_parallel_calls=2))
    expected = dlkern.softmax(np.arange(24, dtype="float32").reshape(8, 3))
    np.testing.assert_array_equal(results, expected)


@pytest.mark.parametrize("graph", [False, True])
def test_gradient_of_a_batch_norm_with_a_convolution_s_statistics(graph):
    """They count as constants, and follow the image as those do that batch norm finds itself."""
    rng = np.random.default_rng(4)
    x, w, dy = (
        tf.constant(rng.standard_normal(s)) for s in ((2, 5, 5, 4), (8, 3, 3, 4), (2, 5, 5, 8))
    )
    options = {"padding": 1, "layout": "NHWC"}

    def gradients(x, w, own):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y, *stats = dktf.conv_bias_act(x, w, return_stats=True, **options)
            if own:
                y, stats = dktf.conv(x, w, **options), None
            z = dktf.batch_norm_training(y, stats=stats, layout="NHWC")[0]
            loss = tf.reduce_sum(z * dy)
        return tape.gradient(loss, [x, w])

    given = tf.function(gradients) if graph else gradients
    for a, b in zip(given(x, w, False), gradients(x, w, True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
