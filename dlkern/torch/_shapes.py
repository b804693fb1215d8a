"""Shapes of results without data, and windows as schemas spell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Shape = Sequence[Any]  # of int or SymInt


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def like(x: Tensor) -> Tensor:
    """Contiguous, as all results are but those in the format of images."""
    return x.new_empty(x.shape)


def like_x(x: Tensor) -> Tensor:
    return like(x)


def like_dy(dy: Tensor) -> Tensor:
    return like(dy)


def is_channels_last(x: Tensor) -> bool:
    """In torch's channels-last format and no other; by the rule of src/pyx/call.pxi."""
    last = _CHANNELS_LAST.get(x.dim())
    return last is not None and not x.is_contiguous() and x.is_contiguous(memory_format=last)


def in_format_of(x: Tensor, shape: Shape, layout: str = "NCHW") -> Tensor:
    """Channels last where x is, and comes with the channels first by name."""
    last = not channels_last(layout) and len(shape) == x.dim() and is_channels_last(x)
    memory_format = _CHANNELS_LAST[x.dim()] if last else torch.contiguous_format
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory_format)


def image_like_x(x: Tensor, layout: str) -> Tensor:
    return in_format_of(x, x.shape, layout)


def of_input(dy: Tensor, input_shape: Shape, layout: str) -> Tensor:
    return in_format_of(dy, input_shape, layout)


def pointwise_of_x(x: Tensor) -> Tensor:
    return in_format_of(x, x.shape)


def pointwise_of_dy(dy: Tensor) -> Tensor:
    return in_format_of(dy, dy.shape)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def statistic(x: Tensor, shape: Shape) -> Tensor:
    """In the type that x is summed in."""
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return x.new_empty(shape, dtype=wide)


def reduced(x: Tensor, axis: Shape | None, keepdims: bool) -> list[Any]:
    axes = set(range(x.dim())) if axis is None else {a % max(x.dim(), 1) for a in axis}
    return [1 if d in axes else n for d, n in enumerate(x.shape) if keepdims or d not in axes]


def replaced(shape: Shape, axis: int, extent: Any) -> list[Any]:
    """The shape with another extent at an axis."""
    result = list(shape)
    result[axis] = extent
    return result


def product(a: Tensor, b: Tensor) -> list[Any]:
    """Of ``a @ b``."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return [*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.dim() > 1 else ())]


def product_dtype(a: Tensor, exact: bool) -> torch.dtype:
    """Of a result without a wish: that of `a`, of 8-bit ones bfloat16, or int32 for exact sums."""
    if a.dtype is torch.int8 and exact:
        return torch.int32
    return torch.bfloat16 if a.element_size() == 1 else a.dtype


# ---- Normalisation -------------------------------------------------------------------------------


def normalized(x: Tensor, layout: str, *statistics: Any) -> tuple[Tensor, Tensor, Tensor]:
    """y, mean, rstd; the statistics of that shape."""
    return image_like_x(x, layout), statistic(x, statistics), statistic(x, statistics)


def channel_gradients(x: Tensor, weight: Tensor | None, bias: Tensor | None, layout: str) -> Any:
    """dx, dweight, dbias of a norm with a weight for each channel."""
    given, shape = x if weight is None else weight, [channels(x, layout)]
    return (
        image_like_x(x, layout),
        None if weight is None else given.new_empty(shape),
        None if weight is None and bias is None else given.new_empty(shape),
    )


# ---- Windows -------------------------------------------------------------------------------------


def per_dim(value: Any, dims: int) -> Any:
    """A number for each spatial dimension; None stays None."""
    if value is None or isinstance(value, (tuple, list)):
        return value
    return [value] * dims


def pairs(padding: Any, dims: int) -> list[int] | None:
    """Begin and end for each dimension in a row; None for "same"."""
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f'padding is {padding!r}, expected "same", "valid" or numbers')
        return None if padding == "same" else [0] * (2 * dims)
    each = padding if isinstance(padding, (tuple, list)) else [padding] * dims
    return [n for p in each for n in (p if isinstance(p, (tuple, list)) else (p, p))]


def unpaired(padding: Sequence[int] | None) -> Any:
    """What the plain functions take, of what :func:`pairs` gave."""
    if padding is None:
        return "same"
    return list(zip(padding[::2], padding[1::2], strict=True))


def channels_last(layout: str) -> bool:
    return layout.endswith("C")


def spatial(shape: Shape, layout: str) -> Shape:
    return shape[1:-1] if channels_last(layout) else shape[2:]


def channels(x: Tensor, layout: str) -> Any:
    return x.shape[-1] if channels_last(layout) else x.shape[1]


def image(batch: Any, channels: Any, extents: Shape, layout: str) -> list[Any]:
    last = channels_last(layout)
    return [batch, *extents, channels] if last else [batch, channels, *extents]


def _positions(n: Any, span: Any, stride: int, pads: Sequence[int], ceil_mode: bool) -> Any:
    out = (n + sum(pads) - span + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (out - 1) * stride - pads[0] >= n:
        out -= 1
    return out


def windows(
    extents: Shape,
    taps: Shape,
    stride: Sequence[int],
    padding: Sequence[int] | None,
    dilation: Sequence[int],
    ceil_mode: bool = False,
) -> list[Any]:
    """Number of windows in each dimension."""
    if padding is None:
        return [-(-n // s) for n, s in zip(extents, stride, strict=True)]
    each = zip(extents, taps, stride, zip(padding[::2], padding[1::2], strict=True), dilation,
               strict=True)  # fmt: skip
    return [_positions(n, d * (k - 1) + 1, s, p, ceil_mode) for n, k, s, p, d in each]


def conv(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, layout: str
) -> Tensor:
    taps, extents = spatial(weight.shape, layout), spatial(x.shape, layout)
    positions = windows(extents, taps, stride, padding, dilation)
    return in_format_of(x, image(x.shape[0], weight.shape[0], positions, layout), layout)


def conv_transpose(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, output_padding: Any, dilation: Any,
    groups: int, layout: str,
) -> Tensor:  # fmt: skip
    extents = spatial(x.shape, layout)
    if padding is None:
        positions = [n * s for n, s in zip(extents, stride, strict=True)]
    else:
        each = zip(extents, spatial(weight.shape, layout), stride, padding[::2], padding[1::2],
                   output_padding, dilation, strict=True)  # fmt: skip
        positions = [
            (n - 1) * s - begin - end + d * (k - 1) + 1 + more
            for n, k, s, begin, end, more, d in each
        ]
    filters = channels(weight, layout) * groups
    return in_format_of(x, image(x.shape[0], filters, positions, layout), layout)


def pooled(
    x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, layout: str
) -> Tensor:
    extents = spatial(x.shape, layout)
    taps = extents if kernel is None else kernel
    steps = taps if stride is None else stride
    dilation = [1] * len(extents) if dilation is None else dilation
    positions = windows(extents, taps, steps, padding, dilation, ceil_mode)
    return in_format_of(x, image(x.shape[0], channels(x, layout), positions, layout), layout)


def adapted(x: Tensor, output_size: Any, layout: str) -> Tensor:
    positions = spatial(x.shape, layout) if output_size is None else output_size
    return in_format_of(x, image(x.shape[0], channels(x, layout), positions, layout), layout)
