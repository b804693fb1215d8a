"""Streams, threads, processes, foreign errors, workspaces and the debug modes."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from producer import CUDA, Producer

import dlkern


def run_python(script, **environment):
    return subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True, text=True, env=os.environ | environment, timeout=300,
    )  # fmt: skip


def test_import_is_light():
    script = (
        "import sys, dlkern\n"
        "heavy = {m.split('.')[0] for m in sys.modules} & "
        "{'numpy', 'torch', 'jax', 'cupy', 'cuda', 'tensorflow', 'ml_dtypes'}\n"
        "assert not heavy, heavy"
    )
    done = run_python(script)
    assert done.returncode == 0, done.stderr


# ---- Plans and workspaces ------------------------------------------------------------------------


def test_explain_runs_nothing(backend):
    x, out = backend.array(np.ones((2, 3))), backend.empty((2, 3), "float64")
    (plan,) = dlkern.explain(dlkern.softmax, x, out=out)
    assert plan.op == "softmax"
    assert f"{plan.implementation}: chosen" in plan.explanation
    assert np.isnan(backend.numpy(out)).all()
    with pytest.raises(ValueError, match="axis is 7"):
        dlkern.explain(dlkern.softmax, x, 7)
    dlkern.softmax(x, out=out)  # explaining has ended
    assert not np.isnan(backend.numpy(out)).any()


def test_workspace_block_accepts_host_memory():
    with dlkern.workspace(np.empty(64, np.uint8)):
        dlkern.softmax(np.ones(3))
    with (
        pytest.raises(ValueError, match="buffer is strided"),
        dlkern.workspace(np.empty((8, 8))[:, ::2]),
    ):
        pass


@pytest.mark.parametrize(
    ("buffer", "error", "message"),
    [
        ((1, 2, 3), TypeError, "buffer is tuple, expected an array"),
        (None, TypeError, "buffer is NoneType, expected an array"),
        (
            Producer(4104, (64,), None, "uint8", (CUDA, 0)),
            ValueError,
            "buffer is at address 0x1008",
        ),
    ],
)
def test_workspace_block_refuses_what_is_no_aligned_buffer(buffer, error, message):
    with pytest.raises(error, match=message), dlkern.workspace(buffer):
        pass


def test_workspace_blocks_nest():
    outer, inner = (Producer(address, (64,), None, "uint8", (CUDA, 0)) for address in (4096, 8192))
    with dlkern.workspace(outer):
        with dlkern.workspace(inner):
            pass
        previous = dlkern._dlkern.set_workspace(np.empty(1))
        assert previous == (4096, 64, 0)
        dlkern._dlkern.restore_workspace(previous)
    assert dlkern._dlkern.set_workspace(np.empty(1)) is None


# ---- Environment variables -----------------------------------------------------------------------


def test_verbose_prints_the_choice():
    done = run_python(
        "import numpy as np, dlkern; dlkern.softmax(np.ones((2, 3)))", DLKERN_VERBOSE="1"
    )
    assert "dlkern: softmax(x: float64[2, 3], y: float64[2, 3]) on cpu" in done.stderr
    assert ": chosen" in done.stderr


def test_debug_finds_nan_in_outputs():
    script = "import numpy as np, dlkern; dlkern.softmax(np.array([1.0, np.nan]))"
    assert run_python(script).returncode == 0
    assert run_python(script, DLKERN_DEBUG="1").returncode == 0
    done = run_python(script, DLKERN_DEBUG="nan")
    assert "ValueError: softmax: y holds nan at flat index 0" in done.stderr


def test_impl_limits_the_choice():
    script = "import numpy as np, dlkern; dlkern.matmul(np.ones((2, 3)), np.ones((3, 2)))"
    name = dlkern.explain(dlkern.matmul, np.ones((2, 3)), np.ones((3, 2)))[0].implementation
    assert run_python(script, DLKERN_IMPL=f"another,{name}").returncode == 0
    done = run_python(script, DLKERN_IMPL=name[:-1])
    assert f"{name}: declined, not in DLKERN_IMPL" in done.stderr
    assert "NotImplementedError: matmul: " in done.stderr


def test_a_thread_can_limit_its_own_choice():
    x = np.ones((2, 3))
    dlkern._dlkern.set_implementations("none_such")
    try:
        with pytest.raises(NotImplementedError, match="not in DLKERN_IMPL"):
            dlkern.softmax(x)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(dlkern.softmax, x).result()
    finally:
        dlkern._dlkern.set_implementations("")
    dlkern.softmax(x)


@pytest.mark.gpu
def test_debug_checks_pointers(gpu):
    script = f"""
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
import numpy as np, torch, dlkern
from producer import Producer
host = np.ones(1000, np.float32)
device = torch.ones(1000, device="cuda")
for address, n in ((host.ctypes.data, 1000), (device.data_ptr(), 1 << 40)):
    x = Producer(address, (n,), None, "float32", (2, 0))
    out = Producer(address, (n,), None, "float32", (2, 0))
    try:
        dlkern.softmax(x, out=out)
        print("ran")
    except ValueError as error:
        print(error)
"""
    done = run_python(script, DLKERN_DEBUG="1")
    first, second = done.stdout.splitlines()
    assert "x is pageable host memory" in first
    assert "x reaches past the end of its allocation" in second


# ---- Threads and processes -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_number_of_threads_does_not_change_bits(rng, n):
    x = rng.standard_normal((300, 1000)).astype(np.float32)
    before = dlkern.get_num_threads()
    try:
        dlkern.set_num_threads(n)
        assert dlkern.get_num_threads() == n
        y = dlkern.softmax(x)
    finally:
        dlkern.set_num_threads(before)
    np.testing.assert_array_equal(y, dlkern.softmax(x))


def test_number_of_threads_is_checked():
    with pytest.raises(ValueError, match="n is 0"):
        dlkern.set_num_threads(0)
    with pytest.raises(ValueError, match="n is 1099511627776, expected an integer of 32 bits"):
        dlkern.set_num_threads(2**40)
    with pytest.raises(TypeError, match=r"n is 1\.5, expected an integer"):
        dlkern.set_num_threads(1.5)


def test_omp_num_threads_is_respected():
    done = run_python("import dlkern; print(dlkern.get_num_threads())", OMP_NUM_THREADS="3")
    assert done.stdout.strip() == "3"


def test_edge_32_fork():
    """Forked before any call, and after the CPU backend's threads have run."""
    for first in ("", "dlkern.softmax(x)\n"):
        script = (
            "import os, numpy as np, dlkern\n"
            "x = np.ones((512, 512))\n"
            f"{first}"
            "pid = os.fork()\n"
            "y = dlkern.softmax(x)\n"
            "assert abs(y - 1 / 512).max() < 1e-15\n"
            "if pid: assert os.waitpid(pid, 0)[1] == 0\n"
        )
        done = run_python(script)
        assert done.returncode == 0, done.stderr


def test_edge_30_two_threads(rng):
    values = rng.standard_normal((2, 4, 65)).astype(np.float32)
    expected = [dlkern.softmax(v) for v in values]

    def work(i):
        out = np.empty_like(values[i])
        for _ in range(2_000):
            dlkern.softmax(values[i], out=out)
        return out

    with ThreadPoolExecutor(2) as pool:
        np.testing.assert_array_equal(list(pool.map(work, (0, 1))), expected)


# ---- Streams -------------------------------------------------------------------------------------


def test_a_stream_that_the_first_array_knows_nothing_of_is_refused(monkeypatch):
    """The first array is ordered before the legacy stream, the second on one of its own."""

    class Adapter(dlkern._frameworks.Adapter):
        name, has_stream = "streaming", True

        def current_stream(self, device_id):
            return 77

    class Array(Producer):
        __module__ = "streaming"

    monkeypatch.setitem(dlkern._frameworks._ADAPTERS, "streaming", Adapter)
    x = Producer(4096, (4,), None, "float32", (CUDA, 0))
    out = Array(8192, (4,), None, "float32", (CUDA, 0))
    with pytest.raises(ValueError, match="out is an array of streaming, whose current stream"):
        dlkern.softmax(x, out=out)


@pytest.mark.gpu
class TestStreams:
    def test_stream_objects(self, gpu):
        torch = pytest.importorskip("torch")
        x = torch.randn(8, 8, device="cuda")
        torch.cuda.synchronize()
        expected = dlkern.softmax(x)
        streams = [torch.cuda.Stream()]
        core = pytest.importorskip("cuda.core")
        device = core.Device()
        device.set_current()
        streams.append(device.create_stream())
        if cupy := sys.modules.get("cupy"):
            streams.append(cupy.cuda.Stream())
        for stream in streams:
            y = dlkern.softmax(x, stream=stream)
            torch.cuda.synchronize()
            assert torch.equal(y, expected)

    def test_memory_of_torch_is_ordered_on_the_stream_given(self, gpu):
        """Outputs and workspaces come from the pool of that stream, not of the current one.

        What the current stream frees may still be read there, and what we free still be written.
        """
        torch = pytest.importorskip("torch")
        x, side = torch.ones(512, 512, device="cuda"), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        y = dlkern.softmax(x, stream=side)
        pools = {
            segment["stream"]
            for segment in torch.cuda.memory_snapshot()
            if 0 <= y.data_ptr() - segment["address"] < segment["total_size"]
        }
        assert pools == {side.cuda_stream}
        torch.cuda.synchronize()

    def test_memory_of_cupy_is_ordered_on_the_stream_given(self, gpu):
        cupy = pytest.importorskip("cupy")
        streams = []

        class Spy(cupy.cuda.MemoryHook):
            name = "spy"

            def malloc_preprocess(self, **_):
                streams.append(cupy.cuda.get_current_stream().ptr)

        x, side = cupy.ones((512, 512), "float32"), cupy.cuda.Stream(non_blocking=True)
        current = cupy.cuda.get_current_stream()
        current.synchronize()
        with Spy():
            dlkern.softmax(x, stream=side)
        side.synchronize()
        assert set(streams) == {side.ptr}
        assert cupy.cuda.get_current_stream() == current

    def test_frameworks_without_common_order_are_refused(self, gpu):
        torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
        x, out = torch.ones(4, device="cuda"), cupy.empty(4, cupy.float32)
        dlkern.softmax(x, out=out)  # both on the legacy default stream
        with (
            torch.cuda.stream(torch.cuda.Stream()),
            pytest.raises(ValueError, match="out is an array of cupy, whose current stream"),
        ):
            dlkern.softmax(x, out=out)

    def test_other_device_kinds_are_refused(self, gpu):
        torch = pytest.importorskip("torch")
        with pytest.raises(ValueError, match=r"out is on cpu, expected cuda:0 \(x\)"):
            dlkern.softmax(torch.ones(4, device="cuda"), out=torch.ones(4))

    def test_memory_without_a_framework(self, gpu):
        pytest.importorskip("cuda.core")
        torch = pytest.importorskip("torch")
        x = dlkern.device_empty((4, 5), "float32")
        torch.from_dlpack(x).copy_(torch.arange(20.0).reshape(4, 5))
        torch.cuda.synchronize()
        y = dlkern.softmax(x)
        got = torch.from_dlpack(y)
        torch.testing.assert_close(got.cpu(), torch.softmax(torch.arange(20.0).reshape(4, 5), 1))
        pinned = dlkern.pinned_empty((4, 5), "float64")
        pinned[...] = 1.0
        np.testing.assert_allclose(dlkern.softmax(pinned), 0.2)


@pytest.mark.gpu
class TestSecondDevice:
    """Tensors on cuda:1 while cuda:0 is current."""

    @pytest.fixture(autouse=True)
    def _two_devices(self, gpu):
        self.torch = pytest.importorskip("torch")
        if len(dlkern.devices()) < 2:
            pytest.skip("needs two GPUs")

    def test_results_and_current_device(self):
        torch = self.torch
        a, b = torch.randn(4000, 12, device="cuda:0"), torch.randn(4000, 9, device="cuda:0")
        image, weight = torch.randn(2, 8, 9, 9, device="cuda:0"), torch.randn(4, 8, 3, 3).cuda(0)
        calls = [
            (dlkern.softmax, [a], {}),
            (dlkern.sum, [a], {}),
            (dlkern.layer_norm, [a], {}),
            (dlkern.linear_backward_weight, [b, a], {"bias": True}),
            (dlkern.conv, [image, weight], {"padding": 1}),
        ]
        for function, arrays, options in calls:
            here = function(*arrays, **options)
            there = function(*[x.to("cuda:1") for x in arrays], **options)
            assert torch.cuda.current_device() == 0
            for x, y in zip(*map(as_tuple, (here, there)), strict=True):
                assert y.device.index == 1
                assert torch.equal(x.cpu(), y.cpu()), function

    def test_current_stream_of_the_other_device(self):
        torch = self.torch
        side = torch.cuda.Stream(device=1)
        x = torch.zeros(1000, device="cuda:1")
        torch.cuda.synchronize(1)
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            x.copy_(torch.linspace(0, 1, 1000, device="cuda:1"))
            y = dlkern.softmax(x)
        torch.cuda.synchronize(1)
        torch.testing.assert_close(y, torch.softmax(x, 0))

    def test_devices_do_not_mix(self):
        x, out = self.torch.ones(4, device="cuda:1"), self.torch.ones(4, device="cuda:0")
        with pytest.raises(ValueError, match=r"out is on cuda:0, expected cuda:1 \(x\)"):
            dlkern.softmax(x, out=out)


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.skipif(dlkern.build_info()["gpu"] != "none", reason="speaks of CPU-only builds")
def test_gpu_arrays_meet_a_cpu_only_build():
    x = Producer(4096, (4,), None, "float32", (CUDA, 0))
    with pytest.raises(
        NotImplementedError, match="x is on cuda:0, but this build.*DLKERN_GPU=cuda"
    ):
        dlkern.softmax(x, out=np.empty(4, np.float32))
