"""Tuned choices: the table in C, the measurement, the file."""

import json
import threading
import warnings

import numpy as np
import pytest
from oracle import rounded
from test_runtime import run_python

import dlkern
from dlkern import _dlkern, tuning

GPU = "NVIDIA H200, sm_90, dlkern " + dlkern.__version__
FACTS = {"name": "NVIDIA H200", "compute_capability": (9, 0)}


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """An empty table before and after, a folder for the file, and a GPU with a name."""
    monkeypatch.setenv("DLKERN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "_loaded", set())
    _dlkern.set_tuning(None, None)
    yield
    _dlkern.set_tuning(None, None)


@pytest.fixture
def h200(monkeypatch):
    monkeypatch.setattr(_dlkern, "device_info", lambda device: FACTS)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "cache" / "tuning.json"


# ---- The table -----------------------------------------------------------------------------------


def test_table_sets_replaces_and_removes():
    assert _dlkern.get_tuning("gemm m1") is None
    _dlkern.set_tuning("gemm m1", "64x64")
    _dlkern.set_tuning("gemm m1", "128x64")
    _dlkern.set_tuning("gemm m2", "64x64")
    assert _dlkern.get_tuning("gemm m1") == "128x64"
    _dlkern.set_tuning("gemm m1", None)
    _dlkern.set_tuning("gemm m3", None)
    assert _dlkern.get_tuning("gemm m1") is None
    assert _dlkern.get_tuning("gemm m2") == "64x64"
    _dlkern.set_tuning(None, None)
    assert _dlkern.get_tuning("gemm m2") is None


@pytest.mark.parametrize(
    ("key", "choice", "message"),
    [
        ("", "a", "set_tuning: key is empty"),
        ("a", "", "set_tuning: choice is empty"),
        (None, "a", "set_tuning: key is NULL, expected the one of the choice"),
    ],
)
def test_table_refuses(key, choice, message):
    with pytest.raises(ValueError, match=message):
        _dlkern.set_tuning(key, choice)


def test_long_choices():
    _dlkern.set_tuning("a", "x" * 255)
    assert _dlkern.get_tuning("a") == "x" * 255
    _dlkern.set_tuning("a", "x" * 256)
    with pytest.raises(ValueError, match="choice_bytes is 256, expected at least 257"):
        _dlkern.get_tuning("a")


def test_table_is_used_by_several_threads_while_calls_run():
    x, failures = np.ones((4, 5)), []

    def work(i):
        for n in range(500):
            _dlkern.set_tuning(f"key {i}", str(n))
            dlkern.softmax(x)
            if _dlkern.get_tuning(f"key {i}") != str(n):
                failures.append((i, n))
            _dlkern.set_tuning(f"key {i}", None)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- The measurement -----------------------------------------------------------------------------


def tune(times_us, fail_after=None):
    """What _tune chooses where candidates take that long, and how often each was timed."""
    counts = dict.fromkeys(times_us, 0)

    def timer(run):
        run()
        name = _dlkern.get_tuning("key")
        counts[name] += 1
        if counts[name] == fail_after:
            raise dlkern.DeviceError("broken")
        return times_us[name]

    result = tuning._tune("key", tuple(times_us), lambda: None, timer)
    assert len(set(counts.values())) == 1
    return result


def test_the_quickest_is_chosen():
    result = tune({"a": 30.0, "b": 20.0, "c": 25.0})
    assert result == ("key", [("a", 30.0), ("b", 20.0), ("c", 25.0)], "b")
    assert _dlkern.get_tuning("key") == "b"


def test_the_own_choice_of_the_kernel_wins_where_there_is_no_difference():
    assert tune({"a": 20.1, "b": 20.0}).chosen == "a"


@pytest.mark.parametrize("before", [None, "a"])
def test_a_failure_leaves_the_table_as_it_was(before):
    _dlkern.set_tuning("key", before)
    with pytest.raises(dlkern.DeviceError):
        tune({"a": 2.0, "b": 1.0}, fail_after=3)
    assert _dlkern.get_tuning("key") == before


def test_nothing_to_tune_on_the_cpu(file):
    x, out = np.ones((3, 3)), np.zeros((3, 3))
    assert dlkern.autotune(dlkern.matmul, x, x, out=out) == []
    (plan,) = dlkern.explain(dlkern.matmul, x, x)
    assert (plan.tuning_key, plan.candidates, plan.device) == ("", (), None)
    assert not out.any() and not file.exists()


# ---- The file ------------------------------------------------------------------------------------


def test_choices_come_back_from_the_file(h200, file):
    tuning._store(0, "gemm m1", "64x64")
    tuning._store(0, "gemm m2", "128x64")
    assert json.loads(file.read_text()) == {GPU: {"gemm m1": "64x64", "gemm m2": "128x64"}}
    assert list(file.parent.iterdir()) == [file]
    tuning.load(0)
    assert _dlkern.get_tuning("gemm m2") == "128x64"
    _dlkern.set_tuning("gemm m2", None)
    tuning.load(0)  # once only
    assert _dlkern.get_tuning("gemm m2") is None


def test_choices_of_another_gpu_are_kept_and_not_used(h200, file, monkeypatch):
    tuning._store(0, "gemm m1", "64x64")
    monkeypatch.setattr(_dlkern, "device_info", lambda device: FACTS | {"name": "NVIDIA H100"})
    tuning.load(1)
    assert _dlkern.get_tuning("gemm m1") is None
    tuning._store(1, "gemm m1", "32x32")
    assert len(json.loads(file.read_text())) == 2


BROKEN = [
    "",
    "{",
    "[]",
    "null",
    '{"a": 1}',
    "\udcff",
    json.dumps({GPU: {"": "a", "b": 1, "c": ""}}),
]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_counts_as_empty(h200, file, content):
    file.parent.mkdir()
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    tuning.load(0)
    tuning._store(0, "gemm m1", "64x64")
    assert json.loads(file.read_text())[GPU] == {"gemm m1": "64x64"}


def test_a_folder_that_cannot_be_written(h200, monkeypatch, tmp_path):
    (tmp_path / "occupied").touch()
    monkeypatch.setenv("DLKERN_CACHE", str(tmp_path / "occupied"))
    with pytest.warns(RuntimeWarning, match="not kept on disk"):
        tuning._store(0, "gemm m1", "64x64")


def test_a_device_that_is_not_there(file):
    file.parent.mkdir()
    file.write_text(json.dumps({GPU: {"gemm m1": "64x64"}}))
    with warnings.catch_warnings(action="error"):
        tuning.load(63)
    assert _dlkern.get_tuning("gemm m1") is None


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("DLKERN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuning._path() == tmp_path / "dlkern" / "tuning.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(tuning._path()) == "/home/somebody/.cache/dlkern/tuning.json"


# ---- On a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_autotune_matmul(gpu, file, rng):
    """Every candidate computes the same product; the best is used and remembered."""
    a, b = (rounded(rng.standard_normal((256, 512)), "bfloat16") for _ in range(2))
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    scale = np.sqrt(np.square(expected).mean())
    da, db, out = gpu.array(a), gpu.array(b).T, gpu.empty((256, 256), "bfloat16")
    (plan,) = dlkern.explain(dlkern.matmul, da, db, out=out)
    result = dlkern.autotune(dlkern.matmul, da, db, out=out)
    if len(plan.candidates) < 2:
        assert result == []
        pytest.skip(f"{plan.implementation} has nothing to tune")
    ((key, times, chosen),) = result
    assert key == plan.tuning_key and [name for name, _ in times] == list(plan.candidates)
    assert all(us > 0 for _, us in times)
    assert _dlkern.get_tuning(key) == chosen
    assert json.loads(file.read_text())[tuning._gpu(0)] == {key: chosen}
    for choice in (*plan.candidates, "no such configuration"):
        _dlkern.set_tuning(key, choice)
        dlkern.matmul(da, db, out=out)
        assert abs(gpu.numpy(out) - expected).max() < 0.02 * scale + 0.005 * abs(expected).max()


@pytest.mark.gpu
def test_choices_are_loaded_before_the_first_call(gpu, file):
    """In a new process, by a plain call."""
    pytest.importorskip("torch")
    tuning._store(0, "some key", "some choice")
    done = run_python(
        "import torch, dlkern\n"
        "x = torch.ones(4, device='cuda')\n"
        "assert dlkern._dlkern.get_tuning('some key') is None\n"
        "dlkern.softmax(x)\n"
        "assert dlkern._dlkern.get_tuning('some key') == 'some choice'\n",
        DLKERN_CACHE=str(file.parent),
    )
    assert done.returncode == 0, done.stderr
