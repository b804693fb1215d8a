"""What the build asks for: the CUDA compiler from PyPI only where CUDA is built without an nvcc."""

import sys
from pathlib import Path

import pytest

BACKEND = Path(__file__).resolve().parents[1] / "build_backend"
CUDA_COMPILER = "cuda-toolkit[nvcc,cudart,cccl]==13.0.*"


@pytest.fixture
def probe(monkeypatch):
    """The probe on a machine with neither driver nor compiler; tests add what they need."""
    monkeypatch.syspath_prepend(BACKEND)
    for variable in ("CUDACXX", "CUDA_PATH", "CUDA_HOME", "DLKERN_GPU"):
        monkeypatch.delenv(variable, raising=False)
    import probe

    monkeypatch.setattr(probe, "has_nvidia_driver", lambda: False)
    monkeypatch.setattr(probe, "nvcc_candidates", lambda: iter(()))
    return probe


def fake_nvcc(path: Path, release: str) -> Path:
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("requested", ["cuda", "hip", "none", " CUDA "])
def test_a_named_backend_is_obeyed(probe, requested):
    assert probe.resolve_gpu(requested) == requested.strip().lower()


def test_auto_is_cpu_only_without_driver_and_compiler(probe):
    assert probe.resolve_gpu("auto") == probe.resolve_gpu("") == "none"


def test_auto_is_cuda_with_a_driver(probe, monkeypatch):
    monkeypatch.setattr(probe, "has_nvidia_driver", lambda: True)
    assert probe.resolve_gpu("auto") == "cuda"


@pytest.mark.parametrize(
    ("release", "backend"), [("13.0", "cuda"), ("12.8", "cuda"), ("11.8", "none")]
)
def test_auto_is_cuda_with_a_recent_compiler(probe, monkeypatch, tmp_path, release, backend):
    nvcc = fake_nvcc(tmp_path / "nvcc", release)
    monkeypatch.setattr(probe, "nvcc_candidates", lambda: iter([tmp_path / "none", nvcc]))
    assert probe.resolve_gpu("auto") == backend
    assert probe.find_nvcc() == (nvcc if backend == "cuda" else None)


def test_an_unknown_backend_is_named(probe):
    with pytest.raises(ValueError, match="'rocm', expected one of auto, cuda, hip, none"):
        probe.resolve_gpu("rocm")


@pytest.mark.parametrize(
    ("requested", "nvcc", "asked_for"),
    [
        ("cuda", None, [CUDA_COMPILER]),
        ("cuda", "nvcc", []),
        ("none", None, []),
        ("hip", None, []),
        ("auto", None, []),
    ],
)
def test_the_compiler_is_asked_for_only_when_needed(probe, monkeypatch, requested, nvcc, asked_for):
    pytest.importorskip("scikit_build_core")
    monkeypatch.delitem(sys.modules, "dlkern_build", raising=False)
    import dlkern_build

    monkeypatch.setattr(dlkern_build, "find_nvcc", lambda: nvcc)
    monkeypatch.setenv("DLKERN_GPU", requested)
    assert dlkern_build._cuda_compiler(None) == asked_for
    assert dlkern_build._cuda_compiler({"cmake.define.DLKERN_GPU": "none"}) == []
