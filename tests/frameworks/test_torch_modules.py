"""The twins of torch's modules beside the originals, and whole models turned into twins."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import dlkern.torch as dkt
from dlkern.torch.nn import TWINS

IMAGES = {1: (2, 4, 9), 2: (2, 4, 9, 8), 3: (2, 4, 5, 6, 4)}


def of_dims(name, *args, **options):
    """The module of 1, 2 and 3 dimensions, each with a batch of images."""
    return [
        (f"{name}{d}d-{'-'.join(map(str, options.values()))}",
         lambda d=d: getattr(nn, f"{name}{d}d")(*args, **options), [IMAGES[d]])
        for d in (1, 2, 3)
    ]  # fmt: skip


def one(name, *args, shape=(3, 6, 10), **options):
    label = "-".join((name, *map(str, args), *map(str, options.values())))
    return [(label, lambda: getattr(nn, name)(*args, **options), [shape])]


def loss(name, target="normal", **options):
    label = "-".join((name, *map(str, options.values())))
    shapes = [(5, 7), target]
    return [(label, lambda: getattr(nn, name)(**options), shapes)]


CASES = [
    *one("Linear", 10, 4), *one("Linear", 10, 4, bias=False),
    *of_dims("Conv", 4, 6, 3, stride=2, padding=1),
    *of_dims("Conv", 4, 6, 3, padding="same", groups=2),
    *of_dims("Conv", 4, 6, 3, padding=1, padding_mode="circular"),
    *of_dims("ConvTranspose", 4, 6, 3, stride=2, padding=1, output_padding=1),
    *of_dims("BatchNorm", 4), *of_dims("BatchNorm", 4, momentum=None),
    *of_dims("BatchNorm", 4, affine=False, track_running_stats=False),
    *one("BatchNorm1d", 6, shape=(7, 6)),
    *of_dims("InstanceNorm", 4), *of_dims("InstanceNorm", 4, affine=True, track_running_stats=True),
    *one("GroupNorm", 3, 6), *one("LayerNorm", 10), *one("LayerNorm", [6, 10], bias=False),
    *one("RMSNorm", 10), *one("RMSNorm", 10, eps=1e-3),
    *of_dims("MaxPool", 3, stride=2, padding=1), *of_dims("MaxPool", 2, return_indices=True),
    *of_dims("MaxPool", 3, ceil_mode=True),
    *of_dims("AvgPool", 3, stride=2, padding=1, count_include_pad=False),
    *of_dims("LPPool", 2.0, 3), *of_dims("AdaptiveMaxPool", 2, return_indices=True),
    *of_dims("AdaptiveMaxPool", 3), *of_dims("AdaptiveAvgPool", 3), *of_dims("AdaptiveAvgPool", 1),
    *(case for name in ("ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "GELU", "SiLU", "Hardswish",
                        "Mish", "Sigmoid", "Hardsigmoid", "Tanh", "Softplus", "Softmax",
                        "LogSoftmax")
      for case in one(name)),
    *one("GELU", "tanh"), *one("GLU", 1), *one("GLU"), *one("Softmax", 1), *one("Dropout", 0.0),
    *(("Embedding", lambda: nn.Embedding(9, 5, padding_idx=2), ["ids"]),),
    *loss("CrossEntropyLoss", "labels", label_smoothing=0.1), *loss("NLLLoss", "labels"),
    *(case for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCEWithLogitsLoss",
                        "KLDivLoss")
      for reduction in ("mean", "none") for case in loss(name, reduction=reduction)),
    *loss("KLDivLoss", reduction="batchmean"),
]  # fmt: skip


def inputs_of(shapes, device, dtype=torch.float64):
    torch.manual_seed(0)
    make = {
        "ids": lambda: torch.randint(9, (3, 4)), "labels": lambda: torch.randint(7, (5,)),
        "normal": lambda: torch.rand(5, 7, dtype=dtype) + 0.1,
    }  # fmt: skip
    inputs = [
        make[s]() if isinstance(s, str) else torch.randn(s, dtype=dtype).requires_grad_()
        for s in shapes
    ]
    return [x.detach().to(device).requires_grad_(x.requires_grad) for x in inputs]


def results_and_gradients(module, inputs):
    results = module(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    torch.manual_seed(1)
    weights = [torch.randn(r.shape, dtype=torch.float64).to(r.device) for r in results]
    sum((r * w).sum() for r, w in zip(results, weights, strict=True) if r.requires_grad).backward()
    gradients = [x.grad for x in (*inputs, *module.parameters()) if x.requires_grad]
    return [*(r.detach() for r in results), *gradients, *module.buffers()]


@pytest.mark.parametrize("name, make, shapes", CASES, ids=[c[0] for c in CASES])
def test_twin_computes_what_the_original_does(name, make, shapes, device):
    original = make().to(device, torch.float64)
    if name.startswith("CrossEntropy"):
        original.weight = torch.rand(7, dtype=torch.float64, device=device)
    twin = copy.deepcopy(original)
    report = dkt.convert(twin)
    assert len(report.swapped) == 1, report
    assert type(twin) is TWINS[type(original)]
    for _ in range(2):  # the second time with other running statistics
        expected = results_and_gradients(original, inputs_of(shapes, device))
        got = results_and_gradients(twin, inputs_of(shapes, device))
        for g, e in zip(got, expected, strict=True):
            torch.testing.assert_close(g, e, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(
        twin.eval()(*inputs_of(shapes, device)), original.eval()(*inputs_of(shapes, device))
    )


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_adds_a_residual_and_activates(training, memory_format, device):
    original = nn.BatchNorm2d(4, device=device, dtype=torch.float64).train(training)
    twin = copy.deepcopy(original)
    dkt.convert(twin)
    results = []
    for module in (original, twin):
        inputs = inputs_of([IMAGES[2]] * 2, device)
        x, residual = (t.to(memory_format=memory_format) for t in inputs)
        if module is twin:
            y = module(x, residual=residual, activation="relu")
        else:
            y = nn.functional.relu(module(x) + residual)
        assert y.is_contiguous(memory_format=memory_format)
        (y * y).sum().backward()
        results.append([y.detach(), *(t.grad for t in (*inputs, *module.parameters()))])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


def test_every_twin_is_tested():
    assert {type(make()) for _, make, _ in CASES} == set(TWINS)


@pytest.mark.parametrize("name, make, shapes", CASES[:5], ids=[c[0] for c in CASES[:5]])
def test_twin_is_made_and_loads_as_the_original(name, make, shapes):
    original = make()
    twin_class = TWINS[type(original)]
    assert issubclass(twin_class, type(original))
    twin = copy.deepcopy(original)
    dkt.convert(twin)
    twin.load_state_dict(original.state_dict())
    again = pickle.loads(pickle.dumps(twin))
    assert type(again) is twin_class
    assert repr(again) == repr(original)
    assert getattr(dkt.nn, twin_class.__name__) is twin_class
