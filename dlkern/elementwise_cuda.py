"""Element-wise kernels on a GPU: C++ source, NVRTC through cuda.core, a cache on disk, launches.

One source text has one kernel. Which one it is depends on how the arrays lie:

``nvrtc_flat``       everything contiguous and aligned: packs of 16 bytes of the widest array
``nvrtc_rows``       the same where only the innermost dimension is contiguous (or repeated)
``nvrtc_shifted``    rows at any address: packs are aligned where they are written, and read by
                     the two aligned accesses around them
``nvrtc_scattered``  any strides and alignment: single elements

Positions are divided into indices by multiplications that are prepared on the host, in 32 bits;
where those are too few by plain divisions of 64 bits. In rows each thread has its row and column
without one, but for what the row is divided into.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import Any, NamedTuple

from dlkern import _dlkern, _frameworks, tuning
from dlkern.elementwise_language import COMPUTED, TYPES, Kernel

THREADS, THREAD_BITS = 128, 7

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

    way: str  # "flat", "rows", "shifted" or "scattered"
    width: int  # elements of a pack
    ndim: int
    wide: bool  # scattered: positions of 64 bits
    repeated: tuple[bool, ...]  # operands of which one element stands for a whole pack

    @property
    def in_rows(self) -> bool:
        return self.way in ("rows", "shifted")


# ---- The choice ----------------------------------------------------------------------------------


def _why_no_rows(shape: tuple[int, ...], operands: list[Operand]) -> str | None:
    for o in operands:
        inner = o.strides[-1] if shape else 1
        if inner != 1 and (inner != 0 or o.is_written):
            return f"{o.name} has an inner stride of {inner}"
    if max(shape[-1:] or (1,)) >= 2**31 or math.prod(shape[:-1]) >= 2**31:
        return "there are 2^31 rows or columns" if len(shape) > 1 else None
    return None


def _why_not_aligned(shape: tuple[int, ...], operands: list[Operand], width: int) -> str | None:
    for o in operands:
        if shape and o.strides[-1] == 0:
            continue
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
    wide = max(math.prod(shape), *reach) >= 2**31 - 2**16
    repeated = tuple(bool(shape) and o.strides[-1] == 0 for o in operands)
    why_no_rows = _why_no_rows(shape, operands)
    why_not = why_no_rows or _why_not_aligned(shape, operands, width)
    told = [f"nvrtc_flat: {why_not}", f"nvrtc_rows: {why_not}"]
    if why_not is None:
        if len(shape) <= 1 and not any(repeated):
            return Layout("flat", width, 1, True, repeated), "nvrtc_flat: chosen"
        told = ["nvrtc_flat: not all arrays are contiguous", "nvrtc_rows: chosen"]
        return Layout("rows", width, len(shape), False, repeated), "\n".join(told)
    # In shorter rows too many packs are at the ends.
    length = shape[-1] if shape else 1
    if why_no_rows is None and 8 * width <= length < 2**31:
        return Layout("shifted", width, len(shape), False, repeated), "\n".join(
            [*told, "nvrtc_shifted: chosen"]
        )
    why_not_shifted = why_no_rows or f"rows of {length}"
    told += [f"nvrtc_shifted: {why_not_shifted}", "nvrtc_scattered: chosen"]
    nothing = (False,) * len(operands)
    return Layout("scattered", 1, max(len(shape), 1), wide, nothing), "\n".join(told)


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
    const Whole whole = *reinterpret_cast<const Whole*>(v);
    if constexpr (sizeof(T) * W == 16) {  // which compilers take apart
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                   : : "l"(p), "r"(whole.x), "r"(whole.y), "r"(whole.z), "r"(whole.w) : "memory");
    } else {
      *reinterpret_cast<Whole*>(p) = whole;
    }
  }
};
// At any address: the two aligned accesses around it, all of which may be read.
template <class T, int W> __device__ void load_around(const T* p, Pack<T, W>& pack) {
  constexpr int kBytes = sizeof(T) * W, K = kBytes / 4;
  if constexpr (kBytes < 4) {
#pragma unroll
    for (int k = 0; k < W; ++k) pack.v[k] = p[k];
  } else {
    union { typename Access<kBytes>::type whole[2]; u32 word[2 * K]; } all;
    const int offset = static_cast<int>(reinterpret_cast<u64>(p) % kBytes);
    const char* from = reinterpret_cast<const char*>(p) - offset;
    all.whole[0] = all.whole[1] = reinterpret_cast<const typename Access<kBytes>::type*>(from)[0];
    if (offset) all.whole[1] = reinterpret_cast<const typename Access<kBytes>::type*>(from)[1];
#pragma unroll
    for (int step = K / 2; step > 0; step /= 2) {
#pragma unroll
      for (int k = 0; k < K + step; ++k) {
        all.word[k] = offset & 4 * step ? all.word[k + step] : all.word[k];
      }
    }
    union { Pack<T, W> pack; u32 word[K]; } shifted;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      shifted.word[k] = __funnelshift_r(all.word[k], all.word[k + 1], 8 * (offset & 3));
    }
    pack = shifted.pack;
  }
}
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


def _division(i: str, d: int, index: str, wide: bool) -> str:
    if wide:
        return f"{i} / n{d}"
    return f"static_cast<{index}>(static_cast<u64>({i}) * static_cast<u64>(m{d}) >> s{d})"


def _offsets(i: str, dims: int, count: int, wide: bool) -> list[str]:
    """Statements: at[n] is the offset of position `i` over the first `dims` dimensions."""
    index = "long long" if wide else "int"
    body = [f"long long at[{count}] = {{}};", f"{index} i = {i};"]
    for d in range(dims - 1, 0, -1):
        body += [f"const {index} q{d} = {_division('i', d, index, wide)};",
                 f"const {index} r{d} = i - q{d} * static_cast<{index}>(n{d});"]  # fmt: skip
        body += [f"at[{n}] += r{d} * stride{n}_{d};" for n in range(count)]
        body.append(f"i = q{d};")
    return body + [f"at[{n}] += i * stride{n}_0;" for n in range(count)] if dims > 0 else body[:1]


def _parameters(layout: Layout, operands: list[Operand], scalars: dict[str, str]) -> str:
    """In the order of `arguments_of`."""
    found = ["const long long numel"]
    for n, o in enumerate(operands):
        const = "" if o.is_written else "const "
        found.append(f"{const}{_CPP[o.dtype]}* p{n}")
    if layout.in_rows:
        found += [
            f"const long long {name}" for name in ("rows", "length", "bits", "n0", "m0", "s0")
        ]
    if layout.way != "flat":
        for d in range(1, layout.ndim - layout.in_rows):
            found += [f"const long long n{d}", f"const long long m{d}", f"const long long s{d}"]
        for n in range(len(operands)):
            found += [f"const long long stride{n}_{d}" for d in range(layout.ndim - layout.in_rows)]
    found += [f"const {TYPES[type]} v_{name}" for name, type in scalars.items()]
    return ",\n    ".join(found)


def items_of(layout: Layout, operands: list[Operand]) -> int:
    """Packs of each thread: one or two; single elements up to 48 bytes."""
    size = sum(layout.width * ITEMSIZE[o.dtype] for o in operands if o.is_read)
    if layout.way == "scattered":
        return min(max(48 // max(size, 1), 1), 8)
    return 2 if size <= 16 and layout.way != "shifted" else 1


def _begin(layout: Layout, operands: list[Operand]) -> list[str]:
    """Statements: where a thread begins.

    ``first`` is the first element of its first pack, in its row where there are rows; ``next`` the
    distance of the others; ``left`` the elements from it on; ``at`` the offsets of the row.
    """
    block = "static_cast<long long>(blockIdx.x) * kItems"
    if not layout.in_rows:
        return [
            f"  const long long first = ({block} * {THREADS} + threadIdx.x) * W;",
            "  const long long left = numel - first;",
            f"  constexpr int next = {THREADS} * W;",
        ]
    lines = [
        "  const int thread = threadIdx.x, across = 1 << bits;",
        f"  const int group = {_division('blockIdx.x', 0, 'int', False)};",
        "  const int chunk = blockIdx.x - group * static_cast<int>(n0);",
        f"  const int row = (group << {THREAD_BITS} - bits) + (thread >> bits), next = W << bits;",
        "  if (row >= rows) return;",
        *(f"  {line}" for line in _offsets("row", layout.ndim - 1, len(operands), False)),
        "  int first = (chunk * kItems * across + (thread & across - 1)) * W;",
    ]
    if layout.way == "shifted":
        n = next(n for n, o in enumerate(operands) if o.is_written)
        size = ITEMSIZE[operands[n].dtype]
        lines += [
            f"  first -= static_cast<int>(reinterpret_cast<u64>(p{n} + at[{n}]) / {size} % W);",
            "  if (first >= length) return;",
        ]
    return [*lines, "  const int left = static_cast<int>(length) - first;"]


def source_of(
    kernel: Kernel, layout: Layout, operands: list[Operand], scalars: dict[str, str]
) -> str:
    """The C++ text; see the names of its parameters in `arguments_of`."""
    count, width, items = len(operands), layout.width, items_of(layout, operands)
    shifted, scattered = layout.way == "shifted", layout.way == "scattered"
    reads = [n for n, o in enumerate(operands) if o.is_read]
    writes = [n for n, o in enumerate(operands) if o.is_written]

    def place(n: int, k: str = "") -> str:
        """The address of element k of pack i."""
        if scattered:
            return f"p{n} + to[i][{n}]"
        start = f"at[{n}] + " if layout.in_rows else ""
        repeated = layout.in_rows and layout.repeated[n]
        return f"p{n} + {start}{'0' if repeated else 'first + i * next' + k}"

    def load(n: int) -> str:
        if layout.repeated[n]:
            one = f"const auto one{n} = *({place(n)});"
            return f"{{ {one} for (int k = 0; k < W; ++k) in{n}[i].v[k] = one{n}; }}"
        return f"load_around({place(n)}, in{n}[i]);" if shifted else f"in{n}[i].load({place(n)});"

    # Of pack i: whether all of it is there (and others on either side), and element k.
    whole = "first >= W && left >= 2 * W" if shifted else "left - i * next >= W"
    there = "first + k >= 0 && k < left" if shifted else "i * next + k < left"
    lines = [
        _PRELUDE,
        f'extern "C" __global__ void __launch_bounds__({THREADS}) dlkern_elementwise(\n    '
        + _parameters(layout, operands, scalars)
        + ") {",
        f"  constexpr int W = {width}, kItems = {items};",
        *_begin(layout, operands),
        *(f"  Pack<{_CPP[operands[n].dtype]}, W> in{n}[kItems];" for n in reads),
    ]
    if scattered:
        position = f"{'first' if layout.wide else 'static_cast<int>(first)'} + item * next"
        lines += [
            f"  long long to[kItems][{count}];",
            "#pragma unroll",
            "  for (int item = 0; item < kItems; ++item) {",
            "    if (item * next >= left) break;",
            *(f"    {line}" for line in _offsets(position, layout.ndim, count, layout.wide)),
            f"    for (int n = 0; n < {count}; ++n) to[item][n] = at[n];",
            "  }",
        ]
    lines += [
        "#pragma unroll",
        "  for (int i = 0; i < kItems; ++i) {",
        f"    if ({whole}) {{",
        *(f"      {load(n)}" for n in reads),
        "    } else {",
        "#pragma unroll",
        "      for (int k = 0; k < W; ++k) {",
        f"        if ({there}) {{",
        *(f"          in{n}[i].v[k] = *({place(n, ' + k')});" for n in reads),
        "        }",
        "      }",
        "    }",
        "  }",
        "#pragma unroll",
        "  for (int i = 0; i < kItems; ++i) {",
        "    if (i * next >= left) return;",
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
        aligned = f" && reinterpret_cast<u64>({place(n)}) % sizeof(pack) == 0" if shifted else ""
        lines += [
            "    {",
            f"      Pack<{storage}, W> pack;",
            f"      Storing<{storage}, W, {type}>::run(pack, to{n});",
            f"      if ({whole}{aligned}) {{",
            f"        pack.store({place(n)});",
            "      } else {",
            "#pragma unroll",
            "        for (int k = 0; k < W; ++k) {",
            f"          if ({there}) *({place(n, ' + k')}) = pack.v[k];",
            "        }",
            "      }",
            "    }",
        ]
    return "\n".join([*lines, "  }", "}", ""])


def divisor(n: int) -> tuple[int, int]:
    """Multiplier and shift that divide positions below 2^31 by n, where 1 <= n < 2^31.

    The quotient is the product shifted by that; see src/core/fast_div.h.
    """
    shift = 31 + (n - 1).bit_length()
    return -(-(1 << shift) // n), shift


class Grid(NamedTuple):
    blocks: int
    bits: int  # in rows: of a block, 2 to the power of it threads are side by side
    chunks: int  # in rows: blocks of each


def grid_of(shape: tuple[int, ...], layout: Layout, operands: list[Operand]) -> Grid:
    items = items_of(layout, operands)
    if not layout.in_rows:
        return Grid(-(-math.prod(shape) // (THREADS * layout.width * items)), 0, 1)
    shift = layout.width - 1 if layout.way == "shifted" else 0
    packs = -(-(shape[-1] + shift) // layout.width)
    # A whole block side by side, or fewer threads where many of them would have nothing to do.
    idle = {bits: -packs % (items << bits) for bits in range(THREAD_BITS, 2, -1)}
    bits = next((bits for bits, some in idle.items() if some <= packs // 8), 3)
    chunks = -(-packs // (items << bits))
    return Grid(chunks * -(-math.prod(shape[:-1]) // (THREADS >> bits)), bits, chunks)


def arguments_of(
    shape: tuple[int, ...], layout: Layout, operands: list[Operand], grid: Grid
) -> list[int]:
    """Extents, divisors and strides, as the source wants them."""
    if layout.way == "flat":
        return []
    found: list[int] = []
    if layout.in_rows:
        found += [math.prod(shape[:-1]), shape[-1], grid.bits, grid.chunks, *divisor(grid.chunks)]
    for n in shape[1 : layout.ndim - layout.in_rows]:
        found += [n, *((0, 0) if layout.wide else divisor(n))]
    for o in operands:
        found += (o.strides or (0,))[: layout.ndim - layout.in_rows]
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


def prepare(
    kernel: Kernel,
    shape: tuple[int, ...],
    numel: int,
    layout: Layout,
    operands: list[Operand],
    scalars: dict[str, str],
    device_id: int,
    made: list[tuple[int, str, tuple[int, ...], str]],
) -> _dlkern.ElementwiseLaunch:
    """The kernel, compiled where that has not been done, for arrays that lie in this way.

    `made`: the outputs that are made for each call.
    """
    grid = grid_of(shape, layout, operands)
    with _frameworks.current_device(device_id):
        compiled = kernel_for(source_of(kernel, layout, operands, scalars), device_id)
    return _dlkern.ElementwiseLaunch(
        compiled, int(compiled.handle), grid.blocks, THREADS, numel,
        [o.slot for o in operands], tuple(arguments_of(shape, layout, operands, grid)), made,
    )  # fmt: skip
