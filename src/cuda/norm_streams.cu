// Batch and group norm in passes, of any strides; best where the positions of a channel are neighbours
// (NCHW).
//
// Layout: a plane is the positions of a channel of a sample (of batch norm, where that makes no gaps or
// planes are small, of all samples). A unit, at most 4 pieces of 16 bytes for each of its threads, is
// shared by some lanes of a warp or by a block. Algorithm: partial moments or sums of the units, their
// merge (norm_merge.cu), and the element-wise pass. Moments by the corrected two-pass method. Where all
// pieces lie at multiples of 16 bytes a thread holds its pieces in registers; else it takes one after
// the other, of the element-wise pass at multiples of 16 bytes of the output. Which elements are summed
// in which order follows from the shape alone. Bound by memory. Sums in float32 (float64 for float64).
//
// Reference: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
#include "core/fast_div.h"
#include "cuda/norm_passes.cuh"
#include "cuda/norm_pieces.cuh"

namespace dlkern::gpu {
namespace {

constexpr int kPieces = 4;          // of a thread
constexpr int kSmallestPlane = 32;  // elements worth an entry of their own

// N tensors by plane and position, and how planes are shared out.
template <int N>
struct Planes {
  int64_t samples, planes, length;
  FastDiv channels;  // planes of a sample
  bool batch;        // sets are channels
  bool flat;         // positions are neighbours in all tensors
  bool fast;         // and all pieces lie at multiples of 16 bytes and have no gaps
  int64_t sample_stride[N], channel_stride[N];
  Readable readable[N];
  StridedIndex<N> positions;
  FastDiv extents[kMaxDims];  // of the positions

  FastDiv parts;  // units of a plane
  int64_t part;   // elements of a unit, a multiple of a piece
  int bits;       // 2^bits threads of a unit

  // With `spare` pieces of a plane beside those it fills.
  void share_out(int piece, int spare) {
    const int64_t pieces = ceil_div(length, piece) + spare;
    const int64_t count = std::max<int64_t>(ceil_div(pieces, kPieces * kTeamThreads), 1);
    const int64_t each = ceil_div(pieces, count);
    parts = FastDiv(count);
    part = each * piece;
    bits = team_bits(each, kPieces);
  }
  int64_t units() const { return planes * parts.divisor(); }
  int64_t parts_of_column() const {
    return planes == 0 ? 0 : parts.divisor() * (batch ? samples : 1);
  }

  // Where position i, below 2^31, lies in tensor n.
  __device__ __forceinline__ int64_t place(int n, int i) const {
    int64_t at = 0;
    for (int d = positions.ndim - 1; d > 0; --d) {
      const int q = extents[d].quick(i);
      at += (i - q * static_cast<int>(extents[d].divisor())) * positions.stride[n][d];
      i = q;
    }
    return at + i * positions.stride[n][0];
  }
};

// A unit as one of its threads sees it.
template <class T, int N, bool kFast>
struct Unit : Team {
  static constexpr int kE = kPiece<T>;
  static constexpr int kLoads = kFast ? kPieces : 1;  // that are on their way together
  const Planes<N>& planes;
  bool active;
  int plane, sample, channel;
  int64_t begin;  // position of the unit's first piece
  int skip;       // elements of that piece before the plane
  int count;      // elements from there on
  bool cuts;      // pieces may be cut out of what lies around them

  __device__ __forceinline__ explicit Unit(const Planes<N>& p, unsigned block = blockIdx.x)
      : Team(p.bits, block), planes(p) {
    const int unit = static_cast<int>(index);
    active = unit < static_cast<int>(p.planes * p.parts.divisor());
    plane = active ? p.parts.quick(unit) : 0;
    sample = p.channels.quick(plane);
    channel = plane - sample * static_cast<int>(p.channels.divisor());
    begin = (unit - plane * static_cast<int>(p.parts.divisor())) * p.part;
    skip = 0;
    count = active ? static_cast<int>(min(p.length - begin, p.part)) : 0;
    cuts = true;
  }
  // Pieces lie at multiples of 16 bytes of tensor n, which is written.
  __device__ __forceinline__ void align(const T* data, int n) {
    cuts = false;  // others may have written there
    if (kFast || !planes.flat) return;
    const int shift =
        static_cast<int>(reinterpret_cast<uintptr_t>(data + offset(n)) % 16 / sizeof(T));
    if (begin == 0) skip = shift;
    begin -= shift;
    count = active ? static_cast<int>(min(planes.length - begin, planes.part)) : 0;
  }
  __device__ __forceinline__ int64_t offset(int n) const {
    return sample * planes.sample_stride[n] + channel * planes.channel_stride[n];
  }
  __device__ __forceinline__ int64_t column() const { return planes.batch ? channel : plane; }
  __device__ __forceinline__ int64_t entry() const {
    const int64_t parts = planes.parts.divisor();
    if (!planes.batch) return index;
    return (channel * planes.samples + sample) * parts + (index - plane * parts);
  }
  // Piece k of the thread: its first element, counted from the unit's, and how many there are.
  __device__ __forceinline__ int at(int k) const { return (rank + k * size) * kE; }
  __device__ __forceinline__ int left(int k) const { return count - at(k); }

  // Pieces k to k + kLoads; all loads are on their way before the first is waited for.
  __device__ __forceinline__ void load(int n, const T* data, int k,
                                       Piece<T> (&piece)[kLoads]) const {
    const T* p = data + offset(n) + begin;
    if constexpr (kFast) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        piece[i] = Piece<T>{};
        load_words(left(i) > 0, p + at(i), piece[i].word);
      }
    } else if (planes.flat) {
      piece[0] = load_part(p + at(k), low(k), high(k), cuts ? planes.readable[n] : Readable{});
    } else {
      piece[0] = gather(n, data + offset(n), static_cast<int>(begin) + at(k), high(k));
    }
  }
  __device__ __forceinline__ void store(int n, T* data, int k, const Piece<T>& piece) const {
    if (left(k) <= 0) return;
    T* p = data + offset(n) + begin + at(k);
    if constexpr (kFast) {
      store_words(p, piece.word);
    } else if (!planes.flat) {
      scatter(n, data + offset(n), static_cast<int>(begin) + at(k), high(k), piece);
    } else if (low(k) == 0 && high(k) == kE && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
      store_words(p, piece.word);
    } else {
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        if (e >= low(k) && e < high(k)) p[e] = piece.get(e);
      }
    }
  }
  // f(first, piece number) for the groups of kLoads pieces.
  template <class F>
  __device__ __forceinline__ void for_groups(F&& f) const {
#pragma unroll 1
    for (int k = 0; k < kPieces; k += kLoads) {
      if (kFast || left(k) > 0) f(k);
    }
  }
  // f(e) for the elements of piece k that there are.
  template <class F>
  __device__ __forceinline__ void for_elements_of(int k, F&& f) const {
    if (left(k) <= 0) return;
    for_elements<T>(kFast ? kE : left(k), f);
  }

 private:
  __device__ __forceinline__ int low(int k) const { return at(k) == 0 ? skip : 0; }
  __device__ __forceinline__ int high(int k) const { return min(left(k), kE); }
  // The first `some` elements of a piece at places far from each other, one after the other: little
  // code beside that of neighbours.
  __device__ __forceinline__ Piece<T> gather(int n, const T* from, int i, int some) const {
    Piece<T> piece{};
#pragma unroll 1
    for (int e = 0; e < kE; ++e) {
      piece.rotate();
      if (e < some) piece.set(kE - 1, from[planes.place(n, i + e)]);
    }
    return piece;
  }
  __device__ __forceinline__ void scatter(int n, T* to, int i, int some, Piece<T> piece) const {
#pragma unroll 1
    for (int e = 0; e < some; ++e) {
      to[planes.place(n, i + e)] = piece.get(0);
      piece.rotate();
    }
  }
};

// ---- Forward -----------------------------------------------------------------------------------

template <class T>
struct ForwardArgs {
  using Acc = Accumulator<T>;
  Planes<3> planes;  // x, residual, y
  const T *x, *residual;
  T* y;
  PartialMoments<Acc>* entries;
  Coefficients<Acc> coefficients;
  dlk_activation activation;
};

template <class T, bool kFast>
__global__ void __launch_bounds__(kTeamThreads)
    streams_moments_kernel(const DLK_GRID_CONSTANT ForwardArgs<T> args) {
  using Acc = Accumulator<T>;
  using Unit = Unit<T, 3, kFast>;
  Unit unit(args.planes);
  Piece<T> x[Unit::kLoads];
  Acc total[1] = {0}, moments[2] = {0, 0};
  unit.for_groups([&](int first) {
    unit.load(0, args.x, first, x);
#pragma unroll
    for (int k = 0; k < Unit::kLoads; ++k) {
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) total[0] += static_cast<Acc>(x[k].get(e));
    }
  });
  unit.sum(total);
  const Acc n = static_cast<Acc>(unit.count), center = total[0] / n;
  unit.for_groups([&](int first) {
    if (!kFast) unit.load(0, args.x, first, x);
#pragma unroll
    for (int k = 0; k < Unit::kLoads; ++k) {
      x[k].forget();
      unit.for_elements_of(first + k, [&](int e) {
        const Acc d = static_cast<Acc>(x[k].get(e)) - center;
        moments[0] += d;
        moments[1] += d * d;
      });
    }
  });
  unit.sum(moments);
  if (!unit.active || unit.rank != 0) return;
  const Acc rest = moments[0] / n, m2 = moments[1] - moments[0] * rest;
  args.entries[unit.entry()] = {n, center, rest, m2 < 0 ? Acc(0) : m2};
}

template <class T, bool kFast>
__global__ void __launch_bounds__(kTeamThreads)
    streams_normalize_kernel(const DLK_GRID_CONSTANT ForwardArgs<T> args) {
  using Acc = Accumulator<T>;
  using Unit = Unit<T, 3, kFast>;
  Unit unit(args.planes, block_from_last());
  unit.align(args.y, 2);
  const auto coefficient = [&](ForwardCoefficient kind) {
    return Same<Acc>{args.coefficients.at(kind, unit.column())};
  };
  unit.for_groups([&](int first) {
    Piece<T> x[Unit::kLoads], residual[Unit::kLoads];
    unit.load(0, args.x, first, x);
    if (args.residual) unit.load(1, args.residual, first, residual);
    const Same<Acc> center = coefficient(kCenter), scale = coefficient(kScale),
                    offset = coefficient(kOffset);
#pragma unroll
    for (int k = 0; k < Unit::kLoads; ++k) {
      unit.store(2, args.y, first + k,
                 normalized(args.activation, x[k], args.residual != nullptr, residual[k], center,
                            scale, offset));
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
  SetVector<Acc> mean, rstd;
  ChannelVector<Acc> weight, bias;
  FastDiv each;  // channels of a set; of batch norm 1
  PartialSums<Acc>* entries;
  Coefficients<Acc> coefficients;
  bool given;  // rstd is the running variance; the statistics are constants
  double eps;
  dlk_activation activation;
};

template <class T, bool kFast>
__global__ void __launch_bounds__(kTeamThreads)
    streams_sums_kernel(const DLK_GRID_CONSTANT BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  using Unit = Unit<T, 5, kFast>;
  Unit unit(args.planes);
  const int set = args.each.quick(unit.channel);
  const Same<Acc> mean{args.mean.load(unit.sample, set)};
  Same<Acc> scale{0}, bias{0};
  if (args.activation != DLK_ACTIVATION_NONE && !args.y) {
    const Acc v = args.rstd.load(unit.sample, set);
    const Acc rstd = args.given ? 1 / sqrt(v + static_cast<Acc>(args.eps)) : v;
    scale.value = args.weight.load_or(unit.channel, 1) * rstd;
    bias.value = args.bias.load_or(unit.channel, 0);
  }
  Acc sums[2] = {0, 0};
  unit.for_groups([&](int first) {
    Piece<T> dy[Unit::kLoads], x[Unit::kLoads], y[Unit::kLoads];
    unit.load(0, args.dy, first, dy);
    unit.load(1, args.x, first, x);
    if (args.y) unit.load(2, args.y, first, y);
#pragma unroll
    for (int k = 0; k < Unit::kLoads; ++k) {
      Acc dz[kPiece<T>], d[kPiece<T>];
      gradients(args.activation, dy[k], x[k], args.y != nullptr, y[k], mean, scale, bias, dz, d);
      unit.for_elements_of(first + k, [&](int e) {
        sums[0] += dz[e];
        sums[1] += dz[e] * d[e];
      });
    }
  });
  unit.sum(sums);
  if (unit.active && unit.rank == 0) args.entries[unit.entry()] = {sums[0], sums[1]};
}

template <class T, bool kFast>
__global__ void __launch_bounds__(kTeamThreads)
    streams_gradient_kernel(const DLK_GRID_CONSTANT BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  using Unit = Unit<T, 5, kFast>;
  Unit unit(args.planes, block_from_last());
  unit.align(args.dx, 3);
  const auto coefficient = [&](BackwardCoefficient kind) {
    return Same<Acc>{args.coefficients.at(kind, unit.column())};
  };
  unit.for_groups([&](int first) {
    Piece<T> dy[Unit::kLoads], x[Unit::kLoads], y[Unit::kLoads];
    unit.load(0, args.dy, first, dy);
    unit.load(1, args.x, first, x);
    if (args.y) unit.load(2, args.y, first, y);
    const Same<Acc> mean = coefficient(kMean), scale = coefficient(kSlope),
                    bias = coefficient(kBias), across = coefficient(kAcross),
                    offset = coefficient(kOffsets);
#pragma unroll
    for (int k = 0; k < Unit::kLoads; ++k) {
      Acc dz[kPiece<T>], d[kPiece<T>];
      gradients(args.activation, dy[k], x[k], args.y != nullptr, y[k], mean, scale, bias, dz, d);
      if (args.dresidual) unit.store(4, args.dresidual, first + k, rounded<T>(dz));
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        // Constants have no gradient: an infinite x is no matter then.
        const Acc straight = scale[e] * dz[e];
        dz[e] = args.given ? straight : straight + (across[e] * d[e] + offset[e]);
      }
      unit.store(3, args.dx, first + k, rounded<T>(dz));
    }
  });
}

// ---- Host --------------------------------------------------------------------------------------

// Planes of each sample, or of all.
template <int N>
Planes<N> planes_by(bool sample, const SetShape& shape, const Tensor* const (&tensors)[N]) {
  const Tensor& x = *tensors[0];
  const uint32_t split = 1u << shape.channel | (sample ? 1u : 0u);
  Planes<N> p{};
  p.positions = make_index<N>(tensors, ~split);
  p.samples = sample ? x.shape[0] : 1;
  p.length = p.positions.numel;
  p.planes = p.length == 0 ? 0 : p.samples * shape.channels(x);
  p.channels = FastDiv(shape.channels(x));
  p.batch = !shape.groups;
  p.flat = p.positions.ndim <= 1;
  for (int d = 0; d < p.positions.ndim; ++d) p.extents[d] = FastDiv(p.positions.shape[d]);
  for (int n = 0; n < N; ++n) {
    const Tensor& t = *tensors[n];
    if (!t) continue;
    p.readable[n] = Readable(t);
    p.sample_stride[n] = sample ? t.strides[0] : 0;
    p.channel_stride[n] = t.strides[shape.channel];
    if (p.positions.ndim == 1) p.flat = p.flat && p.positions.stride[n][0] == 1;
  }
  return p;
}
template <int N>
Planes<N> planes_of(const SetShape& shape, const Tensor* const (&tensors)[N]) {
  if (shape.groups) return planes_by(true, shape, tensors);
  const Planes<N> all = planes_by(false, shape, tensors), each = planes_by(true, shape, tensors);
  const bool few = each.length < kSmallestPlane || (!each.flat && all.length >> 30 == 0);
  return all.flat || few ? all : each;
}

int piece_of(const Tensor& x) { return static_cast<int>(16 / dtype_size(x.dtype)); }

// Planes whose pieces all lie at multiples of 16 bytes in all tensors.
template <int N>
bool fast(const Planes<N>& p, const Tensor* const (&tensors)[N]) {
  if (!p.flat || p.length % piece_of(*tensors[0]) != 0) return false;
  for (int n = 0; n < N; ++n) {
    const Tensor& t = *tensors[n];
    if (!t) continue;
    const auto size = static_cast<int64_t>(dtype_size(t.dtype));
    const int64_t strides = p.sample_stride[n] | p.channel_stride[n];
    if ((reinterpret_cast<intptr_t>(t.data) | strides * size) % 16 != 0) return false;
  }
  return true;
}

template <int N>
Planes<N> shared_out(const SetShape& shape, const Tensor* const (&tensors)[N]) {
  Planes<N> planes = planes_of(shape, tensors);
  planes.fast = fast(planes, tensors);
  planes.share_out(piece_of(*tensors[0]), 0);
  return planes;
}
Planes<3> planes_of(const SetForward& p) {
  return shared_out<3>(p.shape, {&p.x, &p.residual, &p.y});
}
Planes<5> planes_of(const SetBackward& p) {
  return shared_out<5>(p.shape, {&p.dy, &p.x, &p.y, &p.dx, &p.dresidual});
}

template <class Args>
void launch_units(void (*fast)(Args), void (*any)(Args), const Args& args, void* stream) {
  if (args.planes.planes == 0) return;
  launch_kernel(args.planes.fast ? fast : any, team_blocks(args.planes.units(), args.planes.bits),
                kTeamThreads, 0, stream, args);
}

template <class T>
void launch_forward(const SetForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  ForwardArgs<T> args{};
  args.planes = planes_of(p);
  const int64_t parts = args.planes.parts_of_column();
  args.x = p.x.as<const T>();
  args.residual = p.residual.as<const T>();
  args.y = p.y.as<T>();
  args.entries = static_cast<PartialMoments<Acc>*>(launch.workspace);
  args.coefficients = {static_cast<Acc*>(forward_coefficients(p, parts, launch.workspace)),
                       columns_of(p.x, p.shape)};
  args.activation = p.activation;
  if (!p.given())
    launch_units(streams_moments_kernel<T, true>, streams_moments_kernel<T, false>, args,
                 launch.stream);
  merge_moments(p, parts, launch);
  args.planes.share_out(kPiece<T>, args.planes.fast ? 0 : 1);
  launch_units(streams_normalize_kernel<T, true>, streams_normalize_kernel<T, false>, args,
               launch.stream);
}

template <class T>
void launch_backward(const SetBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  BackwardArgs<T> args{};
  args.planes = planes_of(p);
  const int64_t parts = args.planes.parts_of_column(), channels = p.shape.channels(p.x);
  args.dy = p.dy.as<const T>();
  args.x = p.x.as<const T>();
  args.y = p.activation == DLK_ACTIVATION_NONE ? nullptr : p.y.as<const T>();
  args.dx = p.dx.as<T>();
  args.dresidual = p.dresidual.as<T>();
  args.mean = SetVector<Acc>(p.mean);
  args.rstd = SetVector<Acc>(p.rstd);
  args.weight = ChannelVector<Acc>(p.weight);
  args.bias = ChannelVector<Acc>(p.bias);
  args.each = FastDiv(p.shape.groups ? channels / p.shape.groups : 1);
  args.entries = static_cast<PartialSums<Acc>*>(launch.workspace);
  args.coefficients = {static_cast<Acc*>(backward_coefficients(p, parts, launch.workspace)),
                       columns_of(p.x, p.shape)};
  args.given = p.given;
  args.eps = p.eps;
  args.activation = p.activation;
  if (needs_sums(p))
    launch_units(streams_sums_kernel<T, true>, streams_sums_kernel<T, false>, args, launch.stream);
  merge_sums(p, parts, launch);
  args.planes.share_out(kPiece<T>, args.planes.fast ? 0 : 1);
  launch_units(streams_gradient_kernel<T, true>, streams_gradient_kernel<T, false>, args,
               launch.stream);
}

template <class Problem>
const char* supports(const Problem& p) {
  const auto planes = planes_of(p);
  // Beside a unit's pieces the last block has some in vain.
  if (planes.units() >> 30) return "too many channels of too many samples";
  if (!planes.flat && planes.length >> 30) return "too many positions of a channel, and strided";
  return nullptr;
}

}  // namespace

SetNorm kSetsOfStreams = {
    supports<SetForward>,
    [](const SetForward& p) { return forward_workspace_of(p, planes_of(p).parts_of_column()); },
    [](const SetForward& p, const Launch& launch) {
      dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
    },
    supports<SetBackward>,
    [](const SetBackward& p) { return backward_workspace_of(p, planes_of(p).parts_of_column()); },
    [](const SetBackward& p, const Launch& launch) {
      dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
    },
};

}  // namespace dlkern::gpu
