"""Layers for Hugging Face's kernels, beside modules as transformers has them."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dlkern.torch as dkt


class RMSNorm(nn.Module):
    """As of Llama and most others."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16))
        self.variance_epsilon = 1e-5

    def forward(self, hidden_states):
        variance = hidden_states.square().mean(-1, keepdim=True)
        return self.weight * hidden_states * torch.rsqrt(variance + self.variance_epsilon)


class RMSNormZeroCentered(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.5, 0.5, 16))
        self.eps = 1e-5

    def forward(self, x):
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return y * (1 + self.weight)


def activation(name, function):
    return type(name, (nn.Module,), {"forward": lambda self, input: function(input)})


ORIGINALS = {
    "RMSNorm": RMSNorm,
    "RMSNormZeroCentered": RMSNormZeroCentered,
    "GeLU": activation("GeLU", F.gelu),
    "SiLU": activation("SiLU", F.silu),
} | {
    name: activation(name, lambda x: F.gelu(x, approximate="tanh"))
    for name in ("GeluTanh", "NewGELU", "FastGELU")
}


def test_every_layer_is_tested():
    assert dkt.kernels.mapping().keys() == ORIGINALS.keys()


@pytest.mark.parametrize("name", ORIGINALS)
def test_layer_computes_as_the_original(name, device):
    original = ORIGINALS[name]().to(device)
    layer = dkt.kernels.mapping()[name][device].load()
    x = torch.randn(3, 5, 16, device=device, requires_grad=True)
    expected = original(x)
    got = layer.forward(original, x)
    torch.testing.assert_close(got, expected)
    inputs = [x, *original.parameters()]
    for g, e in zip(
        torch.autograd.grad(got.sum(), inputs), torch.autograd.grad(expected.sum(), inputs),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ORIGINALS)
def test_layer_is_what_kernels_takes(name):
    """Stateless, and a forward method with the same parameters."""
    layer = dkt.kernels.mapping()[name]["cuda"].load()
    assert layer.__init__ is nn.Module.__init__
    added = {n for n, _ in inspect.getmembers(layer)} - {
        n for n, _ in inspect.getmembers(nn.Module)
    }
    assert added == {"can_torch_compile", "has_backward"}
    kinds = (
        [p.kind for p in inspect.signature(c.forward).parameters.values()]
        for c in (layer, ORIGINALS[name])
    )
    assert next(kinds) == next(kinds)


def test_kernelize():
    kernels = pytest.importorskip("kernels")
    marked = kernels.use_kernel_forward_from_hub("RMSNorm")(type("Norm", (RMSNorm,), {}))
    model = nn.Sequential(nn.Linear(16, 16), marked())
    x = torch.randn(3, 16)
    expected = model(x)
    with kernels.use_kernel_mapping(dkt.kernels.mapping(), inherit_mapping=False):
        model = kernels.kernelize(
            model, mode=kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE, device="cpu"
        )
    assert "_rms_norm" in model[1].forward.__qualname__
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), expected)
