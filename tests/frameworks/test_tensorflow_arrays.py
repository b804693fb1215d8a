"""Eager tensors of TensorFlow in the plain functions, and what importing dlkern does not do."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import dlkern
import dlkern.tensorflow as dktf

FUNCTIONS = [dlkern.relu, dktf.relu]


def test_importing_dlkern_imports_no_framework():
    check = "import sys, dlkern; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", check], check=True, timeout=60)


@pytest.mark.parametrize("function", FUNCTIONS, ids=["plain", "dlkern.tensorflow"])
@pytest.mark.parametrize(
    "x",
    [
        tf.range(10.0)[::2],
        tf.range(10.0)[::-2],
        tf.transpose(tf.reshape(tf.range(12.0), (3, 4))),
        tf.zeros((1, 8, 0, 128)),
        tf.zeros((0,)),
        tf.constant(-3.0),
        tf.reshape(tf.range(77.0), (1, 77)),
        tf.cast(tf.range(-3, 9), tf.float16)[1:],
        tf.cast(tf.range(-3, 9), tf.bfloat16)[1:],
    ],
    ids=str,
)
def test_elements_are_those_of_the_tensor(function, x):
    y = function(x)
    assert isinstance(y, tf.Tensor)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, np.maximum(x.numpy(), 0))


def test_a_capsule_is_used_once():
    capsule = tf.experimental.dlpack.to_dlpack(tf.constant([-1.0, 2.0]))
    dlkern.relu(capsule, out=np.empty(2, "float32"))
    with pytest.raises(ValueError, match="relu: x"):
        dlkern.relu(capsule, out=np.empty(2, "float32"))


@pytest.mark.parametrize(
    ("x", "name"),
    [
        (tf.constant([1 + 2j]), "complex128"),
        (tf.constant(["text"]), "string"),
        (tf.constant([1, 2]), "int32"),
        (tf.cast(tf.constant([1.0]), tf.dtypes.experimental.float8_e4m3fn), "float8_e4m3fn"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
@pytest.mark.parametrize("function", FUNCTIONS, ids=["plain", "dlkern.tensorflow"])
def test_dtypes_that_nothing_takes_are_named(function, x, name):
    with pytest.raises(TypeError, match=f"(?i)relu: x.*{name}"):
        function(x)


def test_tensors_are_not_written():
    x = tf.constant([-1.0, 2.0])
    with pytest.raises(ValueError, match="out is read-only"):
        dlkern.relu(x, out=x)
    np.testing.assert_array_equal(x, [-1, 2])


def test_the_plain_functions_refuse_what_would_lose_its_gradient():
    x = tf.constant([-1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(ValueError, match=r"x is watched.*use dlkern\.tensorflow"):
            dlkern.relu(x)
        dlkern.relu(tf.stop_gradient(x))
    with pytest.raises(TypeError, match=r"not an eager tensor: in a tf\.function use dlkern"):
        tf.function(lambda x: dlkern.relu(x), autograph=False)(x)
    with pytest.raises(TypeError, match="of a variable pass its value"):
        dlkern.relu(tf.Variable(x))


def test_mistakes_name_the_argument():
    with pytest.raises(TypeError, match=r"dlkern\.tensorflow\.relu: missing a required argument"):
        dktf.relu()
    with pytest.raises(TypeError, match=r"softmax: no argument is a TensorFlow tensor"):
        dktf.softmax([1.0])
    with pytest.raises(ValueError, match=r"softmax: axis is 3"):
        dktf.softmax(tf.ones((2, 3)), 3)


def test_results_outlive_what_they_were_made_of():
    results = [dktf.relu(tf.range(float(n))) for n in range(1, 200)]
    gc.collect()
    assert all(float(tf.reduce_sum(y)) == n * (n - 1) / 2 for n, y in enumerate(results, 1))
