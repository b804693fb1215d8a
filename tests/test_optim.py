"""Optimizer steps against float64 and against torch.optim."""

import itertools

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import FLOATS, assert_close, float64, rounded

import dlkern


def sgd_f64(param, grad, buffer, *, lr, momentum=0, dampening=0, weight_decay=0, nesterov=False,
            maximize=False, first_step=False):  # fmt: skip
    g = (-grad if maximize else grad) + weight_decay * param
    if momentum:
        buffer = g if first_step else momentum * buffer + (1 - dampening) * g
        g = g + momentum * buffer if nesterov else buffer
    return param - lr * g, buffer


def adamw_f64(param, grad, m, v, *, step, lr=1e-3, betas=(0.9, 0.999), eps=1e-8,
              weight_decay=1e-2, maximize=False):  # fmt: skip
    g = -grad if maximize else grad
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    denominator = np.sqrt(v / (1 - betas[1] ** step)) + eps
    return param * (1 - lr * weight_decay) - lr / (1 - betas[0] ** step) * m / denominator, m, v


SGD = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    {"momentum": 0.5, "nesterov": True, "maximize": True},
    {"momentum": 0.5, "dampening": 0.3, "first_step": True},
]
ADAMW = [
    {"step": 1},
    {"step": 1000, "lr": 0.5, "weight_decay": 0},
    {"step": 3, "betas": (0.0, 0.5), "eps": 0.1, "maximize": True},
]
# dtypes of param, gradient and states
MIXED = [(d, d, d) for d in FLOATS] + [
    (d, *wide) for d in ("float16", "bfloat16")
    for wide in itertools.product((d, "float32"), repeat=2) if wide != (d, d)
]  # fmt: skip


def arrays(rng, shape, dtypes):
    """param, grad and two states, the second not negative."""
    p, g, m, v = rng.standard_normal((4, *shape))
    param, grad, state = dtypes
    return rounded(p, param), rounded(g, grad), rounded(m, state), rounded(v * v, state)


@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
@pytest.mark.parametrize("options", SGD, ids=str)
@pytest.mark.parametrize("shape", [(), (1029,), (3, 5, 8), (0,)])
def test_sgd(backend, rng, dtypes, options, shape):
    param, grad, buffer, _ = arrays(rng, shape, dtypes)
    on_device = [backend.array(a) for a in (param, grad, buffer)]
    assert dlkern.sgd_step(*on_device, lr=0.125, **options) is None
    expected = sgd_f64(*map(float64, (param, grad, buffer)), lr=0.125, **options)
    size = np.abs(float64(param)) + np.abs(float64(grad)) + np.abs(float64(buffer))
    assert_close(backend.numpy(on_device[0]), expected[0], dtypes[0], "optim", size)
    assert_close(backend.numpy(on_device[2]), expected[1], dtypes[2], "optim", size)
    np.testing.assert_array_equal(backend.raw(on_device[1]), grad)


@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
@pytest.mark.parametrize("options", ADAMW, ids=str)
@pytest.mark.parametrize("shape", [(), (1029,), (3, 5, 8), (0,)])
def test_adamw(backend, rng, dtypes, options, shape):
    values = arrays(rng, shape, dtypes)
    on_device = [backend.array(a) for a in values]
    assert dlkern.adamw_step(*on_device, **options) is None
    expected = adamw_f64(*map(float64, values), **options)
    for i, result, kind in zip((0, 2, 3), expected, (0, 2, 2), strict=True):
        size = np.maximum(np.abs(result), np.abs(float64(values[i])) + np.abs(float64(values[1])))
        assert_close(backend.numpy(on_device[i]), result, dtypes[kind], "optim", size)
    np.testing.assert_array_equal(backend.raw(on_device[1]), values[1])


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_the_number_of_the_step_may_be_an_array(backend, dtype, rng, kind):
    for step in (1, 7, 100_000):
        values = arrays(rng, (37,), (dtype,) * 3)
        by_number = [backend.array(a) for a in values]
        by_array = [backend.array(a) for a in values]
        dlkern.adamw_step(*by_number, step=step)
        dlkern.adamw_step(*by_array, step=backend.array(np.array(step, kind)))
        for a, b in zip(by_number, by_array, strict=True):
            np.testing.assert_allclose(
                backend.numpy(a), backend.numpy(b), rtol=float(2 * np.finfo("f4").eps)
            )


@pytest.mark.parametrize("options", SGD, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sgd_against_torch(rng, dtype, options):
    torch = pytest.importorskip("torch")
    options = {k: v for k, v in options.items() if k != "first_step"}
    theirs = torch.from_numpy(rng.standard_normal(50).astype(dtype)).requires_grad_()
    ours, buffer = theirs.detach().clone(), torch.zeros_like(theirs, requires_grad=False)
    optimizer = torch.optim.SGD([theirs], lr=0.1, **options)
    for step in range(5):
        theirs.grad = torch.from_numpy(rng.standard_normal(50).astype(dtype))
        optimizer.step()
        dlkern.sgd_step(ours, theirs.grad, buffer, lr=0.1, first_step=step == 0, **options)
    torch.testing.assert_close(ours, theirs.detach())


@pytest.mark.parametrize("options", ADAMW, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_adamw_against_torch(rng, dtype, options):
    torch = pytest.importorskip("torch")
    options = {k: v for k, v in options.items() if k != "step"}
    theirs = torch.from_numpy(rng.standard_normal(50).astype(dtype)).requires_grad_()
    ours = theirs.detach().clone()
    m, v = torch.zeros_like(ours), torch.zeros_like(ours)
    optimizer = torch.optim.AdamW([theirs], **options)
    for step in range(1, 6):
        theirs.grad = torch.from_numpy(rng.standard_normal(50).astype(dtype))
        optimizer.step()
        dlkern.adamw_step(ours, theirs.grad, m, v, step=step, **options)
    torch.testing.assert_close(ours, theirs.detach())


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout):
    """EDGE 21, 26: any strides and alignment, the gaps untouched."""
    for dtype, shape in (("float32", (3, 5, 17)), ("bfloat16", (4, 6, 64))):
        values = arrays(rng, shape, (dtype, dtype, "float32"))
        plain = [backend.array(a) for a in values]
        dlkern.adamw_step(*plain, step=2)
        for odd in (0, 1, 2, 3, None):  # one array in that layout, or all
            placed = [
                backend.array(a, layout if odd in (i, None) else "contiguous")
                for i, a in enumerate(values)
            ]
            dlkern.adamw_step(*placed, step=2)
            for a, b in zip(placed, plain, strict=True):
                np.testing.assert_array_equal(backend.raw(a), backend.raw(b))


def test_a_buffer_is_left_alone_without_momentum(backend):
    param, grad = backend.array(np.ones(3)), backend.array(np.ones(3))
    buffer = backend.array(np.full(3, 7.0))
    dlkern.sgd_step(param, grad, buffer, lr=0.5)
    np.testing.assert_array_equal(backend.numpy(buffer), [7, 7, 7])
    np.testing.assert_array_equal(backend.numpy(param), [0.5, 0.5, 0.5])
    dlkern.sgd_step(param, grad, lr=0.5)
    np.testing.assert_array_equal(backend.numpy(param), [0, 0, 0])


def test_first_step_does_not_read_the_buffer(backend, dtype):
    param, grad = (backend.array(rounded([1, 2], dtype)) for _ in range(2))
    buffer = backend.empty((2,), dtype)  # NaN
    dlkern.sgd_step(param, grad, buffer, lr=0.5, momentum=0.9, dampening=0.5, first_step=True)
    np.testing.assert_array_equal(backend.numpy(buffer), [1, 2])
    np.testing.assert_array_equal(backend.numpy(param), [0.5, 1])


def test_small_updates_survive_in_float32_states(backend):
    """A 16-bit param with float32 states: v keeps what float16 would lose."""
    param = backend.array(np.ones(4, np.float16))
    grad = backend.array(np.full(4, 1e-4, np.float16))
    m, v = (backend.array(np.zeros(4, np.float32)) for _ in range(2))
    dlkern.adamw_step(param, grad, m, v, step=1, lr=0.25, weight_decay=0)
    np.testing.assert_allclose(backend.numpy(v), 1e-3 * float(np.float16(1e-4)) ** 2, rtol=1e-5)
    np.testing.assert_allclose(backend.numpy(param), 0.75, rtol=1e-3)


def test_zero_gradients_change_nothing_but_the_decay(backend, dtype):
    values = [backend.array(rounded(np.full(5, x), dtype)) for x in (1.0, 0, 0, 0)]
    dlkern.adamw_step(*values, step=1, lr=0.5, weight_decay=0.5)
    for array, value in zip(values, (0.75, 0, 0, 0), strict=True):
        np.testing.assert_array_equal(backend.numpy(array), np.full(5, value))


def test_jax_arrays_are_refused():
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.ones(3)
    with pytest.raises(ValueError, match="sgd_step: param is read-only"):
        dlkern.sgd_step(x, x, lr=1.0)
    with pytest.raises(ValueError, match="adamw_step: exp_avg is read-only"):
        dlkern.adamw_step(np.ones(3, np.float32), x, x, x, step=1)


@pytest.mark.gpu
def test_edge_29_step_counted_in_a_graph(gpu):
    torch = pytest.importorskip("torch")
    values = [torch.full((100,), x, device="cuda") for x in (1.0, 0.5, 0.0, 0.0)]
    step = torch.ones((), dtype=torch.int64, device="cuda")
    dlkern.adamw_step(*(v.clone() for v in values), step=step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dlkern.adamw_step(*values, step=step)
        step += 1
    expected = [np.full(100, x) for x in (1.0, 0.5, 0.0, 0.0)]
    for t in range(1, 5):
        graph.replay()
        expected[0], expected[2], expected[3] = adamw_f64(*expected, step=t)
        np.testing.assert_allclose(values[0].cpu().numpy(), expected[0], rtol=1e-6)


F4 = np.float32
ONES = np.ones((2, 3))
STEP = {"step": 1}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.sgd_step(a(np.ones(3, int)), a(np.ones(3, int)), lr=1), TypeError,
         "sgd_step: param.dtype is int64"),
        (lambda a: dlkern.sgd_step(a(ONES), a(np.ones(3)), lr=1), ValueError,
         r"grad.shape is \[3\], expected \[2, 3\] \(param.shape\)"),
        (lambda a: dlkern.sgd_step(a(ONES), a(ONES.astype(F4)), lr=1), TypeError,
         "grad.dtype is float32, expected float64"),
        (lambda a: dlkern.sgd_step(a(ONES.astype("f2")), a(ONES), lr=1), TypeError,
         "grad.dtype is float64, expected float16 or float32"),
        (lambda a: dlkern.sgd_step(a(ONES), a(ONES), lr=-1), ValueError, "lr is -1"),
        (lambda a: dlkern.sgd_step(a(ONES), a(ONES), lr="fast"), TypeError, "lr is 'fast'"),
        (lambda a: dlkern.sgd_step(a(ONES), a(ONES), lr=1, momentum=0.5), ValueError,
         "momentum_buffer is absent"),
        (lambda a: dlkern.sgd_step(a(ONES), a(ONES), a(np.ones(2)), lr=1), ValueError,
         r"momentum_buffer.shape is \[2\]"),
        (lambda a: dlkern.sgd_step(a(ONES), a(ONES), a(ONES), lr=1, nesterov=True), ValueError,
         "nesterov is set with momentum 0"),
        (lambda a: dlkern.adamw_step(*[a(ONES)] * 4, **STEP), ValueError, "overlaps"),
        (lambda a: dlkern.adamw_step(a(ONES), a(ONES), a(ONES), a(np.ones(3)), **STEP), ValueError,
         r"exp_avg_sq.shape is \[3\]"),
        (lambda a: dlkern.adamw_step(a(ONES), a(ONES), a(ONES.astype(F4)), a(ONES), **STEP),
         TypeError, "exp_avg.dtype is float32, expected float64"),
        (lambda a: dlkern.adamw_step(a(ONES.astype("f2")), a(ONES.astype("f2")),
                                     a(ONES.astype("f2")), a(ONES.astype(F4)), **STEP),
         TypeError, "exp_avg_sq.dtype is float32, expected float16"),
        (lambda a: dlkern.adamw_step(*(a(ONES) for _ in range(4)), step=0), ValueError,
         "step is 0"),
        (lambda a: dlkern.adamw_step(*(a(ONES) for _ in range(4)), step=1.0), TypeError,
         "step is 1.0, expected an integer"),
        (lambda a: dlkern.adamw_step(*(a(ONES) for _ in range(4)), step=a(np.ones(1))), TypeError,
         "step.dtype is float64, expected int64 or int32"),
        (lambda a: dlkern.adamw_step(*(a(ONES) for _ in range(4)), step=a(np.array([1, 2]))),
         ValueError, r"step.shape is \[2\], expected one element"),
        (lambda a: dlkern.adamw_step(*(a(ONES) for _ in range(4)), betas=(1, 0.9), **STEP),
         ValueError, r"beta1 is 1, expected it in \[0, 1\)"),
        (lambda a: dlkern.adamw_step(*(a(ONES) for _ in range(4)), betas=0.9, **STEP),
         ValueError, "adamw_step: betas is 0.9, expected two numbers"),
        (lambda a: dlkern.adamw_step(*(a(ONES) for _ in range(4)), eps=-1e-9, **STEP), ValueError,
         "eps is -1e-09"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


@pytest.mark.parametrize("index", [0, 2, 3])
def test_read_only_arrays_are_refused(index):
    values = [np.ones(3) for _ in range(4)]
    values[index].flags.writeable = False
    name = ("param", "grad", "exp_avg", "exp_avg_sq")[index]
    with pytest.raises(ValueError, match=f"{name} is read-only"):
        dlkern.adamw_step(*values, step=1)
