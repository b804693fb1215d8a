// Group norm on the CPU, chunk by chunk: some groups of one sample that stay in cache between the
// passes, or several whole samples where these are small. Within a chunk the sums and passes of
// norm_channels.h. A chunk's work does not depend on the other samples.
#include "ops/norm_group.h"

#include "cpu/norm_channels.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kChunk = 32768;     // elements, about
constexpr int64_t kMinChannels = 64;  // of a chunk where channels are neighbours: whole lines

// Groups [first, first + groups) of one sample, as tensors of their own.
struct Chunks {
  int channel;
  int64_t samples, groups, channels_of_group, groups_of_chunk, per_sample;

  Chunks(const Tensor& x, int channel_, int64_t groups_)
      : channel(channel_), samples(x.shape[0]), groups(groups_) {
    const int64_t channels = x.shape[channel], set = samples * groups;
    channels_of_group = groups ? channels / groups : 0;
    const int64_t size = std::max<int64_t>(set ? x.numel() / set : 0, 1);
    groups_of_chunk = std::max<int64_t>(kChunk / size, 1);
    if (x.strides[channel] == 1 && channels_of_group) {
      groups_of_chunk = std::max(groups_of_chunk, ceil_div(kMinChannels, channels_of_group));
    }
    groups_of_chunk = std::min(groups_of_chunk, std::max<int64_t>(groups, 1));
    per_sample = ceil_div(groups, groups_of_chunk);
  }
  int64_t count() const { return samples * per_sample; }

  struct Chunk {
    int64_t sample, first_group, groups;
  };
  Chunk operator[](int64_t i) const {
    const int64_t sample = i / per_sample, first = (i - sample * per_sample) * groups_of_chunk;
    return {sample, first, std::min(groups_of_chunk, groups - first)};
  }
  Tensor part(Tensor t, const Chunk& chunk) const {
    if (!t) return t;
    const int64_t at =
        chunk.sample * t.strides[0] + chunk.first_group * channels_of_group * t.strides[channel];
    t.data = t.as<char>() + at * static_cast<int64_t>(dtype_size(t.dtype));
    t.shape[0] = 1;
    t.shape[channel] = chunk.groups * channels_of_group;
    return t;
  }
  // The channels of a part in two dimensions: groups, and then those of a group.
  Tensor split(Tensor t) const {
    for (int d = t.ndim; d > channel; --d) {
      t.shape[d] = t.shape[d - 1];
      t.strides[d] = t.strides[d - 1];
    }
    ++t.ndim;
    t.shape[channel] /= channels_of_group;
    t.shape[channel + 1] = channels_of_group;
    t.strides[channel] *= channels_of_group;
    return t;
  }
};

// Moments of each group of a part of x.
template <class T>
std::vector<Moments> group_moments(const Chunks& chunks, const Tensor& x) {
  const int channel = chunks.channel;
  int64_t positions = 1;
  for (int d = 1; d < x.ndim; ++d) positions *= d == channel ? 1 : x.shape[d];
  // Where channels are neighbours each is summed by itself first, since that is vectorised.
  if (x.strides[channel] != 1 || positions == 1) return statistics<T>(chunks.split(x), channel);
  const std::vector<Moments> of_channels = statistics<T>(x, channel);
  std::vector<Moments> moments(x.shape[channel] / chunks.channels_of_group);
  for (size_t c = 0; c < of_channels.size(); ++c) {
    moments[c / chunks.channels_of_group].merge(of_channels[c]);
  }
  return moments;
}

// Running statistics: of each sample and channel what is to be averaged.
struct Averages {
  std::vector<double> mean, var;
};

template <class T>
void forward_chunk(const GroupNormForward& p, const Chunks& chunks, const Chunks::Chunk& chunk,
                   Averages& averages) {
  using Acc = Accumulator<T>;
  const ForwardTensors part{
      chunks.part(p.x, chunk), chunks.part(p.y, chunk), {}, p.channel, p.activation};
  const std::vector<Moments> moments = group_moments<T>(chunks, part.x);
  const MixedView<T> weight(p.weight), bias(p.bias), mean(p.mean), rstd(p.rstd);
  const int64_t each = chunks.channels_of_group;
  Affine<Acc> affine(chunk.groups * each);
  for (int64_t g = 0; g < chunk.groups; ++g) {
    const Moments& m = moments[g];
    const int64_t set = chunk.sample * p.groups + chunk.first_group + g;
    const double variance = m.n ? m.variance() : NAN;  // of no values at all
    const double inverse = 1 / std::sqrt(variance + p.eps);
    if (mean) mean.store(set, static_cast<Acc>(m.n ? m.mean : NAN));
    if (rstd) rstd.store(set, static_cast<Acc>(inverse));
    if (!averages.mean.empty()) {
      averages.mean[set] = m.mean;
      averages.var[set] = variance * (m.n / (m.n - 1));
    }
    for (int64_t c = g * each; c < (g + 1) * each; ++c) {
      const int64_t channel = chunk.first_group * each + c;
      affine.set(c, m.mean, weight.load_or(channel, 1) * inverse, bias.load_or(channel, 0));
    }
  }
  apply<T>(part, affine);
}

template <class T>
void update_running(const GroupNormForward& p, const Averages& averages) {
  const MixedView<T> running_mean(p.running_mean), running_var(p.running_var);
  const int64_t samples = p.x.shape[0];
  for (int64_t c = 0; c < p.groups && samples; ++c) {
    double mean = 0, var = 0;
    for (int64_t n = 0; n < samples; ++n) {
      mean += averages.mean[n * p.groups + c];
      var += averages.var[n * p.groups + c];
    }
    blend(running_mean, c, p.momentum, mean / samples);
    blend(running_var, c, p.momentum, var / samples);
  }
}

template <class T>
void forward(const GroupNormForward& p) {
  const Chunks chunks(p.x, p.channel, p.groups);
  Averages averages;
  if (p.running_mean) {
    averages.mean.resize(p.x.shape[0] * p.groups);
    averages.var.resize(averages.mean.size());
  }
  // One chunk after the other is shared by all threads where there are few.
  parallel_for(chunks.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) forward_chunk<T>(p, chunks, chunks[i], averages);
  });
  if (p.running_mean) update_running<T>(p, averages);
}

// sums: [N, C], of dz and of dz * xhat.
template <class T>
void backward_chunk(const GroupNormBackward& p, const Chunks& chunks, const Chunks::Chunk& chunk,
                    std::vector<Sums>& all) {
  using Acc = Accumulator<T>;
  const BackwardTensors part{chunks.part(p.x, chunk),
                             chunks.part(p.dy, chunk),
                             {},
                             chunks.part(p.dx, chunk),
                             {},
                             p.channel,
                             p.activation};
  const MixedView<T> weight(p.weight), bias(p.bias), mean(p.mean), rstd(p.rstd);
  const int64_t each = chunks.channels_of_group, channels = chunk.groups * each;
  GradientTerms<Acc> terms(channels);
  const auto set_of = [&](int64_t c) {
    return chunk.sample * p.groups + chunk.first_group + c / each;
  };
  for (int64_t c = 0; c < channels; ++c) {
    const int64_t channel = chunk.first_group * each + c;
    terms.center[c] = mean.load(set_of(c));
    terms.along[c] = weight.load_or(channel, 1) * rstd.load(set_of(c));
    terms.bias[c] = bias.load_or(channel, 0);
  }
  const std::vector<Sums> sums = gradient_sums<T>(part, terms);
  const double values = static_cast<double>(part.x.numel() / chunk.groups);
  for (int64_t g = 0; g < chunk.groups; ++g) {
    const double inverse = rstd.load(set_of(g * each));
    Sums group;
    for (int64_t c = g * each; c < (g + 1) * each; ++c) {
      const double factor = weight.load_or(chunk.first_group * each + c, 1);
      group.merge({factor * sums[c].a, factor * sums[c].b});
      all[chunk.sample * p.groups * each + chunk.first_group * each + c] = {sums[c].a,
                                                                            sums[c].b * inverse};
    }
    for (int64_t c = g * each; c < (g + 1) * each; ++c) {
      terms.across[c] = static_cast<Acc>(-inverse * inverse * inverse * group.b / values);
      terms.offset[c] = static_cast<Acc>(-inverse * group.a / values);
    }
  }
  apply_gradient<T>(part, terms);
}

template <class T>
void backward(const GroupNormBackward& p) {
  using Acc = Accumulator<T>;
  const Chunks chunks(p.x, p.channel, p.groups);
  const int64_t channels = p.x.shape[p.channel];
  std::vector<Sums> sums(p.x.shape[0] * channels);
  if (p.x.numel()) {
    parallel_for(chunks.count(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) backward_chunk<T>(p, chunks, chunks[i], sums);
    });
  }
  const MixedView<T> dweight(p.dweight), dbias(p.dbias);
  if (!dweight && !dbias) return;
  for (int64_t c = 0; c < channels; ++c) {
    Sums total;
    for (int64_t n = 0; n < p.x.shape[0]; ++n) total.merge(sums[n * channels + c]);
    if (dweight) dweight.store(c, static_cast<Acc>(total.b));
    if (dbias) dbias.store(c, static_cast<Acc>(total.a));
  }
}

constexpr Impl<GroupNormForward> kForward[] = {
    {"cpu_two_pass", supports_all, nullptr,
     [](const GroupNormForward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { forward<T>(p); });
     }},
};
constexpr Impl<GroupNormBackward> kBackward[] = {
    {"cpu_two_pass", supports_all, nullptr,
     [](const GroupNormBackward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { backward<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<GroupNormForward> cpu_impls<GroupNormForward>() {
  return kForward;
}
template <>
ImplList<GroupNormBackward> cpu_impls<GroupNormBackward>() {
  return kBackward;
}

}  // namespace dlkern
