"""Choosing kernel configurations by measurement, and remembering the choices.

Kernels choose by rules that should be good for every shape. Where a shape matters, `autotune` times
the alternatives on the spot. Choices are kept in ``tuning.json`` in the folder ``$DLKERN_CACHE``
(default ``$XDG_CACHE_HOME/dlkern`` or ``~/.cache/dlkern``), for each model of GPU and version of
dlkern, and hold in every later process from its first call on that GPU. The file may be deleted at
any time; one that cannot be read counts as empty.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from dlkern import _dlkern, _frameworks
from dlkern._core import explain

FLUSH_BYTES = 256 << 20  # more than the L2 of any GPU
#: Another choice than the kernel's own must be faster than it by this factor.
MARGIN = 1.01


class Tuning(NamedTuple):
    """What was measured for one call of the C library, and chosen."""

    key: str
    #: Median microseconds of each candidate; the one that calls used before comes first.
    times: list[tuple[str, float]]
    chosen: str


def autotune(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Tuning]:
    """Times the kernel configurations for ``function(*args, **kwargs)`` and keeps the best.

    From then on every call with the same shapes, dtypes and layouts uses it, in this process and,
    on GPUs of the same model, in later ones. A choice changes how fast a result comes and may
    change in which order it is summed (and so its last bits), never whether it is right.

    Parameters
    ----------
    function : callable
        A dlkern function, or anything that calls some. It is run many times: outputs are
        overwritten, and what is accumulated into grows, so pass copies of what must not change.
    *args, **kwargs
        Its arguments.

    Returns
    -------
    list of Tuning
        One for each call of the C library that can be tuned; empty where there is nothing to
        choose, as on the CPU.

    Warns
    -----
    RuntimeWarning
        The choices could not be written to disk; they hold in this process.

    Notes
    -----
    Waits for the GPU, so it cannot be captured in a CUDA graph. Needs cuda-core. No other thread
    should be computing on the same GPU meanwhile.
    """
    found: dict[str, Tuning] = {}
    for plan in explain(function, *args, **kwargs):
        key = plan.tuning_key
        if plan.device is None or key in found or len(plan.candidates) < 2:
            continue
        with _frameworks.current_device(plan.device):
            timer = GpuTimer(plan.device, plan.stream)
            found[key] = _tune(key, plan.candidates, lambda: function(*args, **kwargs), timer)
        _store(plan.device, key, found[key].chosen)
    return list(found.values())


class GpuTimer:
    """Microseconds of a run by events on its stream, with the L2 cache cleared before."""

    def __init__(self, device_id: int, stream: int) -> None:
        import cuda.core

        options = cuda.core.EventOptions(timing_enabled=True)
        self.start, self.stop = (
            cuda.core.Device(device_id).create_event(options) for _ in range(2)
        )
        self.stream = _frameworks.stream_object(stream)
        self.flush: Any = None
        with contextlib.suppress(Exception):  # no memory left: then it is timed with a warm cache
            self.flush = _frameworks.device_buffer(FLUSH_BYTES, device_id, stream)

    def __call__(self, run: Callable[[], Any]) -> float:
        if self.flush is not None:  # it also keeps the GPU busy until the kernel is queued
            self.flush.fill(0, stream=self.stream)
        self.stream.record(self.start)
        run()
        self.stream.record(self.stop)
        self.stop.sync()
        return 1e3 * (self.stop - self.start)


def _tune(
    key: str,
    candidates: tuple[str, ...],
    run: Callable[[], Any],
    timer: Callable[[Callable[[], Any]], float],
    budget_us: float = 5e5,
) -> Tuning:
    """Times the candidates in turn and leaves the table with the best, or as it was on an error."""
    import statistics

    before = _dlkern.get_tuning(key)
    try:
        times: dict[str, list[float]] = {}
        for name in candidates:  # the second run: nothing is done for the first time any more
            _dlkern.set_tuning(key, name)
            run()
            times[name] = [timer(run)]
        once = sum(us for (us,) in times.values()) + 200 * len(candidates)
        for _ in range(max(5, min(30, int(budget_us / once)))):
            for name in candidates:
                _dlkern.set_tuning(key, name)
                times[name].append(timer(run))
        medians = [(name, statistics.median(us)) for name, us in times.items()]
        chosen, best_us = min(medians, key=lambda item: item[1])
        if medians[0][1] < best_us * MARGIN:
            chosen = candidates[0]
        _dlkern.set_tuning(key, chosen)
    except BaseException:
        _dlkern.set_tuning(key, before)
        raise
    return Tuning(key, medians, chosen)


# ---- The file ------------------------------------------------------------------------------------

_lock = threading.Lock()
_loaded: set[int] = set()


def cache_folder() -> Path:
    """Where this and what is compiled at run time are kept."""
    folder = os.environ.get("DLKERN_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dlkern")


def _path() -> Path:
    return cache_folder() / "tuning.json"


def _read() -> dict[str, dict[str, str]]:
    """Choices by key, by GPU; what is not of this form is left out."""
    import json

    try:
        content = json.loads(_path().read_bytes())
    except (OSError, ValueError, RuntimeError):  # none, broken, no home
        return {}
    gpus = content if isinstance(content, dict) else {}
    return {
        gpu: {k: v for k, v in choices.items() if isinstance(v, str) and k and v}
        for gpu, choices in gpus.items()
        if isinstance(choices, dict)
    }


def _gpu(device: int) -> str:
    """What a choice depends on beside its key: "NVIDIA H200, sm_90, dlkern 0.1.0"."""
    facts = _dlkern.device_info(device)
    major, minor = facts["compute_capability"]
    return f"{facts['name']}, sm_{major}{minor}, dlkern {_dlkern.build_info()['version']}"


def load(device: int) -> None:
    """Sets the choices that are remembered for this GPU; the extension calls it once for each."""
    with _lock:
        if device in _loaded:
            return
        _loaded.add(device)
        gpus = _read()
        if not gpus:
            return
        with contextlib.suppress(ValueError, RuntimeError):  # no such device: the call will say so
            for key, choice in gpus.get(_gpu(device), {}).items():
                _dlkern.set_tuning(key, choice)


def _store(device: int, key: str, choice: str) -> None:
    """Adds to the file, which is replaced as a whole.

    Of two processes that store at the same time one may lose its choice, which is then merely tuned
    again one day.
    """
    import json
    import tempfile

    with _lock:
        gpus = _read()
        gpus.setdefault(_gpu(device), {})[key] = choice
        try:
            path = _path()
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
                file.write(json.dumps(gpus, indent=1, sort_keys=True) + "\n")
            os.replace(file.name, path)
        except (OSError, RuntimeError) as error:
            warnings.warn(
                f"autotune: choices are not kept on disk: {error}", RuntimeWarning, stacklevel=3
            )
