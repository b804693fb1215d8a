"""The benchmark harness: wrong results are not timed, and results have the agreed form."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks import bench_conv, bench_gemm, bench_optim, harness, roofline  # noqa: E402
from dlkern import bench, cli  # noqa: E402


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


# ---- Groups, parts, rivals -----------------------------------------------------------------------


def rows(case, ours_us, rivals_us, ours_error=1e-6, rival_error=1e-6):
    rows = [{"case": case, "contender": "dlkern", "us": ours_us, "max_rel_error": ours_error}]
    return rows + [
        {"case": case, "contender": f"rival {i}", "us": us, "max_rel_error": rival_error}
        for i, us in enumerate(rivals_us)
    ]


def test_summary():
    groups = {
        "large": [rows("a", 10.0, [20.0, 90.0]), rows("b", 10.0, [5.0])],
        "small": [rows("c", 10.0, [12.5], ours_error=5e-6)],
        "alone": [rows("d", 10.0, [])],
        "unchecked": [rows("e", 10.0, [10.0], None, None)],
    }
    assert harness.summary(groups).splitlines() == [
        "# large: 1.000 x best rival, least 0.50, in 2 cases",
        "# small: 1.250 x best rival, least 1.25, in 1 cases",
        "# unchecked: 1.000 x best rival, least 1.00, in 1 cases",
        "# below 1.00 x best rival: 0.50 b",
        "# error over 2 x that of every rival: 5.0 c",
    ]


def test_a_broken_rival_is_told_of_and_left_out(small, capsys):
    def broken():
        raise RuntimeError("no kernel\nfor this")

    def make(device, quick):
        (case,) = cases(0.0)(device, quick)
        case.contenders["broken"] = broken
        yield case

    harness.main("tanh", make)
    out = capsys.readouterr().out
    assert "# tanh 1000: broken fails: no kernel\n" in out
    assert "tanh 1000 | broken" not in out


def test_a_broken_dlkern_is_an_error(small):
    def make(device, quick):
        yield harness.Case("a", {"dlkern": lambda: 1 / 0})

    with pytest.raises(ZeroDivisionError):
        harness.main("a", make)


@pytest.mark.parametrize("wrong_row", [0, 5])
def test_part_of_a_result(wrong_row):
    x = torch.linspace(-1, 1, 60).reshape(6, 10)

    def wrong():
        y = torch.tanh(x)
        y[wrong_row] += 1
        return y

    case = harness.Case(
        "a", {"dlkern": wrong}, lambda: torch.tanh(x[:4].double()), 1e-6, part=lambda y: y[:4]
    )
    if wrong_row < 4:
        with pytest.raises(AssertionError):
            harness.check(case)
    else:
        assert harness.check(case)["dlkern"] < 1e-6


# ---- bench_gemm: its cases are right, in small ---------------------------------------------------


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("name", ["bf16", "fp16", "tf32", "fp32", "fp64"])
@pytest.mark.parametrize("batch", [(), (7,)])
def test_gemm_product(name, layout, batch):
    case = bench_gemm.product((name, layout, 19, 23, 64), "cpu", "sweep", batch)
    assert set(harness.check(case)) == {"dlkern", "torch"}
    assert case.flops == 2 * 19 * 23 * 64 * (batch[0] if batch else 1)


@pytest.mark.parametrize(("activation", "residual"), [row[4:] for row in bench_gemm.LAYERS])
def test_gemm_layer(activation, residual):
    case = bench_gemm.layer("bf16", 33, 20, 40, activation, residual, "cpu", compile_too=True)
    assert harness.check(case)["torch"] < 2**-6


def test_gemm_gradients():
    names = [case.name for case in bench_gemm.gradients("fp32", 300, 20, 30, "cpu")]
    assert names == ["fp32 wgrad 20x30x300", "fp32 wgrad+bias 20x30x300", "fp32 dgrad 300x30x20"]
    for case in bench_gemm.gradients("fp32", 300, 20, 30, "cpu"):
        harness.check(case)


@pytest.mark.parametrize(
    "make",
    [
        lambda: bench_gemm.scaled(32, 48, 64, False, "cpu"),
        lambda: bench_gemm.scaled(32, 48, 64, True, "cpu"),
        lambda: bench_gemm.integers(32, 48, 64, "cpu"),
        lambda: bench_gemm.grouped(4, 50, 24, 32, "cpu"),
    ],
)
def test_gemm_scaled_and_grouped(make):
    errors = harness.check(harness.without_broken_rivals(make()))
    assert "dlkern" in errors


def test_gemm_sweep_is_as_wide_as_it_says():
    shapes = [*bench_gemm.SWEEP, *bench_gemm.BATCHED, *bench_gemm.GROUPED]
    assert len(shapes) == len(set(shapes)) == 40


# ---- bench_conv: the rival computes the same, and results of 8 bits are right -------------------


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dims", [1, 2])
def test_conv(layout, dims):
    conv = bench_conv.Conv(2, 4, 9, 6, 3, 2, 2, name="fp32", layout=layout, dims=dims)
    for case in bench_conv.cases_of(conv, "cpu"):
        assert all(error < 1e-4 for error in harness.check(case).values())


@pytest.mark.parametrize("out_dtype", [torch.int8, torch.bfloat16, torch.float8_e4m3fn])
def test_quantised_conv(out_dtype):
    name = "fp8" if out_dtype == torch.float8_e4m3fn else "int8"
    conv = bench_conv.Conv(2, 16, 9, 32, 3, 2, name=name)
    assert "dlkern bfloat16" in harness.check(bench_conv.quantised(conv, "cpu", out_dtype))


# ---- bench_optim: a step over lists is right, whoever makes it -----------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda s: bench_optim.adamw("", s, "cpu", foreach=True),
        lambda s: bench_optim.adamw("", s, "cpu", dtypes=(torch.bfloat16,) * 3),
        lambda s: bench_optim.adamw("", s, "cpu", copy=torch.bfloat16),
        lambda s: bench_optim.sgd("", s, "cpu"),
        lambda s: bench_optim.lion("", s, "cpu"),
        lambda s: bench_optim.norm("", s, "cpu"),
        lambda s: bench_optim.unscale("", s, "cpu"),
    ],
)
@pytest.mark.parametrize("shapes", [[(50,)], [(3,), (4, 20)]], ids=str)
def test_optim(make, shapes):
    case = make(shapes)
    for run in case.contenders.values():  # as the harness tries them before it checks
        run()
    assert all(error < 1e-2 for error in harness.check(case).values())


def test_optim_resnet_has_its_parameters():
    sizes = [torch.Size(shape).numel() for shape in bench_optim.RESNET50]
    assert (len(sizes), sum(sizes)) == (161, 25_557_032)


# ---- Pictures, and the command -------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[1]


def results_of(*rows):
    keys = ("case", "contender", "us", "bytes", "flops")
    return {
        "meta": {"gpu": "x", "commit": "y", "date": "z", "copy_tbs": 2.0, "peak_tflops": [50.0]},
        "rows": [dict(zip(keys, row, strict=True)) for row in rows],
    }


ROWS = [
    ("a", "dlkern", 1.0, 10**6, 0),
    ("a", "torch", 2.0, 10**6, 0),
    ("b", "dlkern", 4.0, 2 * 10**6, 10**8),
    ("c", "dlkern", 4.0, 0, 0),  # nothing is known of it
]


def test_dots_of_a_picture():
    found = roofline.dots(results_of(*ROWS))
    assert [(d.number, d.contender, d.has_flops) for d in found] == [
        (1, "dlkern", False), (1, "torch", False), (2, "dlkern", True),
    ]  # fmt: skip
    np_close = pytest.approx
    assert [(d.x, d.y) for d in found] == [
        (1e6, np_close(1e12)), (1e6, np_close(5e11)), (50, np_close(2.5e13)),
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [ROWS[:2], ROWS[2:3], ROWS], ids=["memory", "flops", "both"])
def test_a_picture_is_a_png(tmp_path, rows):
    pytest.importorskip("matplotlib")
    roofline.draw(results_of(*rows), tmp_path / "a.png", "title")
    data = (tmp_path / "a.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG\r\n") and width > 600 and height > 400


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.stem)
def test_the_files_work_inside_another_package(path):
    """In a wheel they are dlkern.benchmarks."""
    assert "from benchmarks" not in path.read_text()


def test_every_family_can_be_asked_for():
    known = bench.families("benchmarks")
    assert {"softmax", "gemm", "optim"} <= set(known)
    for family in known:
        assert "\ndef cases(device" in (ROOT / f"benchmarks/bench_{family}.py").read_text(), family


@pytest.mark.parametrize("rivals", [False, True])
def test_bench_command(small, monkeypatch, capsys, rivals):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(bench_optim, "cases", cases(0.0))
    monkeypatch.setattr(bench, "_package", lambda: "benchmarks")
    arguments = ["bench", "optim", "--device", "cpu", "--quick", "--out", str(small)]
    arguments += ["--plot", str(small / "roof.png")] + ["--rivals"] * rivals
    assert cli.main(arguments) == 0
    (path,) = small.glob("*/optim.json")
    contenders = [row["contender"] for row in json.loads(path.read_text())["rows"]]
    assert contenders == ["dlkern", "torch"][: 1 + rivals]
    assert (small / "roof.png").read_bytes().startswith(b"\x89PNG")
    assert "tanh 1000 | dlkern | " in capsys.readouterr().out


def test_bench_command_names_the_families(capsys):
    assert cli.main(["bench", "nonsense"]) == 2
    assert "no family nonsense; there are" in capsys.readouterr().out


def test_bench_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["bench", "softmax", "--plot", "a.png"]) == 1
    assert "needs torch and matplotlib: pip install 'dlkern[bench]'" in capsys.readouterr().out


def test_the_command_line_needs_no_torch():
    code = (
        "import sys; from dlkern import bench, cli; cli.parser(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
