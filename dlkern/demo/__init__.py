"""``dlkern demo``: a small convolutional network learns handwritten digits.

Every number comes from dlkern, forward and backward: conv, batch_norm, relu, max_pool, linear,
cross_entropy, adamw. NumPy holds the arrays on a CPU; CuPy, torch or cuda.core on a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

NEEDS = {"sklearn": "scikit-learn", "rich": "rich", "safetensors": "safetensors"}


def run(options: argparse.Namespace) -> int:
    """Train as the command line says; returns the exit status."""
    needs = NEEDS | ({"matplotlib": "matplotlib"} if options.plot else {})
    missing = [package for module, package in needs.items() if not importlib.util.find_spec(module)]
    if missing:
        return fail(f'this needs {", ".join(missing)}: pip install "dlkern[demo]"')
    from dlkern.demo import arrays, checkpoint, training

    try:
        return training.main(options)
    except (arrays.NoDeviceError, checkpoint.CheckpointError) as error:
        return fail(str(error))


def fail(message: str) -> int:
    print(f"dlkern demo: {message}", file=sys.stderr)
    return 2
