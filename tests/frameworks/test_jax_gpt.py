"""The example: a small GPT by dlkern's ops, trained beside the one by jax.nn's."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import jax_gpt


def test_gpt_trains_as_by_jax_nn(jax_device):
    with jax.enable_x64(True):
        theirs, ours, distance = jax_gpt.run(
            steps=20, batch=4, length=32, layers=2, width=32, lr=3e-3, dtype="float64"
        )
    np.testing.assert_allclose(ours, theirs, rtol=1e-8)
    assert ours[-1] < 0.8 * ours[0]
    assert distance < 1e-8
