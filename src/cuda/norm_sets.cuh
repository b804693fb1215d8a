// Device code that all implementations of batch and group norm share.
#pragma once

#include "core/activation_math.h"
#include "core/fast_math.h"
#include "core/mixed.h"
#include "cuda/norm_sets.h"
#include "cuda/prims/columns.cuh"

namespace dlkern::gpu {

template <class Acc>
__device__ __forceinline__ Acc norm_activation(dlk_activation kind, Acc z) {
  const ActivationScalars<Acc> scalars;
  if (kind == DLK_ACTIVATION_RELU) {
    return activation_forward<DLK_ACTIVATION_RELU, FastMath>(z, scalars);
  }
  if (kind == DLK_ACTIVATION_SILU) {
    return activation_forward<DLK_ACTIVATION_SILU, FastMath>(z, scalars);
  }
  return z;
}
// dy * f'(z)
template <class Acc>
__device__ __forceinline__ Acc norm_activation_backward(dlk_activation kind, Acc dy, Acc z) {
  const ActivationScalars<Acc> scalars;
  if (kind == DLK_ACTIVATION_RELU) {
    return activation_backward<DLK_ACTIVATION_RELU, FastMath>(dy, z, scalars);
  }
  if (kind == DLK_ACTIVATION_SILU) {
    return activation_backward<DLK_ACTIVATION_SILU, FastMath>(dy, z, scalars);
  }
  return dy;
}

// A parameter of each channel, of type T or of the one T is summed in. An absent one is false.
template <class T>
struct ChannelVector {
  using Acc = Accumulator<T>;
  void* data = nullptr;
  int64_t stride = 1;
  bool wide = true;  // of type Acc

  ChannelVector() = default;
  explicit ChannelVector(const Tensor& t)
      : data(t.data), stride(t.strides[0]), wide(dtype_size(t.dtype) == sizeof(Acc)) {}

  DLK_HD explicit operator bool() const { return data != nullptr; }
  __device__ __forceinline__ Acc load(int64_t c) const {
    return wide ? static_cast<const Acc*>(data)[c * stride]
                : static_cast<Acc>(static_cast<const T*>(data)[c * stride]);
  }
  __device__ __forceinline__ Acc load_or(int64_t c, Acc absent) const {
    return data ? load(c) : absent;
  }
  __device__ __forceinline__ void store(int64_t c, Acc value) const {
    if (wide) {
      static_cast<Acc*>(data)[c * stride] = value;
    } else {
      static_cast<T*>(data)[c * stride] = static_cast<T>(value);
    }
  }
};

// running = (1 - momentum) running + momentum now, per channel.
template <class T>
struct Running {
  using Acc = Accumulator<T>;
  ChannelVector<T> mean, var;
  double momentum = 0;
  const int64_t* cumulative = nullptr;  // momentum is 1 / (this + 1); nullptr: it is not

  Running() = default;
  explicit Running(const SetForward& p)
      : mean(p.running_mean),
        var(p.running_var),
        momentum(p.momentum),
        cumulative(p.cumulative ? p.num_batches.as<const int64_t>() : nullptr) {}
  __device__ void update(int64_t channel, Acc new_mean, Acc new_var) const {
    const double weight = cumulative ? 1.0 / static_cast<double>(*cumulative + 1) : momentum;
    const Acc share = static_cast<Acc>(weight), rest = static_cast<Acc>(1 - weight);
    mean.store(channel, rest * mean.load(channel) + share * new_mean);
    var.store(channel, rest * var.load(channel) + share * new_var);
  }
};

// The averages over samples that update the running statistics of instance norm: a column is a
// channel, a position a sample.
template <class T>
struct AverageStatistics {
  using Acc = Accumulator<T>;
  const Acc* statistics;  // [N, C, 2]: mean and unbiased variance
  int64_t channels, samples;
  Running<T> running;

  __device__ Sums<Acc, 2> load(int64_t channel, int64_t sample) const {
    const Acc* at = statistics + 2 * (sample * channels + channel);
    return {{at[0], at[1]}};
  }
  __device__ void finish(int64_t channel, const Sums<Acc, 2>& sums) const {
    running.update(channel, sums.v[0] / Acc(samples), sums.v[1] / Acc(samples));
  }
};

inline ColumnTiles average_tiles(const SetForward& p) {
  return ColumnTiles(p.x.shape[0], p.shape.channels(p.x), true);
}
// Workspace in items of the type that is summed in, beside 2 for each set.
inline size_t average_items(const SetForward& p) {
  return averages_samples(p) ? 2 * average_tiles(p).partials() : 0;
}
template <class T>
void average_statistics(const SetForward& p, const Accumulator<T>* averages,
                        Sums<Accumulator<T>, 2>* partial, void* stream) {
  const AverageStatistics<T> f{averages, p.shape.channels(p.x), p.x.shape[0], Running<T>(p)};
  reduce_columns(f, average_tiles(p), partial, stream);
}

static __global__ void count_batch_kernel(int64_t* num_batches) { ++*num_batches; }

// After the kernels that read the number.
inline void count_batch(const SetForward& p, void* stream) {
  if (p.num_batches) {
    launch_kernel(count_batch_kernel, 1, 1, 0, stream, p.num_batches.as<int64_t>());
  }
}

}  // namespace dlkern::gpu
