"""max_pool and avg_pool over 1, 2 and 3 dimensions, forward and backward, against float64 NumPy."""

import numpy as np
import pool_oracle as oracle
import pytest
from backends import LAYOUTS
from conv_oracle import same_pads
from oracle import assert_close, assert_grad, float64, rounded

import dlkern


def case(shape, kernel, stride=None, padding=0, dilation=1, ceil_mode=False):
    """A shape [N, C, ...], dlkern's arguments, and the oracle's."""
    dims = len(shape) - 2

    def each(value):
        return (value,) * dims if isinstance(value, int) else tuple(value)

    given = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
    taps = each(kernel) if kernel else shape[2:]
    steps, gaps = each(stride) if stride else taps, each(dilation)
    if padding == "same":
        pads = same_pads(shape[2:], taps, steps, gaps)
    else:
        pads = [p if isinstance(p, tuple) else (p, p) for p in
                each(0 if padding == "valid" else padding)]  # fmt: skip
    window = {"kernel": taps, "stride": steps, "pads": pads, "dilation": gaps}
    return shape, {**given, "dilation": dilation}, {**window, "ceil_mode": ceil_mode}


CASES = {
    "2x2": case((2, 3, 6, 8), 2),
    "3x3 stride 2": case((2, 3, 11, 10), 3, 2, 1),
    "overlapping": case((1, 5, 9, 7), 3, 1, 1),
    "many channels": case((2, 300, 4, 5), 2, 1),
    "1-d": case((3, 4, 37), 5, 3, 2),
    "3-d": case((2, 3, 5, 6, 7), (2, 3, 2), (1, 2, 2), (1, 1, 0)),
    "asymmetric": case((2, 3, 8, 9), (4, 5), (3, 2), ((2, 0), (1, 2))),
    "ceil": case((2, 2, 7, 8), 3, 2, ceil_mode=True),
    "ceil past the padding": case((1, 2, 5, 6), (2, 4), (3, 4), (1, 2), ceil_mode=True),
    "gaps": case((2, 3, 9, 9), 2, 4),
    "global": case((2, 5, 6, 7), None),
    "1x1": case((2, 3, 4, 4), 1),
    "same, even": case((1, 2, 4, 5), 2, 1, "same"),
    "same, stride 2": case((1, 2, 9, 8), 3, 2, "same"),
    "valid": case((1, 2, 9, 8), 3, 2, "valid"),
    "size 1": case((1, 1, 1, 1), 1),
    "wide": case((1, 1, 3, 300), (3, 7), (1, 2), (1, 3)),
    # 16 bytes of channels, or of rows, and windows that kernels know.
    "squares": case((2, 16, 9, 12), 3, 2, 1),
    "squares without padding": case((2, 16, 8, 16), 3, 2),
    "2x2 squares": case((1, 32, 9, 16), 2, 2, ceil_mode=True),
    "2x2 with padding": case((1, 16, 6, 16), 2, 2, 1),
    "3x3 at 1": case((1, 16, 5, 24), 3, 1, 1),
    "3x3 at 1 without padding": case((1, 16, 5, 20), 3, 1),
    "3x3 in slices": case((1, 16, 4, 6, 16), 3, 2, 1),
    # As many planes as are taken together, and planes that are cut into bands.
    "many planes": case((2, 700, 5, 6), 3, 2, 1),
    "many planes, 2x2": case((2, 700, 4, 7), 2),
    "many planes, 3x3 at 1": case((1, 1400, 4, 5), 3, 1, 1),
    "many planes, 5x4": case((1, 1400, 6, 7), (5, 4), (2, 3), (2, 1)),
    "many volumes": case((2, 700, 3, 4, 5), (3, 2, 3), (2, 1, 2), (1, 0, 1)),
    "bands": case((1, 2, 50, 131), 3, 2, 1),
    "long": case((1, 2, 9001), 3, 2, 1),
    "one slice, deep windows": case((2, 3, 1, 6, 7), 3, 2, 1),
}
DILATED = {
    "dilated": case((2, 3, 11, 12), 3, 2, 2, dilation=2),
    "dilated 1-d": case((2, 3, 20), 4, 3, (3,), dilation=(3,)),
    "same, dilated": case((2, 3, 7, 12), 3, 1, "same", dilation=(2, 3)),
}
each_case = pytest.mark.parametrize("name", CASES)
each_layout = pytest.mark.parametrize("channels", ["NCHW", "NHWC"])


def place(x, channels):
    """A channels-first array in that layout."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if channels == "NHWC" else x


def first(y, channels):
    return np.moveaxis(y, -1, 1) if channels == "NHWC" else y


@each_layout
@pytest.mark.parametrize("name", [*CASES, *DILATED])
def test_max(backend, dtype, rng, name, channels):
    shape, given, window = (CASES | DILATED)[name]
    x = rounded(rng.integers(-9, 9, shape), dtype)  # with ties
    y, indices = dlkern.max_pool(backend.array(place(x, channels)), layout=channels,
                                 return_indices=True, **given)  # fmt: skip
    expected, positions = oracle.max_forward(float64(x), **window)
    np.testing.assert_array_equal(first(backend.numpy(y), channels), expected)
    np.testing.assert_array_equal(first(backend.numpy(indices), channels), positions)
    alone = dlkern.max_pool(backend.array(place(x, channels)), layout=channels, **given)
    np.testing.assert_array_equal(backend.numpy(alone), backend.numpy(y))

    dy = rounded(rng.standard_normal(expected.shape), dtype)
    dx = dlkern.max_pool_backward(backend.array(place(dy, channels)), indices,
                                  place(x, channels).shape, layout=channels, **given)  # fmt: skip
    exact = oracle.max_backward(float64(dy), positions, shape)
    scale = oracle.max_backward(np.abs(float64(dy)), positions, shape)
    assert_close(first(backend.numpy(dx), channels), exact, dtype, "pool", scale)


@each_layout
@each_case
@pytest.mark.parametrize("count_include_pad", [True, False])
def test_avg(backend, dtype, rng, name, channels, count_include_pad):
    shape, given, window = CASES[name]
    given = {k: v for k, v in given.items() if k != "dilation"}
    options = {"layout": channels, "count_include_pad": count_include_pad}
    x = rounded(rng.standard_normal(shape), dtype)
    y = dlkern.avg_pool(backend.array(place(x, channels)), **given, **options)
    expected, backward = oracle.avg(float64(x), count_include_pad, **window)
    scale, backward_scale = oracle.avg(np.abs(float64(x)), count_include_pad, **window)
    assert_close(first(backend.numpy(y), channels), expected, dtype, "pool", scale)

    dy = rounded(rng.standard_normal(expected.shape), dtype)
    dx = dlkern.avg_pool_backward(backend.array(place(dy, channels)), place(x, channels).shape,
                                  **given, **options)  # fmt: skip
    assert_close(first(backend.numpy(dx), channels), backward(float64(dy)), dtype, "pool",
                 backward_scale(np.abs(float64(dy))))  # fmt: skip


@each_layout
@pytest.mark.parametrize(
    "name",
    ["2x2", "3x3 stride 2", "3-d", "asymmetric", "squares", "2x2 with padding", "3x3 at 1",
     "3x3 in slices", "dilated"],
)  # fmt: skip
@pytest.mark.parametrize("index_dtype", ["int32", "uint8"])
def test_other_indices(backend, rng, name, channels, index_dtype):
    """uint8 counts the taps of a window; the gradient is the same."""
    shape, given, window = (CASES | DILATED)[name]
    x = backend.array(place(rounded(rng.integers(-9, 9, shape), "float16"), channels))
    y, wide = dlkern.max_pool(x, layout=channels, return_indices=True, **given)
    again, narrow = dlkern.max_pool(x, layout=channels, return_indices=True,
                                    index_dtype=index_dtype, **given)  # fmt: skip
    np.testing.assert_array_equal(backend.numpy(again), backend.numpy(y))
    assert backend.numpy(narrow).dtype == index_dtype
    if index_dtype == "uint8":
        dims = len(shape) - 2
        taps = np.indices(window["kernel"]).reshape(dims, -1)
        numbers = first(backend.numpy(narrow), channels)
        positions = np.unravel_index(first(backend.numpy(wide), channels), shape[2:])
        for d in range(dims):
            grid = np.arange(numbers.shape[2 + d]).reshape(-1, *[1] * (dims - d - 1))
            origin = grid * window["stride"][d] - window["pads"][d][0]
            np.testing.assert_array_equal(
                origin + taps[d][numbers] * window["dilation"][d], positions[d]
            )
    else:
        np.testing.assert_array_equal(backend.numpy(narrow), backend.numpy(wide))
    args = place(np.empty(shape), channels).shape
    dx = dlkern.max_pool_backward(y, wide, args, layout=channels, **given)
    same = dlkern.max_pool_backward(y, narrow, args, layout=channels, **given)
    np.testing.assert_array_equal(backend.numpy(same), backend.numpy(dx))


def test_uint8_indices_of_large_windows(backend):
    x = backend.array(np.zeros((1, 1, 16, 17)))
    with pytest.raises(TypeError, match="indices.dtype is uint8, expected int64 or int32 for 272"):
        dlkern.max_pool(x, None, return_indices=True, index_dtype="uint8")


@each_layout
@pytest.mark.parametrize("norm", [1, 2, 3.5])
@pytest.mark.parametrize("name", ["3x3 stride 2", "1-d", "3-d", "ceil", "global", "squares"])
def test_lp(backend, dtype, rng, name, channels, norm):
    shape, given, window = CASES[name]
    given = {k: v for k, v in given.items() if k != "dilation"} | {"layout": channels}
    x = rounded(rng.standard_normal(shape), dtype)
    x[0, 0] = 0  # a window of zeros gives no gradient
    y = dlkern.lp_pool(backend.array(place(x, channels)), norm, **given)
    expected, backward = oracle.lp(float64(x), norm, **window)
    assert_close(first(backend.numpy(y), channels), expected, dtype, "pool", expected)

    dy = rounded(rng.standard_normal(expected.shape), dtype)
    y = rounded(expected, dtype)
    dx = dlkern.lp_pool_backward(*(backend.array(place(v, channels)) for v in (dy, x, y)), norm,
                                 **given)  # fmt: skip
    backward_scale = oracle.lp(np.abs(float64(x)), norm, **window)[1]
    assert_close(first(backend.numpy(dx), channels), backward(float64(dy), float64(y)), dtype,
                 "pool", backward_scale(np.abs(float64(dy)), float64(y)))  # fmt: skip


@each_layout
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [((2, 3, 10, 7), (4, 3)), ((2, 16, 7, 9), (7, 2)), ((1, 2, 5), (8,)),
     ((1, 2, 5, 4, 9), (2, 3, 5)), ((2, 700, 7, 5), (3, 2)), ((2, 700, 3, 4), (5, 4)),
     ((2, 3, 8, 6), (4, 3)), ((2, 3, 8, 6), (1, 1))],
)  # fmt: skip
def test_adaptive(backend, dtype, rng, shape, sizes, channels):
    x = rounded(rng.integers(-9, 9, shape), dtype)
    on_device = backend.array(place(x, channels))
    given = {"layout": channels}
    expected, positions, mean, backward = oracle.adaptive(float64(x), sizes)
    y, indices = dlkern.adaptive_max_pool(on_device, sizes, return_indices=True, **given)
    np.testing.assert_array_equal(first(backend.numpy(y), channels), expected)
    np.testing.assert_array_equal(first(backend.numpy(indices), channels), positions)
    _, taps = dlkern.adaptive_max_pool(on_device, sizes, out_indices=backend.array(
        np.zeros(indices.shape, "uint8")), **given)  # fmt: skip
    dy = rounded(rng.standard_normal(expected.shape), dtype)
    on_device_dy = backend.array(place(dy, channels))
    dx = dlkern.adaptive_max_pool_backward(on_device_dy, indices, on_device.shape, **given)
    same = dlkern.adaptive_max_pool_backward(on_device_dy, taps, on_device.shape, **given)
    np.testing.assert_array_equal(backend.numpy(same), backend.numpy(dx))
    exact = oracle.max_backward(float64(dy), positions, shape)
    assert_close(first(backend.numpy(dx), channels), exact, dtype, "pool",
                 oracle.max_backward(np.abs(float64(dy)), positions, shape))  # fmt: skip

    y = dlkern.adaptive_avg_pool(on_device, sizes, **given)
    scale = oracle.adaptive(np.abs(float64(x)), sizes)[2]
    assert_close(first(backend.numpy(y), channels), mean, dtype, "pool", scale)
    dx = dlkern.adaptive_avg_pool_backward(on_device_dy, on_device.shape, **given)
    assert_close(first(backend.numpy(dx), channels), backward(float64(dy)), dtype, "pool",
                 backward(np.abs(float64(dy))))  # fmt: skip


def test_adaptive_keeps_extents(backend, rng):
    x = backend.array(rng.standard_normal((2, 3, 6, 5)))
    y = backend.numpy(dlkern.adaptive_avg_pool(x, (None, 5)))
    np.testing.assert_array_equal(y, backend.numpy(x))
    assert dlkern.adaptive_max_pool(x, (3, None)).shape == (2, 3, 3, 5)


@pytest.mark.sanitize
@each_layout
@pytest.mark.parametrize("width", [16, 12, 9])
@pytest.mark.parametrize("given", [{"kernel": 3, "stride": 2, "padding": 1},
                                   {"kernel": 3, "stride": 1}, {"kernel": 2}])  # fmt: skip
def test_items_do_not_depend_on_the_others(backend, rng, width, given, channels):
    """The bits of an item alone, unaligned, are those of the item in a batch."""
    given = given | {"layout": channels}
    x = place(rounded(rng.standard_normal((3, 16, 7, width)), "bfloat16"), channels)
    for pool, back in ((dlkern.max_pool, None), (dlkern.avg_pool, dlkern.avg_pool_backward)):
        many = backend.numpy(pool(backend.array(x), **given))
        one = backend.array(x[1:2], "unaligned")
        np.testing.assert_array_equal(backend.numpy(pool(one, **given)), many[1:2])
        if back:
            dx = backend.numpy(back(backend.array(many), x.shape, **given))
            dy = backend.array(many[1:2], "unaligned")
            np.testing.assert_array_equal(backend.numpy(back(dy, (1, *x.shape[1:]), **given)),
                                          dx[1:2])  # fmt: skip


@pytest.mark.parametrize("given", [{"kernel": 3, "stride": 2, "padding": 1}, {"kernel": 2}])
def test_layouts_agree(backend, rng, given):
    """Images of the size of real ones, channels first and last."""
    x = rounded(rng.standard_normal((4, 32, 57, 56)), "bfloat16")
    results = []
    for layout in ("NCHW", "NHWC"):
        options = given | {"layout": layout}
        on_device = backend.array(place(x, layout))
        y, indices = dlkern.max_pool(on_device, return_indices=True, **options)
        mean = dlkern.avg_pool(on_device, **options)
        dx = dlkern.max_pool_backward(mean, indices, on_device.shape, **options)
        spread = dlkern.avg_pool_backward(mean, on_device.shape, **options)
        results.append([first(backend.numpy(v), layout) for v in (y, indices, mean, dx, spread)])
    for a, b in zip(*results, strict=True):  # sums may be of another order
        np.testing.assert_allclose(float64(a), float64(b), rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize("divisor", [5, -2])
def test_divisor_override(backend, rng, divisor):
    shape, given, window = CASES["3x3 stride 2"]
    given = {k: v for k, v in given.items() if k != "dilation"}
    x = rng.standard_normal(shape)
    expected, backward = oracle.avg(x, divisor_override=divisor, **window)
    y = dlkern.avg_pool(backend.array(x), divisor_override=divisor, **given)
    np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e-13, atol=1e-14)
    dx = dlkern.avg_pool_backward(y, shape, divisor_override=divisor, **given)
    np.testing.assert_allclose(backend.numpy(dx), backward(expected), rtol=1e-13, atol=1e-14)


@pytest.mark.sanitize
@each_layout
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout, channels):
    """EDGE 21, 26: any strides and alignment on both sides; the gaps stay as they were."""
    shape, given, window = CASES["3x3 stride 2"]
    flat = {k: v for k, v in given.items() if k != "dilation"}
    for dtype in ("float32", "float16"):
        x = rounded(rng.standard_normal(shape), dtype)
        on_device = backend.array(place(x, channels), layout)
        exact, positions = oracle.max_forward(float64(x), **window)
        result = place(exact, channels).shape
        y = backend.empty(result, dtype, layout)
        indices = backend.empty(result, "int32", layout)
        dlkern.max_pool(on_device, layout=channels, out=y, out_indices=indices, **given)
        np.testing.assert_array_equal(first(backend.numpy(y), channels), exact)
        np.testing.assert_array_equal(first(backend.numpy(indices), channels), positions)

        dx = backend.empty(on_device.shape, dtype, layout)
        dlkern.max_pool_backward(y, indices, None, layout=channels, out=dx, **given)
        expected = oracle.max_backward(exact, positions, shape)
        assert_close(first(backend.numpy(dx), channels), expected, dtype, "pool",
                     oracle.max_backward(np.abs(exact), positions, shape))  # fmt: skip

        dlkern.avg_pool(on_device, layout=channels, out=y, **flat)
        exact, backward = oracle.avg(float64(x), **window)
        assert_close(first(backend.numpy(y), channels), exact, dtype, "pool",
                     oracle.avg(np.abs(float64(x)), **window)[0])  # fmt: skip
        dlkern.avg_pool_backward(y, None, layout=channels, out=dx, **flat)
        dy = first(backend.numpy(y), channels)
        assert_close(first(backend.numpy(dx), channels), backward(dy), dtype, "pool",
                     backward(np.abs(dy)))  # fmt: skip


@each_layout
@pytest.mark.parametrize("indexed", [True, False])
def test_edge_05_windows_of_nan_and_infinity(backend, dtype, channels, indexed):
    """NaN wins, all -inf gives -inf, and the index is a real element: the first one."""
    x = np.zeros((1, 3, 4, 6))
    x[:, 0, :, :2] = np.nan
    x[:, 0, 0, 4] = np.nan
    x[:, 1] = -np.inf
    x[:, 2, 1, 1:] = np.inf
    given = {"kernel": 3, "stride": 2, "padding": 1, "layout": channels}
    y = dlkern.max_pool(backend.array(place(rounded(x, dtype), channels)), return_indices=indexed,
                        **given)  # fmt: skip
    window = {"kernel": (3, 3), "stride": (2, 2), "pads": [(1, 1)] * 2, "dilation": (1, 1)}
    expected, positions = oracle.max_forward(x, **window)
    if indexed:
        y, indices = y
        np.testing.assert_array_equal(first(backend.numpy(indices), channels), positions)
    np.testing.assert_array_equal(first(backend.numpy(y), channels), expected)
    assert np.isnan(expected[0, 0, 0, 0])
    assert (expected[0, 1] == -np.inf).all()


@pytest.mark.parametrize("kernel", [3, None])
def test_edge_05_global_windows(backend, dtype, kernel):
    x = rounded([[[np.nan, 1, 2], [-np.inf] * 3, [1, np.nan, np.inf]]], dtype)
    y, indices = dlkern.max_pool(backend.array(x), kernel, return_indices=True)
    np.testing.assert_array_equal(backend.numpy(y)[0, :, 0], [np.nan, -np.inf, np.nan])
    np.testing.assert_array_equal(backend.numpy(indices)[0, :, 0], [0, 0, 1])
    y = dlkern.max_pool(backend.array(x), kernel)
    np.testing.assert_array_equal(backend.numpy(y)[0, :, 0], [np.nan, -np.inf, np.nan])


def test_edge_13_same_padding(backend, rng):
    for n, kernel, stride, before, outputs in ((4, 2, 1, 0, 4), (224, 7, 2, 2, 112)):
        x = rng.standard_normal((1, 1, n))
        y = dlkern.max_pool(backend.array(x), kernel, stride=stride, padding="same")
        assert y.shape == (1, 1, outputs)
        assert backend.numpy(y)[0, 0, 0] == x[0, 0, : kernel - before].max()


def test_edge_14_batch_65537(backend, rng):
    x = rounded(rng.standard_normal((65537, 1, 2, 3)), "float32")
    last, given = backend.array(x[-1:]), {"kernel": 2, "stride": 1}
    for pool in (dlkern.max_pool, dlkern.avg_pool):
        many = backend.numpy(pool(backend.array(x), **given))
        np.testing.assert_array_equal(many[-1:], backend.numpy(pool(last, **given)))
    y, indices = dlkern.max_pool(backend.array(x), return_indices=True, **given)
    many = backend.numpy(dlkern.max_pool_backward(y, indices, x.shape, **given))
    one, index = dlkern.max_pool(last, return_indices=True, **given)
    one = dlkern.max_pool_backward(one, index, (1, 1, 2, 3), **given)
    np.testing.assert_array_equal(many[-1:], backend.numpy(one))


@pytest.mark.gpu
def test_edge_15_more_than_2_31_elements(gpu):
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 2**18 + 1, 64, 64, dtype=torch.float16, device="cuda")
    y, indices = dlkern.max_pool(x, 2, return_indices=True)
    one, index = dlkern.max_pool(x[1:, -1:].contiguous(), 2, return_indices=True)
    assert torch.equal(y[1:, -1:], one)
    assert torch.equal(indices[1:, -1:], index)
    dx = dlkern.max_pool_backward(y, indices, tuple(x.shape), 2)
    assert torch.equal(dx[1:, -1:], dlkern.max_pool_backward(one, index, (1, 1, 64, 64), 2))


def test_edge_16_strides_of_size_1_dimensions(backend, rng):
    x = rng.standard_normal((1, 1, 6, 1))
    odd = np.lib.stride_tricks.as_strided(x, x.shape, (7 * 8, 3 * 8, 8, 5 * 8))
    for layout in ("NCHW", "NHWC"):
        given = {"kernel": (2, 1) if layout == "NCHW" else 1, "layout": layout}
        y = backend.numpy(dlkern.max_pool(backend.array(x), **given))
        np.testing.assert_array_equal(dlkern.max_pool(odd, **given), y)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4)])
def test_empty(backend, dtype, shape):
    x = backend.array(rounded(np.zeros(shape), dtype))
    y, indices = dlkern.max_pool(x, 2, return_indices=True)
    assert y.shape == indices.shape == (*shape[:2], 2, 2)
    assert dlkern.max_pool_backward(y, indices, shape, 2).shape == shape
    assert dlkern.avg_pool(x, 2).shape == (*shape[:2], 2, 2)
    assert dlkern.avg_pool_backward(y, shape, 2).shape == shape


@pytest.mark.parametrize("given", [{"kernel": 2, "stride": 1}, {"kernel": 3, "padding": 1}])
def test_gradients_by_finite_differences(rng, given):
    x = rng.permutation(2 * 2 * 5 * 6).reshape(2, 2, 5, 6).astype(float)  # far from ties
    y, indices = dlkern.max_pool(x, return_indices=True, **given)
    dy = rng.standard_normal(y.shape)
    dx = dlkern.max_pool_backward(dy, indices, x.shape, **given)
    assert_grad(lambda v: dlkern.max_pool(v, **given), [x], dy, [dx])
    dx = dlkern.avg_pool_backward(dy, x.shape, **given)
    assert_grad(lambda v: dlkern.avg_pool(v, **given), [x], dy, [dx])
    for norm in (2, 3):
        y = dlkern.lp_pool(x, norm, **given)
        dx = dlkern.lp_pool_backward(dy, x, y, norm, **given)
        assert_grad(lambda v, norm=norm: dlkern.lp_pool(v, norm, **given), [x], dy, [dx])


def test_against_torch(rng):
    """A second opinion, on windows at random."""
    torch = pytest.importorskip("torch")
    for _ in range(60):
        kernel, stride = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        padding, ceil_mode = int(rng.integers(0, kernel // 2 + 1)), bool(rng.integers(2))
        given = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
        args = kernel, stride, padding
        x = torch.from_numpy(rng.integers(-5, 5, (2, 3, 9, 11)).astype(np.float64))
        y, indices = dlkern.max_pool(x, return_indices=True, **given)
        theirs = torch.nn.functional.max_pool2d(x, *args, 1, ceil_mode, return_indices=True)
        assert torch.equal(y, theirs[0])
        assert torch.equal(indices, theirs[1])
        theirs = torch.nn.functional.avg_pool2d(x, *args, ceil_mode)
        torch.testing.assert_close(dlkern.avg_pool(x, **given), theirs)


IMAGE = np.zeros((1, 2, 4, 5))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"kernel": 5}, ValueError, r"kernel\[0\] is 5.*at most 4, the padded extent of x"),
        ({"kernel": 0}, ValueError, "kernel is 0, expected at least 1"),
        ({"kernel": (2, 2, 2)}, ValueError, "kernel is"),
        ({"kernel": 2.5}, TypeError, "kernel is 2.5"),
        ({"kernel": 2, "stride": 0}, ValueError, "stride is 0"),
        ({"kernel": 2, "dilation": 0}, ValueError, r"dilation\[0\] is 0"),
        ({"kernel": 2, "padding": 2}, ValueError, "padding: pad_begin.* at most 1, half of"),
        ({"kernel": 2, "padding": -1}, ValueError, "padding: pad_begin.* is -1"),
        ({"kernel": (2, 1), "padding": ((0, 2), 0)}, ValueError, "padding: pad_end"),
        ({"kernel": 2, "padding": "full"}, ValueError, "padding is 'full'"),
        ({"kernel": 2, "layout": "CHWN"}, ValueError, "layout is 'CHWN'"),
        ({"kernel": 2, "layout": "NWC"}, ValueError, "layout is 'NWC'"),
        ({"kernel": (1, 2), "dilation": (1, 8), "padding": (0, 4)}, ValueError,
         r"dilation\[1\] is 8, expected windows that hold an element of x"),
        ({"kernel": 2, "out_indices": np.zeros((1, 2, 2, 2))}, TypeError,
         "out_indices.dtype is float64, expected int64 or int32"),
        ({"kernel": 2, "out": np.zeros((1, 2, 2, 3))}, ValueError, "out.shape is"),
    ],
)  # fmt: skip
def test_wrong_arguments(given, error, message):
    with pytest.raises(error, match=f"^max_pool: {message}"):
        dlkern.max_pool(IMAGE, **given)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dlkern.avg_pool(np.zeros((1, 2)), 1), ValueError, "avg_pool: x has 2 dim"),
        (lambda: dlkern.avg_pool(IMAGE, 2, divisor_override=0), ValueError,
         "divisor_override is 0"),
        (lambda: dlkern.avg_pool(np.zeros((1, 2, 0, 3)), 1), ValueError, "extents of at least 1"),
        (lambda: dlkern.lp_pool(IMAGE, 0, 1), ValueError, "norm is 0, expected a positive"),
        (lambda: dlkern.lp_pool(IMAGE, np.inf, 1), ValueError, "norm is inf"),
        (lambda: dlkern.lp_pool(IMAGE, "2", 1), TypeError, "norm_type is '2'"),
        (lambda: dlkern.adaptive_max_pool(IMAGE, (0, 1)), ValueError,
         "^adaptive_max_pool: output_size is"),
        (lambda: dlkern.adaptive_avg_pool(IMAGE, (1, 1, 1)), ValueError, "output_size is"),
        (lambda: dlkern.adaptive_avg_pool(IMAGE, 1, out=np.zeros((1, 2, 2, 1))), ValueError,
         "^adaptive_avg_pool: out.shape is"),
        (lambda: dlkern.max_pool(IMAGE, 2, return_indices=True, index_dtype="int8"), ValueError,
         "index_dtype is 'int8'"),
        (lambda: dlkern.avg_pool_backward(IMAGE, None, 1), TypeError, "input_shape is None"),
        (lambda: dlkern.avg_pool_backward(IMAGE, (1, 2, 9, 9), 2), ValueError, r"dy.shape is"),
        (lambda: dlkern.max_pool_backward(IMAGE, IMAGE, (1, 2, 8, 10), 2), TypeError,
         "indices.dtype is float64"),
        (lambda: dlkern.max_pool_backward(IMAGE, np.zeros((1, 2, 4, 4), int), (1, 2, 8, 10), 2),
         ValueError, "indices.shape is"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_the_others(call, error, message):
    with pytest.raises(error, match=message):
        call()
