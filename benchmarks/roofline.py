"""A picture of one results file: each case beside what the memory, and the arithmetic, allow.

Cases without FLOPs stand at the bytes that they move, and the line is the copy bandwidth measured
in the same run; cases with FLOPs make a roofline: they stand at their FLOPs per byte, below the
slope of the copy bandwidth and the arithmetic peaks. A number beside a dot is that of its case in
the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

RIVAL_MARKS = "sD^vP*X"


@dataclass(frozen=True)
class Dot:
    """One contender of one case.

    `number` counts cases from 1. `x` is FLOPs per byte and `y` FLOP/s where the case has FLOPs,
    else bytes and bytes per second.
    """

    number: int
    case: str
    contender: str
    x: float
    y: float
    has_flops: bool


def dots(results: dict[str, Any]) -> list[Dot]:
    """The dots of a picture: one for each row that has something to stand at."""
    numbers: dict[str, int] = {}
    found = []
    for row in results["rows"]:
        seconds = row["us"] / 1e6
        number = numbers.setdefault(row["case"], len(numbers) + 1)
        if row["flops"] and row["bytes"]:
            x, y = row["flops"] / row["bytes"], row["flops"] / seconds
        elif row["bytes"]:
            x, y = row["bytes"], row["bytes"] / seconds
        else:
            continue
        found.append(Dot(number, row["case"], row["contender"], x, y, bool(row["flops"])))
    return found


def draw(results: dict[str, Any], path: Path, title: str) -> None:
    """Write the picture as a PNG."""
    from matplotlib.figure import Figure

    all_dots = dots(results)
    kinds = [kind for kind in (False, True) if any(d.has_flops == kind for d in all_dots)]
    names = {d.number: d.case for d in all_dots}
    figure = Figure(
        figsize=(7 * max(len(kinds), 1) + 5, max(5, 0.19 * len(names) + 1.5)), layout="constrained"
    )
    *panels, listing = figure.subplots(
        1, len(kinds) + 1, width_ratios=[7] * len(kinds) + [5], squeeze=False
    )[0]
    for has_flops, axes in zip(kinds, panels, strict=True):
        _draw_panel(axes, [d for d in all_dots if d.has_flops == has_flops], results["meta"])
    _list_cases(listing, names)
    meta = results["meta"]
    figure.suptitle(f"{title} on {meta['gpu']}, {meta['date']}, dlkern {meta['commit']}")
    figure.savefig(path, format="png", dpi=120)


def _draw_panel(axes: Any, panel: list[Dot], meta: dict[str, Any]) -> None:
    copy_bps, copy = 1e12 * meta["copy_tbs"], f"copy, {meta['copy_tbs']:.3g} TB/s"
    has_flops = panel[0].has_flops
    low, high = min(d.x for d in panel) / 2, max(d.x for d in panel) * 2
    axes.set_xscale("log")
    if has_flops:
        axes.set_yscale("log")
        peaks = [1e12 * peak for peak in meta.get("peak_tflops", [])]
        knee = max(peaks) / copy_bps if peaks else high
        slope = [low, min(knee, high)]
        axes.plot(slope, [x * copy_bps / 1e12 for x in slope], color="black", label=copy)
        for peak in peaks:
            axes.axhline(peak / 1e12, color="gray", linestyle="--", linewidth=0.8)
            axes.annotate(f"{peak / 1e12:g} TFLOP/s", (low, peak / 1e12), fontsize=7, va="bottom")
        axes.set_xlabel("FLOP per byte")
        axes.set_ylabel("TFLOP/s")
    else:
        axes.axhline(copy_bps / 1e12, color="black", label=copy)
        axes.axhline(0.9 * copy_bps / 1e12, color="gray", linestyle=":", label="90 % of it")
        axes.set_ylim(0, 1.1 * max(copy_bps, *(d.y for d in panel)) / 1e12)
        axes.set_xlabel("bytes moved")
        axes.set_ylabel("TB/s")
    axes.set_xlim(low, high)
    rivals = sorted({d.contender for d in panel} - {"dlkern"})
    for i, name in enumerate([*rivals, "dlkern"]):
        mine = [d for d in panel if d.contender == name]
        if name == "dlkern":
            look = {"s": 28, "zorder": 3, "color": "tab:red"}
        else:
            look = {"s": 16, "marker": RIVAL_MARKS[i % len(RIVAL_MARKS)], "alpha": 0.6}
        axes.scatter([d.x for d in mine], [d.y / 1e12 for d in mine], label=name, **look)
    for d in panel:
        if d.contender == "dlkern":
            axes.annotate(str(d.number), (d.x, d.y / 1e12), xytext=(4, 3), fontsize=7,
                          textcoords="offset points")  # fmt: skip
    axes.grid(alpha=0.2)
    axes.legend(fontsize=8)


def _list_cases(axes: Any, names: dict[int, str]) -> None:
    axes.axis("off")
    text = "\n".join(f"{number:3d}  {name}" for number, name in sorted(names.items()))
    axes.text(0, 1, text, va="top", family="monospace", fontsize=7, transform=axes.transAxes)
