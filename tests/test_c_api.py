"""The C API as a host sees it: built against the installed package, never the source tree.

The package is the one inside the installed wheel, or a ``cmake --install`` tree named by
``DLKERN_PREFIX`` (which has the static library as well).
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

C_DIR = Path(__file__).parent / "c"
PREFIX = os.environ.get("DLKERN_PREFIX")
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def package_dir() -> Path:
    """Folder that holds include/ and lib/."""
    if PREFIX:
        return Path(PREFIX)
    from dlkern import _dlkern

    return Path(_dlkern.__file__).parent


def run(*command: object, **kwargs: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def defined_symbols(library: Path) -> set[str]:
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def public_headers() -> list[str]:
    return sorted(p.name for p in (C_DIR.parents[1] / "include" / "dlkern").glob("*.h"))


@pytest.mark.skipif(not shutil.which("cmake"), reason="no CMake")
def test_cmake_host(tmp_path):
    run("cmake", "-S", C_DIR, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={package_dir()}")
    run("cmake", "--build", tmp_path)
    hosts = sorted(tmp_path.glob("host_*"))
    assert [h.name for h in hosts] == ["host_shared", "host_static"] if PREFIX else ["host_shared"]
    for host in hosts:
        assert run(host) == "ok\n"


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="no pkg-config")
def test_pkg_config_host(tmp_path):
    lib = package_dir() / "lib"
    flags = run(
        "pkg-config", "--cflags", "--libs", "dlkern",
        env=os.environ | {"PKG_CONFIG_PATH": str(lib / "pkgconfig")},
    ).split()  # fmt: skip
    host = tmp_path / "host"
    run("cc", "-std=c11", *STRICT, C_DIR / "host.c", "-o", host, *flags, f"-Wl,-rpath,{lib}", "-lm")
    assert run(host) == "ok\n"


@pytest.mark.parametrize("language", ["c11", "c++17"])
@pytest.mark.parametrize("header", public_headers())
def test_header_stands_alone(header, language, tmp_path):
    source = tmp_path / ("h.c" if language == "c11" else "h.cpp")
    source.write_text(f"#include <dlkern/{header}>\nint main(void) {{ return 0; }}\n")
    include = package_dir() / "include"
    compiler = "cc" if language == "c11" else "c++"
    run(compiler, f"-std={language}", *STRICT, f"-I{include}", "-fsyntax-only", source)


def test_headers_include_no_gpu_header():
    for header in (package_dir() / "include" / "dlkern").glob("*.h"):
        assert not re.search(r"#include\s*<(cuda|hip)", header.read_text()), header


def test_only_dlk_symbols_are_exported():
    symbols = defined_symbols(package_dir() / "lib" / "libdlkern.so")
    assert "dlk_version" in symbols
    assert {s for s in symbols if not s.startswith("dlk_")} == set()


def test_every_declared_function_is_exported():
    text = "".join(p.read_text() for p in (package_dir() / "include" / "dlkern").glob("*.h"))
    declared = set(re.findall(r"DLK_API[^;]*?\b(dlk_\w+)\(", text))
    assert declared == defined_symbols(package_dir() / "lib" / "libdlkern.so")


@pytest.mark.skipif(bool(PREFIX), reason="a C install has no extension")
def test_extension_exports_only_its_init():
    from dlkern import _dlkern

    assert defined_symbols(Path(_dlkern.__file__)) == {"PyInit__dlkern"}
