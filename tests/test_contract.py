"""What every op promises, tested for each row of ops_table.py."""

from __future__ import annotations

import inspect
from contextlib import nullcontext

import numpy as np
import pytest
from backends import LAYOUTS, get_backend
from ops_table import NOT_OPS, OPS, lists_of
from oracle import FLOATS, float64

import dlkern
from dlkern import _frameworks

each_op = pytest.mark.parametrize("op", OPS, ids=str)


def bits(array):
    """Bytes of a result, so that NaN equals itself and 0 differs from -0."""
    return np.ascontiguousarray(array).tobytes()


def outputs_of(op, backend, dtype="float32", layout="contiguous"):
    return {
        keyword: backend.empty(shape, kind, layout)
        for keyword, (shape, kind) in op.output_specs(dtype).items()
    }


def run(op, backend, dtype="float32", layout="contiguous", out_layout="contiguous"):
    """The op through ``out=``; its results as NumPy arrays of their own dtype."""
    arrays = {name: backend.array(a, layout) for name, a in op.make(dtype).items()}
    results = op.call(arrays, outputs_of(op, backend, dtype, out_layout))
    return [backend.raw(r) for r in results]


# ---- The table -----------------------------------------------------------------------------


def test_every_public_function_is_in_the_table():
    assert {op.name for op in OPS} == set(dlkern.__all__) - NOT_OPS


@each_op
def test_the_row_names_parameters_of_the_function(op):
    parameters = inspect.signature(op.function).parameters
    outputs = lists_of(op.outputs)
    assert {*op.arguments(op.arrays), *outputs, "stream"} <= set(parameters)
    assert parameters["stream"].kind is inspect.Parameter.KEYWORD_ONLY
    assert all(parameters[o].kind is inspect.Parameter.KEYWORD_ONLY for o in outputs)


# ---- Results -------------------------------------------------------------------------------


@each_op
@pytest.mark.parametrize("dtype", FLOATS)
def test_out_and_a_new_array_hold_the_same_bits(backend, op, dtype):
    given = run(op, backend, dtype)
    arrays = {name: backend.array(a) for name, a in op.make(dtype).items()}
    made = [backend.raw(r) for r in op.call(arrays)]
    assert [bits(r) for r in made] == [bits(r) for r in given]
    specs = op.output_specs(dtype).values()
    assert [(r.shape, r.dtype.name) for r in made][: len(specs)] == list(specs)


@each_op
@pytest.mark.sanitize
def test_every_element_of_out_is_written(backend, op):
    """Outputs start as NaN, and these inputs give none."""
    for result in run(op, backend):
        assert np.isfinite(float64(result)).all()


@each_op
@pytest.mark.sanitize
def test_layouts_of_inputs_and_outputs(backend, op):
    """EDGE 21: strides and alignment change the way to the values, not the values."""
    expected = run(op, backend, "float64")
    for layout in LAYOUTS:
        for results in (
            run(op, backend, "float64", layout),
            run(op, backend, "float64", "contiguous", layout),
        ):
            for result, value in zip(results, expected, strict=True):
                np.testing.assert_allclose(result, value, rtol=1e-11, atol=1e-12, err_msg=layout)


@each_op
@pytest.mark.gpu
def test_gpu_agrees_with_cpu(gpu, op):
    for on_gpu, on_cpu in zip(
        run(op, gpu, "float64"), run(op, get_backend("cpu"), "float64"), strict=True
    ):
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-11, atol=1e-12)


@each_op
def test_edge_10_inputs_are_untouched(backend, op):
    arrays = {name: backend.array(a) for name, a in op.make().items()}
    op.call(arrays, outputs_of(op, backend))
    for name, before in op.make().items():
        if name not in op.inout:
            assert bits(backend.raw(arrays[name])) == bits(before), name


@each_op
def test_same_bits_every_time(backend, op):
    first = [bits(r) for r in run(op, backend)]
    for _ in range(19):
        assert [bits(r) for r in run(op, backend)] == first


@each_op
def test_bits_do_not_depend_on_the_number_of_threads(op):
    backend, before = get_backend("cpu"), dlkern.get_num_threads()
    try:
        seen = set()
        for n in (1, 2, 3, 7):
            dlkern.set_num_threads(n)
            seen.add(tuple(bits(r) for r in run(op, backend)))
        assert len(seen) == 1
    finally:
        dlkern.set_num_threads(before)


# ---- Frameworks ----------------------------------------------------------------------------


def in_64_bits(framework):
    """A block in which JAX has arrays of 64 bits; other tests are of what it does by default."""
    return pytest.importorskip("jax").enable_x64(True) if framework == "jax" else nullcontext()


def to_framework(name, array, gpu):
    if name == "torch":
        torch = pytest.importorskip("torch")
        name = array.dtype.name
        if array.dtype.isbuiltin == 1:
            array = torch.from_numpy(array)
        else:  # a type of ml_dtypes
            integers = np.int16 if array.itemsize == 2 else np.uint8
            array = torch.from_numpy(array.view(integers)).view(getattr(torch, name))
        return array.cuda() if gpu else array
    if name == "jax":
        jax = pytest.importorskip("jax")
        if gpu and jax.default_backend() != "gpu":
            pytest.skip("this jax has no GPU backend")
        return jax.device_put(array, jax.devices("gpu" if gpu else "cpu")[0])
    if name == "tensorflow":
        return pytest.importorskip("tensorflow").constant(array)
    if name == "cupy":
        cupy = pytest.importorskip("cupy")
        if "float8" in array.dtype.name:
            pytest.skip("CuPy has no float8 arrays")
        return cupy.asarray(array)
    return array


def raw(framework, array):
    if framework == "torch":
        torch = pytest.importorskip("torch")
        array = array.cpu()
        if array.dtype == torch.bfloat16:
            return array.view(torch.int16).numpy()
        return array.numpy()
    if framework == "cupy":
        return array.get()
    if framework == "tensorflow":
        return np.asarray(array.numpy())
    return np.asarray(array)


@each_op
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("framework", ["torch", "jax", "tensorflow"])
def test_frameworks_give_the_same_bits(op, framework, dtype):
    if framework in ("jax", "tensorflow") and op.inout:
        pytest.skip("arrays of JAX and TensorFlow are never written")
    values = op.make(dtype)
    expected = [bits(r) for r in op.call(op.make(dtype))]
    with in_64_bits(framework):
        arrays = {name: to_framework(framework, a.copy(), False) for name, a in values.items()}
        results = op.call(arrays)
        assert all(type(r) is type(next(iter(arrays.values()))) for r in results)
        assert [bits(raw(framework, r)) for r in results] == expected


# ---- out= ----------------------------------------------------------------------------------


@each_op
def test_out_is_returned_itself(backend, op):
    arrays = {name: backend.array(a) for name, a in op.make().items()}
    outputs = outputs_of(op, backend)
    addresses = [backend.address(o) for o in outputs.values()]
    results = op.call(arrays, outputs)
    for result, output, address in zip(results, outputs.values(), addresses, strict=False):
        assert result is output
        assert backend.address(output) == address


@each_op
def test_numpy_allocates_nothing_when_out_is_given(op, monkeypatch):
    backend = get_backend("cpu")

    def refuse(*_):
        raise AssertionError("an allocation")

    monkeypatch.setattr(_frameworks, "numpy_empty", refuse)
    run(op, backend)
    if op.outputs:
        with pytest.raises(AssertionError, match="an allocation"):
            op.call(op.make())


@each_op
def test_torch_allocates_nothing_when_out_is_given(op):
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen = []
    arrays = {name: to_framework("torch", a, False) for name, a in op.make().items()}
    outputs = {
        k: torch.empty(shape, dtype=getattr(torch, kind))
        for k, (shape, kind) in op.output_specs().items()
    }
    with Recorded():
        op.call(arrays, outputs)
        assert seen == []
        if op.outputs:
            op.call(arrays)
            assert seen != []


@each_op
def test_explain_names_an_implementation(backend, op):
    arrays = {name: backend.array(a) for name, a in op.make().items()}
    outputs = outputs_of(op, backend)
    before = {k: bits(backend.raw(o)) for k, o in outputs.items()}
    plans = dlkern.explain(op.function, **op.arguments(arrays, outputs))
    assert plans
    assert all(plan.implementation for plan in plans)
    assert {k: bits(backend.raw(o)) for k, o in outputs.items()} == before, "it was run"
