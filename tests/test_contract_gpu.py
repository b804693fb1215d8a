"""What every op promises on a GPU: frameworks, streams, graphs, memory, threads."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from ops_table import OPS
from test_contract import bits, in_64_bits, outputs_of, raw, to_framework

import dlkern

pytestmark = pytest.mark.gpu

each_op = pytest.mark.parametrize("op", OPS, ids=str)


def upload(op, gpu, seed=1, dtype="float32"):
    return {name: gpu.array(a) for name, a in op.make(dtype, seed).items()}


def expected_bits(op, gpu, seed=1):
    results = op.call(upload(op, gpu, seed), outputs_of(op, gpu))
    return [bits(gpu.raw(r)) for r in results]


def refill(op, gpu, arrays, seed):
    """New values in the same memory, in order with the current stream."""
    for name, fresh in upload(op, gpu, seed).items():
        gpu.copy(arrays[name], fresh)


def workspace_bytes(op, arrays, outputs):
    plans = dlkern.explain(op.function, **op.arguments(arrays, outputs))
    return max(plan.workspace_bytes for plan in plans)


def workspace(op, gpu, arrays, outputs):
    """A block in which a call allocates no scratch memory."""
    size = workspace_bytes(op, arrays, outputs)
    return dlkern.workspace(gpu.empty((size,), "uint8")) if size else contextlib.nullcontext()


@each_op
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("framework", ["cupy", "jax"])
def test_frameworks_give_the_same_bits(gpu, op, framework, dtype):
    if framework == "jax" and op.inout:
        pytest.skip("JAX arrays are never written")
    values = op.make(dtype)
    expected = [bits(gpu.raw(r)) for r in op.call(upload(op, gpu, dtype=dtype))]
    with in_64_bits(framework):
        arrays = {name: to_framework(framework, a, True) for name, a in values.items()}
        results = op.call(arrays)
        assert all(type(r) is type(next(iter(arrays.values()))) for r in results)
        assert [bits(raw(framework, r)) for r in results] == expected


@each_op
def test_edge_27_side_stream_after_a_long_kernel(each_gpu, op):
    gpu = each_gpu
    expected = expected_bits(op, gpu, seed=2)
    arrays, outputs = upload(op, gpu, seed=1), outputs_of(op, gpu)
    fresh = upload(op, gpu, seed=2)
    gpu.synchronize()
    with gpu.stream():
        gpu.spin()
        for name in arrays:
            gpu.copy(arrays[name], fresh[name])
        results = op.call(arrays, outputs)
    gpu.synchronize()
    assert [bits(gpu.raw(r)) for r in results] == expected


@each_op
@pytest.mark.parametrize("stream", ["current", "given"])
def test_memory_of_a_waiting_call_is_not_reused(each_gpu, op, stream):
    """What a call allocates is ordered on its stream, and freed memory goes back to that stream."""
    gpu = each_gpu
    expected = expected_bits(op, gpu)
    arrays = upload(op, gpu)
    sizes = [a.nbytes for a in arrays.values()] + [len(e) for e in expected]
    sizes.append(workspace_bytes(op, arrays, outputs_of(op, gpu)))
    gpu.synchronize()
    with gpu.stream() as side:
        if stream == "current":
            arrays = upload(op, gpu)
        gpu.spin()
        if stream == "current":
            results = op.call(arrays)
            del arrays
    if stream == "given":
        result = op.function(**op.arguments(arrays), stream=side)
        results = op.results(result, arrays)
    poison = [gpu.empty((size,), "uint8") for size in sizes for _ in range(3)]
    gpu.synchronize()
    assert [bits(gpu.raw(r)) for r in results] == expected
    del poison


@each_op
def test_edge_29_captured_and_replayed(each_gpu, op):
    gpu = each_gpu
    arrays, outputs = upload(op, gpu, seed=1), outputs_of(op, gpu)
    scratch = contextlib.nullcontext()
    if not gpu.graphs_keep_memory:
        scratch = workspace(op, gpu, arrays, outputs)
    with scratch:
        replay, results = gpu.capture(lambda: op.call(arrays, outputs))
        for seed in (2, 3):
            refill(op, gpu, arrays, seed)
            gpu.synchronize()
            replay()
            gpu.synchronize()
            assert [bits(gpu.raw(r)) for r in results] == expected_bits(op, gpu, seed)


@each_op
def test_nothing_is_allocated_when_out_is_given(each_gpu, op):
    gpu = each_gpu
    arrays, outputs = upload(op, gpu), outputs_of(op, gpu)
    with workspace(op, gpu, arrays, outputs):
        op.call(arrays, outputs)
        with gpu.allocations() as allocated:
            op.call(arrays, outputs)
        assert not allocated
    if op.outputs:
        with gpu.allocations() as allocated:
            op.call(arrays)
        assert allocated


@each_op
def test_edge_30_two_threads_on_two_streams(each_gpu, op):
    gpu = each_gpu
    expected = {seed: expected_bits(op, gpu, seed) for seed in (1, 2)}
    arrays = {seed: upload(op, gpu, seed) for seed in (1, 2)}
    gpu.synchronize()

    def work(seed):
        with gpu.stream():
            outputs = outputs_of(op, gpu)
            for _ in range(100):
                results = op.call(upload(op, gpu, seed) if op.inout else arrays[seed], outputs)
            gpu.synchronize()
        return [bits(gpu.raw(r)) for r in results]

    with ThreadPoolExecutor(2) as pool:
        assert dict(zip((1, 2), pool.map(work, (1, 2)), strict=True)) == expected
