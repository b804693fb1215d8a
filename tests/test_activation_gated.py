"""Gated linear units and their gradients against float64."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, assert_grad, float64, rounded
from test_activation import CASES, gradient

import dlkern

# Function -> its options and the activation of the gate.
GATED = {
    "swiglu": ("swiglu", {}, "silu"),
    "geglu": ("geglu", {}, "gelu"),
    "geglu_tanh": ("geglu", {"approximate": "tanh"}, "gelu_tanh"),
    "reglu": ("reglu", {}, "relu"),
    "glu": ("glu", {}, "sigmoid"),
}
each_gate = pytest.mark.parametrize("kind", GATED)


def forward(kind, *arrays, **kwargs):
    name, options, _ = GATED[kind]
    return getattr(dlkern, name)(*arrays, **options, **kwargs)


def backward(kind, *arrays, **kwargs):
    name, options, _ = GATED[kind]
    return getattr(dlkern, f"{name}_backward")(*arrays, **options, **kwargs)


def numbers(rng, shape, dtype, n=3):
    return [rounded(2 * rng.standard_normal(shape), dtype) for _ in range(n)]


def packed(gate, up, gate_last=False):
    return np.concatenate([up, gate] if gate_last else [gate, up], axis=-1)


@each_gate
@pytest.mark.parametrize("shape", [(1,), (0, 3), (1031,), (3, 5, 64), (40, 1030)])
def test_forward_and_backward(backend, dtype, rng, kind, shape):
    dy, gate, up = numbers(rng, shape, dtype)
    arrays = [backend.array(a) for a in (gate, up)]
    activation = CASES[GATED[kind][2]]
    expected = activation[1](float64(gate)) * float64(up)
    size = np.maximum(np.abs(expected), 1e-2 * np.abs(float64(up)))
    assert_close(backend.numpy(forward(kind, *arrays)), expected, dtype, "gelu", size)
    dgate, dup = backward(kind, backend.array(dy), *arrays)
    expected, size = gradient(GATED[kind][2], float64(dy) * float64(up), gate)
    assert_close(backend.numpy(dgate), expected, dtype, "activation_backward", size)
    expected = activation[1](float64(gate)) * float64(dy)
    size = np.maximum(np.abs(expected), 1e-2 * np.abs(float64(dy)))
    assert_close(backend.numpy(dup), expected, dtype, "gelu", size)


@each_gate
def test_gradient_by_finite_differences(rng, kind):
    dy, gate, up = numbers(rng, (3, 7), "float64")
    assert_grad(lambda *a: forward(kind, *a), [gate, up], dy, backward(kind, dy, gate, up))
    x = packed(gate, up)
    assert_grad(lambda a: forward(kind, a), [x], dy, [backward(kind, dy, x)])


@pytest.mark.sanitize
@pytest.mark.parametrize("gate_last", [False, True])
@pytest.mark.parametrize("shape", [(1,), (5, 1), (2, 0), (3, 2, 37), (7, 64), (1000, 24)])
def test_packed_gives_the_same_bits(backend, dtype, rng, shape, gate_last):
    dy, gate, up = numbers(rng, shape, dtype)
    y = backend.raw(forward("swiglu", backend.array(gate), backend.array(up)))
    dgate, dup = backward("swiglu", *(backend.array(a) for a in (dy, gate, up)))
    x = backend.array(packed(gate, up, gate_last))
    got = forward("swiglu", x, gate_last=gate_last)
    np.testing.assert_array_equal(backend.raw(got), y)
    dx = backward("swiglu", backend.array(dy), x, gate_last=gate_last)
    expected = packed(backend.raw(dgate), backend.raw(dup), gate_last)
    np.testing.assert_array_equal(backend.raw(dx), expected)


def test_halves_are_those_of_torch(rng):
    """torch.nn.functional.glu has the gate last; Llama's packed projections have it first."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((3, 5, 8)))
    torch.testing.assert_close(dlkern.glu(x, gate_last=True), torch.nn.functional.glu(x))
    gate, up = x.chunk(2, dim=-1)
    torch.testing.assert_close(dlkern.swiglu(x), torch.nn.functional.silu(gate) * up)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout):
    """EDGE 21, 26: the same bits for any strides and alignment of inputs and outputs."""
    for dtype, shape in (("bfloat16", (3, 4, 64)), ("float32", (5, 37)), ("float64", (2, 34))):
        dy, gate, up = numbers(rng, shape, dtype)
        plain = [backend.array(a) for a in (dy, gate, up)]
        placed = [backend.array(a, layout) for a in (dy, gate, up)]
        expected = [forward("geglu", *plain[1:]), *backward("geglu", *plain)]
        outs = [backend.empty(shape, dtype, layout) for _ in range(3)]
        forward("geglu", *placed[1:], out=outs[0])
        backward("geglu", *placed, out=outs[1], out_up=outs[2])
        for out, value in zip(outs, expected, strict=True):
            np.testing.assert_array_equal(backend.raw(out), backend.raw(value))
        if shape[-1] % 2 == 0:
            x = packed(gate, up)
            y, dx = backend.empty(shape, dtype, layout), backend.empty(x.shape, dtype, layout)
            forward("geglu", backend.array(x, layout), out=y)
            backward("geglu", placed[0], backend.array(x, layout), out=dx)
            np.testing.assert_array_equal(backend.raw(y), backend.raw(expected[0]))
            both = packed(*(backend.raw(e) for e in expected[1:]))
            np.testing.assert_array_equal(backend.raw(dx), both)


@each_gate
def test_in_place(backend, dtype, rng, kind):
    dy, gate, up = numbers(rng, (5, 1032), dtype)

    def fresh():
        return [backend.array(a) for a in (dy, gate, up)]

    y = backend.raw(forward(kind, *fresh()[1:]))
    for k in (1, 2):
        arrays = fresh()
        assert forward(kind, *arrays[1:], out=arrays[k]) is arrays[k]
        np.testing.assert_array_equal(backend.raw(arrays[k]), y)
    expected = [backend.raw(d) for d in backward(kind, *fresh())]
    for first, second in ((1, 2), (2, 1), (0, 1), (2, 0)):
        arrays = fresh()
        backward(kind, *arrays, out=arrays[first], out_up=arrays[second])
        np.testing.assert_array_equal(backend.raw(arrays[first]), expected[0])
        np.testing.assert_array_equal(backend.raw(arrays[second]), expected[1])
    x = backend.array(packed(gate, up))
    backward(kind, backend.array(dy), x, out=x)
    np.testing.assert_array_equal(backend.raw(x), packed(*expected))


def test_in_place_in_half_of_a_packed_array(backend, rng):
    _, gate, up = numbers(rng, (5, 64), "float32")
    expected = backend.raw(dlkern.swiglu(backend.array(gate), backend.array(up)))
    x = backend.array(packed(gate, up))
    dlkern.swiglu(x, out=x[:, :64])
    np.testing.assert_array_equal(backend.raw(x), packed(expected, up))


def test_rows_do_not_depend_on_the_batch(backend, dtype, rng):
    x = rounded(rng.standard_normal((300, 2 * 72)), dtype)
    y = backend.raw(dlkern.swiglu(backend.array(x)))
    for part in (np.s_[7:8], np.s_[100:103]):
        np.testing.assert_array_equal(backend.raw(dlkern.swiglu(backend.array(x[part]))), y[part])


def test_gates_that_are_closed_for_good(backend, dtype):
    gate = rounded([-np.inf, -1000, 1000, np.nan], dtype)
    up = rounded([2, 2, 2, 2], dtype)
    for kind in ("swiglu", "geglu", "geglu_tanh", "reglu", "glu"):
        y = backend.numpy(forward(kind, backend.array(gate), backend.array(up)))
        top = 2 if kind == "glu" else 2000
        np.testing.assert_array_equal(y, [0, 0, top, np.nan])
        arrays = (backend.array(a) for a in (rounded(np.ones(4), dtype), gate, up))
        dgate, dup = (backend.numpy(d) for d in backward(kind, *arrays))
        np.testing.assert_array_equal(dgate[:3], [0, 0, 0 if kind == "glu" else 2])
        np.testing.assert_array_equal(dup, [0, 0, top / 2, np.nan])


@pytest.mark.gpu
def test_edge_15_more_than_2_31_elements(gpu):
    torch = pytest.importorskip("torch")
    rows = 2**20 + 8
    if torch.cuda.mem_get_info()[0] < 6 * rows * 1024 + 2**30:
        pytest.skip("not enough memory on the GPU")
    x = torch.zeros(rows, 2048, dtype=torch.bfloat16, device="cuda")
    x[-8:] = torch.linspace(-4, 4, 2048, device="cuda").bfloat16()
    y = dlkern.swiglu(x)
    assert torch.equal(y[-8:], dlkern.swiglu(x[-8:].clone()))
    assert not y[:-8].any()


ONES = np.ones((2, 4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.swiglu(a(np.ones((2, 3)))), ValueError,
         r"swiglu: gate.shape is \[2, 3\], expected an even last extent"),
        (lambda a: dlkern.swiglu(a(np.ones(()))), ValueError, "even last extent"),
        (lambda a: dlkern.glu(a(ONES), a(np.ones((2, 3)))), ValueError,
         r"glu: up.shape is \[2, 3\], expected \[2, 4\]"),
        (lambda a: dlkern.reglu(a(ONES), a(ONES.astype("f4"))), TypeError, "up.dtype is float32"),
        (lambda a: dlkern.reglu(a(ONES.astype("i4"))), TypeError, "gate.dtype is int32"),
        (lambda a: dlkern.swiglu(a(ONES), out=a(ONES)), ValueError,
         r"swiglu: out.shape is \[2, 4\], expected \[2, 2\]"),
        (lambda a: dlkern.geglu(a(ONES), approximate="sigmoid"), ValueError,
         "geglu: approximate is 'sigmoid'"),
        (lambda a: dlkern.swiglu_backward(a(ONES), a(ONES)), ValueError,
         r"swiglu_backward: gate.shape is \[2, 2\]"),
        (lambda a: dlkern.swiglu_backward(a(ONES), a(ONES), out_up=a(ONES)), ValueError,
         "swiglu_backward: out_up is given without up"),
        (lambda a: dlkern.swiglu_backward(a(ONES), a(ONES), a(ONES), out_up=a(np.ones(3))),
         ValueError, r"swiglu_backward: out_up.shape is \[3\]"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_partial_overlap_is_refused(backend):
    x = backend.array(np.zeros((3, 8)))
    with pytest.raises(ValueError, match="out overlaps gate"):
        dlkern.swiglu(x, out=x[:, 1:5])
    d = backend.array(np.zeros((3, 8)))
    with pytest.raises(ValueError, match="swiglu_backward: out overlaps"):
        dlkern.swiglu_backward(x, x, x, out=d, out_up=d)
