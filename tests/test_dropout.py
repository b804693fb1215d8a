"""Dropout against Philox in NumPy."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import assert_close, float64, rounded

import dlkern

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox(counter, key):
    """Philox4x32-10 of a uint32 [4, n] counter and a pair of keys."""
    c, k = [w.astype(np.uint64) for w in counter], [np.uint64(w) for w in key]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> HALF) ^ c[1] ^ k[0], p1 & LOW, (p0 >> HALF) ^ c[3] ^ k[1], p0 & LOW]
        k = [(k[0] + np.uint64(0x9E3779B9)) & LOW, (k[1] + np.uint64(0xBB67AE85)) & LOW]
    return np.stack(c)


def random_bits(n, seed, offset, first=0):
    """The bits that dropout documents for n elements from `first` on, a multiple of 8."""
    block = np.arange(first // 8, -(-(first + n) // 8), dtype=np.uint64)
    seed, offset = int(seed) % 2**64, int(offset) % 2**64
    halves = []
    for top in (0, 1 << 31):
        counter = [block & LOW, block >> HALF | np.uint64(top)]
        counter += [np.full_like(block, offset & 0xFFFFFFFF), np.full_like(block, offset >> 32)]
        words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).T.astype("<u4")
        halves.append(np.ascontiguousarray(words).view("<u2").ravel()[:n].astype(np.uint64))
    return halves[0] << np.uint64(16) | halves[1]


def mask(shape, p, seed, offset):
    n = int(np.prod(shape))
    return (random_bits(n, seed, offset) >= round(p * 2**32)).reshape(shape)


def rng_of(backend, seed, offset):
    return backend.array(np.array([seed, offset], np.int64))


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_the_oracle_gives_the_known_answers(counter, key, answer):
    words = philox(np.array(counter, np.uint32)[:, None], key)
    assert " ".join(f"{int(w):08x}" for w in words.ravel()) == answer


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0, 4), (1027,), (5, 6, 77), (3, 5003)])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_forward_and_backward(backend, dtype, rng, shape, p):
    x = rounded(rng.standard_normal(shape), dtype)
    keep = mask(shape, p, 1234, 5)
    expected = np.where(keep, float64(x) / (1 - p), 0)
    y = backend.numpy(dlkern.dropout(backend.array(x), p, rng=rng_of(backend, 1234, 5)))
    assert_close(y, expected, dtype, "dropout")
    dx = backend.numpy(dlkern.dropout_backward(backend.array(x), p, rng=rng_of(backend, 1234, 5)))
    np.testing.assert_array_equal(dx, y)


@pytest.mark.parametrize(
    ("seed", "offset"),
    [(0, 0), (1, 0), (0, 1), (-1, -1), (2**40 + 3, 2**50 + 7), (-(2**63), 2**63 - 1)],
)
def test_all_bits_of_seed_and_offset_count(backend, seed, offset):
    x = np.ones(4099, np.float32)
    y = backend.numpy(dlkern.dropout(backend.array(x), rng=rng_of(backend, seed, offset)))
    np.testing.assert_array_equal(y != 0, mask(x.shape, 0.5, seed, offset))


def test_unsigned_and_strided_rng(backend):
    x = backend.array(np.ones(100))
    keep = mask((100,), 0.5, 7, 9)
    for pair in (np.array([7, 9], np.uint64), np.array([7, 9], np.int64)):
        for layout in ("contiguous", "strided", "negative"):
            y = dlkern.dropout(x, rng=backend.array(pair, layout))
            np.testing.assert_array_equal(backend.numpy(y) != 0, keep)


@pytest.mark.sanitize
def test_probability_is_exact_to_32_bits(backend):
    """The lower half of an element's bits decides where the upper one is that of p."""
    x, rng = backend.array(np.ones(19, np.float32)), rng_of(backend, 0, 0)
    for i, bits in enumerate(random_bits(19, 0, 0)):
        assert backend.numpy(dlkern.dropout(x, int(bits) / 2**32, rng=rng))[i] > 0
        assert backend.numpy(dlkern.dropout(x, (int(bits) + 1) / 2**32, rng=rng))[i] == 0


def test_share_of_dropped_elements(backend):
    n = 1 << 20
    for p in (0.01, 0.3, 0.5):
        x = backend.array(np.ones(n, np.float32))
        dropped = np.mean(backend.numpy(dlkern.dropout(x, p, rng=rng_of(backend, 3, 0))) == 0)
        assert abs(dropped - p) < 5 * np.sqrt(p * (1 - p) / n)


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_mask_follows_positions_not_memory(backend, rng, layout):
    """EDGE 21, 26."""
    for dtype, shape in (("float32", (3, 5, 7)), ("bfloat16", (4, 6, 64)), ("float64", (2, 34))):
        x = rounded(rng.standard_normal(shape), dtype)
        expected = np.where(mask(shape, 0.5, 11, 2), 2 * float64(x), 0)
        pair = rng_of(backend, 11, 2)
        y = backend.empty(shape, dtype)
        dlkern.dropout(backend.array(x, layout), rng=pair, out=y)
        np.testing.assert_array_equal(backend.numpy(y), expected)
        y = backend.empty(shape, dtype, layout)
        dlkern.dropout(backend.array(x), rng=pair, out=y)
        np.testing.assert_array_equal(backend.numpy(y), expected)


def test_zero_strides_and_in_place(backend):
    pair = rng_of(backend, 5, 6)
    expected = 2.0 * mask((6, 50), 0.5, 5, 6)
    y = backend.empty((6, 50), "float32")
    dlkern.dropout(backend.broadcast(np.ones((1, 1), np.float32), (6, 50)), rng=pair, out=y)
    np.testing.assert_array_equal(backend.numpy(y), expected)
    x = backend.array(np.ones((6, 50), np.float32))
    assert dlkern.dropout(x, rng=pair, out=x) is x
    np.testing.assert_array_equal(backend.numpy(x), expected)


def test_nothing_and_everything_dropped(backend, dtype):
    x = rounded([1, -0.0, np.inf, -np.inf, np.nan, 3], dtype)
    pair = rng_of(backend, 1, 1)
    y = backend.numpy(dlkern.dropout(backend.array(x), 0, rng=pair))
    np.testing.assert_array_equal(y, x.astype(np.float64))
    assert np.signbit(y[1])
    y = backend.numpy(dlkern.dropout(backend.array(x), 1, rng=pair))
    np.testing.assert_array_equal(y, np.zeros(6))
    np.testing.assert_array_equal(
        backend.numpy(dlkern.dropout_backward(backend.array(x), 1.0, rng=pair)), np.zeros(6)
    )


@pytest.mark.parametrize("p", [0.0, 0.1, 1.0])
def test_residual(backend, dtype, rng, p):
    x, r = (rounded(rng.standard_normal((7, 5, 24)), dtype) for _ in range(2))
    x[0, 0, 0] = np.nan if p == 1 else 1
    keep = mask(x.shape, p, 4, 2)
    kept = float64(x) / (1 - p) if p < 1 else 0
    pair = rng_of(backend, 4, 2)
    for layout in ("contiguous", "transposed", "unaligned"):
        out = backend.empty(x.shape, dtype)
        arrays = backend.array(x, layout), backend.array(r)
        dlkern.dropout(arrays[0], p, rng=pair, residual=arrays[1], out=out)
        scale = np.abs(float64(r)) + np.abs(np.where(keep, kept, 0))
        assert_close(backend.numpy(out), float64(r) + np.where(keep, kept, 0), dtype, "dropout",
                     scale)  # fmt: skip
    x, r = backend.array(x), backend.array(r)
    assert dlkern.dropout(x, p, rng=pair, residual=r, out=r) is r
    np.testing.assert_array_equal(backend.numpy(r), backend.numpy(out))


def test_residual_of_another_shape_or_dtype(backend):
    x, pair = backend.array(np.ones((2, 3))), rng_of(backend, 1, 2)
    with pytest.raises(ValueError, match=r"dropout: residual.shape is \[3\], expected \[2, 3\]"):
        dlkern.dropout(x, rng=pair, residual=backend.array(np.ones(3)))
    with pytest.raises(TypeError, match="residual.dtype is float32, expected float64"):
        dlkern.dropout(x, rng=pair, residual=backend.array(np.ones((2, 3), np.float32)))


@pytest.mark.gpu
def test_edge_29_replays_of_a_graph_draw_new_masks(each_gpu):
    """Seed and offset are read from the device, and the backward draws the forward's mask again."""
    gpu = each_gpu
    x = gpu.array(np.ones(1000, np.float32))
    y, dx = (gpu.empty((1000,), "float32") for _ in range(2))
    pair = rng_of(gpu, 42, 0)

    def step():
        dlkern.dropout(x, rng=pair, out=y)
        dlkern.dropout_backward(x, rng=pair, out=dx)
        offset = pair[1:]
        offset += 1

    replay, _ = gpu.capture(step)
    gpu.copy(pair, rng_of(gpu, 42, 0))
    gpu.synchronize()
    for offset in range(3):
        replay()
        gpu.synchronize()
        np.testing.assert_array_equal(gpu.raw(y) != 0, mask((1000,), 0.5, 42, offset))
        np.testing.assert_array_equal(gpu.raw(dx), gpu.raw(y))


@pytest.mark.gpu
def test_edge_15_positions_beyond_2_31(gpu):
    torch = pytest.importorskip("torch")
    n = 2**31 + 4096
    if torch.cuda.mem_get_info()[0] < 2 * n + 2**30:
        pytest.skip("not enough memory on the GPU")
    x = torch.ones(n, dtype=torch.float16, device="cuda")
    dlkern.dropout(x, rng=torch.tensor([8, 9], device="cuda"), out=x)
    bits = random_bits(4096, 8, 9, first=2**31)
    np.testing.assert_array_equal(x[-4096:].cpu().numpy() != 0, bits >= 2**31)


ONES = np.ones((2, 3))
PAIR = np.array([1, 2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.dropout(a(ONES), 1.5, rng=a(PAIR)), ValueError, "dropout: p is 1.5"),
        (lambda a: dlkern.dropout(a(ONES), -1e-9, rng=a(PAIR)), ValueError, "p is -1e-09"),
        (lambda a: dlkern.dropout(a(ONES), np.nan, rng=a(PAIR)), ValueError, "p is nan"),
        (lambda a: dlkern.dropout(a(ONES), "half", rng=a(PAIR)), TypeError, "p is 'half'"),
        (lambda a: dlkern.dropout(a(np.ones(3, np.int64)), rng=a(PAIR)), TypeError,
         "x.dtype is int64"),
        (lambda a: dlkern.dropout(a(ONES), rng=a(np.ones(2))), TypeError,
         "rng.dtype is float64, expected int64 or uint64"),
        (lambda a: dlkern.dropout(a(ONES), rng=a(np.array([1, 2, 3]))), ValueError,
         r"rng.shape is \[3\], expected \[2\]"),
        (lambda a: dlkern.dropout(a(ONES), rng=42), TypeError, "rng is int"),
        (lambda a: dlkern.dropout(a(ONES), rng=a(PAIR), out=a(np.ones(2))), ValueError,
         r"out.shape is \[2\], expected \[2, 3\]"),
        (lambda a: dlkern.dropout_backward(a(ONES), 2, rng=a(PAIR)), ValueError,
         "dropout_backward: p is 2"),
        (lambda a: dlkern.dropout_backward(a(ONES.astype(bool)), rng=a(PAIR)), TypeError,
         "dy.dtype is bool"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_read_only_out_is_refused():
    out = np.zeros((2, 3))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        dlkern.dropout(ONES, rng=PAIR, out=out)
