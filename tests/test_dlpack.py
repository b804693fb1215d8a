"""Arrays in and out: every way that a producer may describe its memory, and who owns it."""

import ctypes
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from oracle import assert_close, float64, rounded
from producer import Producer, of_numpy
from test_softmax import softmax_f64

import dlkern


def softmax_of(x):
    """Through an output that shares the input's way of being described."""
    y = np.full(x.shape, np.nan, x.dtype if isinstance(x, np.ndarray) else np.float64)
    dlkern.softmax(x, out=y)
    return y


def test_edge_21_steps_are_what_the_op_sees():
    x = np.arange(10.0)
    for view in (x[::2], x[::-3], x.reshape(2, 5)[::-1, ::2], x.reshape(5, 2).T):
        np.testing.assert_array_equal(dlkern.softmax(view), dlkern.softmax(view.copy()))


@pytest.mark.parametrize("shape", [(0,), (1, 8, 0, 128), (0, 3), (3, 0)])
def test_edge_22_zero_size(backend, dtype, shape):
    x = backend.array(np.zeros(shape).astype(dtype if dtype != "bfloat16" else ml_dtypes.bfloat16))
    assert backend.numpy(dlkern.softmax(x, out=backend.empty(shape, dtype))).shape == shape


def test_edge_23_null_strides_are_contiguous(rng):
    x = rng.standard_normal((4, 6))
    np.testing.assert_array_equal(softmax_of(of_numpy(x, strides=None)), dlkern.softmax(x))


def test_edge_23_strides_of_size_one_dimensions_do_not_matter(rng):
    x = rng.standard_normal((1, 77))
    for strides in ((1, 1), (0, 1), (-5, 1), (77, 1)):
        np.testing.assert_array_equal(softmax_of(of_numpy(x, strides=strides)), dlkern.softmax(x))


@pytest.mark.parametrize("strides", [None, (0, 0)])
def test_more_elements_than_can_be_counted_are_refused(strides):
    """2^32 x 2^32 is 0 modulo 2^64: it must not pass for an empty array."""
    memory = np.zeros(1, np.float32)
    x, out = (
        Producer(memory.ctypes.data, (1 << 32, 1 << 32), strides, "float32", owner=memory)
        for strides in (strides, None)
    )
    with pytest.raises(ValueError, match=r"relu: x.shape is \[4294967296, 4294967296\], expected"):
        dlkern.relu(x, out=out)
    without_elements = Producer(0, (0, 1 << 62, 1 << 62), None, "float32")
    dlkern.relu(without_elements, out=without_elements)


def test_byte_offset_is_added(rng):
    x = rng.standard_normal((3, 5))
    for offset in (8, 40, 1 << 20):
        np.testing.assert_array_equal(softmax_of(of_numpy(x, byte_offset=offset)),
                                      dlkern.softmax(x))  # fmt: skip


@pytest.mark.parametrize("versioned", [True, False])
def test_edge_24_deleter_runs_once(rng, versioned):
    producer = of_numpy(rng.standard_normal((3, 5)), versioned=versioned)
    softmax_of(producer)
    assert producer.deleted == 1
    with pytest.raises(ValueError, match="axis is 9"):
        dlkern.softmax(producer, axis=9, out=np.empty((3, 5)))
    assert producer.deleted == 2


@pytest.mark.parametrize("versioned", [True, False])
def test_edge_24_a_capsule_is_used_once(rng, versioned):
    x = rng.standard_normal((3, 5))
    producer = of_numpy(x, versioned=versioned)
    capsule = producer.__dlpack__(max_version=(1, 0))
    np.testing.assert_array_equal(softmax_of_capsule(capsule, x.shape), dlkern.softmax(x))
    assert producer.deleted == 1
    with pytest.raises(ValueError, match="x is a DLPack capsule that was used before"):
        softmax_of_capsule(capsule, x.shape)
    assert producer.deleted == 1


def softmax_of_capsule(capsule, shape):
    return dlkern.softmax(capsule, out=np.empty(shape))


def test_edge_24_foreign_capsule_is_refused():
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    with pytest.raises(TypeError, match="x is a capsule that holds no DLPack tensor"):
        dlkern.softmax(new(1, b"something", None))


def test_edge_24_interpreter_exit_is_quiet():
    """Arrays of ours that another framework still holds when the interpreter ends."""
    pytest.importorskip("jax")
    script = (
        "import jax.numpy as jnp, dlkern, sys\n"
        "sys.keep = [dlkern.softmax(jnp.ones((3, 4))) for _ in range(5)]\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", ["int16", "uint16", "complex64", "complex128"])
def test_edge_25_dtype_is_named(dtype):
    with pytest.raises(TypeError, match=f"x.dtype is {dtype}"):
        dlkern.softmax(np.zeros(3, dtype))


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]")])
def test_edge_25_dtype_beyond_dlpack(array):
    with pytest.raises(TypeError, match="softmax: x"):
        dlkern.softmax(array)


def test_edge_25_read_only_out_is_refused(rng):
    x = rng.standard_normal((3, 5))
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(dlkern.softmax(frozen), dlkern.softmax(x))
    for out in (frozen, of_numpy(x.copy(), read_only=True)):
        with pytest.raises(ValueError, match="out is read-only"):
            dlkern.softmax(x, out=out)
    with pytest.raises(ValueError, match="read-only"):
        dlkern.softmax(x, out=np.broadcast_to(0.0, x.shape))


def test_out_that_overlaps_itself_is_refused():
    shared = np.lib.stride_tricks.as_strided(np.zeros(5), (3, 3), (8, 8))
    with pytest.raises(ValueError, match="out has elements that share memory"):
        dlkern.softmax(np.zeros((3, 3)), out=shared)


def test_edge_26_unaligned_rows_equal_aligned_ones(backend, rng):
    x = rounded(rng.standard_normal(1001), "float16")
    expected = backend.raw(dlkern.softmax(backend.array(x)))
    actual = dlkern.softmax(backend.array(x, "unaligned"), out=backend.empty(x.shape, "float16"))
    np.testing.assert_array_equal(backend.raw(actual), expected)


def test_item_misaligned_memory_is_refused():
    base = np.zeros(33, np.uint8)
    x = base[1:].view(np.float64)
    with pytest.raises(ValueError, match="x is not aligned to its item size"):
        dlkern.softmax(of_numpy(x), out=np.zeros(4))


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_numpy_extension_dtypes(rng, dtype):
    x = rounded(rng.standard_normal((4, 9)), dtype)
    for view in (x, x[::-1, ::2], x.T):
        y = dlkern.softmax(view)
        assert y.dtype == x.dtype
        assert_close(y, softmax_f64(float64(view)), dtype, "softmax")


@pytest.mark.parametrize("dtype", ["V4", "V3", ml_dtypes.int4, ml_dtypes.float8_e4m3fnuz])
def test_edge_25_numpy_extension_dtypes_that_nothing_takes(dtype):
    expected = f"relu: x.dtype is {np.dtype(dtype).name}, which no dlkern op takes"
    if np.dtype(dtype).kind == "V" and np.dtype(dtype).isbuiltin != 2:
        expected = "relu: x cannot be exported by DLPack"  # plain bytes: NumPy's own refusal
    with pytest.raises(TypeError, match=expected):
        dlkern.relu(np.zeros(3, dtype))


def test_numpy_subclasses():
    x = np.ones((2, 3))
    assert type(dlkern.softmax(x.view(np.matrix))) is np.ndarray
    with pytest.raises(TypeError, match="x is a masked array"):
        dlkern.softmax(np.ma.masked_array(x, mask=x > 0))


@pytest.mark.parametrize("not_array", [None, 3.0, [1.0, 2.0], "x", object()])
def test_what_is_no_array(not_array):
    with pytest.raises(TypeError, match=f"x is {type(not_array).__name__}, expected an array"):
        dlkern.softmax(not_array)


def test_stream_argument():
    x = np.ones(3)
    dlkern.softmax(x, stream=0)
    with pytest.raises(TypeError, match="stream is str"):
        dlkern.softmax(x, stream="main")
    with pytest.raises(ValueError, match="stream is -1"):
        dlkern.softmax(x, stream=-1)


class TestTorch:
    torch = None

    @pytest.fixture(autouse=True)
    def _torch(self):
        self.torch = pytest.importorskip("torch")

    def test_views(self):
        x = self.torch.randn(6, 8, dtype=self.torch.float64)
        for view in (x, x.t(), x[::2, 1:], x[0].expand(3, 8), x[:, :0]):
            y = dlkern.softmax(view)
            assert type(y) is self.torch.Tensor
            np.testing.assert_array_equal(y.numpy(), dlkern.softmax(view.numpy()))

    def test_grad(self):
        x = self.torch.ones(3, requires_grad=True)
        with pytest.raises(ValueError, match="x requires grad"):
            dlkern.softmax(x)
        with self.torch.no_grad():
            assert not dlkern.softmax(x).requires_grad
        dlkern.softmax(x.detach())
        with pytest.raises(ValueError, match="x requires grad"):
            dlkern.softmax(self.torch.nn.Parameter(self.torch.ones(3)))

    def test_forward_mode_tangents_are_not_dropped(self):
        forward_ad = self.torch.autograd.forward_ad
        with forward_ad.dual_level():
            x = forward_ad.make_dual(self.torch.ones(3), self.torch.ones(3))
            with pytest.raises(ValueError, match="x carries a forward-mode tangent"):
                dlkern.softmax(x)
            dlkern.softmax(self.torch.ones(3))

    def test_tensors_without_plain_memory(self):
        torch = self.torch
        fake = pytest.importorskip("torch._subclasses.fake_tensor")
        with fake.FakeTensorMode():
            unreal = torch.ones(3)
        with pytest.raises(TypeError, match="FakeTensor"):
            dlkern.softmax(unreal)
        for bad in (torch.eye(3).to_sparse(), torch.ones(3, device="meta")):
            with pytest.raises((TypeError, NotImplementedError, ValueError), match="x"):
                dlkern.softmax(bad)
        conjugated = torch.zeros(3, dtype=torch.complex64).conj()
        for lazy in (conjugated, conjugated.imag):
            with pytest.raises(ValueError, match="negated or conjugated"):
                dlkern.softmax(lazy)
        with pytest.raises(TypeError, match="complex64"):
            dlkern.softmax(torch.zeros(3, dtype=torch.complex64))


class TestJax:
    @pytest.fixture(autouse=True)
    def _jax(self):
        self.jax = pytest.importorskip("jax")

    def test_array(self):
        x = self.jax.numpy.linspace(-1, 1, 12).reshape(3, 4)
        y = dlkern.softmax(x)
        assert isinstance(y, self.jax.Array)
        np.testing.assert_array_equal(np.asarray(y), dlkern.softmax(np.asarray(x)))

    def test_edge_25_dtype_that_nothing_takes(self):
        with pytest.raises(TypeError, match=r"softmax: x.dtype is .*, which no dlkern op takes"):
            dlkern.softmax(self.jax.numpy.ones(3, self.jax.numpy.float8_e4m3fnuz))

    def test_is_never_written(self):
        x = self.jax.numpy.ones(4)
        with pytest.raises(ValueError, match="out is read-only"):
            dlkern.softmax(np.ones(4, np.float32), out=x)

    def test_tracers_are_refused(self):
        with pytest.raises(TypeError, match="tracer"):
            self.jax.jit(dlkern.softmax)(self.jax.numpy.ones(4))


def test_frameworks_mix_on_the_cpu(rng):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((3, 4))
    out = torch.empty(3, 4, dtype=torch.float64)
    assert dlkern.softmax(x, out=out) is out
    np.testing.assert_array_equal(out.numpy(), dlkern.softmax(x))
