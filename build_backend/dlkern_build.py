"""Build backend: scikit-build-core, plus the CUDA compiler from PyPI when one is needed.

``build.requires`` is static, so it would download the compiler for CPU-only builds too. This
wrapper asks for it only when CUDA is to be built and the machine has no nvcc.
"""

from __future__ import annotations

import os

from probe import find_nvcc, resolve_gpu
from scikit_build_core import build as _backend
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# One minor version for all parts: nvcc refuses the PTX of a newer nvvm.
CUDA_COMPILER = "cuda-toolkit[nvcc,cudart,cccl]==13.0.*"


def _cuda_compiler(config_settings: dict[str, list[str] | str] | None) -> list[str]:
    settings = config_settings or {}
    requested = settings.get("cmake.define.DLKERN_GPU") or os.environ.get("DLKERN_GPU", "auto")
    wanted = resolve_gpu(str(requested)) == "cuda" and find_nvcc() is None
    return [CUDA_COMPILER] if wanted else []


def get_requires_for_build_wheel(config_settings=None):
    """What a wheel needs beyond build-system.requires."""
    return _backend.get_requires_for_build_wheel(config_settings) + _cuda_compiler(config_settings)


def get_requires_for_build_editable(config_settings=None):
    """What an editable install needs beyond build-system.requires."""
    return _backend.get_requires_for_build_editable(config_settings) + _cuda_compiler(
        config_settings
    )
