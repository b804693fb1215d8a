"""``dlkern bench``: the benchmarks, on the user's own machine."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

# Module -> what to install. PyTorch makes the arrays, also where it is no rival.
NEEDS = {"torch": "torch"}
NEEDS_FOR_PLOTS = {"matplotlib": "matplotlib"}


def run(options: argparse.Namespace) -> int:
    """Measure the families asked for; returns the exit status."""
    needs = NEEDS | (NEEDS_FOR_PLOTS if options.plot else {})
    missing = [name for module, name in needs.items() if not importlib.util.find_spec(module)]
    if missing:
        print(f"dlkern bench needs {' and '.join(missing)}: pip install 'dlkern[bench]'")
        return 1
    package = _package()
    known = families(package)
    unknown = sorted(set(options.family) - set(known))
    if unknown:
        print(f"dlkern bench: no family {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    chosen = options.family or known
    harness = importlib.import_module(f"{package}.harness")
    for family in chosen:
        bench = importlib.import_module(f"{package}.bench_{family}")
        with _screen() as (say, begin):
            harness.measure(
                family,
                bench.cases,
                harness.Options(
                    device=options.device,
                    quick=options.quick,
                    only=options.only,
                    out=options.out,
                    rivals=options.rivals,
                    timer=getattr(bench, "TIMER", harness.Timer),
                    plot=options.plot and _picture(options.plot, family, len(chosen)),
                    say=say,
                    begin=begin,
                ),
            )
    return 0


def _package() -> str:
    """Name of the package of the benchmarks: inside this one or, in a checkout, beside it."""
    if importlib.util.find_spec("dlkern.benchmarks"):
        return "dlkern.benchmarks"
    root = str(pathlib.Path(__file__).resolve().parents[1])
    if root not in sys.path:
        sys.path.append(root)
    return "benchmarks"


def families(package: str) -> list[str]:
    """Those that there are benchmarks of."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    found = (p for folder in folders or () for p in pathlib.Path(folder).glob("bench_*.py"))
    return sorted(p.stem.removeprefix("bench_") for p in found)


def _picture(path: pathlib.Path, family: str, count: int) -> pathlib.Path:
    """Each family's own file where there are several."""
    return path if count == 1 else path.with_stem(f"{path.stem}-{family}")


@contextlib.contextmanager
def _screen() -> Iterator[tuple[Any, Any]]:
    """Functions that print lines and tell the case that is measured: on a terminal by a spinner."""
    if not (sys.stdout.isatty() and importlib.util.find_spec("rich")):
        yield lambda line: print(line, flush=True), lambda name: None
        return
    from rich.console import Console

    console = Console()
    with console.status("") as status:
        yield (
            lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True),
            lambda name: status.update(name),
        )
