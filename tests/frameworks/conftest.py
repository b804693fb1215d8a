"""Tests of the glue to frameworks, each where its framework is installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

FRAMEWORKS = ("torch",)
MISSING = [name for name in FRAMEWORKS if find_spec(name) is None]

collect_ignore_glob = [f"test_{name}_*" for name in MISSING]


def pytest_report_header():
    return [f"no tests of dlkern.{name}: {name} is not installed" for name in MISSING]


@pytest.fixture(autouse=True)
def full_precision(request):
    """Of torch's originals, too: cuDNN's convolutions round to tf32 unless they are told not to."""
    if not request.module.__name__.startswith("test_torch_"):
        yield
        return
    import torch

    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture
def device(backend):
    """Torch's name of the backend's device."""
    return "cuda" if backend.is_gpu else "cpu"
