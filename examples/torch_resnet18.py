"""ResNet-18, trained beside its twin that dlkern computes.

    pip install 'dlkern[torch,demo]'
    python examples/torch_resnet18.py --steps 20

Both begin with the same weights and see the same handwritten digits (those of scikit-learn, made
larger); what they print is the loss of each, and how far apart their weights are at the end. Batch
norm over few values makes the rounding of float32 grow from step to step; ``--dtype float64`` shows
that it is no more than that.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import dlkern.torch as dkt


class Block(nn.Module):
    """Two convolutions and what passes them by; names as in torchvision, whose weights fit."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """He et al., "Deep Residual Learning for Image Recognition", 2015."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 128, 256, 512)
        for i in range(1, 5):
            first = Block(widths[i - 1], widths[i], 1 if i == 1 else 2)
            self.add_module(f"layer{i}", nn.Sequential(first, Block(widths[i], widths[i], 1)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(1, 5):
            x = self.get_submodule(f"layer{i}")(x)
        return self.fc(self.avgpool(x).flatten(1))


def batches(
    size: int, extent: int, device: str, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images [size, 3, extent, extent] and their labels, in a fixed order, without end."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).to(device, dtype)[:, None] / 16 - 0.5
    labels = torch.from_numpy(digits.target).to(device)
    order = torch.Generator().manual_seed(0)
    while True:
        chosen = torch.randint(len(labels), (size,), generator=order).to(device)
        larger = nn.functional.interpolate(images[chosen], (extent, extent), mode="bilinear")
        yield larger.expand(-1, 3, -1, -1).contiguous(), labels[chosen]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Iterator[tuple[Tensor, Tensor]],
    steps: int,
) -> list[float]:
    """The loss of each step."""
    losses = []
    for _, (x, labels) in zip(range(steps), data, strict=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(
    steps: int, batch: int, extent: int, device: str, dtype: torch.dtype
) -> tuple[list[float], list[float], float]:
    """Losses of the original and of the twin, and the largest relative distance of a weight."""
    torch.manual_seed(0)
    original = ResNet18(10).to(device, dtype)
    twin = copy.deepcopy(original)
    print(dkt.convert(twin))
    options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-4}
    losses = []
    for name, model, kind in (
        ("torch", original, torch.optim.SGD),
        ("dlkern", twin, dkt.optim.SGD),
    ):
        start = time.perf_counter()
        data = batches(batch, extent, device, dtype)
        losses.append(train(model, kind(model.parameters(), **options), data, steps))
        print(f"{name:7s} {time.perf_counter() - start:6.1f} s ", *(f"{x:.4f}" for x in losses[-1]))
    pairs = zip(original.parameters(), twin.parameters(), strict=True)
    distance = max(((p - q).norm() / p.norm()).item() for p, q in pairs)
    print(f"largest relative distance of weights: {distance:.1e}")
    return losses[0], losses[1], distance


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--extent", type=int, default=32, help="height and width of the images")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run(given.steps, given.batch, given.extent, device, getattr(torch, given.dtype))
