// Batch and group norm in passes where channels are neighbours (NHWC): columns of 16 bytes.
//
// Layout: x is [samples, rows, C] (batch norm: where possible one sample). A block takes `width`
// neighbouring pieces of 16 bytes of a row and `height` rows at a time; a thread stays with its piece.
// Algorithm: partial moments or sums of splits of the rows, their merge (norm_merge.cu), and the
// element-wise pass, 4 rows of each thread. Moments of x minus the thread's first value: that is one
// of those whose deviations are summed, so that what cancels is at most the number of a thread's rows
// times the result. Bound by memory. What is summed in which order follows from the shape of a sample.
// Sums in float32 (float64 for float64).
//
// Reference: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
#include "core/fast_div.h"
#include "cuda/norm_passes.cuh"
#include "cuda/norm_pieces.cuh"

namespace dlkern::gpu {
namespace {

constexpr int kSumThreads = 256;    // of the blocks that sum
constexpr int kApplyThreads = 128;  // of the element-wise pass: many small blocks
constexpr int kRows = 4;            // of a thread whose loads are on their way together
constexpr int kMostWidth = 32;
// Splits of the rows that are summed. Of one sample: what a multiprocessor holds at once; of samples, on
// whose number nothing may depend: 16 rows of a thread, or 32 where those are many splits.
constexpr int kMomentsBlocks = 3, kSumsBlocks = 2;  // of a multiprocessor
constexpr int kFewRows = 16, kManyRows = 32, kFewSplits = 128;

// One of the tensors: samples of rows of neighbours.
template <class T>
struct Rows {
  T* data;
  int64_t sample_stride, stride;  // in elements
  int align;                      // bytes of an access
};

// How [samples, rows, C] is shared out.
struct Columns {
  int64_t samples, rows, channels;
  bool batch;          // sets are channels
  FastDiv width;       // pieces of a block's rows
  int height;          // rows of a block at a time
  FastDiv slabs;       // of `width` pieces
  FastDiv splits;      // of the rows
  int64_t split_rows;  // of a split

  // Blocks of so many threads, each of which takes so many rows at least.
  void share_out(int threads, int piece, int thread_rows, int64_t most_splits) {
    const int64_t pieces = ceil_div(channels, piece), count = ceil_div(pieces, kMostWidth);
    slabs = FastDiv(count);
    width = FastDiv(ceil_div(pieces, count));
    height = static_cast<int>(threads / width.divisor());
    const int64_t least = ceil_div(rows, most_splits * height);
    split_rows = height * std::max<int64_t>(least, thread_rows);
    splits = FastDiv(ceil_div(rows, split_rows));
  }
  void share_out_sums(int piece, int blocks) {
    share_out(kSumThreads, piece, kFewRows, rows);
    if (samples == 1 && batch) {
      const int64_t wave = int64_t{blocks} * multiprocessor_count() / slabs.divisor();
      share_out(kSumThreads, piece, kFewRows, std::max<int64_t>(wave, 1));
    } else if (splits.divisor() > kFewSplits) {
      share_out(kSumThreads, piece, kManyRows, rows);
    }
  }
  void share_out_elements(int piece) { share_out(kApplyThreads, piece, kRows, rows); }
  int64_t blocks() const { return samples * splits.divisor() * slabs.divisor(); }
  int64_t parts() const { return splits.divisor() * (batch ? samples : 1); }  // of a column
};

// The pieces of a thread.
template <class T>
struct ColumnPieces {
  static constexpr int kE = kPiece<T>;
  const Columns& columns;
  int64_t sample, split, slab_channel;
  int64_t channel;  // of the first element
  int count;        // channels; 0: none
  int row;          // of the block's rows at a time
  int column;       // of the block's pieces
  int64_t first;    // row
  int64_t rows;     // of the split, from there on
  int block_rows;

  __device__ __forceinline__ explicit ColumnPieces(const Columns& c, int64_t block = blockIdx.x)
      : columns(c) {
    const int64_t group = c.slabs(block);
    sample = c.splits(group);
    split = group - sample * c.splits.divisor();
    const int width = static_cast<int>(c.width.divisor());
    row = c.width.quick(threadIdx.x);
    column = threadIdx.x - row * width;
    slab_channel = (block - group * c.slabs.divisor()) * width * kE;
    channel = slab_channel + column * kE;
    const int64_t left = c.channels - channel;
    const bool inside = row < c.height && left > 0;
    count = !inside ? 0 : left < kE ? static_cast<int>(left) : kE;
    const int64_t begin = split * c.split_rows;
    block_rows = static_cast<int>(min(c.rows - begin, c.split_rows));
    first = begin + row;
    rows = inside ? block_rows - row : 0;
  }
  __device__ __forceinline__ int64_t of(int64_t sample_, int64_t channel_) const {
    return columns.batch ? channel_ : sample_ * columns.channels + channel_;
  }
  __device__ __forceinline__ int64_t entry(int64_t c) const {
    const int64_t splits = columns.splits.divisor();
    const int64_t at = columns.batch ? c * columns.samples + sample : sample * columns.channels + c;
    return at * splits + split;
  }
  // How many of the thread's rows from number r on there are, up to kRows.
  __device__ __forceinline__ int rows_from(int64_t r) const {
    return rows <= r ? 0
                     : static_cast<int>(min((rows - r - 1) / columns.height + 1, int64_t{kRows}));
  }
  template <class U>
  __device__ __forceinline__ U* at(const Rows<U>& t, int64_t r) const {
    return t.data + sample * t.sample_stride + (first + r) * t.stride + channel;
  }
  // Pieces of `some` rows from the thread's row first + r on; all loads are on their way before the
  // first is waited for.
  __device__ __forceinline__ void load(const Rows<const T>& t, int64_t r, int some,
                                       Piece<T> (&piece)[kRows]) const {
    const T* p = at(t, r);
    const int64_t step = columns.height * t.stride;
    if (t.align == 16 && (count == kE || count == 0)) {
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        piece[k] = Piece<T>{};
        load_words(k < some, p + k * step, piece[k].word);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        piece[k] = load_piece(p + k * step, k < some ? count : 0, t.align);
      }
    }
  }
  __device__ __forceinline__ void store(const Rows<T>& t, int64_t r, const Piece<T>& piece) const {
    store_piece(at(t, r), piece, count, t.align);
  }
  template <class F>
  __device__ __forceinline__ void for_channels(F&& f) const {
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      if (e < count) f(e, channel + e);
    }
  }
  template <class Acc>
  __device__ __forceinline__ void coefficients(const Coefficients<Acc>& from, int kind,
                                               Acc (&v)[kE]) const {
    const Acc* p = &from.at(kind, of(sample, channel));
    if (columns.channels % kE == 0) {
      if (count == 0) return;
#pragma unroll
      for (int e = 0; e < kE; e += kPiece<Acc>) {
        const Vec<Acc, kPiece<Acc>> some = load_vec<kPiece<Acc>>(p + e);
#pragma unroll
        for (int i = 0; i < kPiece<Acc>; ++i) v[e + i] = some.v[i];
      }
    } else {
#pragma unroll
      for (int e = 0; e < kE; ++e) v[e] = e < count ? p[e] : Acc(0);
    }
  }
  // The sums over a block's rows of K values for each channel: f(channel, sums), once for each.
  // values(k, e) is the thread's; all threads of the block must call it.
  template <int K, class Acc, class Values, class F>
  __device__ __forceinline__ void sum_rows(Acc* shared, Values&& values, F&& f) const {
    const int wide = static_cast<int>(columns.width.divisor()) * kE;
    __syncthreads();  // the previous call's reads are over
    if (row < columns.height) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
#pragma unroll
        for (int e = 0; e < kE; ++e) {
          shared[(row * K + k) * wide + column * kE + e] = values(k, e);
        }
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < wide; i += kSumThreads) {
      Acc sums[K] = {};
      for (int r = 0; r < columns.height; ++r) {
#pragma unroll
        for (int k = 0; k < K; ++k) sums[k] += shared[(r * K + k) * wide + i];
      }
      if (slab_channel + i < columns.channels) f(slab_channel + i, sums);
    }
  }
};

// ---- Forward -----------------------------------------------------------------------------------

template <class T>
struct ForwardArgs {
  using Acc = Accumulator<T>;
  Columns columns;
  Rows<const T> x, residual;
  Rows<T> y;
  PartialMoments<Acc>* entries;
  Coefficients<Acc> coefficients;
  dlk_activation activation;
};

template <class T>
__global__ void __launch_bounds__(kSumThreads, kMomentsBlocks)
    columns_moments_kernel(const DLK_GRID_CONSTANT ForwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  __shared__ Acc shared[kSumThreads * kE * 2];
  __shared__ Acc centers[kMostWidth * kE];
  const ColumnPieces<T> pieces(args.columns);
  const int group = kRows * args.columns.height;
  Acc shift[kE] = {}, sum[kE] = {}, squares[kE] = {};
  int n = 0;
  for (int64_t r = 0; r < pieces.rows; r += group) {
    const int some = pieces.rows_from(r);
    Piece<T> x[kRows];
    pieces.load(args.x, r, some, x);
    if (r == 0) {
#pragma unroll
      for (int e = 0; e < kE; ++e) shift[e] = static_cast<Acc>(x[0].get(e));
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (k >= some) continue;
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        const Acc d = static_cast<Acc>(x[k].get(e)) - shift[e];
        sum[e] += d;
        squares[e] += d * d;
      }
    }
    n += some;
  }
  // All rows of the block: first their means, then the deviations from these.
  const Acc own = static_cast<Acc>(n), count = static_cast<Acc>(pieces.block_rows);
  pieces.template sum_rows<1>(
      shared, [&](int, int e) { return sum[e] + own * shift[e]; },
      [&](int64_t c, const Acc(&total)[1]) {
        centers[c - pieces.slab_channel] = total[0] / count;
      });
  __syncthreads();
  pieces.template sum_rows<2>(
      shared,
      [&](int k, int e) {
        const Acc d = shift[e] - centers[pieces.column * kE + e];
        return k == 0 ? sum[e] + own * d : squares[e] + (2 * sum[e] + own * d) * d;
      },
      [&](int64_t c, const Acc(&total)[2]) {
        const Acc rest = total[0] / count, m2 = total[1] - total[0] * rest;
        args.entries[pieces.entry(c)] = {count, centers[c - pieces.slab_channel], rest,
                                         m2 < 0 ? Acc(0) : m2};
      });
}

template <class T>
__global__ void __launch_bounds__(kApplyThreads)
    columns_normalize_kernel(const DLK_GRID_CONSTANT ForwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  const ColumnPieces<T> pieces(args.columns, block_from_last());
  const int some = pieces.rows_from(0);
  Piece<T> x[kRows], residual[kRows];
  pieces.load(args.x, 0, some, x);
  if (args.residual.data) pieces.load(args.residual, 0, some, residual);
  Acc center[kE], scale[kE], offset[kE];
  pieces.coefficients(args.coefficients, kCenter, center);
  pieces.coefficients(args.coefficients, kScale, scale);
  pieces.coefficients(args.coefficients, kOffset, offset);
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    if (k >= some) return;
    pieces.store(args.y, k * args.columns.height,
                 normalized(args.activation, x[k], args.residual.data != nullptr, residual[k],
                            center, scale, offset));
  }
}

// ---- Backward ----------------------------------------------------------------------------------

// An array whose elements lie apart.
template <class Acc>
struct Strided {
  Acc* data;
  int stride;
  __device__ __forceinline__ Acc& operator[](int e) const { return data[e * stride]; }
};

template <class T>
struct BackwardArgs {
  using Acc = Accumulator<T>;
  Columns columns;
  Rows<const T> dy, x, y;
  Rows<T> dx, dresidual;
  SetVector<Acc> mean, rstd;
  ChannelVector<Acc> weight, bias;
  FastDiv each;  // channels of a set; of batch norm 1
  PartialSums<Acc>* entries;
  Coefficients<Acc> coefficients;
  bool given;  // rstd is the running variance; the statistics are constants
  double eps;
  dlk_activation activation;
};

template <class T>
__global__ void __launch_bounds__(kSumThreads, kSumsBlocks)
    columns_sums_kernel(const DLK_GRID_CONSTANT BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  __shared__ Acc shared[kSumThreads * kE * 2];
  const ColumnPieces<T> pieces(args.columns);
  const int group = kRows * args.columns.height;
  const bool masked = args.y.data != nullptr;
  Acc mean[kE] = {}, total[2][kE] = {};
  // For the activation's argument, in shared memory: there are no registers for them.
  const Strided<Acc> scale{shared + pieces.column, kMostWidth};
  const Strided<Acc> bias{scale.data + kMostWidth * kE, kMostWidth};
  pieces.for_channels([&](int e, int64_t c) {
    const int64_t set = args.each(c);
    mean[e] = args.mean.load(pieces.sample, set);
    if (args.activation != DLK_ACTIVATION_NONE && !masked && pieces.row == 0) {
      const Acc v = args.rstd.load(pieces.sample, set);
      const Acc rstd = args.given ? 1 / sqrt(v + static_cast<Acc>(args.eps)) : v;
      scale[e] = args.weight.load_or(c, 1) * rstd;
      bias[e] = args.bias.load_or(c, 0);
    }
  });
  __syncthreads();
  for (int64_t r = 0; r < pieces.rows; r += group) {
    const int some = pieces.rows_from(r);
    Piece<T> dy[kRows], x[kRows], y[kRows];
    pieces.load(args.dy, r, some, dy);
    pieces.load(args.x, r, some, x);
    if (masked) pieces.load(args.y, r, some, y);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (k >= some) continue;
      Acc dz[kE], d[kE];
      gradients(args.activation, dy[k], x[k], masked, y[k], mean, scale, bias, dz, d);
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        total[0][e] += dz[e];
        total[1][e] += dz[e] * d[e];
      }
    }
  }
  pieces.template sum_rows<2>(
      shared, [&](int k, int e) { return total[k][e]; },
      [&](int64_t c, const Acc(&sums)[2]) { args.entries[pieces.entry(c)] = {sums[0], sums[1]}; });
}

template <class T>
__global__ void __launch_bounds__(kApplyThreads)
    columns_gradient_kernel(const DLK_GRID_CONSTANT BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  const ColumnPieces<T> pieces(args.columns, block_from_last());
  const int some = pieces.rows_from(0);
  const bool masked = args.y.data != nullptr;
  Piece<T> dy[kRows], x[kRows], y[kRows];
  pieces.load(args.dy, 0, some, dy);
  pieces.load(args.x, 0, some, x);
  if (masked) pieces.load(args.y, 0, some, y);
  Acc mean[kE], scale[kE], across[kE], offset[kE], bias[kE];
  pieces.coefficients(args.coefficients, kMean, mean);
  pieces.coefficients(args.coefficients, kSlope, scale);
  pieces.coefficients(args.coefficients, kAcross, across);
  pieces.coefficients(args.coefficients, kOffsets, offset);
  if (args.activation != DLK_ACTIVATION_NONE && !masked) {
    pieces.coefficients(args.coefficients, kBias, bias);
  }
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    if (k >= some) return;
    const int64_t r = k * args.columns.height;
    Acc dz[kE], d[kE];
    gradients(args.activation, dy[k], x[k], masked, y[k], mean, scale, bias, dz, d);
    if (args.dresidual.data) pieces.store(args.dresidual, r, rounded<T>(dz));
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      // Constants have no gradient: an infinite x is no matter then.
      const Acc straight = scale[e] * dz[e];
      dz[e] = args.given ? straight : straight + (across[e] * d[e] + offset[e]);
    }
    pieces.store(args.dx, r, rounded<T>(dz));
  }
}

// ---- Host --------------------------------------------------------------------------------------

// t as [samples, rows, C], or with one sample; false where channels are not neighbours or rows not at
// one stride.
struct View {
  int64_t samples, rows, sample_stride, stride;
};
bool view_as(const Tensor& t, int channel, bool samples, View& view) {
  const uint32_t split = 1u << channel | (samples ? 1u : 0u);
  const StridedIndex<1> rows = make_index<1>({&t}, ~split);
  const int64_t channels = t.shape[channel];
  view = {samples ? t.shape[0] : 1, rows.numel, samples ? t.strides[0] : 0,
          rows.ndim == 0 ? channels : rows.stride[0][0]};
  return rows.ndim <= 1 && (channels == 1 || t.strides[channel] == 1);
}
template <int N>
bool viewable(const Tensor* const (&tensors)[N], int channel, bool samples) {
  View view{};
  for (const Tensor* t : tensors) {
    if (*t && !view_as(*t, channel, samples, view)) return false;
  }
  return true;
}
// Whether samples are kept apart.
template <int N>
bool by_sample(const SetShape& shape, const Tensor* const (&tensors)[N]) {
  return shape.groups || !viewable(tensors, shape.channel, false);
}

template <int N>
const char* unsuitable(const SetShape& shape, const Tensor* const (&tensors)[N]) {
  const Tensor& x = *tensors[0];
  if (x.numel() == 0) return "there is nothing to normalise";
  if (!viewable(tensors, shape.channel, by_sample(shape, tensors))) {
    return "channels are not neighbours, or rows strided";
  }
  return shape.channels(x) >> 30 ? "too many channels" : nullptr;
}

template <int N>
Columns columns_of(const SetShape& shape, const Tensor* const (&tensors)[N], int blocks) {
  View view{};
  view_as(*tensors[0], shape.channel, by_sample(shape, tensors), view);
  Columns c{view.samples, view.rows, shape.channels(*tensors[0]), !shape.groups};
  c.share_out_sums(static_cast<int>(16 / dtype_size(tensors[0]->dtype)), blocks);
  return c;
}

template <class U>
Rows<U> rows_of(const Tensor& t, int channel, bool samples) {
  if (!t) return {};
  View view{};
  view_as(t, channel, samples, view);
  const int64_t strides = (view.rows > 1 ? view.stride : 0) | view.sample_stride;
  const auto bits =
      reinterpret_cast<uint64_t>(t.data) | 16 | static_cast<uint64_t>(strides) * sizeof(U);
  return {t.as<U>(), view.sample_stride, view.stride, static_cast<int>(bits & (~bits + 1))};
}

Columns columns_of(const SetForward& p) {
  return columns_of<3>(p.shape, {&p.x, &p.residual, &p.y}, kMomentsBlocks);
}
Columns columns_of(const SetBackward& p) {
  return columns_of<5>(p.shape, {&p.dy, &p.x, &p.y, &p.dx, &p.dresidual}, kSumsBlocks);
}

template <class T>
void launch_forward(const SetForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const int channel = p.shape.channel;
  const bool samples = by_sample<3>(p.shape, {&p.x, &p.residual, &p.y});
  Columns columns = columns_of(p);
  const int64_t parts = columns.parts();
  ForwardArgs<T> args{columns,
                      rows_of<const T>(p.x, channel, samples),
                      rows_of<const T>(p.residual, channel, samples),
                      rows_of<T>(p.y, channel, samples),
                      static_cast<PartialMoments<Acc>*>(launch.workspace),
                      {static_cast<Acc*>(forward_coefficients(p, parts, launch.workspace)),
                       columns_of(p.x, p.shape)},
                      p.activation};
  if (!p.given()) {
    launch_kernel(columns_moments_kernel<T>, static_cast<unsigned>(columns.blocks()), kSumThreads,
                  0, launch.stream, args);
  }
  merge_moments(p, parts, launch);
  args.columns.share_out_elements(kPiece<T>);
  launch_kernel(columns_normalize_kernel<T>, static_cast<unsigned>(args.columns.blocks()),
                kApplyThreads, 0, launch.stream, args);
}

template <class T>
void launch_backward(const SetBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const int channel = p.shape.channel;
  const bool samples = by_sample<5>(p.shape, {&p.dy, &p.x, &p.y, &p.dx, &p.dresidual});
  const bool masked = p.activation != DLK_ACTIVATION_NONE;
  Columns columns = columns_of(p);
  const int64_t parts = columns.parts(), channels = p.shape.channels(p.x);
  BackwardArgs<T> args{columns,
                       rows_of<const T>(p.dy, channel, samples),
                       rows_of<const T>(p.x, channel, samples),
                       rows_of<const T>(masked ? p.y : Tensor{}, channel, samples),
                       rows_of<T>(p.dx, channel, samples),
                       rows_of<T>(p.dresidual, channel, samples),
                       SetVector<Acc>(p.mean),
                       SetVector<Acc>(p.rstd),
                       ChannelVector<Acc>(p.weight),
                       ChannelVector<Acc>(p.bias),
                       FastDiv(p.shape.groups ? channels / p.shape.groups : 1),
                       static_cast<PartialSums<Acc>*>(launch.workspace),
                       {static_cast<Acc*>(backward_coefficients(p, parts, launch.workspace)),
                        columns_of(p.x, p.shape)},
                       p.given,
                       p.eps,
                       p.activation};
  if (needs_sums(p)) {
    launch_kernel(columns_sums_kernel<T>, static_cast<unsigned>(columns.blocks()), kSumThreads, 0,
                  launch.stream, args);
  }
  merge_sums(p, parts, launch);
  args.columns.share_out_elements(kPiece<T>);
  launch_kernel(columns_gradient_kernel<T>, static_cast<unsigned>(args.columns.blocks()),
                kApplyThreads, 0, launch.stream, args);
}

}  // namespace

SetNorm kSetsOfColumns = {
    [](const SetForward& p) { return unsuitable<3>(p.shape, {&p.x, &p.residual, &p.y}); },
    [](const SetForward& p) { return forward_workspace_of(p, columns_of(p).parts()); },
    [](const SetForward& p, const Launch& launch) {
      dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
    },
    [](const SetBackward& p) {
      return unsuitable<5>(p.shape, {&p.dy, &p.x, &p.y, &p.dx, &p.dresidual});
    },
    [](const SetBackward& p) { return backward_workspace_of(p, columns_of(p).parts()); },
    [](const SetBackward& p, const Launch& launch) {
      dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
    },
};

}  // namespace dlkern::gpu
