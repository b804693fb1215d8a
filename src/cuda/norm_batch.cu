// Batch norm.
//
//   training   mean_c, var_c over the M positions of channel c;  rstd = 1 / sqrt(var + eps)
//              y = (x - mean) * rstd * weight + bias
//   backward   dbias = sum dy,  dweight = sum dy * xhat,  xhat = (x - mean) * rstd
//              dx = weight * rstd * (dy - dbias / M - xhat * dweight / M)
//
// Layout: channels are columns and all other dimensions positions of prims/columns.cuh, whichever
// way they lie in memory; threads run across channels where those are adjacent (NHWC), else along
// the positions (NCHW). Three launches: partial statistics, their merge (which also updates the
// running statistics), and one element-wise pass. x is read twice. Bound by memory.
// Sums in float32 (float64 for float64). Statistics by Welford's recurrence on x minus the channel's
// first value, merged by Chan's formula: no cancellation whatever the mean.
//
// Reference: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
#include "core/mixed.h"
#include "cuda/prims/columns.cuh"
#include "ops/norm.h"

namespace dlkern {
namespace {

using namespace gpu;

// N tensors of x's shape by channel and position.
template <int N>
struct Elements {
  StridedIndex<N> positions;
  int64_t channel_stride[N];

  Elements(const Tensor* const (&tensors)[N], int channel)
      : positions(make_index<N>(tensors, ~(1u << channel))) {
    for (int n = 0; n < N; ++n) channel_stride[n] = tensors[n]->strides[channel];
  }
  __device__ void offsets(int64_t channel, int64_t position, int64_t (&at)[N]) const {
    positions.offsets(position, at);
    for (int n = 0; n < N; ++n) at[n] += channel * channel_stride[n];
  }
};

ColumnTiles tiles_of(const Tensor& x, int channel) {
  const int64_t channels = x.shape[channel];
  return ColumnTiles(channels ? x.numel() / channels : 0, channels, x.strides[channel] == 1);
}

template <class Acc>
struct Affine {  // y = (x - center) * scale + offset
  Acc center, scale, offset;
};

template <class T>
struct Statistics {
  using Acc = Accumulator<T>;
  Elements<1> elements;
  const T* x;
  int64_t count;
  MixedView<T> weight, bias, running_mean, running_var, mean, rstd;
  Affine<Acc>* affine;  // [C] of workspace
  double eps, momentum;

  // Near the mean unless the channel's first value is an outlier, and finite.
  __device__ Acc shift(int64_t c) const {
    const Acc first = static_cast<Acc>(x[c * elements.channel_stride[0]]);
    return first - first == 0 ? first : Acc(0);
  }
  __device__ Acc load(int64_t c, int64_t m) const {
    int64_t at[1];
    elements.offsets(c, m, at);
    return static_cast<Acc>(x[at[0]]) - shift(c);
  }
  __device__ void finish(int64_t c, const Moments<Acc>& moments) const {
    // The mean in two parts, center + rest, so that its rounding does not show in x - mean.
    const Acc base = shift(c), center = base + moments.mean;
    const Acc rest = moments.mean - (center - base);
    const Acc inverse = 1 / sqrt(moments.m2 / Acc(count) + static_cast<Acc>(eps));
    const Acc scale = weight.load_or(c, 1) * inverse;
    affine[c] = {center, scale, bias.load_or(c, 0) - rest * scale};
    mean.store(c, center);
    rstd.store(c, inverse);
    if (running_mean) {
      blend(running_mean, c, center);
      blend(running_var, c, moments.m2 / Acc(count - 1));
    }
  }
  __device__ void blend(const MixedView<T>& running, int64_t c, Acc now) const {
    const Acc share = static_cast<Acc>(momentum);
    running.store(c, (1 - share) * running.load(c) + share * now);
  }
};

// The element-wise pass; Source gives the Affine of a channel.
template <class T, class Source>
struct Normalize {
  using Acc = Accumulator<T>;
  struct Value {
    Acc x;
    int64_t at;  // in y
  };
  Elements<2> elements;
  const T* x;
  T* y;
  Source source;

  __device__ Affine<Acc> coefficients(int64_t c) const { return source(c); }
  __device__ Value load(int64_t c, int64_t m) const {
    int64_t at[2];
    elements.offsets(c, m, at);
    return {static_cast<Acc>(x[at[0]]), at[1]};
  }
  __device__ void apply(const Value& v, const Affine<Acc>& a, int64_t, int64_t) const {
    y[v.at] = static_cast<T>((v.x - a.center) * a.scale + a.offset);
  }
};

template <class Acc>
struct StoredAffine {
  const Affine<Acc>* affine;
  __device__ Affine<Acc> operator()(int64_t c) const { return affine[c]; }
};

template <class T>
struct RunningAffine {
  using Acc = Accumulator<T>;
  MixedView<T> weight, bias, mean, var;
  double eps;
  __device__ Affine<Acc> operator()(int64_t c) const {
    const Acc inverse = 1 / sqrt(var.load(c) + static_cast<Acc>(eps));
    return {mean.load(c), weight.load_or(c, 1) * inverse, bias.load_or(c, 0)};
  }
};

template <class T>
void launch_training(const BatchNormTraining& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const ColumnTiles tiles = tiles_of(p.x, p.channel);
  auto* partial = static_cast<Moments<Acc>*>(launch.workspace);
  auto* affine = reinterpret_cast<Affine<Acc>*>(partial + tiles.partials());
  const Statistics<T> statistics{Elements<1>({&p.x}, p.channel),
                                 p.x.as<const T>(),
                                 tiles.positions,
                                 MixedView<T>(p.weight),
                                 MixedView<T>(p.bias),
                                 MixedView<T>(p.running_mean),
                                 MixedView<T>(p.running_var),
                                 MixedView<T>(p.mean),
                                 MixedView<T>(p.rstd),
                                 affine,
                                 p.eps,
                                 p.momentum};
  reduce_columns(statistics, tiles, partial, launch.stream);
  const Normalize<T, StoredAffine<Acc>> normalize{
      Elements<2>({&p.x, &p.y}, p.channel), p.x.as<const T>(), p.y.as<T>(), {affine}};
  apply_columns(normalize, tiles, launch.stream);
}

size_t training_workspace(const BatchNormTraining& p) {
  const ColumnTiles tiles = tiles_of(p.x, p.channel);
  return (3 * tiles.partials() + 3 * tiles.columns) *
         dtype_size(accumulator_of(p.x.dtype));  // Moments and Affine
}

template <class T>
void launch_inference(const BatchNormInference& p, const Launch& launch) {
  const Normalize<T, RunningAffine<T>> normalize{
      Elements<2>({&p.x, &p.y}, p.channel),
      p.x.as<const T>(),
      p.y.as<T>(),
      {MixedView<T>(p.weight), MixedView<T>(p.bias), MixedView<T>(p.running_mean),
       MixedView<T>(p.running_var), p.eps}};
  apply_columns(normalize, tiles_of(p.x, p.channel), launch.stream);
}

// Both stages of the gradient: sums of dy and dy * (x - mean), then
// dx = a * dy + b * (x - mean) + c with b = c = 0 where the statistics are constants.
template <class T>
struct Gradient {
  using Acc = Accumulator<T>;
  struct Coefficients {
    Acc mean, a, b, c;
  };
  struct Value {
    Acc dy, x;
    int64_t at;  // in dx
  };
  Elements<3> elements;
  const T *dy, *x;
  T* dx;
  int64_t count;
  MixedView<T> weight, mean, scale, dweight, dbias;
  Acc* terms;  // [C, 2] of workspace: b and c
  bool training;
  double eps;

  __device__ Acc rstd(int64_t channel) const {
    const Acc s = scale.load(channel);
    return training ? s : 1 / sqrt(s + static_cast<Acc>(eps));
  }
  __device__ Coefficients coefficients(int64_t channel) const {
    const Acc a = weight.load_or(channel, 1) * rstd(channel);
    if (!training) return {0, a, 0, 0};
    return {mean.load(channel), a, a * terms[2 * channel], a * terms[2 * channel + 1]};
  }
  __device__ Value load(int64_t channel, int64_t position) const {
    int64_t at[3];
    elements.offsets(channel, position, at);
    return {static_cast<Acc>(dy[at[0]]), training ? static_cast<Acc>(x[at[1]]) : Acc(0), at[2]};
  }
  __device__ void apply(const Value& v, const Coefficients& k, int64_t, int64_t) const {
    const Acc straight = k.a * v.dy;
    dx[v.at] = static_cast<T>(training ? straight + k.b * (v.x - k.mean) + k.c : straight);
  }
};

template <class T>
struct GradientSums {
  using Acc = Accumulator<T>;
  Gradient<T> g;

  __device__ Sums<Acc, 2> load(int64_t channel, int64_t position) const {
    int64_t at[3];
    g.elements.offsets(channel, position, at);
    const Acc dy = static_cast<Acc>(g.dy[at[0]]), x = static_cast<Acc>(g.x[at[1]]);
    return {{dy, dy * (x - g.mean.load(channel))}};
  }
  __device__ void finish(int64_t channel, const Sums<Acc, 2>& sums) const {
    const Acc rstd = g.rstd(channel), along = sums.v[1] * rstd;
    if (g.dweight) g.dweight.store(channel, along);
    if (g.dbias) g.dbias.store(channel, sums.v[0]);
    g.terms[2 * channel] = -along * rstd / Acc(g.count);
    g.terms[2 * channel + 1] = -sums.v[0] / Acc(g.count);
  }
};

bool needs_sums(const BatchNormBackward& p) { return p.training || p.dweight || p.dbias; }

template <class T>
void launch_backward(const BatchNormBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const ColumnTiles tiles = tiles_of(p.x, p.channel);
  auto* partial = static_cast<Sums<Acc, 2>*>(launch.workspace);
  Acc* terms = needs_sums(p) ? reinterpret_cast<Acc*>(partial + tiles.partials()) : nullptr;
  const Gradient<T> gradient{Elements<3>({&p.dy, &p.x, &p.dx}, p.channel),
                             p.dy.as<const T>(),
                             p.x.as<const T>(),
                             p.dx.as<T>(),
                             tiles.positions,
                             MixedView<T>(p.weight),
                             MixedView<T>(p.mean),
                             MixedView<T>(p.scale),
                             MixedView<T>(p.dweight),
                             MixedView<T>(p.dbias),
                             terms,
                             p.training,
                             p.eps};
  if (needs_sums(p)) {
    reduce_columns(GradientSums<T>{gradient}, tiles, partial, launch.stream);
  }
  apply_columns(gradient, tiles, launch.stream);
}

size_t backward_workspace(const BatchNormBackward& p) {
  if (!needs_sums(p)) return 0;
  const ColumnTiles tiles = tiles_of(p.x, p.channel);
  return (2 * tiles.partials() + 2 * tiles.columns) * dtype_size(accumulator_of(p.x.dtype));
}

constexpr Impl<BatchNormTraining> kTraining[] = {
    {"welford_columns", supports_all, training_workspace,
     [](const BatchNormTraining& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_training<T>(p, launch); });
     }},
};
constexpr Impl<BatchNormInference> kInference[] = {
    {"affine_columns", supports_all, nullptr,
     [](const BatchNormInference& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_inference<T>(p, launch); });
     }},
};
constexpr Impl<BatchNormBackward> kBackward[] = {
    {"columns", supports_all, backward_workspace,
     [](const BatchNormBackward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<BatchNormTraining> gpu_impls<BatchNormTraining>() {
  return kTraining;
}
template <>
ImplList<BatchNormInference> gpu_impls<BatchNormInference>() {
  return kInference;
}
template <>
ImplList<BatchNormBackward> gpu_impls<BatchNormBackward>() {
  return kBackward;
}

}  // namespace dlkern
