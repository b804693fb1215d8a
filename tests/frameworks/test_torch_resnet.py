"""The example: ResNet-18 converted, trained beside the original."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import torch_resnet18


def test_converted_resnet_trains_as_the_original(device, capsys):
    original, twin, distance = torch_resnet18.run(
        steps=2, batch=4, extent=32, device=device, dtype=torch.float64
    )
    assert "52 of 52 modules" in capsys.readouterr().out
    np.testing.assert_allclose(twin, original, rtol=1e-8)
    assert distance < 1e-8


def test_names_are_those_of_torchvision():
    weights = torch_resnet18.ResNet18(10).state_dict()
    assert len(weights) == 122
    assert {"layer2.0.downsample.1.running_var", "layer4.1.conv2.weight", "fc.bias"} <= set(weights)
