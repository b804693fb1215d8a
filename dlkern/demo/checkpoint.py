"""Checkpoints that are either whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np


class CheckpointError(RuntimeError):
    """There is no checkpoint, or not one of this network."""


def save(path: Path, tensors: dict[str, np.ndarray], state: dict[str, Any]) -> None:
    """Write to a temporary name, to the disk, and only then put it in the old one's place."""
    from safetensors.numpy import save as to_bytes

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # One entry, since the order of several is not defined: equal runs make equal files.
    content = to_bytes(tensors, metadata={"state": json.dumps(state, sort_keys=True)})
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and state, as they were saved."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise CheckpointError(f"there is no checkpoint {path}; begin without --resume")
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            state = json.loads((file.metadata() or {})["state"])
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return tensors, state
