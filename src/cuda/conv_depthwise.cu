// Depthwise convolution forward and its input gradient (the forward of the transposed convolution):
//
//   forward         y[pixel, ch]  = bias[ch] + sum_t x[pixel * stride - pad + t * dilation, ch / k] w[ch, t]
//   backward_input  dx[pixel, c]  = bias[c] + sum_(m, t) dy[(pixel + pad - t * dilation) / stride, ch] w[ch, t]
//                                                                                 ch = c k + m,  m < k
//
// where a fractional or outside position gives 0. One to three spatial dimensions run as three.
// A block computes a tile of pixels (conv_depthwise.cuh) of some channels, for channels last: what these
// meet lies in shared memory, beside the weights. A thread has 8 bytes of channels of some rows by some
// columns of pixels, whose sums are in registers; it walks down the rows that they meet. Rows of common
// numbers of taps are read once for all its pixels, others tap by tap.
// Bound by memory; from about 30 taps on by FMA issue.
// Sums in float32 (float64 for float64), one chain in the order of the taps: bits do not depend on what
// else there is to compute.
#include "cuda/conv.h"

#include "cuda/conv_depthwise.cuh"

namespace dlkern {
namespace {

using namespace gpu;

struct Args {
  RunAxis axis[3];
  PixelTiles tiles;
  TapWeights weights;
  const void *image, *bias;
  void* result;
  ConvImageStrides image_strides, result_strides;
  int64_t bias_stride;
  int channels;        // of the result
  int summed;          // channels of the image for each of the result
  FastDiv multiplier;  // results for each channel of the image
  FastDiv row_taps, slice_rows;

  // high, wide: the pixels of a thread.
  Args(const ConvProblem& p, bool inverse, int high, int wide)
      : axis{{p.geometry, 0, inverse}, {p.geometry, 1, inverse}, {p.geometry, 2, inverse}},
        tiles(p.geometry, axis, channels_of(p, inverse),
              kPixelBytes / static_cast<int>(dtype_size(p.x.dtype)), high, wide,
              PixelTiles::kMostPieces, weight_bytes(p, inverse), false),
        weights(p, inverse),
        image((inverse ? p.y : p.x).data),
        bias(p.bias.data),
        result((inverse ? p.x : p.y).data),
        image_strides(inverse ? p.y_strides : p.x_strides),
        result_strides(inverse ? p.x_strides : p.y_strides),
        bias_stride(p.bias ? p.bias.strides[0] : 0),
        channels(static_cast<int>(channels_of(p, inverse))),
        summed(static_cast<int>(inverse ? p.geometry.k : 1)),
        multiplier(inverse ? 1 : p.geometry.k),
        row_taps(p.geometry.window[2].kernel),
        slice_rows(p.geometry.window[1].kernel) {}
  static int64_t channels_of(const ConvProblem& p, bool inverse) {
    return p.geometry.groups * (inverse ? 1 : p.geometry.k);
  }
  // Weights and bias, in the type of the sums.
  static int64_t weight_bytes(const ConvProblem& p, bool inverse) {
    const int64_t size = static_cast<int64_t>(dtype_size(p.x.dtype));
    return ((inverse ? p.geometry.k : 1) * p.geometry.taps() + 1) * kPixelBytes / size *
           std::max<int64_t>(size, sizeof(float));
  }
};

// The weights of a block's channels, as [summed, taps, kTileChannels], and last their bias.
template <class T>
__device__ __forceinline__ void stage_weights(const Args& args, int first, Accumulator<T>* to) {
  using Acc = Accumulator<T>;
  constexpr int kChannels = kTileChannels<T>;
  const int lane = threadIdx.x % kChannels, channel = first + lane;
  if (channel >= args.channels) return;
  const TapWeights& w = args.weights;
  const T* from = static_cast<const T*>(w.data) + int64_t{channel} * args.summed * w.channel;
  to += lane;
  for (int m = 0; m < args.summed; ++m, from += w.channel, to += w.count * kChannels) {
    for (int i = threadIdx.x / kChannels; i < w.count; i += blockDim.x / kChannels) {
      const int row = args.row_taps.quick(i), slice = args.slice_rows.quick(row);
      to[i * kChannels] =
          static_cast<Acc>(from[w.offset(slice, row - slice * w.extent[1], i - row * w.extent[2])]);
    }
  }
  if (threadIdx.x >= kChannels) return;
  const T* bias = static_cast<const T*>(args.bias);
  *to = bias ? static_cast<Acc>(bias[channel * args.bias_stride]) : Acc(0);
}

// Columns [0, kCount) of a row in shared memory, `between` apart.
template <class T, int V, int kCount>
__device__ __forceinline__ void read_row(const T* row, int between,
                                         Accumulator<T> (&value)[kCount][V]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    Raw<T, V> x;
    x.load(row + j * between * kTileChannels<T>);
    x.unpack(value[j]);
  }
}

// kHigh x kWide pixels of a thread; KW taps along a row, M between pixels of a run, or 0: any. kSquare: as
// many along a column, without branches. kVectors: see has_vectors().
template <class T, int kHigh, int kWide, int KW, int M, bool kSquare, bool kVectors>
__global__ void __launch_bounds__(PixelTiles::kThreads, 2)
    conv_depthwise_kernel(const DLK_GRID_CONSTANT Args args) {
  using Acc = Accumulator<T>;
  constexpr int kChannels = kTileChannels<T>, V = kChannels / PixelTiles::kLanes;
  constexpr int kTaps = KW > 0 ? KW : 1, kBetween = KW > 0 ? M : 1;
  constexpr int kReach = (kWide - 1) * kBetween + kTaps;
  extern __shared__ uint4 memory[];
  Acc* const weights = reinterpret_cast<Acc*>(memory);
  T* const source =
      reinterpret_cast<T*>(weights + (args.summed * args.weights.count + 1) * kChannels);
  const RunAxis(&axis)[3] = args.axis;
  const PixelTiles& tiles = args.tiles;
  const TilePlace at = place_of(tiles, axis, static_cast<int>(blockIdx.x));
  const int first = at.channels * kChannels, channels = args.channels - first;
  if (at.d.count <= 0 || at.h.count <= 0 || at.w.count <= 0) return;
  stage_weights<T>(args, first, weights);

  const int lane = threadIdx.x % PixelTiles::kLanes * V;
  const int piece = threadIdx.x / PixelTiles::kLanes, group = tiles.across.quick(piece);
  const int down = group * kHigh;
  const int along = (piece - group * static_cast<int>(tiles.across.divisor())) * kWide;
  const int pitch = tiles.source_columns * kChannels;
  const int between = KW > 0 ? M : axis[2].step;
  const int rows = piece < tiles.pieces && at.h.taps > 0 ? axis[1].reach(kHigh, at.h.taps) : 0;
  const T* const mine = source + down * axis[1].step * pitch + along * between * kChannels + lane;

  Acc sum[kHigh][kWide][V] = {};
  const TileSource part(axis, at, args.image_strides);
  for (int m = 0; m < args.summed; ++m) {
    for (int slice = 0; slice < at.d.taps; ++slice) {
      const int z = at.d.source + slice * axis[0].gap;
      if (static_cast<unsigned>(z) >= static_cast<unsigned>(axis[0].extent)) continue;
      const T* image = static_cast<const T*>(args.image) + at.n * args.image_strides.n +
                       z * args.image_strides.spatial[0];
      if constexpr (kVectors) {
        stage_vectors(source, image + first, tiles.source_rows, tiles.source_columns,
                      tiles.by_source_column, channels, part);
      } else {
        stage_elements(source, image, tiles.source_rows, tiles.source_columns,
                       tiles.by_source_column, channels, part, [&](int c) {
                         return (int64_t{args.multiplier.quick(first + c)} * args.summed + m) *
                                args.image_strides.c;
                       });
      }
      wait_for_copies();
      __syncthreads();
      const int slice_tap = m * args.weights.extent[0] + at.d.tap + slice * axis[0].tap_step;
      const auto multiply = [&](int r, int t, const Acc(&value)[kReach][V]) {
#pragma unroll
        for (int o = 0; o < kHigh; ++o) {
          const int tap = r - o * (kSquare ? M : axis[1].step);
          if (tap < 0 || tap >= (kSquare ? KW : at.h.taps)) continue;
          const int in_slice = kSquare ? tap : at.h.tap + tap * axis[1].tap_step;
          const int row = slice_tap * (kSquare ? KW : args.weights.extent[1]) + in_slice;
          const Acc* weight =
              weights + (row * (KW > 0 ? KW : args.weights.extent[2]) + t) * kChannels + lane;
#pragma unroll
          for (int k = 0; k < kTaps; ++k) {
            const Vec<Acc, V> w = load_vec<V>(weight + k * kChannels);
#pragma unroll
            for (int j = 0; j < kWide; ++j) {
#pragma unroll
              for (int e = 0; e < V; ++e) sum[o][j][e] += value[j * kBetween + k][e] * w.v[e];
            }
          }
        }
      };
      Acc value[kReach][V];
      if constexpr (kSquare) {
        if (rows > 0) {
#pragma unroll
          for (int r = 0; r < (kHigh - 1) * M + KW; ++r) {
            read_row<T, V>(mine + r * pitch, 1, value);
            multiply(r, 0, value);
          }
        }
      } else if constexpr (KW > 0) {
        if (rows > 0) read_row<T, V>(mine, 1, value);
#pragma unroll 1
        for (int r = 0; r < rows; ++r) {
          multiply(r, 0, value);
          if (r + 1 < rows) read_row<T, V>(mine + (r + 1) * pitch, 1, value);
        }
      } else {
        for (int r = 0; r < rows; ++r) {
          for (int t = 0; t < at.w.taps; ++t) {
            read_row<T, V>(mine + r * pitch + t * kChannels, between, value);
            multiply(r, at.w.tap + t * axis[2].tap_step, value);
          }
        }
      }
      __syncthreads();
    }
  }
  __syncthreads();  // where nothing was summed: the bias is there
  if (piece >= tiles.pieces || lane >= channels) return;

  const Vec<Acc, V> bias =
      load_vec<V>(weights + args.summed * args.weights.count * kChannels + lane);
  const ConvImageStrides& to = args.result_strides;
  const int row_step = axis[1].apart * static_cast<int>(to.spatial[1]);
  const int column_step = axis[2].apart * static_cast<int>(to.spatial[2]);
  T* row = static_cast<T*>(args.result) + at.n * to.n + (first + lane) * to.c +
           at.d.result * to.spatial[0] + at.h.result * to.spatial[1] + at.w.result * to.spatial[2] +
           down * row_step + along * column_step;
  const int rows_left = at.h.count - down, columns_left = at.w.count - along;
#pragma unroll
  for (int o = 0; o < kHigh; ++o, row += row_step) {
    if (o >= rows_left) break;
    T* pixel = row;
#pragma unroll
    for (int j = 0; j < kWide; ++j, pixel += column_step) {
      Acc value[V];
#pragma unroll
      for (int e = 0; e < V; ++e) value[e] = sum[o][j][e] + bias.v[e];
      if constexpr (kVectors) {
        Raw<T, V> rounded;
        rounded.pack(value);
        if (j < columns_left) *reinterpret_cast<uint2*>(pixel) = bit_cast_to<uint2>(rounded);
      } else {
#pragma unroll
        for (int e = 0; e < V; ++e) {
          if (j < columns_left && lane + e < channels) pixel[e * to.c] = static_cast<T>(value[e]);
        }
      }
    }
  }
}

// f.operator()<pixels' rows, columns, taps in a row, step, square, vectors>() with what a problem takes.
template <class T, class F>
auto with_pixels(const ConvProblem& p, bool inverse, F&& f) {
  if (!has_vectors(p)) return f.template operator()<1, 8, 0, 0, false, false>();
  if constexpr (sizeof(T) < 8) {
    const Window &h = p.geometry.window[1], &w = p.geometry.window[2];
    const auto step = [&](const Window& window) {
      return inverse ? 1 : window.stride / std::gcd(window.stride, window.dilation);
    };
    const bool flat = p.geometry.out[1] == 1, every = !(inverse && w.stride > 1);
    const bool square = h.kernel == w.kernel && step(h) == step(w) && !(inverse && h.stride > 1);
    const auto is = [&](int64_t taps, int64_t step_) {
      return every && w.kernel == taps && step(w) == step_;
    };
    if (is(4, 1) && flat) return f.template operator()<1, 8, 4, 1, false, true>();
    if (is(3, 1) && square) return f.template operator()<4, 4, 3, 1, true, true>();
    if (is(3, 2) && square) return f.template operator()<4, 4, 3, 2, true, true>();
    if (is(3, 1) && !flat) return f.template operator()<4, 4, 3, 1, false, true>();
    if (is(5, 1) && !flat) return f.template operator()<4, 4, 5, 1, false, true>();
    if (is(5, 2) && !flat) return f.template operator()<4, 4, 5, 2, false, true>();
    if (is(7, 1) && !flat) return f.template operator()<4, 4, 7, 1, false, true>();
  }
  return f.template operator()<1, 8, 0, 0, false, true>();
}

template <class T>
void launch(const ConvProblem& p, bool inverse, const Launch& launch) {
  if ((inverse ? p.x : p.y).numel() == 0) return;
  with_pixels<T>(
      p, inverse, [&]<int kHigh, int kWide, int KW, int M, bool kSquare, bool kVectors>() {
        const Args args(p, inverse, kHigh, kWide);
        launch_kernel(
            conv_depthwise_kernel<T, kHigh, kWide, KW, M, kSquare, kVectors>,
            static_cast<unsigned>(args.tiles.count(p.geometry.batch)), args.tiles.threads(),
            args.tiles.source_bytes() + Args::weight_bytes(p, inverse), launch.stream, args);
      });
}

const char* unsuitable(const ConvProblem& p, bool inverse) {
  if (const char* reason = fused_work_declines(p)) return reason;
  if (const char* reason = not_depthwise(p, inverse)) return reason;
  if (!channels_last(p)) return "channels do not come last";
  if ((inverse ? p.x : p.y).numel() == 0) return nullptr;
  return dispatch_floating(p.x.dtype, [&]<class T>() {
    return with_pixels<T>(p, inverse, [&]<int kHigh, int kWide, int, int, bool, bool>() {
      return Args(p, inverse, kHigh, kWide)
          .tiles.decline(p.geometry.batch, Args::weight_bytes(p, inverse));
    });
  });
}

template <bool kInverse>
void run(const ConvProblem& p, const Launch& to) {
  dispatch_floating(p.x.dtype, [&]<class T>() { launch<T>(p, kInverse, to); });
}

constexpr Impl<ConvForward> kForward[] = {
    {"depthwise", [](const ConvForward& p) { return unsuitable(p, false); }, nullptr,
     [](const ConvForward& p, const Launch& to) { run<false>(p, to); }},
};
constexpr Impl<ConvBackwardInput> kBackwardInput[] = {
    {"depthwise", [](const ConvBackwardInput& p) { return unsuitable(p, true); }, nullptr,
     [](const ConvBackwardInput& p, const Launch& to) { run<true>(p, to); }},
};

}  // namespace

ImplList<ConvForward> conv_forward_depthwise_impls() { return kForward; }
ImplList<ConvBackwardInput> conv_backward_input_depthwise_impls() { return kBackwardInput; }

}  // namespace dlkern
