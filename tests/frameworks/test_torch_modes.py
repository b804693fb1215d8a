"""dlkern.torch under what torch does to programs: transforms, autocast, compilers, wrappers."""

from __future__ import annotations

import copy
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dlkern.torch as dkt


def normal(device, *shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).to(device)


def network():
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(32), nn.Linear(32, 10),
        nn.LogSoftmax(1),
    )  # fmt: skip


def close(a, b, **tolerance):
    torch.testing.assert_close(a, b, **({"rtol": 1e-4, "atol": 1e-5} | tolerance))


# ---- torch.func ----------------------------------------------------------------------------------

VMAPPED = {
    "relu": (dkt.relu, torch.relu, [(4, 5)]),
    "swiglu": (dkt.swiglu, lambda g, u: F.silu(g) * u, [(4, 5), (4, 5)]),
    "softmax": (lambda x: dkt.softmax(x, 0), lambda x: x.softmax(0), [(4, 5)]),
    "linear": (dkt.linear, F.linear, [(4, 5), (3, 5)]),
    "matmul": (dkt.matmul, torch.matmul, [(4, 5), (5, 3)]),
    "conv": (lambda x, w: dkt.conv(x, w, padding=1), lambda x, w: F.conv2d(x, w, padding=1),
             [(2, 4, 6, 6), (5, 4, 3, 3)]),
    "max_pool": (lambda x: dkt.max_pool(x, 2), lambda x: F.max_pool2d(x, 2), [(2, 4, 6, 6)]),
    "layer_norm": (dkt.layer_norm, lambda x, w, b: F.layer_norm(x, (5,), w, b),
                   [(4, 5), (5,), (5,)]),
    "group_norm": (lambda x: dkt.group_norm(x, 2), lambda x: F.group_norm(x, 2), [(2, 4, 6)]),
    "sum": (lambda x: dkt.sum(x, 0), lambda x: x.sum(0), [(4, 5)]),
    "mse_loss": (dkt.mse_loss, F.mse_loss, [(4, 5), (4, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", VMAPPED)
def test_vmap(name, device):
    function, reference, shapes = VMAPPED[name]
    every = [normal(device, *shape, 3) for shape in shapes]
    first = [every[0], *(x[..., 0] for x in every[1:])]
    for inputs, dims in ((every, -1), (first, (-1, *(None,) * (len(shapes) - 1)))):
        close(torch.vmap(function, dims)(*inputs), torch.vmap(reference, dims)(*inputs))


@pytest.mark.parametrize("name", VMAPPED)
def test_gradients_of_samples(name, device):
    function, reference, shapes = VMAPPED[name]
    inputs = [normal(device, 3, *shapes[0]), *(normal(device, *shape) for shape in shapes[1:])]
    dims = (0, *(None,) * (len(shapes) - 1))

    def gradients(f):
        loss = torch.func.grad(lambda *a: f(*a).sin().sum(), argnums=tuple(range(len(inputs))))
        return torch.vmap(loss, dims)(*inputs)

    close(gradients(function), gradients(reference))


def test_jacobian_and_checkpoint(device):
    x = normal(device, 4, 5)
    close(torch.func.jacrev(dkt.softmax)(x), torch.func.jacrev(lambda x: x.softmax(-1))(x))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(dkt.gelu, a, use_reentrant=False).sum().backward()
    F.gelu(b).sum().backward()
    close(a.grad, b.grad)


def test_forward_mode_is_refused(device):
    x = normal(device, 4, 5)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(ValueError, match="forward-mode tangent"):
            dkt.relu(dual)


# ---- Autograd ------------------------------------------------------------------------------------


def test_inputs_without_a_gradient_are_refused_when_it_is_asked_for(device):
    x, labels = normal(device, 4, 5).requires_grad_(), torch.arange(4, device=device)
    weight = torch.ones(5, device=device, requires_grad=True)
    loss = dkt.cross_entropy(x, labels, weight=weight)
    with pytest.raises(NotImplementedError, match="cross_entropy has no gradient .* to weight"):
        loss.backward()
    with pytest.raises(RuntimeError, match="under torch.no_grad"):
        dkt.sgd_step(x, x.detach(), lr=0.1)


def test_a_gradient_is_not_computed_where_none_is_needed(device, monkeypatch):
    from dlkern.torch._registry import OPERATORS

    calls = []
    for name in ("linear_backward_input", "linear_backward_weight"):
        plain = OPERATORS[name].forward
        record = lambda *a, name=name, plain=plain: (calls.append(name), plain(*a))[1]  # noqa: E731
        monkeypatch.setattr(OPERATORS[name], "forward", record)
    x, weight = normal(device, 4, 5), normal(device, 3, 5).requires_grad_()
    dkt.linear(x, weight).sum().backward()
    dkt.linear(x.requires_grad_(), weight.detach()).sum().backward()
    assert calls == ["linear_backward_weight", "linear_backward_input"]


def test_only_what_the_backward_needs_is_kept(device):
    sizes = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: (sizes.append((t.numel(), t.dtype)), t)[1], lambda t: t
    )
    x = normal(device, 2, 4, 6, 6).requires_grad_()
    with hooks:
        dkt.max_pool(x, 2)
    assert sizes == [(72, torch.uint8)]  # not x, and indices of one byte
    sizes.clear()
    with hooks:
        dkt.dropout(x, 0.5), dkt.sum(x), dkt.avg_pool(x, 2)
    assert sizes == [(2, torch.int64)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        y = dkt.relu(x)
    assert [t.data_ptr() for t in kept] == [y.data_ptr()]


def test_residual_alone_has_a_gradient(device):
    x = normal(device, 4, 5).requires_grad_()
    _, total = dkt.rms_norm(x, residual=x.detach())
    total.sum().backward()
    close(x.grad, torch.ones_like(x))


def test_dropout_follows_the_generator(device):
    x = torch.ones(1000, device=device)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(dkt.dropout(x, 0.3))
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    assert 600 < (masks[0] != 0).sum() < 800


# ---- autocast ------------------------------------------------------------------------------------


def test_autocast_gives_the_dtypes_that_torch_gives(device):
    x, w = normal(device, 4, 5).requires_grad_(), normal(device, 3, 5).requires_grad_()
    image, filters = normal(device, 2, 3, 6, 6), normal(device, 4, 3, 3, 3)
    labels = torch.arange(4, device=device) % 3
    pairs = [
        (lambda: dkt.linear(x, w), lambda: F.linear(x, w)),
        (lambda: dkt.matmul(x, w.T), lambda: x @ w.T),
        (lambda: dkt.conv(image, filters), lambda: F.conv2d(image, filters)),
        (lambda: dkt.cross_entropy(dkt.linear(x, w), labels),
         lambda: F.cross_entropy(F.linear(x, w), labels)),
        (lambda: dkt.relu(dkt.linear(x, w)), lambda: F.relu(F.linear(x, w))),
        (lambda: dkt.mse_loss(x.half(), x.half()), lambda: F.mse_loss(x.half(), x.half())),
    ]  # fmt: skip
    with torch.autocast(device, torch.bfloat16):
        for ours, theirs in pairs:
            got, expected = ours(), theirs()
            assert got.dtype == expected.dtype
            close(got, expected, rtol=2e-2, atol=2e-2)
        loss = dkt.cross_entropy(dkt.linear(x, w), labels)
    loss.backward()
    assert x.grad.dtype == w.grad.dtype == torch.float32


# ---- Compilers -----------------------------------------------------------------------------------


def test_compiled_network_trains_as_the_eager_one(device):
    original = network().to(device)
    eager = copy.deepcopy(original)
    dkt.convert(eager)
    torch._dynamo.reset()
    network_c = copy.deepcopy(eager)
    compiled = torch.compile(network_c, fullgraph=True, backend="aot_eager")
    for batch in (4, 6):
        x, labels = normal(device, batch, 3, 8, 8), torch.arange(batch, device=device)
        for net in (original, eager, compiled):
            net.zero_grad()
            F.nll_loss(net(x), labels).backward()
    for a, b, c in zip(
        original.parameters(), eager.parameters(), network_c.parameters(), strict=True
    ):
        close(b.grad, a.grad, rtol=1e-3, atol=1e-4)
        close(c.grad, b.grad)
    for a, b, c in zip(original.buffers(), eager.buffers(), network_c.buffers(), strict=True):
        close(b, a)
        close(c, b)


@pytest.mark.slow
def test_inductor(device):
    torch._dynamo.reset()
    x = normal(device, 6, 10)

    def function(x):
        return dkt.rms_norm(dkt.gelu(x * 2), residual=dkt.dropout(x, 0.0))[0].sin()

    close(torch.compile(function, fullgraph=True)(x), function(x))


def test_compiles_under_autocast_and_for_changing_shapes(device):
    torch._dynamo.reset()
    w = normal(device, 3, 5)

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def function(x):
        with torch.autocast(device, torch.bfloat16):
            return dkt.softmax(dkt.linear(x, w)), dkt.max_pool(x[None, None], 2)

    for rows in (4, 7):
        y, pooled = function(normal(device, rows, 5))
        assert y.dtype == torch.float32 and y.shape == (rows, 3)
        assert pooled.shape == (1, 1, rows // 2, 2)


def test_export_with_a_free_batch(device):
    net = network().to(device).eval()
    dkt.convert(net)
    x = normal(device, 4, 3, 8, 8)
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(net, (x,), dynamic_shapes=shapes)
    assert "dlkern.conv" in str(program.graph)
    y = normal(device, 7, 3, 8, 8)
    close(program.module()(y), net(y))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    close(loaded.module()(y), net(y))
    lowered = loaded.run_decompositions()
    assert "dlkern.linear" in str(lowered.graph)
    close(lowered.module()(y), net(y))


def test_shapes_without_data(device):
    net = network().to("meta")
    dkt.convert(net)
    assert net(torch.empty(4, 3, 8, 8, device="meta")).shape == (4, 10)
    with torch._subclasses.FakeTensorMode():
        assert dkt.conv(torch.empty(2, 3, 8, 8), torch.empty(4, 3, 3, 3)).shape == (2, 4, 6, 6)


@pytest.mark.gpu
def test_graph_of_a_training_step(gpu):
    net = network().cuda()
    dkt.convert(net)
    optimizer = dkt.optim.SGD(net.parameters(), lr=0.01)
    x, labels = normal("cuda", 4, 3, 8, 8), torch.arange(4, device="cuda")

    def step():
        for p in net.parameters():
            p.grad = None
        loss = dkt.nll_loss(net(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(20):
        graph.replay()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.gpu
def test_edge_29_replays_of_dropout_draw_new_masks(gpu):
    x = torch.ones(1000, device="cuda", requires_grad=True)

    def step():
        y = dkt.dropout(x, 0.5)
        return y.detach(), *torch.autograd.grad(y.sum(), x)

    replay, (y, dx) = gpu.capture(step)
    seen = []
    for _ in range(3):
        replay()
        assert torch.equal(dx, y)  # the forward's mask again
        assert 400 < (y == 2).sum() < 600
        seen.append(y.clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


# ---- Layouts, wrappers ---------------------------------------------------------------------------


def test_channels_last_stays_channels_last(device):
    original = network().to(device, memory_format=torch.channels_last)[:8]
    twin = copy.deepcopy(original)
    dkt.convert(twin)
    x = normal(device, 4, 3, 8, 8).to(memory_format=torch.channels_last)
    a, b = original(x), twin(x)
    assert twin[:7](x).is_contiguous(memory_format=torch.channels_last)
    close(b, a)
    a.sum().backward(), b.sum().backward()
    for p, q in zip(original.parameters(), twin.parameters(), strict=True):
        close(q.grad, p.grad, rtol=1e-3, atol=1e-4)


def test_convert_reports_and_revert_undoes(device):
    class Gate(nn.Linear):
        def forward(self, x):
            return super().forward(x).sigmoid()

    net = nn.Module()
    net.body, net.gate, net.odd = network(), Gate(3, 3), nn.LPPool2d(3, 2)
    net.table = nn.Embedding(5, 3, max_norm=1.0)
    net.complex = nn.Linear(3, 3, dtype=torch.complex64)
    report = dkt.convert(net)
    kept = {e.name: e.reason for e in report.kept}
    assert set(kept) == {"body.8", "gate", "odd", "table", "complex"}
    assert "subclass of Linear" in kept["gate"] and "odd norms" in kept["odd"]
    assert "max_norm" in kept["table"] and "complex64" in kept["complex"]
    assert len(report.swapped) == 11
    assert "11 of 16 modules" in str(report) and re.search(r"body\.8 +Flatten", str(report))
    assert len(dkt.convert(net).swapped) == 11
    assert dkt.revert(net) == 11
    assert [type(m) for m in net.body] == [type(m) for m in network()]


def test_hooks_and_optimizers_live_on(device):
    net = network().to(device)
    seen = []
    net[0].register_forward_hook(lambda *_: seen.append("conv"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = net[0].weight.detach().clone()
    dkt.convert(net)
    net(normal(device, 4, 3, 8, 8)).sum().backward()
    optimizer.step()
    assert seen == ["conv"] and not torch.equal(net[0].weight, before)


@pytest.fixture
def process_group(device, tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("torch without torch.distributed")
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_wrapped_network_trains_as_the_bare_one(wrapper, device, process_group):
    if device != "cpu":
        pytest.skip("one process without NCCL")
    bare = network()
    dkt.convert(bare)
    wrapped = copy.deepcopy(bare)
    if wrapper == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(wrapped)
    else:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        wrapped = torch.distributed.fsdp.fully_shard(wrapped, mesh=mesh)
    x = normal(device, 4, 3, 8, 8)
    for net in (bare, wrapped):
        net(x).square().sum().backward()
    for p, q in zip(bare.parameters(), wrapped.parameters(), strict=True):
        gradient = q.grad.full_tensor() if hasattr(q.grad, "full_tensor") else q.grad
        close(gradient, p.grad)


TWO_PROCESSES = """
import sys, torch
from torch import distributed, nn
import dlkern.torch as dkt
from test_torch_modes import network, normal

rank = int(sys.argv[1])
distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
batches = [normal("cpu", 4 + 4 * r, 3, 8, 8)[:4] for r in range(2)]
plain = network().eval()  # batch norm of each half alone would differ from that of the whole
for x in batches:
    (plain(x).square().mean() / 2).backward()

def wrap_ddp(net):
    return nn.parallel.DistributedDataParallel(net)

def wrap_fsdp(net):
    mesh = distributed.init_device_mesh("cpu", (2,))
    for layer in net:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            distributed.fsdp.fully_shard(layer, mesh=mesh)
    return distributed.fsdp.fully_shard(net, mesh=mesh)

for wrap in (wrap_ddp, wrap_fsdp):
    net = network().eval()
    assert len(dkt.convert(net).swapped) == 11
    net = wrap(net)
    net(batches[rank]).square().mean().backward()
    for p, q in zip(plain.parameters(), net.parameters(), strict=True):
        gradient = q.grad.full_tensor() if hasattr(q.grad, "full_tensor") else q.grad
        torch.testing.assert_close(gradient, p.grad, rtol=1e-4, atol=1e-6)
distributed.destroy_process_group()
"""


def test_two_processes_average_their_gradients(tmp_path):
    """DDP and FSDP2, whose shards the modules see whole."""
    if not torch.distributed.is_available():
        pytest.skip("torch without torch.distributed")
    here = Path(__file__).resolve().parent
    paths = (str(here), str(here.parent), os.environ.get("PYTHONPATH"))
    path = os.pathsep.join(filter(None, paths))  # an empty one would be the current folder
    ranks = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", TWO_PROCESSES, str(rank), str(tmp_path / "group")],
            env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    errors = [process.communicate(timeout=240)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors


def test_readme_code_runs(capsys):
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    codes = re.findall(r"```py\n(.*?)```", readme, re.DOTALL)
    (code,) = [code for code in codes if "dlkern.torch" in code]
    names = {
        "x": normal("cpu", 4, 5).requires_grad_(),
        "weight": normal("cpu", 3, 5),
        "bias": normal("cpu", 3),
        "model": network(),
    }
    exec(code, names)
    assert names["y"].requires_grad and isinstance(names["optimizer"], dkt.optim.AdamW)
    assert "11 of 12 modules are computed by dlkern" in capsys.readouterr().out
