"""The same bits in 1000 repetitions on a GPU: every op, and large problems that races show in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ops_table import OPS
from test_contract import outputs_of

import dlkern

pytestmark = pytest.mark.gpu

REPETITIONS = 1000


@pytest.fixture
def torch(gpu):
    return pytest.importorskip("torch")


def repeats(torch, call: Callable[[], tuple[Any, ...]]) -> bool:
    """Whether ``call``'s results, kept in the same memory by each call, are always the same.

    The call and the comparison are captured once and replayed without a pause, so that each
    repetition runs beside the tail of another.
    """

    def as_bytes(results):
        return [r.reshape(-1).view(torch.uint8) for r in results if r.numel()]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        first = [r.clone() for r in as_bytes(call())]
        wrong = torch.zeros((), dtype=torch.bool, device="cuda")
        call()  # what is set up on the first calls
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for result, expected in zip(as_bytes(call()), first, strict=True):
                wrong |= (result != expected).any()
        for _ in range(REPETITIONS):
            graph.replay()
    stream.synchronize()
    return not wrong.item()


@pytest.mark.parametrize("op", OPS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_op(gpu, torch, op, dtype):
    values = {name: gpu.array(a) for name, a in op.make(dtype).items()}
    arrays = {name: a.clone() for name, a in values.items()}
    outputs = outputs_of(op, gpu, dtype)

    def call():
        for name in op.inout:
            arrays[name].copy_(values[name])
        return op.call(arrays, outputs)

    assert repeats(torch, call)


def _softmax(new):
    x = new(1024, 4096)
    y = dlkern.softmax(x)
    return lambda: (dlkern.softmax(x), dlkern.softmax_backward(x, y))


def _long_softmax(new):
    x = new(64, 131072)
    y = dlkern.softmax(x)
    return lambda: (dlkern.softmax(x), dlkern.softmax_backward(x, y))


def _cross_entropy(new):
    x = new(512, 32001)
    target = (x[:, 0].abs() * 1000).long()
    return lambda: dlkern.cross_entropy_with_grad(x, target)


def _layer_norm(new, rows=4096, columns=1024):
    dy, x, weight, bias = new(rows, columns), new(rows, columns), new(columns), new(columns)
    _, mean, rstd = dlkern.layer_norm(x, weight, bias, return_stats=True)
    return lambda: (
        dlkern.layer_norm(x, weight, bias),
        *dlkern.layer_norm_backward(dy, x, weight, mean, rstd, bias=True),
    )


def _long_layer_norm(new):
    return _layer_norm(new, 100, 100_003)


def _batch_norm(new, layout):
    shape = (16, 64, 56, 56) if layout == "NCHW" else (16, 56, 56, 64)
    x, dy, weight, bias = new(*shape), new(*shape), new(64), new(64)
    _, mean, rstd = dlkern.batch_norm_training(x, weight, bias, layout=layout)
    return lambda: (
        *dlkern.batch_norm_training(x, weight, bias, layout=layout),
        *dlkern.batch_norm_backward(dy, x, weight, mean, rstd, layout=layout),
    )


def _group_norm(new, layout):
    shape = (8, 64, 64, 64)
    x, dy, weight, bias = new(*shape), new(*shape), new(64), new(64)
    _, mean, rstd = dlkern.group_norm(x, 8, weight, bias, layout=layout, return_stats=True)
    return lambda: (
        dlkern.group_norm(x, 8, weight, bias, layout=layout),
        *dlkern.group_norm_backward(dy, x, 8, weight, mean, rstd, layout=layout),
    )


def _reduce(new, shape, axis):
    x = new(*shape)
    functions = [dlkern.sum, dlkern.max, dlkern.var, dlkern.prod, dlkern.logsumexp]
    if isinstance(axis, int):
        functions.append(dlkern.argmax)
    return lambda: tuple(f(x, axis=axis) for f in functions)


def _pool(new, layout):
    x = new(8, 64, 57, 63)
    y, index = dlkern.max_pool(x, 3, stride=2, padding=1, layout=layout, return_indices=True)
    dy = new(*y.shape)
    shape = tuple(x.shape)
    options = {"stride": 2, "padding": 1, "layout": layout}
    return lambda: (
        dlkern.max_pool(x, 3, **options),
        dlkern.max_pool_backward(dy, index, shape, 3, **options),
        dlkern.avg_pool_backward(dy, shape, 3, **options),
    )


def _embedding(new):
    dy = new(20_000, 129)
    ids = (dy[:, 0].abs() * 50).long() % 40
    return lambda: dlkern.embedding_backward(dy, ids, 1000)


def _top_k(new):
    x = new(300, 50_000)
    return lambda: dlkern.top_k(x, 40)


def _grad_norm(new):
    grads = [new(1000 + 37 * i, 31) for i in range(60)]
    return lambda: dlkern.grad_norm(grads)


LARGE = {
    "softmax": _softmax,
    "softmax of long rows": _long_softmax,
    "cross_entropy": _cross_entropy,
    "layer_norm": _layer_norm,
    "layer_norm of long rows": _long_layer_norm,
    "batch_norm NCHW": lambda new: _batch_norm(new, "NCHW"),
    "batch_norm NHWC": lambda new: _batch_norm(new, "NHWC"),
    "group_norm NCHW": lambda new: _group_norm(new, "NCHW"),
    "group_norm NHWC": lambda new: _group_norm(new, "NHWC"),
    "reduce all": lambda new: _reduce(new, (4_000_003,), 0),
    "reduce rows": lambda new: _reduce(new, (1000, 5001), 1),
    "reduce columns": lambda new: _reduce(new, (5001, 1000), 0),
    "reduce outer and inner": lambda new: _reduce(new, (32, 64, 1001), (0, 2)),
    "pool NCHW": lambda new: _pool(new, "NCHW"),
    "pool NHWC": lambda new: _pool(new, "NHWC"),
    "embedding_backward": _embedding,
    "top_k": _top_k,
    "grad_norm": _grad_norm,
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_problems(gpu, torch, make, dtype):
    torch.manual_seed(1)
    call = make(lambda *shape: torch.randn(*shape, device="cuda").to(getattr(torch, dtype)))

    def flat():
        result = call()
        return result if isinstance(result, tuple) else (result,)

    assert repeats(torch, flat)
