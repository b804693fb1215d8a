"""dlkern.jax in a program: compiled, sharded, with donated memory, and when nobody asked for it."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import dlkern
import dlkern.jax as dkj
from dlkern import _dlkern

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def on_the_cpu():
    """``jax_device`` changes that."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def normal(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype("float32")


# ---- Compiled ------------------------------------------------------------------------------------


def test_a_network_under_jit(jax_device):
    x, target = normal(8, 16), normal(8, 4)
    weights = {"a": normal(32, 16), "b": normal(4, 32), "scale": np.ones(16, "float32")}

    def loss(weights, x):
        hidden = dkj.linear(dkj.rms_norm(x, weights["scale"]), weights["a"], activation="gelu_tanh")
        return dkj.mse_loss(dkj.linear(hidden, weights["b"]), target)

    def reference(weights, x):
        x = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weights["scale"]
        return ((jax.nn.gelu(x @ weights["a"].T) @ weights["b"].T - target) ** 2).mean()

    got = jax.jit(jax.value_and_grad(loss))(weights, x)
    expected = jax.value_and_grad(reference)(weights, x)
    jax.tree.map(
        lambda g, e: np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-3),
        got, expected,
    )  # fmt: skip


def test_inside_control_flow_and_remat(jax_device):
    x = normal(4, 6)
    y, _ = jax.jit(lambda x: jax.lax.scan(lambda c, _: (dkj.softmax(c), None), x, length=3))(x)
    expected = dlkern.softmax(dlkern.softmax(dlkern.softmax(x)))
    np.testing.assert_allclose(y, expected, rtol=1e-6)

    def loop(x, steps=3):
        def body(carry, _):
            return dkj.softmax(dkj.rms_norm(carry)), carry.sum()

        carry, _ = jax.lax.scan(body, x, length=steps)
        return carry[:, 0].sum()

    def unrolled(x):
        for _ in range(3):
            x = dkj.softmax(dkj.rms_norm(x))
        return x[:, 0].sum()

    np.testing.assert_allclose(jax.grad(loop)(x), jax.grad(unrolled)(x), rtol=1e-4, atol=1e-7)
    again = jax.grad(lambda x: jax.checkpoint(dkj.gelu)(x).sum())(x)
    assert np.array_equal(again, jax.grad(lambda x: dkj.gelu(x).sum())(x))


def test_options_are_static():
    with pytest.raises(TypeError, match="softmax: axis is int32"):
        jax.jit(dkj.softmax)(normal(3, 4), 1)
    assert jax.jit(dkj.softmax, static_argnames="axis")(normal(3, 4), axis=0).shape == (3, 4)


def test_the_name_in_the_program_is_that_of_the_c_function():
    text = jax.jit(dkj.softmax).lower(normal(3, 4)).as_text()
    assert re.findall(r"custom_call @(\w+)", text) == ["dlk_softmax_forward"]


def test_a_program_can_be_exported():
    pytest.importorskip("flatbuffers")
    x = normal(3, 4)
    exported = jax.export.export(
        jax.jit(dkj.softmax),
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("dlk_softmax_forward")],
    )(x)
    loaded = jax.export.deserialize(exported.serialize())
    assert np.array_equal(loaded.call(x), dlkern.softmax(x))


@pytest.mark.gpu
def test_scratch_memory_is_a_result(jax_device):
    """So that a command buffer which is replayed still owns it."""
    if jax_device.platform == "cpu":
        pytest.skip("the CPU implementation needs no workspace")
    a, b = normal(16, 1 << 16), normal(1 << 16, 16)
    text = jax.jit(dkj.matmul).lower(a, b).as_text()
    assert re.search(r"workspace = [1-9]", text)
    np.testing.assert_allclose(jax.jit(dkj.matmul)(a, b), a @ b, rtol=1e-3, atol=1e-2)


# ---- Memory --------------------------------------------------------------------------------------


def test_donated_arrays_are_updated_in_place(jax_device):
    param, grad, momentum = (jnp.array(normal(64, 64) + i) for i in range(3))  # JAX's own memory
    places = [a.unsafe_buffer_pointer() for a in (param, momentum)]
    expected = [np.array(a) for a in (param, momentum)]
    dlkern.sgd_step(expected[0], np.array(grad), expected[1], lr=0.1, momentum=0.9)

    def step(param, grad, momentum):
        return dkj.sgd_step(param, grad, momentum, lr=0.1, momentum=0.9)

    results = jax.jit(step, donate_argnums=(0, 2))(param, grad, momentum)
    assert [r.unsafe_buffer_pointer() for r in results] == places
    assert param.is_deleted() and momentum.is_deleted() and not grad.is_deleted()
    for result, e in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, e, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_images_are_not_copied_for_a_step(layout, jax_device):
    """Neither the order of axes nor the layouts that XLA chooses make it move an image."""
    last = layout == "NHWC"
    shapes = (2, 6, 6, 4), (8, 3, 3, 4)
    x, w = (normal(*s) if last else normal(s[0], s[3], *s[1:3]) for s in shapes)
    scale, shift = np.ones(8, "float32"), np.zeros(8, "float32")

    def loss(w, scale, x):
        y = dkj.conv(x, w, padding=1, layout=layout)
        y = dkj.batch_norm_training(y, scale, shift, activation="relu", layout=layout)[0]
        y = dkj.max_pool(y, 2, layout=layout)
        return dkj.mean(dkj.relu(dkj.adaptive_avg_pool(y, 1, layout=layout)))

    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(w, scale, x).compile().as_text()
    moved = [line for line in program.splitlines() if re.search(r"= \S+ (copy|transpose)\(", line)]
    assert "custom-call" in program
    assert not moved


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_gradient_of_a_batch_norm_with_a_convolution_s_statistics(layout, jax_device):
    """They follow the image as those do that batch norm finds itself."""
    x, w = normal(2, 6, 6, 4), normal(8, 3, 3, 4)
    x, w = (x, w) if layout == "NHWC" else (a.transpose(0, 3, 1, 2) for a in (x, w))
    gamma, beta, dy = normal(8), normal(8), normal(2, 8, 6, 8)[:, :6, :6]

    def loss(own, x, w, gamma, beta):
        options = {"padding": 1, "layout": layout}
        if own:
            y, stats = dkj.conv(x, w, **options), None
        else:
            y, *stats = dkj.conv_bias_act(x, w, return_stats=True, **options)
        z = dkj.batch_norm_training(y, gamma, beta, stats=stats, layout=layout)[0]
        return (z * (dy if layout == "NHWC" else dy.transpose(0, 3, 1, 2))).sum()

    own, given = (
        jax.jit(jax.grad(functools.partial(loss, own), argnums=(0, 1, 2, 3)))(x, w, gamma, beta)
        for own in (True, False)
    )
    for g, o in zip(given, own, strict=True):
        np.testing.assert_allclose(g, o, rtol=1e-4, atol=1e-4)


def test_arrays_that_are_not_donated_stay_as_they_are(jax_device):
    param, grad = jnp.asarray(normal(5, 6)), jnp.asarray(normal(5, 6))
    before = np.array(param)
    updated = dkj.sgd_step(param, grad, lr=0.1)
    assert np.array_equal(param, before) and not np.array_equal(updated, before)


def test_updated_statistics_come_last(jax_device):
    x, mean, var = normal(4, 3, 5), np.zeros(3, "float32"), np.ones(3, "float32")
    y, save_mean, _, new_mean, new_var = dkj.batch_norm_training(
        x, running_mean=mean, running_var=var, momentum=0.5
    )
    np.testing.assert_allclose(new_mean, save_mean / 2, rtol=1e-5)
    assert y.shape == x.shape and new_var.shape == (3,) and not mean.any()


def test_lists_of_arrays_are_updated(jax_device):
    params, grads = [normal(3, 4), normal(5)], [normal(3, 4), normal(5)]
    updated = dkj.sgd_step(params, grads, lr=jnp.float32(0.5))
    for new, p, g in zip(updated, params, grads, strict=True):
        np.testing.assert_allclose(new, p - np.float32(0.5) * g, rtol=1e-6)


# ---- Several devices -----------------------------------------------------------------------------


def mesh_of(device, axis_type):
    """Two devices, or the one GPU that there is."""
    devices = jax.devices(device.platform)[:2]
    if device.platform == "cpu" and len(devices) < 2:
        pytest.skip("JAX was started with one CPU device (JAX_NUM_CPU_DEVICES)")
    return jax.make_mesh((len(devices),), ("batch",), (axis_type,), devices=devices)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_over_the_batch(check_vma, jax_device):
    mesh = mesh_of(jax_device, AxisType.Auto)
    x, scale, weight = normal(8, 6), normal(6), normal(3, 6)

    def net(x, scale, weight):
        return dkj.softmax(dkj.linear(dkj.rms_norm(x, scale), weight, activation="silu"))

    batch, whole = PartitionSpec("batch"), PartitionSpec()
    sharded = jax.shard_map(
        net, mesh=mesh, in_specs=(batch, whole, whole), out_specs=batch, check_vma=check_vma
    )
    np.testing.assert_allclose(jax.jit(sharded)(x, scale, weight), net(x, scale, weight), rtol=1e-6)
    gradients = [
        jax.jit(jax.grad(lambda *a, f=f: (f(*a) ** 2).sum(), (0, 1, 2)))(x, scale, weight)
        for f in (sharded, net)
    ]
    for got, expected in zip(*gradients, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_gradients_inside_shard_map_are_summed(jax_device):
    mesh = mesh_of(jax_device, AxisType.Auto)
    x, scale = normal(8, 6), normal(6)

    def step(x, scale):
        return jax.grad(lambda scale: (dkj.rms_norm(x, scale) ** 2).sum())(scale)

    specs = (PartitionSpec("batch"), PartitionSpec())
    sharded = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
    np.testing.assert_allclose(sharded(x, scale), step(x, scale), rtol=1e-4)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_sharded_arguments_without_shard_map(axis_type, jax_device):
    mesh = mesh_of(jax_device, axis_type)
    x = normal(8, 6)
    sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec("batch")))
    np.testing.assert_allclose(jax.jit(dkj.softmax)(sharded), dlkern.softmax(x), rtol=1e-6)


# ---- Without 64 bits, with keys ------------------------------------------------------------------


def test_integers_have_32_bits_by_default():
    x = normal(3, 4)
    assert dkj.argmax(x, 1).dtype == jnp.int32
    assert dkj.top_k(x, 2)[1].dtype == jnp.int32
    assert dkj.max_pool(x[None, None], 2, return_indices=True)[1].dtype == jnp.int32
    assert dkj.one_hot(np.arange(3), 3).tolist() == np.eye(3).tolist()
    assert np.array_equal(dkj.argmax(x, 1), x.argmax(1))


@pytest.mark.parametrize("kind", ["key", "words"])
def test_dropout_takes_a_key(kind, jax_device):
    x = normal(50, 50)
    key = jax.random.key(7) if kind == "key" else jax.random.PRNGKey(7)
    words = np.asarray(jax.random.key_data(key) if kind == "key" else key)
    seed = np.concatenate([words, np.zeros(2, "uint32")]).view("uint64")
    np.testing.assert_allclose(dkj.dropout(x, 0.3, rng=key), dlkern.dropout(x, 0.3, rng=seed))
    gradient = jax.grad(lambda x: dkj.dropout(x, 0.3, rng=key).sum())(x)
    kept = np.asarray(dkj.dropout(np.ones_like(x), 0.3, rng=key))
    assert np.array_equal(gradient, kept)


# ---- Errors --------------------------------------------------------------------------------------


def test_errors_are_those_of_the_plain_function():
    for call in (
        lambda module: module.linear(normal(4, 6), normal(6, 4)),
        lambda module: module.softmax(normal(4, 6), axis=2),
        lambda module: module.softmax(normal(4, 6), scale="2"),
        lambda module: module.relu(np.ones(3, "int32")),
        lambda module: module.concat([]),
    ):
        with pytest.raises(Exception) as plain:
            call(dlkern)
        if "no argument" in (message := str(plain.value)):
            continue
        with pytest.raises((type(plain.value), TypeError)) as raised:
            call(dkj)
        assert str(raised.value) == message or "no argument" in str(raised.value)


def test_arguments_that_jax_cannot_have_are_refused():
    with pytest.raises(TypeError, match=r"dlkern\.jax\.softmax: .*unexpected .*'out'"):
        dkj.softmax(normal(3, 4), out=normal(3, 4))
    with pytest.raises(TypeError, match="no argument is a JAX or NumPy array"):
        dkj.softmax(3.0)
    with pytest.raises(TypeError, match="scale is dict, expected a static value"):
        dkj.softmax(normal(3, 4), scale={})


def test_errors_at_run_time_become_exceptions():
    labels = jnp.array([0, 9])
    with pytest.raises(Exception, match=r"cross_entropy: .*labels"):
        jax.block_until_ready(dkj.cross_entropy(jnp.zeros((2, 3)), labels))


def test_a_program_of_another_version_is_refused():
    x = jnp.ones(3)
    call = jax.ffi.ffi_call("dlk_activation_forward", jax.ShapeDtypeStruct((3,), x.dtype))
    dkj.relu(x)  # makes the handler known
    for record, reason in ((b"", "record is cut"), (bytes(8), "recorded by another version")):
        with pytest.raises(Exception, match=reason):
            call(
                x, function="dlk_activation_forward", record=np.frombuffer(record, np.uint8),
                buffers=np.array([0, -1], np.int32), workspace=np.int64(0),
            )  # fmt: skip


# ---- The package ---------------------------------------------------------------------------------


def run_python(code):
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120, check=True
    ).stdout.split()


def test_dlkern_imports_no_jax_and_registers_late():
    code = """
import sys, dlkern
print("jax" in sys.modules, "jaxlib" in sys.modules)
import dlkern.jax, numpy as np
from dlkern.jax import _calls
print(_calls._registered.cache_info().currsize)
dlkern.jax.relu(np.ones(3, "float32"))
print(_calls._registered.cache_info().currsize)
"""
    assert run_python(code) == ["False", "False", "0", "1"]


def test_a_build_without_handlers_says_so(monkeypatch):
    import importlib

    from dlkern.jax import _calls

    monkeypatch.setattr(_dlkern, "xla_handlers", dict)
    source = importlib.util.find_spec("dlkern.jax._calls")
    with pytest.raises(ImportError, match="built without jaxlib's headers"):
        source.loader.exec_module(importlib.util.module_from_spec(source))
    assert _calls._HANDLERS


def test_tensors_in_params_structs_are_recorded():
    """src/ffi/arguments.h lists the tensors that structs of the C API point to."""
    listed = set(re.findall(r"&(\w+::\w+)", (ROOT / "src/ffi/arguments.h").read_text()))
    declared = set()
    for header in (ROOT / "include/dlkern").glob("*.h"):
        for body, name in re.findall(
            r"typedef struct \w+ \{(.*?)\} (\w+);", header.read_text(), re.S
        ):
            declared |= {f"{name}::{m}" for m in re.findall(r"const DLTensor\* (\w+);", body)}
    assert declared == listed
