// Batch norm where the planes of neighbouring channels lie together (NCHW) and are short and not aligned
// (7 x 7), each value read once.
//
// A block has as many channels as 16 bytes have elements, so that their planes in one sample are a run of
// whole pieces of 16 bytes, as many as a plane has positions. Algorithm: the runs of all samples are copied
// to shared memory, all at once; a team of threads sums each channel; then threads take pieces, which belong
// to two channels at most. Statistics as in norm_planes.cu. Bound by memory. Sums in float32 (float64
// for float64).
#include "core/fast_div.h"
#include "cuda/norm_pieces.cuh"
#include "cuda/prims/reduce.cuh"

namespace dlkern::gpu {
namespace {

constexpr int kTeam = 32;                 // threads of a channel
constexpr size_t kMostBytes = 112 << 10;  // of a block: there are two on a multiprocessor

template <class T>
constexpr int kChannels = kPiece<T>;  // of a block
template <class T>
constexpr int kThreads = kTeam * kChannels<T>;

struct Tiles {
  int pieces;      // of a tensor's runs: samples * positions
  FastDiv length;  // of a plane
};

// Where a thread works; a run is a sample's planes of the block's channels.
template <class T>
struct TileThread {
  const Tiles& tiles;
  int length = static_cast<int>(tiles.length.divisor());
  int team = threadIdx.x / kTeam;
  int64_t channel = int64_t{blockIdx.x} * kChannels<T> + team;

  __device__ __forceinline__ bool leads() const { return threadIdx.x % kTeam == 0; }

  // f(number of a piece, where it lies in memory, its number in the run), for this thread's.
  template <class F>
  __device__ __forceinline__ void for_pieces(F&& f) const {
    for (int i = threadIdx.x; i < tiles.pieces; i += kThreads<T>) {
      const int sample = tiles.length.quick(i);
      f(i, sample, i - sample * length);
    }
  }
  __device__ __forceinline__ int64_t offset(int64_t sample_stride, int sample, int piece) const {
    return sample * sample_stride + int64_t{blockIdx.x} * kChannels<T> * length + piece * kPiece<T>;
  }
  // f(number of an element in shared memory) for this thread's elements of its team's channel.
  template <class F>
  __device__ __forceinline__ void for_elements(F&& f) const {
#pragma unroll 4
    for (int i = threadIdx.x % kTeam; i < tiles.pieces; i += kTeam) {
      f(i + (tiles.length.quick(i) * (kChannels<T> - 1) + team) * length);
    }
  }
  // All of the team receive the sums.
  template <int K>
  static __device__ __forceinline__ void sum(Accumulator<T> (&v)[K]) {
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = reduce_lanes(v[k], Sum{}, kTeam);
  }
};

// A number of each of the two channels that a piece may belong to.
template <class Acc>
struct OfTwo {
  Acc here, next;
  int until;  // elements that belong to the first
  __device__ __forceinline__ Acc operator[](int e) const { return e < until ? here : next; }
};
// Numbers of a block's channels, kCount of each.
template <class T, int kCount>
struct ChannelNumbers {
  using Acc = Accumulator<T>;
  Acc (&of)[kCount][kChannels<T>];

  // Those of piece `number` of a run.
  __device__ __forceinline__ void load(const FastDiv& length, int number,
                                       OfTwo<Acc> (&v)[kCount]) const {
    const int first = number * kPiece<T>, channel = length.quick(first);
    const int until = (channel + 1) * static_cast<int>(length.divisor()) - first;
    const int next = min(channel + 1, kChannels<T> - 1);
#pragma unroll
    for (int k = 0; k < kCount; ++k) v[k] = {of[k][channel], of[k][next], until};
  }
};

template <class T>
__device__ __forceinline__ Piece<T> aligned_piece(const T* p) {
  Piece<T> piece;
  load_words(true, p, piece.word);
  return piece;
}

// ---- Forward -----------------------------------------------------------------------------------

template <class T>
struct ForwardArgs {
  using Acc = Accumulator<T>;
  Tiles tiles;
  const T *x, *residual;
  T* y;
  int64_t x_sample, residual_sample, y_sample;  // strides
  ChannelVector<Acc> weight, bias;
  SetVector<Acc> mean, rstd;
  Running<Acc> running;
  double eps;
  dlk_activation activation;
};

template <class T>
__global__ void __launch_bounds__(kThreads<T>, 2)
    tiles_forward_kernel(const DLK_GRID_CONSTANT ForwardArgs<T> args) {
  using Acc = Accumulator<T>;
  extern __shared__ uint4 slots[];
  __shared__ Acc numbers[3][kChannels<T>];
  const TileThread<T> thread{args.tiles};
  thread.for_pieces([&](int i, int sample, int piece) {
    copy_16(slots + i, args.x + thread.offset(args.x_sample, sample, piece));
  });
  const Acc weight = args.weight.load_or(thread.channel, 1),
            bias = args.bias.load_or(thread.channel, 0);
  wait_for_copies();
  __syncthreads();

  const T* const xs = reinterpret_cast<const T*>(slots);
  const Acc count = static_cast<Acc>(args.tiles.pieces);
  Acc total[1] = {0};
  thread.for_elements([&](int i) { total[0] += static_cast<Acc>(xs[i]); });
  thread.sum(total);
  const Acc center = total[0] / count;
  Acc moments[2] = {0, 0};
  thread.for_elements([&](int i) {
    const Acc d = static_cast<Acc>(xs[i]) - center;
    moments[0] += d;
    moments[1] += d * d;
  });
  thread.sum(moments);
  // The mean is center + rest: its rounding does not show in x - mean.
  const Acc rest = moments[0] / count, squares = moments[1] - moments[0] * rest;
  const Acc m2 = squares < 0 ? Acc(0) : squares;
  const Acc rstd = 1 / sqrt(m2 / count + static_cast<Acc>(args.eps));
  if (thread.leads()) {
    const Acc mean = center + rest;
    if (args.mean) args.mean.store(0, thread.channel, mean);
    if (args.rstd) args.rstd.store(0, thread.channel, rstd);
    if (args.running.mean) args.running.update(thread.channel, mean, m2 / (count - 1));
    numbers[0][thread.team] = center;
    numbers[1][thread.team] = weight * rstd;
    numbers[2][thread.team] = bias - rest * (weight * rstd);
  }
  __syncthreads();

  thread.for_pieces([&](int i, int sample, int piece) {
    OfTwo<Acc> v[3];
    ChannelNumbers<T, 3>{numbers}.load(args.tiles.length, piece, v);
    Piece<T> r{};
    if (args.residual) {
      r = aligned_piece(args.residual + thread.offset(args.residual_sample, sample, piece));
    }
    const Piece<T> y = normalized(args.activation, piece_at<T>(slots + i), args.residual != nullptr,
                                  r, v[0], v[1], v[2]);
    store_words(args.y + thread.offset(args.y_sample, sample, piece), y.word);
  });
}

// ---- Backward ----------------------------------------------------------------------------------

template <class T>
struct BackwardArgs {
  using Acc = Accumulator<T>;
  Tiles tiles;
  const T *dy, *x, *y;  // y: or nullptr
  T *dx, *dresidual;
  int64_t dy_sample, x_sample, y_sample, dx_sample, dresidual_sample;  // strides
  ChannelVector<Acc> weight, bias, dweight, dbias;
  SetVector<Acc> mean, rstd;
  dlk_activation activation;
};

template <class T>
__global__ void __launch_bounds__(kThreads<T>, 2)
    tiles_backward_kernel(const DLK_GRID_CONSTANT BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  extern __shared__ uint4 slots[];
  __shared__ Acc numbers[5][kChannels<T>];
  const TileThread<T> thread{args.tiles};
  uint4 *const xs = slots + args.tiles.pieces, *const ys = xs + args.tiles.pieces;
  thread.for_pieces([&](int i, int sample, int piece) {
    copy_16(slots + i, args.dy + thread.offset(args.dy_sample, sample, piece));
    copy_16(xs + i, args.x + thread.offset(args.x_sample, sample, piece));
    if (args.y) copy_16(ys + i, args.y + thread.offset(args.y_sample, sample, piece));
  });
  const Acc weight = args.weight.load_or(thread.channel, 1),
            bias = args.bias.load_or(thread.channel, 0);
  const Acc mean = args.mean.load(0, thread.channel), rstd = args.rstd.load(0, thread.channel);
  const Acc scale = weight * rstd, count = static_cast<Acc>(args.tiles.pieces);
  wait_for_copies();
  __syncthreads();

  const auto at = [](const uint4* from, int i) {
    return static_cast<Acc>(reinterpret_cast<const T*>(from)[i]);
  };
  Acc sums[2] = {0, 0};
  thread.for_elements([&](int i) {
    Acc dz[1] = {at(slots, i)};
    const Acc d = at(xs, i) - mean;
    if (args.activation != DLK_ACTIVATION_NONE) {
      const Acc z[1] = {args.y ? at(ys, i) : d * scale + bias};
      activate_backward(args.activation, z, dz);
    }
    sums[0] += dz[0];
    sums[1] += dz[0] * d;
  });
  thread.sum(sums);
  const Acc along = sums[1] * rstd, outer = scale / count;
  if (thread.leads()) {
    if (args.dweight) args.dweight.store(thread.channel, along);
    if (args.dbias) args.dbias.store(thread.channel, sums[0]);
    numbers[0][thread.team] = mean;
    numbers[1][thread.team] = scale;
    numbers[2][thread.team] = bias;
    numbers[3][thread.team] = -outer * along * rstd;
    numbers[4][thread.team] = -outer * sums[0];
  }
  __syncthreads();

  thread.for_pieces([&](int i, int sample, int piece) {
    OfTwo<Acc> v[5];
    ChannelNumbers<T, 5>{numbers}.load(args.tiles.length, piece, v);
    Piece<T> y{};
    if (args.y) y = piece_at<T>(ys + i);
    Acc dz[kE], d[kE];
    gradients(args.activation, piece_at<T>(slots + i), piece_at<T>(xs + i), args.y != nullptr, y,
              v[0], v[1], v[2], dz, d);
    if (args.dresidual) {
      store_words(args.dresidual + thread.offset(args.dresidual_sample, sample, piece),
                  rounded<T>(dz).word);
    }
#pragma unroll
    for (int e = 0; e < kE; ++e) dz[e] = v[1][e] * dz[e] + (v[3][e] * d[e] + v[4][e]);
    store_words(args.dx + thread.offset(args.dx_sample, sample, piece), rounded<T>(dz).word);
  });
}

// ---- Host --------------------------------------------------------------------------------------

// Why the tensors cannot be worked on; `held`: of them in shared memory.
const char* unsuitable(const SetShape& shape, std::initializer_list<const Tensor*> tensors,
                       int held) {
  if (shape.groups) return "sets are not channels";
  const Tensor& x = **tensors.begin();
  if (x.numel() == 0) return "there is nothing to normalise";
  const auto size = static_cast<int64_t>(dtype_size(x.dtype)), piece = 16 / size;
  Planar p{};
  for (const Tensor* t : tensors) {
    if (!*t) continue;
    if (!planar(*t, shape.channel, p) || p.channel_stride != p.length) {
      return "planes of neighbouring channels do not lie together";
    }
    if (!is_aligned(t->data, 16) || (p.samples > 1 && p.sample_stride % piece != 0)) {
      return "samples are not aligned";
    }
  }
  if (p.length % piece == 0) return "planes are aligned";
  if (p.length < piece) return "channels have too few positions";
  if (p.channels % piece != 0) return "channels do not fill 16 bytes";
  if (p.samples * p.length > static_cast<int64_t>(kMostBytes) / (16 * held)) {
    return "channels are too large for shared memory";
  }
  if (4 * p.channels < piece * multiprocessor_count()) return "too few channels";
  return p.channels / piece > INT32_MAX ? "too many channels" : nullptr;
}

Tiles tiles_of(const Tensor& x, const SetShape& shape) {
  Planar p{};
  planar(x, shape.channel, p);
  return {static_cast<int>(p.samples * p.length), FastDiv(p.length)};
}
int64_t sample_stride(const Tensor& t) { return t ? t.strides[0] : 0; }

template <class T>
unsigned grid_of(const Tensor& x, const SetShape& shape) {
  return static_cast<unsigned>(shape.channels(x) / kChannels<T>);
}

int held(const SetBackward& p) { return p.y && p.activation != DLK_ACTIVATION_NONE ? 3 : 2; }

const char* supports_forward(const SetForward& p) {
  if (p.given()) return "the statistics are given";
  return unsuitable(p.shape, {&p.x, &p.residual, &p.y}, 1);
}

template <class T>
void launch_forward(const SetForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const ForwardArgs<T> args{.tiles = tiles_of(p.x, p.shape),
                            .x = p.x.as<const T>(),
                            .residual = p.residual.as<const T>(),
                            .y = p.y.as<T>(),
                            .x_sample = sample_stride(p.x),
                            .residual_sample = sample_stride(p.residual),
                            .y_sample = sample_stride(p.y),
                            .weight = ChannelVector<Acc>(p.weight),
                            .bias = ChannelVector<Acc>(p.bias),
                            .mean = SetVector<Acc>(p.mean),
                            .rstd = SetVector<Acc>(p.rstd),
                            .running = Running<Acc>(p),
                            .eps = p.eps,
                            .activation = p.activation};
  launch_kernel(tiles_forward_kernel<T>, grid_of<T>(p.x, p.shape), kThreads<T>,
                args.tiles.pieces * sizeof(uint4), launch.stream, args);
  count_batch(p, launch.stream);
}

const char* supports_backward(const SetBackward& p) {
  if (p.given) return "the statistics are given";
  return unsuitable(p.shape, {&p.dy, &p.x, &p.y, &p.dx, &p.dresidual}, held(p));
}

template <class T>
void launch_backward(const SetBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const BackwardArgs<T> args{.tiles = tiles_of(p.x, p.shape),
                             .dy = p.dy.as<const T>(),
                             .x = p.x.as<const T>(),
                             .y = held(p) == 3 ? p.y.as<const T>() : nullptr,
                             .dx = p.dx.as<T>(),
                             .dresidual = p.dresidual.as<T>(),
                             .dy_sample = sample_stride(p.dy),
                             .x_sample = sample_stride(p.x),
                             .y_sample = sample_stride(p.y),
                             .dx_sample = sample_stride(p.dx),
                             .dresidual_sample = sample_stride(p.dresidual),
                             .weight = ChannelVector<Acc>(p.weight),
                             .bias = ChannelVector<Acc>(p.bias),
                             .dweight = ChannelVector<Acc>(p.dweight),
                             .dbias = ChannelVector<Acc>(p.dbias),
                             .mean = SetVector<Acc>(p.mean),
                             .rstd = SetVector<Acc>(p.rstd),
                             .activation = p.activation};
  launch_kernel(tiles_backward_kernel<T>, grid_of<T>(p.x, p.shape), kThreads<T>,
                held(p) * args.tiles.pieces * sizeof(uint4), launch.stream, args);
}

}  // namespace

SetNorm kSetsOfTiles = {
    supports_forward,
    [](const SetForward&) { return size_t{0}; },
    [](const SetForward& p, const Launch& launch) {
      dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
    },
    supports_backward,
    [](const SetBackward&) { return size_t{0}; },
    [](const SetBackward& p, const Launch& launch) {
      dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
    },
};

}  // namespace dlkern::gpu
