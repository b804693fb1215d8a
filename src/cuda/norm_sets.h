// What batch and group norm have in common on GPUs: values that are normalised together are a set (of
// batch norm all values of a channel, of group norm those of a sample's group), and every value has a
// channel, which its weight and bias belong to.
#pragma once

#include <dlkern/activation.h>

#include "core/call.h"
#include "core/index.h"

namespace dlkern::gpu {

// How sets and channels lie in a tensor.
struct SetShape {
  uint32_t set_dims;  // of split(x)
  int channel;        // the dimension of the channels in x, and of the groups in split(x)
  int64_t groups;     // of a sample; 0: sets are channels

  // The channels in two dimensions: groups, and then the channels of a group.
  Tensor split(Tensor t) const {
    if (!groups || !t) return t;
    for (int d = t.ndim; d > channel; --d) {
      t.shape[d] = t.shape[d - 1];
      t.strides[d] = t.strides[d - 1];
    }
    ++t.ndim;
    t.shape[channel] = groups;
    t.shape[channel + 1] /= groups;
    t.strides[channel] *= t.shape[channel + 1];
    return t;
  }
  int64_t channels(const Tensor& x) const { return x.shape[channel]; }
};
inline SetShape batch_sets(int channel) { return {1u << channel, channel, 0}; }
inline SetShape group_sets(int channel, int64_t groups) {
  return {1u | 1u << channel, channel, groups};
}

// x by sample, channel and position.
struct Planar {
  int64_t samples, channels, length;
  int64_t sample_stride, channel_stride;

  int64_t segments(const SetShape& shape) const {
    return shape.groups ? channels / shape.groups : samples;
  }
  int64_t sets(const SetShape& shape) const {
    return shape.groups ? samples * shape.groups : channels;
  }
};

// False where a tensor is not [samples, channels, length] with neighbouring positions.
inline bool planar(const Tensor& t, int channel, Planar& p) {
  int64_t length = 1;
  for (int d = t.ndim - 1; d > 0; --d) {
    if (d == channel) continue;
    if (t.shape[d] != 1 && t.strides[d] != length) return false;
    length *= t.shape[d];
  }
  p = {t.shape[0], t.shape[channel], length, t.strides[0], t.strides[channel]};
  return true;
}

// What a forward pass reads and writes.
struct SetForward {
  Tensor x, weight, bias, residual, y, mean, rstd, running_mean, running_var, num_batches;
  Tensor given_mean, given_var;  // the statistics where they are given
  SetShape shape;
  double eps, momentum;
  bool cumulative;
  dlk_activation activation;

  bool given() const { return bool(given_mean); }
};

// What a backward pass reads and writes.
struct SetBackward {
  Tensor dy, x, weight, bias, y, mean, rstd, dx, dweight, dbias, dresidual;
  SetShape shape;
  double eps;
  dlk_activation activation;
  bool given;  // the statistics are constants: `rstd` holds the running variance
};

// Running statistics are averages over the samples, of which each channel is a set.
inline bool averages_samples(const SetForward& p) {
  return p.running_mean && !p.given() && p.shape.groups;
}

// One way to compute them all. Not const: clang for HIP would emit what is, with its functions of the
// host, on the device too.
struct SetNorm {
  const char* (*supports_forward)(const SetForward&);
  size_t (*forward_workspace)(const SetForward&);
  void (*forward)(const SetForward&, const Launch&);
  const char* (*supports_backward)(const SetBackward&);
  size_t (*backward_workspace)(const SetBackward&);
  void (*backward)(const SetBackward&, const Launch&);
};
extern SetNorm kSetsOfPlanes;   // norm_planes.cu
extern SetNorm kSetsOfTiles;    // norm_tiles.cu
extern SetNorm kSetsOfColumns;  // norm_columns.cu
extern SetNorm kSetsOfStreams;  // norm_streams.cu

// `norm` as an implementation of a Problem, which sets_of() turns into a SetForward or SetBackward.
template <SetNorm& norm, class Problem, SetForward (*sets_of)(const Problem&)>
constexpr Impl<Problem> forward_impl(const char* name) {
  return {name, [](const Problem& p) { return norm.supports_forward(sets_of(p)); },
          [](const Problem& p) { return norm.forward_workspace(sets_of(p)); },
          [](const Problem& p, const Launch& launch) { norm.forward(sets_of(p), launch); }};
}
template <SetNorm& norm, class Problem, SetBackward (*sets_of)(const Problem&)>
constexpr Impl<Problem> backward_impl(const char* name) {
  return {name, [](const Problem& p) { return norm.supports_backward(sets_of(p)); },
          [](const Problem& p) { return norm.backward_workspace(sets_of(p)); },
          [](const Problem& p, const Launch& launch) { norm.backward(sets_of(p), launch); }};
}

}  // namespace dlkern::gpu
