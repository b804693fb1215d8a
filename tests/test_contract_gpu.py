"""What every op promises on a GPU: frameworks, streams, graphs, memory, threads."""

from __future__ import annotations

import contextlib
import threading

import pytest
from ops_table import OPS
from test_contract import bits, outputs_of, raw, to_framework

import dlkern

pytestmark = pytest.mark.gpu

each_op = pytest.mark.parametrize("op", OPS, ids=str)


@pytest.fixture
def torch(gpu):
    return pytest.importorskip("torch")


def upload(op, gpu, seed=1, dtype="float32"):
    return {name: gpu.array(a) for name, a in op.make(dtype, seed).items()}


def expected_bits(op, gpu, seed=1):
    results = op.call(upload(op, gpu, seed), outputs_of(op, gpu))
    return [bits(gpu.raw(r)) for r in results]


def refill(op, gpu, arrays, seed):
    """New values in the same memory, in order with the current stream."""
    for name, fresh in upload(op, gpu, seed).items():
        arrays[name].copy_(fresh)


@each_op
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("framework", ["cupy", "jax"])
def test_frameworks_give_the_same_bits(gpu, op, framework, dtype):
    if framework == "jax" and op.inout:
        pytest.skip("JAX arrays are never written")
    values = op.make(dtype)
    if framework == "cupy" and any(a.dtype.isbuiltin != 1 for a in values.values()):
        pytest.skip("CuPy has no bfloat16 and no float8")
    expected = [bits(gpu.raw(r)) for r in op.call(upload(op, gpu, dtype=dtype))]
    arrays = {name: to_framework(framework, a, True) for name, a in values.items()}
    results = op.call(arrays)
    assert all(type(r) is type(next(iter(arrays.values()))) for r in results)
    assert [bits(raw(framework, r)) for r in results] == expected


@each_op
def test_edge_27_side_stream_after_a_long_kernel(gpu, torch, op):
    expected = expected_bits(op, gpu, seed=2)
    arrays, outputs = upload(op, gpu, seed=1), outputs_of(op, gpu)
    fresh = upload(op, gpu, seed=2)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        for name in arrays:
            arrays[name].copy_(fresh[name])
        results = op.call(arrays, outputs)
    torch.cuda.synchronize()
    assert [bits(gpu.raw(r)) for r in results] == expected


@each_op
def test_edge_29_captured_and_replayed(gpu, torch, op):
    arrays, outputs = upload(op, gpu, seed=1), outputs_of(op, gpu)
    op.call(arrays, outputs)  # whatever is set up on the first call
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = op.call(arrays, outputs)
    for seed in (2, 3):
        refill(op, gpu, arrays, seed)
        graph.replay()
        torch.cuda.synchronize()
        assert [bits(gpu.raw(r)) for r in results] == expected_bits(op, gpu, seed)


@each_op
def test_nothing_is_allocated_when_out_is_given(gpu, torch, op):
    arrays, outputs = upload(op, gpu), outputs_of(op, gpu)
    plans = dlkern.explain(op.function, **op.arguments(arrays, outputs))
    scratch = max(plan.workspace_bytes for plan in plans)
    workspace = contextlib.nullcontext()
    if scratch:
        workspace = dlkern.workspace(torch.empty(scratch, dtype=torch.uint8, device="cuda"))

    def allocations():
        return torch.cuda.memory_stats()["allocation.all.allocated"]

    with workspace:
        op.call(arrays, outputs)
        before = allocations()
        op.call(arrays, outputs)
        assert allocations() == before
    if op.outputs:
        op.call(arrays)
        assert allocations() > before


@each_op
def test_edge_30_two_threads_on_two_streams(gpu, torch, op):
    expected = {seed: expected_bits(op, gpu, seed) for seed in (1, 2)}
    failures = []

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                outputs = outputs_of(op, gpu)
                for _ in range(100):
                    results = op.call(upload(op, gpu, seed) if op.inout else arrays[seed], outputs)
                torch.cuda.current_stream().synchronize()
            assert [bits(gpu.raw(r)) for r in results] == expected[seed]
        except BaseException as error:
            failures.append(error)

    arrays = {seed: upload(op, gpu, seed) for seed in (1, 2)}
    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
