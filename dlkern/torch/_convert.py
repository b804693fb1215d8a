"""A whole model computed by dlkern, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from dlkern.torch.nn import TWINS, why_not

_ORIGINALS = {twin: original for original, twin in TWINS.items()}


@dataclass(frozen=True)
class Entry:
    """One module of a model."""

    name: str
    kind: str
    #: None where it was swapped.
    reason: str | None


@dataclass(frozen=True)
class Report:
    """What became of each module; printing it gives a table."""

    entries: tuple[Entry, ...]

    @property
    def swapped(self) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if e.reason is None)

    @property
    def kept(self) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if e.reason is not None)

    def __str__(self) -> str:
        lines = [f"{len(self.swapped)} of {len(self.entries)} modules are computed by dlkern"]
        lines += [f"  {n:4d}  {kind}" for kind, n in sorted(self._kinds().items())]
        if self.kept:
            width = max(len(e.name) for e in self.kept)
            lines.append("not swapped")
            lines += [f"  {e.name:{width}s}  {e.kind}: {e.reason}" for e in self.kept]
        return "\n".join(lines)

    def _kinds(self) -> Counter[str]:
        return Counter(e.kind for e in self.swapped)


def convert(model: nn.Module) -> Report:
    """Has dlkern compute the modules of a model that it has, in place.

    Each such module changes its class to its twin's of :mod:`dlkern.torch.nn`; it stays the same
    object with the same parameters, buffers and hooks, so that optimizers, wrappers (DDP) and
    checkpoints go on as before. Wrap by ``fully_shard`` and compile after it. What a model computes
    by functions (``torch.nn.functional``, methods of tensors) is not seen.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place.

    Returns
    -------
    Report
        Every module that computes something on its own: whether it was swapped, and if not why.
        Containers are left out.

    See Also
    --------
    revert : undoes it.
    """
    return Report(tuple(_converted(model)))


def _converted(model: nn.Module) -> Iterator[Entry]:
    for name, module in model.named_modules():
        kind = type(module).__name__
        if type(module) in _ORIGINALS:
            yield Entry(name, kind, None)
            continue
        reason = why_not(module)
        if reason is None:
            module.__class__ = TWINS[type(module)]
        elif next(module.children(), None) is not None and not any(
            isinstance(module, base) for base in TWINS
        ):
            continue
        yield Entry(name, kind, reason)


def revert(model: nn.Module) -> int:
    """Has torch compute a model again; returns the number of modules that it changes back."""
    count = 0
    for module in model.modules():
        if type(module) in _ORIGINALS:
            module.__class__ = _ORIGINALS[type(module)]
            count += 1
    return count
