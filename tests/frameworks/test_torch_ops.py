"""Each op of dlkern.torch: the plain op's bits, and what torch asks of an operator."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from backends import get_backend
from ops_table import NOT_OPS, OPS
from torch.utils._python_dispatch import TorchDispatchMode

import dlkern
import dlkern.torch as dkt
from dlkern.torch._registry import OPERATORS


def tensor(backend, array):
    """A torch tensor of the backend's device; bfloat16 and float8 through their bits."""
    if array.dtype.isbuiltin == 1:
        x = torch.from_numpy(array.copy())
    else:
        bits = array.view(f"i{array.itemsize}" if array.itemsize > 1 else "u1").copy()
        x = torch.from_numpy(bits).view(getattr(torch, array.dtype.name))
    return x.to("cuda" if backend.is_gpu else "cpu")


def arguments(op, backend, dtype="float32", grad=False):
    """What the op is called with: tensors, lists of them, options."""
    arrays = {n: tensor(backend, a) for n, a in op.make(dtype).items()}
    if grad:
        for name, x in arrays.items():
            if x.is_floating_point() and x.element_size() > 1 and name not in op.inout:
                x.requires_grad_()
    return op.arguments(arrays)


def flat(results):
    if isinstance(results, (tuple, list)):
        return [t for r in results for t in flat(r)]
    return [] if results is None else [results]


class Recorder(TorchDispatchMode):
    """The calls of dlkern's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "dlkern":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def call(op, values):
    return getattr(dkt, op.name)(**values)


def operator_call(op, values):
    """The operator that the function calls, and its arguments."""
    copies = {
        n: [t.detach().clone() for t in v] if isinstance(v, list) and torch.is_tensor(v[0])
        else v.detach().clone() if torch.is_tensor(v) else v for n, v in values.items()
    }  # fmt: skip
    with Recorder() as recorder:
        call(op, copies)
    return recorder.calls[0]


def test_every_op_is_there():
    assert set(dlkern.__all__) - NOT_OPS <= set(dkt.__all__)
    assert {op.name for op in OPS} <= set(OPERATORS)


# Parameters that the plain functions have alone.
LEFT_OUT = {"out", "stream", "grad_out", "accumulate"}
ADDED = {"embedding": {"padding_idx", "scale_grad_by_freq"}}


@pytest.mark.parametrize("name", sorted(set(dlkern.__all__) - NOT_OPS))
def test_parameters_are_those_of_the_plain_function(name):
    plain, ours = (inspect.signature(getattr(m, name)).parameters for m in (dlkern, dkt))
    expected = {n for n in plain if n not in LEFT_OUT and not n.startswith("out_")}
    expected |= {"out_dtype"} & set(plain)
    assert set(ours) == expected | ADDED.get(name, set())
    for n, parameter in plain.items():
        if n in ours and (name, n) != ("dropout", "rng"):  # drawn where it is left out
            assert ours[n].default == parameter.default, n


def test_types_are_those_of_the_operators(monkeypatch):
    """``python scripts/torch_stub.py`` writes them anew."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "scripts")
    import torch_stub

    assert torch_stub.STUB.read_text() == torch_stub.stub()


@pytest.mark.parametrize("op", OPS, ids=str)
def test_bits_of_the_plain_function(op, backend):
    got = flat(call(op, arguments(op, backend)))
    plain = arguments(op, backend)
    expected = flat(op.function(**plain))
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype
        assert torch.equal(g, e)


def test_lists_of_products(device):
    a = [torch.randn(3, 4, device=device, requires_grad=True) for _ in range(2)]
    b = [torch.randn(4, n, device=device) for n in (2, 5)]
    small = [(x.detach() * 10).to(torch.int8) for x in (*a, *b)]
    scales = [torch.full((), 0.5, device=device), None]
    products = dkt.grouped_matmul(a, b)
    for x, y, product in zip(a, b, products, strict=True):
        torch.testing.assert_close(product, x @ y)
    sum(p.sum() for p in products).backward()
    dy = [torch.ones_like(p) for p in products]
    da, _ = dkt.grouped_matmul_backward(dy, [x.detach() for x in a], b)
    assert all(torch.equal(x.grad, d) for x, d in zip(a, da, strict=True))
    got = dkt.grouped_matmul(small[:2], small[2:], scale_a=scales)
    expected = dlkern.grouped_matmul(small[:2], small[2:], scale_a=scales)
    assert [g.dtype for g in got] == [torch.bfloat16, torch.int32]
    assert all(torch.equal(g, e) for g, e in zip(got, expected, strict=True))


@pytest.mark.parametrize("op", OPS, ids=str)
def test_opcheck(op, backend):
    values = arguments(op, backend)
    func, args = operator_call(op, values)
    torch.library.opcheck(func, args, test_utils=utils_for(args))


def utils_for(args):
    """All, but those that compute with float8, which torch itself cannot."""
    float8 = any(torch.is_tensor(a) and "float8" in str(a.dtype) for a in args)
    utils = ("test_schema", "test_autograd_registration", "test_faketensor")
    return utils[1:] if float8 else (*utils, "test_aot_dispatch_dynamic")


# Inputs that an op differentiates nothing by.
CONSTANTS = {"running_mean", "running_var", "pos_weight", "cos", "sin", "scale_a", "scale_b"}
CONSTANTS_OF = {
    "cross_entropy": {"weight", "labels"}, "nll_loss": {"weight"}, "kl_div": {"target"},
    "binary_cross_entropy_with_logits": {"weight", "target"},
}  # fmt: skip
DIFFERENTIABLE = [
    op for op in OPS
    if OPERATORS[op.name].row.backward and "8" not in op.variant and op.name != "cast"
    and not (op.name == "linear_backward_input" and op.options)
    and str(op) != "batch_norm_training-stats"  # whose statistics do not follow x
]  # fmt: skip


def gradients_wanted(op, name, x):
    constant = name in CONSTANTS or name in CONSTANTS_OF.get(op.name, ())
    return x.is_floating_point() and not constant and name not in op.inout


def differentiable(op, backend):
    """A function of float64 tensors, and those, for gradcheck."""
    arrays = {n: tensor(backend, a) for n, a in op.make("float64").items()}
    names = [n for n, x in arrays.items() if gradients_wanted(op, n, x)]

    def function(*inputs):
        results = flat(call(op, op.arguments(arrays | dict(zip(names, inputs, strict=True)))))
        return tuple(r for r in results if r.requires_grad)

    return function, [arrays[n].requires_grad_() for n in names]


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_gradcheck(op, backend):
    assert torch.autograd.gradcheck(*differentiable(op, backend), fast_mode=True)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_compiles_without_graph_break(op):
    backend = get_backend("cpu")
    torch._dynamo.reset()
    values = arguments(op, backend)
    names = list(values)
    compiled = torch.compile(
        lambda *a: call(op, dict(zip(names, a, strict=True))), fullgraph=True, backend="eager"
    )
    got = flat(compiled(*values.values()))
    for g, e in zip(got, flat(call(op, arguments(op, backend))), strict=True):
        assert torch.equal(g, e)


TWICE = {
    "relu", "relu6", "leaky_relu", "hardsigmoid", "add", "dropout", "rope", "matmul", "linear",
    "conv", "conv_transpose", "avg_pool", "adaptive_avg_pool", "sum", "mean", "permute", "concat",
    "split", "contiguous", "nchw_to_nhwc", "nhwc_to_nchw",
}  # fmt: skip


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_second_derivatives_are_right_or_refused(op):
    if op.name.endswith("_backward") or "_backward_" in op.name:
        return
    twice = (op.name in TWICE and op.options.get("activation") != "gelu") or op.variant == "depth"
    twice |= str(op) == "conv_bias_act-NHWC"  # no scale
    function, inputs = differentiable(op, get_backend("cpu"))
    if twice:
        assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)
        return
    gradients = torch.autograd.grad(sum(r.sum() for r in function(*inputs)), inputs,
                                    create_graph=True, allow_unused=True)  # fmt: skip
    total = sum((g**2).sum() for g in gradients if g is not None and g.requires_grad)
    if torch.is_tensor(total):
        with pytest.raises(NotImplementedError, match="second derivatives are not supported"):
            total.backward()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("op", OPS, ids=str)
def test_shapes_and_dtypes_without_data(op, dtype):
    func, args = operator_call(op, arguments(op, get_backend("cpu"), dtype))
    torch.library.opcheck(func, args, test_utils=("test_faketensor",))


FLOAT8_OPTIONS = [
    {}, {"amax": True}, {"residual": True, "amax": True, "scale_out": True},
    {"return_stats": True, "residual": True}, {"return_stats": True, "amax": True},
]  # fmt: skip


@pytest.mark.parametrize("options", FLOAT8_OPTIONS, ids=lambda options: "-".join(options))
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms_in_float8(name, options, device):
    x, weight = (torch.randn(*shape, device=device) for shape in ((5, 16), (16,)))
    options = options | {"out_dtype": torch.float8_e4m3fn}
    if "residual" in options:
        options["residual"] = torch.randn_like(x)
    if "scale_out" in options:
        options["scale_out"] = torch.full((), 4.0, device=device)
    got, expected = (getattr(m, name)(x, weight, **options) for m in (dkt, dlkern))
    assert len(flat(got)) == len(flat(expected))
    for g, e in zip(flat(got), flat(expected), strict=True):
        assert g.dtype is e.dtype and torch.equal(g.float(), e.float())
    compiled = torch.compile(getattr(dkt, name), fullgraph=True, backend="eager")
    for g, e in zip(flat(compiled(x, weight, **options)), flat(got), strict=True):
        assert torch.equal(g.float(), e.float())
    with Recorder() as recorder:
        getattr(dkt, name)(x, weight, **options)
    torch.library.opcheck(*recorder.calls[0], test_utils=("test_schema", "test_faketensor"))
    with pytest.raises(ValueError, match="amax is given for y of float32"):
        getattr(dkt, name)(x, amax=True)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_integers(name):
    x = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    overload = getattr(torch.ops.dlkern, name).default
    torch.library.opcheck(overload, (x, [1]), test_utils=("test_faketensor",))
    wide = name in ("sum", "prod")
    assert getattr(dkt, name)(x, 1).dtype is (torch.int64 if wide else torch.int32)


def test_parameters_of_another_dtype_have_gradients_of_it(device):
    x = torch.randn(4, 6, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(6, device=device, requires_grad=True)
    dkt.layer_norm(x, weight, weight).sum().backward()
    assert x.grad.dtype is torch.bfloat16 and weight.grad.dtype is torch.float32


@pytest.mark.parametrize("activation", ["silu", None])
@pytest.mark.parametrize("with_residual", [False, True])
def test_both_results_of_linear_have_a_gradient(device, activation, with_residual):
    """Without an activation too, where the first one is the second and the residual."""
    x, w, b = (torch.randn(s, device=device, requires_grad=True) for s in ((5, 7), (6, 7), (6,)))
    residual = torch.randn(5, 6, device=device) if with_residual else None
    y, z = dkt.linear(x, w, b, activation=activation, residual=residual, preactivation=True)
    sums = dkt.linear(x, w, b)
    torch.testing.assert_close(z, sums)
    assert z.data_ptr() != y.data_ptr()
    right = sums if activation is None else torch.nn.functional.silu(sums)
    right = right if residual is None else right + residual
    torch.testing.assert_close(y, right)
    got = torch.autograd.grad((y * z).sum(), [x, w, b])
    torch.testing.assert_close(got, torch.autograd.grad((right * sums).sum(), [x, w, b]))
