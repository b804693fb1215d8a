"""Rules of vmap: a batch as one call of the op.

A rule takes arguments by name, batched ones with their batch in front, and the names of those. It
gives the arguments of one call for the whole batch and what to do to its results; or None where
there is no such call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Plan = tuple[dict[str, Any], Callable[[Any], Any]] | None
Rule = Callable[[dict[str, Any], set[str]], Plan]


def _only(arguments: Mapping[str, Any], batched: set[str], names: Sequence[str]) -> bool:
    """These arguments have a batch as far as they are given, no others, and all one rank."""
    given = {n for n in names if arguments[n] is not None}
    return batched == given and len({arguments[n].dim() for n in given}) == 1


def leading(*names: str) -> Rule:
    """These may have any leading axes."""

    def rule(arguments: dict[str, Any], batched: set[str]) -> Plan:
        return (arguments, lambda y: y) if _only(arguments, batched, names) else None

    return rule


def along_axis(*names: str) -> Rule:
    """As :func:`leading`, of an op along `axis`."""

    def rule(arguments: dict[str, Any], batched: set[str]) -> Plan:
        axis = arguments["axis"]
        if not _only(arguments, batched, names):
            return None
        return {**arguments, "axis": axis if axis < 0 else axis + 1}, lambda y: y

    return rule


def folded(*names: str) -> Rule:
    """These have samples as their first axis, which are computed alike: the batch joins them."""

    def rule(arguments: dict[str, Any], batched: set[str]) -> Plan:
        if not _only(arguments, batched, names):
            return None
        sizes = arguments[names[0]].shape[:2]

        def unfold(y: Any) -> Any:
            return None if y is None else y.unflatten(0, sizes)

        return arguments | {n: arguments[n].flatten(0, 1) for n in batched}, unfold

    return rule
