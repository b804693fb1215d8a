// Batch norm on the CPU: moments and sums per channel, and element-wise passes (norm_channels.h).
#include "ops/norm_batch.h"

#include "cpu/norm_channels.h"

namespace dlkern {
namespace {

using namespace cpu;

// The weight of the new statistics; counts the batch.
double momentum_of(const BatchNormTraining& p) {
  if (!p.num_batches) return p.momentum;
  const int64_t batches = ++*p.num_batches.as<int64_t>();
  return p.cumulative ? 1.0 / static_cast<double>(batches) : p.momentum;
}

// Of x, or given.
template <class T>
std::vector<Moments> statistics_of(const BatchNormTraining& p) {
  if (!p.var) return statistics<T>(p.x, p.channel);
  std::vector<Moments> moments(p.x.shape[p.channel]);
  const MixedView<T> mean(p.mean), var(p.var);
  const double n = moments.empty() ? 0 : static_cast<double>(p.x.numel() / moments.size());
  for (size_t c = 0; c < moments.size(); ++c) {
    moments[c] = {n, static_cast<double>(mean.load(c)), var.load(c) * n};
  }
  return moments;
}

template <class T>
void training(const BatchNormTraining& p) {
  using Acc = Accumulator<T>;
  const std::vector<Moments> moments = statistics_of<T>(p);
  const int64_t channels = p.x.shape[p.channel];
  const MixedView<T> weight(p.weight), bias(p.bias), mean(p.mean), rstd(p.rstd);
  const MixedView<T> running_mean(p.running_mean), running_var(p.running_var);
  const double momentum = momentum_of(p);
  Affine<Acc> affine(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const Moments& m = moments[c];
    const double inverse = 1 / std::sqrt(m.variance() + p.eps);
    affine.set(c, m.mean, weight.load_or(c, 1) * inverse, bias.load_or(c, 0));
    if (!p.var) mean.store(c, static_cast<Acc>(m.mean));
    rstd.store(c, static_cast<Acc>(inverse));
    if (running_mean) {
      blend(running_mean, c, momentum, m.mean);
      blend(running_var, c, momentum, m.variance() * (m.n / (m.n - 1)));
    }
  }
  apply<T>({p.x, p.y, p.residual, p.channel, p.activation}, affine);
}

template <class T>
void inference(const BatchNormInference& p) {
  using Acc = Accumulator<T>;
  const int64_t channels = p.x.shape[p.channel];
  const MixedView<T> weight(p.weight), bias(p.bias), mean(p.running_mean), var(p.running_var);
  Affine<Acc> affine(channels);
  for (int64_t c = 0; c < channels; ++c) {
    affine.set(c, mean.load(c), weight.load_or(c, 1) / std::sqrt(var.load(c) + p.eps),
               bias.load_or(c, 0));
  }
  apply<T>({p.x, p.y, p.residual, p.channel, p.activation}, affine);
}

template <class T>
void backward(const BatchNormBackward& p) {
  using Acc = Accumulator<T>;
  const int64_t channels = p.x.shape[p.channel];
  const MixedView<T> weight(p.weight), bias(p.bias), mean(p.mean), stat(p.scale);
  const MixedView<T> dweight(p.dweight), dbias(p.dbias);
  const BackwardTensors tensors{p.x, p.dy, p.y, p.dx, p.dresidual, p.channel, p.activation};
  GradientTerms<Acc> terms(channels);
  std::vector<Acc> rstd(channels);
  for (int64_t c = 0; c < channels; ++c) {
    terms.center[c] = mean.load(c);
    rstd[c] = p.training ? stat.load(c) : static_cast<Acc>(1 / std::sqrt(stat.load(c) + p.eps));
    terms.along[c] = static_cast<Acc>(weight.load_or(c, 1) * rstd[c]);
    terms.bias[c] = bias.load_or(c, 0);
  }
  if (p.training || dweight || dbias) {
    const std::vector<Sums> sums = gradient_sums<T>(tensors, terms);
    const double values = channels ? static_cast<double>(p.x.numel() / channels) : 0;
    for (int64_t c = 0; c < channels; ++c) {
      if (dweight) dweight.store(c, static_cast<Acc>(sums[c].b * rstd[c]));
      if (dbias) dbias.store(c, static_cast<Acc>(sums[c].a));
      if (!p.training) continue;
      const double along = terms.along[c];
      terms.across[c] = static_cast<Acc>(-along * sums[c].b * rstd[c] * rstd[c] / values);
      terms.offset[c] = static_cast<Acc>(-along * sums[c].a / values);
    }
  }
  apply_gradient<T>(tensors, terms);
}

constexpr Impl<BatchNormTraining> kTraining[] = {
    {"cpu_two_pass", supports_all, nullptr,
     [](const BatchNormTraining& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { training<T>(p); });
     }},
};
constexpr Impl<BatchNormInference> kInference[] = {
    {"cpu_affine", supports_all, nullptr,
     [](const BatchNormInference& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { inference<T>(p); });
     }},
};
constexpr Impl<BatchNormBackward> kBackward[] = {
    {"cpu_two_pass", supports_all, nullptr,
     [](const BatchNormBackward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { backward<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<BatchNormTraining> cpu_impls<BatchNormTraining>() {
  return kTraining;
}
template <>
ImplList<BatchNormInference> cpu_impls<BatchNormInference>() {
  return kInference;
}
template <>
ImplList<BatchNormBackward> cpu_impls<BatchNormBackward>() {
  return kBackward;
}

}  // namespace dlkern
