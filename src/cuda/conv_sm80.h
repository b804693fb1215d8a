// What the host and the kernels of convolutions by mma.sync share: the operands and the result of a
// convolution as matrices that are never built. Both indices of such a matrix are composed of others;
// an element lies where the two lead to together, and is zero where that is outside of an image.
#pragma once

#include <climits>

#include "core/fast_div.h"
#include "ops/conv.h"
#include "ops/epilogue.h"

namespace dlkern::gpu {

// Where one index leads to: an offset in elements, and coordinates w, h, d in an image.
struct alignas(16) Place {
  int offset;
  int at[3];
};

// Four nested indices counted as one, 0 to 3 from the innermost: along w, h, d, and one that moves
// within no image (channels, or the images of a batch). That one is the innermost or the outermost.
struct PlaceIndex {
  int count = 0;
  FastDiv extent[3];
  int stride[4] = {}, start = 0;    // offsets in elements
  int first[3] = {}, step[3] = {};  // coordinates along w, h, d
  bool channels_inside = false;

  // That of number i. From `end` on: outside of every image, with whatever other place.
  DLK_HD Place place(int i, int end) const {
    int q[4] = {0, 0, 0, i};
    for (int d = 0; d < 3; ++d) {
      const int rest = extent[d].quick(q[3]);
      q[d] = q[3] - rest * static_cast<int>(extent[d].divisor());
      q[3] = rest;
    }
    Place p{start, {}};
    for (int d = 0; d < 4; ++d) p.offset += q[d] * stride[d];
    for (int d = 0; d < 3; ++d) {
      p.at[d] = first[d] + (channels_inside ? q[d + 1] : q[d]) * step[d];
    }
    if (i >= end) p.at[0] = INT_MIN / 2;
    return p;
  }
};

// X[row, k], an image or the weights.
struct ConvOperand {
  const char* data = nullptr;
  int64_t group = 0;  // bytes from group to group
  PlaceIndex rows, depth;
  int bounds[3] = {1, 1, 1};  // of the image
  // Bytes that are neighbours along the lines of tiles, all inside or all outside, at addresses that
  // are multiples: 16, 8, 4, or an element.
  int unit = 0;
};

// Y[row, column] = sum + C[row, column] where c is present: a bias of rows or of columns or, if it
// accumulates, y itself. The column strides of y and c are those within a run of neighbours.
struct ConvResult {
  PlaceIndex rows, cols;
  Matrix y, c;                  // rows of y are in the places
  int64_t group = 0, part = 0;  // elements of y
  int64_t c_group = 0;
  bool accumulates = false;
  bool runs = false;  // four neighbouring columns are one stride apart
};

struct ConvMmaArgs {
  ConvOperand a, b;
  ConvResult result;
  int groups = 1, parts = 1, part_depth = 0;  // a part's share of the sum
  int64_t tiles_m = 0, tiles_n = 0;

  // All copies are of 16 bytes.
  bool is_wide() const { return a.unit == 16 && b.unit == 16; }
};

// Whether lines of tiles run along the sum; never a's along rows and b's along the sum.
struct ConvLines {
  bool a_along_k, b_along_k;
};

// A multiple of all types' depth of a tile.
inline constexpr int kConvPartUnit = 32;

// Extents of tiles, and how many of them a multiprocessor works on at once.
struct ConvTileShape {
  int m, n, blocks;
};
constexpr ConvTileShape conv_tile_shape(bool large, bool wide) {
  if (!large) return {64, 64, 3};
  return wide ? ConvTileShape{128, 128, 2} : ConvTileShape{128, 64, 3};
}

// The product in tiles, large ones or not. For Half, BFloat16, float (as tf32), and double, for which
// none are large.
template <class T>
void launch_conv_mma(const ConvMmaArgs& args, ConvLines lines, bool large, const Launch& launch);

// The result from its sums in the workspace, [part, group, row, column] in the type that T is summed in:
// added in the order of the parts.
template <class T>
void add_conv_parts(const void* sums, const ConvResult& result, int groups, int parts,
                    const Launch& launch);

}  // namespace dlkern::gpu
