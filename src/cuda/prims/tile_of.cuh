// The order in which blocks take the tiles of a matrix product.
#pragma once

#include "cuda/prims/gpu.h"

namespace dlkern::gpu {

// Which tile of which item of a batch: `index` counts the tiles of all items. Tiles that follow
// each other cover a block of C of up to 8 tiles' height, so that operands are found in the L2
// cache.
struct TileOf {
  int64_t item, m, n;  // m, n count tiles

  __device__ TileOf(int64_t index, int64_t tiles_m, int64_t tiles_n) {
    constexpr int64_t kBand = 8;
    item = index / (tiles_m * tiles_n);
    index -= item * tiles_m * tiles_n;
    const int64_t band = index / (kBand * tiles_n);
    const int64_t height = tiles_m - band * kBand < kBand ? tiles_m - band * kBand : kBand;
    index -= band * kBand * tiles_n;
    m = band * kBand + index % height;
    n = index / height;
  }
};

}  // namespace dlkern::gpu
