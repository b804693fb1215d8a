// Batch and group norm where the positions of a channel are neighbours (NCHW), each value read once.
//
// Layout: a set is cut into segments, the positions of one channel and sample, of `length` neighbours
// (batch norm: a segment for each sample; group norm: for each channel of the group); long segments
// into units, and units into pieces of 16 bytes. A unit belongs to `lanes` neighbouring threads, a
// set to `size` threads: some lanes of a warp, warps, a block, or the blocks of a cluster (Hopper).
// Algorithm: a set's pieces are copied to shared memory, all at once; every thread reads back only
// what it copied itself. Statistics by the corrected two-pass method: the sum, then sums of the
// deviations from that mean, in a fixed order that the shape of a set decides. Bound by memory.
// Sums in float32 (float64 for float64).
//
// Reference: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
#include "core/fast_div.h"
#include "cuda/norm_pieces.cuh"

namespace dlkern::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 8;          // of a cluster
constexpr int kMostPieces = 512;        // of a unit
constexpr int kGoodBytes = 112 * 1024;  // of shared memory: two blocks of a multiprocessor
constexpr int kMostBytes = 226 * 1024;  // of a block

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

  int blocks() const { return std::max(size / kThreads, 1); }  // of a set
  int sets() const { return std::max(kThreads / size, 1); }    // of a block
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

// `tensors`: those that are held.
Plan plan_set(int64_t segments, int64_t length, int piece, int tensors) {
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
  const auto resize = [&](int size) {
    p.size = size;
    p.rounds = static_cast<int>(ceil_div(p.units, size / p.lanes));
  };
  resize(p.lanes);
  while (p.size < kThreads && p.rounds * p.items > 4) resize(2 * p.size);
  const int most_blocks = clusters_of_rows() ? kMostBlocks : 1;
  while (p.blocks() < most_blocks && p.rounds > 1 && p.bytes(tensors) > kGoodBytes) {
    resize(2 * p.size);
  }
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
    if (size > kThreads) {
      const int blocks = size / kThreads;
      rank = blockIdx.x % blocks * kThreads + threadIdx.x;
      set = blockIdx.x / blocks;
    } else {
      rank = threadIdx.x & (size - 1);
      set = int64_t{blockIdx.x} * (kThreads / size) + threadIdx.x / size;
    }
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

  // The sums of the set's threads; all of them receive them, and all threads of the block must call.
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
    const int warp = threadIdx.x / kWarpSize, warps = min(size, kThreads) / kWarpSize;
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
    sum_blocks(v);
    turn ^= 1;  // a slot is written again two calls later: all have read it then
  }
  // Shared memory that other blocks read lives as long.
  __device__ __forceinline__ void end() const {
#if DLKERN_WITH_SM90 && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (planes.plan.size > kThreads) cluster_sync();
#endif
  }

 private:
  template <int K>
  __device__ __forceinline__ void sum_blocks(Acc (&v)[K]) {
#if DLKERN_WITH_SM90 && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (planes.plan.size <= kThreads) return;
    __shared__ Acc totals[2][K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (threadIdx.x == 0) totals[turn][k] = v[k];
    }
    cluster_sync();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      v[k] = read_from_block(&totals[turn][k], 0);
      for (int block = 1; block < planes.plan.size / kThreads; ++block) {
        v[k] += read_from_block(&totals[turn][k], block);
      }
    }
#endif
  }
};

// ---- Pieces in shared memory -------------------------------------------------------------------

// The copy may still be under way: wait_for_copies().
template <class T>
__device__ __forceinline__ void copy_piece(uint4* slot, const T* p, int count, int align) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (count >= kPiece<T> && align >= 4) {
    if (align == 16) {
      cp_async<16>(slot, p, 16);
    } else {
      auto* to = reinterpret_cast<uint32_t*>(slot);
      const auto* from = reinterpret_cast<const uint32_t*>(p);
#pragma unroll
      for (int w = 0; w < 4; ++w) cp_async<4>(to + w, from + w, 4);
    }
    return;
  }
#endif
  const Piece<T> piece = load_piece(p, count, align);
  *slot = make_uint4(piece.word[0], piece.word[1], piece.word[2], piece.word[3]);
}
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  cp_async_commit();
  cp_async_wait<0>();
#endif
}
template <class T>
__device__ __forceinline__ Piece<T> piece_at(const uint4* slot) {
  const uint4 v = *slot;
  return {{v.x, v.y, v.z, v.w}};
}

// f(e) for the elements of a piece of which `count` are real.
template <class T, class F>
__device__ __forceinline__ void for_elements(int count, F&& f) {
  if (count >= kPiece<T>) {
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) f(e);
  } else {
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) {
      if (e < count) f(e);
    }
  }
}

// ---- Forward -----------------------------------------------------------------------------------

template <class T>
struct ForwardArgs {
  using Acc = Accumulator<T>;
  Planes<3> planes;  // x, residual, y
  const T *x, *residual;
  T* y;
  ChannelVector<T> weight, bias;
  Acc *mean, *rstd;  // [sets] or nullptr
  Running<T> running;
  Acc* averages;  // [sets, 2]: what instance norm's running statistics are averages of; or nullptr
  Acc count;      // values of a set
  double eps;
  dlk_activation activation;
};

template <class T>
__global__ void __launch_bounds__(kThreads, 4) planes_forward_kernel(ForwardArgs<T> args) {
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
    if (args.mean) args.mean[thread.set] = mean;
    if (args.rstd) args.rstd[thread.set] = rstd;
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
    const Acc scale = args.weight.load_or(c, 1) * rstd;
    const Acc offset = args.bias.load_or(c, 0) - rest * scale;
    T* y = args.y + thread.offset(2, unit);
    int slot = unit.slot;
    for (int i = unit.first; i < unit.end; i += step, slot += kThreads) {
      const Piece<T> x = piece_at<T>(slots + slot);
      Acc z[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        z[e] = (static_cast<Acc>(x.get(e)) - center) * scale + offset;
      }
      if (args.residual) {
        const Piece<T> r = piece_at<T>(residuals + slot);
#pragma unroll
        for (int e = 0; e < kE; ++e) z[e] += static_cast<Acc>(r.get(e));
      }
      activate(args.activation, z);
      store_piece(y + i, rounded<T>(z), unit.end - i, args.planes.align[2]);
    }
  });
  thread.end();
}

// ---- Backward ----------------------------------------------------------------------------------

template <class T>
struct BackwardArgs {
  using Acc = Accumulator<T>;
  Planes<5> planes;  // dy, x, y, dx, dresidual
  const T *dy, *x, *y;
  T *dx, *dresidual;
  ChannelVector<T> weight, bias, dweight, dbias;  // dweight, dbias: where sets are channels
  const Acc *mean, *rstd;                         // [sets]
  Sums<Acc, 2>* sums;  // [samples, parts, channels]: of dz and of dz * xhat; or nullptr
  Acc count;
  int64_t channels;
  dlk_activation activation;
};

// Sums over the `lanes` of each unit.
template <class Acc>
__device__ __forceinline__ void sum_lanes(Acc (&v)[2], int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    v[0] += shuffle_xor(v[0], mask);
    v[1] += shuffle_xor(v[1], mask);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) planes_backward_kernel(BackwardArgs<T> args) {
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
  const int64_t set = thread.active ? thread.set : 0;
  const Acc mean = args.mean[set], rstd = args.rstd[set];
  const bool one_channel = args.planes.channels_of_segment == 0;
  wait_for_copies();

  // dz and x - mean of a piece.
  const auto load = [&](int slot, Acc scale, Acc bias, Acc(&dz)[kE], Acc(&d)[kE]) {
    const Piece<T> dy = piece_at<T>(slots + slot), x = piece_at<T>(xs + slot);
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      dz[e] = static_cast<Acc>(dy.get(e));
      d[e] = static_cast<Acc>(x.get(e)) - mean;
    }
    if (args.activation == DLK_ACTIVATION_NONE) return;
    Acc z[kE];
    if (args.y) {
      const Piece<T> y = piece_at<T>(ys + slot);
#pragma unroll
      for (int e = 0; e < kE; ++e) z[e] = static_cast<Acc>(y.get(e));
    } else {
#pragma unroll
      for (int e = 0; e < kE; ++e) z[e] = d[e] * scale + bias;
    }
    activate_backward(args.activation, z, dz);
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
        args.sums[(thread.sample * parts + unit.part) * args.channels + c] = {
            {sums[0], sums[1] * rstd}};
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
  thread.end();
}

// Gradients of weight and bias from the sums that a backward kernel left.
template <class T>
struct FinishSums {
  using Acc = Accumulator<T>;
  ChannelVector<T> dweight, dbias;

  __device__ void finish(int64_t channel, const Sums<Acc, 2>& sums) const {
    if (dbias) dbias.store(channel, sums.v[0]);
    if (dweight) dweight.store(channel, sums.v[1]);
  }
};

// ---- Host --------------------------------------------------------------------------------------

// x by sample, channel and position.
struct Planar {
  int64_t samples, channels, length;
  int64_t sample_stride, channel_stride;
};

// False where a tensor is not [samples, channels, length] with neighbouring positions.
bool planar(const Tensor& t, int channel, Planar& p) {
  int64_t length = 1;
  for (int d = t.ndim - 1; d > 0; --d) {
    if (d == channel) continue;
    if (t.shape[d] != 1 && t.strides[d] != length) return false;
    length *= t.shape[d];
  }
  p = {t.shape[0], t.shape[channel], length, t.strides[0], t.strides[channel]};
  return true;
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
  const int64_t segments = shape.groups ? p.channels / shape.groups : p.samples;
  if (p.length >> 30 || segments >> 24 || p.channels >> 31 ||
      segments * ceil_div(p.length, piece) >> 24) {
    return "sets are too large for shared memory";
  }
  const Plan plan = plan_set(segments, p.length, piece, held);
  if (plan.bytes(held) > kMostBytes) return "sets are too large for shared memory";
  const int64_t sets = shape.groups ? p.samples * shape.groups : p.channels;
  if (sets * plan.blocks() >> 31) return "too many sets";
  return nullptr;
}

template <class T, int N>
Planes<N> planes_of(const SetShape& shape, const Tensor* const (&tensors)[N], int held) {
  Planar p{};
  planar(*tensors[0], shape.channel, p);
  const int64_t each = shape.groups ? p.channels / shape.groups : 1;
  Planes<N> planes{};
  planes.plan = plan_set(shape.groups ? each : p.samples, p.length, kPiece<T>, held);
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

template <int N>
unsigned grid_of(const Planes<N>& planes) {
  return static_cast<unsigned>(ceil_div(planes.sets, planes.plan.sets()) * planes.plan.blocks());
}

bool one_piece(const Tensor& t) { return !t || t.is_contiguous(); }

int held(const SetForward& p) { return p.residual ? 2 : 1; }
int held(const SetBackward& p) { return p.y && p.activation != DLK_ACTIVATION_NONE ? 3 : 2; }

const char* supports_forward(const SetForward& p) {
  if (p.given) return "the statistics are given";
  if (!one_piece(p.mean) || !one_piece(p.rstd)) return "mean or rstd is strided";
  return unsuitable(p.shape, {&p.x, &p.residual, &p.y}, held(p));
}

size_t forward_workspace(const SetForward& p) {
  if (!averages_samples(p)) return 0;
  const int64_t sets = p.x.shape[0] * p.shape.channels(p.x);
  return (2 * sets + average_items(p)) * dtype_size(accumulator_of(p.x.dtype));
}

template <class T>
void launch_forward(const SetForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  ForwardArgs<T> args{};
  args.planes = planes_of<T, 3>(p.shape, {&p.x, &p.residual, &p.y}, held(p));
  args.x = p.x.as<const T>();
  args.residual = p.residual.as<const T>();
  args.y = p.y.as<T>();
  args.weight = ChannelVector<T>(p.weight);
  args.bias = ChannelVector<T>(p.bias);
  args.mean = p.mean.as<Acc>();
  args.rstd = p.rstd.as<Acc>();
  args.running = Running<T>(p);
  args.averages = averages_samples(p) ? static_cast<Acc*>(launch.workspace) : nullptr;
  args.count = static_cast<Acc>(p.x.numel() / args.planes.sets);
  args.eps = p.eps;
  args.activation = p.activation;
  const Plan& plan = args.planes.plan;
  launch_clusters(planes_forward_kernel<T>, grid_of(args.planes), kThreads, plan.bytes(held(p)),
                  launch.stream, plan.blocks(), args);
  if (args.averages) {
    auto* partial = reinterpret_cast<Sums<Acc, 2>*>(args.averages + 2 * args.planes.sets);
    average_statistics<T>(p, args.averages, partial, launch.stream);
  }
  count_batch(p, launch.stream);
}

bool needs_channel_sums(const SetBackward& p) { return p.shape.groups && (p.dweight || p.dbias); }

const char* supports_backward(const SetBackward& p) {
  if (p.given) return "the statistics are given";
  if (!one_piece(p.mean) || !one_piece(p.rstd)) return "mean or rstd is strided";
  return unsuitable(p.shape, {&p.dy, &p.x, &p.y, &p.dx, &p.dresidual}, held(p));
}

template <class T>
Planes<5> planes_of(const SetBackward& p) {
  return planes_of<T, 5>(p.shape, {&p.dy, &p.x, &p.y, &p.dx, &p.dresidual}, held(p));
}

size_t backward_workspace(const SetBackward& p) {
  if (!needs_channel_sums(p)) return 0;
  return dispatch_floating(p.x.dtype, [&]<class T>() {
    return p.x.shape[0] * planes_of<T>(p).plan.parts.divisor() * p.shape.channels(p.x) *
           sizeof(Sums<Accumulator<T>, 2>);
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
  args.weight = ChannelVector<T>(p.weight);
  args.bias = ChannelVector<T>(p.bias);
  if (!p.shape.groups) {
    args.dweight = ChannelVector<T>(p.dweight);
    args.dbias = ChannelVector<T>(p.dbias);
  }
  args.mean = p.mean.as<const Acc>();
  args.rstd = p.rstd.as<const Acc>();
  if (needs_channel_sums(p)) args.sums = static_cast<Sums<Acc, 2>*>(launch.workspace);
  args.count = static_cast<Acc>(p.x.numel() / args.planes.sets);
  args.channels = p.shape.channels(p.x);
  args.activation = p.activation;
  const Plan& plan = args.planes.plan;
  launch_clusters(planes_backward_kernel<T>, grid_of(args.planes), kThreads, plan.bytes(held(p)),
                  launch.stream, plan.blocks(), args);
  if (args.sums) {
    finish_columns(FinishSums<T>{ChannelVector<T>(p.dweight), ChannelVector<T>(p.dbias)},
                   p.x.shape[0] * plan.parts.divisor(), args.channels, args.sums, launch.stream);
  }
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
