"""Data, the training loop, and what the user sees of it."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dlkern.demo import checkpoint
from dlkern.demo.arrays import Arrays, arrays_on
from dlkern.demo.net import SIDE, Network

BATCH = 64
TEST_IMAGES = 360
LR, LR_DECAY = 3e-3, 0.8  # per epoch, so that a longer run begins like a shorter one
FILE = "digits.safetensors"


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels, test images and labels: 1797 real digits, always split alike."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(1797).permutation(len(data.target))
    images = (data.images[order] / 8 - 1).astype(np.float32).reshape(-1, 1, SIDE, SIDE)
    labels = data.target[order].astype(np.int64)
    split = len(order) - TEST_IMAGES
    return images[:split], labels[:split], images[split:], labels[split:]


class Training:
    """A run: the network, its data and its history."""

    def __init__(self, arrays: Arrays, seed: int) -> None:
        self.arrays, self.seed = arrays, seed
        self.images, self.labels, test_images, self.test_labels = digits()
        self.net = Network(arrays, seed)
        self.test_images = arrays.fill("test_images", test_images)
        self.steps = len(self.images) // BATCH
        self.losses: list[float] = []  # one per epoch
        self.accuracies: list[float] = []
        self.saved_epoch = 0  # what the checkpoint holds

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return len(self.losses)

    def train_epoch(self) -> Iterator[None]:
        """One pass over the data in an order of its own; yields after each step."""
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self.images))
        images = self.arrays.fill("images", self.images[order])
        labels = self.arrays.fill("labels", self.labels[order])
        losses = self.arrays.buffer("losses", (self.steps,))
        lr = LR * LR_DECAY**self.epoch
        for i in range(self.steps):
            self.net.step(
                self.arrays.part(images, i * BATCH * SIDE**2, (BATCH, 1, SIDE, SIDE)),
                self.arrays.part(labels, i * BATCH, (BATCH,)),
                self.arrays.part(losses, i, ()),
                self.epoch * self.steps + i + 1,
                lr,
            )
            yield
        self.losses.append(float(self.arrays.read(losses).mean(dtype=np.float64)))

    def test(self) -> float:
        """Share of the test images that are recognised."""
        digits = self.arrays.read(self.net.classify(self.test_images))
        return float((digits == self.test_labels).mean())

    def save(self, path: Path) -> None:
        tensors = {name: self.arrays.read(array) for name, array in self.net.state.items()}
        state = {"seed": self.seed, "losses": self.losses, "accuracies": self.accuracies}
        checkpoint.save(path, tensors, state)
        self.saved_epoch = self.epoch

    def restore(self, tensors: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        shapes = {name: tuple(array.shape) for name, array in self.net.state.items()}
        if {name: t.shape for name, t in tensors.items()} != shapes or state["seed"] != self.seed:
            raise checkpoint.CheckpointError(
                f"the checkpoint is not of this network with seed {self.seed}"
            )
        for name, array in self.net.state.items():
            self.arrays.write(array, tensors[name])
        self.losses, self.accuracies = state["losses"], state["accuracies"]
        self.saved_epoch = self.epoch


def main(options: argparse.Namespace) -> int:
    """The demo; returns the exit status."""
    from rich.console import Console

    console = Console()
    path = Path(options.checkpoint_dir) / FILE
    run = Training(arrays_on(options.device), options.seed)
    if options.resume:
        run.restore(*checkpoint.load(path))
        console.print(f"Going on after epoch {run.epoch} of {path}")
    else:
        run.save(path)  # an interrupted first epoch can be resumed as well
    try:
        images_per_s = train(run, options.epochs, path, console)
    except KeyboardInterrupt:
        console.print(
            f"Interrupted in epoch {run.saved_epoch + 1}. {path} holds the run after epoch "
            f"{run.saved_epoch}: go on with --resume."
        )
        return 130
    console.print(summary(run, images_per_s, path))
    if options.plot:
        plot(run, Path(options.plot))
        console.print(f"Loss and accuracy are drawn in {options.plot}")
    return 0


def train(run: Training, epochs: int, path: Path, console: Any) -> float:
    """Train up to ``epochs`` with a progress bar; returns images per second."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}  accuracy {task.fields[accuracy]}"),
        TimeRemainingColumn(),
    )
    seconds, images = 0.0, 0
    with Progress(*columns, console=console) as progress:
        total = epochs * run.steps
        task = progress.add_task("", total=total, completed=run.epoch * run.steps, **latest(run))
        while run.epoch < epochs:
            progress.update(task, description=f"epoch {run.epoch + 1}/{epochs}")
            start = time.perf_counter()
            for _ in run.train_epoch():
                progress.advance(task)
            seconds += time.perf_counter() - start
            images += run.steps * BATCH
            run.accuracies.append(run.test())
            run.save(path)
            progress.update(task, **latest(run))
            if not console.is_terminal:
                fields = latest(run)
                console.print(
                    f"epoch {run.epoch}/{epochs}: loss {fields['loss']}, "
                    f"accuracy {fields['accuracy']}"
                )
    return images / seconds if seconds else 0.0


def latest(run: Training) -> dict[str, Any]:
    """Loss and accuracy as the progress bar shows them."""
    if not run.losses:
        return {"loss": "-", "accuracy": "-"}
    return {"loss": f"{run.losses[-1]:.4f}", "accuracy": f"{100 * run.accuracies[-1]:.2f} %"}


def summary(run: Training, images_per_s: float, path: Path) -> Any:
    """The closing table."""
    from rich.table import Table

    peak = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB"
    arrays = f"{run.arrays.bytes / 2**20:.1f} MB"
    table = Table(show_header=False, title="dlkern demo")
    table.add_row("test accuracy", f"{100 * run.test():.2f} % of {TEST_IMAGES} images")
    table.add_row("training", f"{images_per_s:,.0f} images/s" if images_per_s else "done before")
    table.add_row("device", run.arrays.description)
    table.add_row("peak memory", f"{peak} of the process, {arrays} in arrays")
    table.add_row("checkpoint", str(path))
    return table


def plot(run: Training, path: Path) -> None:
    """Loss and accuracy over epochs, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    loss, accuracy = figure.subplots(1, 2)
    epochs = range(1, run.epoch + 1)
    loss.semilogy(epochs, run.losses, marker="o")
    accuracy.plot(epochs, [100 * a for a in run.accuracies], marker="o")
    loss.set(xlabel="epoch", ylabel="training loss")
    accuracy.set(xlabel="epoch", ylabel="test accuracy (%)")
    for axes in (loss, accuracy):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path)
