"""conv, conv_transpose and their gradients against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import conv_oracle
import numpy as np
import pytest
from backends import LAYOUTS, get_backend
from oracle import FLOATS, assert_close, assert_grad, float64, rounded

import dlkern


@dataclass(frozen=True)
class Case:
    """A convolution; channels are counted per group."""

    batch: int
    c: int
    k: int
    extents: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...] = ()
    pads: tuple[tuple[int, int], ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    layout: str = "NCHW"

    def __post_init__(self):
        dims = len(self.extents)
        for name, default in (("stride", 1), ("dilation", 1), ("pads", (0, 0))):
            if not getattr(self, name):
                object.__setattr__(self, name, (default,) * dims)

    @property
    def oracle(self):
        return {"stride": self.stride, "pads": self.pads, "dilation": self.dilation,
                "groups": self.groups}  # fmt: skip

    @property
    def arguments(self):
        return {"stride": self.stride, "padding": self.pads, "dilation": self.dilation,
                "groups": self.groups, "layout": self.layout}  # fmt: skip

    @property
    def outputs(self):
        return conv_oracle.output_extents(self.extents, self.taps, self.stride, self.pads,
                                          self.dilation)  # fmt: skip

    @property
    def output_padding(self):
        """What the transposed convolution needs to come back to the extents."""
        return tuple(
            n - ((o - 1) * s - sum(p) + d * (k - 1) + 1)
            for n, o, s, p, d, k in zip(self.extents, self.outputs, self.stride, self.pads,
                                        self.dilation, self.taps, strict=True)
        )  # fmt: skip

    def arrays(self, rng, dtype):
        """x, weight, bias of each direction and dy, channels first."""
        g = self.groups
        shapes = [
            (self.batch, g * self.c, *self.extents),
            (g * self.k, self.c, *self.taps),
            (g * self.k,),
            (g * self.c,),
            (self.batch, g * self.k, *self.outputs),
        ]
        return [rounded(rng.standard_normal(s), dtype) for s in shapes]

    def place(self, a):
        """A channels-first array in the case's layout, contiguous."""
        return a if self.layout == "NCHW" else np.ascontiguousarray(np.moveaxis(a, 1, -1))

    def unplace(self, a):
        return a if self.layout == "NCHW" else np.moveaxis(a, -1, 1)


def run(backend, dtype, case, arrays, memory="contiguous"):
    """All six results in float64, channels first. With another memory layout everything has it."""
    x, w, b, tb, dy = arrays
    put = lambda a: backend.array(case.place(a) if a.ndim > 1 else a, memory)  # noqa: E731
    shape = lambda a: case.place(a).shape  # noqa: E731
    own = memory != "contiguous"
    out = lambda a: backend.empty(shape(a) if a.ndim > 1 else a.shape, dtype, memory)  # noqa: E731
    maybe = lambda a: out(a) if own else None  # noqa: E731
    kw, tkw = case.arguments, case.arguments | {"output_padding": case.output_padding}
    results = {
        "y": dlkern.conv(put(x), put(w), put(b), out=maybe(dy), **kw),
        "dx": dlkern.conv_backward_input(put(dy), put(w), shape(x), out=maybe(x), **kw),
        "ty": dlkern.conv_transpose(put(dy), put(w), put(tb), out=maybe(x), **tkw),
        "tdx": dlkern.conv_transpose_backward_input(
            put(x), put(w), shape(dy), out=maybe(dy), **tkw
        ),
    }
    for name, op, first, second, bias, keywords in (
        ("", dlkern.conv_backward_weight, dy, x, b, kw),
        ("t", dlkern.conv_transpose_backward_weight, x, dy, tb, tkw),
    ):
        results[name + "dw"], results[name + "db"] = op(
            put(first), put(second), shape(w), bias=True, out=maybe(w),
            out_bias=backend.empty(bias.shape, dtype, memory) if own else None, **keywords,
        )  # fmt: skip
    return {
        name: case.unplace(backend.numpy(a)) if name[-1] != "b" else backend.numpy(a)
        for name, a in results.items()
    }


def expected(case, arrays):
    x, w, b, tb, dy = arrays
    over = (0, *range(2, x.ndim))
    back = conv_oracle.backward_input(dy, w, case.extents, **case.oracle)
    dw = conv_oracle.backward_weight(dy, x, case.taps, **case.oracle)
    forward = conv_oracle.forward(x, w, **case.oracle)
    column = (-1, *[1] * (x.ndim - 2))
    return {
        "y": forward + b.reshape(column), "dx": back, "dw": dw, "db": dy.sum(over),
        "ty": back + tb.reshape(column), "tdx": forward, "tdw": dw, "tdb": x.sum(over),
    }  # fmt: skip


def check(backend, dtype, rng, case, memory="contiguous"):
    arrays = case.arrays(rng, dtype)
    values = [float64(a) for a in arrays]
    right, scale = expected(case, values), expected(case, [np.abs(v) for v in values])
    for name, result in run(backend, dtype, case, arrays, memory).items():
        try:
            assert_close(result, right[name], dtype, "conv", scale=scale[name])
        except AssertionError as error:
            raise AssertionError(f"{name} of {case}: {error}") from None


CASES = {
    "1d": Case(2, 3, 5, (37,), (3,), (2,), ((1, 2),), (2,)),
    "2d": Case(2, 5, 4, (9, 13), (3, 3), (1, 1), ((1, 1), (1, 1))),
    "2d-strided": Case(3, 4, 3, (12, 17), (3, 2), (2, 3), ((1, 0), (2, 1))),
    "2d-dilated": Case(2, 2, 3, (14, 11), (3, 3), (1, 2), ((2, 2), (0, 3)), (2, 3)),
    "2d-pointwise": Case(2, 7, 9, (6, 5), (1, 1)),
    "2d-groups": Case(2, 3, 2, (8, 9), (3, 3), (1, 1), ((1, 1), (1, 1)), groups=4),
    "2d-depthwise": Case(2, 1, 1, (9, 21), (3, 3), (1, 1), ((1, 1), (1, 1)), groups=9),
    "2d-depthwise-strided": Case(2, 1, 2, (11, 19), (5, 3), (2, 2), ((2, 2), (1, 1)), groups=5),
    "2d-depthwise-many": Case(2, 1, 1, (6, 37), (3, 3), (1, 1), ((1, 1), (1, 1)), groups=45),
    "3d-depthwise": Case(
        2, 1, 1, (4, 5, 6), (3, 2, 3), (2, 1, 2), ((1, 1), (0, 1), (1, 0)), (1, 2, 1), groups=11
    ),
    "3d": Case(2, 2, 3, (5, 6, 7), (2, 3, 3), (1, 2, 1), ((0, 1), (1, 1), (1, 1))),
    "one-pixel": Case(1, 1, 1, (1, 1), (1, 1)),
    "wide-padding": Case(1, 2, 2, (3, 2), (2, 2), (1, 1), ((4, 5), (6, 3))),
    "tail": Case(1, 33, 70, (5, 67), (3, 3), (1, 1), ((1, 1), (1, 1))),
}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CASES)
def test_all_directions(backend, dtype, rng, name, layout):
    check(backend, dtype, rng, replace(CASES[name], layout=layout))


@pytest.mark.sanitize
@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["1d", "2d-strided", "2d-groups", "2d-depthwise", "2d-pointwise"])
def test_memory_layouts(backend, rng, name, layout, memory):
    """EDGE 21, 26: any strides and alignment of all inputs and outputs."""
    for dtype in ("float32", "bfloat16"):
        check(backend, dtype, rng, replace(CASES[name], layout=layout), memory)


def random_case(rng):
    dims = int(rng.integers(1, 4))
    integers = lambda low, high: tuple(map(int, rng.integers(low, high, dims)))  # noqa: E731
    taps, dilation, stride = integers(1, 5), integers(1, 4), integers(1, 4)
    pads = tuple(zip(integers(0, 4), integers(0, 4), strict=True))
    smallest = [max(d * (k - 1) + 1 - sum(p), 1) for d, k, p in zip(dilation, taps, pads,
                                                                   strict=True)]  # fmt: skip
    extents = tuple(s + int(rng.integers(0, {1: 200, 2: 24, 3: 7}[dims])) for s in smallest)
    depthwise = rng.random() < 0.2
    groups = int(rng.integers(2, 20)) if depthwise else int(rng.choice([1, 1, 2, 3]))
    c, k = (1, int(rng.choice([1, 1, 2]))) if depthwise else map(int, rng.integers(1, 12, 2))
    if not depthwise and rng.random() < 0.4:  # what tensor cores take
        unit = 8 if groups == 1 else 64
        c, k = (unit * int(n) for n in rng.integers(1, 136 // unit + 1, 2))
    return Case(int(rng.integers(1, 4)), c, k, extents, taps, stride, pads, dilation, groups,
                str(rng.choice(["NCHW", "NHWC"])))  # fmt: skip


@pytest.mark.parametrize("seed", range(1000))
def test_random_problems(backend, seed):
    """A failure names its seed and prints the case."""
    rng = np.random.default_rng(seed)
    check(backend, FLOATS[seed % 4], rng, random_case(rng))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_agrees_with_torch(rng, dims, transposed):
    torch = pytest.importorskip("torch")
    case = Case(2, 3, 4, (9, 8, 7)[:dims], (3, 2, 3)[:dims], (2, 1, 2)[:dims],
                ((1, 1), (1, 1), (2, 2))[:dims], (1, 2, 1)[:dims], groups=2)  # fmt: skip
    x, w, b, tb, dy = (torch.from_numpy(a).requires_grad_() for a in case.arrays(rng, "float64"))
    mine = {name: torch.from_numpy(a) for name, a in
            run_cpu(case, [t.detach().numpy() for t in (x, w, b, tb, dy)]).items()}  # fmt: skip
    kw = {"stride": case.stride, "padding": [p[0] for p in case.pads], "dilation": case.dilation,
          "groups": case.groups}  # fmt: skip
    if transposed:
        y = getattr(torch.nn.functional, f"conv_transpose{dims}d")(
            dy, w, tb, output_padding=case.output_padding, **kw)  # fmt: skip
        grads = torch.autograd.grad(y, (dy, w, tb), x)
    else:
        y = getattr(torch.nn.functional, f"conv{dims}d")(x, w, b, **kw)
        grads = torch.autograd.grad(y, (x, w, b), dy)
    prefix = "t" if transposed else ""
    for name, value in zip(("y", "dx", "dw", "db"), (y, *grads), strict=True):
        torch.testing.assert_close(mine[prefix + name], value.detach())


def run_cpu(case, arrays):
    return run(get_backend("cpu"), "float64", case, arrays)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gradients_by_finite_differences(rng, layout):
    case = Case(2, 2, 3, (5, 4), (2, 3), (2, 1), ((1, 0), (1, 1)), (1, 1), 2, layout)
    x, w, b, tb, dy = (case.place(a) if a.ndim > 1 else a for a in case.arrays(rng, "float64"))
    kw, tkw = case.arguments, case.arguments | {"output_padding": case.output_padding}
    dx = dlkern.conv_backward_input(dy, w, x.shape, **kw)
    dw, db = dlkern.conv_backward_weight(dy, x, w.shape, bias=True, **kw)
    assert_grad(lambda *a: dlkern.conv(*a, **kw), [x, w, b], dy, [dx, dw, db])
    dx = dlkern.conv_transpose_backward_input(x, w, dy.shape, **tkw)
    dw, db = dlkern.conv_transpose_backward_weight(x, dy, w.shape, bias=True, **tkw)
    assert_grad(lambda *a: dlkern.conv_transpose(*a, **tkw), [dy, w, tb], x, [dx, dw, db])


@pytest.mark.parametrize(
    ("n", "k", "stride", "pads", "positions"),
    [(4, 2, 1, (0, 1), 4), (224, 7, 2, (2, 3), 112), (5, 3, 2, (1, 1), 3), (6, 1, 4, (0, 0), 2)],
)
def test_edge_13_same_padding(backend, rng, n, k, stride, pads, positions):
    x, w = rng.standard_normal((1, 2, n)), rng.standard_normal((3, 2, k))
    assert conv_oracle.same_pads([n], [k], [stride], [1]) == [pads]
    y = dlkern.conv(backend.array(x), backend.array(w), stride=stride, padding="same")
    explicit = dlkern.conv(backend.array(x), backend.array(w), stride=stride, padding=[pads])
    assert tuple(y.shape) == (1, 3, positions)
    np.testing.assert_array_equal(backend.numpy(y), backend.numpy(explicit))
    back = dlkern.conv_transpose(y, backend.array(w), stride=stride, padding="same")
    assert tuple(back.shape) == (1, 2, positions * stride)


def test_same_padding_agrees_with_jax(rng):
    lax = pytest.importorskip("jax").lax
    for n, k, s, d in ((9, 4, 2, 1), (10, 3, 3, 2), (7, 2, 1, 3)):
        x = rng.standard_normal((2, 3, n, n + 1)).astype("f4")
        w = rng.standard_normal((4, 3, k, k)).astype("f4")
        theirs = lax.conv_general_dilated(x, w, (s, s), "SAME", rhs_dilation=(d, d))
        mine = dlkern.conv(x, w, stride=s, padding="same", dilation=d)
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_padding_forms(backend, rng):
    x, w = (backend.array(rng.standard_normal(s)) for s in ((1, 2, 6, 7), (2, 2, 3, 3)))
    call = lambda **kw: backend.numpy(dlkern.conv(x, w, **kw))  # noqa: E731
    np.testing.assert_array_equal(call(padding=1), call(padding=[(1, 1), (1, 1)]))
    np.testing.assert_array_equal(call(padding=(0, 2)), call(padding=(0, (2, 2))))
    np.testing.assert_array_equal(call(padding="valid"), call())
    np.testing.assert_array_equal(call(stride=(2, 2), dilation=[2, 2]), call(stride=2, dilation=2))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("layout", ["NCW", "NWC"])
def test_causal(backend, rng, layout, groups):
    """Padding at the beginning alone: a position sees itself and those before."""
    taps, dilation, extent = 4, 3, 29
    before = dilation * (taps - 1)
    place = lambda a: np.swapaxes(a, 1, 2) if layout == "NWC" else a  # noqa: E731
    put = lambda a: backend.array(np.ascontiguousarray(place(a)))  # noqa: E731
    get = lambda a: place(backend.numpy(a))  # noqa: E731
    x, dy = (rng.standard_normal((2, c, extent)) for c in (6, 12))
    w = rng.standard_normal((12, 6 // groups, taps))
    options = {"padding": [(before, 0)], "dilation": dilation, "groups": groups, "layout": layout}
    y = get(dlkern.conv(put(x), put(w), **options))
    dx = get(dlkern.conv_backward_input(put(dy), put(w), put(x).shape, **options))
    dw, _ = dlkern.conv_backward_weight(put(dy), put(x), put(w).shape, **options)

    # Each position by itself: y[t] = sum_j w[j] x[t - (taps - 1 - j) dilation].
    right = [np.zeros_like(a) for a in (y, x, w)]
    c, k = 6 // groups, 12 // groups
    for g in range(groups):
        of_x, of_y = slice(g * c, (g + 1) * c), slice(g * k, (g + 1) * k)
        for t in range(extent):
            for j in range(taps):
                source = t - (taps - 1 - j) * dilation
                if source < 0:
                    continue
                tap = w[of_y, :, j]
                right[0][:, of_y, t] += x[:, of_x, source] @ tap.T
                right[1][:, of_x, source] += dy[:, of_y, t] @ tap
                right[2][of_y, :, j] += dy[:, of_y, t].T @ x[:, of_x, source]
    for result, expected in zip((y, dx, get(dw)), right, strict=True):
        assert_close(result, expected, "float64", "conv", scale=100)

    later = x.copy()
    later[..., 17:] = np.nan
    np.testing.assert_array_equal(get(dlkern.conv(put(later), put(w), **options))[..., :17],
                                  y[..., :17])  # fmt: skip


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "channels",
    [
        {"c": 2, "k": 3},
        {"c": 2, "k": 3, "taps": (1, 1)},
        {"c": 1, "k": 1, "groups": 3},
        {"c": 2, "k": 2, "groups": 2},
    ],
    ids=["one group", "one tap", "depthwise", "groups"],
)
def test_edge_14_batch_65537(backend, rng, layout, channels):
    case = Case(**{"batch": 65537, "extents": (2, 3), "taps": (2, 2), "layout": layout} | channels)
    x, w, b, tb, dy = case.arrays(rng, "float32")
    alone = run(backend, "float32", replace(case, batch=1), [x[-1:], w, b, tb, dy[-1:]])
    many = run(backend, "float32", case, [x, w, b, tb, dy])
    for name in ("y", "dx", "ty", "tdx"):
        np.testing.assert_array_equal(many[name][-1:], alone[name])
    right = expected(case, [x, w, b, tb, dy])
    scale = expected(case, [np.abs(a) for a in (x, w, b, tb, dy)])
    for name in ("dw", "db", "tdw", "tdb"):
        assert_close(many[name], right[name], "float32", "conv", scale=scale[name])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["2d", "2d-strided", "2d-depthwise", "2d-pointwise", "3d"])
def test_images_do_not_depend_on_the_batch(backend, dtype, rng, name, layout):
    case = replace(CASES[name], layout=layout, batch=9)
    x, w, b, tb, dy = case.arrays(rng, dtype)
    many = run(backend, dtype, case, [x, w, b, tb, dy])
    one = run(backend, dtype, replace(case, batch=1), [x[4:5], w, b, tb, dy[4:5]])
    for result in ("y", "dx", "ty", "tdx"):
        np.testing.assert_array_equal(many[result][4:5], one[result])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "c, groups, taps, layout",
    [(1, 1, 3, "NHWC"), (64, 1, 3, "NHWC"), (64, 1, 1, "NHWC"), (64, 8, 3, "NHWC"),
     (64, 64, 3, "NCHW")],
)  # fmt: skip
def test_edge_15_more_than_2_31_elements(gpu, c, groups, taps, layout):
    """The last images are as alone, and the gradient of weights is the sum of those of parts."""
    torch = pytest.importorskip("torch")
    batch = 2**31 // (256 * c) + 8
    shape = lambda n: (n, 16, 16, c) if layout == "NHWC" else (n, c, 16, 16)  # noqa: E731
    window = (taps, taps)
    w_shape = (c, *window, c // groups) if layout == "NHWC" else (c, c // groups, *window)
    random = lambda s: torch.randn(s, dtype=torch.float16, device="cuda")  # noqa: E731
    x, dy, w = random(shape(batch)), random(shape(batch)) / 64, random(w_shape)
    kw = {"padding": taps // 2, "layout": layout, "groups": groups}
    last = slice(batch - 3, batch)
    close = {"rtol": 2**-9, "atol": 2**-6}
    y = dlkern.conv(x, w, **kw)
    torch.testing.assert_close(y[last], dlkern.conv(x[last], w, **kw), **close)
    del y
    dx = dlkern.conv_backward_input(dy, w, shape(batch), **kw)
    alone = dlkern.conv_backward_input(dy[last], w, shape(3), **kw)
    torch.testing.assert_close(dx[last], alone, **close)
    del dx
    dw, _ = dlkern.conv_backward_weight(dy, x, w_shape, **kw)
    parts = torch.zeros(w_shape, dtype=torch.float64, device="cuda")
    for some in torch.arange(batch, device="cuda").chunk(8):
        part = slice(int(some[0]), int(some[-1]) + 1)
        parts += dlkern.conv_backward_weight(dy[part], x[part], w_shape, **kw)[0]
    size = float(parts.square().mean().sqrt())
    torch.testing.assert_close(dw.double(), parts, rtol=2**-8, atol=2**-9 * size)


def test_edge_16_strides_of_size_one_dimensions(backend, dtype, rng):
    """EDGE 23 too: what a size-1 dimension's stride says does not matter."""
    case = Case(1, 1, 3, (1, 9), (1, 3), (1, 1), ((0, 0), (1, 1)))
    arrays = case.arrays(rng, dtype)
    usual = run(backend, dtype, case, arrays)
    x, w = arrays[:2]
    odd = np.lib.stride_tricks.as_strided
    item = x.itemsize
    arrays[0] = odd(x, x.shape, (7 * item, 3 * item, 5 * item, item))
    arrays[1] = odd(w, w.shape, (3 * item, 11 * item, 13 * item, item))
    for name, value in run(OddStrides(backend), dtype, case, arrays).items():
        np.testing.assert_array_equal(value, usual[name])


class OddStrides:
    """A backend that keeps a NumPy array's strides, where it is on the CPU."""

    def __init__(self, backend):
        self.backend = backend

    def array(self, values, memory):
        return self.backend.array(values, memory) if self.backend.is_gpu else values

    def __getattr__(self, name):
        return getattr(self.backend, name)


def test_edge_22_empty_tensors(backend, dtype):
    zeros = lambda *shape: backend.array(rounded(np.zeros(shape), dtype))  # noqa: E731
    ones = lambda *shape: backend.array(rounded(np.ones(shape), dtype))  # noqa: E731
    nan = lambda *shape: backend.empty(shape, dtype)  # noqa: E731
    assert tuple(dlkern.conv(zeros(0, 2, 5), zeros(3, 2, 3)).shape) == (0, 3, 3)
    assert tuple(dlkern.conv(zeros(2, 2, 5), zeros(0, 2, 3)).shape) == (2, 0, 3)
    y = dlkern.conv(zeros(2, 0, 5), zeros(3, 0, 3), ones(3), out=nan(2, 3, 3))
    np.testing.assert_array_equal(backend.numpy(y), np.ones((2, 3, 3)))
    y = dlkern.conv(zeros(2, 5, 0), zeros(3, 3, 0), layout="NWC", out=nan(2, 3, 3))
    np.testing.assert_array_equal(backend.numpy(y), np.zeros((2, 3, 3)))
    dx = dlkern.conv_backward_input(zeros(2, 0, 3), zeros(0, 2, 3), None, out=nan(2, 2, 5))
    np.testing.assert_array_equal(backend.numpy(dx), np.zeros((2, 2, 5)))
    y = dlkern.conv_transpose(zeros(2, 0, 3), zeros(0, 2, 3), ones(2), stride=2, out=nan(2, 2, 7))
    np.testing.assert_array_equal(backend.numpy(y), np.ones((2, 2, 7)))
    dw, db = dlkern.conv_backward_weight(zeros(0, 3, 3), zeros(0, 2, 5), None, bias=True,
                                         out=nan(3, 2, 3), out_bias=nan(3))  # fmt: skip
    np.testing.assert_array_equal(backend.numpy(dw), np.zeros((3, 2, 3)))
    np.testing.assert_array_equal(backend.numpy(db), np.zeros(3))
    _, db = dlkern.conv_backward_weight(ones(2, 3, 3), zeros(2, 0, 5), (3, 0, 3), bias=True)
    np.testing.assert_array_equal(backend.numpy(db), np.full(3, 6.0))


def test_zero_strides(backend, dtype, rng):
    case = Case(3, 2, 2, (4, 5), (2, 2))
    x, w, b, _, _ = case.arrays(rng, dtype)
    pixel = x[:1, :, :1, :1]
    wide = np.broadcast_to(pixel, x.shape)
    out = backend.empty((3, 2, 3, 4), dtype)
    y = dlkern.conv(backend.broadcast(pixel, x.shape), backend.array(w), backend.array(b), out=out)
    right = dlkern.conv(backend.array(wide), backend.array(w), backend.array(b))
    np.testing.assert_array_equal(backend.numpy(y), backend.numpy(right))


@pytest.mark.parametrize("name", ["2d", "2d-depthwise"])
@pytest.mark.parametrize("transposed", [False, True])
def test_accumulate(backend, dtype, rng, name, transposed):
    case = CASES[name]
    x, w, b, tb, dy = case.arrays(rng, dtype)
    op, kw, before = dlkern.conv_backward_weight, case.arguments, b
    if transposed:
        op, kw, before = dlkern.conv_transpose_backward_weight, kw, tb
        kw = kw | {"output_padding": case.output_padding}
        dy, x = x, dy
    put = backend.array
    dw, db = op(put(dy), put(x), w.shape, bias=True, **kw)
    sum_w, sum_b = op(put(dy), put(x), None, bias=True, accumulate=True, out=put(w),
                      out_bias=put(before), **kw)  # fmt: skip
    for total, start, part in ((sum_w, w, dw), (sum_b, before, db)):
        part = backend.numpy(part)
        scale = np.abs(float64(start)) + np.abs(part) * (2 if "16" not in dtype else 2**14)
        assert_close(backend.numpy(total), float64(start) + part, dtype, "conv", scale=scale)


@pytest.mark.parametrize("transposed", [False, True])
def test_memory_for_a_bias_gradient_asks_for_it(backend, rng, transposed):
    """Given and left as it was, it would pass for a gradient."""
    x, w, b, tb, dy = CASES["2d"].arrays(rng, "float32")
    op, first, second, like = dlkern.conv_backward_weight, dy, x, b
    if transposed:
        op, first, second, like = dlkern.conv_transpose_backward_weight, x, dy, tb
    put, kw = backend.array, CASES["2d"].arguments
    out = backend.empty(like.shape, "float32")
    _, db = op(put(first), put(second), w.shape, out_bias=out, **kw)
    _, right = op(put(first), put(second), w.shape, bias=True, **kw)
    assert db is out
    np.testing.assert_array_equal(backend.numpy(db), backend.numpy(right))


def test_edge_10_inputs_are_left_alone(backend, dtype, rng):
    case = CASES["2d-strided"]
    arrays = case.arrays(rng, dtype)
    device = [backend.array(a) for a in arrays]
    run(OnDevice(backend, dict(zip(map(id, arrays), device, strict=True))), dtype, case, arrays)
    for array, before in zip(device, arrays, strict=True):
        np.testing.assert_array_equal(backend.raw(array), before)


class OnDevice:
    """A backend whose arrays are made already."""

    def __init__(self, backend, made):
        self.backend, self.made = backend, made

    def array(self, values, memory):
        return self.made[id(values)]

    def __getattr__(self, name):
        return getattr(self.backend, name)


@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_the_number_of_threads(rng, name):
    threads = dlkern.get_num_threads()
    for layout in ("NCHW", "NHWC"):
        case = replace(CASES[name], layout=layout, batch=7)
        arrays = case.arrays(rng, "float32")
        results = []
        for n in (1, 3):
            dlkern.set_num_threads(n)
            try:
                results.append(run(get_backend("cpu"), "float32", case, arrays))
            finally:
                dlkern.set_num_threads(threads)
        for key, value in results[0].items():
            np.testing.assert_array_equal(value, results[1][key])


def test_nan_and_infinity_spread_as_in_a_sum(backend, rng):
    x = rng.standard_normal((1, 1, 8))
    x[0, 0, 2], x[0, 0, 6] = np.nan, np.inf
    w = np.ones((1, 1, 3))
    y = backend.numpy(dlkern.conv(backend.array(x), backend.array(w)))
    right = conv_oracle.forward(x, w, stride=[1], pads=[(0, 0)], dilation=[1])
    assert_close(y, right, "float64", "conv", scale=1.0)


def test_overlapping_output_is_refused(backend, rng):
    base = backend.array(rng.standard_normal((1, 1, 12)))
    w = backend.array(np.ones((1, 1, 1)))
    with pytest.raises(ValueError, match="out overlaps x"):
        dlkern.conv(base, w, out=base)


def test_explain_names_an_implementation(backend, rng):
    x, w = (backend.array(rng.standard_normal(s)) for s in ((1, 2, 8), (2, 2, 3)))
    (plan,) = dlkern.explain(dlkern.conv, x, w)
    assert plan.implementation


X, W, B = np.zeros((2, 4, 8, 8)), np.zeros((6, 2, 3, 3)), np.zeros(6)
Y = np.zeros((2, 6, 6, 6))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.conv(a(X), a(W)), ValueError,
         r"weight.shape\[1\] is 2, expected 4 \(x has 4 channels\)"),
        (lambda a: dlkern.conv(a(X), a(W), groups=3), ValueError,
         r"weight.shape\[1\] is 2, expected 4 / 3"),
        (lambda a: dlkern.conv(a(X), a(W[:5]), groups=2), ValueError,
         r"weight.shape\[0\] is 5, expected a multiple of groups"),
        (lambda a: dlkern.conv(a(X), a(W), groups=0), ValueError, "groups is 0"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2.0), TypeError, "groups is 2.0"),
        (lambda a: dlkern.conv(a(X), a(W), a(B[:4]), groups=2), ValueError,
         r"bias.shape is \[4\], expected \[6\]"),
        (lambda a: dlkern.conv(a(X), a(W[..., 0]), groups=2), ValueError, "weight has 3 dim"),
        (lambda a: dlkern.conv(a(X[0, 0]), a(W)), ValueError,
         "x has 2 dimensions, expected 3 to 5"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, stride=0), ValueError, r"stride\[0\] is 0"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, stride=(1, 2, 3)), ValueError,
         r"stride is \(1, 2, 3\), expected an integer or 2"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, dilation=-1), ValueError,
         r"dilation\[0\] is -1"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, padding=-1), ValueError,
         r"pad_begin\[0\] is -1"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, padding="full"), ValueError,
         "padding is 'full'"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, padding=[(1, 1, 1), 0]), ValueError,
         r"padding\[0\] is \(1, 1, 1\)"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, dilation=4), ValueError,
         r"x.shape\[2\] is 8, which gives an output extent of 0"),
        (lambda a: dlkern.conv(a(X), a(W[:, :, :0]), groups=2), ValueError,
         r"weight.shape\[2\] is 0"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, layout="HWCN"), ValueError,
         "layout is 'HWCN'"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, layout="NCW"), ValueError,
         "layout is 'NCW', expected one for arrays of 4"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, precision="half"), ValueError,
         "precision is 'half'"),
        (lambda a: dlkern.conv(a(X), a(W.astype("f4")), groups=2), TypeError,
         r"weight.dtype is float32, expected float64 \(x.dtype\)"),
        (lambda a: dlkern.conv(a(X.astype("i4")), a(W.astype("i4")), groups=2), TypeError,
         "x.dtype is int32"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, out=a(X)), ValueError,
         r"out.shape is \[2, 4, 8, 8\], expected \[2, 6, 6, 6\]"),
        (lambda a: dlkern.conv(a(X), a(W), groups=2, out=a(Y.astype("f4"))), TypeError,
         "out.dtype is float32"),
        (lambda a: dlkern.conv_backward_input(a(Y), a(W), X.shape), ValueError,
         r"weight.shape\[1\] is 2, expected 4 \(dx has 4 channels"),
        (lambda a: dlkern.conv_backward_input(a(Y), a(W), (2, 4, 9, 8), groups=2), ValueError,
         r"dy.shape is \[2, 6, 6, 6\], expected \[2, 6, 7, 6\]"),
        (lambda a: dlkern.conv_backward_input(a(Y), a(W), (2, 4), groups=2), ValueError,
         r"input_shape is \(2, 4\), expected 4 extents"),
        (lambda a: dlkern.conv_backward_input(a(Y), a(W), None, groups=2), TypeError,
         "input_shape is None"),
        (lambda a: dlkern.conv_backward_weight(a(Y), a(X), (6, 4, 3, 3), groups=2), ValueError,
         r"dweight.shape\[1\] is 4, expected 4 / 2"),
        (lambda a: dlkern.conv_backward_weight(a(Y), a(X), W.shape, groups=2, accumulate=True),
         ValueError, "conv_backward_weight: accumulate is True, expected out to add to"),
        (lambda a: dlkern.conv_backward_weight(a(Y), a(X), None, groups=2, accumulate=True,
                                               bias=True, out=a(W)),
         ValueError, "accumulate is True, expected out and out_bias to add to"),
        (lambda a: dlkern.conv_backward_weight(a(Y), a(X), W.shape, groups=2, bias=True,
                                               out_bias=a(np.zeros(5))), ValueError,
         r"out_bias.shape is \[5\], expected \[6\]"),
        (lambda a: dlkern.conv_transpose(a(Y), a(W), groups=2, output_padding=1), ValueError,
         r"output_padding\[0\] is 1, expected it in \[0, 1\)"),
        (lambda a: dlkern.conv_transpose(a(X), a(W), groups=2), ValueError,
         r"weight.shape\[0\] is 6, expected 4 \(x has 4 channels"),
        (lambda a: dlkern.conv_transpose(a(Y[:, :, :1]), a(W), groups=2, padding=3), ValueError,
         r"which gives an output extent of -3"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_an_extent_beyond_64_bits_is_refused():
    """Wrapped around, 2^34 steps of 2^30 would be none, and the result one pixel."""
    x = np.broadcast_to(np.float32(1), (1, 1, 2**34 + 1))
    with pytest.raises(ValueError, match=r"x.shape\[2\] is 17179869185, expected at most 2\^59 / "):
        dlkern.conv_transpose(x, np.ones((1, 1, 1), "f4"), stride=2**30)


def test_read_only_output_is_refused():
    out = np.zeros((2, 6, 6, 6))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        dlkern.conv(X, W, groups=2, out=out)
