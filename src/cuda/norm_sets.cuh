// Device code that all implementations of batch and group norm share.
#pragma once

#include "core/mixed.h"
#include "cuda/norm_sets.h"
#include "cuda/prims/gpu.h"

namespace dlkern::gpu {

// Elements whose type is known at run time alone: Acc, or a 16-bit one where Acc is float.
template <class Acc>
struct Values {
  void* data = nullptr;
  DType dtype = DType::kUnknown;

  Values() = default;
  explicit Values(const Tensor& t) : data(t.data), dtype(t.dtype) {}

  __device__ __forceinline__ explicit operator bool() const { return data != nullptr; }
  __device__ __forceinline__ Acc load(int64_t i) const {
    if constexpr (std::is_same_v<Acc, float>) {
      if (dtype == DType::kBFloat16) return static_cast<float>(static_cast<BFloat16*>(data)[i]);
      if (dtype == DType::kFloat16) return static_cast<float>(static_cast<Half*>(data)[i]);
    }
    return static_cast<Acc*>(data)[i];
  }
  __device__ __forceinline__ void store(int64_t i, Acc v) const {
    if constexpr (std::is_same_v<Acc, float>) {
      if (dtype == DType::kBFloat16) {
        static_cast<BFloat16*>(data)[i] = BFloat16(v);
        return;
      }
      if (dtype == DType::kFloat16) {
        static_cast<Half*>(data)[i] = Half(v);
        return;
      }
    }
    static_cast<Acc*>(data)[i] = v;
  }
};

// A parameter of each channel. An absent one is false.
template <class Acc>
struct ChannelVector {
  Values<Acc> values;
  int64_t stride = 1;

  ChannelVector() = default;
  explicit ChannelVector(const Tensor& t) : values(t), stride(t.strides[0]) {}

  __device__ __forceinline__ explicit operator bool() const { return bool(values); }
  __device__ __forceinline__ Acc load(int64_t c) const { return values.load(c * stride); }
  __device__ __forceinline__ Acc load_or(int64_t c, Acc absent) const {
    return values ? load(c) : absent;
  }
  __device__ __forceinline__ void store(int64_t c, Acc v) const { values.store(c * stride, v); }
};

// running = (1 - momentum) running + momentum now, per channel.
template <class Acc>
struct Running {
  ChannelVector<Acc> mean, var;
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

// A statistic of each set, by sample (0 where sets are channels) and number of the set in it.
template <class Acc>
struct SetVector {
  Values<Acc> values;
  int64_t sample_stride = 0, set_stride = 0;

  SetVector() = default;
  explicit SetVector(const Tensor& t)
      : values(t),
        sample_stride(t.ndim == 2 ? t.strides[0] : 0),
        set_stride(t ? t.strides[t.ndim - 1] : 0) {}

  __device__ __forceinline__ explicit operator bool() const { return bool(values); }
  __device__ __forceinline__ Acc load(int64_t sample, int64_t set) const {
    return values.load(sample * sample_stride + set * set_stride);
  }
  __device__ __forceinline__ void store(int64_t sample, int64_t set, Acc v) const {
    values.store(sample * sample_stride + set * set_stride, v);
  }
};

// What is left to do after kernels that hold whole sets (norm_merge.cu).
//
// Running statistics from averages [samples, channels, 2]: mean and unbiased variance.
void average_statistics(const SetForward& p, const void* averages, void* stream);
// After the kernels that read the number.
void count_batch(const SetForward& p, void* stream);
// Group norm's gradients of weight and bias, from PartialSums [samples, channels, parts].
bool needs_channel_gradients(const SetBackward& p);
void channel_gradients(const SetBackward& p, const void* sums, int64_t parts, void* stream);

}  // namespace dlkern::gpu
