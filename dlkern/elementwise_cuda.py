"""Element-wise kernels on a GPU: C++ source, NVRTC through cuda.core, a cache on disk, launches.

One source text has one kernel. Which one it is depends on how the arrays lie:

``nvrtc_flat``       everything contiguous and aligned: packs of 16 bytes of the widest array
``nvrtc_rows``       the same where only the innermost dimension is contiguous (or repeated)
``nvrtc_scattered``  any strides and alignment: single elements

Positions are divided into indices by multiplications that are prepared on the host, in 32 bits;
where those are too few by plain divisions of 64 bits.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, NamedTuple

import numpy as np

from dlkern import _frameworks, tuning
from dlkern.elementwise_language import COMPUTED, TYPES, Kernel

THREADS = 128

ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8,
    "uint64": 8, "bool": 1,
}  # fmt: skip


class Operand(NamedTuple):
    """One array: how it is used, and where it lies along the walk."""

    slot: int  # among the arrays of the call
    name: str
    dtype: str
    is_read: bool
    is_written: bool
    address: int
    strides: tuple[int, ...]


class Layout(NamedTuple):
    """What the source depends on beside the expression."""

    way: str  # "flat", "rows" or "scattered"
    width: int  # elements of a pack
    ndim: int
    wide: bool  # positions of 64 bits
    repeated: tuple[bool, ...]  # operands of which one element stands for a whole pack


# ---- The choice ----------------------------------------------------------------------------------


def _why_not_packs(shape: tuple[int, ...], operands: list[Operand], width: int) -> str | None:
    for o in operands:
        inner = o.strides[-1] if shape else 1
        if inner == 0 and not o.is_written:
            continue
        if inner != 1:
            return f"{o.name} has an inner stride of {inner}"
        size = width * ITEMSIZE[o.dtype]
        if o.address % size:
            return f"{o.name} is at an address that is no multiple of {size}"
        if any(stride % width for stride in o.strides[:-1]):
            return f"rows of {o.name} are not multiples of {size} bytes apart"
    if len(shape) > 1 and shape[-1] % width:
        return f"the last extent is {shape[-1]}, no multiple of {width}"
    return None


def choose(shape: tuple[int, ...], operands: list[Operand]) -> tuple[Layout, str]:
    """The layout, and a line for each way that was looked at."""
    width = 16 // max(ITEMSIZE[o.dtype] for o in operands)
    reach = [sum((n - 1) * abs(s) for n, s in zip(shape, o.strides, strict=True)) for o in operands]
    numel = int(np.prod(shape, dtype=object)) if shape else 1
    wide = max(numel, *reach) >= 2**31 - 2**16
    why_not = _why_not_packs(shape, operands, width)
    if why_not:
        told = f"nvrtc_flat: {why_not}\nnvrtc_rows: {why_not}\nnvrtc_scattered: chosen"
        nothing = (False,) * len(operands)
        return Layout("scattered", 1, max(len(shape), 1), wide, nothing), told
    repeated = tuple(bool(shape) and o.strides[-1] == 0 for o in operands)
    if len(shape) > 1 or any(repeated):
        why = "not all arrays are contiguous"
        told = f"nvrtc_flat: {why}\nnvrtc_rows: chosen"
        return Layout("rows", width, len(shape), wide, repeated), told
    return Layout("flat", width, 1, True, repeated), "nvrtc_flat: chosen"


# ---- The source ----------------------------------------------------------------------------------

_PRELUDE = """\
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct float16 { u16 bits; };
struct bfloat16 { u16 bits; };
template <int kMantissa> struct float8 { unsigned char bits; };  // 3: e4m3fn, 2: e5m2

template <class T> struct Number {  // an element, and the type it is computed with
  template <class V> static __device__ V load(T v) { return static_cast<V>(v); }
  template <class V> static __device__ T store(V v) { return static_cast<T>(v); }
};
template <> struct Number<float16> {
  template <class V> static __device__ V load(float16 v) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
    return f;
  }
  template <class V> static __device__ float16 store(V v) {
    float16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(static_cast<float>(v)));
    return h;
  }
};
template <> struct Number<bfloat16> {
  template <class V> static __device__ V load(bfloat16 v) {
    return __uint_as_float(static_cast<u32>(v.bits) << 16);
  }
  template <class V> static __device__ bfloat16 store(V v) {
    const float f = static_cast<float>(v);
    const u32 bits = __float_as_uint(f);
    const u32 even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<u16>(f != f ? (bits >> 16) | 0x40u : even)};
  }
};

template <int kMantissa> struct Number<float8<kMantissa>> {  // stored as src/core/float8.h says
  static constexpr bool k4 = kMantissa == 3;  // 4 bits of exponent
  template <class V> static __device__ V load(float8<kMantissa> v) {
    // A binary16 has the bits of e5m2 at its upper end, and room for e4m3 with another bias.
    const u32 magnitude = v.bits & 0x7fu, sign = (v.bits & 0x80u) << 8;
    const float16 half = {static_cast<u16>(sign | magnitude << (k4 ? 7 : 8))};
    const float f = Number<float16>::load<float>(half) * (k4 ? 256.0f : 1.0f);
    return k4 && magnitude == 0x7fu ? __uint_as_float(0x7fc00000u) : f;
  }
  template <class V> static __device__ float8<kMantissa> store(V v) {
    const float f = static_cast<float>(v);
#if __CUDA_ARCH__ >= 890
    u16 pair;
    if constexpr (k4) {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
    } else {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
    }
    return {static_cast<unsigned char>(pair)};
#else
    constexpr u32 kBias = k4 ? 7 : 15, kLargest = k4 ? 0x7eu : 0x7bu, kShift = 23 - kMantissa;
    const u32 bits = __float_as_uint(f), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    u32 code = 0x7fu;
    if (magnitude < 128u - kBias << 23) {
      // Added to a number whose ulp is the smallest subnormal: the sum's last bits are the code.
      constexpr u32 kMagic = 151u - kBias - kMantissa << 23;
      code = __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(kMagic)) - kMagic;
    } else if (magnitude <= 0x7f800000u) {
      const u32 even = (1u << kShift - 1) - 1 + (magnitude >> kShift & 1u);
      code = magnitude - (127u - kBias << 23) + even >> kShift;
      code = code < kLargest ? code : kLargest;
    }
    return {static_cast<unsigned char>(sign | code)};
#endif
  }
};

template <int kBytes> struct Access;  // the type of one access
template <> struct Access<16> { typedef uint4 type; };
template <> struct Access<8> { typedef uint2 type; };
template <> struct Access<4> { typedef u32 type; };
template <> struct Access<2> { typedef u16 type; };
template <> struct Access<1> { typedef unsigned char type; };

template <class T, int W> struct alignas(sizeof(T) * W) Pack {
  T v[W];
  typedef typename Access<sizeof(T) * W>::type Whole;
  __device__ void load(const T* p) {
    *reinterpret_cast<Whole*>(v) = *reinterpret_cast<const Whole*>(p);
  }
  __device__ void store(T* p) const {
    *reinterpret_cast<Whole*>(p) = *reinterpret_cast<const Whole*>(v);
  }
};
// Pairs are converted together, where there is an instruction for it.
template <class T, int W, class V> struct Storing {
  static __device__ void run(Pack<T, W>& to, const V (&from)[W]) {
#pragma unroll
    for (int k = 0; k < W; ++k) to.v[k] = Number<T>::store(from[k]);
  }
};
#if __CUDA_ARCH__ >= 800
template <int W> struct Storing<bfloat16, W, float> {
  static __device__ void run(Pack<bfloat16, W>& to, const float (&from)[W]) {
    if constexpr (W == 1) {
      to.v[0] = Number<bfloat16>::store(from[0]);
    } else {
      u32 words[W / 2];
#pragma unroll
      for (int k = 0; k < W / 2; ++k) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
            : "=r"(words[k]) : "f"(from[2 * k + 1]), "f"(from[2 * k]));
        to.v[2 * k].bits = static_cast<u16>(words[k]);
        to.v[2 * k + 1].bits = static_cast<u16>(words[k] >> 16);
      }
    }
  }
};
#endif
"""

_CPP = {
    "float16": "float16", "bfloat16": "bfloat16", "float8_e4m3fn": "float8<3>",
    "float8_e5m2": "float8<2>", "int8": "signed char", "uint8": "unsigned char", "int16": "short",
    "uint16": "u16", **TYPES,
}  # fmt: skip


def _offsets(layout: Layout, count: int) -> str:
    """A function that gives the offset of position i in each array."""
    index = "long long" if layout.wide else "int"
    body = [f"{index} r;"] if layout.ndim > 1 else []
    for d in range(layout.ndim - 1, 0, -1):
        upper = f"__umulhi(i, static_cast<u32>(m{d}))"
        quotient = f"i / n{d}" if layout.wide else f"static_cast<int>({upper} >> s{d})"
        body += [f"const {index} q{d} = {quotient};", f"r = i - q{d} * static_cast<{index}>(n{d});"]
        body += [f"at[{n}] += r * static_cast<{index}>(stride{n}_{d});" for n in range(count)]
        body.append(f"i = q{d};")
    body += [f"at[{n}] += i * static_cast<{index}>(stride{n}_0);" for n in range(count)]
    return (
        f"  const auto offsets = [&](long long position, {index} (&at)[{count}]) {{\n"
        f"    {index} i = static_cast<{index}>(position);\n"
        f"    for (int n = 0; n < {count}; ++n) at[n] = 0;\n    " + "\n    ".join(body) + "\n  };\n"
    )


def _parameters(layout: Layout, operands: list[Operand], scalars: dict[str, str]) -> str:
    found = ["const long long numel"]
    for n, o in enumerate(operands):
        const = "" if o.is_written else "const "
        found.append(f"{const}{_CPP[o.dtype]}* p{n}")
    if layout.way != "flat":
        for d in range(1, layout.ndim):
            found += [f"const long long n{d}", f"const long long m{d}", f"const long long s{d}"]
        for n in range(len(operands)):
            found += [f"const long long stride{n}_{d}" for d in range(layout.ndim)]
    found += [f"const {TYPES[type]} v_{name}" for name, type in scalars.items()]
    return ",\n    ".join(found)


def items_of(layout: Layout, operands: list[Operand]) -> int:
    """Packs of each thread: 32 to 64 bytes of inputs on their way."""
    size = sum(layout.width * ITEMSIZE[o.dtype] for o in operands if o.is_read)
    return min(max(48 // max(size, 1), 1), 2 if layout.width > 1 else 8)


def source_of(
    kernel: Kernel, layout: Layout, operands: list[Operand], scalars: dict[str, str]
) -> str:
    """The C++ text; see the names of its parameters in `arguments_of`."""
    count, width, items = len(operands), layout.width, items_of(layout, operands)
    flat = layout.way == "flat"
    index = "long long" if flat or layout.wide else "int"
    at = "" if flat else "offsets(first, at[i]);"
    where = [("first" if flat else f"at[i][{n}]") for n in range(count)]
    reads = [n for n, o in enumerate(operands) if o.is_read]
    writes = [n for n, o in enumerate(operands) if o.is_written]

    def load(n: int) -> str:
        if layout.repeated[n]:
            one = f"const auto one{n} = p{n}[{where[n]}];"
            return f"{{ {one} for (int k = 0; k < W; ++k) in{n}[i].v[k] = one{n}; }}"
        return f"in{n}[i].load(p{n} + {where[n]});"

    def load_some(n: int) -> str:
        place = where[n] if layout.repeated[n] else f"{where[n]} + k"
        return f"in{n}[i].v[k] = p{n}[{place}];"

    lines = [
        _PRELUDE,
        f'extern "C" __global__ void __launch_bounds__({THREADS}) dlkern_elementwise(\n    '
        + _parameters(layout, operands, scalars)
        + ") {",
        f"  constexpr int W = {width}, kItems = {items}, kThreads = {THREADS};",
        "" if flat else _offsets(layout, count),
        "  const long long block = static_cast<long long>(blockIdx.x) * (kThreads * W * kItems);",
        "  const bool whole = block + kThreads * W * kItems <= numel;",
        *(f"  Pack<{_CPP[operands[n].dtype]}, W> in{n}[kItems];" for n in reads),
        "" if flat else f"  {index} at[kItems][{count}];",
        "#pragma unroll",
        "  for (int i = 0; i < kItems; ++i) {",
        "    const long long first = block + (i * kThreads + static_cast<int>(threadIdx.x)) * W;",
        "    if (whole) {",
        f"      {at}",
        *(f"      {load(n)}" for n in reads),
        "    } else if (first < numel) {",
        f"      {at}",
        "#pragma unroll",
        "      for (int k = 0; k < W; ++k) {",
        "        if (first + k < numel) {",
        *(f"          {load_some(n)}" for n in reads),
        "        }",
        "      }",
        "    }",
        "  }",
        "#pragma unroll",
        "  for (int i = 0; i < kItems; ++i) {",
        "    const long long first = block + (i * kThreads + static_cast<int>(threadIdx.x)) * W;",
        "    if (first >= numel) return;",
        *(f"    {TYPES[COMPUTED[operands[n].dtype]]} to{n}[W];" for n in writes),
        "#pragma unroll",
        "    for (int k = 0; k < W; ++k) {",
    ]
    for n in reads:
        type = TYPES[COMPUTED[operands[n].dtype]]
        storage = _CPP[operands[n].dtype]
        lines.append(
            f"      {type} v_{operands[n].name} = Number<{storage}>::load<{type}>(in{n}[i].v[k]);"
        )
    lines += [f"      {line}" for line in kernel.cpp().splitlines()]
    for n in writes:
        type = TYPES[COMPUTED[operands[n].dtype]]
        value = f"v_{operands[n].name}"
        cast = f"{value} != 0" if type == "bool" else f"static_cast<{type}>({value})"
        lines.append(f"      to{n}[k] = {cast};")
    lines.append("    }")
    for n in writes:
        storage, type = _CPP[operands[n].dtype], TYPES[COMPUTED[operands[n].dtype]]
        lines += [
            "    {",
            f"      Pack<{storage}, W> pack;",
            f"      Storing<{storage}, W, {type}>::run(pack, to{n});",
            "      if (first + W <= numel) {",
            f"        pack.store(p{n} + {where[n]});",
            "      } else {",
            "#pragma unroll",
            "        for (int k = 0; k < W; ++k) {",
            f"          if (first + k < numel) p{n}[{where[n]} + k] = pack.v[k];",
            "        }",
            "      }",
            "    }",
        ]
    return "\n".join([*lines, "  }", "}", ""])


def divisor(n: int) -> tuple[int, int]:
    """Multiplier and shift that divide positions below 2^31 by n, where 1 < n < 2^31.

    The quotient is the upper half of the product, shifted; see src/core/fast_div.h.
    """
    shift = 31 + (n - 1).bit_length()
    return -(-(1 << shift) // n), shift - 32


def arguments_of(shape: tuple[int, ...], layout: Layout, operands: list[Operand]) -> list[int]:
    """Extents, divisors and strides, as the source wants them."""
    if layout.way == "flat":
        return []
    found: list[int] = []
    for n in shape[1:]:
        found += [n, *((0, 0) if layout.wide else divisor(n))]
    for o in operands:
        found += o.strides or (0,)
    return found


# ---- Compiled kernels ----------------------------------------------------------------------------

_lock = threading.Lock()
_compiled: dict[tuple[str, str], Any] = {}


def _cuda_core() -> Any:
    try:
        import cuda.core
    except ImportError as error:
        raise ImportError(
            "element-wise kernels on a GPU are compiled through cuda-python: "
            "pip install cuda-core cuda-bindings"
        ) from error
    return cuda.core


@functools.cache
def _disk(folder: str) -> Any:
    """The cache on disk; None where it cannot be had."""
    from cuda.core.utils import FileStreamProgramCache

    try:
        return FileStreamProgramCache(folder)
    except OSError:
        return None


def compile(source: str, arch: str) -> Any:
    """Cubin of the source for an architecture such as "sm_90", from the cache where it is there."""
    core = _cuda_core()
    options = core.ProgramOptions(arch=arch, std="c++17", fma=False, name="dlkern_elementwise")
    cache = _disk(str(tuning.cache_folder() / "kernels"))
    return core.Program(source, "c++", options).compile("cubin", cache=cache)


def kernel_for(source: str, device_id: int) -> Any:
    """The compiled kernel. Its library is loaded into every context that launches it."""
    major, minor = _cuda_core().Device(device_id).compute_capability
    key = (source, f"sm_{major}{minor}")
    with _lock:
        found = _compiled.get(key)
        if found is None:
            found = _compiled[key] = compile(*key).get_kernel("dlkern_elementwise")
    return found


class Launch(NamedTuple):
    """A kernel with everything that does not change while the arrays lie in the same way."""

    kernel: Any
    config: Any
    numel: int
    order: list[int]  # of the arrays among the kernel's parameters
    arguments: tuple[int, ...]


def prepare(
    kernel: Kernel,
    shape: tuple[int, ...],
    numel: int,
    layout: Layout,
    operands: list[Operand],
    scalars: dict[str, str],
    device_id: int,
) -> Launch:
    """Compiles where that has not been done."""
    core = _cuda_core()
    per_block = THREADS * layout.width * items_of(layout, operands)
    with _frameworks.current_device(device_id):
        compiled = kernel_for(source_of(kernel, layout, operands, scalars), device_id)
    config = core.LaunchConfig(grid=-(-numel // per_block), block=THREADS)
    order = [o.slot for o in operands]
    return Launch(compiled, config, numel, order, tuple(arguments_of(shape, layout, operands)))


def run(
    launch: Launch,
    addresses: list[int],
    scalars: list[Any],
    device_id: int,
    stream: int,
) -> None:
    core = _cuda_core()
    with _frameworks.current_device(device_id):
        core.launch(
            _frameworks.stream_object(stream), launch.config, launch.kernel, launch.numel,
            *addresses, *launch.arguments, *scalars,
        )  # fmt: skip
