"""Element-wise kernels that a user writes: the language, both backends, arguments."""

import threading

import ml_dtypes
import numpy as np
import pytest
from backends import LAYOUTS, get_backend, gpu_name
from oracle import float64, numpy_dtype, rounded

import dlkern
from dlkern import elementwise_cuda
from dlkern.elementwise_language import COMPUTED, Program

LEAKY = "y = x > 0 ? x : a * x"


@pytest.fixture
def backend(backend):
    if backend.is_gpu:
        pytest.importorskip("cuda.core")
    return backend


def run(backend, code, *args, **kwargs):
    """The outputs as NumPy arrays, from NumPy arrays and numbers."""
    args = [backend.array(a) if isinstance(a, np.ndarray) else a for a in args]
    results = dlkern.elementwise(code)(*args, **kwargs)
    if isinstance(results, tuple):
        return tuple(backend.raw(r) for r in results)
    return backend.raw(results)


# ---- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (7,), (1029,), (40, 1030)])
def test_leaky_relu(backend, dtype, rng, shape):
    x = rounded(rng.standard_normal(shape), dtype)
    y = run(backend, LEAKY, x, 0.125)
    assert y.dtype == x.dtype
    expected = np.where(float64(x) > 0, float64(x), 0.125 * float64(x))
    np.testing.assert_array_equal(y, rounded(expected, dtype))


X = np.array([-7, -2, -1, 0, 1, 2, 7])
# Expression in x (a float) and n (an int) -> its value in C++.
VALUES = {
    "n / 2": [-3, -1, 0, 0, 0, 1, 3],
    "n % 3": [-1, -2, -1, 0, 1, 2, 1],
    "n >> 1": [-4, -1, -1, 0, 0, 1, 3],
    "n << 2": [-28, -8, -4, 0, 4, 8, 28],
    "(n & 3) | 8": [9, 10, 11, 8, 9, 10, 11],
    "n ^ ~n": [-1] * 7,
    "-n": [7, 2, 1, 0, -1, -2, -7],
    "!n": [0, 0, 0, 1, 0, 0, 0],
    "n > -2 && n < 2 || n == 7": [0, 0, 1, 1, 1, 0, 1],
    "(n > 0) + (n > 1)": [0, 0, 0, 0, 1, 2, 2],
    "1 - n * 2 + 3": [18, 8, 6, 4, 2, 0, -10],
    "n ? n < 0 ? 1 : 2 : 3": [1, 1, 1, 3, 2, 2, 2],
    "(int)(x / 2)": [-3, -1, 0, 0, 0, 1, 3],
    "x / 2": [-3.5, -1, -0.5, 0, 0.5, 1, 3.5],
    "round(x / 2)": [-4, -1, -1, 0, 1, 1, 4],
    "rint(x / 2)": [-4, -1, 0, 0, 0, 1, 4],
    "trunc(x / 2) - floor(x / 2)": [1, 0, 1, 0, 0, 0, 0],
    "abs(n) + abs(x)": [14, 4, 2, 0, 2, 4, 14],
    "min(n, 1) * 10 + max(n, -1)": [-71, -21, -11, 0, 11, 12, 17],
    "clamp(x, -1.5, n * n)": [-1.5, -1.5, -1, 0, 1, 2, 7],
    "where(isnan(0 / x), -1, 5)": [5, 5, 5, -1, 5, 5, 5],
    "fma(x, 2, n) + pow(x, 2)": [28, -2, -2, 0, 4, 10, 70],
    "fmin(x, NAN) + (x == INFINITY)": [-7, -2, -1, 0, 1, 2, 7],
    "fmod(x, 3) + copysign(1.f, x)": [-2, -3, -2, 1, 2, 3, 2],
    "0x10 + 1e1 + .5f": [26.5] * 7,
    "unsigned(n) > 5u": [1, 1, 1, 0, 0, 0, 1],
    "(n + 2147483647LL) / 1": [2147483640, 2147483645, 2147483646, *range(2147483647, 2147483650),
                               2147483654],
    "bool(n) * 2": [2, 2, 2, 0, 2, 2, 2],
}  # fmt: skip


@pytest.mark.sanitize
def test_expressions_mean_what_they_mean_in_cpp(backend):
    x = backend.array(X.astype(np.float32))
    n = backend.array(X.astype(np.int32))
    items = list(VALUES.items())
    for first in range(0, len(items), 8):  # 16 arrays at most
        part = items[first : first + 8]
        code = "; ".join(f"y{i} = {expression}" for i, (expression, _) in enumerate(part))
        code += "; z = x + n"
        results = dlkern.elementwise(code)(x=x, n=n)
        for (expression, expected), result in zip(part, results, strict=False):
            np.testing.assert_array_equal(
                backend.numpy(result).astype(float), expected, err_msg=expression
            )


FUNCTIONS = {
    "exp(x)": np.exp, "log(x)": np.log, "log1p(x)": np.log1p, "expm1(x)": np.expm1,
    "sqrt(x)": np.sqrt, "rsqrt(x)": lambda x: 1 / np.sqrt(x), "cbrt(x)": np.cbrt,
    "sin(x)": np.sin, "cos(x)": np.cos, "tan(x)": np.tan, "tanh(x)": np.tanh, "atan(x)": np.arctan,
    "exp2(x)": np.exp2, "log2(x)": np.log2,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions(backend, rng, dtype):
    x = rng.uniform(0.1, 3, 500).astype(dtype)
    items = list(FUNCTIONS.items())
    for first in range(0, len(items), 8):
        part = items[first : first + 8]
        code = "; ".join(f"y{i} = {expression}" for i, (expression, _) in enumerate(part))
        for (expression, function), y in zip(part, run(backend, code, x), strict=True):
            assert y.dtype == dtype
            np.testing.assert_allclose(
                y, function(float64(x)), rtol=8 * np.finfo(dtype).eps, atol=1e-7,
                err_msg=expression,
            )  # fmt: skip
    y = run(backend, "y = erf(x) + erfc(x)", x)
    np.testing.assert_allclose(y, 1, rtol=4 * np.finfo(dtype).eps)


def test_several_statements_locals_and_outputs(backend, rng):
    x, b = rng.standard_normal((3, 1, 5)).astype("f4"), rng.standard_normal((4, 1)).astype("f4")
    code = """
        const float t = x + b;  // a local
        float s = t * t;
        y = s / (1 + s);        /* two outputs */
        big = s > 1;
        s += 1; count = (int)s;
    """
    y, big, count = run(backend, code, x, b)
    t = x + b
    s = t * t
    np.testing.assert_array_equal(y, s / (1 + s))
    np.testing.assert_array_equal(big, s > 1)
    np.testing.assert_array_equal(count, (s + np.float32(1)).astype(np.int32))
    assert (y.dtype, big.dtype, count.dtype) == (np.float32, bool, np.int32)


def test_update_in_place(backend, dtype, rng):
    p, g = (rounded(rng.standard_normal((5, 64)), dtype) for _ in range(2))
    step = dlkern.elementwise("m = 0.5 * m + g; p -= lr * m; n = m", inputs=("p", "m", "g", "lr"))
    a, m = backend.array(p), backend.array(np.zeros_like(p))
    results = step(a, m, backend.array(g), lr=0.25)
    assert results[0] is m and results[1] is a
    wide = np.float32 if dtype != "float64" else np.float64
    np.testing.assert_array_equal(backend.raw(m), g)
    expected = (p.astype(wide) - wide(0.25) * g.astype(wide)).astype(p.dtype)
    np.testing.assert_array_equal(backend.raw(a), expected)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("bfloat16",), "bfloat16"),
        (("bfloat16", "bfloat16"), "bfloat16"),
        (("bfloat16", "float16"), "float32"),
        (("bfloat16", "float32"), "float32"),
        (("float16", "float64"), "float64"),
        (("bfloat16", "int64"), "bfloat16"),
        (("int32", "float64"), "float64"),
        (("uint8", "int8"), "int32"),
        (("int32", "int64"), "int64"),
        (("bool", "bool"), "int32"),
        (("int16", "uint16"), "int32"),
        (("uint32", "int16"), "uint32"),
        (("float8_e4m3fn",), "float8_e4m3fn"),
        (("float8_e5m2", "int8"), "float8_e5m2"),
        (("float8_e5m2", "float8_e4m3fn"), "float32"),
        (("float8_e4m3fn", "bfloat16"), "float32"),
    ],
)
def test_result_dtypes(backend, dtypes, expected):
    arrays = [rounded([1, 0, 1], dtype) for dtype in dtypes]
    code = "y = " + " + ".join(f"x{i}" for i in range(len(arrays)))
    y = run(backend, code, *arrays)
    assert y.dtype.name == expected
    np.testing.assert_array_equal(float64(y), [len(arrays), 0, len(arrays)])


def test_dtypes_of_outputs_can_be_given(backend):
    x = backend.array(np.array([0.25, 300.0, -1.5], np.float32))
    f = dlkern.elementwise("y = x * 2; n = x", dtypes={"y": "bfloat16", "n": "int64"})
    y, n = (backend.raw(r) for r in f(x))
    assert (y.dtype.name, n.dtype.name) == ("bfloat16", "int64")
    np.testing.assert_array_equal(n, [0, 300, -1])
    out = backend.empty((3,), "uint8")
    dlkern.elementwise("y = x > 0")(x, out=out)
    np.testing.assert_array_equal(backend.raw(out), [1, 1, 0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("layout", ["contiguous", "strided", "unaligned"])
def test_integers_of_all_sizes(backend, rng, dtype, layout):
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min // 2, limits.max // 2, (5, 64), dtype=dtype, endpoint=True)
    out = backend.empty(x.shape, dtype, layout)
    dlkern.elementwise("y = x * 2 - x")(backend.array(x, layout), out=out)
    np.testing.assert_array_equal(backend.raw(out), x)
    large = run(backend, "y = x > 100", backend.array(x))
    np.testing.assert_array_equal(large, x > 100)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("layout", ["contiguous", "strided", "unaligned"])
def test_float8(backend, rng, dtype, layout):
    """All codes are read; what is stored is rounded to even and saturates, as cast() has it."""
    codes = np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype)).reshape(4, 64)
    read = backend.empty(codes.shape, "float32")
    dlkern.elementwise("y = x")(backend.array(codes, layout), out=read)
    np.testing.assert_array_equal(backend.raw(read), codes.astype(np.float32))
    x = rng.standard_normal((40, 64)) * 10.0 ** rng.integers(-6, 6, (40, 64))
    x[0, :4] = np.inf, -np.inf, np.nan, -0.0
    x = x.astype(np.float32)
    out = backend.empty(x.shape, dtype, layout)
    dlkern.elementwise("y = x")(backend.array(x, layout), out=out)
    right = dlkern.cast(backend.array(x), dtype)
    np.testing.assert_array_equal(float64(backend.raw(out)), float64(backend.raw(right)))


def test_scalars_do_not_widen(backend):
    x = np.array([1, 2], np.float32)
    assert run(backend, "y = a * x + 0.1", x, 0.1).dtype == np.float32
    assert run(backend, "y = a * x + 0.1", x.astype("f8"), 0.1)[0] == 0.1 * 1 + 0.1
    assert run(backend, "y = n + k", x.astype("i4"), 2**40).dtype == np.int64
    assert run(backend, "y = n + k", x.astype("i4"), True).dtype == np.int32


# ---- Layouts -------------------------------------------------------------------------------------


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, rng, layout):
    """EDGE 21, 26: any strides and alignment give the same bits."""
    for dtype, shape in (("bfloat16", (3, 4, 64)), ("float32", (5, 37)), ("float64", (2, 34))):
        x = rounded(rng.standard_normal(shape), dtype)
        b = rounded(rng.standard_normal(shape[-2:]), dtype)
        f = dlkern.elementwise("y = x * b + 1")
        expected = backend.raw(f(backend.array(x), backend.array(b)))
        out = backend.empty(shape, dtype, layout)
        assert f(backend.array(x, layout), backend.array(b, layout), out=out) is out
        np.testing.assert_array_equal(backend.raw(out), expected)
        out = backend.empty(shape, dtype)
        f(backend.array(x, layout), backend.array(b), out=out)
        np.testing.assert_array_equal(backend.raw(out), expected)


def test_broadcast_operands(backend, rng):
    x = rng.standard_normal((6, 64)).astype("f4")
    for other in ((1,), (64,), (6, 1), (2, 1, 64), ()):
        b = rng.standard_normal(other).astype("f4")
        np.testing.assert_array_equal(run(backend, "y = x - b", x, b), x - b)
    view = backend.broadcast(x[:, :1], (6, 64))
    y = dlkern.elementwise("y = x + v")(backend.array(x), view)
    np.testing.assert_array_equal(backend.raw(y), x + x[:, :1])


@pytest.mark.gpu
def test_edge_15_more_than_2_31_elements(gpu):
    torch = pytest.importorskip("torch")
    pytest.importorskip("cuda.core")
    n = 2**31 + 9
    if torch.cuda.mem_get_info()[0] < 4 * n + 2**30:
        pytest.skip("not enough memory on the GPU")
    x = torch.zeros(n, dtype=torch.float16, device="cuda")
    x[-9:] = torch.arange(-4, 5, device="cuda")
    double = dlkern.elementwise("x = 2 * x")
    assert double(x) is x
    assert x[-9:].tolist() == [-8, -6, -4, -2, 0, 2, 4, 6, 8]
    double(x[::2])  # strided, positions of 64 bits in memory
    assert x[-9:].tolist() == [-16, -6, -8, -2, 0, 2, 8, 6, 16]


def test_which_way_is_taken(backend):
    f = dlkern.elementwise("y = x + b")

    def ways(*arrays):
        (plan,) = dlkern.explain(f, *arrays)
        return plan.implementation, plan.explanation

    x = backend.array(np.ones((6, 64), np.float32))
    if not backend.is_gpu:
        assert ways(x, x) == ("numpy_blocks", "numpy_blocks: chosen")
        return
    assert ways(x, x)[0] == "nvrtc_flat"
    assert ways(x, backend.array(np.ones((6, 1), np.float32)))[0] == "nvrtc_rows"
    assert ways(x, backend.array(np.ones((1, 64), np.float32)))[0] == "nvrtc_rows"
    name, why = ways(backend.array(np.ones((6, 64), np.float32), "unaligned"), x)
    assert name == "nvrtc_shifted"
    assert "x is at an address that is no multiple of 16" in why
    few = backend.array(np.ones((6, 3), np.float32), "unaligned")
    assert ways(few, few)[0] == "nvrtc_scattered"


# ---- GPU sources, without a GPU ------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", COMPUTED)
def test_sources_compile(dtype, arch):
    """NVRTC needs no GPU."""
    pytest.importorskip("cuda.core")
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except Exception:
        pytest.skip("no NVRTC")
    code = "float t = exp(-abs(x)); y = x < 0 ? t / (1 + t) : a * fma(b, 2, t); z = t > 0.5; n += b"
    real = "float64" if dtype == "float64" else "float32"
    kernel = Program("test", code).typed(
        {"x": COMPUTED[dtype], "b": "int32", "n": "int64", "a": real}, real
    )
    for shape, strides in (((4096,), (1,)), ((64, 32), (64, 1)), ((7, 5, 3), (15, 3, 1)),
                           ((7, 5, 333), (3000, 400, 1)), ((2**31, 5), (7, 1))):  # fmt: skip
        operands = [
            elementwise_cuda.Operand(0, name, kind, name in "xbn", name in "yzn", 4096, strides)
            for name, kind in (("y", dtype), ("z", "bool"), ("n", "int64"), ("x", dtype),
                               ("b", "int32"))
        ]  # fmt: skip
        layout, _ = elementwise_cuda.choose(shape, operands)
        source = elementwise_cuda.source_of(kernel, layout, operands, {"a": real})
        assert elementwise_cuda.compile(source, arch).code


def test_prepared_divisions():
    rng = np.random.default_rng(1)
    for n in (1, 2, 3, 7, 500, 2**20 - 1, 2**31 - 1, *rng.integers(2, 2**31, 50).tolist()):
        multiplier, shift = elementwise_cuda.divisor(n)
        assert multiplier < 2**32
        for i in (0, 1, n - 1, n, 2**31 - 1, *rng.integers(0, 2**31, 50).tolist()):
            if i < 2**31:
                assert (i * multiplier) >> shift == i // n


# ---- Calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_frameworks(framework, rng):
    array = pytest.importorskip({"torch": "torch", "jax": "jax.numpy"}[framework])
    x = rng.standard_normal((3, 5)).astype("f4")
    given = array.from_numpy(x) if framework == "torch" else array.asarray(x)
    y = dlkern.elementwise(LEAKY)(given, 0.5)
    assert type(y) is type(given)
    np.testing.assert_array_equal(np.asarray(y), np.where(x > 0, x, x * np.float32(0.5)))


def test_positional_and_named(backend):
    x = backend.array(np.array([-2.0, 4.0]))
    f = dlkern.elementwise(LEAKY, inputs=("a", "x"))
    assert (f.inputs, f.outputs) == (("a", "x"), ("y",))
    for y in (f(0.5, x), f(x=x, a=0.5), f(0.5, x=x)):
        np.testing.assert_array_equal(backend.raw(y), [-1, 4])
    a = backend.array(np.array([0.25, 0.5]))
    np.testing.assert_array_equal(backend.raw(f(a, x)), [-0.5, 4])


def test_several_out(backend):
    x = backend.array(np.ones(4, np.float32))
    f = dlkern.elementwise("y = x + 1; z = x + 2")
    z = backend.empty((4,), "float32")
    y, same = f(x, out=(None, z))
    assert same is z
    np.testing.assert_array_equal(backend.raw(y), np.full(4, 2))
    np.testing.assert_array_equal(backend.raw(z), np.full(4, 3))
    f = dlkern.elementwise("y = x + 1")
    assert f(x, out=x) is x
    np.testing.assert_array_equal(backend.raw(x), np.full(4, 2))


ONES = np.ones((2, 3), np.float32)
TWO = "y = x + b; z = x"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: dlkern.elementwise(LEAKY)(a(ONES)), TypeError, "elementwise: a is missing"),
        (lambda a: dlkern.elementwise(LEAKY)(a(ONES), 1, 2), TypeError, "3 inputs are given"),
        (lambda a: dlkern.elementwise(LEAKY)(a(ONES), 1, a=2), TypeError, "a is given twice"),
        (lambda a: dlkern.elementwise(LEAKY)(a(ONES), b=2), TypeError, "'b' is no input of"),
        (lambda a: dlkern.elementwise(LEAKY)(1, 2), TypeError, "no array is given"),
        (lambda a: dlkern.elementwise(LEAKY)("x", 2), TypeError, "x is str"),
        (lambda a: dlkern.elementwise(LEAKY)(a(ONES), 1j), TypeError, "a is complex"),
        (lambda a: dlkern.elementwise(LEAKY)(a(ONES.astype("c8")), 1), TypeError,
         "x.dtype is complex64"),
        (lambda a: dlkern.elementwise(LEAKY)(a(ONES), 2**70), ValueError, "integer of 64 bits"),
        (lambda a: dlkern.elementwise(TWO)(a(ONES), a(np.ones(2, "f4"))), ValueError,
         r"b.shape is \[2\], expected one that broadcasts with \[2, 3\]"),
        (lambda a: dlkern.elementwise(TWO)(a(ONES), 1, out=(None,)), ValueError,
         "out has 1 arrays, expected 2: y, z"),
        (lambda a: dlkern.elementwise(TWO)(a(ONES), 1, out=(None, a(ONES[0]))), ValueError,
         r"out\[1\].shape is \[3\], expected \[2, 3\]"),
        (lambda a: dlkern.elementwise("x += 1")(1), TypeError, "x is updated in place"),
        (lambda a: dlkern.elementwise("x += b")(a(ONES[0]), a(ONES)), ValueError,
         r"x.shape is \[3\], expected \[2, 3\]"),
        (lambda a: dlkern.elementwise(LEAKY, inputs=("x",)), ValueError, "inputs is"),
        (lambda a: dlkern.elementwise(LEAKY, dtypes={"x": "float32"}), ValueError, "no output"),
        (lambda a: dlkern.elementwise(LEAKY, dtypes={"y": "int4"}), TypeError, "no array has"),
    ],
)  # fmt: skip
def test_wrong_arguments(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.array)


def test_overlap_is_refused(backend):
    base = backend.array(np.zeros(9, np.float32))
    with pytest.raises(ValueError, match="out overlaps x"):
        dlkern.elementwise("y = x")(base[:-1], out=base[1:])
    with pytest.raises(ValueError, match="overlaps"):
        dlkern.elementwise("y = x; z = x")(backend.array(ONES[0]), out=(base[:3], base[1:4]))


@pytest.mark.parametrize(
    ("code", "where", "message"),
    [
        ("y = (x + 1", "line 1, column 11", "expected ')' before end of the code"),
        ("y = x +", "line 1, column 8", "expected an expression"),
        ("y = x;\nz = x +* 2", "line 2, column 8", "expected an expression before '*'"),
        ("y = foo(x)", "line 1, column 5", "'foo' is no function"),
        ("y = sin(x, 2)", "line 1, column 5", "sin takes 1 arguments, 2 given"),
        ("y = x # 1", "line 1, column 7", "unexpected character '#'"),
        ("y == x", "line 1, column 3", "expected '=' before '=='"),
        ("y = 08", "line 1, column 5", "octal"),
        ("float t = x", "line 1, column 7", "nothing is computed"),
        ("float t = x; float t = 2; y = t", "line 1, column 20", "'t' is declared twice"),
        ("exp = x", "line 1, column 1", "'exp' cannot be assigned to"),
        ("y = x ? 1", "line 1, column 10", "expected ':'"),
        ("", "line 1, column 1", "expected a statement"),
    ],
)
def test_bad_code_is_shown(code, where, message):
    with pytest.raises(ValueError) as caught:
        dlkern.elementwise(code)(np.ones(2, np.float32))
    text = str(caught.value)
    assert f"elementwise: {where}: " in text
    assert message in text
    assert text.splitlines()[-1].strip() == "^"


def test_integers_only(backend):
    with pytest.raises(TypeError, match="column 7: % takes integers, one operand is float"):
        dlkern.elementwise("y = x % 2")(backend.array(ONES))


def test_threads(backend, rng):
    x = rng.standard_normal((50, 40)).astype("f4")
    f, failures = dlkern.elementwise("y = x * a + exp(x)"), []
    expected = {a: backend.raw(f(backend.array(x), float(a))) for a in range(4)}

    def work(a):
        try:
            given = backend.array(x)
            for _ in range(50):
                y = f(given, float(a))
            np.testing.assert_array_equal(backend.raw(y), expected[a])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(a,)) for a in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_row_bits_do_not_depend_on_the_batch(backend, rng):
    x = rng.standard_normal((100, 40)).astype("f4")
    f = dlkern.elementwise("y = exp(x) / (1 + x * x)")
    whole = backend.raw(f(backend.array(x)))
    np.testing.assert_array_equal(backend.raw(f(backend.array(x[7:9]))), whole[7:9])
    np.testing.assert_array_equal(backend.raw(f(backend.array(x[:, 3:20]))), whole[:, 3:20])


@pytest.mark.gpu
def test_captured_and_replayed(gpu):
    torch = pytest.importorskip("torch")
    pytest.importorskip("cuda.core")
    x, out = torch.ones(1000, device="cuda"), torch.empty(1000, device="cuda")
    f = dlkern.elementwise("y = 2 * x + 1")
    f(x, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f(x, out=out)
    x.fill_(5)
    graph.replay()
    assert out.eq(11).all()


@pytest.mark.gpu
def test_side_stream(gpu):
    torch = pytest.importorskip("torch")
    pytest.importorskip("cuda.core")
    x, out = torch.zeros(1000, device="cuda"), torch.empty(1000, device="cuda")
    f = dlkern.elementwise("y = x + 1")
    f(x, out=out)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(3)
        f(x, out=out)
    stream.synchronize()
    assert out.eq(4).all()


@pytest.mark.gpu
def test_gpu_agrees_with_cpu(gpu, rng):
    pytest.importorskip("cuda.core")
    x = rounded(rng.standard_normal((9, 33)), "bfloat16")
    code = "y = x * x - 0.5 * x / (1 + x * x); n = (int)(x * 10) / 3"
    on_cpu, on_gpu = (run(get_backend(name), code, x) for name in ("cpu", gpu_name()))
    for a, b in zip(on_cpu, on_gpu, strict=True):
        np.testing.assert_array_equal(a, b)  # nothing is contracted


def test_cached_on_disk(tmp_path, monkeypatch):
    pytest.importorskip("cuda.core")
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except Exception:
        pytest.skip("no NVRTC")
    monkeypatch.setenv("DLKERN_CACHE", str(tmp_path))
    source = 'extern "C" __global__ void dlkern_elementwise() {}'
    first = elementwise_cuda.compile(source, "sm_90").code
    assert list(tmp_path.glob("kernels/**/*"))
    assert elementwise_cuda.compile(source, "sm_90").code == first


def test_ml_dtypes_through_numpy(rng):
    x = rng.standard_normal((4, 6)).astype(ml_dtypes.bfloat16)
    y = dlkern.elementwise("y = x + x")(x[:, ::-2])
    np.testing.assert_array_equal(y, (x[:, ::-2] + x[:, ::-2]))
