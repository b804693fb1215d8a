"""Which machine a result was measured on."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import dlkern


def device_name(device: str) -> str:
    """Folder name under results/: the GPU's or CPU's model, e.g. "nvidia-h200"."""
    name = dlkern.devices()[0]["name"] if device == "cuda" else _cpu_model()
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def metadata(device: str) -> dict[str, Any]:
    """The ``meta`` part of a results file."""
    facts: dict[str, Any] = {"gpu": device_name(device)}
    if device == "cuda":
        driver, sm, memory = _nvidia_smi("driver_version", "clocks.max.sm", "clocks.max.mem")
        facts |= {
            "driver": driver,
            "cuda": _cuda_version(),
            "clocks_mhz": {"sm": _int(sm), "memory": _int(memory)},
        }
    else:
        facts |= {"threads": dlkern.get_num_threads()}
    now = datetime.datetime.now(datetime.UTC)
    return facts | {"commit": _commit(), "date": now.date().isoformat()}


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"model name\s*: (.+)", text)
    return model[1] if model else platform.machine()


def _cuda_version() -> str:
    version = dlkern.devices()[0]["runtime_version"]
    return f"{version // 1000}.{version % 1000 // 10}"


def _run(*command: str) -> str:
    """Output of a command, "" where it cannot be run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _nvidia_smi(*fields: str) -> list[str]:
    line = _run(
        "nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"
    )
    return line.split(", ") if line else [""] * len(fields)


def _int(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _commit() -> str:
    """The commit measured: DLKERN_COMMIT where there is no repository (a source archive).

    Of an installed package it is the version.
    """
    if __name__.startswith("dlkern."):  # around it may be somebody else's repository
        return dlkern.__version__
    commit = _run("git", "rev-parse", "--short=12", "HEAD")
    if not commit:
        return os.environ.get("DLKERN_COMMIT", "unknown")
    changed = _run(
        "git", "status", "--porcelain", "--untracked-files=no", "--", "../src", "../dlkern"
    )
    return commit + ("-modified" if changed else "")
