// Convolution as a matrix product whose operands are never built: what the kernels of the conv_*.cu
// files share. A GEMM tile asks for elements of its operands by row and by position in the sum; here
// these are turned into positions of an image or of the weights.
#pragma once

#include <algorithm>
#include <climits>

#include "core/fast_div.h"
#include "cuda/conv_axes.h"
#include "cuda/prims/simt_gemm.cuh"
#include "ops/conv.h"

namespace dlkern::gpu {

// Three nested indices counted as one, row-major.
struct SpatialIndex {
  FastDiv last[2];  // extents of dimensions 1 and 2

  SpatialIndex() = default;
  explicit SpatialIndex(const int64_t (&extent)[3])
      : last{FastDiv(std::max<int64_t>(extent[1], 1)), FastDiv(std::max<int64_t>(extent[2], 1))} {}

  // i counts in dimensions 0 to 2; at[0] is not bounded.
  __device__ void take_apart(int64_t i, int64_t (&at)[3]) const {
    at[1] = last[1].divide(i);
    at[2] = i;
    at[0] = last[0].divide(at[1]);
  }
};

// The pixels of a batch of images, counted as one: n, then positions.
struct PixelIndex {
  int64_t count;
  FastDiv pixels;  // of one image
  SpatialIndex spatial;

  PixelIndex(int64_t batch, const int64_t (&extent)[3])
      : count(batch * extent[0] * extent[1] * extent[2]),
        pixels(std::max<int64_t>(extent[0] * extent[1] * extent[2], 1)),
        spatial(extent) {}

  __device__ int64_t take_apart(int64_t i, int64_t (&at)[3]) const {
    const int64_t n = pixels.divide(i);
    spatial.take_apart(i, at);
    return n;
  }
  __device__ int64_t offset(int64_t i, const ConvImageStrides& s) const {
    int64_t at[3];
    const int64_t n = take_apart(i, at);
    return n * s.n + at[0] * s.spatial[0] + at[1] * s.spatial[1] + at[2] * s.spatial[2];
  }
};

// (channel, tap) pairs counted as one, in the order in which the weights lie.
struct TapIndex {
  int64_t count;
  FastDiv channels, taps;
  SpatialIndex spatial;

  TapIndex(int64_t channels_, const ConvGeometry& g)
      : count(channels_ * g.taps()),
        channels(std::max<int64_t>(channels_, 1)),
        taps(g.taps()),
        spatial({g.window[0].kernel, g.window[1].kernel, g.window[2].kernel}) {}

  template <bool kChannelsLast>
  __device__ int64_t take_apart(int64_t i, int64_t (&tap)[3]) const {
    int64_t channel = i;
    if constexpr (kChannelsLast) {
      i = channels.divide(channel);
    } else {
      channel = taps.divide(i);
    }
    spatial.take_apart(i, tap);
    return channel;
  }
};

// Where a tap finds its value for a pixel of the result.
//   direct   (forward, backward_weight) at position pixel * stride - pad + tap * dilation of x
//   inverse  (backward_input) at position (pixel + pad - tap * dilation) / stride of dy, if whole
// Positions are 32-bit: see fits() of conv_axes.h.
template <bool kInverse>
struct Gather {
  struct Pixel {
    int64_t offset;
    int at[3];
  };
  struct Tap {
    int64_t offset;
    int at[3];
  };

  ConvImageStrides strides;
  int extent[3];
  int stride[3], pad[3], dilation[3];
  FastDiv by_stride[3];

  // The image that is read: x, or dy for the inverse.
  Gather(const ConvGeometry& g, const ConvImageStrides& s) : strides(s) {
    for (int d = 0; d < 3; ++d) {
      extent[d] = static_cast<int>(kInverse ? g.out[d] : g.in[d]);
      stride[d] = static_cast<int>(g.window[d].stride);
      pad[d] = static_cast<int>(g.window[d].pad_begin);
      dilation[d] = static_cast<int>(g.window[d].dilation);
      by_stride[d] = FastDiv(stride[d]);
    }
  }

  __device__ Pixel pixel(int64_t n, const int64_t (&o)[3]) const {
    Pixel p{n * strides.n, {}};
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const int at = static_cast<int>(o[d]);
      p.at[d] = kInverse ? at + pad[d] : at * stride[d] - pad[d];
      if (!kInverse) p.offset += p.at[d] * strides.spatial[d];
    }
    return p;
  }
  __device__ Tap tap(int64_t channel, const int64_t (&t)[3]) const {
    Tap r{channel * strides.c, {}};
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      r.at[d] = static_cast<int>(t[d]) * dilation[d];
      if (!kInverse) r.offset += r.at[d] * strides.spatial[d];
    }
    return r;
  }
  // False: the tap sees nothing there. Else `offset` is that of what it sees.
  __device__ bool find(const Pixel& p, const Tap& t, int64_t& offset) const {
    offset = p.offset + t.offset;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      if constexpr (kInverse) {
        const int scaled = p.at[d] - t.at[d];
        if (scaled < 0) return false;
        int at = scaled;
        if (stride[d] != 1) {
          at = static_cast<int>(by_stride[d](scaled));
          if (at * stride[d] != scaled) return false;
        }
        if (at >= extent[d]) return false;
        offset += at * strides.spatial[d];
      } else {
        if (static_cast<unsigned>(p.at[d] + t.at[d]) >= static_cast<unsigned>(extent[d])) {
          return false;
        }
      }
    }
    return true;
  }
  template <class T>
  __device__ Accumulator<T> load(const T* image, const Pixel& p, const Tap& t) const {
    int64_t offset;
    return find(p, t, offset) ? static_cast<Accumulator<T>>(image[offset]) : Accumulator<T>(0);
  }
};

// The patch matrix [pixel, (channel, tap)] of an image as an operand, with pixels as rows or as
// positions of the sum.
template <class T, class Gather, bool kChannelsLast, bool kPixelRows>
struct PatchOperand {
  static constexpr bool kAlongK = kChannelsLast == kPixelRows;
  const T* image;
  const Gather& gather;
  const PixelIndex& pixels;
  const TapIndex& taps;

  __device__ auto pixel(int64_t i) const {
    int64_t at[3];
    const int64_t n = pixels.take_apart(i, at);
    return gather.pixel(n, at);
  }
  __device__ auto tap(int64_t i) const {
    int64_t at[3];
    const int64_t channel = taps.take_apart<kChannelsLast>(i, at);
    return gather.tap(channel, at);
  }
  __device__ auto row(int64_t i) const {
    if constexpr (kPixelRows) {
      return pixel(i);
    } else {
      return tap(i);
    }
  }
  __device__ auto col(int64_t i) const {
    if constexpr (kPixelRows) {
      return tap(i);
    } else {
      return pixel(i);
    }
  }
  template <class Row, class Col>
  __device__ Accumulator<T> load(const Row& row, const Col& col) const {
    if constexpr (kPixelRows) {
      return gather.load(image, row, col);
    } else {
      return gather.load(image, col, row);
    }
  }
};

__device__ __forceinline__ int64_t tap_offset(const ConvWeightStrides& s, const int64_t (&tap)[3]) {
  return tap[0] * s.taps[0] + tap[1] * s.taps[1] + tap[2] * s.taps[2];
}

// Loaders that know their pixels need registers: this tile leaves room for them.
template <class Acc>
using ConvTileFor =
    std::conditional_t<sizeof(Acc) == 8, SimtTile<64, 64, 8, 4, 4>, SimtTile<128, 64, 8, 8, 4>>;

// Blocks per multiprocessor to ask for: two, unless sums in double would then spill.
template <class Tile, class Acc>
inline constexpr int kBlocksOf = sizeof(Acc) == 8 ? 1 : Tile::kMinBlocks;

inline unsigned grid_of(int64_t blocks) {
  return static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, INT_MAX));
}

}  // namespace dlkern::gpu
