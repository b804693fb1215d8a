// Weight gradient of a depthwise convolution, and its bias gradient:
//
//   dw[ch, t] = sum_pixel dy[pixel, ch] x[pixel * stride - pad + t * dilation, ch / k]
//   dbias[ch] = sum_pixel dy[pixel, ch]
//
// Channels last, a block takes tiles of pixels (conv_depthwise.cuh) of some channels, one after the other: dy, and what
// its pixels meet of x, lie in shared memory. A thread has 8 bytes of channels and some taps, whose sums are
// in registers; other threads have other taps, or other pixels of the tile. Else a block has one channel,
// whose pixels its threads read from L1. A block's sums go to the
// workspace, and a second kernel adds those of all blocks in order.
// Bound by memory; with many taps by FMA issue. Sums in float32 (float64 for float64); their order
// follows from the extents and the number of multiprocessors.
#include "cuda/conv.h"

#include "cuda/conv_depthwise.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kWide = 4;                         // neighbouring pixels of a thread
constexpr int64_t kPieces = 64;                  // of a tile
constexpr int kSlots = PixelTiles::kMostPieces;  // threads of the same channels in a block
constexpr int64_t kBytesOfThird = 75 * 1024;     // shared memory of a block, one of three

struct Args {
  RunAxis axis[3];
  PixelTiles tiles;
  const void *x, *dy;
  void *dw, *dbias, *parts;  // parts: [part, taps (and bias), channels]
  ConvImageStrides x_strides, dy_strides;
  int64_t dw_strides[3], channel_stride, bias_stride;
  int tap_extent[3], taps;
  int channels;
  FastDiv multiplier;
  FastDiv row_taps, slice_rows;
  // Groups of taps, rows of them by columns; those of a block, and the blocks that they take.
  int row_groups;
  FastDiv column_groups, block_groups, by_groups, by_slices;
  int64_t tile_count, part_count;
  bool accumulate;

  // high, wide: the taps of a thread.
  Args(const ConvProblem& p, int high, int wide)
      : axis{{p.geometry, 0, false}, {p.geometry, 1, false}, {p.geometry, 2, false}},
        tiles(p.geometry, axis, p.geometry.groups * p.geometry.k,
              kPixelBytes / static_cast<int>(dtype_size(p.x.dtype)), 1, kWide, kPieces, 0, true),
        x(p.x.data),
        dy(p.y.data),
        dw(p.w.data),
        dbias(p.bias && !p.transposed ? p.bias.data : nullptr),
        parts(nullptr),
        x_strides(p.x_strides),
        dy_strides(p.y_strides),
        channel_stride(p.w_strides.k),
        bias_stride(p.bias ? p.bias.strides[0] : 0),
        taps(static_cast<int>(p.geometry.taps())),
        channels(static_cast<int>(p.geometry.groups * p.geometry.k)),
        multiplier(p.geometry.k),
        row_taps(p.geometry.window[2].kernel),
        slice_rows(p.geometry.window[1].kernel),
        accumulate(p.accumulate) {
    for (int d = 0; d < 3; ++d) {
      tap_extent[d] = static_cast<int>(p.geometry.window[d].kernel);
      dw_strides[d] = p.w_strides.taps[d];
    }
    row_groups = static_cast<int>(ceil_div(tap_extent[1], high));
    column_groups = FastDiv(ceil_div(tap_extent[2], wide));
    const int64_t groups = row_groups * column_groups.divisor();
    block_groups = FastDiv(std::min<int64_t>(groups, kSlots));
    by_groups = FastDiv(ceil_div(groups, block_groups.divisor()));
    by_slices = FastDiv(tap_extent[0]);
    tile_count = tiles.count(p.geometry.batch) / tiles.by_channels.divisor();
    const int64_t blocks = tiles.by_channels.divisor() * by_groups.divisor() * tap_extent[0];
    part_count = std::clamp(blocks_at_once() / blocks, int64_t{1}, tile_count);
  }
  // More than are at work at the same time would wait for others, which do not take equal shares then.
  int64_t blocks_at_once() const {
    const int64_t bytes = tiles.source_bytes() + tiles.own_bytes();
    return (bytes <= kBytesOfThird ? 3 : 2) * int64_t{multiprocessor_count()};
  }
  int64_t blocks() const {
    return tiles.by_channels.divisor() * by_groups.divisor() * tap_extent[0] * part_count;
  }
  int rows() const { return taps + (dbias ? 1 : 0); }  // of a part
};

// The pixels of dy that are a tile.
struct OwnPixels {
  int rows, columns;  // that there are
  int row, column;    // offsets

  __device__ __forceinline__ bool is_inside(int i, int j) const { return i < rows && j < columns; }
  __device__ __forceinline__ int offset(int i, int j) const { return i * row + j * column; }
};

// Elements of shared memory, one row of one pixel's channels.
template <class T, int V>
__device__ __forceinline__ void read_pixel(const T* from, Accumulator<T> (&value)[V]) {
  Raw<T, V> raw;
  raw.load(from);
  raw.unpack(value);
}

// KR x KW taps of a thread, M between neighbouring pixels' windows; M = 0: any, and any number of
// columns, KW at a time.
template <class T, int KR, int KW, int M, bool kVectors>
__global__ void __launch_bounds__(PixelTiles::kThreads, 3)
    conv_depthwise_weight_kernel(const DLK_GRID_CONSTANT Args args) {
  using Acc = Accumulator<T>;
  constexpr int kChannels = kTileChannels<T>, V = kChannels / PixelTiles::kLanes;
  extern __shared__ uint4 memory[];
  const RunAxis(&axis)[3] = args.axis;
  const PixelTiles& tiles = args.tiles;
  T* const x = reinterpret_cast<T*>(memory);
  T* const dy = x + tiles.source_rows * tiles.source_columns * kChannels;
  int number = static_cast<int>(blockIdx.x);
  const auto take = [&number](const FastDiv& by) {
    const int q = by.quick(number), r = number - q * static_cast<int>(by.divisor());
    number = q;
    return r;
  };
  const int channel_tile = take(tiles.by_channels), group_block = take(args.by_groups),
            slice_tap = take(args.by_slices), part = number;
  const int first = channel_tile * kChannels, channels = args.channels - first;

  // The thread's taps, and its share of the pixels.
  const int lane = threadIdx.x % PixelTiles::kLanes * V, slot = threadIdx.x / PixelTiles::kLanes;
  const int groups = static_cast<int>(args.block_groups.divisor()),
            share = args.block_groups.quick(slot);
  const int group = group_block * groups + slot - share * groups;
  const int group_row = args.column_groups.quick(group);
  const int row_tap = group_row * KR;
  const int column_tap = (group - group_row * static_cast<int>(args.column_groups.divisor())) * KW;
  const int shares = kSlots / groups;
  const bool works = share < shares && group_row < args.row_groups;
  const bool adds_bias = args.dbias && group == 0 && slice_tap == 0;
  const int strips = static_cast<int>(tiles.across.divisor());

  Acc sum[KR][KW][V] = {}, bias[V] = {};
  for (int tile = part; tile < args.tile_count; tile += static_cast<int>(args.part_count)) {
    const TilePlace at =
        place_of(tiles, axis, tile * static_cast<int>(tiles.by_channels.divisor()) + channel_tile);
    const int z = at.d.source + slice_tap * axis[0].gap;
    const bool has_slice = static_cast<unsigned>(z) < static_cast<unsigned>(axis[0].extent);
    if (at.d.count <= 0 || at.h.count <= 0 || at.w.count <= 0 || (!has_slice && slice_tap > 0))
      continue;
    __syncthreads();  // the tile before has been read
    const ConvImageStrides &xs = args.x_strides, &ys = args.dy_strides;
    const T* image = static_cast<const T*>(args.x) + at.n * xs.n + z * xs.spatial[0];
    const T* gradient = static_cast<const T*>(args.dy) + at.n * ys.n + at.d.result * ys.spatial[0] +
                        at.h.result * ys.spatial[1] + at.w.result * ys.spatial[2];
    const TileSource part_of_x(axis, at, xs);
    const OwnPixels own{at.h.count, at.w.count, axis[1].apart * static_cast<int>(ys.spatial[1]),
                        axis[2].apart * static_cast<int>(ys.spatial[2])};
    if constexpr (kVectors) {
      if (has_slice) {
        stage_vectors(x, image + first, tiles.source_rows, tiles.source_columns,
                      tiles.by_source_column, channels, part_of_x);
      }
      stage_vectors(dy, gradient + first, tiles.rows, tiles.columns, tiles.by_column, channels,
                    own);
    } else {
      if (has_slice) {
        stage_elements(x, image, tiles.source_rows, tiles.source_columns, tiles.by_source_column,
                       channels, part_of_x,
                       [&](int c) { return int64_t{args.multiplier.quick(first + c)} * xs.c; });
      }
      stage_elements(dy, gradient, tiles.rows, tiles.columns, tiles.by_column, channels, own,
                     [&](int c) { return (first + c) * ys.c; });
    }
    wait_for_copies();
    __syncthreads();
    if (!works) continue;
    for (int piece = share; piece < tiles.pieces; piece += shares) {
      const int row = tiles.across.quick(piece), column = (piece - row * strips) * kWide;
      Acc g[kWide][V];
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        read_pixel<T, V>(dy + (row * tiles.columns + column + j) * kChannels + lane, g[j]);
      }
      if (adds_bias) {
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
#pragma unroll
          for (int e = 0; e < V; ++e) bias[e] += g[j][e];
        }
      }
      if (!has_slice) continue;
      const int between = M > 0 ? M : axis[2].step;
#pragma unroll
      for (int i = 0; i < KR; ++i) {
        if (row_tap + i >= args.tap_extent[1]) break;
        const T* from = x +
                        ((row * axis[1].step + row_tap + i) * tiles.source_columns +
                         column * between + column_tap) *
                            kChannels +
                        lane;
        const auto multiply = [&](int j, int t, const Acc(&value)[V]) {
#pragma unroll
          for (int e = 0; e < V; ++e) sum[i][t][e] += g[j][e] * value[e];
        };
        if constexpr (M > 0) {
          constexpr int kReach = (kWide - 1) * M + KW;
#pragma unroll
          for (int c = 0; c < kReach; ++c) {
            Acc value[V];
            read_pixel<T, V>(from + c * kChannels, value);
#pragma unroll
            for (int j = 0; j < kWide; ++j) {
              if (c >= j * M && c < j * M + KW) multiply(j, c - j * M, value);
            }
          }
        } else {
#pragma unroll
          for (int t = 0; t < KW; ++t) {
            if (column_tap + t >= args.tap_extent[2]) break;
#pragma unroll
            for (int j = 0; j < kWide; ++j) {
              Acc value[V];
              read_pixel<T, V>(from + (j * between + t) * kChannels, value);
              multiply(j, t, value);
            }
          }
        }
      }
    }
  }

  // The sums of the shares of a group, in order.
  constexpr int kRows = KR * KW + 1;
  Acc* const sums = reinterpret_cast<Acc*>(memory);  // [slot, rows, channels]
  const auto row_of = [&](int s, int r) { return sums + (s * kRows + r) * kChannels; };
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    Vec<Acc, V> v;
#pragma unroll
    for (int e = 0; e < V; ++e) v.v[e] = r < KR * KW ? sum[r / KW % KR][r % KW][e] : bias[e];
    store_vec(row_of(slot, r) + lane, v);
  }
  __syncthreads();
  Acc* const to = static_cast<Acc*>(args.parts) +
                  part * (args.taps + (args.dbias ? 1 : 0)) * int64_t{args.channels} + first;
  const int channel = threadIdx.x % kChannels;
  if (channel >= channels) return;
  for (int i = threadIdx.x / kChannels; i < groups * kRows; i += blockDim.x / kChannels) {
    const int s = i / kRows, r = i - s * kRows, which = group_block * groups + s;
    const int down = args.column_groups.quick(which);
    const int h = down * KR + r / KW;
    const int w = (which - down * static_cast<int>(args.column_groups.divisor())) * KW + r % KW;
    const bool is_bias = r == KR * KW;
    if (is_bias ? !(args.dbias && which == 0 && slice_tap == 0)
                : h >= args.tap_extent[1] || w >= args.tap_extent[2]) {
      continue;
    }
    Acc total = 0;
    for (int k = 0; k < shares; ++k) total += row_of(k * groups + s, r)[channel];
    const int tap =
        is_bias ? args.taps : (slice_tap * args.tap_extent[1] + h) * args.tap_extent[2] + w;
    to[int64_t{tap} * args.channels + channel] = total;
  }
}

constexpr int kPlaneThreads = 128;

// The same of planes: a block has a channel and KR x KW taps of a slice, M as above, of a part of the
// pixels, which its threads share.
struct PlaneArgs : Args {
  FastDiv strips, rows_down, slices;
  int64_t pieces;  // of kWide pixels of a row, in all images

  PlaneArgs(const ConvProblem& p, int high, int wide)
      : Args(p, high, wide),
        strips(axis[2].pieces(kWide)),
        rows_down(axis[1].pieces(1)),
        slices(axis[0].pieces(1)),
        pieces(p.geometry.batch * strips.divisor() * rows_down.divisor() * slices.divisor()) {
    block_groups = FastDiv(1);
    by_groups = FastDiv(row_groups * column_groups.divisor());
    const int64_t all = channels * by_groups.divisor() * tap_extent[0];
    part_count = std::clamp<int64_t>(16 * multiprocessor_count() / all, 1,
                                     ceil_div(pieces, 4 * kPlaneThreads));
  }
  int64_t plane_blocks() const {
    return channels * by_groups.divisor() * tap_extent[0] * part_count;
  }
};

template <class T, int KR, int KW, int M>
__global__ void __launch_bounds__(kPlaneThreads)
    conv_depthwise_weight_planes_kernel(const DLK_GRID_CONSTANT PlaneArgs args,
                                        FastDiv by_channel) {
  using Acc = Accumulator<T>;
  extern __shared__ uint4 memory[];
  const RunAxis(&axis)[3] = args.axis;
  int block = static_cast<int>(blockIdx.x);
  const auto take = [](int& number, const FastDiv& by) {
    const int q = by.quick(number), r = number - q * static_cast<int>(by.divisor());
    number = q;
    return r;
  };
  const int channel = take(block, by_channel), group = take(block, args.by_groups),
            slice_tap = take(block, args.by_slices), part = block;
  const int group_row = args.column_groups.quick(group), row_tap = group_row * KR;
  const int column_tap = (group - group_row * static_cast<int>(args.column_groups.divisor())) * KW;
  const int between = M > 0 ? M : axis[2].step;
  const bool adds_bias = args.dbias && group == 0 && slice_tap == 0;
  const ConvImageStrides &xs = args.x_strides, &ys = args.dy_strides;
  const T* const x = static_cast<const T*>(args.x) + args.multiplier.quick(channel) * xs.c;
  const T* const dy = static_cast<const T*>(args.dy) + channel * ys.c;
  const auto is_inside = [](int i, int extent) {
    return static_cast<unsigned>(i) < static_cast<unsigned>(extent);
  };

  constexpr int kRows = KR * KW + 1;  // of sums; the bias comes last
  Acc sum[kRows] = {};
  for (int64_t i = int64_t{part} * kPlaneThreads + threadIdx.x; i < args.pieces;
       i += args.part_count * kPlaneThreads) {
    int number = static_cast<int>(i);
    const Run w = axis[2].piece(take(number, args.strips), kWide),
              h = axis[1].piece(take(number, args.rows_down), 1),
              d = axis[0].piece(take(number, args.slices), 1);
    if (w.count <= 0 || h.count <= 0 || d.count <= 0) continue;
    const T* const gradient = dy + number * ys.n + d.result * ys.spatial[0] +
                              h.result * ys.spatial[1] + w.result * ys.spatial[2];
    const int z = d.source + slice_tap * axis[0].gap;
    const bool has_slice = is_inside(z, axis[0].extent);
    const T* const slice = x + number * xs.n + z * xs.spatial[0];
    Acc g[kWide];
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      T value(0.0f);
      if (j < w.count) value = gradient[j * axis[2].apart * ys.spatial[2]];
      g[j] = static_cast<Acc>(value);
      if (adds_bias) sum[KR * KW] += g[j];
    }
#pragma unroll
    for (int r = 0; r < KR; ++r) {
      const int y = h.source + (row_tap + r) * axis[1].gap;
      const bool inside =
          has_slice && row_tap + r < args.tap_extent[1] && is_inside(y, axis[1].extent);
      const T* const row = slice + y * xs.spatial[1];
      const auto read = [&](int t) {
        const int column = w.source + t * axis[2].gap;
        T value(0.0f);
        if (inside && is_inside(column, axis[2].extent)) value = row[column * xs.spatial[2]];
        return static_cast<Acc>(value);
      };
      if constexpr (M > 0) {
#pragma unroll
        for (int c = 0; c < (kWide - 1) * M + KW; ++c) {
          const Acc value = read(c);
#pragma unroll
          for (int j = 0; j < kWide; ++j) {
            if (c >= j * M && c < j * M + KW) sum[r * KW + c - j * M] += g[j] * value;
          }
        }
      } else {
#pragma unroll
        for (int t = 0; t < KW; ++t) {
          if (column_tap + t >= args.tap_extent[2]) break;
#pragma unroll
          for (int j = 0; j < kWide; ++j) {
            sum[r * KW + t] += g[j] * read(j * between + column_tap + t);
          }
        }
      }
    }
  }

  // The sums of the threads, in order.
  Acc* const sums = reinterpret_cast<Acc*>(memory);  // [row, thread]
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[r * kPlaneThreads + threadIdx.x] = sum[r];
  Acc* const to = static_cast<Acc*>(args.parts) +
                  part * (args.taps + (args.dbias ? 1 : 0)) * int64_t{args.channels} + channel;
  for (int half = kPlaneThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < kRows * half; i += kPlaneThreads) {
      const int r = i / half, t = i - r * half;
      sums[r * kPlaneThreads + t] += sums[r * kPlaneThreads + t + half];
    }
  }
  __syncthreads();
  for (int r = threadIdx.x; r < kRows; r += kPlaneThreads) {
    const int h = row_tap + r / KW, w = column_tap + r % KW;
    const bool is_bias = r == KR * KW;
    if (is_bias ? !adds_bias : h >= args.tap_extent[1] || w >= args.tap_extent[2]) continue;
    const int tap =
        is_bias ? args.taps : (slice_tap * args.tap_extent[1] + h) * args.tap_extent[2] + w;
    to[int64_t{tap} * args.channels] = sums[r * kPlaneThreads];
  }
}

constexpr int kSumLanes = 32, kSumThreads = 256;

// Adds up the parts: a block has kSumLanes neighbouring channels of one row.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    conv_depthwise_weight_sum_kernel(const DLK_GRID_CONSTANT Args args, FastDiv by_channels,
                                     int rows) {
  using Acc = Accumulator<T>;
  extern __shared__ uint4 memory[];
  Acc* const partial = reinterpret_cast<Acc*>(memory);
  const int block = static_cast<int>(blockIdx.x), row = by_channels.quick(block);
  const int lane = threadIdx.x % kSumLanes;
  const int channel = (block - row * static_cast<int>(by_channels.divisor())) * kSumLanes + lane;
  const Acc* from = static_cast<const Acc*>(args.parts) + int64_t{row} * args.channels + channel;
  Acc sum = 0;
  if (channel < args.channels) {
#pragma unroll 4
    for (int64_t i = threadIdx.x / kSumLanes; i < args.part_count; i += kSumThreads / kSumLanes) {
      sum += from[i * rows * args.channels];
    }
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kSumLanes || channel >= args.channels) return;
  for (int i = 1; i < kSumThreads / kSumLanes; ++i) sum += partial[i * kSumLanes + lane];
  T* to;
  if (row == args.taps) {
    to = static_cast<T*>(args.dbias) + channel * args.bias_stride;
  } else {
    const int down = args.row_taps.quick(row), slice = args.slice_rows.quick(down);
    to = static_cast<T*>(args.dw) + channel * args.channel_stride + slice * args.dw_strides[0] +
         (down - slice * args.tap_extent[1]) * args.dw_strides[1] +
         (row - down * args.tap_extent[2]) * args.dw_strides[2];
  }
  *to = static_cast<T>(args.accumulate ? static_cast<Acc>(*to) + sum : sum);
}

// f.operator()<taps' rows, columns, step>() with what a thread has; not common: one that takes all.
template <class T, class F>
auto with_taps(const ConvProblem& p, bool common, F&& f) {
  if constexpr (sizeof(T) < 8) {
    const Window &h = p.geometry.window[1], &w = p.geometry.window[2];
    const int64_t step = common ? w.stride / std::gcd(w.stride, w.dilation) : 0;
    if (step == 1 && w.kernel == 3 && h.kernel == 3) return f.template operator()<3, 3, 1>();
    if (step == 2 && w.kernel == 3 && h.kernel == 3) return f.template operator()<3, 3, 2>();
    if (step == 1 && w.kernel == 4) return f.template operator()<1, 4, 1>();
    if (step == 1 && w.kernel == 5) return f.template operator()<1, 5, 1>();
    if (step == 2 && w.kernel == 5) return f.template operator()<1, 5, 2>();
    if (step == 1 && w.kernel == 7) return f.template operator()<1, 7, 1>();
  }
  return f.template operator()<1, 4, 0>();
}

template <class T>
size_t workspace_bytes(const Args& args) {
  return static_cast<size_t>(args.part_count * args.rows() * args.channels) *
         sizeof(Accumulator<T>);
}

template <class T>
void launch_sum(const Args& args, const ConvProblem& p, const Launch& launch) {
  const FastDiv by_channels(ceil_div(args.channels, kSumLanes));
  launch_kernel(conv_depthwise_weight_sum_kernel<T>,
                static_cast<unsigned>(by_channels.divisor() * args.rows()), kSumThreads,
                kSumThreads * sizeof(Accumulator<T>), launch.stream, args, by_channels,
                args.rows());
  if (p.bias && p.transposed) add_bias_gradient(p, launch);
}

template <class T>
void launch_tiles(const ConvProblem& p, const Launch& launch) {
  const bool vectors = has_vectors(p);
  with_taps<T>(p, vectors, [&]<int KR, int KW, int M>() {
    Args args(p, KR, KW);
    args.parts = launch.workspace;
    const int64_t sums =
        int64_t{kSlots} * (KR * KW + 1) * kTileChannels<T> * sizeof(Accumulator<T>);
    void (*kernel)(const Args) = conv_depthwise_weight_kernel<T, KR, KW, M, true>;
    if constexpr (M == 0) {
      if (!vectors) kernel = conv_depthwise_weight_kernel<T, KR, KW, M, false>;
    }
    launch_kernel(kernel, static_cast<unsigned>(args.blocks()), PixelTiles::kThreads,
                  std::max(args.tiles.source_bytes() + args.tiles.own_bytes(), sums), launch.stream,
                  args);
    launch_sum<T>(args, p, launch);
  });
}

template <class T>
void launch_planes(const ConvProblem& p, const Launch& launch) {
  with_taps<T>(p, true, [&]<int KR, int KW, int M>() {
    PlaneArgs args(p, KR, KW);
    args.parts = launch.workspace;
    launch_kernel(conv_depthwise_weight_planes_kernel<T, KR, KW, M>,
                  static_cast<unsigned>(args.plane_blocks()), kPlaneThreads,
                  (KR * KW + 1) * kPlaneThreads * sizeof(Accumulator<T>), launch.stream, args,
                  FastDiv(args.channels));
    launch_sum<T>(args, p, launch);
  });
}

const char* unsuitable(const ConvProblem& p) {
  if (p.w.numel() == 0 || p.x.numel() == 0 || p.y.numel() == 0) return "nothing to multiply";
  return not_depthwise(p, false);
}
const char* unsuitable_for_tiles(const ConvBackwardWeight& p) {
  if (const char* reason = unsuitable(p)) return reason;
  if (!channels_last(p)) return "channels do not come last";
  const PixelTiles tiles = Args(p, 1, 1).tiles;
  return tiles.decline(p.geometry.batch, tiles.own_bytes());
}
const char* unsuitable_for_planes(const ConvBackwardWeight& p) {
  if (const char* reason = unsuitable(p)) return reason;
  if (channels_last(p)) return "channels come last";
  return PlaneArgs(p, 1, 1).pieces > INT_MAX ? "more pieces than 32 bits count" : nullptr;
}

constexpr Impl<ConvBackwardWeight> kBackwardWeight[] = {
    {"depthwise", unsuitable_for_tiles,
     [](const ConvBackwardWeight& p) {
       return dispatch_floating(p.x.dtype, [&]<class T>() {
         return with_taps<T>(p, has_vectors(p), [&]<int KR, int KW, int>() {
           return workspace_bytes<T>(Args(p, KR, KW));
         });
       });
     },
     [](const ConvBackwardWeight& p, const Launch& to) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_tiles<T>(p, to); });
     }},
    {"depthwise_planes", unsuitable_for_planes,
     [](const ConvBackwardWeight& p) {
       return dispatch_floating(p.x.dtype, [&]<class T>() {
         return with_taps<T>(p, true, [&]<int KR, int KW, int>() {
           return workspace_bytes<T>(PlaneArgs(p, KR, KW));
         });
       });
     },
     [](const ConvBackwardWeight& p, const Launch& to) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_planes<T>(p, to); });
     }},
};

}  // namespace

ImplList<ConvBackwardWeight> conv_backward_weight_depthwise_impls() { return kBackwardWeight; }

}  // namespace dlkern
