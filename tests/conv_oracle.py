"""Convolution and its gradients in float64 NumPy, tap by tap.

Arrays are channels-first; arguments have one entry per spatial dimension, and pads are pairs.
"""

from __future__ import annotations

import itertools

import numpy as np


def same_pads(extents, taps, stride, dilation):
    """The rule of TensorFlow and JAX."""
    pads = []
    for n, k, s, d in zip(extents, taps, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pads.append((total // 2, total - total // 2))
    return pads


def output_extents(extents, taps, stride, pads, dilation):
    return tuple(
        (n + sum(p) - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(extents, taps, stride, pads, dilation, strict=True)
    )


def _taps(padded, taps, outputs, stride, dilation):
    """Each tap with the view of the padded image that it sees."""
    for tap in itertools.product(*map(range, taps)):
        window = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, o, s in zip(tap, dilation, outputs, stride, strict=True)
        )
        yield tap, padded[(slice(None), slice(None), *window)]


def _pad(x, pads):
    return np.pad(x, [(0, 0), (0, 0), *pads])


def _split(a, axis, groups):
    shape = (*a.shape[:axis], groups, a.shape[axis] // groups, *a.shape[axis + 1 :])
    return a.reshape(shape)


def forward(x, w, bias=None, *, stride, pads, dilation, groups=1):
    outputs = output_extents(x.shape[2:], w.shape[2:], stride, pads, dilation)
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, *outputs))
    weights = _split(w, 0, groups)
    for tap, view in _taps(_pad(x, pads), w.shape[2:], outputs, stride, dilation):
        y += np.einsum("ngc...,gkc->ngk...", _split(view, 1, groups),
                       weights[(slice(None),) * 3 + tap])  # fmt: skip
    y = y.reshape(x.shape[0], w.shape[0], *outputs)
    return y if bias is None else y + bias.reshape(-1, *[1] * len(outputs))


def backward_input(dy, w, extents, *, stride, pads, dilation, groups=1):
    outputs = dy.shape[2:]
    # Room for positions that a window reaches beyond what the extents need.
    room = [max(n + sum(p), (o - 1) * s + (k - 1) * d + 1) for n, p, o, s, k, d in
            zip(extents, pads, outputs, stride, w.shape[2:], dilation, strict=True)]  # fmt: skip
    dx = np.zeros((dy.shape[0], w.shape[1] * groups, *room))
    gradient, weights = _split(dy, 1, groups), _split(w, 0, groups)
    for tap, view in _taps(dx, w.shape[2:], outputs, stride, dilation):
        view += np.einsum("ngk...,gkc->ngc...", gradient,
                          weights[(slice(None),) * 3 + tap]).reshape(view.shape)  # fmt: skip
    inside = tuple(slice(p[0], p[0] + n) for p, n in zip(pads, extents, strict=True))
    return dx[(slice(None), slice(None), *inside)]


def backward_weight(dy, x, taps, *, stride, pads, dilation, groups=1):
    gradient = _split(dy, 1, groups)
    dw = np.zeros((groups, dy.shape[1] // groups, x.shape[1] // groups, *taps))
    for tap, view in _taps(_pad(x, pads), taps, dy.shape[2:], stride, dilation):
        dw[(slice(None),) * 3 + tap] = np.einsum(
            "ngkp,ngcp->gkc", gradient.reshape(*gradient.shape[:3], -1),
            _split(view, 1, groups).reshape(x.shape[0], groups, x.shape[1] // groups, -1),
        )  # fmt: skip
    return dw.reshape(dy.shape[1], x.shape[1] // groups, *taps)
