// Convolutions of many small groups, images by weights: the kernel. conv_groups_images.cu
// instantiates it and lists the implementations.
//
//   result[pixel, k] = bias[k] + sum_(tap, c) image[pixel's place + tap, c] weights[k, c, tap]
//
// for each group on its own (conv_groups.cuh): forward, and the input gradient as the forward of the
// transposed convolution.
// Algorithm: tensor cores by mma.sync for 16-bit types and tf32: 16 pixels by 8 channels of the
// result, and two entries of the sum at a time. A warp takes one group, up to 8 kCols channels and
// kFrags times 16 pixels. Multiply-adds for float32 in full precision and float64: 32 lanes are
// pixels, kFrags of them each, by 8 channels. Weights are put into the order in which warps take them
// first, in the workspace. Results leave by way of shared memory, where the box was.
// Bound by memory; each element of the image is read once by a tile, and by neighbouring tiles where
// their boxes overlap.
// Sums in float32 (float64 for float64) in the order of the entries: an image's bits do not depend on
// the batch.
#pragma once

#include "cuda/conv_groups.cuh"

namespace dlkern::gpu {

struct GroupImagesArgs {
  GroupImage from;
  GroupTiles tiles;
  GroupEntries entries;
  FastDiv slices;
  int groups, in_slice;  // groups of a block
  int bunches;           // warps that share a group's pixels

  const void* weights;  // as order_weights_kernel leaves them
  const void* bias;
  int64_t bias_stride;

  char* result;  // strides in bytes
  int64_t result_stride[4], result_channel;
  int k;             // channels of a group
  int result_width;  // 16 where lines of results are stored in pieces of 16 bytes, else 0
  int result_pitch, result_in_line;
  FastDiv by_result_line;

  // In shared memory: a group's part of a line, and its weights for 8 channels.
  int group_bytes, weights_bytes;
  int weights_at, table_at, zeros_at;
};

// What a warp multiplies. kCols, kFrags: see above.
template <class T_, bool kMma_, int kCols_, int kFrags_>
struct GroupProduct {
  using T = T_;
  using Sum = std::conditional_t<sizeof(T) == 8, double, float>;
  static constexpr bool kMma = kMma_;
  static constexpr int kCols = kCols_, kFrags = kFrags_;
  static constexpr int kPixels = kMma ? 16 : 32;  // of a fragment
  static constexpr int kPerPixel = kMma ? 4 : 8;  // sums of a lane for 8 channels
  static_assert(kMma || kCols == 1);
};

template <class Product>
struct GroupSums {
  typename Product::Sum c[Product::kFrags][Product::kCols][Product::kPerPixel] = {};
};

// ---- Weights in the order in which warps take them -----------------------------------------------

struct GroupWeightsOrder {
  const void* weights;  // of the first tap; strides in elements
  int64_t group_stride, k_stride, c_stride, tap_stride[3];
  GroupEntries entries;
  int64_t groups;
  int c, k, columns;  // of a group; columns: of 8 channels of the result
  void* ordered;

  // Zero where there is none.
  template <class T>
  __device__ __forceinline__ T at(int64_t group, int of_k, int entry, int in_chunk) const {
    int tap[3], chunk;
    entries.take_apart(entry, tap, chunk);
    const int of_c = chunk * kPerChunk<T> + in_chunk;
    if (entry >= entries.count || of_k >= k || of_c >= c) return T{};
    return static_cast<const T*>(
        weights)[group * group_stride + of_k * k_stride + of_c * c_stride + tap[0] * tap_stride[0] +
                 tap[1] * tap_stride[1] + tap[2] * tap_stride[2]];
  }
};

// For tensor cores [group, 8 channels, step, lane] of the two words that a lane multiplies by, else
// [group, 8 channels, entry, channel of the chunk, channel of the result].
template <class T, bool kMma>
__global__ void __launch_bounds__(kGroupThreads)
    order_weights_kernel(const DLK_GRID_CONSTANT GroupWeightsOrder args) {
  const int64_t i = int64_t{blockIdx.x} * kGroupThreads + threadIdx.x;
  const int entries = args.entries.count, columns = args.columns;
  if constexpr (kMma) {
    const int steps = (entries + 1) / 2, lane = i % 32;
    const int64_t column = i / 32 / steps, group = column / columns;
    if (group >= args.groups) return;
    const int step = static_cast<int>(i / 32 - column * steps);
    const int k = static_cast<int>(column - group * columns) * 8 + lane / 4;
    uint32_t words[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
      const auto element = [&](int e) {
        return args.at<T>(group, k, 2 * step + half, lane % 4 * kInWord + e);
      };
      if constexpr (sizeof(T) == 2) {
        words[half] = uint32_t{element(0).bits} | uint32_t{element(1).bits} << 16;
      } else {
        words[half] = round_to_tf32(bit_cast_to<uint32_t>(element(0)));
      }
    }
    static_cast<uint2*>(args.ordered)[i] = {words[0], words[1]};
  } else {
    const int in_entry = i % (8 * kPerChunk<T>);
    const int64_t all = i / (8 * kPerChunk<T>), column = all / entries, group = column / columns;
    if (group >= args.groups) return;
    const int k = static_cast<int>(column - group * columns) * 8 + in_entry % 8;
    static_cast<T*>(args.ordered)[i] =
        args.at<T>(group, k, static_cast<int>(all - column * entries), in_entry / 8);
  }
}

// ---- Products ----------------------------------------------------------------------------------

// lines: of this lane's pixels, for tensor cores those of row lane % 16 of each fragment.
template <class Product>
__device__ __forceinline__ void multiply_fragments(GroupSums<Product>& sums,
                                                   const int (&lines)[Product::kFrags],
                                                   const GroupImagesArgs& args,
                                                   const unsigned char* shared, int weights_at,
                                                   int steps) {
  using T = typename Product::T;
  constexpr int kCols = Product::kCols;
  const int lane = lane_index();
  const int* table = reinterpret_cast<const int*>(shared + args.table_at) + lane / 16;
  const uint2* weights = reinterpret_cast<const uint2*>(shared + weights_at) + lane;
  for (int step = 0; step < steps; ++step) {
    const int entry = table[2 * step], exists = entry >= 0 ? 1 : 0;
    const int offset = exists ? entry : args.zeros_at;
    uint2 b[kCols];
#pragma unroll
    for (int j = 0; j < kCols; ++j) b[j] = weights[(j * steps + step) * 32];
#pragma unroll
    for (int i = 0; i < Product::kFrags; ++i) {
      uint32_t a[4];
      ldmatrix_x4(a, shared + (lines[i] * exists + offset));
      if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[e] = round_to_tf32(a[e]);
      }
#pragma unroll
      for (int j = 0; j < kCols; ++j) Mma<T>::product(sums.c[i][j], a, b[j].x, b[j].y);
    }
  }
}

template <class Product>
__device__ __forceinline__ void multiply_scalars(GroupSums<Product>& sums,
                                                 const int (&lines)[Product::kFrags],
                                                 const GroupImagesArgs& args,
                                                 const unsigned char* shared, int weights_at,
                                                 int entries) {
  using T = typename Product::T;
  const int* table = reinterpret_cast<const int*>(shared + args.table_at);
  const T* weights = reinterpret_cast<const T*>(shared + weights_at);
#pragma unroll 1
  for (int entry = 0; entry < entries; ++entry, weights += 8 * kPerChunk<T>) {
    const unsigned char* of_entry = shared + table[entry];
    Vec<T, kPerChunk<T>> x[Product::kFrags];
#pragma unroll
    for (int i = 0; i < Product::kFrags; ++i) {
      x[i] = load_vec<kPerChunk<T>>(reinterpret_cast<const T*>(of_entry + lines[i]));
    }
#pragma unroll
    for (int c = 0; c < kPerChunk<T>; ++c) {
#pragma unroll
      for (int k = 0; k < 8; k += kPerChunk<T>) {
        const auto w = load_vec<kPerChunk<T>>(weights + 8 * c + k);
#pragma unroll
        for (int i = 0; i < Product::kFrags; ++i) {
#pragma unroll
          for (int e = 0; e < kPerChunk<T>; ++e) sums.c[i][0][k + e] += x[i].v[c] * w.v[e];
        }
      }
    }
  }
}

// ---- Results -----------------------------------------------------------------------------------

// visit(pixel of the tile, channel of the group, sum) for pairs of neighbouring channels.
template <class Product, class Visit>
__device__ __forceinline__ void for_each_pair(const GroupSums<Product>& sums, int first_pixel,
                                              int first_k, Visit&& visit) {
  const int lane = lane_index();
#pragma unroll
  for (int i = 0; i < Product::kFrags; ++i) {
#pragma unroll
    for (int j = 0; j < Product::kCols; ++j) {
      const auto& c = sums.c[i][j];
      if constexpr (Product::kMma) {
        const int pixel = first_pixel + 16 * i + lane / 4, k = first_k + 8 * j + lane % 4 * 2;
        visit(pixel, k, c[0], c[1]);
        visit(pixel + 8, k, c[2], c[3]);
      } else {
#pragma unroll
        for (int k = 0; k < 8; k += 2) {
          visit(first_pixel + 32 * i + lane, first_k + k, c[k], c[k + 1]);
        }
      }
    }
  }
}

template <class Product>
__device__ __forceinline__ void finish_sums(const GroupSums<Product>& sums, int first_pixel,
                                            int first_k, int group_in_slice, int group,
                                            const GroupImagesArgs& args, unsigned char* shared) {
  using T = typename Product::T;
  using Sum = typename Product::Sum;
  struct alignas(2 * sizeof(T)) Pair {
    T x, y;
  };
  const T* bias = static_cast<const T*>(args.bias);
  const auto biased = [&](Sum sum, int k) {
    return bias ? sum + static_cast<Sum>(bias[(int64_t{group} * args.k + k) * args.bias_stride])
                : sum;
  };
  const bool paired = args.k % 2 == 0;
  for_each_pair(sums, first_pixel, first_k, [&](int pixel, int k, Sum x, Sum y) {
    if (pixel >= args.tiles.tile.count || k >= args.k) return;
    T* to = reinterpret_cast<T*>(shared + pixel * args.result_pitch) + group_in_slice * args.k + k;
    if (paired) {
      const Sum sum[2] = {biased(x, k), biased(y, k + 1)};
      if constexpr (sizeof(T) == 2) {
        *reinterpret_cast<uint32_t*>(to) = pack_pair<T>(sum[0], sum[1]);
      } else {
        *reinterpret_cast<Pair*>(to) = {sum[0], sum[1]};
      }
    } else {
      to[0] = static_cast<T>(biased(x, k));
      if (k + 1 < args.k) to[1] = static_cast<T>(biased(y, k + 1));
    }
  });
}

// Lines of results to memory: in pieces of 16 bytes, or by elements with neighbouring threads taking
// neighbouring pixels.
template <class T>
__device__ __forceinline__ void store_results(const GroupImagesArgs& args, const int (&first)[4],
                                              int first_group, int groups,
                                              const unsigned char* shared) {
  const bool wide = args.result_width != 0;
  const int in_line = wide ? args.result_in_line : args.in_slice * args.k;
  const int exist = groups * args.k * static_cast<int>(sizeof(T));
  const int bytes = wide ? 16 : static_cast<int>(sizeof(T));
  const int pixels = args.tiles.tile.count, count = pixels * in_line;
  char* result = args.result + int64_t{first_group} * args.k * args.result_channel;
#pragma unroll
  for (int d = 0; d < 4; ++d) result += first[d] * args.result_stride[d];
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += kGroupThreads) {
    const int row = args.by_result_line.quick(i);
    const int pixel = wide ? row : i - row * pixels, piece = wide ? i - row * in_line : row;
    int at[4];
    if (!args.tiles.exists(pixel, first, at) || piece * bytes >= exist) continue;
    int offset = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) offset += at[d] * static_cast<int>(args.result_stride[d]);
    const unsigned char* from = shared + pixel * args.result_pitch + piece * bytes;
    if (wide) {
      store_16(result + offset + piece * 16, *reinterpret_cast<const uint4*>(from));
    } else {
      char* to = result + offset + piece * args.result_channel;
      *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
    }
  }
}

// ---- The kernel --------------------------------------------------------------------------------

template <class Product, int kMinBlocks>
__global__ void __launch_bounds__(kGroupThreads, kMinBlocks)
    conv_groups_kernel(const DLK_GRID_CONSTANT GroupImagesArgs args) {
  using T = typename Product::T;
  extern __shared__ __align__(128) unsigned char shared[];
  const int tile = args.slices.quick(blockIdx.x);
  const int slice = blockIdx.x - tile * static_cast<int>(args.slices.divisor());
  const int first_group = slice * args.in_slice;
  const int groups = min(args.in_slice, args.groups - first_group);
  int first[4], origin[4];
  args.tiles.first_pixel(tile, first);
  args.tiles.box_origin(first, origin);

  const int entries = args.entries.count;
  if (entries > 0) stage_lines<T>(args.from, origin, first_group, groups, shared);
  constexpr int kBlock = 8 * Product::kCols;
  const int blocks = (args.k + kBlock - 1) / kBlock, columns = blocks * Product::kCols;
  const int of_group = columns * args.weights_bytes;
  const char* weights = static_cast<const char*>(args.weights) + int64_t{first_group} * of_group;
  for (int at = threadIdx.x * 16; at < groups * of_group; at += kGroupThreads * 16) {
    cp_async<16>(shared + args.weights_at + at, weights + at, 16);
  }
  cp_async_commit();
  const int steps = Product::kMma ? (entries + 1) / 2 : entries;
  for (int i = threadIdx.x; i < (Product::kMma ? 2 * steps : entries); i += kGroupThreads) {
    reinterpret_cast<int*>(shared + args.table_at)[i] =
        i < entries ? args.entries.address(i, args.from.pitch) : -1;
  }
  if (threadIdx.x < 4) reinterpret_cast<int*>(shared + args.zeros_at)[threadIdx.x] = 0;
  cp_async_wait<0>();
  __syncthreads();

  const int warp = threadIdx.x / 32, part = warp / args.bunches;
  const int group = part / blocks, block = part - group * blocks;
  const int first_in_tile = (warp - part * args.bunches) * Product::kFrags * Product::kPixels;
  GroupSums<Product> sums;
  const bool works = group < groups;
  if (works) {
    int lines[Product::kFrags];
#pragma unroll
    for (int i = 0; i < Product::kFrags; ++i) {
      const int pixel = first_in_tile + Product::kPixels * i + lane_index() % Product::kPixels;
      int at[4];
      args.tiles.tile.take_apart(pixel < args.tiles.tile.count ? pixel : 0, at);
      lines[i] = args.tiles.line(at) * args.from.pitch + group * args.group_bytes;
    }
    const int weights_at =
        args.weights_at + (group * columns + block * Product::kCols) * args.weights_bytes;
    if constexpr (Product::kMma) {
      multiply_fragments<Product>(sums, lines, args, shared, weights_at, steps);
    } else {
      multiply_scalars<Product>(sums, lines, args, shared, weights_at, steps);
    }
  }
  __syncthreads();
  if (works) {
    finish_sums<Product>(sums, first_in_tile, block * kBlock, group, first_group + group, args,
                         shared);
  }
  __syncthreads();
  store_results<T>(args, first, first_group, groups, shared);
}

}  // namespace dlkern::gpu
