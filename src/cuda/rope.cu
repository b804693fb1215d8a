// Rotary position embedding: (a, b) -> (a cos t - b sin t, b cos t + a sin t) for the pairs of a head.
//
// A thread takes W neighbouring pairs, which are two accesses of 16 bytes where strides and addresses
// allow it, of up to kHeads heads of one position: their cosines and sines are the same. Elements that
// are not rotated are copied, two times W of a thread, unless y is x. Several tensors share a launch:
// a block finds its own by where each one's blocks begin. Without tables a block computes the
// frequencies once, as turns per position in float64, and a thread reduces its angles to a turn, so
// that they are exact for any position. Bound by memory.
#include "ops/rope.h"

#include <algorithm>
#include <cmath>

#include "core/fast_div.h"
#include "core/mixed.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/vec.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 256;
constexpr int kHeads = 4;    // of a thread
constexpr int kTensors = 8;  // of a launch

struct Position {
  const void* data;  // nullptr: counted from the offset
  bool wide;         // int64
  int64_t stride[2], offset;

  __device__ int64_t of(int64_t b, int64_t s) const {
    if (data == nullptr) return offset + s;
    const int64_t at = b * stride[0] + s * stride[1];
    return wide ? static_cast<const int64_t*>(data)[at] : static_cast<const int32_t*>(data)[at];
  }
};

// Tables of cosines and sines, in T or what it is computed in; data == nullptr: none.
template <class T>
struct Angles {
  using Acc = Accumulator<T>;
  const void *cos, *sin;
  bool wide;    // of type Acc
  bool vector;  // rows may be read 16 bytes at a time
  int64_t rows, cos_row, cos_step, sin_row, sin_step;
  double log2_base, rotary;
  Acc sign;

  // Of one row of a table: elements first to first + W - 1.
  template <class Element, int W>
  __device__ void read(const void* table, int64_t at, int64_t step, Acc (&v)[W]) const {
    const Element* from = static_cast<const Element*>(table) + at;
    constexpr int kAccess = std::min<int>(W, 16 / sizeof(Element));
    if (W > 1 && vector) {
#pragma unroll
      for (int k = 0; k < W; k += kAccess) {
        const Vec<Element, kAccess> some = load_vec<kAccess>(from + k);
#pragma unroll
        for (int e = 0; e < kAccess; ++e) v[k + e] = static_cast<Acc>(some.v[e]);
      }
    } else {
#pragma unroll
      for (int k = 0; k < W; ++k) v[k] = static_cast<Acc>(from[k * step]);
    }
  }
  template <int W>
  __device__ void read(const void* table, int64_t at, int64_t step, Acc (&v)[W]) const {
    wide ? read<Acc>(table, at, step, v) : read<T>(table, at, step, v);
  }
  // Pairs first to first + W - 1.
  template <int W>
  __device__ void load(int64_t position, int first, const double* turns, Acc (&c)[W],
                       Acc (&s)[W]) const {
    if (cos == nullptr) {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        const double t = static_cast<double>(position) * turns[first + k];
        sincospi(static_cast<Acc>(2 * (t - rint(t))), &s[k], &c[k]);
      }
    } else if (position >= 0 && position < rows) {
      read(cos, position * cos_row + first * cos_step, cos_step, c);
      read(sin, position * sin_row + first * sin_step, sin_step, s);
    } else {
#pragma unroll
      for (int k = 0; k < W; ++k) c[k] = s[k] = Acc(NAN);
    }
#pragma unroll
    for (int k = 0; k < W; ++k) s[k] *= sign;
  }
  static __device__ void sincospi(float x, float* s, float* c) { sincospif(x, s, c); }
  static __device__ void sincospi(double x, double* s, double* c) { ::sincospi(x, s, c); }
};

template <class T>
struct TensorOf {
  const T* x;
  T* y;
  int64_t x_stride[4], y_stride[4];  // b, s, h, d
  int heads, rotated, units;         // units of a head: those that rotate, and all
  FastDiv per_position;              // units of all groups of heads
  FastDiv per_group;                 // units
  int64_t items, first_block;
};

template <class T>
struct Args {
  TensorOf<T> tensor[kTensors];
  int count;
  FastDiv length;  // S
  int depth, half;
  bool interleaved;
  Position position;
  Angles<T> angles;
};

template <class T, int W>
struct alignas(sizeof(T) * W) Run {
  T v[W];
};

template <class Acc, int W>
__device__ void rotate(Acc (&a)[W], Acc (&b)[W], const Acc (&c)[W], const Acc (&s)[W]) {
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const Acc x = a[k];
    a[k] = x * c[k] - b[k] * s[k];
    b[k] = b[k] * c[k] + x * s[k];
  }
}

// Elements lo and hi of a unit as pairs (a, b), and back.
template <int W, class V>
__device__ void pair_up(bool interleaved, V (&lo)[W], V (&hi)[W]) {
  if (!interleaved) return;
  V a[W], b[W];
#pragma unroll
  for (int k = 0; k < W; ++k) {
    a[k] = 2 * k < W ? lo[2 * k] : hi[2 * k - W];
    b[k] = 2 * k + 1 < W ? lo[2 * k + 1] : hi[2 * k + 1 - W];
  }
#pragma unroll
  for (int k = 0; k < W; ++k) lo[k] = a[k], hi[k] = b[k];
}
template <int W, class V>
__device__ void take_apart(bool interleaved, V (&a)[W], V (&b)[W]) {
  if (!interleaved) return;
  V lo[W], hi[W];
#pragma unroll
  for (int k = 0; k < W; ++k) {
    lo[k] = k % 2 ? b[k / 2] : a[k / 2];
    hi[k] = (k + W) % 2 ? b[(k + W) / 2] : a[(k + W) / 2];
  }
#pragma unroll
  for (int k = 0; k < W; ++k) a[k] = lo[k], b[k] = hi[k];
}

// The frequencies in turns per position.
template <class T>
__device__ void fill_turns(const Args<T>& p, double* turns) {
  if (p.angles.cos == nullptr) {
    constexpr double kTurn = 6.283185307179586476925;
    for (int i = threadIdx.x; i < p.half; i += kThreads) {
      turns[i] = exp2(-2.0 * i / p.angles.rotary * p.angles.log2_base) / kTurn;
    }
  }
  __syncthreads();
}

template <class T, int W>
__global__ void __launch_bounds__(kThreads, 2) rope_kernel(DLK_GRID_CONSTANT const Args<T> p) {
  using Acc = Accumulator<T>;
  extern __shared__ double turns[];
  fill_turns(p, turns);
  int number = 0;
  while (number + 1 < p.count && p.tensor[number + 1].first_block <= blockIdx.x) ++number;
  const TensorOf<T>& t = p.tensor[number];
  int64_t item = (blockIdx.x - t.first_block) * kThreads + threadIdx.x;
  if (item >= t.items) return;
  const int64_t place = t.per_position(item), in_place = item - place * t.per_position.divisor();
  const int64_t b = p.length(place), s = place - b * p.length.divisor();
  const int group = t.per_group.quick(static_cast<int>(in_place));
  const int unit = static_cast<int>(in_place - group * t.per_group.divisor());

  // Elements low to low + W - 1 and high to high + W - 1 of each head.
  const bool rotates = unit < t.rotated;
  const int pairs = unit * W;
  int low = pairs, high = pairs + p.half;
  if (!rotates || p.interleaved) low = 2 * pairs, high = low + W;
  Run<T, W> lo[kHeads], hi[kHeads];
  const int64_t from = b * t.x_stride[0] + s * t.x_stride[1];
  const int64_t to = b * t.y_stride[0] + s * t.y_stride[1];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int head = group * kHeads + i;
    const T* x = t.x + from + head * t.x_stride[2];
    if (head < t.heads) lo[i] = *reinterpret_cast<const Run<T, W>*>(x + low * t.x_stride[3]);
    if (head < t.heads && high < p.depth) {
      hi[i] = *reinterpret_cast<const Run<T, W>*>(x + high * t.x_stride[3]);
    }
  }
  Acc c[W], sine[W];
  if (rotates) p.angles.template load<W>(p.position.of(b, s), pairs, turns, c, sine);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int head = group * kHeads + i;
    if (head >= t.heads) break;
    if (rotates) {
      Acc a[W], v[W];
#pragma unroll
      for (int k = 0; k < W; ++k) {
        a[k] = static_cast<Acc>(lo[i].v[k]);
        v[k] = static_cast<Acc>(hi[i].v[k]);
      }
      pair_up<W>(p.interleaved, a, v);
      rotate(a, v, c, sine);
      take_apart<W>(p.interleaved, a, v);
#pragma unroll
      for (int k = 0; k < W; ++k) {
        lo[i].v[k] = static_cast<T>(a[k]);
        hi[i].v[k] = static_cast<T>(v[k]);
      }
    }
    T* y = t.y + to + head * t.y_stride[2];
    *reinterpret_cast<Run<T, W>*>(y + low * t.y_stride[3]) = lo[i];
    if (high < p.depth) *reinterpret_cast<Run<T, W>*>(y + high * t.y_stride[3]) = hi[i];
  }
}

// Whether W pairs are two accesses in all tensors.
template <class T, int W>
bool fits(const Rope& p) {
  bool fit = p.rotary % (2 * W) == 0 && p.depth() % (2 * W) == 0;
  for (const Heads& heads : p.tensors) {
    for (const Tensor* t : {&heads.x, &heads.y}) {
      fit = fit && t->strides[3] == 1 && is_aligned(t->data, sizeof(T) * W);
      for (int d = 0; d < 3; ++d) fit = fit && t->strides[d] % W == 0;
    }
  }
  return fit;
}

template <class T>
TensorOf<T> tensor_of(const Rope& p, const Heads& heads, int width, int64_t first_block) {
  TensorOf<T> t;
  t.x = heads.x.as<const T>();
  t.y = heads.y.as<T>();
  for (int d = 0; d < 4; ++d) {
    t.x_stride[d] = heads.x.strides[d];
    t.y_stride[d] = heads.y.strides[d];
  }
  t.heads = static_cast<int>(heads.x.shape[2]);
  t.rotated = static_cast<int>(p.rotary / 2 / width);
  const bool copies = heads.x.data != heads.y.data;
  t.units = static_cast<int>(copies ? ceil_div(p.depth(), 2 * width) : t.rotated);
  const int64_t groups = ceil_div(t.heads, kHeads);
  t.per_group = FastDiv(std::max(t.units, 1));
  t.per_position = FastDiv(std::max<int64_t>(t.units * groups, 1));
  t.items = p.batch() * p.length() * t.units * groups;
  t.first_block = first_block;
  return t;
}

// Whether W neighbours of each row of a table are read in whole accesses.
inline bool is_vector(const Tensor& table, int width) {
  const int64_t access = std::min<int64_t>(width, 16 / dtype_size(table.dtype));
  return table && table.strides[1] == 1 && table.strides[0] % access == 0 &&
         is_aligned(table.data, access * dtype_size(table.dtype));
}

template <class T>
Angles<T> angles_of(const Rope& p, int width) {
  const bool wide = p.cos.dtype == accumulator_of(p.first().dtype);
  return {p.cos.data,
          p.sin.data,
          wide,
          is_vector(p.cos, width) && is_vector(p.sin, width),
          p.cos ? p.cos.shape[0] : 0,
          p.cos.strides[0],
          p.cos.strides[1],
          p.sin.strides[0],
          p.sin.strides[1],
          std::log2(p.base),
          static_cast<double>(p.rotary),
          static_cast<Accumulator<T>>(p.sign)};
}

template <class T, int W>
void launch_rope(const Rope& p, const Launch& launch) {
  const size_t shared_bytes = p.cos ? 0 : static_cast<size_t>(p.rotary) / 2 * sizeof(double);
  for (size_t begin = 0; begin < p.tensors.size(); begin += kTensors) {
    Args<T> args;
    args.count = 0;
    int64_t blocks = 0;
    for (size_t i = begin; i < std::min(begin + kTensors, p.tensors.size()); ++i) {
      const TensorOf<T> t = tensor_of<T>(p, p.tensors[i], W, blocks);
      if (t.items == 0) continue;
      args.tensor[args.count++] = t;
      blocks += ceil_div(t.items, kThreads);
    }
    args.length = FastDiv(std::max<int64_t>(p.length(), 1));
    args.depth = static_cast<int>(p.depth());
    args.half = static_cast<int>(p.rotary / 2);
    args.interleaved = p.interleaved;
    args.position = {p.positions.data,
                     p.positions.dtype == DType::kInt64,
                     {p.positions.strides[0], p.positions.strides[1]},
                     p.offset};
    args.angles = angles_of<T>(p, W);
    if (blocks == 0) continue;
    launch_kernel(rope_kernel<T, W>, static_cast<unsigned>(blocks), kThreads, shared_bytes,
                  launch.stream, args);
  }
}

constexpr int64_t kMaxDepth = 8192;  // its frequencies have room in shared memory

constexpr Impl<Rope> kImpls[] = {
    {"heads",
     [](const Rope& p) -> const char* {
       return p.depth() > kMaxDepth ? "heads of more than 8192 elements" : nullptr;
     },
     nullptr,
     [](const Rope& p, const Launch& launch) {
       dispatch_floating(p.first().dtype, [&]<class T>() {
         constexpr int W = 16 / sizeof(T);
         if (fits<T, W>(p)) {
           launch_rope<T, W>(p, launch);
         } else {
           launch_rope<T, 1>(p, launch);
         }
       });
     }},
};

}  // namespace

template <>
ImplList<Rope> gpu_impls<Rope>() {
  return kImpls;
}

}  // namespace dlkern
