"""What the GPU kernels are made of (``src/cuda/prims``), each piece on its own.

``tests/cuda`` is one program with a case for each piece. It is compiled once in a run, for the GPU
of this machine; a test here runs one case of it.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from pathlib import Path

import pytest

import dlkern

ROOT = Path(__file__).resolve().parents[1]
PORTABLE = [ROOT / "tests/cuda/test_prims.cu"]
SM90 = sorted((ROOT / "tests/cuda").glob("*_sm90.cu"))
FLAGS = ["-std=c++20", "--expt-relaxed-constexpr", "--extended-lambda", "-DDLKERN_WITH_CUDA=1"]
SKIPPED = 77  # exit status: not on this GPU

pytestmark = pytest.mark.gpu


def cases() -> list[str]:
    """The names in the files' tables of cases."""
    text = "".join(source.read_text() for source in PORTABLE + SM90)
    return re.findall(r'^    \{"(\w+)", test_', text, re.MULTILINE)


def compile_program(nvcc: Path, capability: tuple[int, int], program: Path) -> str:
    """Each file at the same time as the others; returns what the compiler said."""
    sources = [*PORTABLE, ROOT / "src/cuda/runtime.cu"]
    flags = [*FLAGS, "-arch=native"]
    if capability == (9, 0):
        sources += [*SM90, ROOT / "src/cuda/prims/tensor_map_sm90.cu"]
        flags = [*FLAGS, "-gencode=arch=compute_90a,code=sm_90a", "-DDLKERN_WITH_SM90=1"]
    flags += [f"-I{folder}" for folder in (ROOT / "include", ROOT / "src", dlkern.get_include())]
    objects = [program.with_name(f"{source.stem}.o") for source in sources]
    compilers = [
        subprocess.Popen(
            [nvcc, *flags, "-c", source, "-o", target],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for source, target in zip(sources, objects, strict=True)
    ]
    said = "".join(compiler.communicate()[0] for compiler in compilers)
    if all(target.exists() for target in objects):
        # The wheels of the compiler keep its libraries where it does not look for them.
        link = [nvcc, *objects, "-o", program, f"-L{nvcc.parent.parent / 'lib'}"]
        done = subprocess.run(link, capture_output=True, text=True)
        said += done.stdout + done.stderr
    return said


@pytest.fixture(scope="session")
def program(tmp_path_factory, nvcc) -> Path:
    """The compiled program, one for all workers of pytest-xdist."""
    capability = dlkern.devices()[0]["compute_capability"]
    if dlkern.build_info()["gpu"] != "cuda" or nvcc is None or capability < (8, 0):
        pytest.skip("needs a CUDA compiler and a GPU of compute capability 8.0 or newer")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    program, log = folder / "test_prims", folder / "test_prims.log"
    with open(folder / "test_prims.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not log.exists():
            log.write_text(compile_program(nvcc, capability, program))
    assert program.exists(), log.read_text()
    return program


@pytest.mark.parametrize("case", cases())
def test_prim(program, case):
    done = subprocess.run([program, case], capture_output=True, text=True, timeout=120)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
