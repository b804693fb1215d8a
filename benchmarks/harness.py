"""The one way to measure: check first, then time, rivals interleaved in the same run.

A bench file yields cases and calls ``main``::

    def cases(device, quick):
        x, y = ...
        yield Case(
            "softmax 16384x4096 bfloat16 fwd",
            {"dlkern": lambda: dlkern.softmax(x, out=y), "torch": lambda: torch.softmax(x, -1)},
            reference=lambda: torch.softmax(x.double(), -1),
            tolerance=2**-7,
            bytes=2 * x.nbytes,
        )

    if __name__ == "__main__":
        main("softmax", cases)

Each round runs every contender once, with the caches flushed before each run; on a GPU the time is
that between two CUDA events. Reported are the median and the 20th and 80th percentile. ``% of
roof`` is the time that the bytes take at the copy bandwidth measured in the same run (or the FLOPs
at ``peak_tflops``, if that is longer) over the time taken; ``x best rival`` is the quickest rival's
time over ours, of which the geometric mean over each group of cases comes last. Kernels use their
own choices, not those that `dlkern.autotune` has remembered. Results go to
``benchmarks/results/<gpu or cpu>/<family>.json``; what was there before is shown as ``x before``.

A wheel holds these files as ``dlkern.benchmarks``, for the command ``dlkern bench``: they import
each other by ``from .harness import``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dlkern

from . import roofline
from .machine import device_name, metadata

RESULTS = Path(__file__).parent / "results"
# Beyond every cache: the L2 of a GPU, the last level of a CPU.
FLUSH_BYTES = {"cuda": 512 << 20, "cpu": 128 << 20}
COPY_BYTES = {"cuda": 2 << 30, "cpu": 256 << 20}

Run = Callable[[], Any]


@dataclass
class Case:
    """One shape and dtype of one op.

    Parameters
    ----------
    name : str
    contenders : dict
        ``"dlkern"`` and rivals: functions that run the op once on prepared tensors and return its
        result.
    reference : callable, optional
        The right result in float64. Without it nothing is checked: say why in `note`.
    tolerance : float
        Largest error of dlkern that counts as right, relative to the larger of the element and the
        root mean square of the result.
    bytes, flops : int
        Each input read once and each output written once; multiply-adds counted as 2.
    peak_tflops : float, optional
        The device's limit for `flops`.
    note : str
    group : str
        Cases that are summed up together.
    part : callable, optional
        Takes from a result the part that `reference` returns, where all of it would take too long.
    """

    name: str
    contenders: dict[str, Run]
    reference: Run | None = None
    tolerance: float = 0.0
    bytes: int = 0
    flops: int = 0
    peak_tflops: float | None = None
    note: str = ""
    group: str = "all"
    part: Callable[[Any], Any] = lambda result: result


class Timer:
    """Runs contenders in turn on one device."""

    def __init__(self, device: str, budget_s: float):
        self.device, self.budget_s = device, budget_s
        size = FLUSH_BYTES[device]
        if device == "cuda":
            # By reading: what was written would go back to memory while the next run is timed.
            self.flush = torch.zeros(size // 4, dtype=torch.float32, device=device).sum
        else:  # by one thread, so that no rival's pool of threads is still spinning afterwards
            self.flush = functools.partial(np.empty(size, np.int8).fill, 1)

    def measure(self, contenders: dict[str, Run]) -> dict[str, np.ndarray]:
        """Microseconds of every run of each contender."""
        for run in contenders.values():  # warm up
            for _ in range(3):
                run()
        once = {name: self._round({name: run})[name] for name, run in contenders.items()}
        # Flushing takes about as long as a copy of its buffer.
        total_s = sum(once.values()) / 1e6 + len(once) * (1e-4 if self.device == "cuda" else 2e-2)
        rounds = max(5, min(200, int(self.budget_s / total_s)))
        times = [self._round(contenders) for _ in range(rounds)]
        return {name: np.array([t[name] for t in times]) for name in contenders}

    def _round(self, contenders: dict[str, Run]) -> dict[str, float]:
        if self.device == "cpu":
            return {name: self._cpu_us(run) for name, run in contenders.items()}
        pairs = {name: self._events(run) for name, run in contenders.items()}
        torch.cuda.synchronize()
        return {name: 1e3 * start.elapsed_time(stop) for name, (start, stop) in pairs.items()}

    def _cpu_us(self, run: Run) -> float:
        self.flush()
        start = time.perf_counter()
        run()
        return 1e6 * (time.perf_counter() - start)

    def _events(self, run: Run) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Queued behind the flush, so that the launch itself is not measured."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush()
        start.record()
        run()
        stop.record()
        return start, stop


class HostTimer(Timer):
    """Times the host alone: how long a call keeps its caller while the GPU's queue has room."""

    calls = 100

    def _round(self, contenders: dict[str, Run]) -> dict[str, float]:
        return {name: self._host_us(run) for name, run in contenders.items()}

    def _host_us(self, run: Run) -> float:
        start = time.perf_counter()
        for _ in range(self.calls):
            run()
        us = 1e6 * (time.perf_counter() - start) / self.calls
        if self.device == "cuda":
            torch.cuda.synchronize()
        return us


def copy_bandwidth(timer: Timer) -> float:
    """Bytes read and written per second by a plain copy, the roof of what is bound by memory."""
    size = COPY_BYTES[timer.device] // 2
    source, target = (torch.ones(size, dtype=torch.int8, device=timer.device) for _ in range(2))
    us = np.median(timer.measure({"copy": lambda: target.copy_(source)})["copy"])
    return 2 * size / (us / 1e6)


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest error over max(|element|, root mean square); inf where NaN is in other places."""
    if result.shape != reference.shape:
        raise AssertionError(f"shape {tuple(result.shape)}, expected {tuple(reference.shape)}")
    if not result.numel():
        return 0.0
    scale = reference.abs().clamp(min=max(float(reference.square().mean().sqrt()), 1e-300))
    error = float(((result.double() - reference).abs() / scale).max())
    return math.inf if math.isnan(error) else error


def compiled(function: Callable[..., Any], *args: Any) -> dict[str, Run]:
    """The function as a rival compiled for these shapes, where Triton is present."""
    if not (args[0].is_cuda and importlib.util.find_spec("triton")):
        return {}
    torch._dynamo.reset()
    run = torch.compile(function, dynamic=False)
    return {"torch.compile": lambda: run(*args)}


def cupy_rival(function: Callable[..., Any], *tensors: torch.Tensor) -> dict[str, Run]:
    """CuPy's op as a rival on the same memory, where CuPy is present and knows the dtype.

    `function` receives the module and the arrays, and returns an array.
    """
    floats = (torch.float16, torch.float32, torch.float64)
    known = all(t.is_cuda and t.dtype in floats for t in tensors)
    if not (known and importlib.util.find_spec("cupy")):
        return {}
    import cupy

    arrays = [cupy.from_dlpack(t) for t in tensors]
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)

    def run():
        with stream:
            return torch.from_dlpack(function(cupy, *arrays))

    return {"cupy": run}


def without_broken_rivals(case: Case) -> Case:
    """A rival that this machine cannot run is told of and left out."""
    contenders = {}
    for name, run in case.contenders.items():
        try:
            run()
        except Exception as error:
            if name == "dlkern":
                raise
            print(f"# {case.name}: {name} fails: {(str(error) or repr(error)).splitlines()[0]}")
        else:
            contenders[name] = run
    return dataclasses.replace(case, contenders=contenders)


def check(case: Case) -> dict[str, float | None]:
    """Error of each contender; fails where dlkern is wrong."""
    if case.reference is None:
        return dict.fromkeys(case.contenders)
    reference = case.reference()
    errors = {
        name: relative_error(case.part(run()), reference) for name, run in case.contenders.items()
    }
    if not errors["dlkern"] <= case.tolerance:
        raise AssertionError(
            f"{case.name}: error {errors['dlkern']:.3g}, allowed {case.tolerance:.3g}"
        )
    return errors


def rows_of(case: Case, timer: Timer) -> list[dict[str, Any]]:
    case = without_broken_rivals(case)
    errors = check(case)
    rows = []
    for name, us in timer.measure(case.contenders).items():
        p20, median, p80 = (round(float(v), 3) for v in np.percentile(us, (20, 50, 80)))
        rows.append(
            {
                "case": case.name, "contender": name, "us": median, "p20_us": p20, "p80_us": p80,
                "bytes": case.bytes, "flops": case.flops, "max_rel_error": errors[name],
                "note": case.note,
            }
        )  # fmt: skip
    return rows


HEADER = (
    "case | contender | us | p20 | p80 | TFLOP/s | GB/s | % of roof | error | x best rival | "
    "x before"
)


def split(rows: list[dict]) -> tuple[dict, list[dict]]:
    """The row of dlkern and those of its rivals, of one case."""
    (ours,) = (row for row in rows if row["contender"] == "dlkern")
    return ours, [row for row in rows if row is not ours]


def times_best_rival(rows: list[dict]) -> float | None:
    ours, rivals = split(rows)
    return min(row["us"] for row in rivals) / ours["us"] if rivals else None


def lines_of(rows: list[dict], case: Case, copy_bps: float, before: dict[tuple, float]) -> str:
    roof_us = 1e6 * case.bytes / copy_bps
    if case.peak_tflops:
        roof_us = max(roof_us, case.flops / case.peak_tflops / 1e6)
    ratio = times_best_rival(rows)
    lines = []
    for row in rows:
        us, error = row["us"], row["max_rel_error"]
        previous = before.get((row["case"], row["contender"]))
        columns = [
            row["case"],
            row["contender"],
            *(f"{row[key]:.1f}" for key in ("us", "p20_us", "p80_us")),
            f"{case.flops / us / 1e6:.4g}" if case.flops else "",
            f"{case.bytes / us / 1e3:.4g}" if case.bytes else "",
            f"{100 * roof_us / us:.0f}" if roof_us else "",
            "" if error is None else f"{error:.1e}",
            f"{ratio:.2f}" if ratio and row["contender"] == "dlkern" else "",
            f"{previous / us:.2f}" if previous else "",
        ]
        lines.append(" | ".join(columns))
    return "\n".join(lines)


def summary(groups: dict[str, list[list[dict]]]) -> str:
    """What the rows of the cases of each group come to; then the cases to look at."""
    lines, slower, less_exact = [], [], []
    for group, cases in groups.items():
        ratios = {case[0]["case"]: times_best_rival(case) for case in cases}
        found = {name: ratio for name, ratio in ratios.items() if ratio}
        if found:
            mean, least = statistics.geometric_mean(found.values()), min(found.values())
            lines.append(
                f"# {group}: {mean:.3f} x best rival, least {least:.2f}, in {len(found)} cases"
            )
        slower += [f"{ratio:.2f} {name}" for name, ratio in found.items() if ratio < 1]
        for case in cases:
            ours, rivals = split(case)
            theirs = max((row["max_rel_error"] or 0.0 for row in rivals), default=0.0)
            if theirs and ours["max_rel_error"] > 2 * theirs:
                less_exact.append(f"{ours['max_rel_error'] / theirs:.1f} {ours['case']}")
    if slower:
        lines.append("# below 1.00 x best rival: " + "; ".join(sorted(slower)))
    if less_exact:
        lines.append("# error over 2 x that of every rival: " + "; ".join(less_exact))
    return "\n".join(lines)


def load_before(path: Path) -> dict[tuple, float]:
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())["rows"]
    return {(row["case"], row["contender"]): row["us"] for row in rows}


Cases = Callable[[str, bool], Iterator[Case]]


@dataclass
class Options:
    """What and how to measure.

    Parameters
    ----------
    device : str, optional
        "cpu" or "cuda"; default: "cuda" where there is one.
    quick : bool
        Fewer cases, less time for each.
    only : str, optional
        Cases whose name has it; no results are written.
    out : path
        Folder of the results.
    rivals : bool
        Time others than dlkern.
    plot : path, optional
        A picture to draw of the results.
    timer : type
        What is timed: :class:`Timer` or :class:`HostTimer`.
    say : callable
        Receives what is to be read, line by line.
    begin : callable
        Receives the name of each case that is about to be measured.
    """

    device: str | None = None
    quick: bool = False
    only: str | None = None
    out: Path = RESULTS
    rivals: bool = True
    plot: Path | None = None
    timer: type[Timer] = Timer
    say: Callable[[str], None] = lambda line: print(line, flush=True)
    begin: Callable[[str], None] = lambda name: None


def without_rivals(case: Case) -> Case:
    return dataclasses.replace(case, contenders={"dlkern": case.contenders["dlkern"]})


def measure(family: str, cases: Cases, options: Options) -> dict[str, Any]:
    """Check and time a family's cases, tell of them, write results and picture; the results."""
    os.environ["DLKERN_CACHE"] = os.devnull
    device = options.device or ("cuda" if torch.cuda.is_available() and dlkern.devices() else "cpu")
    if device == "cpu":
        torch.set_num_threads(dlkern.get_num_threads())
    before = load_before(RESULTS / device_name(device) / f"{family}.json")
    budget_s = 0.2 if options.quick else 1.0
    timer = options.timer(device, budget_s)
    copy_bps = copy_bandwidth(Timer(device, budget_s))
    meta = metadata(device) | {"copy_tbs": float(f"{copy_bps / 1e12:.5g}"), "quick": options.quick}
    options.say(f"# {family} on {meta['gpu']}: copy {meta['copy_tbs']} TB/s\n{HEADER}")

    groups: dict[str, list[list[dict[str, Any]]]] = {}
    peaks = set()
    for case in cases(device, options.quick):
        if options.only and options.only not in case.name:
            continue
        options.begin(case.name)
        new = rows_of(case if options.rivals else without_rivals(case), timer)
        options.say(lines_of(new, case, copy_bps, before))
        groups.setdefault(case.group, []).append(new)
        peaks |= {case.peak_tflops} - {None}
    if options.rivals:
        options.say(summary(groups))
    rows = [row for cases_of in groups.values() for case_rows in cases_of for row in case_rows]
    results = {"meta": meta | {"peak_tflops": sorted(peaks)}, "rows": rows}
    if not options.only:
        path = options.out / device_name(device) / f"{family}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(results_json(**results))
        options.say(f"# wrote {path}")
    if options.plot and rows:
        roofline.draw(results, options.plot, family)
        options.say(f"# wrote {options.plot}")
    return results


def main(family: str, cases: Cases, timer: type[Timer] = Timer) -> None:
    """The command line of a bench file."""
    parser = argparse.ArgumentParser(description=f"Benchmarks of {family} against its rivals.")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda where there is one"
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases, less time for each")
    parser.add_argument("--only", metavar="TEXT", help="cases whose name has it; writes no results")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", default=RESULTS, help="default: %(default)s"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the results")
    measure(family, cases, Options(**vars(parser.parse_args()), timer=timer))


def results_json(meta: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """One row to a line, so that a change of results is readable in a diff."""
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    return f'{{"meta": {json.dumps(meta)},\n "rows": [\n{lines}\n]}}\n'
