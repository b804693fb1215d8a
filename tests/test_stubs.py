"""Types and docstrings of the public functions; the extension against its hand-written stub."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ops_table import NOT_OPS

import dlkern

PUBLIC = sorted(set(dlkern.__all__) - {"Event", "Stream"})
# What Cython adds to a module, and the classes that never leave the extension.
NOT_IN_STUB = (
    r"dlkern\._dlkern\.(Call|Framework|TensorList|(\w+\.)?__(reduce|setstate)_cython__|__test__)"
)


def test_extension_matches_its_stub(tmp_path):
    pytest.importorskip("mypy")
    config, allowed = tmp_path / "mypy.ini", tmp_path / "allowed.txt"
    config.write_text("[mypy]\nignore_missing_imports = True\nfollow_imports = skip\n")
    allowed.write_text(NOT_IN_STUB + "\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mypy.stubtest", "dlkern._dlkern",
         "--mypy-config-file", config, "--allowlist", allowed],
        capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(Path(dlkern.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", PUBLIC)
def test_annotated_and_documented(name):
    item = getattr(dlkern, name)
    assert item.__doc__, "no docstring"
    if not inspect.isfunction(item):
        return
    signature = inspect.signature(item)
    assert signature.return_annotation is not signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not parameter.empty, parameter
    if name not in NOT_OPS:
        documented = "Parameters\n" in item.__doc__ or ":func:`" in item.__doc__
        assert documented, "neither a Parameters section nor a reference to one"
