"""JAX's asynchronous execution: order, memory, command buffers, threads and processes."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dlkern
import dlkern.jax as dkj

pytestmark = pytest.mark.usefixtures("jax_device")


def normal(*shape, seed=3):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def long_work(device):
    """An array, 1 / n everywhere, that is still being computed when it is handed over."""
    n = 512 if device.platform == "cpu" else 4096
    a = jnp.full((n, n), 1 / n)
    for _ in range(20):
        a = a @ a
    return a


def run_python(script, device, **environment):
    environment = {"JAX_PLATFORMS": "cpu" if device.platform == "cpu" else "cuda", **environment}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=120,
        env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


# ---- Arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [dlkern, dkj], ids=["plain", "jax"])
def test_edge_21_22_23_steps_no_elements_and_axes_of_size_one(module):
    y = module.relu(jnp.arange(10.0)[::2])
    assert np.asarray(y).tolist() == [0, 2, 4, 6, 8]
    y = module.relu(jnp.arange(10.0)[::-3])
    assert np.asarray(y).tolist() == [9, 6, 3, 0]
    assert module.softmax(jnp.ones((1, 8, 0, 128))).shape == (1, 8, 0, 128)
    assert np.asarray(module.sum(jnp.ones((3, 0)), 1)).tolist() == [0, 0, 0]
    x = normal(77, 1).T
    np.testing.assert_allclose(module.softmax(x), jax.nn.softmax(x), rtol=1e-5)


@pytest.mark.parametrize("module", [dlkern, dkj], ids=["plain", "jax"])
def test_edge_25_dtype_is_named(module):
    with pytest.raises(TypeError, match=r"softmax: x.* no dlkern op takes"):
        module.softmax(jnp.ones(3, jnp.float8_e4m3fnuz))
    with pytest.raises(TypeError, match=r"relu: x\.dtype is int32"):
        module.relu(jnp.ones(3, jnp.int32))


def test_edge_25_arrays_are_never_written():
    x, out = jnp.ones(4), jnp.zeros(4)
    with pytest.raises(ValueError, match="out is read-only"):
        dlkern.softmax(x, out=out)
    with pytest.raises(ValueError, match="param is read-only"):
        dlkern.sgd_step(x, out, lr=0.1)
    assert out.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("start", [1, 3, 8])
def test_edge_26_a_slice_that_begins_anywhere(start):
    """XLA may hand over a piece of an array, where it lies."""
    x = normal(70, 33).astype(jnp.float16)
    expected = np.asarray(dkj.rms_norm(np.asarray(x)[start:]))
    got = jax.jit(lambda x: dkj.rms_norm(x[start:]))(x)
    assert np.array_equal(got, expected)
    flat = x.reshape(-1)
    got = jax.jit(lambda x: dkj.relu(x[start:]) + dkj.relu(x[:-start]))(flat)
    v = np.maximum(np.asarray(flat), 0)
    assert np.array_equal(got, v[start:] + v[:-start])


def test_edge_24_interpreter_exit_is_quiet(jax_device):
    script = """
import jax.numpy as jnp, dlkern, dlkern.jax as dkj
kept = [dlkern.softmax(jnp.ones((4, 4))), dkj.softmax(jnp.ones((4, 4)))]
cycle = [kept]; cycle.append(cycle)
print("end")
"""
    done = run_python(script, jax_device)
    assert done.stdout.split() == ["end"]
    assert "Traceback" not in done.stderr


# ---- Order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [dlkern, dkj], ids=["plain", "jax"])
def test_edge_27_after_work_that_is_still_running(module, jax_device):
    a = long_work(jax_device)
    y = module.softmax(a)
    z = y @ y  # and JAX goes on with what it gets
    assert y.devices() == a.devices()
    np.testing.assert_allclose(y, jax.nn.softmax(a), rtol=1e-5)
    np.testing.assert_allclose(z, jnp.full_like(z, 1 / len(a)), rtol=1e-4)


@pytest.mark.gpu
def test_edge_27_on_a_stream_of_somebody_else(jax_device):
    if jax_device.platform == "cpu":
        pytest.skip("streams are the GPU's")
    torch = pytest.importorskip("torch")
    side = torch.cuda.Stream()
    for _ in range(3):
        a = long_work(jax_device)
        y = dlkern.softmax(a, stream=side)
        np.testing.assert_allclose(y @ y, np.full(a.shape, 1 / len(a)), rtol=1e-4)


def test_memory_that_is_freed_while_it_is_read():
    """Results are dropped at once, while JAX still reads them, and their memory is taken again."""
    x, sums = normal(256, 1024), []
    for i in range(100):
        y = dlkern.softmax(x + i)
        sums.append((y @ y.T).sum())
        del y
        dlkern.relu(jnp.full((256, 1024), float(i)))
    y = jax.nn.softmax(x)
    np.testing.assert_allclose(jnp.stack(sums), np.full(100, (y @ y.T).sum()), rtol=1e-4)


def test_edge_31_errors_of_others_stay_theirs(jax_device):
    if jax_device.platform == "cpu":
        pytest.skip("a pending CUDA error needs the GPU")
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split()[-1] for line in maps if "libcudart.so" in line}
    if not paths:
        pytest.skip("no libcudart.so is loaded in this process, so none can have an error pending")
    runtime = ctypes.CDLL(paths.pop())
    x = normal(4, 4)
    error = runtime.cudaSetDevice(9999)
    try:
        y = jax.block_until_ready(jax.jit(dkj.softmax)(x))
        assert error != 0 and runtime.cudaPeekAtLastError() == error
    finally:
        runtime.cudaGetLastError()
    np.testing.assert_allclose(y.sum(1), np.ones(4), rtol=1e-5)


# ---- Command buffers -----------------------------------------------------------------------------


def network(x, weights):
    for w in weights:
        x = dkj.linear(dkj.rms_norm(x), w, activation="silu")
    return dkj.softmax(dkj.matmul(x, x.T))


def test_edge_29_replayed_with_other_values_and_other_memory():
    """Enough calls for a command buffer on a GPU, which later runs replay."""
    weights = [normal(64, 64, seed=i) / 8 for i in range(3)]
    compiled = jax.jit(network)
    kept = []
    for i in range(8):
        x = normal(32, 64, seed=i)
        kept.append((x, compiled(x, weights)))  # kept, so that memory is not the same again
    for x, y in kept:
        assert np.array_equal(y, network(x, weights))


_VERBOSE = """
import jax, jax.numpy as jnp, sys
import dlkern.jax as dkj
def f(x):
    for _ in range(8):
        x = dkj.softmax(x)
    return x
f = jax.jit(f, donate_argnums=0)
x = jnp.ones((64, 64))
for _ in range(20):
    x = f(x)
print(float(x.sum()))
"""


@pytest.mark.gpu
def test_command_buffers_are_replayed(jax_device):
    """A call that is replayed does not come by the handler again, so it is not reported."""
    if jax_device.platform == "cpu":
        pytest.skip("command buffers are the GPU's")
    done = run_python(_VERBOSE, jax_device, DLKERN_VERBOSE="1")
    assert abs(float(done.stdout.split()[-1]) - 64) < 1e-3
    calls = len(re.findall(r"^.*softmax.*chosen.*$", done.stderr, re.MULTILINE))
    assert 8 <= calls < 8 * 20, done.stderr[:3000]


def test_edge_29_dropout_in_a_loop_draws_new_masks():
    x = jnp.ones((40, 50))

    def body(key, _):
        key, now = jax.random.split(key)
        y, pullback = jax.vjp(lambda x: dkj.dropout(x, 0.4, rng=now), x)
        return key, (y, *pullback(x))

    step = jax.jit(lambda key: jax.lax.scan(body, key, length=6))
    key, (masks, gradients) = step(jax.random.key(1))
    _, (more, _) = step(key)
    assert np.array_equal(masks, gradients)
    assert len({m.tobytes() for m in map(np.asarray, [*masks, *more])}) == 12
    np.testing.assert_allclose((np.asarray(masks) != 0).mean((1, 2)), 0.6, atol=0.06)


def test_a_training_step_with_donated_memory():
    params = {"w": normal(8, 16), "scale": jnp.ones(16)}
    state = jax.tree.map(jnp.zeros_like, params)
    x, labels = normal(32, 16), jnp.arange(32) % 8

    def loss(params):
        return dkj.cross_entropy(dkj.linear(dkj.rms_norm(x, params["scale"]), params["w"]), labels)

    def step(params, state):
        value, gradients = jax.value_and_grad(loss)(params)
        leaves, tree = jax.tree.flatten(params)
        momenta, g = jax.tree.leaves(state), jax.tree.leaves(gradients)
        new, momenta = dkj.sgd_step(leaves, g, momenta, lr=0.5, momentum=0.9)
        return jax.tree.unflatten(tree, new), jax.tree.unflatten(tree, momenta), value

    donating, copying = jax.jit(step, donate_argnums=(0, 1)), jax.jit(step)
    copied = jax.tree.map(jnp.copy, (params, state))
    losses = []
    for _ in range(10):
        params, state, value = donating(params, state)
        *copied, expected = copying(*copied)
        losses.append(value)
        assert value == expected
    assert losses[-1] < losses[0] / 2


# ---- Threads, processes --------------------------------------------------------------------------


@pytest.mark.parametrize("module", [dlkern, dkj], ids=["plain", "jax"])
def test_edge_30_two_threads(module, jax_device):
    calls = 2_000 if jax_device.platform == "cpu" else 10_000
    call = jax.jit(dkj.softmax) if module is dkj else dlkern.softmax
    if module is dlkern:
        calls //= 10  # each allocates
    failures = []

    def work(seed):
        try:
            with jax.default_device(jax_device):
                x = normal(4 + seed, 65, seed=seed)
                expected = np.asarray(call(x))
                for i in range(calls):
                    y = call(x)
                    if i % 500 == 0:
                        assert np.array_equal(y, expected)
            assert np.array_equal(y, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_edge_32_fork_before_the_first_call(jax_device):
    """JAX itself wants to be imported after a fork."""
    script = """
import os, dlkern
pid = os.fork()
import jax.numpy as jnp, dlkern.jax as dkj
y = dkj.softmax(jnp.ones((64, 64)))
assert abs(y - 1 / 64).max() < 1e-6
if pid: assert os.waitpid(pid, 0)[1] == 0
"""
    run_python(script, jax_device)
