"""Wrong arguments, for each row of ops_table.py: an exception that names one, nothing written."""

from __future__ import annotations

import re

import numpy as np
import pytest
from backends import get_backend
from ops_table import OPS
from producer import CUDA, Producer
from test_contract import bits, each_op

import dlkern


def names_an_argument(op):
    """What a message must begin with: the op and one of its arguments."""
    names = "|".join(map(re.escape, [*op.arrays, *op.outputs, *op.options]))
    return rf"^\w+: ({names})(\W|$)"


def zeros(op):
    """The op's outputs."""
    return {k: np.zeros(shape, kind) for k, (shape, kind) in op.output_specs().items()}


def changed(op, backend, name, change):
    """Arguments and outputs with one array put through ``change``."""
    arrays, made = op.make(), zeros(op)
    everything = arrays | made
    everything[name] = change(everything[name])
    on_device = {
        k: v if isinstance(v, (str, Producer)) else backend.array(v) for k, v in everything.items()
    }
    return {k: on_device[k] for k in arrays}, {k: on_device[k] for k in made}


cases = [(op, name) for op in OPS for name in (*op.arrays, *op.outputs)]
each_argument = pytest.mark.parametrize(
    ("op", "name"), cases, ids=[f"{op}-{name}" for op, name in cases]
)


@each_argument
def test_wrong_dtype(backend, op, name):
    arrays = op.make() | zeros(op)
    other = "int32" if np.asarray(arrays[name]).dtype == bool else "bool"
    for dtype in ("complex64", other)[: 1 if name in op.any_dtype else 2]:
        with pytest.raises(TypeError, match=names_an_argument(op)):
            op.call(*changed(op, backend, name, lambda a, d=dtype: a.astype(d)))


@each_argument
def test_edge_25_message_names_the_dtype(backend, op, name):
    with pytest.raises(TypeError, match="complex64"):
        op.call(*changed(op, backend, name, lambda a: a.astype(np.complex64)))


@each_argument
def test_wrong_shape(backend, op, name):
    """One more element along each axis, and one axis more."""

    def longer(array, axis):
        shape = list(array.shape)
        shape[axis] += 1
        return np.zeros(shape, array.dtype)

    rank, free = (op.make() | zeros(op))[name].ndim, op.free_axes.get(name, ())
    changes = [lambda a, axis=axis: longer(a, axis) for axis in range(rank) if axis not in free]
    if name not in op.any_rank:
        changes.append(lambda a: np.zeros((3, *a.shape), a.dtype))
    for change in changes:
        with pytest.raises(ValueError, match=names_an_argument(op)):
            op.call(*changed(op, backend, name, change))


@each_argument
def test_not_an_array(backend, op, name):
    with pytest.raises(TypeError, match=rf"^\w+: {re.escape(name)} is (str|'text'), expected an "):
        op.call(*changed(op, backend, name, lambda a: "text"))


@each_argument
def test_another_device(op, name):
    def elsewhere(array):
        return Producer(4096, array.shape, None, array.dtype.name, (CUDA, 0))

    with pytest.raises((ValueError, NotImplementedError), match=names_an_argument(op)):
        op.call(*changed(op, get_backend("cpu"), name, elsewhere))


@each_op
def test_edge_25_read_only_output_is_refused(op):
    def read_only(array):
        array = array.copy()
        array.flags.writeable = False
        return array

    for name in (*op.outputs, *op.inout):
        arrays, outputs = op.make(), zeros(op)
        target = outputs if name in outputs else arrays
        target[name] = read_only(target[name])
        before = bits(target[name])
        with pytest.raises(ValueError, match=rf"^\w+: {re.escape(name)} is read-only"):
            op.call(arrays, outputs)
        assert bits(target[name]) == before


@each_op
def test_jax_array_is_never_written(op):
    jax = pytest.importorskip("jax")
    for name in (*op.outputs, *op.inout):
        arrays, outputs = op.make(), zeros(op)
        target = outputs if name in outputs else arrays
        target[name] = jax.numpy.asarray(target[name])
        with pytest.raises(ValueError, match=rf"^\w+: {re.escape(name)} is read-only"):
            op.call(arrays, outputs)


@each_op
def test_overlap_of_output_and_input(op):
    """An output that overlaps an input in part is refused, whatever the op allows exactly."""
    for keyword, (shape, kind) in op.output_specs().items():
        for name, array in op.make().items():
            size = max(array.nbytes, int(np.prod(shape)) * np.dtype(kind).itemsize)
            if not array.size or not np.prod(shape):
                continue
            memory = np.zeros(2 * size + 64, np.uint8)
            arrays = op.make()
            arrays[name] = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
            arrays[name][...] = array
            itemsize = np.dtype(kind).itemsize
            stop = itemsize * (1 + int(np.prod(shape)))
            outputs = zeros(op)
            outputs[keyword] = memory[itemsize:stop].view(kind).reshape(shape)
            if array.nbytes <= itemsize:
                continue
            with pytest.raises(ValueError, match=r"overlap"):
                op.call(arrays, outputs)


def test_messages_are_of_one_form():
    with pytest.raises(TypeError) as error:
        dlkern.softmax(np.zeros(3, np.int32))
    assert re.fullmatch(r"softmax: x\.dtype is int32, expected .*", str(error.value))


@pytest.mark.parametrize("bias", ["no", np.ones(1), 1])
def test_bias_of_a_gradient_is_a_flag(bias):
    """A truth value of whatever is given would pass for a bias that was not meant."""
    x, c = np.ones((4, 1)), np.ones(1)
    if not isinstance(bias, np.ndarray):  # batch norm takes the bias itself
        with pytest.raises(TypeError, match="batch_norm_backward: bias is .*, expected an array"):
            dlkern.batch_norm_backward(x, x, c, c, c, bias=bias)
    with pytest.raises(TypeError, match="layer_norm_backward: bias is .*, expected True, False"):
        dlkern.layer_norm_backward(x, x, c, np.ones(4), np.ones(4), bias=bias)
