"""Facts about the machine that the build needs, found in one place.

The build backend asks before CMake exists (is a CUDA compiler to be fetched?) and CMake asks
again while configuring, so both get the same answer. Standard library only. Run as a program
it prints ``key=value`` lines for CMake::

    python build_backend/probe.py auto
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BACKENDS = ("auto", "cuda", "hip", "none")
# The first release that knows sm_120; an older nvcc on the machine counts as absent.
OLDEST_NVCC = (12, 8)


def package_dir(name: str) -> Path | None:
    """Folder of an installed package, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))) if locations else None


def nvcc_candidates() -> Iterator[Path]:
    if compiler := os.environ.get("CUDACXX"):
        yield Path(compiler)
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if root := os.environ.get(variable):
            yield Path(root, "bin", "nvcc")
    if on_path := shutil.which("nvcc"):
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvcc")
    if wheel := package_dir("nvidia.cu13"):
        yield wheel / "bin" / "nvcc"


def find_nvcc() -> Path | None:
    """First CUDA compiler that runs and is recent enough."""
    for nvcc in nvcc_candidates():
        try:
            text = subprocess.run(
                [nvcc, "--version"], capture_output=True, text=True, check=True
            ).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        release = re.search(r"release (\d+)\.(\d+)", text)
        if release and (int(release[1]), int(release[2])) >= OLDEST_NVCC:
            return nvcc
    return None


def has_nvidia_driver() -> bool:
    if Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi"):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def resolve_gpu(requested: str) -> str:
    """``DLKERN_GPU`` as asked for -> the backend that is built: cuda, hip or none."""
    requested = requested.strip().lower() or "auto"
    if requested not in BACKENDS:
        raise ValueError(f"DLKERN_GPU is {requested!r}, expected one of {', '.join(BACKENDS)}")
    if requested != "auto":
        return requested
    return "cuda" if has_nvidia_driver() or find_nvcc() else "none"


def main() -> None:
    try:
        gpu = resolve_gpu(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
    nvcc = find_nvcc() if gpu == "cuda" else None
    dlpack = package_dir("tvm_ffi")
    openblas = package_dir("scipy_openblas32")
    cython_cmake = package_dir("cython_cmake")
    jaxlib = package_dir("jaxlib")
    facts = {
        "gpu": gpu,
        "nvcc": nvcc,
        "dlpack_dir": dlpack and dlpack / "include" / "dlpack",
        "openblas_dir": openblas and openblas / "lib" / "cmake" / "openblas",
        "cython_cmake_dir": cython_cmake and cython_cmake / "cmake",
        "xla_dir": jaxlib and jaxlib / "include",
    }
    for key, value in facts.items():
        print(f"{key}={value or ''}")


if __name__ == "__main__":
    main()
