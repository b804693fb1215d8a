// Batch and group norm where the positions of a channel are neighbours (NCHW), each value read once.
//
// Layout: a set is cut into segments, the positions of one channel and sample, of `length` neighbours
// (batch norm: a segment for each sample; group norm: for each channel of the group); long segments into
// units, and units into pieces of 16 bytes. A unit belongs to `lanes` neighbouring threads, a set to
// `size` threads: some lanes of a warp, warps, or a block. Algorithm: a set's pieces are copied to shared
// memory, all at once; every thread reads back only what it copied itself. Statistics by the corrected
// two-pass method: the sum, then sums of the deviations from that mean, in a fixed order that the shape
// of a set decides. Bound by memory. Sums in float32 (float64 for float64).
//
// Reference: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
#include "core/fast_div.h"
#include "cuda/norm_passes.cuh"
#include "cuda/norm_pieces.cuh"

namespace dlkern::gpu {
namespace {

constexpr int kThreads = 256;             // of a block
constexpr int kMostPieces = 512;          // of a unit
constexpr size_t kMostBytes = 112 << 10;  // of a block: there are two on a multiprocessor

// How a set is shared out.
struct Plan {
  int length;     // of a segment, in elements
  int pieces;     // of a unit, at most
  int lanes;      // of a unit
  int units;      // of a set
  int size;       // threads of a set
  int rounds;     // units of each thread
  int items;      // pieces of a unit of each thread
  FastDiv parts;  // units of a segment

  void resize(int threads) {
    size = threads;
    rounds = static_cast<int>(ceil_div(units, size / lanes));
  }
  int sets() const { return kThreads / size; }  // of a block
  size_t bytes(int tensors) const {
    return size_t{kThreads} * rounds * items * tensors * sizeof(uint4);
  }
};

// The fewest threads, and so lanes in vain, that hold it.
int pick_lanes(int pieces) {
  int best = 8;
  for (const int lanes : {16, 32}) {
    const auto slots = [&](int n) { return ceil_div(pieces, n) * n; };
    if (slots(lanes) * 8 <= slots(best) * 9) best = lanes;
  }
  return best;
}

// Units of at most kMostPieces; as many threads of a set as leave 4 pieces to each.
Plan plan_set(int64_t segments, int64_t length, int piece) {
  Plan p{};
  p.length = static_cast<int>(length);
  const int64_t pieces = ceil_div(length, piece);
  const int64_t most = segments >= 8 ? kMostPieces : kMostPieces / 4;
  const int64_t parts = ceil_div(pieces, most);
  p.pieces = static_cast<int>(ceil_div(pieces, parts));
  p.parts = FastDiv(ceil_div(pieces, p.pieces));
  p.units = static_cast<int>(segments * p.parts.divisor());
  p.lanes = pick_lanes(p.pieces);
  p.items = static_cast<int>(ceil_div(p.pieces, p.lanes));
  p.resize(p.lanes);
  while (p.size < kThreads && p.rounds * p.items > 4) p.resize(2 * p.size);
  return p;
}

// N tensors by set, segment and position. All strides in elements.
template <int N>
struct Planes {
  Plan plan;
  int64_t sets;
  FastDiv of_sample;  // sets of a sample; of batch norm all
  int64_t sample_stride[N], set_stride[N], segment_stride[N];
  int align[N];  // bytes of an access
  // channel = number of the set in its sample * channels_of_set + segment * channels_of_segment
  int channels_of_set, channels_of_segment;
};

// Pieces of one unit that belong to a thread.
struct Unit {
  int segment, part;
  int first, end;  // elements of the segment; the next piece is `step` further
  int slot;        // of the first piece; the next piece's is kThreads further
};

// Which set a thread works on, and as which of the set's threads.
template <class T, int N>
struct SetThread {
  using Acc = Accumulator<T>;
  const Planes<N>& planes;
  int rank, lane, team, teams;
  int64_t set, sample;
  int of_sample;  // the set's number in its sample
  bool active;
  int turn = 0;  // of the slots of sum()

  __device__ __forceinline__ explicit SetThread(const Planes<N>& p) : planes(p) {
    const int size = p.plan.size;
    rank = threadIdx.x & (size - 1);
    set = int64_t{blockIdx.x} * (kThreads / size) + threadIdx.x / size;
    active = set < p.sets;
    lane = rank & (p.plan.lanes - 1);
    team = rank / p.plan.lanes;
    teams = size / p.plan.lanes;
    sample = p.of_sample(set);
    of_sample = static_cast<int>(set - sample * p.of_sample.divisor());
  }
  __device__ __forceinline__ bool leads() const { return active && rank == 0; }
  __device__ __forceinline__ int channel(const Unit& unit) const {
    return of_sample * planes.channels_of_set + unit.segment * planes.channels_of_segment;
  }
  __device__ __forceinline__ int64_t offset(int n, const Unit& unit) const {
    return sample * planes.sample_stride[n] + of_sample * planes.set_stride[n] +
           unit.segment * planes.segment_stride[n];
  }
  __device__ __forceinline__ int step() const { return planes.plan.lanes * kPiece<T>; }

  // f(unit) for each unit of this thread; as often in all threads, so that f may exchange values.
  template <class F>
  __device__ __forceinline__ void for_units(F&& f) const {
    const Plan& p = planes.plan;
    for (int round = 0; round < p.rounds; ++round) {
      const int u = team + round * teams;
      Unit unit;
      unit.segment = p.parts.quick(u);
      unit.part = u - unit.segment * static_cast<int>(p.parts.divisor());
      unit.slot = round * p.items * kThreads + static_cast<int>(threadIdx.x);
      const int first = unit.part * p.pieces * kPiece<T>;
      unit.end = active && u < p.units ? min(p.length, first + p.pieces * kPiece<T>) : 0;
      unit.first = first + lane * kPiece<T>;
      f(unit);
    }
  }

  // All of the set's threads receive the sums, and all threads of the block must call.
  template <int K>
  __device__ __forceinline__ void sum(Acc (&v)[K]) {
    __shared__ Acc slots[2][K][kThreads / 32];
    const int size = planes.plan.size;
    if (size <= kWarpSize) {
      for (int mask = size / 2; mask > 0; mask /= 2) {
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] += shuffle_xor(v[k], mask);
      }
      return;
    }
    const int warp = threadIdx.x / kWarpSize, warps = size / kWarpSize;
    const int first = warp & ~(warps - 1);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      v[k] = warp_reduce(v[k], Sum{});
      if (threadIdx.x % kWarpSize == 0) slots[turn][k][warp] = v[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      v[k] = slots[turn][k][first];
      for (int w = 1; w < warps; ++w) v[k] += slots[turn][k][first + w];
    }
    turn ^= 1;  // a slot is written again two calls later: all have read it then
  }
};

// Sums over the `lanes` of each unit.
template <class Acc>
__device__ __forceinline__ void sum_lanes(Acc (&v)[2], int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    v[0] += shuffle_xor(v[0], mask);
    v[1] += shuffle_xor(v[1], mask);
  }
}

// ---- Forward -----------------------------------------------------------------------------------

template <class T>
struct ForwardArgs {
  using Acc = Accumulator<T>;
  Planes<3> planes;  // x, residual, y
  const T *x, *residual;
  T* y;
  ChannelVector<Acc> weight, bias;
  SetVector<Acc> mean, rstd;
  Running<Acc> running;
  Acc* averages;  // [sets, 2]: what instance norm's running statistics are averages of; or nullptr
  Acc count;      // values of a set
  double eps;
  dlk_activation activation;
};

template <class T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 8 ? 2 : 4)
    planes_forward_kernel(const DLK_GRID_CONSTANT ForwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  extern __shared__ uint4 slots[];
  SetThread<T, 3> thread(args.planes);
  const int step = thread.step();
  uint4* const residuals = slots + args.planes.plan.rounds * args.planes.plan.items * kThreads;

  thread.for_units([&](const Unit& unit) {
    const T* x = args.x + thread.offset(0, unit);
    int slot = unit.slot;
    for (int i = unit.first; i < unit.end; i += step, slot += kThreads) {
      copy_piece(slots + slot, x + i, unit.end - i, args.planes.align[0]);
    }
    if (args.residual) {
      const T* r = args.residual + thread.offset(1, unit);
      slot = unit.slot;
      for (int i = unit.first; i < unit.end; i += step, slot += kThreads) {
        copy_piece(residuals + slot, r + i, unit.end - i, args.planes.align[1]);
      }
    }
  });
  wait_for_copies();

  Acc total[1] = {0};
  thread.for_units([&](const Unit& unit) {
    int slot = unit.slot;
    for (int i = unit.first; i < unit.end; i += step, slot += kThreads) {
      const Piece<T> x = piece_at<T>(slots + slot);  // zeros behind the end
#pragma unroll
      for (int e = 0; e < kE; ++e) total[0] += static_cast<Acc>(x.get(e));
    }
  });
  thread.sum(total);
  const Acc center = total[0] / args.count;

  Acc moments[2] = {0, 0};
  thread.for_units([&](const Unit& unit) {
    int slot = unit.slot;
    for (int i = unit.first; i < unit.end; i += step, slot += kThreads) {
      const Piece<T> x = piece_at<T>(slots + slot);
      for_elements<T>(unit.end - i, [&](int e) {
        const Acc d = static_cast<Acc>(x.get(e)) - center;
        moments[0] += d;
        moments[1] += d * d;
      });
    }
  });
  thread.sum(moments);
  // The mean is center + rest: its rounding does not show in x - mean.
  const Acc rest = moments[0] / args.count;
  const Acc squares = moments[1] - moments[0] * rest;
  const Acc m2 = squares < 0 ? Acc(0) : squares;
  const Acc rstd = 1 / sqrt(m2 / args.count + static_cast<Acc>(args.eps));
  if (thread.leads()) {
    const Acc mean = center + rest, unbiased = m2 / (args.count - 1);
    if (args.mean) args.mean.store(thread.sample, thread.of_sample, mean);
    if (args.rstd) args.rstd.store(thread.sample, thread.of_sample, rstd);
    if (args.averages) {
      args.averages[2 * thread.set] = mean;
      args.averages[2 * thread.set + 1] = unbiased;
    } else if (args.running.mean) {
      args.running.update(thread.of_sample, mean, unbiased);
    }
  }

  thread.for_units([&](const Unit& unit) {
    if (unit.first >= unit.end) return;
    const int c = thread.channel(unit);
    const Same<Acc> middle{center}, scale{args.weight.load_or(c, 1) * rstd},
        offset{args.bias.load_or(c, 0) - rest * scale.value};
    T* y = args.y + thread.offset(2, unit);
    int slot = unit.slot;
    for (int i = unit.first; i < unit.end; i += step, slot += kThreads) {
      const Piece<T> x = piece_at<T>(slots + slot);
      Piece<T> r{};
      if (args.residual) r = piece_at<T>(residuals + slot);
      const Piece<T> z =
          normalized(args.activation, x, args.residual != nullptr, r, middle, scale, offset);
      store_piece(y + i, z, unit.end - i, args.planes.align[2]);
    }
  });
}

// ---- Backward ----------------------------------------------------------------------------------

template <class T>
struct BackwardArgs {
  using Acc = Accumulator<T>;
  Planes<5> planes;  // dy, x, y, dx, dresidual
  const T *dy, *x, *y;
  T *dx, *dresidual;
  ChannelVector<Acc> weight, bias, dweight, dbias;  // dweight, dbias: where sets are channels
  SetVector<Acc> mean, rstd;
  PartialSums<Acc>* sums;  // [samples, channels, parts] or nullptr
  Acc count;
  int64_t channels;
  dlk_activation activation;
};

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    planes_backward_kernel(const DLK_GRID_CONSTANT BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  constexpr int kE = kPiece<T>;
  extern __shared__ uint4 slots[];
  SetThread<T, 5> thread(args.planes);
  const int step = thread.step(), held = args.planes.plan.rounds * args.planes.plan.items;
  uint4 *const xs = slots + held * kThreads, *const ys = xs + held * kThreads;

  thread.for_units([&](const Unit& unit) {
    const auto copy = [&](uint4* to, const T* tensor, int n) {
      const T* p = tensor + thread.offset(n, unit);
      int slot = unit.slot;
      for (int i = unit.first; i < unit.end; i += step, slot += kThreads) {
        copy_piece(to + slot, p + i, unit.end - i, args.planes.align[n]);
      }
    };
    copy(slots, args.dy, 0);
    copy(xs, args.x, 1);
    if (args.y) copy(ys, args.y, 2);
  });
  const int64_t sample = thread.active ? thread.sample : 0;
  const int of_sample = thread.active ? thread.of_sample : 0;
  const Acc mean = args.mean.load(sample, of_sample), rstd = args.rstd.load(sample, of_sample);
  const bool one_channel = args.planes.channels_of_segment == 0;
  wait_for_copies();

  // dz and x - mean of a piece.
  const auto load = [&](int slot, Acc scale, Acc bias, Acc(&dz)[kE], Acc(&d)[kE]) {
    const Piece<T> dy = piece_at<T>(slots + slot), x = piece_at<T>(xs + slot);
    Piece<T> y{};
    if (args.y) y = piece_at<T>(ys + slot);
    gradients(args.activation, dy, x, args.y != nullptr, y, Same<Acc>{mean}, Same<Acc>{scale},
              Same<Acc>{bias}, dz, d);
  };

  Acc total[2] = {0, 0};
  thread.for_units([&](const Unit& unit) {
    const bool any = unit.first < unit.end;
    const int c = any ? thread.channel(unit) : 0;
    const Acc weight = args.weight.load_or(c, 1), bias = args.bias.load_or(c, 0);
    Acc sums[2] = {0, 0};
    int slot = unit.slot;
    for (int i = unit.first; i < unit.end; i += step, slot += kThreads) {
      Acc dz[kE], d[kE];
      load(slot, weight * rstd, bias, dz, d);
      for_elements<T>(unit.end - i, [&](int e) {
        sums[0] += dz[e];
        sums[1] += dz[e] * d[e];
      });
    }
    const Acc factor = one_channel ? Acc(1) : weight;
    total[0] += factor * sums[0];
    total[1] += factor * sums[1];
    if (args.sums) {
      sum_lanes(sums, args.planes.plan.lanes);
      if (thread.lane == 0 && unit.end > 0) {
        const int64_t parts = args.planes.plan.parts.divisor();
        args.sums[(thread.sample * args.channels + c) * parts + unit.part] = {sums[0], sums[1]};
      }
    }
  });
  thread.sum(total);
  const Acc along = total[1] * rstd;
  if (thread.leads()) {
    if (args.dweight) args.dweight.store(thread.of_sample, along);
    if (args.dbias) args.dbias.store(thread.of_sample, total[0]);
  }

  thread.for_units([&](const Unit& unit) {
    if (unit.first >= unit.end) return;
    const int c = thread.channel(unit);
    const Acc weight = args.weight.load_or(c, 1), bias = args.bias.load_or(c, 0);
    const Acc scale = weight * rstd, outer = (one_channel ? scale : rstd) / args.count;
    const Acc across = -outer * along * rstd, offset = -outer * total[0];
    T* dx = args.dx + thread.offset(3, unit);
    T* dresidual = args.dresidual ? args.dresidual + thread.offset(4, unit) : nullptr;
    int slot = unit.slot;
    for (int i = unit.first; i < unit.end; i += step, slot += kThreads) {
      Acc dz[kE], d[kE];
      load(slot, scale, bias, dz, d);
      if (dresidual) {
        store_piece(dresidual + i, rounded<T>(dz), unit.end - i, args.planes.align[4]);
      }
#pragma unroll
      for (int e = 0; e < kE; ++e) dz[e] = scale * dz[e] + (across * d[e] + offset);
      store_piece(dx + i, rounded<T>(dz), unit.end - i, args.planes.align[3]);
    }
  });
}

// ---- Host --------------------------------------------------------------------------------------

template <class T, int N>
Planes<N> planes_of(const SetShape& shape, const Tensor* const (&tensors)[N]) {
  Planar p{};
  planar(*tensors[0], shape.channel, p);
  const int64_t each = shape.groups ? p.channels / shape.groups : 1;
  Planes<N> planes{};
  planes.plan = plan_set(p.segments(shape), p.length, kPiece<T>);
  planes.sets = shape.groups ? p.samples * shape.groups : p.channels;
  planes.of_sample = FastDiv(shape.groups ? shape.groups : p.channels);
  planes.channels_of_set = static_cast<int>(each);
  planes.channels_of_segment = shape.groups ? 1 : 0;
  for (int n = 0; n < N; ++n) {
    const Tensor& t = *tensors[n];
    if (!t) continue;
    planar(t, shape.channel, p);
    planes.sample_stride[n] = shape.groups ? p.sample_stride : 0;
    planes.set_stride[n] = each * p.channel_stride;
    planes.segment_stride[n] = shape.groups ? p.channel_stride : p.sample_stride;
    const auto bits = reinterpret_cast<uint64_t>(t.data) | 16 |
                      static_cast<uint64_t>((p.samples > 1 ? p.sample_stride : 0) * sizeof(T)) |
                      static_cast<uint64_t>((p.channels > 1 ? p.channel_stride : 0) * sizeof(T));
    planes.align[n] = static_cast<int>(bits & (~bits + 1));
  }
  return planes;
}

// Why the tensors cannot be worked on; `held`: of them in shared memory.
const char* unsuitable(const SetShape& shape, std::initializer_list<const Tensor*> tensors,
                       int held) {
  const Tensor& x = **tensors.begin();
  if (x.numel() == 0) return "there is nothing to normalise";
  Planar p{};
  for (const Tensor* t : tensors) {
    if (*t && !planar(*t, shape.channel, p)) return "positions of a channel are not neighbours";
  }
  const int piece = static_cast<int>(16 / dtype_size(x.dtype));
  if (p.length < piece) return "channels have too few positions";
  const int64_t segments = p.segments(shape), pieces = ceil_div(p.length, piece);
  const char* const large = "sets are too large for shared memory";
  if (p.channels >> 31 || p.length >> 24 || segments * pieces >> 24) return large;
  const Plan plan = plan_set(segments, p.length, piece);
  if (plan.bytes(held) > kMostBytes) return large;
  return p.sets(shape) >> 31 ? "too many sets" : nullptr;
}

template <int N>
unsigned grid_of(const Planes<N>& planes) {
  return static_cast<unsigned>(ceil_div(planes.sets, planes.plan.sets()));
}

int held(const SetForward& p) { return p.residual ? 2 : 1; }
int held(const SetBackward& p) { return p.y && p.activation != DLK_ACTIVATION_NONE ? 3 : 2; }

const char* supports_forward(const SetForward& p) {
  if (p.given()) return "the statistics are given";
  return unsuitable(p.shape, {&p.x, &p.residual, &p.y}, held(p));
}

size_t forward_workspace(const SetForward& p) {
  if (!averages_samples(p)) return 0;
  return 2 * sets_of(p.x, p.shape) * dtype_size(accumulator_of(p.x.dtype));
}

template <class T>
void launch_forward(const SetForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  ForwardArgs<T> args{};
  args.planes = planes_of<T, 3>(p.shape, {&p.x, &p.residual, &p.y});
  args.x = p.x.as<const T>();
  args.residual = p.residual.as<const T>();
  args.y = p.y.as<T>();
  args.weight = ChannelVector<Acc>(p.weight);
  args.bias = ChannelVector<Acc>(p.bias);
  args.mean = SetVector<Acc>(p.mean);
  args.rstd = SetVector<Acc>(p.rstd);
  args.running = Running<Acc>(p);
  args.averages = averages_samples(p) ? static_cast<Acc*>(launch.workspace) : nullptr;
  args.count = static_cast<Acc>(p.x.numel() / args.planes.sets);
  args.eps = p.eps;
  args.activation = p.activation;
  const Plan& plan = args.planes.plan;
  launch_kernel(planes_forward_kernel<T>, grid_of(args.planes), kThreads, plan.bytes(held(p)),
                launch.stream, args);
  if (args.averages) average_statistics(p, args.averages, launch.stream);
  count_batch(p, launch.stream);
}

const char* supports_backward(const SetBackward& p) {
  if (p.given) return "the statistics are given";
  return unsuitable(p.shape, {&p.dy, &p.x, &p.y, &p.dx, &p.dresidual}, held(p));
}

template <class T>
Planes<5> planes_of(const SetBackward& p) {
  return planes_of<T, 5>(p.shape, {&p.dy, &p.x, &p.y, &p.dx, &p.dresidual});
}

size_t backward_workspace(const SetBackward& p) {
  if (!needs_channel_gradients(p)) return 0;
  return dispatch_floating(p.x.dtype, [&]<class T>() {
    return p.x.shape[0] * planes_of<T>(p).plan.parts.divisor() * p.shape.channels(p.x) *
           sizeof(PartialSums<Accumulator<T>>);
  });
}

template <class T>
void launch_backward(const SetBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  BackwardArgs<T> args{};
  args.planes = planes_of<T>(p);
  args.dy = p.dy.as<const T>();
  args.x = p.x.as<const T>();
  args.y = held(p) == 3 ? p.y.as<const T>() : nullptr;
  args.dx = p.dx.as<T>();
  args.dresidual = p.dresidual.as<T>();
  args.weight = ChannelVector<Acc>(p.weight);
  args.bias = ChannelVector<Acc>(p.bias);
  if (!p.shape.groups) {
    args.dweight = ChannelVector<Acc>(p.dweight);
    args.dbias = ChannelVector<Acc>(p.dbias);
  }
  args.mean = SetVector<Acc>(p.mean);
  args.rstd = SetVector<Acc>(p.rstd);
  if (needs_channel_gradients(p)) args.sums = static_cast<PartialSums<Acc>*>(launch.workspace);
  args.count = static_cast<Acc>(p.x.numel() / args.planes.sets);
  args.channels = p.shape.channels(p.x);
  args.activation = p.activation;
  const Plan& plan = args.planes.plan;
  launch_kernel(planes_backward_kernel<T>, grid_of(args.planes), kThreads, plan.bytes(held(p)),
                launch.stream, args);
  channel_gradients(p, args.sums, plan.parts.divisor(), launch.stream);
}

}  // namespace

SetNorm kSetsOfPlanes = {
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
