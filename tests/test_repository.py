"""The tree itself: each op family is complete, and the documents say what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ops_table import NOT_OPS, OPS
from oracle import FLOATS

import dlkern

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = sorted(p.stem for p in (ROOT / "include/dlkern").glob("*.h"))
FAMILIES = [stem for stem in FAMILIES if stem not in ("core", "dlkern")]
README = (ROOT / "README.md").read_text()
CUPY_GUIDE = (ROOT / "docs/cupy.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def files_of_a_family() -> list[str]:
    """The paths with ``<op>`` that begin the steps of "Add an op"."""
    steps = CONTRIBUTING.partition("## Add an op")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([^`]*<op>[^`]*)`:", steps, re.MULTILINE)


def files_of(pattern: str, family: str) -> list[Path]:
    """The file, or those that it was split into: conv_forward.cu and conv_backward.cu."""
    folder, name = (ROOT / pattern).parent, Path(pattern).name
    names = (name.replace("<op>", family), name.replace("<op>", f"{family}_*"))
    return [path for n in names for path in folder.glob(n)]


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_complete(family):
    patterns = files_of_a_family()
    assert len(patterns) == 9
    missing = [p.replace("<op>", family) for p in patterns if not files_of(p, family)]
    for umbrella, line in (
        ("include/dlkern/dlkern.h", f"#include <dlkern/{family}.h>"),
        ("src/pyx/_dlkern.pyx", f'include "{family}.pxi"'),
        ("dlkern/__init__.py", f"from dlkern.{family} import"),
        ("dlkern/torch/_ops/__init__.py", f"    {family},"),
    ):
        if line not in (ROOT / umbrella).read_text():
            missing.append(f"{umbrella}: {line}")
    assert not missing


def test_no_part_is_without_its_family():
    others = {"runtime", "info", "cli", "__init__", "__main__", "_core", "_frameworks", "overhead"}
    others |= {"tuning", "bench"}
    for pattern in ("src/ops/*.cpp", "src/cuda/*.cu", "dlkern/*.py", "benchmarks/bench_*.py"):
        for path in ROOT.glob(pattern):
            stem = path.stem.removeprefix("bench_")
            assert stem in others or any(f"{stem}_".startswith(f"{f}_") for f in FAMILIES), path


# ---- README --------------------------------------------------------------------------------


def table_of_ops() -> list[list[str]]:
    """Cells of the rows under the heading "Ops"."""
    section = README.partition("## Ops")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


def test_readme_lists_every_op_once():
    listed = [name for row in table_of_ops() for name in re.findall(r"`(\w+)`", row[1])]
    assert sorted(listed) == sorted(set(dlkern.__all__) - NOT_OPS)


def test_readme_families_have_the_backends_it_says():
    for family, _, _, backends in table_of_ops():
        has = ["CPU"] * bool(files_of("src/cpu/<op>.cpp", family))
        gpu = [p for p in files_of("src/cuda/<op>.cu", family) if not p.stem.endswith("_sm90")]
        has += ["CUDA", "HIP"] * bool(gpu)
        assert backends == ", ".join(has), family


def takes(op, dtype: str) -> bool:
    try:
        op.call(op.make(dtype))
    except TypeError:
        return False
    except ValueError:  # an option that suits other dtypes
        return True
    return True


def dtypes_of(op, dtype: str) -> list[str]:
    return [array.dtype.name for array in op.make(dtype).values()]


@pytest.mark.parametrize("row", table_of_ops(), ids=lambda row: row[0])
def test_readme_dtypes_are_those_that_work(row):
    ops = [op for op in OPS if f"`{op.name}`" in row[1]]
    listed = row[2].split(", ")
    fixed = [op for op in ops if dtypes_of(op, "float64") == dtypes_of(op, "float16")]
    own = {dtype for op in fixed for dtype in dtypes_of(op, "float32")[:2]}
    ops = [op for op in ops if op not in fixed]
    if not ops:
        assert sorted(own) == sorted(listed)
        return
    assert own <= set(listed)
    for dtype in FLOATS:
        assert all(takes(op, dtype) for op in ops) == (listed[0] in ("all", "any")), dtype
    for dtype in ("int8", "int32", "int64"):
        expected = dtype in listed or listed == ["any"]
        assert (dtype in own or any(takes(op, dtype) for op in ops)) == expected, dtype


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_readme_code_runs(code):
    for module in re.findall(r"^import (\w+)", code, re.MULTILINE):
        pytest.importorskip(module)
    assert len(code.strip().splitlines()) <= 12
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_code_of_the_cupy_guide_runs():
    """With NumPy in CuPy's place."""
    (code,) = re.findall(r"```python\n(.*?)```", CUPY_GUIDE, re.DOTALL)
    code = code.replace("import cupy", "import numpy as cupy")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_cupy_guide_names_functions_that_are_there():
    for name in re.findall(r"dlkern\.(\w+)", CUPY_GUIDE):
        assert name in dlkern.__all__


def test_readme_has_exactly_two_set_up_commands():
    assert re.findall(r"<!-- command: (\w+) -->", README) == ["demo", "tests"]


def test_documents_name_no_missing_file():
    documents = {"README.md": README, "CONTRIBUTING.md": CONTRIBUTING, "docs/cupy.md": CUPY_GUIDE}
    for name, text in documents.items():
        for path in re.findall(r"`((?:src|tests|scripts|dlkern|include)/[\w./-]+)`", text):
            assert (ROOT / path).exists(), f"{name}: {path}"
