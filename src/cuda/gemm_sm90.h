// What the host and the kernels of the Hopper matrix products share: configurations and arguments.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <optional>

#include "core/fast_div.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/mma_kind.h"
#include "ops/gemm.h"

namespace dlkern {

// ---- Configurations ----------------------------------------------------------------------------

struct Sm90Config {
  int m, n;                // of a tile
  int stages;              // of the ring
  int consumers;           // warpgroups that multiply
  bool ping_pong = false;  // each consumer has tiles of its own
  int multicast = 1;       // blocks of a cluster, below each other, that share b's tiles,
  bool share_a = false;    // or side by side, and share a's
  bool cluster_k = false;  // the blocks of a cluster share a tile and split k
  int planes = 1;          // bfloat16 planes of each operand
  bool promote = false;    // sums of each stage are added in registers
  bool row_sums = false;   // a's rows are summed, too
  // Any epilogue, y of any strides, groups. Without it what Sm90Feature does in registers: less code,
  // which has to come from memory as well.
  bool full = false;
};

// clang-format off
inline constexpr Sm90Config kSm90Configs[] = {
    {.m = 128, .n = 256, .stages = 4, .consumers = 2, .multicast = 2},
    {.m = 128, .n = 128, .stages = 6, .consumers = 2, .ping_pong = true, .multicast = 2},
    {.m = 128, .n = 64, .stages = 8, .consumers = 2, .multicast = 2, .share_a = true},
    {.m = 128, .n = 128, .stages = 6, .consumers = 2, .ping_pong = true, .full = true},
    // Thin products, transposed.
    {.m = 64, .n = 16, .stages = 16, .consumers = 1, .cluster_k = true},
    {.m = 64, .n = 32, .stages = 14, .consumers = 1, .cluster_k = true},
    {.m = 64, .n = 64, .stages = 12, .consumers = 1, .cluster_k = true},
    {.m = 64, .n = 128, .stages = 8, .consumers = 1, .cluster_k = true},
    {.m = 64, .n = 16, .stages = 16, .consumers = 1, .cluster_k = true, .full = true},
    {.m = 64, .n = 32, .stages = 14, .consumers = 1, .cluster_k = true, .full = true},
    {.m = 64, .n = 64, .stages = 12, .consumers = 1, .cluster_k = true, .full = true},
    {.m = 64, .n = 128, .stages = 8, .consumers = 1, .cluster_k = true, .full = true},
    // float8.
    {.m = 128, .n = 128, .stages = 6, .consumers = 2, .promote = true, .full = true},
    // float32 as three bfloat16 planes.
    {.m = 128, .n = 128, .stages = 2, .consumers = 2, .planes = 3, .promote = true, .full = true},
    // Weight gradients with those of a bias.
    {.m = 128, .n = 256, .stages = 4, .consumers = 2, .multicast = 2, .row_sums = true, .full = true},
    // As above, less or alone.
    {.m = 128, .n = 128, .stages = 6, .consumers = 2, .multicast = 2, .promote = true},
    {.m = 128, .n = 128, .stages = 6, .consumers = 2, .ping_pong = true},
    // Where tiles of 256 columns do not come out even.
    {.m = 128, .n = 192, .stages = 4, .consumers = 2, .multicast = 2, .share_a = true},
    // Thin products of float8.
    {.m = 64, .n = 16, .stages = 16, .consumers = 1, .cluster_k = true, .promote = true},
    {.m = 64, .n = 64, .stages = 12, .consumers = 1, .cluster_k = true, .promote = true},
};
// clang-format on
inline constexpr int kSm90ConfigCount = sizeof(kSm90Configs) / sizeof(kSm90Configs[0]);

// A kernel as the host launches it; no function where it is not compiled.
struct Sm90Kernel {
  const void* function = nullptr;
  int shared_bytes = 0, threads = 0;
};
// One file for some kinds of operands each. `config` counts in kSm90Configs.
Sm90Kernel sm90_kernel_bfloat16(int config, bool a_along_k, bool b_along_k);
Sm90Kernel sm90_kernel_float16(int config, bool a_along_k, bool b_along_k);
Sm90Kernel sm90_kernel_along_k(gpu::Mma mma, int config);  // the others, which have one layout

// What the operands are. In a convolution one of them is the columns of its input, which are never
// built (conv_sm90.h).
enum class Sm90Operands {
  kMatrices,
  kColumnsA,  // a: rows are pixels of the result, k is (tap, channel), which are b's k, too
  kColumnsB   // b: rows are (tap, channel), k are the pixels of the result's gradient
};

// ---- Arguments ---------------------------------------------------------------------------------

// Where a box of a batch item lies: coordinates 2 and 3 of the tensor map are
// index[0] * step[0] + index[1] * step[1], index being that of the item in the batch.
struct MapSteps {
  int step[2][2] = {};
};

// What is to be done with sums besides y = alpha * sum: bits of Sm90Args::features.
enum Sm90Feature : uint32_t {
  // In registers, by every kernel.
  kBias = 1,       // c is one row for all
  kRowScales = 2,  // factors of the sums, but for those along the depth
  kColScales = 4,
  kRaw = 8,     // int32 sums go out as they are
  kQuick = 16,  // an activation of quick_activation(), and y is of 16 bits
  kPairs = 32,  // c or a residual as Sm90Pairs
  // How they leave: y has elements of 4 bytes, or it is bfloat16; else it is float16.
  kWide = 64,
  kBFloat16 = 128,
  kStraight = 256,  // there is nothing that Sm90Output::finish_straight() cannot do
  // By the full epilogue.
  kMore = 512,      // what else ops/epilogue.h has
  kStrided = 1024,  // y is not for slabs
  // In registers, of 8-bit operands in tiles that are not transposed: y has 8 bits, and scale_y and
  // amax of Sm90Args::e. Tiles narrower than a slab have all of y's columns.
  kBytes = 2048,
  // Of a convolution (Sm90ConvArgs).
  kFactors = 4096,  // sums are multiplied by one for each column
  kMoments = 8192,  // of y's columns
  kPieces = 16384   // kPairs by 16 bytes: it is aligned to them, as are its rows and items
};
inline constexpr uint32_t kNeedsFull = kMore | kStrided;
inline constexpr int kSm90MomentsRows = 64;  // those of a slab: kMoments are of so many

// A matrix that is added in pairs of neighbours, times `factor`: before the activation, or after it.
struct Sm90Pairs {
  const void* data = nullptr;  // of y's type, 16 bits
  int64_t row = 0;
  float factor = 1;
  bool before = false;
  int tensor = 0;  // among those of the batch
};

// Rows and columns are those of a tile: y's, or y^T's where it is computed transposed. What every
// tile begins with comes first: constants take long to come, and those nearby come along.
struct Sm90Args {
  int tiles = 0;                 // of all items and parts; those of a cluster count as one here,
  int tiles_m = 0, tiles_n = 0;  // and here: those of an item
  int band = 8;                  // in the height of a band
  int rows = 0, cols = 0;
  int k_blocks = 0;                // stages along k
  int parts = 1, part_blocks = 0;  // k in parts of so many stages; then y is [parts, rows, cols]
  int split_bits = 0;              // or 2^this blocks of a cluster share them
  uint32_t features = 0;
  float alpha = 1, beta = 0;
  bool transposed = false;
  // Tiles of an item, of a band, `band`, the height of the last band, `parts`, the inner dimension of
  // the batch.
  FastDiv by_item, by_band_tiles, by_band, by_last_band, by_parts, by_inner;
  MapSteps a, b, y;
  Groups groups;  // along the rows
  int items = 1;
  int64_t item_stride[Gemm::kTensors][2] = {};  // along the outer and the inner dimension
  Matrix bias;
  dlk_activation quick = DLK_ACTIVATION_NONE;
  Sm90Pairs pairs;
  Scale scale_row, scale_col;  // scale_row.item is 0
  Matrix row_sum;              // optional: sums of a's rows; col: from part to part
  bool add_row_sum = false;
  const int* skip = nullptr;  // optional: nothing is done where it is not 0
  Epilogue e;  // what is left to be done after the features in registers; of y as it is
};

// ---- On the host, for all who launch these kernels ---------------------------------------------

// The kind of product, of operands in the order of the kernel; without tf32 float32 goes as bfloat16
// planes.
std::optional<gpu::Mma> sm90_mma(DType first, DType second, bool tf32);

// Fills in how many tiles there are, of `items` items; args.rows and cols are set.
void set_sm90_tiles(const Sm90Config& config, int64_t parts, int64_t items, int64_t inner_items,
                    Sm90Args& args);

// maps: of a, b and y. `cluster`: blocks of a cluster, which count as one in args.tiles.
template <class Args>
void launch_sm90(const Sm90Kernel& kernel, int clusters, int cluster, const CUtensorMap (&maps)[3],
                 const Args& args, void* stream) {
  void* arguments[] = {const_cast<CUtensorMap*>(&maps[0]), const_cast<CUtensorMap*>(&maps[1]),
                       const_cast<CUtensorMap*>(&maps[2]), const_cast<Args*>(&args)};
  gpu::launch_raw(kernel.function, clusters * cluster, kernel.threads, kernel.shared_bytes,
                  static_cast<gpu::Stream>(stream), arguments, cluster);
}

// Clusters of a kernel's blocks that the device holds at once: multiprocessors come in groups of
// different sizes, and a cluster lies in one of them.
int sm90_clusters_at_once(const Sm90Kernel& kernel, int cluster);

}  // namespace dlkern
