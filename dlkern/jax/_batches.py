"""Batches that are one call with other arguments: kinds of rules. ``_table`` has each op's."""

from __future__ import annotations

import jax.numpy as jnp

from dlkern._glue.op import Arrays, Names
from dlkern.jax._ops import Batched, Rule

_MAX_DIMS = 8


def _alike(arrays: Arrays, batched: set[str], names: tuple[str, ...]) -> Arrays | None:
    """With a batch axis for each array of those names; None where others have one, or lists."""
    given = [n for n in names if n in arrays]
    if not batched <= set(given) or any(isinstance(arrays[n], list) for n in given):
        return None
    size = next(arrays[n].shape[0] for n in batched)
    alike = {
        n: arrays[n] if n in batched else jnp.broadcast_to(arrays[n], (size, *arrays[n].shape))
        for n in given
    }
    return None if any(a.ndim > _MAX_DIMS for a in alike.values()) else {**arrays, **alike}


def leading(*names: str, unless: str = "") -> Rule:
    """The op does not look at leading axes of those arrays, which all have the same rank.

    unless: an option with which it does.
    """

    def rule(options: Names, arrays: Arrays, batched: set[str]) -> Batched | None:
        alike = _alike(arrays, batched, names)
        if alike is None or len({alike[n].ndim for n in names if n in alike}) > 1:
            return None
        return None if options.get(unless) else Batched(options, alike)

    return rule


def elements(*names: str) -> Rule:
    """A loss of elements: so where it is not reduced."""
    whole = leading(*names)
    return lambda options, arrays, batched: (
        whole(options, arrays, batched) if options["reduction"] == "none" else None
    )


def along_axis(*names: str) -> Rule:
    """The same, but for an axis that counts from the front."""
    whole = leading(*names)

    def rule(options: Names, arrays: Arrays, batched: set[str]) -> Batched | None:
        axis = options["axis"]
        form = whole(options, arrays, batched) if isinstance(axis, int) else None
        if form is None:
            return None
        return Batched({**options, "axis": axis + (axis >= 0)}, form.arrays)

    return rule


def reduced(*names: str) -> Rule:
    """A reduction over some axes or all; ``shape`` is that of its argument."""

    def rule(options: Names, arrays: Arrays, batched: set[str]) -> Batched | None:
        alike = _alike(arrays, batched, names)
        if alike is None:
            return None
        shape = options.get("shape")
        rank = len(shape) if shape is not None else alike[names[-1]].ndim - 1
        axis = options["axis"]
        if axis is None:
            axis = tuple(range(rank))
        axes = axis if isinstance(axis, tuple) else (axis,)
        changed = {**options, "axis": tuple(a + (a >= 0) for a in axes)}
        if shape is not None:
            changed["shape"] = (alike[names[0]].shape[0], *shape)
        return Batched(changed, alike)

    return rule


def folded(*names: str) -> Rule:
    """Images [N, ...]: a batch of them is more images."""

    def rule(options: Names, arrays: Arrays, batched: set[str]) -> Batched | None:
        alike = _alike(arrays, batched, names)
        if alike is None:
            return None
        size, images = alike[names[0]].shape[:2]
        flat = {n: a.reshape(-1, *a.shape[2:]) if n in names else a for n, a in alike.items()}
        changed = dict(options)
        if options.get("input_shape") is not None:
            changed["input_shape"] = (size * images, *options["input_shape"][1:])
        return Batched(changed, flat, lambda r: r.reshape(size, images, *r.shape[1:]))

    return rule


def _aligned(arrays: Arrays, batched: set[str], rank: int) -> Arrays:
    """The batch axis before `rank` others, so that arrays of lower ranks broadcast as before."""
    return {
        n: a.reshape(a.shape[0], *(1,) * (rank + 1 - a.ndim), *a.shape[1:]) if n in batched else a
        for n, a in arrays.items()
    }


def broadcast(lowest_rank: int) -> Rule:
    """Operands a and b that broadcast, whose last `lowest_rank` axes are matrices' or elements'."""

    def rule(options: Names, arrays: Arrays, batched: set[str]) -> Batched | None:
        ranks = [a.ndim - (n in batched) for n, a in arrays.items()]
        if set(arrays) != {"a", "b"} or min(ranks) < lowest_rank or max(ranks) >= _MAX_DIMS:
            return None
        return Batched(options, _aligned(arrays, batched, max(ranks)))

    return rule
