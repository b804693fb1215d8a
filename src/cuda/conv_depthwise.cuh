// Depthwise convolutions, where a channel of the result comes from one channel of the image: how the
// kernels of the conv_depthwise*.cu files share out pixels.
//
// A block has a tile of pixels that are neighbours of a run: they lie a whole number of taps apart, so
// that windows overlap whatever the dilation. What the windows meet is copied to shared memory, zeros in
// place of what lies outside.
#pragma once

#include <climits>

#include "core/fast_div.h"
#include "cuda/conv_axes.h"
#include "cuda/prims/copy_async.cuh"
#include "cuda/prims/gpu.h"
#include "cuda/prims/vec.cuh"

namespace dlkern::gpu {

// Neighbours of a run along one dimension. Pixel j of them lies at result + j * RunAxis::apart, and its
// tap number t, which is the filter's tap + t * RunAxis::tap_step, meets the source's position
//     source + (j * RunAxis::step + t) * RunAxis::gap
struct Run {
  int result, source;
  int count;  // pixels from here to the run's end; may be negative
  int taps, tap;
};

// The runs of an image's pixels along one dimension. Where taps have gaps, the pixels between belong to
// other runs; in an input gradient so do those that meet other taps (conv_axes.h).
struct RunAxis {
  static constexpr int kMaxResidues = 4;
  struct {
    int lower, count, taps, tap;
  } residue[kMaxResidues];
  FastDiv residues, runs;        // runs of each residue
  int source_step, result_step;  // between pixels of one residue
  int step, gap, apart;          // see Run
  int tap_step, extent;          // of the source
  int64_t longest = 0;           // run

  // inverse: an input gradient, to which the filter's taps count from its end.
  RunAxis(const ConvGeometry& g, int d, bool inverse) {
    const Window& w = g.window[d];
    const int64_t common = std::gcd(w.stride, w.dilation), between = w.dilation / common;
    residues = FastDiv(inverse ? std::min({w.stride, g.in[d], int64_t{kMaxResidues}}) : 1);
    runs = FastDiv(between);
    source_step = static_cast<int>(inverse ? 1 : w.stride);
    result_step = static_cast<int>(inverse ? w.stride : 1);
    step = static_cast<int>(inverse ? 1 : w.stride / common);
    gap = static_cast<int>(inverse ? between : w.dilation);
    apart = static_cast<int>(result_step * between);
    tap_step = static_cast<int>(inverse ? w.stride / common : 1);
    extent = static_cast<int>(inverse ? g.out[d] : g.in[d]);
    for (int i = 0; i < residues.divisor(); ++i) {
      const Axis axis = inverse ? gradient_axis(w, g.in[d], i) : forward_axis(w, g.out[d]);
      const int64_t tap = inverse ? w.kernel - 1 - axis.first_tap : axis.first_tap;
      residue[i] = {static_cast<int>(axis.lower), static_cast<int>(axis.count),
                    static_cast<int>(axis.taps), static_cast<int>(tap)};
      longest = std::max(longest, ceil_div(axis.count, between));
    }
  }

  // Pieces of so many neighbours of a run.
  int64_t pieces(int pixels) const {
    return residues.divisor() * runs.divisor() * ceil_div(longest, pixels);
  }
  __device__ __forceinline__ Run piece(int number, int pixels) const {
    const auto take = [&number](const FastDiv& by) {
      const int q = by.quick(number), r = number - q * static_cast<int>(by.divisor());
      number = q;
      return r;
    };
    const int which = take(residues), run = take(runs);
    const auto& r = residue[which];
    const int between = static_cast<int>(runs.divisor()), first = run + number * pixels * between;
    return {which + first * result_step, r.lower + first * source_step,
            runs.quick(r.count - run + between - 1) - number * pixels, r.taps, r.tap};
  }
  // Neighbouring positions of the source, `gap` apart, that so many pixels with so many taps meet.
  DLK_HD int reach(int pixels, int taps) const { return (pixels - 1) * step + taps; }
};

// Where the weights of channels lie.
struct TapWeights {
  const void* data;
  int64_t channel, strides[3];
  int extent[3], count;  // taps along each dimension, and all

  // inverse: counted from the filter's end.
  TapWeights(const ConvProblem& p, bool inverse)
      : channel(p.w_strides.k), count(static_cast<int>(p.geometry.taps())) {
    int64_t first = 0;
    for (int d = 0; d < 3; ++d) {
      extent[d] = static_cast<int>(p.geometry.window[d].kernel);
      strides[d] = inverse ? -p.w_strides.taps[d] : p.w_strides.taps[d];
      if (inverse) first += (extent[d] - 1) * p.w_strides.taps[d];
    }
    data = static_cast<const char*>(p.w.data) + first * static_cast<int64_t>(dtype_size(p.w.dtype));
  }
  __device__ __forceinline__ int64_t offset(int d, int h, int w) const {
    return d * strides[0] + h * strides[1] + w * strides[2];
  }
};

// Bytes of each pixel that a block takes, and its channels.
inline constexpr int kPixelBytes = 128;
template <class T>
inline constexpr int kTileChannels = kPixelBytes / sizeof(T);

// How the pixels of a result are cut into tiles. A tile is a multiple of `high` by `wide` pixels, which are
// what one thread computes.
struct PixelTiles {
  static constexpr int kLanes = 16;  // threads of a pixel
  static constexpr int kMostPieces = 16, kThreads = kLanes * kMostPieces;
#if defined(__HIPCC__)
  static constexpr int64_t kSharedBytes = 60 * 1024;
#else
  static constexpr int64_t kSharedBytes = 88 * 1024;
#endif
  int rows, columns;                // pixels of a tile
  FastDiv across;                   // pieces of a row
  int pieces;                       // of a tile
  int source_rows, source_columns;  // that it meets, at most
  FastDiv by_source_column, by_column;
  FastDiv by_channels, by_columns, by_rows, by_slices;  // tiles along each

  // most_pieces: about so many are in a tile. other_bytes: of shared memory, beside those of the source.
  // with_own: the tile's own pixels lie there, too.
  PixelTiles(const ConvGeometry& g, const RunAxis (&axis)[3], int64_t channels, int tile_channels,
             int high, int wide, int64_t most_pieces, int64_t other_bytes, bool with_own) {
    const auto even = [](int64_t extent, int64_t most, int unit) {
      const int64_t each = ceil_div(extent, ceil_div(extent, most));
      return static_cast<int>(ceil_div(each, unit) * unit);
    };
    columns = even(axis[2].longest,
                   std::max(32, kMostPieces * wide / (axis[1].longest == 1 ? 1 : 2)), wide);
    source_columns = axis[2].reach(columns, static_cast<int>(g.window[2].kernel));
    across = FastDiv(columns / wide);
    int64_t groups = std::max<int64_t>(most_pieces / across.divisor(), 1);
    const auto fits = [&] {
      return other_bytes + bytes(axis[1], groups * high, g, with_own) <= kSharedBytes;
    };
    while (groups > 1 && !fits()) --groups;
    rows = even(axis[1].longest, groups * high, high);
    source_rows = axis[1].reach(rows, static_cast<int>(g.window[1].kernel));
    pieces = static_cast<int>(across.divisor()) * (rows / high);
    by_source_column = FastDiv(source_columns);
    by_column = FastDiv(columns);
    by_channels = FastDiv(ceil_div(channels, tile_channels));
    by_columns = FastDiv(axis[2].pieces(columns));
    by_rows = FastDiv(axis[1].pieces(rows));
    by_slices = FastDiv(axis[0].pieces(1));
  }
  int threads() const { return static_cast<int>(ceil_div(pieces * kLanes, 64) * 64); }
  int64_t count(int64_t batch) const {
    return batch * by_channels.divisor() * by_columns.divisor() * by_rows.divisor() *
           by_slices.divisor();
  }
  int64_t source_bytes() const { return int64_t{source_rows} * source_columns * kPixelBytes; }
  int64_t own_bytes() const { return int64_t{rows} * columns * kPixelBytes; }
  // nullptr where a multiprocessor has room for a tile and other_bytes, and tiles count in 32 bits.
  const char* decline(int64_t batch, int64_t other_bytes) const {
    if (count(batch) > INT_MAX) return "more tiles than 32 bits count";
    return source_bytes() + other_bytes > kSharedBytes ? "more taps than shared memory has room for"
                                                       : nullptr;
  }
  int64_t bytes(const RunAxis& down, int64_t high, const ConvGeometry& g, bool with_own) const {
    const int64_t of_source =
        down.reach(static_cast<int>(high), static_cast<int>(g.window[1].kernel));
    return (of_source * source_columns + (with_own ? high * columns : 0)) * kPixelBytes;
  }
};

// Where a block's tile is: its runs along each dimension, the number of its image and of its channels.
struct TilePlace {
  Run d, h, w;
  int n, channels;
};
__device__ __forceinline__ TilePlace place_of(const PixelTiles& tiles, const RunAxis (&axis)[3],
                                              int number) {
  const auto take = [&number](const FastDiv& by) {
    const int q = by.quick(number), r = number - q * static_cast<int>(by.divisor());
    number = q;
    return r;
  };
  TilePlace p;
  p.channels = take(tiles.by_channels);
  p.w = axis[2].piece(take(tiles.by_columns), tiles.columns);
  p.h = axis[1].piece(take(tiles.by_rows), tiles.rows);
  p.d = axis[0].piece(take(tiles.by_slices), 1);
  p.n = number;
  return p;
}

// Copies `rows` by `columns` pixels of kTileChannels channels to shared memory, f.offset(row, column) from
// `image` on where f.is_inside(row, column), else zeros. Of the channels there are `channels`.
template <class T, class F>
__device__ __forceinline__ void stage_vectors(T* to, const T* image, int rows, int columns,
                                              const FastDiv& by_column, int channels, const F& f) {
  constexpr int kVector = 16 / sizeof(T), kVectors = kPixelBytes / 16;
  const int lane = threadIdx.x % kVectors * kVector, first = threadIdx.x / kVectors;
  const int step = blockDim.x / kVectors;
  if (lane >= channels) return;
  image += lane;
  to += first * kTileChannels<T> + lane;
  const int step_row = by_column.quick(step), step_column = step - step_row * columns;
  int row = by_column.quick(first), column = first - row * columns;
  while (row < rows) {
    if (f.is_inside(row, column)) {
      copy_16(to, image + f.offset(row, column));
    } else {
      *reinterpret_cast<uint4*>(to) = uint4{0, 0, 0, 0};
    }
    to += step * kTileChannels<T>;
    row += step_row, column += step_column;
    if (column >= columns) column -= columns, ++row;
  }
}
// The same one by one: channel c lies at channel_offset(c).
template <class T, class F, class ChannelOffset>
__device__ __forceinline__ void stage_elements(T* to, const T* image, int rows, int columns,
                                               const FastDiv& by_column, int channels, const F& f,
                                               const ChannelOffset& channel_offset) {
  const int lane = threadIdx.x % kTileChannels<T>;
  if (lane >= channels) return;
  image += channel_offset(lane);
  for (int i = threadIdx.x / kTileChannels<T>; i < rows * columns;
       i += blockDim.x / kTileChannels<T>) {
    const int row = by_column.quick(i), column = i - row * columns;
    to[i * kTileChannels<T> + lane] =
        f.is_inside(row, column) ? image[f.offset(row, column)] : T(0.0f);
  }
}

// The part of the source that a tile meets. Offsets within an image count in 32 bits: see not_depthwise().
struct TileSource {
  int y, x, gap_y, gap_x, height, width;
  int first, row, column;  // offsets

  __device__ __forceinline__ TileSource(const RunAxis (&axis)[3], const TilePlace& p,
                                        const ConvImageStrides& s)
      : y(p.h.source),
        x(p.w.source),
        gap_y(axis[1].gap),
        gap_x(axis[2].gap),
        height(axis[1].extent),
        width(axis[2].extent),
        first(y * static_cast<int>(s.spatial[1]) + x * static_cast<int>(s.spatial[2])),
        row(gap_y * static_cast<int>(s.spatial[1])),
        column(gap_x * static_cast<int>(s.spatial[2])) {}
  __device__ __forceinline__ bool is_inside(int i, int j) const {
    return static_cast<unsigned>(y + i * gap_y) < static_cast<unsigned>(height) &&
           static_cast<unsigned>(x + j * gap_x) < static_cast<unsigned>(width);
  }
  __device__ __forceinline__ int offset(int i, int j) const { return first + i * row + j * column; }
};

// Whether threads may take 16 bytes of neighbouring channels of both images at once.
inline bool has_vectors(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  const int vector = 16 / static_cast<int>(dtype_size(p.x.dtype));
  if (g.k != 1 || g.groups % vector != 0 || p.x_strides.c != 1 || p.y_strides.c != 1) return false;
  const auto aligned = [&](const Tensor& t, const ConvImageStrides& s) {
    return is_aligned(t.data, 16) && s.n % vector == 0 && s.spatial[0] % vector == 0 &&
           s.spatial[1] % vector == 0 && s.spatial[2] % vector == 0;
  };
  return aligned(p.x, p.x_strides) && aligned(p.y, p.y_strides);
}

// Why these kernels cannot take a problem; nullptr: they can.
inline const char* not_depthwise(const ConvProblem& p, bool inverse) {
  const ConvGeometry& g = p.geometry;
  if (g.c != 1 || g.k > 4) return "groups of more than one channel, or of more than 4 results";
  for (int d = 0; d < 3; ++d) {
    const Window& w = g.window[d];
    if (inverse && w.stride > RunAxis::kMaxResidues) return "an input gradient of stride above 4";
    const int64_t reach = std::max(g.in[d], g.out[d] * w.stride) + w.span() + w.pad_begin;
    const int64_t stride =
        std::max({int64_t{1}, std::abs(p.x_strides.spatial[d]), std::abs(p.y_strides.spatial[d])});
    if (reach > INT_MAX / 16 / stride)
      return "positions, or offsets within an image, of 28 bits or more";
  }
  return nullptr;
}

}  // namespace dlkern::gpu
