"""ResNet-50, trained in bfloat16 beside its twin that dlkern computes.

    pip install 'dlkern[torch]'
    python examples/torch_resnet50.py                      # on a GPU: batches of 64, 224 x 224
    python examples/torch_resnet50.py --small --steps 5    # on a CPU: a narrow one, small images

Both begin with the same weights and see the same images, channels last; convolutions and the last
layer are in bfloat16, batch norm's parameters and the loss in float32. Printed are the losses of
each step, beside those of a third one by PyTorch in float32: how far it is from PyTorch's in
bfloat16 is the noise that the twin's distance is to be compared with. On a GPU the times of a whole
step follow: eager, where the host may be what is waited for, and replayed as a CUDA graph.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dlkern
import dlkern.torch as dkt

Batch = tuple[Tensor, Tensor]
Step = Callable[[Tensor, Tensor], Tensor]


def normed(norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(x) + residual), by one call of a norm that has it."""
    if isinstance(norm, dkt.nn.BatchNorm2d):
        return norm(x, residual=residual, activation="relu")
    y = norm(x)
    return nn.functional.relu(y if residual is None else y.add_(residual), inplace=True)


class Bottleneck(nn.Module):
    """Three convolutions and what passes them by; names as in torchvision, whose weights fit."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = normed(self.bn1, self.conv1(x))
        y = normed(self.bn2, self.conv2(y))
        return normed(self.bn3, self.conv3(y), x if self.downsample is None else self.downsample(x))


class ResNet(nn.Module):
    """He et al., "Deep Residual Learning for Image Recognition", 2015; ResNet-50 by default."""

    def __init__(
        self, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layers = len(blocks)
        channels = width
        for i, count in enumerate(blocks):
            stage = []
            for j in range(count):
                stage.append(Bottleneck(channels, width << i, 2 if i and not j else 1))
                channels = (width << i) * Bottleneck.expansion
            self.add_module(f"layer{i + 1}", nn.Sequential(*stage))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss; in float32 beside 16-bit layers."""
        x = self.maxpool(normed(self.bn1, self.conv1(x)))
        for i in range(self.layers):
            x = self.get_submodule(f"layer{i + 1}")(x)
        logits = self.fc(self.avgpool(x).flatten(1))
        return self.loss(logits.float() if logits.element_size() == 2 else logits, labels)


def in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convolutions and linear layers in dtype; a norm's parameters lose digits in 16 bits."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) or dtype is torch.float64:
            module.to(dtype)
    return model.to(memory_format=torch.channels_last)


def batches(
    count: int, size: int, extent: int, classes: int, device: str, dtype: torch.dtype
) -> list[Batch]:
    """Images [size, 3, extent, extent]: a pattern for each of ten classes, and noise."""
    order = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 3, 4, 4, generator=order)
    patterns = nn.functional.interpolate(patterns, (extent, extent), mode="bilinear")
    result = []
    for _ in range(count):
        labels = torch.randint(min(10, classes), (size,), generator=order)
        x = patterns[labels] + 0.5 * torch.randn(size, 3, extent, extent, generator=order)
        x = x.to(device, dtype, memory_format=torch.channels_last)
        result.append((x, labels.to(device)))
    return result


@dataclass
class Trainer:
    """A model, and how it learns."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, x: Tensor, labels: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x, labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def trainers(model: nn.Module, dtype: torch.dtype, lr: float) -> dict[str, Trainer]:
    """By name: dlkern's and PyTorch's in dtype, and PyTorch's in float32 if that is another one."""
    options = {"lr": lr, "momentum": 0.9, "weight_decay": 1e-4}
    fused = next(model.parameters()).is_cuda
    twin = in_dtype(copy.deepcopy(model), dtype)
    print(dkt.convert(twin))
    result = {"dlkern": Trainer(twin, dkt.optim.SGD(twin.parameters(), **options))}
    for name, kind in {"torch": dtype, "float32": torch.float32}.items():
        if name == "torch" or kind.itemsize > dtype.itemsize:
            rival = in_dtype(copy.deepcopy(model), kind)
            result[name] = Trainer(
                rival, torch.optim.SGD(rival.parameters(), **options, fused=fused)
            )
    return result


def losses_of(
    trained: dict[str, Trainer], data: Sequence[Batch], steps: int
) -> dict[str, list[float]]:
    """The loss of each step, printed side by side."""
    losses: dict[str, list[float]] = {name: [] for name in trained}
    print("step", *(f"{name:>9s}" for name in trained))
    for i in range(steps):
        x, labels = data[i % len(data)]
        for name, trainer in trained.items():
            wide = x.float() if name == "float32" else x
            torch.backends.cudnn.benchmark = (
                name == "torch"
            )  # of what is timed alone: it takes long
            losses[name].append(trainer.step(wide, labels).item())
        print(f"{i:4d}", *(f"{losses[name][-1]:9.4f}" for name in trained), flush=True)
    return losses


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Root mean square of the differences."""
    return statistics.fmean((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5


def eager(step: Step, x: Tensor, labels: Tensor) -> Callable[[], Any]:
    return lambda: step(x, labels)


def graphed(step: Step, x: Tensor, labels: Tensor) -> Callable[[], Any]:
    """A function that replays one step."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step(x, labels)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(x, labels)
    return graph.replay


def times_ms(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Of each run, in turn; the GPU has nothing to do when one begins."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 3):
        for name, run in runs.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            if i >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def step_times(
    trained: dict[str, Trainer], batch: Batch, rounds: int, compiled: bool
) -> list[dict[str, Any]]:
    """Rows of a table of results."""
    torch.backends.cudnn.benchmark = True
    rivals = {name: trained[name] for name in ("dlkern", "torch")}
    if compiled:
        rival = rivals["torch"]
        rivals["torch.compile"] = Trainer(torch.compile(rival.model), rival.optimizer)
    rows = []
    for case, run in {"eager": eager, "CUDA graph": graphed}.items():
        runs = {name: run(t.step, *batch) for name, t in rivals.items()}
        for name, times in times_ms(runs, rounds).items():
            low, _, _, high = statistics.quantiles(times, n=5)
            middle = statistics.median(times)
            print(f"{case:10s} {name:13s} {middle:7.3f} ms  ({low:.3f} to {high:.3f})", flush=True)
            rows.append({
                "case": f"ResNet-50 step, {case}", "contender": name,
                "us": round(1e3 * middle, 1), "p20_us": round(1e3 * low, 1),
                "p80_us": round(1e3 * high, 1), "bytes": 0, "flops": 0, "max_rel_error": None,
                "note": "",
            })  # fmt: skip
    return rows


def meta() -> dict[str, str | None]:
    """What the times are of; DLKERN_COMMIT names the commit that is measured."""
    return {
        "gpu": torch.cuda.get_device_name().lower().replace(" ", "-"),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),
        "commit": os.environ.get("DLKERN_COMMIT", dlkern.__version__),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def main(given: argparse.Namespace) -> dict[str, list[float]]:
    """The losses."""
    device = given.device
    torch.manual_seed(0)
    dtype = getattr(torch, given.dtype)
    model = ResNet((1, 1, 1, 1), 8, 10) if given.small else ResNet()
    size = given.batch or (8 if given.small else 64)
    extent = given.extent or (64 if given.small else 224)
    data = batches(4, size, extent, model.fc.out_features, device, dtype)
    trained = trainers(model.to(device), dtype, given.lr)
    losses = losses_of(trained, data, given.steps)
    print(f"dlkern is from torch  {distance(losses['dlkern'], losses['torch']):.2g}")
    if "float32" in losses:
        for name in ("dlkern", "torch"):
            print(f"{name:6s} is from float32 {distance(losses[name], losses['float32']):.2g}")
    if device == "cuda" and given.rounds:
        rows = step_times(trained, data[0], given.rounds, given.compile)
        if given.json:
            given.json.write_text(
                json.dumps({"meta": meta(), "rows": rows, "losses": losses}, indent=1) + "\n"
            )
    return losses


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    result.add_argument("--device", choices=("cpu", "cuda"), default=default)
    result.add_argument("--steps", type=int, default=20)
    result.add_argument("--batch", type=int, help="images in a batch")
    result.add_argument("--extent", type=int, help="height and width of the images")
    result.add_argument("--small", action="store_true", help="a narrow network of four blocks")
    result.add_argument("--dtype", choices=("bfloat16", "float32", "float64"), default="bfloat16")
    result.add_argument("--lr", type=float, default=0.002)
    result.add_argument("--rounds", type=int, default=20, help="steps that are timed, on a GPU")
    result.add_argument("--compile", action="store_true", help="time torch.compile as well")
    result.add_argument("--json", type=Path, help="where the times are written to")
    return result


if __name__ == "__main__":
    main(parser().parse_args())
