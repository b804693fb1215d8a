// Batch norm where channels are neighbours (NHWC): columns of 16 bytes.
//
// Layout: x is [rows, C]. A block of 256 threads takes `width` neighbouring pieces of 16 bytes of a
// row and 256 / width rows at a time; a thread stays with its piece, so that its channels' factors
// are in registers. The rows are cut into splits, one for each block. Three launches: partial
// results of the splits, their merge (a warp for each channel), and the element-wise pass, which
// walks the rows backwards: those read last are still in the L2 cache. Bound by memory.
// Statistics by groups of rows, merged by Chan's formula, of x minus the channel's first value.
// Sums in float32 (float64 for float64), in an order that the shape and the GPU decide.
//
// Reference: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
#include "cuda/norm_pieces.cuh"

namespace dlkern::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;  // of a thread whose loads are on their way together

// How [rows, C] is shared out.
struct Columns {
  int64_t rows, channels;
  int width;           // pieces of a block's rows
  int height;          // rows of a block at a time
  int64_t slabs;       // of `width` pieces
  int64_t splits;      // of the rows
  int64_t split_rows;  // of a split

  int64_t blocks() const { return slabs * splits; }
};

Columns share_out(int64_t rows, int64_t channels, int piece) {
  Columns c{rows, channels};
  const int64_t pieces = ceil_div(channels, piece);
  c.slabs = ceil_div(pieces, kThreads);
  c.width = static_cast<int>(ceil_div(pieces, c.slabs));
  c.height = kThreads / c.width;
  const int64_t wanted = std::max<int64_t>(4 * multiprocessor_count() / c.slabs, 1);
  const int64_t worth = ceil_div(rows, kRows * c.height);
  c.splits = std::clamp<int64_t>(wanted, 1, worth);
  c.split_rows = ceil_div(rows, c.splits);
  c.splits = ceil_div(rows, c.split_rows);
  return c;
}

// One of the N tensors: rows of neighbours.
template <class T>
struct Rows {
  T* data;
  int64_t stride;  // in elements
  int align;       // bytes of an access
};

// The pieces of a thread.
template <class T>
struct ColumnPieces {
  int64_t channel;  // of the first element
  int count;        // channels; 0: none
  int64_t split;
  int row;             // of the block's rows at a time
  int64_t first, end;  // rows
  int step;

  __device__ __forceinline__ explicit ColumnPieces(const Columns& c) {
    const int64_t slab = blockIdx.x % c.slabs;
    split = blockIdx.x / c.slabs;
    row = threadIdx.x / c.width;
    channel = (slab * c.width + (threadIdx.x - row * c.width)) * kPiece<T>;
    const int64_t left = c.channels - channel;
    const bool inside = row < c.height && left > 0;
    count = !inside ? 0 : left < kPiece<T> ? static_cast<int>(left) : kPiece<T>;
    first = split * c.split_rows + row;
    end = min(c.rows, (split + 1) * c.split_rows);
    if (!inside) end = first = 0;
    step = c.height;
  }
  // f(row, number of rows) for groups of kRows rows, `step` apart, from the first or from the last.
  template <bool kBackwards, class F>
  __device__ __forceinline__ void for_groups(F&& f) const {
    const int64_t stride = int64_t{kRows} * step;
    const int64_t groups = end > first ? (end - first + stride - 1) / stride : 0;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t r = first + (kBackwards ? groups - 1 - g : g) * stride;
      f(r, r + (kRows - 1) * step < end ? kRows : static_cast<int>((end - 1 - r) / step) + 1);
    }
  }
  // Pieces of so many rows; all loads are on their way before the first is waited for.
  __device__ __forceinline__ void load(const Rows<const T>& t, int64_t r, int rows,
                                       Piece<T> (&piece)[kRows]) const {
    const T* p = t.data + r * t.stride + channel;
    if (rows == kRows && count == kPiece<T> && t.align == 16) {
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        piece[k] = load_piece(p + k * step * t.stride, kPiece<T>, 16);
      }
      return;
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      piece[k] = load_piece(p + k * step * t.stride, k < rows ? count : 0, t.align);
    }
  }
  __device__ __forceinline__ void store(const Rows<T>& t, int64_t r, const Piece<T>& piece) const {
    store_piece(t.data + r * t.stride + channel, piece, count, t.align);
  }
  // The factors of the thread's channels.
  template <class F>
  __device__ __forceinline__ void for_channels(F&& f) const {
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) {
      if (e < count) f(e, channel + e);
    }
  }
};

// The sums over a block's rows of K values for each channel: f(channel, sums), once for each.
// values(k, e) is the thread's; all threads of the block must call it.
template <int K, class T, class Values, class F>
__device__ __forceinline__ void sum_rows_of_block(const Columns& c, Accumulator<T>* shared,
                                                  Values&& values, F&& f) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  const int channels = c.width * kE;
  const int row = threadIdx.x / c.width, column = threadIdx.x - row * c.width;
  __syncthreads();  // the previous call's reads are over
  if (row < c.height) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int e = 0; e < kE; ++e)
        shared[(row * K + k) * channels + column * kE + e] = values(k, e);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < channels; i += kThreads) {
    Acc sums[K] = {};
    for (int r = 0; r < c.height; ++r) {
#pragma unroll
      for (int k = 0; k < K; ++k) sums[k] += shared[(r * K + k) * channels + i];
    }
    f(i, sums);
  }
}

// ---- Forward -----------------------------------------------------------------------------------

template <class Acc>
struct Affine {  // z = (x - center) * scale + offset
  Acc center, scale, offset;
};

template <class T>
struct ForwardArgs {
  using Acc = Accumulator<T>;
  Columns columns;
  Rows<const T> x, residual;
  Rows<T> y;
  ChannelVector<T> weight, bias, mean, rstd;
  Running<T> running;
  bool given;             // running holds the statistics
  Moments<Acc>* partial;  // [C, splits]
  Affine<Acc>* affine;    // [C]
  double eps;
  dlk_activation activation;

  __device__ __forceinline__ Acc shift(int64_t c) const {
    const Acc v = static_cast<Acc>(x.data[c]);
    return v - v == 0 ? v : Acc(0);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, 3) columns_moments_kernel(ForwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  __shared__ Acc shared[kThreads * kE];
  __shared__ Acc means[kThreads * kE];
  const ColumnPieces<T> pieces(args.columns);
  Acc shift[kE] = {}, mean[kE] = {}, m2[kE] = {}, n = 0;
  pieces.for_channels([&](int e, int64_t c) { shift[e] = args.shift(c); });
  pieces.template for_groups<false>([&](int64_t row, int rows) {
    Piece<T> x[kRows];
    pieces.load(args.x, row, rows, x);
    const Acc total = n + Acc(rows), share = Acc(rows) / total, inverse = Acc(1) / Acc(rows);
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      Acc v[kRows], sum = 0, squares = 0;
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        v[k] = static_cast<Acc>(x[k].get(e)) - shift[e];
        sum += k < rows ? v[k] : Acc(0);
      }
      const Acc center = sum * inverse;
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const Acc d = k < rows ? v[k] - center : Acc(0);
        squares += d * d;
      }
      const Acc delta = center - mean[e];
      mean[e] += delta * share;
      m2[e] += squares + delta * delta * n * share;
    }
    n = total;
  });
  // All rows of the block: first their means, then the deviations from these.
  const Columns& c = args.columns;
  const int64_t begin = pieces.split * c.split_rows;
  const Acc count = static_cast<Acc>(min(c.rows, begin + c.split_rows) - begin);
  sum_rows_of_block<1, T>(
      c, shared, [&](int, int e) { return n * mean[e]; },
      [&](int i, const Acc(&sums)[1]) { means[i] = sums[0] / count; });
  __syncthreads();
  const int column = threadIdx.x % c.width * kE;
  const int64_t slab = blockIdx.x % c.slabs * c.width * kE;
  sum_rows_of_block<1, T>(
      c, shared,
      [&](int, int e) {
        const Acc d = mean[e] - means[column + e];
        return m2[e] + n * d * d;
      },
      [&](int i, const Acc(&sums)[1]) {
        if (slab + i < c.channels) {
          args.partial[(slab + i) * c.splits + pieces.split] = {count, means[i], sums[0]};
        }
      });
}

// A warp for each channel.
template <class T>
__global__ void __launch_bounds__(kThreads) columns_statistics_kernel(ForwardArgs<T> args) {
  using Acc = Accumulator<T>;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t c = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpSize;
  if (c >= args.columns.channels) return;
  const Moments<Acc>* partial = args.partial + c * args.columns.splits;
  const int splits = static_cast<int>(args.columns.splits);
  Acc n = static_cast<Acc>(args.columns.rows), sum = 0, m2 = 0;
#pragma unroll 4
  for (int s = lane; s < splits; s += kWarpSize) sum += partial[s].n * partial[s].mean;
  const Acc mean = warp_reduce(sum, Sum{}) / n;
#pragma unroll 4
  for (int s = lane; s < splits; s += kWarpSize) {
    const Acc d = partial[s].mean - mean;
    m2 += partial[s].m2 + partial[s].n * d * d;
  }
  m2 = warp_reduce(m2, Sum{});
  if (lane != 0) return;
  // The mean is center + rest: its rounding does not show in x - mean.
  const Acc shift = args.shift(c), center = shift + mean, rest = mean - (center - shift);
  const Acc rstd = 1 / sqrt(m2 / n + static_cast<Acc>(args.eps));
  const Acc scale = args.weight.load_or(c, 1) * rstd;
  args.affine[c] = {center, scale, args.bias.load_or(c, 0) - rest * scale};
  args.mean.store(c, center);
  args.rstd.store(c, rstd);
  if (args.running.mean) args.running.update(c, center, m2 / (n - 1));
}

template <class T, bool kResidual>
__global__ void __launch_bounds__(kThreads, kResidual ? 2 : 3)
    columns_normalize_kernel(ForwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  const ColumnPieces<T> pieces(args.columns);
  Acc center[kE] = {}, scale[kE] = {}, offset[kE] = {};
  pieces.for_channels([&](int e, int64_t c) {
    if (args.given) {
      center[e] = args.running.mean.load(c);
      scale[e] =
          args.weight.load_or(c, 1) / sqrt(args.running.var.load(c) + static_cast<Acc>(args.eps));
      offset[e] = args.bias.load_or(c, 0);
    } else {
      const Affine<Acc> a = args.affine[c];
      center[e] = a.center, scale[e] = a.scale, offset[e] = a.offset;
    }
  });
  pieces.template for_groups<true>([&](int64_t row, int rows) {
    Piece<T> x[kRows], r[kRows];
    pieces.load(args.x, row, rows, x);
    if constexpr (kResidual) pieces.load(args.residual, row, rows, r);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      Acc z[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        z[e] = (static_cast<Acc>(x[k].get(e)) - center[e]) * scale[e] + offset[e];
      }
      if constexpr (kResidual) {
#pragma unroll
        for (int e = 0; e < kE; ++e) z[e] += static_cast<Acc>(r[k].get(e));
      }
      activate(args.activation, z);
      if (k < rows) pieces.store(args.y, row + k * pieces.step, rounded<T>(z));
    }
  });
}

// ---- Backward ----------------------------------------------------------------------------------

template <class Acc>
struct GradientTerms {  // dx = scale dz + (across (x - mean) + offset)
  Acc mean, scale, across, offset;
};

template <class T>
struct BackwardArgs {
  using Acc = Accumulator<T>;
  Columns columns;
  Rows<const T> dy, x, y;
  Rows<T> dx, dresidual;
  ChannelVector<T> weight, bias, mean, rstd, dweight, dbias;
  bool given;                 // rstd is the running variance; the statistics are constants
  Sums<Acc, 2>* partial;      // [C, splits]
  GradientTerms<Acc>* terms;  // [C]; nullptr where the statistics are given
  double eps;
  dlk_activation activation;

  __device__ __forceinline__ Acc load_rstd(int64_t c) const {
    const Acc v = rstd.load(c);
    return given ? 1 / sqrt(v + static_cast<Acc>(eps)) : v;
  }
  __device__ __forceinline__ bool recomputes() const {
    return activation != DLK_ACTIVATION_NONE && !y.data;
  }
};

// dz and x - mean of pieces of rows, one after the other: f(k, dz, d).
template <class T, class F>
__device__ __forceinline__ void for_gradients(const BackwardArgs<T>& args,
                                              const ColumnPieces<T>& pieces, int64_t row, int rows,
                                              const Accumulator<T> (&mean)[kPiece<T>],
                                              const Accumulator<T> (&scale)[kPiece<T>],
                                              const Accumulator<T> (&bias)[kPiece<T>], F&& f) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  Piece<T> dy[kRows], x[kRows], y[kRows];
  pieces.load(args.dy, row, rows, dy);
  pieces.load(args.x, row, rows, x);
  if (args.y.data) pieces.load(args.y, row, rows, y);
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    Acc dz[kE], d[kE];
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      dz[e] = static_cast<Acc>(dy[k].get(e));
      d[e] = static_cast<Acc>(x[k].get(e)) - mean[e];
    }
    if (args.activation != DLK_ACTIVATION_NONE) {
      Acc z[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        z[e] = args.y.data ? static_cast<Acc>(y[k].get(e)) : d[e] * scale[e] + bias[e];
      }
      activate_backward(args.activation, z, dz);
    }
    if (k < rows) f(k, dz, d);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) columns_sums_kernel(BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  __shared__ Acc shared[kThreads * kE * 2];
  const ColumnPieces<T> pieces(args.columns);
  Acc mean[kE] = {}, scale[kE] = {}, bias[kE] = {}, total[2][kE] = {};
  pieces.for_channels([&](int e, int64_t c) {
    mean[e] = args.mean.load(c);
    if (args.recomputes()) {
      scale[e] = args.weight.load_or(c, 1) * args.load_rstd(c);
      bias[e] = args.bias.load_or(c, 0);
    }
  });
  pieces.template for_groups<false>([&](int64_t row, int rows) {
    for_gradients(args, pieces, row, rows, mean, scale, bias,
                  [&](int, const Acc(&dz)[kE], const Acc(&d)[kE]) {
#pragma unroll
                    for (int e = 0; e < kE; ++e) {
                      total[0][e] += dz[e];
                      total[1][e] += dz[e] * d[e];
                    }
                  });
  });
  const Columns& c = args.columns;
  const int64_t slab = blockIdx.x % c.slabs * c.width * kE;
  sum_rows_of_block<2, T>(
      c, shared, [&](int k, int e) { return total[k][e]; },
      [&](int i, const Acc(&sums)[2]) {
        if (slab + i < c.channels) {
          args.partial[(slab + i) * c.splits + pieces.split] = {{sums[0], sums[1]}};
        }
      });
}

// A warp for each channel.
template <class T>
__global__ void __launch_bounds__(kThreads) columns_terms_kernel(BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t c = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpSize;
  if (c >= args.columns.channels) return;
  const Sums<Acc, 2>* partial = args.partial + c * args.columns.splits;
  const int splits = static_cast<int>(args.columns.splits);
  Acc sums[2] = {0, 0};
#pragma unroll 4
  for (int s = lane; s < splits; s += kWarpSize) {
    sums[0] += partial[s].v[0];
    sums[1] += partial[s].v[1];
  }
  sums[0] = warp_reduce(sums[0], Sum{});
  sums[1] = warp_reduce(sums[1], Sum{});
  if (lane != 0) return;
  const Acc rstd = args.load_rstd(c), along = sums[1] * rstd;
  if (args.dweight) args.dweight.store(c, along);
  if (args.dbias) args.dbias.store(c, sums[0]);
  if (args.terms) {
    const Acc scale = args.weight.load_or(c, 1) * rstd;
    const Acc share = -scale / static_cast<Acc>(args.columns.rows);
    args.terms[c] = {args.mean.load(c), scale, share * along * rstd, share * sums[0]};
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) columns_gradient_kernel(BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  const ColumnPieces<T> pieces(args.columns);
  Acc mean[kE] = {}, scale[kE] = {}, across[kE] = {}, offset[kE] = {}, bias[kE] = {};
  pieces.for_channels([&](int e, int64_t c) {
    if (args.terms) {
      const GradientTerms<Acc> t = args.terms[c];
      mean[e] = t.mean, scale[e] = t.scale, across[e] = t.across, offset[e] = t.offset;
    } else {
      mean[e] = args.mean.load(c);
      scale[e] = args.weight.load_or(c, 1) * args.load_rstd(c);
    }
    if (args.recomputes()) bias[e] = args.bias.load_or(c, 0);
  });
  pieces.template for_groups<true>([&](int64_t row, int rows) {
    for_gradients(args, pieces, row, rows, mean, scale, bias,
                  [&](int k, Acc(&dz)[kE], const Acc(&d)[kE]) {
                    const int64_t r = row + k * pieces.step;
                    if (args.dresidual.data) pieces.store(args.dresidual, r, rounded<T>(dz));
#pragma unroll
                    for (int e = 0; e < kE; ++e) {
                      // Constants have no gradient: an infinite x is no matter then.
                      const Acc straight = scale[e] * dz[e];
                      dz[e] = args.given ? straight : straight + (across[e] * d[e] + offset[e]);
                    }
                    pieces.store(args.dx, r, rounded<T>(dz));
                  });
  });
}

// ---- Host --------------------------------------------------------------------------------------

// Whether t is [rows, C] with neighbouring channels and rows at one stride.
bool is_rows(const Tensor& t, int channel, int64_t& stride) {
  if (!t) return true;
  const StridedIndex<1> rows = make_index<1>({&t}, ~(1u << channel));
  stride = rows.ndim == 0 ? t.shape[channel] : rows.stride[0][0];
  return rows.ndim <= 1 && (t.shape[channel] == 1 || t.strides[channel] == 1);
}

const char* unsuitable(const SetShape& shape, std::initializer_list<const Tensor*> tensors) {
  if (shape.groups) return "sets are groups";
  const Tensor& x = **tensors.begin();
  if (x.numel() == 0) return "there is nothing to normalise";
  int64_t stride = 0;
  for (const Tensor* t : tensors) {
    if (!is_rows(*t, shape.channel, stride)) return "channels are not neighbours, or rows strided";
  }
  if (x.shape[shape.channel] >> 30) return "too many channels";
  return nullptr;
}

template <class T, class U>
Rows<U> rows_of(const Tensor& t, int channel) {
  int64_t stride = 0;
  is_rows(t, channel, stride);
  const auto bits =
      reinterpret_cast<uint64_t>(t.data) | 16 | static_cast<uint64_t>(stride) * sizeof(T);
  return {t.as<U>(), stride, static_cast<int>(bits & (~bits + 1))};
}

Columns columns_of(const Tensor& x, int channel) {
  const int64_t channels = x.shape[channel];
  return share_out(x.numel() / channels, channels, static_cast<int>(16 / dtype_size(x.dtype)));
}

unsigned warps_for(int64_t channels) {
  return static_cast<unsigned>(ceil_div(channels * kWarpSize, kThreads));
}

const char* supports_forward(const SetForward& p) {
  return unsuitable(p.shape, {&p.x, &p.residual, &p.y});
}
const char* supports_backward(const SetBackward& p) {
  return unsuitable(p.shape, {&p.dy, &p.x, &p.y, &p.dx, &p.dresidual});
}

size_t forward_workspace(const SetForward& p) {
  if (p.given) return 0;
  const Columns c = columns_of(p.x, p.shape.channel);
  return 3 * (c.splits + 1) * c.channels * dtype_size(accumulator_of(p.x.dtype));
}

template <class T>
void launch_forward(const SetForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const int channel = p.shape.channel;
  const Columns c = columns_of(p.x, channel);
  auto* partial = static_cast<Moments<Acc>*>(launch.workspace);
  const ForwardArgs<T> args{c,
                            rows_of<T, const T>(p.x, channel),
                            rows_of<T, const T>(p.residual, channel),
                            rows_of<T, T>(p.y, channel),
                            ChannelVector<T>(p.weight),
                            ChannelVector<T>(p.bias),
                            ChannelVector<T>(p.mean),
                            ChannelVector<T>(p.rstd),
                            Running<T>(p),
                            p.given,
                            partial,
                            reinterpret_cast<Affine<Acc>*>(partial + c.splits * c.channels),
                            p.eps,
                            p.activation};
  const auto blocks = static_cast<unsigned>(c.blocks());
  if (!p.given) {
    launch_kernel(columns_moments_kernel<T>, blocks, kThreads, 0, launch.stream, args);
    launch_kernel(columns_statistics_kernel<T>, warps_for(c.channels), kThreads, 0, launch.stream,
                  args);
  }
  launch_kernel(p.residual ? columns_normalize_kernel<T, true> : columns_normalize_kernel<T, false>,
                blocks, kThreads, 0, launch.stream, args);
  count_batch(p, launch.stream);
}

bool needs_sums(const SetBackward& p) { return !p.given || p.dweight || p.dbias; }

size_t backward_workspace(const SetBackward& p) {
  if (!needs_sums(p)) return 0;
  const Columns c = columns_of(p.x, p.shape.channel);
  return (2 * c.splits + 4) * c.channels * dtype_size(accumulator_of(p.x.dtype));
}

template <class T>
void launch_backward(const SetBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const int channel = p.shape.channel;
  const Columns c = columns_of(p.x, channel);
  auto* partial = static_cast<Sums<Acc, 2>*>(launch.workspace);
  auto* terms = reinterpret_cast<GradientTerms<Acc>*>(partial + c.splits * c.channels);
  const bool masked = p.activation != DLK_ACTIVATION_NONE;
  const BackwardArgs<T> args{c,
                             rows_of<T, const T>(p.dy, channel),
                             rows_of<T, const T>(p.x, channel),
                             rows_of<T, const T>(masked ? p.y : Tensor{}, channel),
                             rows_of<T, T>(p.dx, channel),
                             rows_of<T, T>(p.dresidual, channel),
                             ChannelVector<T>(p.weight),
                             ChannelVector<T>(p.bias),
                             ChannelVector<T>(p.mean),
                             ChannelVector<T>(p.rstd),
                             ChannelVector<T>(p.dweight),
                             ChannelVector<T>(p.dbias),
                             p.given,
                             partial,
                             p.given ? nullptr : terms,
                             p.eps,
                             p.activation};
  const auto blocks = static_cast<unsigned>(c.blocks());
  if (needs_sums(p)) {
    launch_kernel(columns_sums_kernel<T>, blocks, kThreads, 0, launch.stream, args);
    launch_kernel(columns_terms_kernel<T>, warps_for(c.channels), kThreads, 0, launch.stream, args);
  }
  launch_kernel(columns_gradient_kernel<T>, blocks, kThreads, 0, launch.stream, args);
}

}  // namespace

SetNorm kSetsOfColumns = {
    supports_forward,
    forward_workspace,
    [](const SetForward& p, const Launch& launch) {
      dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
    },
    supports_backward,
    backward_workspace,
    [](const SetBackward& p, const Launch& launch) {
      dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
    },
};

}  // namespace dlkern::gpu
