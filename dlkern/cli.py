"""The ``dlkern`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


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
    from dlkern.demo import run

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
