// Gradients of the weights of convolutions of many small groups: the kernels.
// conv_groups_weights.cu instantiates them and lists the implementation.
//
//   dw[k, tap, c] = sum_pixel image[pixel's place + tap, c] dy[pixel, k]
//
// for each group on its own (conv_groups.cuh), as the product of the image's entries by pixels with
// the gradient's pixels by channels.
// Algorithm: a block takes a slice of groups and a part of the tiles, one after the other. Boxes of
// the image and tiles of the gradient lie in shared memory; each worker of the block holds some of
// the sums of a group and takes all pixels of the tiles, or every so-manyth where there are workers to
// spare. Tensor cores by mma.sync for 16-bit types and tf32: a worker is a warp with the sums of
// 16 kRows (entry, channel) by 8 kCols channels of the gradient. Multiply-adds for float32 in full
// precision and float64: a worker is a thread with one entry by 8 channels. Their sums go to the
// workspace, and a second kernel adds them in a fixed order.
// Pixels of a tile that do not exist meet zeros in both operands.
// Bound by memory; each element is read once by a block, those of the image once more where boxes of
// neighbouring tiles overlap.
// Sums in float32 (float64 for float64).
#pragma once

#include "cuda/conv_groups.cuh"
#include "cuda/prims/sum_parts.cuh"

namespace dlkern::gpu {

struct GroupWeightsArgs {
  GroupImage x, dy;
  GroupTiles tiles;  // of the pixels of dy
  GroupEntries entries;
  FastDiv slices;  // of groups, times `passes`
  int groups, in_slice;
  int tile_count, part_tiles;
  // A group's sums are tasks: row blocks outside column blocks. The workers of a block take `items`
  // of them, `splits` times; of a group that has more than there are workers each block takes some.
  int tasks, col_blocks, items, splits, passes;
  int taps;
  void* sums;     // [part, split, group, k, tap, c]
  int64_t count;  // of the weights
  int x_group_bytes, dy_group_bytes;
  int dy_at, lines_at, zeros_at;  // in shared memory
};

// What a worker multiplies. kRows, kCols: see above.
template <class T_, bool kMma_, int kRows_, int kCols_>
struct GroupWeightProduct {
  using T = T_;
  using Sum = std::conditional_t<sizeof(T) == 8, double, float>;
  static constexpr bool kMma = kMma_;
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kWorkers = kMma ? kGroupWarps : kGroupThreads;
  static constexpr int kEntries = kMma ? kRows * 16 / kPerChunk<T> : 1;  // of a row block
  static constexpr int kColumns = 8 * kCols;                             // of a column block
};

// One worker's task.
struct GroupTask {
  int group;  // in the slice
  int first_entry, first_k, split;
  bool exists;

  template <class Product>
  static __device__ __forceinline__ GroupTask of(const GroupWeightsArgs& args, int worker, int pass,
                                                 int groups) {
    GroupTask task;
    task.split = worker / args.items;
    const int i = worker - task.split * args.items + pass * Product::kWorkers;
    task.group = i / args.tasks;
    const int in_group = i - task.group * args.tasks, row = in_group / args.col_blocks;
    task.first_entry = row * Product::kEntries;
    task.first_k = (in_group - row * args.col_blocks) * Product::kColumns;
    task.exists = task.split < args.splits && task.group < groups;
    return task;
  }
};

template <class Sum>
__device__ __forceinline__ Sum* group_sums(const GroupWeightsArgs& args, int part,
                                           const GroupTask& task, int first_group) {
  return static_cast<Sum*>(args.sums) + (int64_t{part} * args.splits + task.split) * args.count +
         int64_t{first_group + task.group} * args.dy.channels * args.taps * args.x.channels;
}

// sums: of the task's group.
template <class T, class Sum>
__device__ __forceinline__ void store_sum(const GroupWeightsArgs& args, Sum* sums, int entry,
                                          int in_chunk, int k, Sum sum) {
  if (entry >= args.entries.count || k >= args.dy.channels) return;
  const int tap = args.entries.by_chunks.quick(entry);
  const int chunk = entry - tap * static_cast<int>(args.entries.by_chunks.divisor());
  const int c = chunk * kPerChunk<T> + in_chunk;
  if (c < args.x.channels) {
    sums[(int64_t{k} * args.taps + tap) * args.x.channels + c] = sum;
  }
}

// ---- Tensor cores: 16-bit types ----------------------------------------------------------------

template <class Product>
class FragmentWorker {
 public:
  using T = typename Product::T;
  static constexpr int kRows = Product::kRows, kCols = Product::kCols;

  __device__ __forceinline__ FragmentWorker(const GroupWeightsArgs& args, const GroupTask& task)
      : args_(args), task_(task) {
    const int parity = lane_index() / 8 % 2;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int entry = min(task.first_entry + 2 * r + parity, args.entries.count - 1);
      offset_[r] = args.entries.address(entry, args.x.pitch) + task.group * args.x_group_bytes;
    }
    const int second = kCols == 1 ? 0 : lane_index() / 16;
    dy_at_ = args.dy_at + task.group * args.dy_group_bytes +
             (task.first_k / kPerChunk<T> + second) * kChunkBytes;
  }

  __device__ __forceinline__ void add_tile(const unsigned char* shared) {
    const int lane = lane_index(), count = args_.tiles.tile.count;
    const int* lines = reinterpret_cast<const int*>(shared + args_.lines_at);
    for (int first = 16 * task_.split; first < count; first += 16 * args_.splits) {
      const int line = lines[first + lane % 8 + lane / 16 * 8];
      const int pixel = first + lane % 16;
      const int from = lines[pixel] < 0 ? args_.zeros_at : dy_at_ + pixel * args_.dy.pitch;
      const int step = lines[pixel] < 0 ? 0 : 2 * kChunkBytes;
      uint32_t b[(kCols + 1) / 2][4];
#pragma unroll
      for (int j = 0; j < (kCols + 1) / 2; ++j) ldmatrix_x4_trans(b[j], shared + from + j * step);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        uint32_t a[4];
        ldmatrix_x4_trans(a, shared + (line < 0 ? args_.zeros_at : line + offset_[r]));
#pragma unroll
        for (int j = 0; j < kCols; ++j) {
          Mma<T>::product(sums_[r][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ void store(float* sums) const {
    const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          store_sum<T>(args_, sums, task_.first_entry + 2 * r + e / 2, g,
                       task_.first_k + 8 * j + 2 * t + e % 2, sums_[r][j][e]);
        }
      }
    }
  }

 private:
  const GroupWeightsArgs& args_;
  const GroupTask& task_;
  int offset_[kRows], dy_at_;
  float sums_[kRows][kCols][4] = {};
};

// ---- Tensor cores: tf32, whose fragments are gathered -------------------------------------------

template <class Product>
class Tf32Worker {
 public:
  static constexpr int kRows = Product::kRows, kCols = Product::kCols;

  __device__ __forceinline__ Tf32Worker(const GroupWeightsArgs& args, const GroupTask& task)
      : args_(args), task_(task) {
    const int g = lane_index() / 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int entry = task.first_entry + 4 * r + 2 * half + g / 4;
        offset_[r][half] = args.entries.address(min(entry, args.entries.count - 1), args.x.pitch) +
                           task.group * args.x_group_bytes + g % 4 * 4;
      }
    }
    dy_at_ = args.dy_at + task.group * args.dy_group_bytes + (task.first_k + g) * 4;
  }

  __device__ __forceinline__ void add_tile(const unsigned char* shared) {
    const int t = lane_index() % 4, count = args_.tiles.tile.count;
    const int* lines = reinterpret_cast<const int*>(shared + args_.lines_at);
    const auto word = [&](int at) {
      return round_to_tf32(*reinterpret_cast<const uint32_t*>(shared + at));
    };
    for (int first = 8 * task_.split; first < count; first += 8 * args_.splits) {
      int line[2];
      uint32_t b[kCols][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = first + 4 * half + t;
        line[half] = lines[pixel];
        const int from = dy_at_ + pixel * args_.dy.pitch;
#pragma unroll
        for (int j = 0; j < kCols; ++j) {
          b[j][half] = word(line[half] < 0 ? args_.zeros_at : from + 32 * j);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[i] = word(line[i / 2] < 0 ? args_.zeros_at : line[i / 2] + offset_[r][i % 2]);
        }
#pragma unroll
        for (int j = 0; j < kCols; ++j) Mma<float>::product(sums_[r][j], a, b[j][0], b[j][1]);
      }
    }
  }

  __device__ __forceinline__ void store(float* sums) const {
    const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          store_sum<float>(args_, sums, task_.first_entry + 4 * r + e / 2 * 2 + g / 4, g % 4,
                           task_.first_k + 8 * j + 2 * t + e % 2, sums_[r][j][e]);
        }
      }
    }
  }

 private:
  const GroupWeightsArgs& args_;
  const GroupTask& task_;
  int offset_[kRows][2], dy_at_;
  float sums_[kRows][kCols][4] = {};
};

// ---- Multiply-adds -----------------------------------------------------------------------------

template <class Product>
class ScalarWorker {
 public:
  using T = typename Product::T;
  static constexpr int kPer = kPerChunk<T>;

  __device__ __forceinline__ ScalarWorker(const GroupWeightsArgs& args, const GroupTask& task)
      : args_(args),
        task_(task),
        offset_(args.entries.address(task.first_entry, args.x.pitch) +
                task.group * args.x_group_bytes),
        dy_at_(args.dy_at + task.group * args.dy_group_bytes +
               task.first_k * static_cast<int>(sizeof(T))) {}

  __device__ __forceinline__ void add_tile(const unsigned char* shared) {
    const int count = args_.tiles.tile.count;
    const int* lines = reinterpret_cast<const int*>(shared + args_.lines_at);
    const auto load = [&](int at) {
      return load_vec<kPer>(reinterpret_cast<const T*>(shared + at));
    };
    for (int pixel = task_.split; pixel < count; pixel += args_.splits) {
      if (lines[pixel] < 0) continue;
      const auto x = load(lines[pixel] + offset_);
#pragma unroll
      for (int k = 0; k < 8; k += kPer) {
        const auto y = load(dy_at_ + pixel * args_.dy.pitch + k * static_cast<int>(sizeof(T)));
#pragma unroll
        for (int c = 0; c < kPer; ++c) {
#pragma unroll
          for (int e = 0; e < kPer; ++e) sums_[c][k + e] += x.v[c] * y.v[e];
        }
      }
    }
  }

  __device__ __forceinline__ void store(T* sums) const {
#pragma unroll
    for (int c = 0; c < kPer; ++c) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        store_sum<T>(args_, sums, task_.first_entry, c, task_.first_k + k, sums_[c][k]);
      }
    }
  }

 private:
  const GroupWeightsArgs& args_;
  const GroupTask& task_;
  int offset_, dy_at_;
  T sums_[kPer][8] = {};
};

template <class Product>
using WorkerOf =
    std::conditional_t<!Product::kMma, ScalarWorker<Product>,
                       std::conditional_t<sizeof(typename Product::T) == 2, FragmentWorker<Product>,
                                          Tf32Worker<Product>>>;

// ---- The kernels -------------------------------------------------------------------------------

template <class Product, int kMinBlocks>
__global__ void __launch_bounds__(kGroupThreads, kMinBlocks)
    conv_groups_weights_kernel(const DLK_GRID_CONSTANT GroupWeightsArgs args) {
  using T = typename Product::T;
  extern __shared__ __align__(128) unsigned char shared[];
  const int part = args.slices.quick(blockIdx.x);
  const int all = blockIdx.x - part * static_cast<int>(args.slices.divisor());
  const int slice = all / args.passes, pass = all - slice * args.passes;
  const int first_group = slice * args.in_slice;
  const int groups = min(args.in_slice, args.groups - first_group);
  if (threadIdx.x < 4) reinterpret_cast<int*>(shared + args.zeros_at)[threadIdx.x] = 0;

  const int worker = Product::kMma ? threadIdx.x / 32 : threadIdx.x;
  const GroupTask task = GroupTask::of<Product>(args, worker, pass, groups);
  WorkerOf<Product> work(args, task);
  const int end = min((part + 1) * args.part_tiles, args.tile_count);
  for (int tile = part * args.part_tiles; tile < end; ++tile) {
    int first[4], origin[4];
    args.tiles.first_pixel(tile, first);
    args.tiles.box_origin(first, origin);
    __syncthreads();  // the tile before has been read
    stage_lines<T>(args.x, origin, first_group, groups, shared);
    stage_lines<T>(args.dy, first, first_group, groups, shared + args.dy_at);
    cp_async_commit();
    for (int i = threadIdx.x; i < (args.tiles.tile.count + 15) / 16 * 16; i += kGroupThreads) {
      int at[4];
      const bool exists = args.tiles.exists(i, first, at);
      reinterpret_cast<int*>(shared + args.lines_at)[i] =
          exists ? args.tiles.line(at) * args.x.pitch : -1;
    }
    cp_async_wait<0>();
    __syncthreads();
    if (task.exists) work.add_tile(shared);
  }
  using Sum = typename Product::Sum;
  if (task.exists) work.store(group_sums<Sum>(args, part, task, first_group));
}

struct GroupSumArgs {
  const void* sums;  // [term, group, k, tap, c]
  void* dw;
  ConvWeightStrides strides;
  FastDiv c, k, taps, taps_w, taps_h;
  int64_t count, terms;
  bool accumulate;
};

template <class T, class Sum>
__global__ void __launch_bounds__(kPartsThreads)
    conv_groups_sum_kernel(const DLK_GRID_CONSTANT GroupSumArgs args, const PartsShare share) {
  int64_t i = share.element();
  Sum sum = share.sum(i < args.count ? static_cast<const Sum*>(args.sums) + i : nullptr, args.count,
                      args.terms);
  if (i >= args.count || !share.leads()) return;
  int64_t tap = args.c.divide(i), row = args.taps.divide(tap);
  const int64_t group = args.k.divide(row);
  int64_t h = args.taps_w.divide(tap);
  const int64_t d = args.taps_h.divide(h);
  const ConvWeightStrides& s = args.strides;
  T* to = static_cast<T*>(args.dw) + group * s.group + row * s.k + i * s.c + d * s.taps[0] +
          h * s.taps[1] + tap * s.taps[2];
  if (args.accumulate) sum += static_cast<Sum>(*to);
  *to = static_cast<T>(sum);
}

}  // namespace dlkern::gpu
