"""Optimizers beside those of torch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dlkern.torch as dkt

SAME = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("AdamW", {"lr": 1e-2}),
    ("AdamW", {"lr": 1e-2, "amsgrad": True, "betas": (0.8, 0.9)}),
    ("Adam", {"lr": 1e-2, "weight_decay": 0.1}),
    ("AdamW", {"lr": 1e-2, "capturable": True}),
]


def model(device):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 2)).to(device, torch.float64)


def torchs(name, parameters, options):
    """Without what torch has on a GPU only."""
    options = {n: v for n, v in options.items() if n != "capturable"}
    return getattr(torch.optim, name)(parameters, **options)


def train(net, optimizer, device, steps=4):
    for i in range(steps):
        torch.manual_seed(i)
        x = torch.randn(5, 7, dtype=torch.float64, device=device)
        for p in net.parameters():
            p.grad = None
        y = (
            net[:1](x).sum() if i == 0 else net(x).square().sum()
        )  # at first not all have a gradient
        y.backward()
        optimizer.step()


@pytest.mark.parametrize("name, options", SAME, ids=str)
def test_as_in_torch(name, options, device):
    ours, theirs = model(device), model(device)
    train(ours, getattr(dkt.optim, name)(ours.parameters(), **options), device)
    train(theirs, torchs(name, theirs.parameters(), options), device)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name, options", SAME, ids=str)
def test_state_goes_on_from_torch(name, options, device):
    ours, theirs = model(device), model(device)
    optimizer = torchs(name, theirs.parameters(), options)
    train(theirs, optimizer, device)
    ours.load_state_dict(theirs.state_dict())
    taken_over = getattr(dkt.optim, name)(ours.parameters(), **options)
    taken_over.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(theirs, optimizer, device, 2)
    train(ours, taken_over, device, 2)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lion"])
def test_steps_in_a_graph(name, gpu):
    """Replayed, they are the steps made one by one."""
    options = {"SGD": {"momentum": 0.9}, "AdamW": {"capturable": True}, "Lion": {}}[name]
    nets = model("cuda"), model("cuda")
    x = torch.randn(5, 7, dtype=torch.float64, device="cuda")
    steps = []
    for net in nets:
        optimizer = getattr(dkt.optim, name)(net.parameters(), lr=1e-2, **options)

        def step(net=net, optimizer=optimizer):
            optimizer.zero_grad(set_to_none=False)
            net(x).square().sum().backward()
            optimizer.step()

        steps.append(step)
    for step in steps:
        step()
    torch.cuda.synchronize()
    replay, _ = gpu.capture(steps[0])  # runs it once more
    steps[1]()
    for _ in range(3):
        replay()
        steps[1]()
    for p, q in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


@pytest.mark.gpu
def test_steps_counted_by_the_host_are_not_captured(gpu):
    weight = torch.ones(3, device="cuda", requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = dkt.optim.AdamW([weight])
    optimizer.step()
    with (
        pytest.raises(RuntimeError, match="capturable=True"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        optimizer.step()


def test_parameters_that_begin_together_share_their_count(device):
    ours = model(device)
    optimizer = dkt.optim.AdamW(ours.parameters(), capturable=True)
    train(ours, optimizer, device)  # the last layer begins a step later
    counts = [optimizer.state[p]["step"] for p in ours.parameters()]
    assert [int(c) for c in counts] == [4, 4, 3, 3]
    assert counts[0] is counts[1] and counts[2] is counts[3]
    again = dkt.optim.AdamW(ours.parameters(), capturable=True)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    counts = [again.state[p]["step"] for p in ours.parameters()]
    assert [int(c) for c in counts] == [4, 4, 3, 3]
    assert counts[0] is counts[1] and counts[2] is counts[3]


def test_lion_makes_a_loss_fall(device):
    net = model(device)
    optimizer = dkt.optim.Lion(net.parameters(), lr=1e-3, weight_decay=0.1)
    x = torch.randn(64, 7, dtype=torch.float64, device=device)

    def closure():
        optimizer.zero_grad()
        loss = dkt.mse_loss(net(x), x[:, :2].contiguous())
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(60)]
    assert losses[-1] < 0.8 * losses[0]
    assert set(optimizer.state[next(net.parameters())]) == {"exp_avg"}


def test_learning_rate_on_the_device(device):
    ours, theirs = model(device), model(device)
    rate = torch.tensor(0.05, dtype=torch.float64, device=device)
    train(ours, dkt.optim.SGD(ours.parameters(), lr=rate), device)
    train(theirs, torch.optim.SGD(theirs.parameters(), lr=0.05), device)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_parameters_change_their_version(device):
    net = model(device)
    weight = net[0].weight
    loss = (weight * weight).sum()  # keeps the weight for its backward
    weight.grad = torch.ones_like(weight)
    dkt.optim.SGD([weight], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
