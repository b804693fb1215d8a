"""The ``dlkern`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The command line, with one subcommand to a module."""
    top = argparse.ArgumentParser(
        prog="dlkern", description="Deep-learning primitives over DLPack."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="versions, devices, frameworks: what works here")
    info.add_argument("--json", action="store_true", help="for programs")

    demo = commands.add_parser("demo", help="train a small network on handwritten digits")
    demo.add_argument("--epochs", type=_at_least_one, default=10, metavar="N")
    demo.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    demo.add_argument("--plot", metavar="FILE.png", help="draw loss and accuracy")
    demo.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    demo.add_argument("--checkpoint-dir", default="demo-checkpoints", metavar="DIR")
    demo.add_argument("--seed", type=int, default=0)

    bench = commands.add_parser("bench", help="time the ops on this machine")
    bench.add_argument(
        "family", nargs="*", help="such as softmax or optim; default: all (takes minutes)"
    )
    bench.add_argument("--rivals", action="store_true", help="time PyTorch's and CuPy's ops beside")
    bench.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the results")
    bench.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    bench.add_argument("--quick", action="store_true", help="fewer cases, less time for each")
    bench.add_argument("--only", metavar="TEXT", help="cases whose name has it; writes no results")
    bench.add_argument("--out", type=Path, metavar="DIR", default="bench-results")
    return top


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status."""
    options = parser().parse_args(arguments)
    if options.command == "info":
        from dlkern import info

        print(info.as_json() if options.json else info.as_text())
        return 0
    if options.command == "bench":
        from dlkern import bench

        return bench.run(options)
    from dlkern.demo import run

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
