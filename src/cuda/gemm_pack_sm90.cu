// Operands of a matrix product gathered along k: from any strides to rows of k.
//
// Layout: a block moves 64 rows x 64 k through shared memory, reading along whichever of the two has
// the smaller stride and writing along k, 16 bytes of neighbours to a thread both times; single
// elements where they do not lie so. Where planes are made of what lies along k already, a thread has 8
// neighbours, and there is no shared memory.
// Planes: x = x0 + x1 + x2, each the bfloat16 nearest to what is left: 24 bits and more, so that the
// sum is x itself. Of two planes: 16 bits.
// Bound by memory: each element is read once and written once (6 bytes for a float32).
#include "cuda/gemm_pack.h"

#include <climits>
#include <cstring>

#include "core/fast_div.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/ptx.cuh"
#include "cuda/prims/vec.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kTile = 64, kThreads = 256;

struct Args {
  Pack pack;
  int64_t tiles_r, tiles_k, tiles;
  FastDiv lines, eights;  // rows, and k in units of 8
  bool along_k;           // k has the smaller stride
  bool wide;              // 16 bytes of neighbours are aligned wherever they begin at a multiple
  bool composed;          // k has more than one dimension
};

// Two operands that are packed alike; the second one may have no tiles.
struct TwoArgs {
  Args first, second;

  // The i-th of so many of both.
  __device__ __forceinline__ const Args& at(int64_t& i, int64_t of_first) const {
    if (i < of_first) return first;
    i -= of_first;
    return second;
  }
};

// Largest float32 that rounds to a finite bfloat16, and smallest whose third plane keeps its bits.
constexpr uint32_t kLargest = 0x7f7f7fff, kSmallest = 0x0d800000;  // 2^-100

__device__ __forceinline__ bool has_planes(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  return magnitude == 0 || (magnitude >= kSmallest && magnitude <= kLargest);
}

// The planes of two neighbours, as pairs.
__device__ __forceinline__ void split_pair(uint32_t low_bits, uint32_t high_bits,
                                           uint32_t (&planes)[3]) {
  float low = __uint_as_float(low_bits), high = __uint_as_float(high_bits);
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    planes[i] = pack_bfloat16(low, high);
    low -= __uint_as_float(planes[i] << 16);
    high -= __uint_as_float(planes[i] & 0xffff0000u);
  }
}

// Eight neighbours along k as planes.
__device__ __forceinline__ void store_planes(const Pack& p, const uint32_t (&values)[8],
                                             uint16_t* place) {
  uint32_t words[3][4];
#pragma unroll
  for (int v = 0; v < 8; v += 2) {
    uint32_t pair[3];
    split_pair(values[v], values[v + 1], pair);
#pragma unroll
    for (int plane = 0; plane < 3; ++plane) words[plane][v / 2] = pair[plane];
  }
#pragma unroll
  for (int plane = 0; plane < 3; ++plane) {
    const auto& w = words[plane];
    if (plane < p.planes) {
      store_16(place + plane * p.to_plane, make_uint4(w[0], w[1], w[2], w[3]));
    }
  }
}

// The kN elements from (r, k) on, along k or along the rows; 0 beyond the ends.
template <bool kComposed, class T, int kN>
__device__ __forceinline__ void read_run(const Args& args, const T* from, int64_t r, int64_t k,
                                         Vec<T, kN>& run) {
  const Pack& p = args.pack;
  const int64_t left = args.along_k ? p.k.numel - k : p.rows - r;
  const bool inside = r < p.rows && k < p.k.numel;
  if constexpr (kComposed) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      int64_t of_k[1] = {};
      run.v[i] = 0;
      if (!inside || i >= left) continue;
      p.k.offsets(args.along_k ? k + i : k, of_k);
      run.v[i] = from[(args.along_k ? r : r + i) * p.row + of_k[0]];
    }
  } else {
    const int64_t step = args.along_k ? p.k.stride[0][0] : p.row;
    from += r * p.row + k * p.k.stride[0][0];
    if (args.wide && inside && left >= kN) {
      run = load_vec<kN>(from);
    } else {
#pragma unroll
      for (int i = 0; i < kN; ++i) run.v[i] = inside && i < left ? from[i * step] : T(0);
    }
  }
}

// kComposed: k has more than one dimension.
template <class T, bool kPlanes, bool kComposed>
__global__ void __launch_bounds__(kThreads) pack_kernel(const DLK_GRID_CONSTANT TwoArgs both) {
  using E = std::conditional_t<kPlanes, uint16_t, T>;  // what is written
  constexpr int kRead = 16 / sizeof(T), kReads = kTile * kTile / kRead / kThreads;
  constexpr int kWrite = 16 / sizeof(E), kWrites = kTile * kTile / kWrite / kThreads;
  __shared__ T tile[kTile][kTile + 1];
  const int64_t tiles = both.first.tiles + both.second.tiles;
  for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    int64_t i = number;
    const Args& args = both.at(i, both.first.tiles);
    const Pack& p = args.pack;
    const int64_t line = quotient(i, args.tiles_k), item = quotient(line, args.tiles_r);
    const int64_t r0 = (line - item * args.tiles_r) * kTile, k0 = (i - line * args.tiles_k) * kTile;
    int64_t at[2];
    p.items.offsets(item, at);
    const T* from = static_cast<const T*>(p.from) + at[0];
    Vec<T, kRead> runs[kReads];
#pragma unroll  // all at once on their way
    for (int j = 0; j < kReads; ++j) {
      const int n = threadIdx.x + j * kThreads;
      const int slow = n / (kTile / kRead), fast = n % (kTile / kRead) * kRead;
      read_run<kComposed>(args, from, r0 + (args.along_k ? slow : fast),
                          k0 + (args.along_k ? fast : slow), runs[j]);
    }
    bool fits = true;
    __syncthreads();  // the tile before has been read
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      const int n = threadIdx.x + j * kThreads;
      const int slow = n / (kTile / kRead), fast = n % (kTile / kRead) * kRead;
      T* first = args.along_k ? &tile[slow][fast] : &tile[fast][slow];
      const int step = args.along_k ? 1 : kTile + 1;
#pragma unroll
      for (int v = 0; v < kRead; ++v) {
        if constexpr (kPlanes) fits = fits && has_planes(runs[j].v[v]);
        first[v * step] = runs[j].v[v];
      }
    }
    if constexpr (kPlanes) {
      if (!fits) *p.flag = 1;  // every writer writes the same
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kWrites; ++j) {
      const int n = threadIdx.x + j * kThreads;
      const int r = n / (kTile / kWrite), first = n % (kTile / kWrite) * kWrite;
      if (r0 + r >= p.rows) continue;
      E* place = static_cast<E*>(p.to) + at[1] + (r0 + r) * p.to_row + k0 + first;
      if constexpr (kPlanes) {
        uint32_t values[8];
#pragma unroll
        for (int v = 0; v < 8; ++v) values[v] = tile[r][first + v];
        store_planes(p, values, place);
      } else {
        alignas(16) T row[kWrite];
#pragma unroll
        for (int v = 0; v < kWrite; ++v) row[v] = tile[r][first + v];
        uint4 words;
        memcpy(&words, row, sizeof(words));
        store_16(place, words);
      }
    }
  }
}

// Planes of wide rows along k.
__global__ void __launch_bounds__(kThreads) split_kernel(const DLK_GRID_CONSTANT TwoArgs both) {
  const auto count = [](const Args& args) {
    return args.pack.items.numel * args.pack.rows * args.eights.divisor();
  };
  int64_t r = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const Args& args = both.at(r, ceil_div(count(both.first), kThreads) * kThreads);
  if (r >= count(args)) return;
  const Pack& p = args.pack;
  int64_t k = r;
  r = args.eights.divide(k);
  k *= 8;
  int64_t at[2];
  p.items.offsets(args.lines.divide(r), at);
  const auto* from = static_cast<const uint32_t*>(p.from) + at[0] + r * p.row + k;
  uint32_t values[8] = {};
#pragma unroll
  for (int v = 0; v < 8; v += 4) {
    if (k + v + 4 <= p.k.numel) {
      const auto four = load_vec<4>(from + v);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[v + i] = four.v[i];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[v + i] = k + v + i < p.k.numel ? from[v + i] : 0;
    }
  }
  bool fits = true;
#pragma unroll
  for (int v = 0; v < 8; ++v) fits = fits && has_planes(values[v]);
  if (!fits) *p.flag = 1;  // every writer writes the same
  store_planes(p, values, static_cast<uint16_t*>(p.to) + at[1] + r * p.to_row + k);
}

// Neighbours along the smaller stride lie together and aligned, whatever the others.
bool is_wide(const Pack& p, bool along_k) {
  const int64_t unit = 16 / p.element_bytes, of_k = p.k.ndim ? p.k.stride[0][0] : 1;
  bool wide = p.k.ndim <= 1 && reinterpret_cast<uintptr_t>(p.from) % 16 == 0 &&
              (along_k ? of_k == 1 && p.row % unit == 0 : p.row == 1 && of_k % unit == 0);
  for (int d = 0; d < p.items.ndim; ++d) wide = wide && p.items.stride[0][d] % unit == 0;
  return wide;
}

Args args_of(const Pack& p) {
  const int64_t tiles_r = ceil_div(p.rows, kTile), tiles_k = ceil_div(p.k.numel, kTile);
  const bool along_k = p.k.ndim == 0 || std::abs(p.k.stride[0][p.k.ndim - 1]) <= std::abs(p.row);
  return {p,
          tiles_r,
          tiles_k,
          p.items.numel * tiles_r * tiles_k,
          FastDiv(p.rows),
          FastDiv(p.pitch() / 8),
          along_k,
          is_wide(p, along_k),
          p.k.ndim > 1};
}
bool is_split(const Args& args) { return args.pack.planes && args.along_k && args.wide; }

template <bool kComposed>
auto tile_kernel(const Pack& p) {
  return p.planes               ? pack_kernel<uint32_t, true, kComposed>
         : p.element_bytes == 1 ? pack_kernel<uint8_t, false, kComposed>
         : p.element_bytes == 2 ? pack_kernel<uint16_t, false, kComposed>
                                : pack_kernel<uint32_t, false, kComposed>;
}

void launch(const TwoArgs& both, void* stream) {
  const Args& args = both.first;
  const auto grid = [](int64_t blocks) {
    return static_cast<unsigned>(std::min<int64_t>(blocks, INT_MAX));
  };
  if (is_split(args)) {
    const auto blocks = [](const Args& a) {
      return ceil_div(a.pack.items.numel * a.pack.rows * a.pack.pitch() / 8, kThreads);
    };
    const int64_t second = both.second.tiles ? blocks(both.second) : 0;
    return launch_kernel(split_kernel, grid(blocks(args) + second), kThreads, 0, stream, both);
  }
  const auto kernel = args.composed ? tile_kernel<true>(args.pack) : tile_kernel<false>(args.pack);
  launch_kernel(kernel, grid(args.tiles + both.second.tiles), kThreads, 0, stream, both);
}

bool are_alike(const Args& a, const Args& b) {
  return is_split(a) == is_split(b) && a.composed == b.composed &&
         (a.pack.planes != 0) == (b.pack.planes != 0) &&
         a.pack.element_bytes == b.pack.element_bytes;
}

}  // namespace

void run_packs(std::span<const Pack> packs, void* stream) {
  for (size_t i = 0; i < packs.size(); ++i) {
    TwoArgs both{args_of(packs[i]), {}};
    if (i + 1 < packs.size()) {
      const Args next = args_of(packs[i + 1]);
      if (are_alike(both.first, next)) {
        both.second = next;
        ++i;
      }
    }
    launch(both, stream);
  }
}

}  // namespace dlkern
