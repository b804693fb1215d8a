"""Fixtures of the suite, and the one place where tests are skipped for want of a GPU.

``backend``  arrays on the CPU, then on the GPU (marked ``gpu``): see backends.py
``each_gpu`` arrays on the GPU by each framework that backends.py knows
``jax_device`` a device of JAX: the CPU, then the GPU
``dtype``    each floating dtype's name
``rng``      a generator with a fixed seed

``pytest`` passes without a GPU; ``pytest -m gpu`` refuses to run without one. With ``--results
DIR`` the counts of a GPU run are written to ``DIR/<gpu>/tests.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

# The benchmarks package also sees to it that the installed dlkern is tested, not the sources.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from build_backend.probe import find_nvcc  # isort: skip
from benchmarks.machine import device_name, metadata  # isort: skip

from backends import GPU_BACKENDS, get_backend, get_gpu, gpu_name, why_no_gpu
from oracle import FLOATS

# JAX would take three quarters of the GPU's memory for itself at its first array.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Devices for what is spread over several.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
# What has been tuned on this machine does not decide which kernels are tested.
os.environ["DLKERN_CACHE"] = os.devnull


def pytest_addoption(parser):
    parser.addoption(
        "--results", metavar="DIR", help="write the counts of the run to DIR/<gpu>/tests.json"
    )


def pytest_configure(config):
    config.pluginmanager.register(Tally(config), "dlkern-tally")


def pytest_collection_finish(session):
    reason = why_no_gpu()
    wanted = session.config.option.markexpr.split()
    if reason and "gpu" in wanted and "not" not in wanted and not session.config.option.collectonly:
        raise pytest.UsageError(f"-m gpu: {reason}")


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and why_no_gpu():
        pytest.skip(why_no_gpu())


@pytest.fixture(scope="session")
def nvcc():
    """The CUDA compiler of this machine, if there is one."""
    return find_nvcc()


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request):
    return get_backend("cpu" if request.param == "cpu" else gpu_name())


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def jax_device(request):
    """A device of JAX, on which its arrays are made during the test."""
    jax = pytest.importorskip("jax")
    try:
        (device, *_) = jax.devices(request.param)
    except RuntimeError:
        pytest.skip("JAX has no GPU")
    with jax.default_device(device):
        yield device


@pytest.fixture
def gpu():
    """The GPU backend alone; the test needs the ``gpu`` mark."""
    return get_backend(gpu_name())


@pytest.fixture(params=GPU_BACKENDS)
def each_gpu(request):
    """The GPU through torch, then through CuPy; the test needs the ``gpu`` mark."""
    pytest.importorskip(request.param)
    return get_gpu(request.param)


@pytest.fixture(params=FLOATS)
def dtype(request):
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(20)


class Tally:
    """Counts the outcomes and writes tests.json."""

    def __init__(self, config):
        self.config, self.counts, self.start = config, Counter(), time.monotonic()

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1

    def pytest_sessionfinish(self, exitstatus):
        folder = self.config.getoption("--results")
        if not folder or hasattr(self.config, "workerinput"):
            return
        device = "cpu" if why_no_gpu() else "cuda"
        path = Path(folder, device_name(device), "tests.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        report = {
            "meta": metadata(device),
            "selection": self.config.option.markexpr,
            "counts": {kind: self.counts[kind] for kind in ("passed", "failed", "skipped")},
            "exit_status": int(exitstatus),
            "seconds": round(time.monotonic() - self.start, 1),
        }
        path.write_text(json.dumps(report, indent=2) + "\n")
