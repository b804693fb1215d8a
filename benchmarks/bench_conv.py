"""Convolution and its gradients: ``python -m benchmarks.bench_conv [--device cpu] [--quick]``.

The rival is cuDNN in benchmark mode through PyTorch, with tensors in the same layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

import dlkern

from .bench_gemm import DTYPES, PEAK_TFLOPS
from .harness import Case, main


@dataclass
class Conv:
    """One convolution of square images by square filters, padded to keep the extent.

    Parameters
    ----------
    n, c, extent, k : int
        Images, their channels and height; channels of the result.
    taps, stride, dilation, groups : int
    name : str
        Kind of product, as in bench_gemm.
    layout : str
    group : str
    """

    n: int
    c: int
    extent: int
    k: int
    taps: int = 3
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    name: str = "bf16"
    layout: str = "NHWC"
    group: str = "table"

    @property
    def padding(self) -> int:
        return self.dilation * (self.taps - 1) // 2

    @property
    def label(self) -> str:
        return (
            f"{self.name} {self.layout} N{self.n} C{self.c} {self.extent}x{self.extent} K{self.k} "
            f"r{self.taps} s{self.stride} d{self.dilation} g{self.groups}"
        )


TABLE = [
    (64, 3, 224, 64, 7, 2),
    (64, 64, 56, 64, 1),
    (64, 64, 56, 64),
    (64, 64, 56, 256, 1),
    (64, 128, 28, 128),
    (64, 256, 56, 512, 1, 2),
    (64, 256, 14, 256),
    (64, 512, 7, 512),
    (64, 384, 28, 384, 3, 1, 384),
    (32, 256, 56, 256, 3, 1, 32),
]
MIDDLE = [(64, 64, 56, 64), (64, 128, 28, 128), (64, 256, 14, 256), (32, 256, 56, 256, 3, 1, 32)]


def resnet50(n: int) -> Iterator[tuple[int, ...]]:
    """Its 53 convolutions, each shape once."""
    seen = set()

    def once(*shape):
        if shape not in seen:
            seen.add(shape)
            yield shape

    yield from once(n, 3, 224, 64, 7, 2)
    c, extent = 64, 56
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            s = stride if block == 0 else 1
            yield from once(n, c, extent, width, 1, 1)
            yield from once(n, width, extent, width, 3, s)
            if block == 0:
                yield from once(n, c, extent, 4 * width, 1, s)
            extent //= s
            yield from once(n, width, extent, 4 * width, 1, 1)
            c = 4 * width


# Of EfficientNet, ConvNeXt, U-Net and their kind.
OTHERS = [
    (64, 32, 112, 32, 3, 1, 32),
    (64, 96, 112, 96, 3, 2, 96),
    (64, 144, 56, 144, 5, 2, 144),
    (64, 240, 28, 240, 3, 1, 240),
    (64, 672, 14, 672, 5, 1, 672),
    (64, 16, 112, 96, 1),
    (64, 144, 56, 24, 1),
    (64, 1152, 7, 320, 1),
    (64, 3, 224, 96, 4, 4),
    (64, 96, 56, 96, 7, 1, 96),
    (64, 384, 14, 384, 7, 1, 384),
    (64, 96, 56, 192, 2, 2),
    (64, 384, 14, 1536, 1),
    (4, 64, 256, 64),
    (4, 128, 128, 256),
    (4, 512, 32, 1024),
    (4, 1024, 32, 512),
    (4, 64, 256, 2, 1),
    (2, 320, 64, 320),
    (2, 640, 32, 1280),
    (8, 256, 33, 256, 3, 1, 1, 6),
    (8, 256, 33, 256, 3, 1, 1, 12),
]
GPU = [
    *[Conv(*shape) for shape in TABLE],
    *[Conv(*shape, layout="NCHW") for shape in MIDDLE],
    *[Conv(*shape, name="tf32") for shape in MIDDLE],
    *[Conv(*shape, name="fp32", layout="NCHW") for shape in MIDDLE],
    *[Conv(*shape, group="resnet50") for shape in resnet50(64)],
    *[Conv(*shape, group="others") for shape in OTHERS],
    Conv(64, 128, 28, 128, name="fp16", group="others"),
    Conv(64, 256, 14, 256, name="fp16", layout="NCHW", group="others"),
]
CPU = [
    *[Conv(*shape, name="fp32", layout=layout)
      for layout in ("NCHW", "NHWC")
      for shape in ((4, 3, 224, 64, 7, 2), (8, 64, 56, 64), (8, 64, 56, 64, 1), (8, 256, 14, 256),
                    (8, 384, 28, 384, 3, 1, 384), (4, 256, 28, 256, 3, 1, 32))],
]  # fmt: skip


def cases_of(p: Conv, device: str) -> Iterator[Case]:
    dtype = DTYPES[p.name]
    random = lambda *shape: torch.randn(shape, device=device).to(dtype)  # noqa: E731
    last = p.layout == "NHWC"
    # Theirs have the channels first, whichever way they lie in memory.
    memory = torch.channels_last if last else torch.contiguous_format
    ours = lambda t: t.movedim(1, -1) if last else t  # noqa: E731
    x = random(p.n, p.c, p.extent, p.extent).to(memory_format=memory)
    w = (random(p.k, p.c // p.groups, p.taps, p.taps) / p.taps).to(memory_format=memory)
    options = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}
    conv = lambda a, b: torch.nn.functional.conv2d(a, b, None, **options)  # noqa: E731
    y = torch.empty_like(conv(x, w), memory_format=memory)
    dy = random(*y.shape).to(memory_format=memory)
    dx, dw = torch.empty_like(x), torch.empty_like(w)
    tf32 = p.name == "tf32"
    given = options | {"layout": p.layout, "precision": "tf32" if tf32 else "ieee"}

    def rival(run):
        def set_and_run():
            torch.backends.cudnn.benchmark = True
            torch.backends.cudnn.allow_tf32 = tf32
            return run()

        return {"torch": set_and_run}

    def gradient(which: int):
        return lambda: torch.ops.aten.convolution_backward(
            dy, x, w, None, [p.stride] * 2, [p.padding] * 2, [p.dilation] * 2, False, [0, 0],
            p.groups, [which == 0, which == 1, False],
        )[which]  # fmt: skip

    # A few images, or a few filters for the gradient of weights, by sums in float64.
    some = slice(0, 1)
    flops = 2 * y.numel() * w[0].numel()

    def reference(which: str):
        a, b, g = x.double(), w.double(), dy.double()
        settings = (None, [p.stride] * 2, [p.padding] * 2, [p.dilation] * 2, False, [0, 0])
        if which == "fwd":
            return torch.nn.functional.conv2d(
                a[some], b, None, p.stride, p.padding, p.dilation, p.groups
            )
        return torch.ops.aten.convolution_backward(
            g[some] if which == "dgrad" else g, a[some] if which == "dgrad" else a, b, *settings,
            p.groups, [which == "dgrad", which == "wgrad", False],
        )[which == "wgrad"]  # fmt: skip

    eps = {"tf32": 2**-8, "fp32": 2**-17}.get(p.name, float(torch.finfo(dtype).eps))
    for which, run, other, result in (
        (
            "fwd",
            lambda: dlkern.conv(ours(x), ours(w), out=ours(y), **given),
            lambda: conv(x, w),
            y,
        ),
        (
            "dgrad",
            lambda: dlkern.conv_backward_input(
                ours(dy), ours(w), ours(x).shape, out=ours(dx), **given
            ),
            gradient(0),
            dx,
        ),
        (
            "wgrad",
            lambda: dlkern.conv_backward_weight(
                ours(dy), ours(x), ours(w).shape, out=ours(dw), **given
            ),
            gradient(1),
            dw,
        ),
    ):

        def run_ours(run=run, result=result):
            run()
            return result

        yield Case(
            f"{p.label} {which}",
            {"dlkern": run_ours, **rival(other)},
            reference=lambda which=which: reference(which),
            part=(lambda t: t) if which == "wgrad" else (lambda t: t[some]),
            tolerance=2 * eps,
            bytes=sum(t.nbytes for t in (x, w, y)),
            flops=flops,
            peak_tflops=PEAK_TFLOPS.get(p.name) if x.is_cuda else None,
            group=f"{p.group} {which}",
        )


def cases(device: str, quick: bool) -> Iterator[Case]:
    chosen = GPU if device == "cuda" else CPU
    if quick:
        chosen = [p for p in chosen if p.group == "table"]
    for p in chosen:
        yield from cases_of(p, device)


if __name__ == "__main__":
    main("conv", cases)
