"""Tests of the glue to frameworks, each where its framework is installed."""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec

import pytest

from dlkern import _dlkern

FRAMEWORKS = ("torch", "jax", "tensorflow", "keras")
MISSING = {name: f"{name} is not installed" for name in FRAMEWORKS if find_spec(name) is None}
if "jax" not in MISSING and not _dlkern.xla_handlers():
    MISSING["jax"] = "this build has no XLA handlers"

# Keras has one backend: that of KERAS_BACKEND, or the first of these.
for name in ("tensorflow", "torch", "jax"):
    if name not in MISSING:
        os.environ.setdefault("KERAS_BACKEND", name)
if os.environ.get("KERAS_BACKEND", "none") in ("none", *MISSING):
    MISSING.setdefault("keras", "Keras has no backend that is tested")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # less of what TensorFlow tells of the machine

collect_ignore_glob = [f"test_{name}_*" for name in MISSING]


def pytest_report_header():
    return [f"no tests of dlkern.{name}: {why}" for name, why in MISSING.items()]


@contextlib.contextmanager
def _cudnn_without_tf32():
    import torch

    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(autouse=True)
def full_precision(request):
    """Of the originals, too: products of float32 round to tf32 unless they are told not to."""
    name = request.module.__name__
    context = contextlib.nullcontext()
    if name.startswith("test_torch_"):
        context = _cudnn_without_tf32()
    elif name.startswith("test_jax_"):
        import jax

        context = jax.default_matmul_precision("highest")
    with context:
        yield


@pytest.fixture
def device(backend):
    """Torch's name of the backend's device."""
    return "cuda" if backend.is_gpu else "cpu"
