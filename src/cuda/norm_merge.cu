// Batch and group norm: from partial results of parts of the channels to statistics, coefficients of
// the element-wise pass, and gradients of the parameters.
//
// A team of threads merges a set: lanes of a warp, or a block, by how many entries there are. Moments by
// the corrected two-pass method over the entries. Sums in float32 (float64 for float64), in an order
// that the number of entries decides.
//
// Reference: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
#include "core/fast_div.h"
#include "cuda/norm_passes.cuh"

namespace dlkern::gpu {
namespace {

constexpr int kShare = 2;  // entries of a thread, where a set has few

// Sets by sample, and their channels.
struct Sets {
  int64_t count, channels;
  FastDiv of_sample;  // batch norm: all
  int64_t each;       // channels of a set
  int64_t parts;      // entries of a column
  int64_t columns;    // of a set's channels, entries of one column each
  int64_t entries;    // of a set

  Sets(const Tensor& x, const SetShape& shape, int64_t parts_)
      : count(sets_of(x, shape)),
        channels(shape.channels(x)),
        of_sample(shape.groups ? shape.groups : channels),
        each(shape.groups ? channels / shape.groups : 1),
        parts(parts_),
        columns(columns_of(x, shape)),
        entries(each * parts_) {}
};

// A team's set.
struct SetTeam : Team {
  int64_t sample = 0, set = 0;  // its number in the sample
  bool active;

  __device__ __forceinline__ SetTeam(const Sets& sets, int bits)
      : Team(bits), active(index < sets.count) {
    if (!active) return;
    sample = sets.of_sample(index);
    set = index - sample * sets.of_sample.divisor();
  }
  // f(number) for the things of this thread out of `count`.
  template <class F>
  __device__ __forceinline__ void for_each(int64_t count, F&& f) const {
    if (!active) return;
#pragma unroll 4
    for (int64_t i = rank; i < count; i += size) f(i);
  }
};

// Weight and bias of the channels of a team's set; those of a thread's first one are on their way while
// the entries are merged.
template <class Acc>
struct SetParameters {
  const ChannelVector<Acc>&weight, &bias;
  Acc first_weight = 1, first_bias = 0;

  __device__ __forceinline__ SetParameters(const SetTeam& team, int64_t each,
                                           const ChannelVector<Acc>& weight_,
                                           const ChannelVector<Acc>& bias_)
      : weight(weight_), bias(bias_) {
    if (!team.active || team.rank >= each) return;
    first_weight = weight.load_or(team.set * each + team.rank, 1);
    first_bias = bias.load_or(team.set * each + team.rank, 0);
  }
  // f(column, weight, bias)
  template <class F>
  __device__ __forceinline__ void for_channels(const SetTeam& team, const Sets& sets, F&& f) const {
    team.for_each(sets.each, [&](int64_t i) {
      const int64_t c = team.set * sets.each + i;
      const bool first = i < team.size;
      f(team.sample * sets.channels + c, first ? first_weight : weight.load_or(c, 1),
        first ? first_bias : bias.load_or(c, 0));
    });
  }
};

// ---- Forward -----------------------------------------------------------------------------------

template <class Acc>
struct MomentsArgs {
  Sets sets;
  int bits;
  const PartialMoments<Acc>* entries;
  ChannelVector<Acc> weight, bias;
  SetVector<Acc> mean, rstd;
  Running<Acc> running;
  SetVector<Acc> given_mean, given_var;  // in place of entries
  Acc unbiased;                          // n / (n - 1) of n values of a set
  int64_t* count;                        // of batches, which none of the threads reads; or nullptr
  Acc* averages;
  Coefficients<Acc> coefficients;
  double eps;
};

template <class Acc>
__global__ void __launch_bounds__(kTeamThreads)
    merge_moments_kernel(const DLK_GRID_CONSTANT MomentsArgs<Acc> args) {
  SetTeam team(args.sets, args.bits);
  if (args.count && blockIdx.x == 0 && threadIdx.x == 0) ++*args.count;
  const auto* entries = args.entries + team.index * args.sets.entries;
  const SetParameters<Acc> parameters(team, args.sets.each, args.weight, args.bias);
  const Acc eps = static_cast<Acc>(args.eps);
  Acc center, rest = 0, rstd;
  if (args.given_mean) {
    center = team.active ? args.given_mean.load(team.sample, team.set) : Acc(0);
    const Acc var = team.active ? args.given_var.load(team.sample, team.set) : Acc(0);
    rstd = 1 / sqrt(var + eps);
    if (team.active && team.rank == 0) {
      if (args.rstd) args.rstd.store(team.sample, team.set, rstd);
      if (args.running.mean) args.running.update(team.set, center, var * args.unbiased);
    }
  } else {
    Acc total[2] = {};
    team.for_each(args.sets.entries, [&](int64_t i) {
      total[0] += entries[i].n;
      total[1] += entries[i].n * entries[i].center;
    });
    team.sum(total);
    center = total[1] / total[0];
    Acc moments[2] = {};
    team.for_each(args.sets.entries, [&](int64_t i) {
      const PartialMoments<Acc> e = entries[i];
      const Acc d = (e.center - center) + e.rest;
      moments[0] += e.n * d;
      moments[1] += e.m2 + e.n * d * d;
    });
    team.sum(moments);
    rest = moments[0] / total[0];
    const Acc squares = moments[1] - moments[0] * rest, m2 = squares < 0 ? Acc(0) : squares;
    rstd = 1 / sqrt(m2 / total[0] + eps);
    if (team.active && team.rank == 0) {
      const Acc mean = center + rest, unbiased = m2 / (total[0] - 1);
      if (args.mean) args.mean.store(team.sample, team.set, mean);
      if (args.rstd) args.rstd.store(team.sample, team.set, rstd);
      if (args.averages) {
        args.averages[2 * team.index] = mean;
        args.averages[2 * team.index + 1] = unbiased;
      } else if (args.running.mean) {
        args.running.update(team.set, mean, unbiased);
      }
    }
  }
  parameters.for_channels(team, args.sets, [&](int64_t column, Acc weight, Acc bias) {
    args.coefficients.at(kCenter, column) = center;
    args.coefficients.at(kScale, column) = weight * rstd;
    args.coefficients.at(kOffset, column) = bias - rest * (weight * rstd);
  });
}

// The averages over samples that update the running statistics of instance norm.
template <class Acc>
__global__ void __launch_bounds__(kTeamThreads)
    average_statistics_kernel(const Acc* averages, int64_t samples, int64_t channels, int bits,
                              const DLK_GRID_CONSTANT Running<Acc> running) {
  Team team(bits);
  const bool active = team.index < channels;
  Acc sums[2] = {};
  for (int64_t n = team.rank; active && n < samples; n += team.size) {
    const Acc* of_sample = averages + 2 * (n * channels + team.index);
    sums[0] += of_sample[0];
    sums[1] += of_sample[1];
  }
  team.sum(sums);
  if (active && team.rank == 0) {
    running.update(team.index, sums[0] / Acc(samples), sums[1] / Acc(samples));
  }
}

__global__ void count_batch_kernel(int64_t* num_batches) { ++*num_batches; }

// ---- Backward ----------------------------------------------------------------------------------

template <class Acc>
struct SumsArgs {
  Sets sets;
  int bits;
  const PartialSums<Acc>* entries;  // or none
  bool channels;                    // sets are channels
  FastDiv parts;
  ChannelVector<Acc> weight, bias, dweight, dbias;  // dweight, dbias: where sets are channels
  SetVector<Acc> mean, rstd;
  bool given;  // rstd is the running variance; the statistics are constants
  Coefficients<Acc> coefficients;
  Acc count;  // values of a set
  double eps;
};

template <class Acc>
__global__ void __launch_bounds__(kTeamThreads)
    merge_sums_kernel(const DLK_GRID_CONSTANT SumsArgs<Acc> args) {
  SetTeam team(args.sets, args.bits);
  const auto* entries = args.entries + team.index * args.sets.entries;
  const int64_t first = team.set * args.sets.each;
  const SetParameters<Acc> parameters(team, args.sets.each, args.weight, args.bias);
  Acc mean = 0, rstd = 0;
  if (team.active) {
    mean = args.mean.load(team.sample, team.set);
    rstd = args.rstd.load(team.sample, team.set);
    if (args.given) rstd = 1 / sqrt(rstd + static_cast<Acc>(args.eps));
  }
  Acc sums[2] = {};
  if (args.entries) {
    team.for_each(args.sets.entries, [&](int64_t i) {
      const Acc weight = args.channels ? Acc(1) : args.weight.load_or(first + args.parts(i), 1);
      sums[0] += weight * entries[i].straight;
      sums[1] += weight * entries[i].along;
    });
    team.sum(sums);
  }
  const Acc along = sums[1] * rstd;
  if (team.active && team.rank == 0 && args.channels && args.entries) {
    if (args.dweight) args.dweight.store(team.set, along);
    if (args.dbias) args.dbias.store(team.set, sums[0]);
  }
  parameters.for_channels(team, args.sets, [&](int64_t column, Acc weight, Acc bias) {
    const Acc scale = weight * rstd;
    const Acc outer = args.given ? Acc(0) : -(args.channels ? scale : rstd) / args.count;
    args.coefficients.at(kMean, column) = mean;
    args.coefficients.at(kSlope, column) = scale;
    args.coefficients.at(kAcross, column) = outer * along * rstd;
    args.coefficients.at(kOffsets, column) = outer * sums[0];
    args.coefficients.at(kBias, column) = bias;
  });
}

template <class Acc>
struct ChannelArgs {
  int64_t samples, channels;
  int bits;
  FastDiv parts, each;  // each: channels of a group
  const PartialSums<Acc>* sums;
  SetVector<Acc> rstd;
  ChannelVector<Acc> dweight, dbias;
};

template <class Acc>
__global__ void __launch_bounds__(kTeamThreads)
    channel_gradients_kernel(const DLK_GRID_CONSTANT ChannelArgs<Acc> args) {
  Team team(args.bits);
  const bool active = team.index < args.channels;
  const int64_t group = args.each(team.index), parts = args.parts.divisor();
  Acc total[2] = {};
#pragma unroll 4
  for (int64_t i = team.rank; active && i < args.samples * parts; i += team.size) {
    const int64_t n = args.parts(i);
    const PartialSums<Acc> e = args.sums[(n * args.channels + team.index) * parts + i - n * parts];
    total[0] += e.straight;
    total[1] += e.along * args.rstd.load(n, group);
  }
  team.sum(total);
  if (!active || team.rank != 0) return;
  if (args.dbias) args.dbias.store(team.index, total[0]);
  if (args.dweight) args.dweight.store(team.index, total[1]);
}

// ---- Host --------------------------------------------------------------------------------------

// f.template operator()<Acc>() with the type that a dtype is summed in.
template <class F>
void dispatch_accumulator(DType dtype, F&& f) {
  if (dtype == DType::kFloat64) return f.template operator()<double>();
  f.template operator()<float>();
}

// With as many threads as `teams` of 2^bits threads have; none where there are none.
template <class... Params, class... Args>
void launch_teams(void (*kernel)(Params...), int64_t teams, int bits, void* stream,
                  Args&&... args) {
  if (teams == 0) return;
  launch_kernel(kernel, team_blocks(teams, bits), kTeamThreads, 0, stream,
                std::forward<Args>(args)...);
}

template <class Acc>
void launch_merge_moments(const SetForward& p, int64_t parts, const Launch& launch) {
  const Sets sets(p.x, p.shape, p.given() ? 0 : parts);
  const double values = sets.count ? static_cast<double>(p.x.numel() / sets.count) : 0;
  const int bits = team_bits(std::max(sets.entries, sets.each), kShare);
  auto* coefficients = static_cast<Acc*>(forward_coefficients(p, parts, launch.workspace));
  Acc* averages = coefficients + kForwardCoefficients * sets.columns;
  if (!averages_samples(p)) averages = nullptr;
  // One launch less, where no thread asks for the number.
  const bool counts = p.num_batches && !p.cumulative && sets.count > 0;
  const MomentsArgs<Acc> args{sets,
                              bits,
                              static_cast<const PartialMoments<Acc>*>(launch.workspace),
                              ChannelVector<Acc>(p.weight),
                              ChannelVector<Acc>(p.bias),
                              SetVector<Acc>(p.mean),
                              SetVector<Acc>(p.rstd),
                              Running<Acc>(p),
                              SetVector<Acc>(p.given_mean),
                              SetVector<Acc>(p.given_var),
                              static_cast<Acc>(values / (values - 1)),
                              counts ? p.num_batches.as<int64_t>() : nullptr,
                              averages,
                              {coefficients, sets.columns},
                              p.eps};
  launch_teams(merge_moments_kernel<Acc>, sets.count, bits, launch.stream, args);
  if (averages) average_statistics(p, averages, launch.stream);
  if (!counts) count_batch(p, launch.stream);
}

template <class Acc>
void launch_merge_sums(const SetBackward& p, int64_t parts, const Launch& launch) {
  const bool sums = needs_sums(p), channels = !p.shape.groups;
  const Sets sets(p.x, p.shape, sums ? parts : 0);
  const int bits = team_bits(std::max(sets.entries, sets.each), kShare);
  const SumsArgs<Acc> args{
      sets,
      bits,
      sums ? static_cast<const PartialSums<Acc>*>(launch.workspace) : nullptr,
      channels,
      FastDiv(parts),
      ChannelVector<Acc>(p.weight),
      ChannelVector<Acc>(p.bias),
      ChannelVector<Acc>(p.dweight),
      ChannelVector<Acc>(p.dbias),
      SetVector<Acc>(p.mean),
      SetVector<Acc>(p.rstd),
      p.given,
      {static_cast<Acc*>(backward_coefficients(p, parts, launch.workspace)), sets.columns},
      static_cast<Acc>(sets.count ? p.x.numel() / sets.count : 0),
      p.eps};
  launch_teams(merge_sums_kernel<Acc>, sets.count, bits, launch.stream, args);
  if (!channels) channel_gradients(p, launch.workspace, parts, launch.stream);
}

size_t item_bytes(const Tensor& x) { return dtype_size(accumulator_of(x.dtype)); }
// Items of the entries: aligned for what follows them.
int64_t moments_items(const SetForward& p, int64_t parts) {
  return p.given() ? 0 : 4 * columns_of(p.x, p.shape) * parts;
}
int64_t sums_items(const SetBackward& p, int64_t parts) {
  return needs_sums(p) ? ceil_div(2 * columns_of(p.x, p.shape) * parts, 4) * 4 : 0;
}

}  // namespace

size_t forward_workspace_of(const SetForward& p, int64_t parts) {
  int64_t items = moments_items(p, parts) + kForwardCoefficients * columns_of(p.x, p.shape);
  if (averages_samples(p)) items += 2 * sets_of(p.x, p.shape);
  return static_cast<size_t>(items) * item_bytes(p.x);
}
size_t backward_workspace_of(const SetBackward& p, int64_t parts) {
  const int64_t items = sums_items(p, parts) + kBackwardCoefficients * columns_of(p.x, p.shape);
  return static_cast<size_t>(items) * item_bytes(p.x);
}
void* forward_coefficients(const SetForward& p, int64_t parts, void* workspace) {
  return static_cast<char*>(workspace) + moments_items(p, parts) * item_bytes(p.x);
}
void* backward_coefficients(const SetBackward& p, int64_t parts, void* workspace) {
  return static_cast<char*>(workspace) + sums_items(p, parts) * item_bytes(p.x);
}

void merge_moments(const SetForward& p, int64_t parts, const Launch& launch) {
  dispatch_accumulator(p.x.dtype,
                       [&]<class Acc>() { launch_merge_moments<Acc>(p, parts, launch); });
}

bool needs_sums(const SetBackward& p) { return !p.given || p.dweight || p.dbias; }

void merge_sums(const SetBackward& p, int64_t parts, const Launch& launch) {
  dispatch_accumulator(p.x.dtype, [&]<class Acc>() { launch_merge_sums<Acc>(p, parts, launch); });
}

void average_statistics(const SetForward& p, const void* averages, void* stream) {
  dispatch_accumulator(p.x.dtype, [&]<class Acc>() {
    const int64_t samples = p.x.shape[0], channels = p.shape.channels(p.x);
    const int bits = team_bits(samples, kShare);
    launch_teams(average_statistics_kernel<Acc>, channels, bits, stream,
                 static_cast<const Acc*>(averages), samples, channels, bits, Running<Acc>(p));
  });
}

void count_batch(const SetForward& p, void* stream) {
  if (!p.num_batches) return;
  launch_kernel(count_batch_kernel, 1, 1, 0, stream, p.num_batches.as<int64_t>());
}

bool needs_channel_gradients(const SetBackward& p) {
  return p.shape.groups && (p.dweight || p.dbias);
}

void channel_gradients(const SetBackward& p, const void* sums, int64_t parts, void* stream) {
  if (!needs_channel_gradients(p)) return;
  dispatch_accumulator(p.x.dtype, [&]<class Acc>() {
    const int64_t samples = p.x.shape[0], channels = p.shape.channels(p.x);
    const int bits = team_bits(samples * parts, kShare);
    const ChannelArgs<Acc> args{samples,
                                channels,
                                bits,
                                FastDiv(parts),
                                FastDiv(channels / p.shape.groups),
                                static_cast<const PartialSums<Acc>*>(sums),
                                SetVector<Acc>(p.rstd),
                                ChannelVector<Acc>(p.dweight),
                                ChannelVector<Acc>(p.dbias)};
    launch_teams(channel_gradients_kernel<Acc>, channels, bits, stream, args);
  });
}

}  // namespace dlkern::gpu
