"""``dlkern info``: facts that were tried, and a plain word where there is no GPU."""

import json
import subprocess
import sys

import numpy as np
import pytest

import dlkern
from dlkern import cli, info


def test_text(capsys):
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"dlkern {dlkern.__version__}, Python ")
    assert "numpy" in text
    if not dlkern.devices():
        assert "  no GPU: " in text


def test_json(capsys):
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["build"] == dlkern.build_info()
    assert facts["devices"] or facts["no_gpu"]
    assert facts["frameworks"]["numpy"] == {
        "version": np.__version__,
        "zero_copy": {"cpu": "yes"},
    }


@pytest.mark.parametrize("name", info.PROBES)
def test_every_installed_framework_passes(name):
    framework = info._framework(name, gpu=False)
    assert set(framework["zero_copy"].values()) <= {"yes"}, framework


@pytest.mark.gpu
@pytest.mark.parametrize("name", info.PROBES)
def test_every_installed_framework_passes_on_the_gpu(name):
    framework = info._framework(name, gpu=True)
    assert set(framework["zero_copy"].values()) <= {"yes"}, framework


def test_a_copy_or_a_wrong_value_is_seen(monkeypatch):
    softmax = dlkern.softmax
    monkeypatch.setattr(dlkern, "softmax", lambda x, out: softmax(x))
    assert info._framework("numpy", gpu=False)["zero_copy"] == {
        "cpu": "no: RuntimeError: another array came back"
    }
    monkeypatch.setattr(dlkern, "softmax", lambda x, out: out)
    assert "the values are wrong" in info._framework("numpy", gpu=False)["zero_copy"]["cpu"]


def test_as_a_program():
    for command in (["info", "--json"], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "dlkern", *command],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stderr == ""


@pytest.mark.gpu
def test_devices_are_described():
    (device, *_) = info.facts()["devices"]
    assert device["driver"]
    assert device["name"] in info.as_text()
