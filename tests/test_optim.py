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


def adamw_f64(param, grad, m, v, largest=None, *, step, lr=1e-3, betas=(0.9, 0.999), eps=1e-8,
              weight_decay=1e-2, maximize=False, l2=False):  # fmt: skip
    g = (-grad if maximize else grad) + (weight_decay * param if l2 else 0)
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    averages = (m, v) if largest is None else (m, v, np.maximum(v, largest))
    denominator = np.sqrt(averages[-1] / (1 - betas[1] ** step)) + eps
    decayed = param if l2 else param * (1 - lr * weight_decay)
    return (decayed - lr / (1 - betas[0] ** step) * m / denominator, *averages)


def lion_f64(param, grad, m, *, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
    g = -grad if maximize else grad
    direction = np.sign(betas[0] * m + (1 - betas[0]) * g)
    new = param * (1 - lr * weight_decay) - lr * direction
    return new, betas[1] * m + (1 - betas[1]) * g


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
    {"step": 7, "weight_decay": 0.1, "l2": True},
]
LION = [{}, {"lr": 0.1, "betas": (0.5, 0.0), "weight_decay": 0.1, "maximize": True}]
# dtypes of param, gradient and states
MIXED = [(d, d, d) for d in FLOATS] + [
    (d, *wide) for d in ("float16", "bfloat16")
    for wide in itertools.product((d, "float32"), repeat=2) if wide != (d, d)
] + [("float32", d, "float32") for d in ("float16", "bfloat16")]  # fmt: skip
# Of the arrays of a list; the longest takes several blocks of a GPU.
SHAPES = [(), (1029,), (3, 5, 8), (0,), (5000,)]

# name -> function, its oracle, its states, and options to test
OPTIMIZERS = {
    "sgd": (dlkern.sgd_step, sgd_f64, 1, [{"lr": 0.125, **options} for options in SGD]),
    "adamw": (dlkern.adamw_step, adamw_f64, 2, ADAMW),
    "amsgrad": (dlkern.adamw_step, adamw_f64, 3, ADAMW[:1] + ADAMW[3:]),
    "lion": (dlkern.lion_step, lion_f64, 1, LION),
}
CASES = [(name, options) for name, row in OPTIMIZERS.items() for options in row[3]]


def arrays(rng, shape, dtypes, states=2):
    """param, grad and states, those after the first not negative."""
    p, g, m, *v = rng.standard_normal((2 + states, *shape))
    param, grad, state = dtypes
    return [rounded(p, param), rounded(g, grad), rounded(m, state)] + [
        rounded(x * x, state) for x in v
    ]


def transposed(items):
    return [list(column) for column in zip(*items, strict=True)]


def expected_step(name, values, options, dtypes, grad_factor=1.0):
    """Right results as (position in values, array, dtype, scale of the error)."""
    _, oracle, *_ = OPTIMIZERS[name]
    param, grad, *rest = map(float64, values)
    results = oracle(param, grad * grad_factor, *rest, **options)
    for k, result in enumerate(results):
        at = 0 if k == 0 else k + 1
        # Where sign() or a root is near zero, the error is that of what it is taken of.
        size = np.abs(param) + np.abs(grad) + sum(map(np.abs, rest)) + np.abs(result)
        yield at, result, dtypes[0] if at == 0 else dtypes[2], size


@pytest.mark.sanitize
@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_step(backend, rng, dtypes, name, options):
    """A list of several shapes against float64."""
    function, _, states, _ = OPTIMIZERS[name]
    values = [arrays(rng, shape, dtypes, states) for shape in SHAPES]
    if name == "lion":  # of one sign with the average: that of next to nothing could be either
        for v in values:
            direction = -float64(v[2]) if options.get("maximize") else float64(v[2])
            v[1] = rounded(np.copysign(float64(v[1]), direction), dtypes[1])
    on_device = [[backend.array(a) for a in item] for item in values]
    assert function(*transposed(on_device), **options) is None
    for item, before in zip(on_device, values, strict=True):
        for at, result, dtype, size in expected_step(name, before, options, dtypes):
            assert_close(backend.numpy(item[at]), result, dtype, "optim", size)
        np.testing.assert_array_equal(backend.raw(item[1]), before[1])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kinds", ["one dtype", "several dtypes"])
def test_lists_have_the_bits_of_single_arrays(backend, rng, name, kinds):
    """More of them than fit into one launch."""
    function, _, states, options = OPTIMIZERS[name]
    dtypes = MIXED if kinds == "several dtypes" else MIXED[1:2]
    count = 40 if dtypes == MIXED else 1200
    values = [arrays(rng, (i % 7,), dtypes[i % len(dtypes)], states) for i in range(count)]
    as_list, alone = ([[backend.array(a) for a in item] for item in values] for _ in range(2))
    function(*transposed(as_list), **options[0])
    for item in alone[:: 1 if count < 100 else 97]:
        function(*item, **options[0])
    for i in range(0, count, 1 if count < 100 else 97):
        for a, b in zip(as_list[i], alone[i], strict=True):
            np.testing.assert_array_equal(backend.raw(a), backend.raw(b))


@pytest.mark.parametrize("grad", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["sgd", "adamw", "amsgrad", "lion"])
def test_master_weights_and_their_copy(backend, rng, name, kind, grad):
    function, _, states, options = OPTIMIZERS[name]
    values = [arrays(rng, s, ("float32", grad, "float32"), states) for s in SHAPES]
    plain = [[backend.array(a) for a in item] for item in values]
    masters = [[backend.array(a) for a in item] for item in values]
    copies = [backend.empty(shape, kind) for shape in SHAPES]
    function(*transposed(plain), **options[0])
    function(*transposed(masters), copy=copies, **options[0])
    for a, b, copy in zip(plain, masters, copies, strict=True):
        np.testing.assert_array_equal(backend.raw(a[0]), backend.raw(b[0]))
        np.testing.assert_array_equal(backend.raw(copy), rounded(backend.raw(b[0]), kind))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_numbers_in_device_memory(backend, rng, dtype, name):
    """The learning rate, and a factor of the gradients."""
    function, _, states, options = OPTIMIZERS[name]
    options = options[-1] | {"lr": 0.25}
    values = arrays(rng, (1029,), (dtype,) * 3, states)
    on_device = [backend.array(a) for a in values]
    wide = "float64" if dtype == "float64" else "float32"
    numbers = {k: backend.array(np.array(v, wide)) for k, v in (("lr", 0.25), ("grad_scale", 0.5))}
    function(*on_device, **(options | numbers))
    if name == "lion":
        return
    for at, result, kind, size in expected_step(name, values, options, (dtype,) * 3, 0.5):
        assert_close(backend.numpy(on_device[at]), result, kind, "optim", size)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_nothing_changes_where_inf_was_found(backend, rng, name, layout):
    function, _, states, options = OPTIMIZERS[name]
    values = arrays(rng, (7, 5), ("float32",) * 3, states)
    on_device = [backend.array(a, layout) for a in values]
    function(*on_device, found_inf=backend.array(np.ones((), "f4")), **options[0])
    for a, before in zip(on_device, values, strict=True):
        np.testing.assert_array_equal(backend.raw(a), before)
    function(*on_device, found_inf=backend.array(np.zeros((), "f4")), **options[0])
    assert not np.array_equal(backend.raw(on_device[0]), values[0])


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


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("options", ADAMW, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_adamw_against_torch(rng, dtype, options, amsgrad):
    torch = pytest.importorskip("torch")
    options = {k: v for k, v in options.items() if k != "step"}
    theirs = torch.from_numpy(rng.standard_normal(50).astype(dtype)).requires_grad_()
    ours = theirs.detach().clone()
    averages = [torch.zeros_like(ours) for _ in range(2 + amsgrad)]
    kind = torch.optim.Adam if options.get("l2") else torch.optim.AdamW
    settings = {k: v for k, v in options.items() if k != "l2"}
    optimizer = kind([theirs], amsgrad=amsgrad, **settings)
    for step in range(1, 6):
        theirs.grad = torch.from_numpy(rng.standard_normal(50).astype(dtype))
        optimizer.step()
        dlkern.adamw_step(ours, theirs.grad, *averages, step=step, **options)
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


# ---- Norm of all gradients, loss scaling ---------------------------------------------------------


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_grad_norm(backend, rng, dtype, layout):
    shapes = [(3, 5, 7), (), (0,), (129, 300)]
    values = [rounded(rng.standard_normal(shape), dtype) for shape in shapes]
    grads = [backend.array(v, layout) for v in values]
    wide = "float64" if dtype == "float64" else "float32"
    outs = [backend.empty((), wide) for _ in range(3)]
    names = ("out", "out_grad_scale", "out_found_inf")
    scale = backend.array(np.array(8, wide))
    results = dlkern.grad_norm(
        grads, max_norm=2.0, loss_scale=scale, **dict(zip(names, outs, strict=True))
    )
    norm = np.sqrt(sum(np.sum(float64(v) ** 2) for v in values)) / 8
    for result, right in zip(results, (norm, 2 / (norm + 1e-6) / 8, 0), strict=True):
        assert_close(backend.numpy(result), np.array(right), wide, "norm")


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("ord", [1, 2, 3, 0.5, np.inf])
def test_grad_norm_of_other_orders(backend, rng, dtype, layout, ord):
    values = [rounded(rng.standard_normal(s), dtype) for s in ((3, 5, 7), (), (0,), (129, 300))]
    grads = [backend.array(v, layout) for v in values]
    wide = "float64" if dtype == "float64" else "float32"
    outs = {"out": backend.empty((), wide), "out_grad_scale": backend.empty((), wide)}
    norm, factor, _ = dlkern.grad_norm(grads, max_norm=2.0, ord=ord, **outs,
                                       out_found_inf=backend.empty((), wide))  # fmt: skip
    right = np.linalg.norm(np.concatenate([float64(v).ravel() for v in values]), ord)
    assert_close(backend.numpy(norm), np.array(right), wide, "norm")
    assert_close(backend.numpy(factor), np.array(min(1, 2 / (right + 1e-6))), wide, "norm")


def test_grad_norm_agrees_with_torch(rng):
    torch = pytest.importorskip("torch")
    for ord in (1, 2, 2.5, np.inf):
        params = [torch.zeros(s, dtype=torch.float64, requires_grad=True) for s in ((5, 7), (300,))]
        for param in params:
            param.grad = torch.from_numpy(rng.standard_normal(param.shape))
        grads = [param.grad.clone() for param in params]
        norm, scale, _ = dlkern.grad_norm(grads, max_norm=1.5, ord=ord)
        theirs = torch.nn.utils.clip_grad_norm_(params, 1.5, norm_type=ord)
        torch.testing.assert_close(norm, theirs)
        for grad, param in zip(grads, params, strict=True):
            torch.testing.assert_close(grad * scale, param.grad)


def test_a_small_norm_is_not_clipped(backend):
    grads = [backend.array(np.full(4, 0.25, "f4")) for _ in range(4)]
    for options in ({"max_norm": 2.0}, {"max_norm": 0.5}, {}):
        norm, scale, found = map(backend.numpy, dlkern.grad_norm(grads, **options))
        assert (norm, found) == (1, 0)
        np.testing.assert_allclose(scale, 0.5 if options.get("max_norm") == 0.5 else 1, rtol=2e-6)


@pytest.mark.parametrize("ord", [1, 2, 3, np.inf])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_inf_and_nan_are_found(backend, dtype, bad, ord):
    values = [np.ones(3000), np.ones(5)]
    values[0][2999] = bad
    grads = [backend.array(rounded(v, dtype)) for v in values]
    norm, _, found = map(backend.numpy, dlkern.grad_norm(grads, ord=ord))
    assert (np.isnan(norm) if np.isnan(bad) else norm == np.inf) and found == 1
    factor, flag = (backend.array(np.array(v, "f4")) for v in (0.5, 0))
    dlkern.scale_grads(grads[1], factor, found_inf=flag)
    assert backend.numpy(flag) == 0
    dlkern.scale_grads(grads, factor, found_inf=flag)
    assert backend.numpy(flag) == 1
    np.testing.assert_array_equal(backend.numpy(grads[0]), values[0] / 2)
    np.testing.assert_array_equal(backend.numpy(grads[1]), 0.25)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scale_grads(backend, rng, dtype, layout):
    values = [rounded(rng.standard_normal(s), dtype) for s in ((3, 5, 7), (), (0,), (41, 130))]
    grads = [backend.array(v, layout) for v in values]
    dlkern.scale_grads(grads, backend.array(np.array(3, "f4")))
    for grad, value in zip(grads, values, strict=True):
        assert_close(backend.numpy(grad), 3 * float64(value), dtype, "add")


def test_update_loss_scale_against_torch():
    torch = pytest.importorskip("torch")
    ours, theirs = ((torch.tensor(2.0**125), torch.tensor(0, dtype=torch.int32)) for _ in range(2))
    step = torch.tensor(1)
    for found in (0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1):
        found = torch.tensor(float(found))
        dlkern.update_loss_scale(*ours, found, step=step, growth_interval=2)
        torch._amp_update_scale_(*theirs, found, 2.0, 0.5, 2)
        assert ours == theirs
    assert step == 10


@pytest.mark.gpu
def test_edge_29_a_step_of_mixed_precision_in_a_graph(gpu):
    """Norm, clipping, the step, its number and the loss scale: none waits for the device."""
    torch = pytest.importorskip("torch")
    params = [torch.full((n,), 1.0, device="cuda") for n in (100, 3000)]
    m, v, grads = ([torch.zeros_like(p) for p in params] for _ in range(3))
    copies = [p.half() for p in params]
    scale, lr = torch.tensor(4.0, device="cuda"), torch.tensor(0.5, device="cuda")
    tracker, step = (torch.tensor(k, device="cuda", dtype=torch.int32) for k in (0, 1))

    def run():
        _, factor, found = dlkern.grad_norm(grads, loss_scale=scale, max_norm=1.0)
        options = {"lr": lr, "step": step, "grad_scale": factor, "found_inf": found}
        dlkern.adamw_step(params, grads, m, v, copy=copies, **options)
        dlkern.update_loss_scale(scale, tracker, found, step=step, growth_interval=3)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    expected = [(np.full(len(p), 1.0), np.zeros(len(p)), np.zeros(len(p))) for p in params]
    t, now = 1, 4.0
    for value, rate in ((4.0, 0.5), (np.inf, 0.5), (8.0, 0.25), (1e-3, 0.125), (2.0, 0.125)):
        for grad in grads:
            grad.fill_(value)
        lr.fill_(rate)
        graph.replay()
        if np.isfinite(value):
            norm = value / now * np.sqrt(3100)
            g = value / now * min(1, 1 / norm)
            expected = [adamw_f64(p, g, *s, step=t, lr=rate) for p, *s in expected]
            t, now = t + 1, now * 2 if t == 4 else now
        else:
            now /= 2
        for p, c, right in zip(params, copies, expected, strict=True):
            np.testing.assert_allclose(p.cpu().numpy(), right[0], rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(c.cpu().numpy(), p.half().cpu().numpy())
        assert (step.item(), scale.item()) == (t, now)


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
        (lambda a: dlkern.sgd_step([a(ONES)] * 2, [a(ONES)], lr=1), ValueError,
         "sgd_step: grad has 1 arrays, expected 2"),
        (lambda a: dlkern.sgd_step([a(ONES)], a(ONES), lr=1), TypeError, "expected a list"),
        (lambda a: dlkern.sgd_step(a(ONES), [a(ONES)], lr=1), TypeError, "grad is list, expected"),
        (lambda a: dlkern.sgd_step([a(ONES)] * 2, [a(ONES)] * 2, lr=1), ValueError,
         r"param\[[01]\] overlaps param\[[01]\]"),
        (lambda a: dlkern.sgd_step([a(ONES)] * 2, [a(ONES), a(np.ones(3))], lr=1), ValueError,
         r"grad\[1\].shape is \[3\], expected \[2, 3\] \(param\[1\].shape\)"),
        (lambda a: dlkern.sgd_step(a(ONES), a(ONES), copy=a(ONES), lr=1), ValueError,
         "copy is given, expected none beside a float64 param"),
        (lambda a: dlkern.sgd_step(a(ONES.astype(F4)), a(ONES.astype(F4)), copy=a(ONES), lr=1),
         TypeError, "copy.dtype is float64, expected float16 or bfloat16"),
        (lambda a: dlkern.sgd_step(a(ONES), a(ONES), lr=a(ONES)), ValueError,
         r"lr.shape is \[2, 3\], expected one element"),
        (lambda a: dlkern.sgd_step(a(ONES), a(ONES), lr=1, found_inf=a(np.ones(1, int))), TypeError,
         "found_inf.dtype is int64, expected float32 or float64"),
        (lambda a: dlkern.grad_norm([]), ValueError, "grad_norm: grad is an empty list"),
        (lambda a: dlkern.grad_norm(a(ONES), max_norm=-1), ValueError, "max_norm is -1"),
        (lambda a: dlkern.grad_norm(a(ONES), ord=0), ValueError, "ord is 0, expected it positive"),
        (lambda a: dlkern.grad_norm(a(ONES), ord=np.nan), ValueError, "ord is nan"),
        (lambda a: dlkern.update_loss_scale(a(np.ones(1)), a(np.ones(1, int)), a(np.ones(1)),
                                            growth_interval=0), ValueError, "growth_interval is 0"),
        (lambda a: dlkern.lion_step(a(ONES), a(ONES), a(ONES), betas=(0.9, 1)), ValueError,
         r"beta2 is 1, expected it in"),
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
