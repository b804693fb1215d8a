"""Each kind of GPU kernel for layer_norm and rms_norm on its own."""

import numpy as np
import pytest
from oracle import accumulator, assert_close, float64, numpy_dtype
from test_norm import gradient_f64, gradient_scale, normalized_f64, parameters, values

import dlkern

pytestmark = pytest.mark.gpu

KERNELS = {"registers": "registers", "walked": "two_pass_rows,rows_and_columns"}


@pytest.fixture(params=KERNELS)
def kernel(request):
    """The one kind of kernel that calls may choose."""
    dlkern._dlkern.set_implementations(KERNELS[request.param])
    yield request.param
    dlkern._dlkern.set_implementations("")


def need(gpu, kernel, n, dtype):
    """Rows longer than the threads of a block hold take the blocks of a cluster, forward."""
    blocks = 8 if dlkern.devices()[0]["compute_capability"][0] == 9 else 1
    if kernel == "registers" and n > blocks * 512 * 8 * 16 // numpy_dtype(dtype).itemsize:
        pytest.skip("too long for registers")


# Forward by teams of lanes, of a part of a block, of a block, and of 2 to 8 blocks; backward by
# teams of up to 1024 threads, and in strips.
LENGTHS = [1, 3, 8, 40, 260, 512, 1000, 1024, 2047, 4096, 4104, 8192, 8200, 16390, 30000, 65536,
           100003]  # fmt: skip


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(gpu, kernel, rng, n, dtype, rms):
    need(gpu, kernel, n, dtype)
    rows = 1000 if n <= 1024 else 301 if n <= 8192 else 70  # more than teams, and no multiple
    x, dy = values(rng, (rows, n), dtype, center=3), values(rng, (rows, n), dtype)
    parameter = accumulator(dtype) if n % 2 else dtype
    weight, bias = parameters(rng, (n,), parameter)
    arrays = [gpu.array(a) for a in (x, weight, bias)]
    if rms:
        y, rstd = dlkern.rms_norm(*arrays[:2], eps=1e-4, return_stats=True)
        gradients = dlkern.rms_norm_backward(gpu.array(dy), *arrays[:2], rstd)
    else:
        y, mean, rstd = dlkern.layer_norm(*arrays, eps=1e-4, return_stats=True)
        gradients = dlkern.layer_norm_backward(gpu.array(dy), *arrays[:2], mean, rstd)
    xhat, _, rstd64 = normalized_f64(float64(x), (-1,), 1e-4, rms)
    scaled, shift = xhat * float64(weight), 0 if rms else float64(bias)
    scale = np.abs(scaled) + np.abs(shift) + 1  # terms that may cancel, and the mean
    assert_close(gpu.numpy(y), scaled + shift, dtype, "norm", scale=scale)
    assert_close(gpu.numpy(rstd), rstd64[:, 0], accumulator(dtype), "norm")
    args = float64(dy), xhat, rstd64, float64(weight), (-1,), (0,)
    right, scales = gradient_f64(*args, rms=rms), gradient_scale(*args)
    dtypes = dtype, parameter, parameter
    for got, r, d, scale in zip(gradients, right, dtypes, scales, strict=False):
        assert_close(gpu.numpy(got), r, d, "norm_backward", scale=scale)


@pytest.mark.parametrize("n", [24, 1000, 4096, 9000, 20000])
def test_same_bits_again_and_in_place(gpu, kernel, rng, n):
    need(gpu, kernel, n, "float16")
    x, dy = values(rng, (500, n), "float16"), values(rng, (500, n), "float16")
    weight, bias = (gpu.array(p) for p in parameters(rng, n, "float16"))
    y, mean, rstd = dlkern.layer_norm(gpu.array(x), weight, bias, return_stats=True)
    first = dlkern.layer_norm_backward(gpu.array(dy), gpu.array(x), weight, mean, rstd)
    for target in (None, 0, 1) * 5:
        pair = [gpu.array(dy), gpu.array(x)]
        out = None if target is None else pair[target]
        again = dlkern.layer_norm_backward(*pair, weight, mean, rstd, out=out)
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(gpu.numpy(a), gpu.numpy(b))
    together = gpu.array(x)
    dlkern.layer_norm(together, weight, bias, out=together)
    np.testing.assert_array_equal(gpu.numpy(together), gpu.numpy(y))


@pytest.mark.parametrize("layout", ["padded", "unaligned"])
@pytest.mark.parametrize("n", [34, 35, 37, 1000, 1001, 5004, 9001, 20000])
def test_any_alignment(gpu, kernel, rng, n, layout):
    """Rows at multiples of 2, 4, 8 and 16 bytes: the same bits as of contiguous ones."""
    x, dy = values(rng, (33, n), "bfloat16"), values(rng, (33, n), "bfloat16")
    weight, bias = parameters(rng, n, "bfloat16")
    results = []
    for each in ("contiguous", layout):
        arrays = [gpu.array(a, each) for a in (x, weight, bias)]
        y = gpu.empty(x.shape, "bfloat16", each)
        _, mean, rstd = dlkern.layer_norm(*arrays, out=y, return_stats=True)
        dx = gpu.empty(x.shape, "bfloat16", each)
        _, dweight, dbias = dlkern.layer_norm_backward(
            gpu.array(dy, each), *arrays[:2], mean, rstd, out=dx
        )
        results.append([gpu.numpy(a) for a in (y, mean, rstd, dx, dweight, dbias)])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
