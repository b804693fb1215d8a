"""``dlkern demo``: it learns, resumes to the same bits, and never loses a checkpoint."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time

import pytest

from dlkern import cli

for module in ("sklearn", "rich", "safetensors"):
    pytest.importorskip(module)

from dlkern.demo import arrays, checkpoint, training  # noqa: E402


def demo(folder, *options):
    return cli.main(["demo", "--device", "cpu", "--checkpoint-dir", str(folder), *options])


def stored(folder):
    """Bytes of the checkpoint."""
    return (folder / training.FILE).read_bytes()


@pytest.fixture(scope="module")
def three_epochs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    assert demo(folder, "--epochs", "3") == 0
    return folder


def test_it_learns(three_epochs):
    _, state = checkpoint.load(three_epochs / training.FILE)
    assert len(state["losses"]) == len(state["accuracies"]) == 3
    assert state["losses"][2] < state["losses"][0] / 4
    assert state["accuracies"][2] > 0.96


@pytest.mark.slow
def test_it_reaches_98_percent(tmp_path, capsys):
    start = time.process_time()
    assert demo(tmp_path) == 0
    assert time.process_time() - start < 2 * 60  # a minute on two cores
    _, state = checkpoint.load(tmp_path / training.FILE)
    assert state["accuracies"][-1] >= 0.98
    text = capsys.readouterr().out
    for row in ("test accuracy", "images/s", "device", "peak memory"):
        assert row in text


def test_resumed_run_has_the_same_bits(three_epochs, tmp_path, capsys):
    assert demo(tmp_path, "--epochs", "1") == 0
    assert demo(tmp_path, "--epochs", "3", "--resume") == 0
    assert "Going on after epoch 1" in capsys.readouterr().out
    assert stored(tmp_path) == stored(three_epochs)


def test_nothing_left_to_train(three_epochs, capsys):
    before = stored(three_epochs)
    assert demo(three_epochs, "--epochs", "3", "--resume") == 0
    assert "test accuracy" in capsys.readouterr().out
    assert stored(three_epochs) == before


def test_another_seed_is_another_run(three_epochs, tmp_path, capsys):
    assert demo(tmp_path, "--epochs", "1", "--seed", "1") == 0
    assert demo(tmp_path, "--epochs", "2", "--resume") == 2
    assert "not of this network with seed 0" in capsys.readouterr().err


def test_interrupt_leaves_a_usable_checkpoint(tmp_path):
    command = [
        sys.executable, "-P", "-m", "dlkern", "demo", "--device", "cpu", "--epochs", "1000",
        "--checkpoint-dir", str(tmp_path),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Also where this test runs as a background job, which ignores interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not trained(tmp_path) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "go on with --resume" in " ".join(output.split())
    assert "Traceback" not in errors
    assert os.listdir(tmp_path) == [training.FILE]
    assert demo(tmp_path, "--epochs", "1", "--resume") == 0


def trained(folder):
    """Whether a checkpoint of at least one epoch is there."""
    path = folder / training.FILE
    return path.exists() and len(checkpoint.load(path)[1]["losses"]) > 0


def test_interrupt_in_the_first_epoch(tmp_path, monkeypatch, capsys):
    def interrupted(self):
        yield
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training.Training, "train_epoch", interrupted)
        assert demo(tmp_path, "--epochs", "1") == 130
    assert "after epoch 0: go on with --resume" in " ".join(capsys.readouterr().out.split())
    assert demo(tmp_path, "--epochs", "1", "--resume") == 0


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failed_save_keeps_the_old_checkpoint(three_epochs, monkeypatch, failing):
    def fail(*_):
        raise OSError("no space left on device")

    before = stored(three_epochs)
    tensors, state = checkpoint.load(three_epochs / training.FILE)
    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space left"):
        checkpoint.save(three_epochs / training.FILE, tensors, state | {"seed": 5})
    assert stored(three_epochs) == before
    assert os.listdir(three_epochs) == [training.FILE]


def test_broken_or_missing_checkpoint(tmp_path, capsys):
    assert demo(tmp_path, "--resume") == 2
    assert "there is no checkpoint" in capsys.readouterr().err
    (tmp_path / training.FILE).write_bytes(b"not a checkpoint")
    assert demo(tmp_path, "--resume") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_plot(three_epochs, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "run.png"
    assert demo(three_epochs, "--epochs", "3", "--resume", "--plot", str(picture)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_missing_extra_is_named(monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "rich" else find_spec(name)
    )
    assert cli.main(["demo"]) == 2
    assert 'this needs rich: pip install "dlkern[demo]"' in capsys.readouterr().err


def test_device_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dlkern.devices", list)
    options = ["demo", "--device", "cuda", "--checkpoint-dir", str(tmp_path)]
    assert cli.main(options) == 2
    assert capsys.readouterr().err.startswith("dlkern demo: this ")


@pytest.mark.gpu
@pytest.mark.parametrize("name", arrays.GPU_KINDS)
def test_it_learns_on_every_kind_of_gpu_array(name):
    pytest.importorskip(name)
    run = training.Training(arrays.GPU_KINDS[name](), seed=0)
    for _ in range(3):
        for _ in run.train_epoch():
            pass
    assert run.losses[2] < run.losses[0] / 4
    assert run.test() > 0.96


@pytest.mark.gpu
def test_demo_on_the_gpu(tmp_path, capsys):
    options = ["--device", "cuda", "--checkpoint-dir", str(tmp_path)]
    assert cli.main(["demo", "--epochs", "2", *options]) == 0
    assert " through " in capsys.readouterr().out
    two = stored(tmp_path)
    assert cli.main(["demo", "--epochs", "1", *options]) == 0
    assert cli.main(["demo", "--epochs", "2", "--resume", *options]) == 0
    assert stored(tmp_path) == two
