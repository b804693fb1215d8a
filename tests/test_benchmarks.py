"""The benchmark harness: wrong results are not timed, and results have the agreed form."""

import json
import sys

import pytest

torch = pytest.importorskip("torch")

from benchmarks import harness  # noqa: E402


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Buffers that take no time, and a command line."""
    monkeypatch.setattr(harness, "FLUSH_BYTES", {"cpu": 1 << 10})
    monkeypatch.setattr(harness, "COPY_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(
        sys, "argv", ["bench", "--device", "cpu", "--quick", "--out", str(tmp_path)]
    )
    return tmp_path


def cases(error):
    def make(device, quick):
        x = torch.linspace(-1, 1, 1000)
        yield harness.Case(
            "tanh 1000",
            {"dlkern": lambda: torch.tanh(x) + error, "torch": lambda: torch.tanh(x)},
            reference=lambda: torch.tanh(x.double()),
            tolerance=1e-6,
            bytes=2 * x.nbytes,
            flops=1000,
        )

    return make


def test_results_file_and_table(small, capsys):
    harness.main("tanh", cases(0.0))
    (path,) = small.glob("*/tanh.json")
    results = json.loads(path.read_text())
    assert {"gpu", "commit", "date", "copy_tbs"} <= set(results["meta"])
    assert [row["contender"] for row in results["rows"]] == ["dlkern", "torch"]
    for row in results["rows"]:
        assert list(row) == [
            *("case", "contender", "us", "p20_us", "p80_us"),
            *("bytes", "flops", "max_rel_error", "note"),
        ]
        assert 0 < row["p20_us"] <= row["us"] <= row["p80_us"]
        assert row["max_rel_error"] < 1e-6
    assert "tanh 1000 | dlkern | " in capsys.readouterr().out


@pytest.mark.parametrize("error", [1e-3, float("nan")])
def test_a_wrong_result_is_not_timed(small, error):
    with pytest.raises(AssertionError, match="tanh 1000: error"):
        harness.main("tanh", cases(error))
    assert not list(small.iterdir())
