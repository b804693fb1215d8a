"""Pooling in float64 NumPy, window by window. Arrays are channels-first.

Windows are given as ``kernel``, ``stride``, ``pads`` (pairs) and ``dilation``, one entry per
spatial dimension, and ``ceil_mode``.
"""

from __future__ import annotations

import numpy as np


def extents(shape, kernel, stride, pads, dilation, ceil_mode=False):
    out = []
    for n, k, s, (before, after), d in zip(shape, kernel, stride, pads, dilation, strict=True):
        slack = n + before + after - d * (k - 1) - 1
        count = (-(-slack // s) if ceil_mode else slack // s) + 1
        if ceil_mode and (count - 1) * s >= n + before:
            count -= 1
        out.append(count)
    return tuple(out)


def windows(shape, kernel, stride, pads, dilation, ceil_mode=False):
    """Each window's index, and the positions of its taps inside the input, per dimension."""
    for o in np.ndindex(*extents(shape, kernel, stride, pads, dilation, ceil_mode)):
        taps = []
        for i, n, k, s, (before, _), d in zip(
            o, shape, kernel, stride, pads, dilation, strict=True
        ):
            positions = i * s - before + d * np.arange(k)
            taps.append(positions[(positions >= 0) & (positions < n)])
        yield o, np.ix_(*taps)


def max_forward(x, **window):
    """Maxima, and the flat positions of the first of them, or of the first NaN."""
    spatial = x.shape[2:]
    shape = (*x.shape[:2], *extents(spatial, **window))
    y, indices = np.empty(shape), np.empty(shape, np.int64)
    positions = np.arange(np.prod(spatial)).reshape(spatial)
    for o, taps in windows(spatial, **window):
        inside = x[(slice(None), slice(None), *taps)].reshape(*x.shape[:2], -1)
        first = inside.argmax(-1)
        y[(..., *o)] = np.take_along_axis(inside, first[..., None], -1)[..., 0]
        indices[(..., *o)] = positions[taps].ravel()[first]
    return y, indices


def max_backward(dy, indices, shape):
    dx = np.zeros((*shape[:2], int(np.prod(shape[2:]))))
    for n, c in np.ndindex(*shape[:2]):
        np.add.at(dx[n, c], indices[n, c].ravel(), dy[n, c].ravel())
    return dx.reshape(shape)


def divisor(o, shape, taps, kernel, stride, pads, count_include_pad, divisor_override):
    if divisor_override:
        return divisor_override
    if not count_include_pad:
        return np.prod([t.size for t in taps])
    ends = [
        min(i * s - before + k, n + after)
        for i, n, k, s, (before, after) in zip(o, shape, kernel, stride, pads, strict=True)
    ]
    return np.prod([e - (i * s - p[0]) for e, i, s, p in zip(ends, o, stride, pads, strict=True)])


def avg(x, count_include_pad=True, divisor_override=None, **window):
    """Means; and a function that gives the gradient of dy."""
    spatial = x.shape[2:]
    y = np.empty((*x.shape[:2], *extents(spatial, **window)))
    counted = {k: window[k] for k in ("kernel", "stride", "pads")}
    cells = [
        (o, (slice(None), slice(None), *taps),
         divisor(o, spatial, taps, **counted, count_include_pad=count_include_pad,
                 divisor_override=divisor_override))
        for o, taps in windows(spatial, **window)
    ]  # fmt: skip
    spatial_axes = tuple(range(2, x.ndim))
    for o, cell, count in cells:
        y[(..., *o)] = x[cell].sum(spatial_axes) / count

    def backward(dy):
        dx = np.zeros(x.shape)
        for o, cell, count in cells:
            dx[cell] += (dy[(..., *o)] / count).reshape(*x.shape[:2], *[1] * len(o))
        return dx

    return y, backward


def lp(x, p, **window):
    """Norms; and a function that gives the gradient of dy and of norms that may be rounded."""
    spatial = x.shape[2:]
    y = np.empty((*x.shape[:2], *extents(spatial, **window)))
    cells = [(o, (slice(None), slice(None), *taps)) for o, taps in windows(spatial, **window)]
    spatial_axes = tuple(range(2, x.ndim))
    for o, cell in cells:
        y[(..., *o)] = (np.abs(x[cell]) ** p).sum(spatial_axes) ** (1 / p)

    def backward(dy, y):
        dx = np.zeros(x.shape)
        for o, cell in cells:
            norm = y[(..., *o)].reshape(*x.shape[:2], *[1] * len(o))
            with np.errstate(divide="ignore", invalid="ignore"):
                slope = np.sign(x[cell]) * (np.abs(x[cell]) / norm) ** (p - 1)
            dx[cell] += np.where(norm > 0, slope, 0) * dy[(..., *o)].reshape(norm.shape)
        return dx

    return y, backward


def adaptive(x, sizes):
    """Maxima, their flat positions, means; and a function that gives the means' gradient of dy."""
    spatial = x.shape[2:]
    shape = (*x.shape[:2], *sizes)
    y, mean, indices = np.empty(shape), np.empty(shape), np.empty(shape, np.int64)
    positions = np.arange(np.prod(spatial)).reshape(spatial)
    cells = []
    for o in np.ndindex(*sizes):
        taps = np.ix_(*[
            np.arange(i * n // m, -(-(i + 1) * n // m))
            for i, n, m in zip(o, spatial, sizes, strict=True)
        ])  # fmt: skip
        cell = (slice(None), slice(None), *taps)
        inside = x[cell].reshape(*x.shape[:2], -1)
        y[(..., *o)], mean[(..., *o)] = inside.max(-1), inside.mean(-1)
        indices[(..., *o)] = positions[taps].ravel()[inside.argmax(-1)]
        cells.append((o, cell, inside.shape[-1]))

    def backward(dy):
        dx = np.zeros(x.shape)
        for o, cell, count in cells:
            dx[cell] += (dy[(..., *o)] / count).reshape(*x.shape[:2], *[1] * len(o))
        return dx

    return y, indices, mean, backward
