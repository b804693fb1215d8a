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

    With ``dims=1`` of lines, padded at their beginning alone (causal).

    Parameters
    ----------
    n, c, extent, k : int
        Images, their channels and height; channels of the result.
    taps, stride, dilation, groups, dims : int
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
    dims: int = 2

    @property
    def padding(self) -> tuple[int, int]:
        """At the beginning and the end of each dimension."""
        all_of_it = self.dilation * (self.taps - 1)
        return (all_of_it, 0) if self.dims == 1 else (all_of_it // 2, all_of_it // 2)

    @property
    def label(self) -> str:
        return (
            f"{self.name} {self.layout} N{self.n} C{self.c} "
            f"{'x'.join([str(self.extent)] * self.dims)} K{self.k} "
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
# Of 8 bits, beside the same in bfloat16.
QUANTISED = [
    *MIDDLE[:3], (64, 512, 7, 512), (32, 256, 56, 256), (64, 256, 56, 64, 1), (64, 64, 56, 256, 1),
    (64, 512, 28, 128, 1), (64, 128, 56, 128, 3, 2),
]  # fmt: skip
CPU_OTHERS = [
    (2, 32, 112, 32, 3, 1, 32),
    (2, 96, 112, 96, 3, 2, 96),
    (2, 672, 14, 672, 5, 1, 672),
    (2, 96, 56, 96, 7, 1, 96),
    (2, 16, 112, 96, 1),
    (2, 1152, 7, 320, 1),
    (2, 3, 224, 96, 4, 4),
    (1, 128, 64, 256),
    (1, 64, 128, 2, 1),
    (1, 256, 33, 256, 3, 1, 1, 12),
]
CAUSAL = [(2, 768, 1024, 768, 4, 1, 768), (2, 256, 1024, 256), (2, 64, 4096, 64, 3, 1, 1, 8)]
CPU = [
    *[Conv(4, *shape[1:], name="fp32", layout=layout, group=f"table {layout}")
      for layout in ("NCHW", "NHWC") for shape in TABLE],
    *[Conv(*shape, name="fp32", layout="NCHW", group="resnet50") for shape in resnet50(2)],
    *[Conv(*shape, name="fp32", layout=layout, group="others")
      for layout in ("NCHW", "NHWC") for shape in CPU_OTHERS],
    *[Conv(*shape, name="fp32", layout=layout, group="causal", dims=1)
      for layout in ("NCHW", "NHWC") for shape in CAUSAL],
    *[Conv(4, *shape[1:], layout="NCHW", group="bf16") for shape in MIDDLE],
]  # fmt: skip


def cases_of(p: Conv, device: str) -> Iterator[Case]:
    dtype = DTYPES[p.name]
    last = p.layout == "NHWC"
    # Theirs have the channels first, whichever way they lie in memory.
    ours = lambda t: t.movedim(1, -1) if last else t  # noqa: E731
    laid = lambda t: ours(t).contiguous().movedim(-1, 1) if last else t.contiguous()  # noqa: E731
    random = lambda *shape: laid(torch.randn(shape, device=device).to(dtype))  # noqa: E731
    x = random(p.n, p.c, *[p.extent] * p.dims)
    w = laid(random(p.k, p.c // p.groups, *[p.taps] * p.dims) / p.taps)
    begin, end = p.padding
    # What they cannot pad while they compute is padded before.
    padded = x if begin == end else laid(torch.nn.functional.pad(x, (begin, end)))
    padding = [begin if begin == end else 0] * p.dims
    settings = ([p.stride] * p.dims, padding, [p.dilation] * p.dims, False, [0] * p.dims, p.groups)
    conv = lambda a, b: torch.ops.aten.convolution(a, b, None, *settings)  # noqa: E731
    y = laid(torch.empty_like(conv(padded, w)))
    dy = random(*y.shape)
    dx, dw = torch.empty_like(x), torch.empty_like(w)
    tf32 = p.name == "tf32"
    given = {
        "stride": p.stride, "padding": [p.padding] * p.dims, "dilation": p.dilation,
        "groups": p.groups, "layout": p.layout, "precision": "tf32" if tf32 else "ieee",
    }  # fmt: skip

    def rival(run):
        def set_and_run():
            torch.backends.cudnn.benchmark = True
            torch.backends.cudnn.allow_tf32 = tf32
            return run()

        return {"torch": set_and_run}

    def gradient(which: int, dy=dy, x=padded, w=w):
        mask = [which == 0, which == 1, False]
        result = torch.ops.aten.convolution_backward(dy, x, w, None, *settings, mask)[which]
        return result[..., begin:] if which == 0 and begin != end else result

    # A few images, or a few filters for the gradient of weights, by sums in float64.
    some = slice(0, 1)
    flops = 2 * y.numel() * w[0].numel()

    def reference(which: str):
        a, b, g = padded.double(), w.double(), dy.double()
        if which == "fwd":
            return conv(a[some], b)
        return gradient(0, g[some], a[some], b) if which == "dgrad" else gradient(1, g, a, b)

    eps = {"tf32": 2**-8, "fp32": 2**-17}.get(p.name, float(torch.finfo(dtype).eps))
    for which, run, other, result in (
        (
            "fwd",
            lambda: dlkern.conv(ours(x), ours(w), out=ours(y), **given),
            lambda: conv(padded, w),
            y,
        ),
        (
            "dgrad",
            lambda: dlkern.conv_backward_input(
                ours(dy), ours(w), ours(x).shape, out=ours(dx), **given
            ),
            lambda: gradient(0),
            dx,
        ),
        (
            "wgrad",
            lambda: dlkern.conv_backward_weight(
                ours(dy), ours(x), ours(w).shape, out=ours(dw), **given
            ),
            lambda: gradient(1),
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


def quantised(p: Conv, device: str, out_dtype: torch.dtype) -> Case:
    """Of images with channels last, with a factor for each filter."""
    random = lambda *shape: torch.randn(shape, device=device)  # noqa: E731
    x, w = random(p.n, p.extent, p.extent, p.c), random(p.k, p.taps, p.taps, p.c)
    wide = [t.bfloat16() for t in (x, w)]
    x, w = ((16 * t).to(DTYPES[p.name]) for t in (x, w))
    options = {"stride": p.stride, "padding": [p.padding] * 2, "layout": "NHWC"}
    y = dlkern.conv(*wide, **options)
    out = torch.empty_like(y, dtype=out_dtype)
    # Powers of two, so that int8 is exact but for its last rounding.
    scale = torch.tensor(1 / 16, device=device)
    of_filters = 2.0 ** torch.randint(-6, -3, (p.k,), device=device)

    def reference():
        image = x[:1].double().movedim(-1, 1)
        z = torch.nn.functional.conv2d(image, w.double().movedim(-1, 1), None, p.stride,
                                       p.padding[0])  # fmt: skip
        z = z.movedim(1, -1) * scale.double() * of_filters.double()
        return z.round().clamp(-128, 127) if out_dtype == torch.int8 else z

    short = str(out_dtype).removeprefix("torch.")
    return Case(
        f"{p.label} -> {short} fwd",
        {
            "dlkern": lambda: dlkern.scaled_conv(x, w, scale, of_filters, out=out, **options),
            "dlkern bfloat16": lambda: dlkern.conv(*wide, out=y, **options),
        },
        reference=reference,
        part=lambda t: t[:1],
        tolerance={torch.bfloat16: 2**-7, torch.int8: 0}.get(out_dtype, 2**-3),
        bytes=sum(t.nbytes for t in (x, w, out)),
        flops=2 * y.numel() * w[0].numel(),
        peak_tflops=PEAK_TFLOPS[p.name] if x.is_cuda else None,
        group=f"{p.name} -> {short}",
        note="the rival computes with other numbers, of 16 bits",
    )


def cases(device: str, quick: bool) -> Iterator[Case]:
    chosen = GPU if device == "cuda" else CPU
    if quick:
        chosen = [p for p in chosen if p.group.startswith("table")]
    for p in chosen:
        yield from cases_of(p, device)
    for shape in QUANTISED if device == "cuda" and not quick else ():
        for name, out_dtype in (("int8", torch.int8), ("int8", torch.bfloat16),
                                ("fp8", torch.float8_e4m3fn), ("fp8", torch.bfloat16)):  # fmt: skip
            yield quantised(Conv(*shape, name=name), device, out_dtype)


if __name__ == "__main__":
    main("conv", cases)
