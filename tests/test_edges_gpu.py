"""EDGE 21-32 on a GPU by arrays of each framework: tensors, streams, threads, errors, processes.

What holds for every op is in test_contract_gpu.py; dropout's masks are in test_dropout.py.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracle import assert_close, float64, rounded
from producer import CUDA, Producer
from test_runtime import run_python
from test_softmax import softmax_f64

import dlkern

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu(each_gpu):
    return each_gpu


def producer_of(gpu, array, shape, strides=None, **options):
    """A bare DLPack producer over the memory of an array."""
    address = gpu.address(array)
    return Producer(address, shape, strides, "float32", (CUDA, 0), owner=array, **options)


# ---- Tensors -------------------------------------------------------------------------------------

VIEWS = [np.s_[::2], np.s_[1::3], np.s_[::-1], np.s_[::-3]]


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_edge_21_steps_are_what_the_op_sees(gpu, view, dtype):
    if gpu.framework == "torch" and (view.step or 1) < 0:
        pytest.skip("torch has no negative steps")
    values = rounded(np.arange(10.0), dtype)
    x = gpu.array(values)[view]
    assert_close(gpu.numpy(dlkern.softmax(x)), softmax_f64(float64(values[view])), dtype, "softmax")
    np.testing.assert_array_equal(gpu.numpy(dlkern.relu(x)), float64(values[view]))


def test_edge_21_transposed_and_stepped(gpu, rng):
    values = rng.standard_normal((5, 6))
    x = gpu.array(values)
    for view, same in ((x.T, values.T), (x[::2, 1::2], values[::2, 1::2]), (x[:, 3], values[:, 3])):
        y = dlkern.softmax(view)
        assert_close(gpu.numpy(y), softmax_f64(same), "float64", "softmax")


@pytest.mark.parametrize("shape", [(0,), (1, 8, 0, 128), (0, 3), (3, 0)], ids=str)
def test_edge_22_zero_size(gpu, dtype, shape):
    x = gpu.empty(shape, dtype)
    for y in (dlkern.softmax(x), dlkern.relu(x), dlkern.add(x, x)):
        assert type(y) is type(x)
        assert tuple(y.shape) == shape
    total = gpu.numpy(dlkern.sum(gpu.empty((0, 3), dtype), axis=0))
    np.testing.assert_array_equal(total, [0, 0, 0])


def test_edge_23_strides_of_size_one_dimensions(gpu, rng):
    values = rng.standard_normal(77).astype(np.float32)
    expected = gpu.raw(dlkern.softmax(gpu.array(values[None])))
    for strides in ((1, 1), (0, 1), (500, 1)):
        y = dlkern.softmax(gpu.strided(values, (1, 77), strides))
        np.testing.assert_array_equal(gpu.raw(y), expected)
    x, out = gpu.array(values), gpu.empty((1, 77), "float32")
    dlkern.softmax(producer_of(gpu, x, (1, 77), None), out=out)  # strides NULL
    np.testing.assert_array_equal(gpu.raw(out), expected)


def test_edge_24_a_capsule_is_used_once(gpu, rng):
    values = rng.standard_normal((3, 5))
    x, out = gpu.array(values), gpu.empty((3, 5), "float64")
    capsule = x.__dlpack__()
    dlkern.softmax(capsule, out=out)
    np.testing.assert_array_equal(gpu.raw(out), gpu.raw(dlkern.softmax(x)))
    with pytest.raises(ValueError, match="x is a DLPack capsule that was used before"):
        dlkern.softmax(capsule, out=out)


@pytest.mark.parametrize("versioned", [True, False])
def test_edge_24_deleter_runs_once(gpu, versioned):
    x = producer_of(gpu, gpu.array(np.ones(8, np.float32)), (8,), versioned=versioned)
    dlkern.softmax(x, out=gpu.empty((8,), "float32"))
    assert x.deleted == 1
    with pytest.raises(ValueError, match="axis is 9"):
        dlkern.softmax(x, axis=9, out=gpu.empty((8,), "float32"))
    assert x.deleted == 2


@pytest.mark.parametrize("dtype", ["int16", "complex64", "complex128", "float8_e4m3fn"])
def test_edge_25_dtype_is_named(gpu, dtype):
    if gpu.framework == "cupy" and "float8" in dtype:
        pytest.skip("CuPy has no float8 arrays")
    x = gpu.empty((4,), dtype)
    with pytest.raises(TypeError, match=f"softmax: x.dtype is {dtype}"):
        dlkern.softmax(x)
    with pytest.raises(TypeError, match=f"softmax: x.dtype is {dtype}"):
        dlkern.softmax(x, stream=0)


def test_edge_25_read_only_out_is_refused(gpu):
    x = gpu.array(np.ones(8, np.float32))
    out = producer_of(gpu, x, (8,), read_only=True)
    with pytest.raises(ValueError, match="out is read-only"):
        dlkern.softmax(x, out=out)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1001])
def test_edge_26_unaligned_equals_aligned(gpu, dtype, rng, n):
    values = rounded(rng.standard_normal(n + 1), dtype)
    x = gpu.array(values)[1:]
    for f in (dlkern.softmax, dlkern.gelu, dlkern.sum):
        y = f(x)
        assert type(y) is type(x)
        np.testing.assert_array_equal(gpu.raw(y), gpu.raw(f(gpu.array(values[1:].copy()))))


# ---- Streams and graphs --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [None, 0, 1, 2])
def test_edge_28_the_producer_gets_an_explicit_stream(gpu, stream):
    x = producer_of(gpu, gpu.array(np.ones(16, np.float32)), (16,))
    out = gpu.empty((16,), "float32")
    gpu.synchronize()
    dlkern.softmax(x, out=out, stream=stream)
    gpu.synchronize()
    assert x.streams == [stream or 1]
    np.testing.assert_allclose(gpu.raw(out), 1 / 16, rtol=1e-6)


def test_edge_28_streams_in_every_form(gpu, rng):
    x = gpu.array(rng.standard_normal((64, 65)))
    expected = gpu.raw(dlkern.softmax(x))
    with gpu.stream() as side:
        pass
    handle = side.__cuda_stream__()[1] if hasattr(side, "__cuda_stream__") else side.cuda_stream
    for stream in (None, 0, 1, 2, handle, side):
        y = dlkern.softmax(x, stream=stream)
        assert type(y) is type(x)
        gpu.synchronize()
        np.testing.assert_array_equal(gpu.raw(y), expected)
    with pytest.raises(ValueError, match="stream is -1, expected a stream handle"):
        dlkern.softmax(x, stream=-1)


def test_edge_28_a_given_stream_waits_for_the_current_one(gpu):
    """The framework's producer orders its array before the stream that it is handed."""
    if gpu.framework == "torch":
        pytest.skip("torch's C exchange API orders nothing: that is its callers'")
    x, fresh = (gpu.array(np.full(512, v, np.float32)) for v in (0, 3))
    with gpu.stream() as side:
        pass
    gpu.synchronize()
    gpu.spin()
    gpu.copy(x, fresh)
    y = dlkern.relu(x, stream=side)
    gpu.synchronize()
    np.testing.assert_array_equal(gpu.raw(y), 3)


def test_edge_28_a_capture_holds_no_foreign_wait(gpu, rng):
    """With its own stream given, which __dlpack__ is told of, and with none."""
    x = gpu.array(rng.standard_normal((4, 65)))
    y, z = (gpu.empty((4, 65), "float64") for _ in range(2))

    def call():
        dlkern.softmax(x, out=y)
        dlkern.softmax(x, out=z, stream=gpu.current_stream())

    replay, _ = gpu.capture(call)
    fresh = gpu.array(rng.standard_normal((4, 65)))
    gpu.copy(x, fresh)
    gpu.synchronize()
    replay()
    gpu.synchronize()
    expected = gpu.raw(dlkern.softmax(fresh))
    for out in (y, z):
        np.testing.assert_array_equal(gpu.raw(out), expected)


# ---- Threads -------------------------------------------------------------------------------------

CALLS = 10_000


def _softmax(new):
    x = new(8, 257)
    return lambda out=None: dlkern.softmax(x, out=out)


def _linear(new):
    x, weight = new(16, 64), new(24, 64)
    return lambda out=None: dlkern.linear(x, weight, out=out)


def _norm_gradient(new):
    """With scratch memory."""
    dy, x, weight = new(300, 64), new(300, 64), new(64)
    _, rstd = dlkern.rms_norm(x, weight, return_stats=True)
    return lambda out=None: dlkern.rms_norm_backward(dy, x, weight, rstd, out=out)[0]


def _sum(new):
    x = new(5000)
    return lambda out=None: dlkern.sum(x, out=out)


@pytest.mark.parametrize("given", [True, False], ids=["out", "new"])
@pytest.mark.parametrize("make", [_softmax, _linear, _norm_gradient, _sum])
def test_edge_30_two_threads_10_000_calls_each(gpu, make, given):
    """Each result is compared on the device, beside the calls that follow it."""

    def work(seed):
        rng = np.random.default_rng(seed)
        with gpu.stream():
            call = make(lambda *shape: gpu.array(rng.standard_normal(shape).astype(np.float32)))
            expected, out = call(), call()
            wrong = out != out
            for _ in range(CALLS):
                wrong |= call(out if given else None) != expected
            gpu.synchronize()
        return gpu.raw(wrong).any(), gpu.raw(expected)

    with ThreadPoolExecutor(2) as pool:
        (wrong_1, first), (wrong_2, second) = pool.map(work, (1, 2))
    assert not wrong_1 and not wrong_2
    assert not np.array_equal(first, second)


# ---- Errors of somebody else ---------------------------------------------------------------------


def loaded_library(name):
    """Path of a shared library that this process has loaded."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if name in line:
                return line.split()[-1]
    pytest.skip(f"{name} is not loaded")


def test_edge_31_a_pending_error_stays_its_owners(gpu):
    x = gpu.array(np.ones(4, np.float32))
    out = gpu.empty((4,), "float32")
    runtime = ctypes.CDLL(loaded_library("libcudart.so"))
    invalid_device = runtime.cudaSetDevice(9999)
    assert invalid_device != 0
    try:
        dlkern.softmax(x, out=out)
        assert runtime.cudaPeekAtLastError() == invalid_device
    finally:
        runtime.cudaGetLastError()
    np.testing.assert_allclose(gpu.raw(out), 0.25)


SETUP = {
    "torch": """
import os, sys, torch, dlkern
new = lambda: torch.ones(4, 4, device="cuda")
wait = torch.cuda.synchronize
same = lambda y: (y.cpu() == 0.25).all()
def break_the_device():
    torch._assert_async(torch.zeros((), device="cuda"))
""",
    "cupy": """
import os, sys, cupy, dlkern
new = lambda: cupy.ones((4, 4), "float32")
wait = cupy.cuda.runtime.deviceSynchronize
same = lambda y: (y.get() == 0.25).all()
def break_the_device():
    write = 'extern "C" __global__ void write(float* x) { *x = 1; }'
    kernel = cupy.RawKernel(write, "write")
    kernel((1,), (1,), (cupy.uint64(0),))
""",
}


def run(gpu, script):
    """The script in a process of its own, with ``new``, ``wait``, ``same``."""
    return run_python(SETUP[gpu.framework] + script)


def succeeds(gpu, script):
    done = run(gpu, script)
    assert done.returncode == 0, done.stderr
    return done


def test_edge_31_a_broken_device_is_not_blamed_on_the_call(gpu):
    """An error that no later call gets past is told as what it is, and its owner still sees it."""
    script = """
x, out = new(), new()
dlkern.softmax(x, out=out); wait()
break_the_device()
try:
    wait()
except Exception:
    pass
try:
    dlkern.softmax(x, out=out)
except dlkern.DeviceError as error:
    assert "failed in earlier work, before this call" in str(error), error
else:
    sys.exit("no error")
try:
    wait()
except Exception:
    os._exit(0)  # with the device broken nothing can be freed
sys.exit("the error was lost")
"""
    succeeds(gpu, script)


# ---- Processes -----------------------------------------------------------------------------------


def test_edge_32_fork_before_the_first_call(gpu):
    """Parent and child both come to use the GPU."""
    script = """
pid = os.fork()
y = dlkern.softmax(new())
assert same(y)
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
else:
    os._exit(0)
"""
    succeeds(gpu, script)


def test_edge_32_fork_after_a_call(gpu):
    """A clear error in the child; the parent goes on."""
    script = """
x, out = new(), new()
dlkern.softmax(x, out=out); wait()
pid = os.fork()
if pid == 0:
    try:
        dlkern.softmax(x, out=out)
    except dlkern.DeviceError as error:
        os._exit(0 if "spawn" in str(error) else 2)
    finally:
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert same(dlkern.softmax(x, out=out))
"""
    succeeds(gpu, script)


def test_edge_24_interpreter_exit_with_live_arrays(gpu):
    """Results and a capsule, of calls that may still run when the interpreter ends."""
    script = """
x = new()
sys.keep = [dlkern.softmax(x) for _ in range(100)], x.__dlpack__()
del x
"""
    done = succeeds(gpu, script)
    assert not done.stderr.strip(), done.stderr
