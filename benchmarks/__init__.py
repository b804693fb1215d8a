"""Benchmarks of every op family: ``python -m benchmarks.bench_<family>``, or ``dlkern bench``."""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]

# ``python -m`` puts the checkout first on the path. Unless the extension was built in place, it is
# the installed dlkern that is meant, not the sources beside this folder.
if __name__ == "benchmarks" and not any((_ROOT / "dlkern").glob("_dlkern*.so")):
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != _ROOT]
