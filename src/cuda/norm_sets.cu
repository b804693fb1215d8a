// Batch and group norm of any strides: sets are columns and their elements positions of
// prims/columns.cuh. Statistics by Welford's recurrence on x minus the set's first value, merged by
// Chan's formula: no cancellation whatever the mean. x is read twice. Bound by memory where neighbours
// are adjacent, by arithmetic on indices elsewhere. Sums in float32 (float64 for float64).
//
// Reference: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
#include "cuda/norm_sets.cuh"

namespace dlkern::gpu {
namespace {

// N tensors of x's shape by set (the dimensions whose bit is in `sets`) and element (all others).
template <int N>
struct SetElements {
  StridedIndex<N> sets, elements;

  SetElements(const Tensor* const (&tensors)[N], uint32_t set_dims)
      : sets(make_index<N>(tensors, set_dims)), elements(make_index<N>(tensors, ~set_dims)) {}
  // Not inlined: in every kernel several times, it would be most of what there is to compile.
  __device__ __noinline__ void offsets(int64_t set, int64_t element, int64_t (&at)[N]) const {
    int64_t first[N];
    sets.offsets(set, first);
    elements.offsets(element, at);
    for (int n = 0; n < N; ++n) at[n] += first[n];
  }
};

// The channel of an element: of `each` channels of a set, each is `run` neighbouring elements long.
struct ChannelOf {
  int64_t sets, each, run;  // sets: of a sample

  __device__ int64_t operator()(int64_t set, int64_t element) const {
    const int64_t of_set = each == 1 ? 0 : quotient(element, run) % each;
    return set % sets * each + of_set;
  }
};

ChannelOf channel_of(const SetShape& shape, const Tensor& x) {
  if (!shape.groups) return {shape.channels(x), 1, 1};
  ChannelOf of{shape.groups, shape.channels(x) / shape.groups, 1};
  for (int d = shape.channel + 1; d < x.ndim; ++d) of.run *= x.shape[d];
  return of;
}

ColumnTiles tiles_of(const Tensor& x, const SetShape& shape) {
  const Tensor t = shape.split(x);
  const SetElements<1> elements({&t}, shape.set_dims);
  const int last = elements.sets.ndim - 1;
  return ColumnTiles(elements.elements.numel, elements.sets.numel,
                     last >= 0 && elements.sets.stride[0][last] == 1);
}

// A set's mean in two parts, so that its rounding does not show in x - mean.
template <class Acc>
struct SetMean {
  Acc center, rest, rstd;

  // Of moments of values minus `shift`.
  static __device__ SetMean of(const Moments<Acc>& moments, Acc shift, Acc eps) {
    const Acc center = shift + moments.mean;
    return {center, moments.mean - (center - shift), 1 / sqrt(moments.m2 / moments.n + eps)};
  }
  __device__ Acc xhat(Acc x) const { return ((x - center) - rest) * rstd; }
};

// ---- Forward, any strides ----------------------------------------------------------------------

template <class T>
struct SetStatistics {
  using Acc = Accumulator<T>;
  SetElements<1> elements;
  const T* x;
  MixedView<T> mean, rstd;
  Running<T> running;
  SetMean<Acc>* means;  // [sets] of workspace
  Acc* averages;        // [sets, 2] of workspace: to be averaged over samples; or nullptr
  double eps;

  // Near the mean unless the set's first value is an outlier, and finite.
  __device__ Acc shift(int64_t set) const {
    int64_t at[1];
    elements.offsets(set, 0, at);
    const Acc first = static_cast<Acc>(x[at[0]]);
    return first - first == 0 ? first : Acc(0);
  }
  __device__ Acc load(int64_t set, int64_t element) const {
    int64_t at[1];
    elements.offsets(set, element, at);
    return static_cast<Acc>(x[at[0]]) - shift(set);
  }
  __device__ void finish(int64_t set, const Moments<Acc>& moments) const {
    const bool none = moments.n == 0;
    const auto m = SetMean<Acc>::of(moments, none ? Acc(0) : shift(set), static_cast<Acc>(eps));
    means[set] = m;
    if (mean) mean.store(set, none ? Acc(NAN) : m.center);
    if (rstd) rstd.store(set, m.rstd);
    const Acc unbiased = moments.m2 / (moments.n - 1);
    if (averages) {
      averages[2 * set] = m.center;
      averages[2 * set + 1] = unbiased;
    } else if (running.mean) {
      running.update(set, m.center, unbiased);
    }
  }
};

template <class T>
struct SetNormalize {
  using Acc = Accumulator<T>;
  struct Value {
    Acc x, residual;
    int64_t at;  // in y
  };
  SetElements<3> elements;
  const T *x, *residual;
  T* y;
  ChannelVector<T> weight, bias;
  ChannelOf channel_of;
  const SetMean<Acc>* means;  // or, where nullptr, from the running statistics
  Running<T> given;
  double eps;
  dlk_activation activation;

  __device__ SetMean<Acc> coefficients(int64_t set) const {
    if (means) return means[set];
    return {given.mean.load(set), 0, 1 / sqrt(given.var.load(set) + static_cast<Acc>(eps))};
  }
  __device__ Value load(int64_t set, int64_t element) const {
    int64_t at[3];
    elements.offsets(set, element, at);
    return {static_cast<Acc>(x[at[0]]), residual ? static_cast<Acc>(residual[at[2]]) : Acc(0),
            at[1]};
  }
  __device__ void apply(const Value& v, const SetMean<Acc>& m, int64_t set, int64_t element) const {
    const int64_t c = channel_of(set, element);
    const Acc z = m.xhat(v.x) * weight.load_or(c, 1) + bias.load_or(c, 0) + v.residual;
    y[v.at] = static_cast<T>(norm_activation(activation, z));
  }
};

// Workspace: partial Moments, SetMean and what is averaged.
size_t forward_workspace(const SetForward& p) {
  if (p.given) return 0;
  const ColumnTiles tiles = tiles_of(p.x, p.shape);
  size_t items = 3 * tiles.partials() + 3 * tiles.columns;
  if (averages_samples(p)) items += 2 * tiles.columns + average_items(p);
  return items * dtype_size(accumulator_of(p.x.dtype));
}

template <class T>
void launch_forward(const SetForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const ColumnTiles tiles = tiles_of(p.x, p.shape);
  const Tensor x = p.shape.split(p.x), y = p.shape.split(p.y), r = p.shape.split(p.residual);
  auto* partial = static_cast<Moments<Acc>*>(launch.workspace);
  auto* means = reinterpret_cast<SetMean<Acc>*>(partial + tiles.partials());
  auto* averages = averages_samples(p) ? reinterpret_cast<Acc*>(means + tiles.columns) : nullptr;
  if (!p.given) {
    const SetStatistics<T> statistics{SetElements<1>({&x}, p.shape.set_dims),
                                      p.x.as<const T>(),
                                      MixedView<T>(p.mean),
                                      MixedView<T>(p.rstd),
                                      Running<T>(p),
                                      means,
                                      averages,
                                      p.eps};
    reduce_columns(statistics, tiles, partial, launch.stream);
    if (averages) {
      average_statistics<T>(p, averages,
                            reinterpret_cast<Sums<Acc, 2>*>(averages + 2 * tiles.columns),
                            launch.stream);
    }
  }
  const SetNormalize<T> normalize{SetElements<3>({&x, &y, &r}, p.shape.set_dims),
                                  p.x.as<const T>(),
                                  p.residual.as<const T>(),
                                  p.y.as<T>(),
                                  ChannelVector<T>(p.weight),
                                  ChannelVector<T>(p.bias),
                                  channel_of(p.shape, p.x),
                                  p.given ? nullptr : means,
                                  Running<T>(p),
                                  p.eps,
                                  p.activation};
  apply_columns(normalize, tiles, launch.stream);
  count_batch(p, launch.stream);
}

// ---- Backward, any strides ---------------------------------------------------------------------

// Values of dz and x by set and element.
template <class T>
struct SetGradients {
  using Acc = Accumulator<T>;
  struct Value {
    Acc dz, x;
    int64_t dx, dresidual;  // offsets
  };
  SetElements<5> elements;  // dy, x, y, dx, dresidual
  const T *dy, *x, *y;
  ChannelVector<T> weight, bias;
  MixedView<T> mean, scale;
  ChannelOf channel_of;
  dlk_activation activation;
  bool given;
  double eps;

  __device__ Acc rstd(int64_t set) const {
    const Acc s = scale.load(set);
    return given ? 1 / sqrt(s + static_cast<Acc>(eps)) : s;
  }
  __device__ Value value(int64_t set, int64_t element) const {
    int64_t at[5];
    elements.offsets(set, element, at);
    Value v{static_cast<Acc>(dy[at[0]]), static_cast<Acc>(x[at[1]]), at[3], at[4]};
    if (activation == DLK_ACTIVATION_NONE) return v;
    Acc z;
    if (y) {
      z = static_cast<Acc>(y[at[2]]);
    } else {
      const int64_t c = channel_of(set, element);
      z = (v.x - mean.load(set)) * (weight.load_or(c, 1) * rstd(set)) + bias.load_or(c, 0);
    }
    v.dz = norm_activation_backward(activation, v.dz, z);
    return v;
  }
};

// Sums over a set of g and g * (x - mean), g = dz * weight; the weight is left to the end where the
// whole set has one.
template <class T>
struct SetGradientSums {
  using Acc = Accumulator<T>;
  SetGradients<T> values;
  ChannelVector<T> dweight, dbias;  // where sets are channels, else absent
  Acc* terms;                       // [sets, 2] of workspace: factor of x - mean, and offset, in dx
  int64_t count;                    // values of a set

  __device__ Sums<Acc, 2> load(int64_t set, int64_t element) const {
    const auto v = values.value(set, element);
    const bool one = values.channel_of.each == 1;
    const Acc weight = one ? Acc(1) : values.weight.load_or(values.channel_of(set, element), 1);
    const Acc g = v.dz * weight;
    return {{g, g * (v.x - values.mean.load(set))}};
  }
  __device__ void finish(int64_t set, const Sums<Acc, 2>& sums) const {
    const Acc rstd = values.rstd(set), along = sums.v[1] * rstd;
    if (dweight) dweight.store(set, along);
    if (dbias) dbias.store(set, sums.v[0]);
    const bool one = values.channel_of.each == 1;
    const Acc weight = one ? values.weight.load_or(values.channel_of(set, 0), 1) : Acc(1);
    terms[2 * set] = values.given ? Acc(0) : -weight * rstd * along * rstd / Acc(count);
    terms[2 * set + 1] = values.given ? Acc(0) : -weight * rstd * sums.v[0] / Acc(count);
  }
};

template <class T>
struct SetGradientApply {
  using Acc = Accumulator<T>;
  using Value = typename SetGradients<T>::Value;
  struct Coefficients {
    Acc mean, rstd, across, offset;
  };
  SetGradients<T> values;
  T *dx, *dresidual;
  const Acc* terms;

  __device__ Coefficients coefficients(int64_t set) const {
    if (!terms) return {0, values.rstd(set), 0, 0};
    return {values.mean.load(set), values.rstd(set), terms[2 * set], terms[2 * set + 1]};
  }
  __device__ Value load(int64_t set, int64_t element) const { return values.value(set, element); }
  __device__ void apply(const Value& v, const Coefficients& k, int64_t set, int64_t element) const {
    const Acc weight = values.weight.load_or(values.channel_of(set, element), 1);
    const Acc straight = k.rstd * weight * v.dz;
    // Constants have no gradient: an infinite x is no matter then.
    dx[v.dx] =
        static_cast<T>(values.given ? straight : straight + (k.across * (v.x - k.mean) + k.offset));
    if (dresidual) dresidual[v.dresidual] = static_cast<T>(v.dz);
  }
};

// Gradients of weight and bias where sets are not channels: sums over samples and positions of each
// channel.
template <class T>
struct ChannelGradientSums {
  using Acc = Accumulator<T>;
  SetGradients<T> values;  // by channel and position
  MixedView<T> mean, rstd;
  ChannelVector<T> dweight, dbias;
  int64_t channels, groups, positions;  // positions: of a sample

  __device__ Sums<Acc, 2> load(int64_t channel, int64_t position) const {
    int64_t at[5];
    values.elements.offsets(channel, position, at);
    const int64_t set =
        quotient(position, positions) * groups + quotient(channel * groups, channels);
    const Acc mu = mean.load(set), r = rstd.load(set);
    const Acc xhat = (static_cast<Acc>(values.x[at[1]]) - mu) * r;
    const Acc z = xhat * values.weight.load_or(channel, 1) + values.bias.load_or(channel, 0);
    const Acc dz =
        norm_activation_backward(values.activation, static_cast<Acc>(values.dy[at[0]]), z);
    return {{dz, dz * xhat}};
  }
  __device__ void finish(int64_t channel, const Sums<Acc, 2>& sums) const {
    if (dbias) dbias.store(channel, sums.v[0]);
    if (dweight) dweight.store(channel, sums.v[1]);
  }
};

bool needs_set_sums(const SetBackward& p) {
  return !p.given || (!p.shape.groups && (p.dweight || p.dbias));
}
bool needs_channel_sums(const SetBackward& p) { return p.shape.groups && (p.dweight || p.dbias); }

// Workspace: partial sums of sets and their terms, then partial sums of channels.
size_t backward_workspace(const SetBackward& p) {
  const ColumnTiles tiles = tiles_of(p.x, p.shape);
  size_t items = 0;
  if (needs_set_sums(p)) items += 2 * tiles.partials() + 2 * tiles.columns;
  if (needs_channel_sums(p)) items += 2 * tiles_of(p.x, batch_sets(p.shape.channel)).partials();
  return items * dtype_size(accumulator_of(p.x.dtype));
}

template <class T>
SetGradients<T> set_gradients(const SetBackward& p, const SetShape& shape) {
  const Tensor dy = shape.split(p.dy), x = shape.split(p.x), y = shape.split(p.y),
               dx = shape.split(p.dx), dr = shape.split(p.dresidual);
  return {SetElements<5>({&dy, &x, &y, &dx, &dr}, shape.set_dims),
          p.dy.as<const T>(),
          p.x.as<const T>(),
          p.y.as<const T>(),
          ChannelVector<T>(p.weight),
          ChannelVector<T>(p.bias),
          MixedView<T>(p.mean),
          MixedView<T>(p.rstd),
          channel_of(shape, p.x),
          p.activation,
          p.given,
          p.eps};
}

template <class T>
void launch_backward(const SetBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const ColumnTiles tiles = tiles_of(p.x, p.shape);
  const SetGradients<T> values = set_gradients<T>(p, p.shape);
  auto* partial = static_cast<Sums<Acc, 2>*>(launch.workspace);
  Acc* terms = nullptr;
  if (needs_set_sums(p)) {
    terms = reinterpret_cast<Acc*>(partial + tiles.partials());
    const bool channels = !p.shape.groups;
    reduce_columns(
        SetGradientSums<T>{values, channels ? ChannelVector<T>(p.dweight) : ChannelVector<T>(),
                           channels ? ChannelVector<T>(p.dbias) : ChannelVector<T>(), terms,
                           tiles.positions},
        tiles, partial, launch.stream);
    partial = reinterpret_cast<Sums<Acc, 2>*>(terms + 2 * tiles.columns);
  }
  // Before dx is written, which may be dy or x.
  if (needs_channel_sums(p)) {
    const SetShape shape = batch_sets(p.shape.channel);
    const int64_t channels = p.shape.channels(p.x);
    const ChannelGradientSums<T> sums{set_gradients<T>(p, shape),
                                      MixedView<T>(p.mean),
                                      MixedView<T>(p.rstd),
                                      ChannelVector<T>(p.dweight),
                                      ChannelVector<T>(p.dbias),
                                      channels,
                                      p.shape.groups,
                                      p.x.numel() / std::max<int64_t>(p.x.shape[0] * channels, 1)};
    reduce_columns(sums, tiles_of(p.x, shape), partial, launch.stream);
  }
  apply_columns(SetGradientApply<T>{values, p.dx.as<T>(), p.dresidual.as<T>(), terms}, tiles,
                launch.stream);
}

template <class Problem>
const char* any(const Problem&) {
  return nullptr;
}

}  // namespace

SetNorm kSetsAnyStrides = {
    any<SetForward>,
    forward_workspace,
    [](const SetForward& p, const Launch& launch) {
      dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
    },
    any<SetBackward>,
    backward_workspace,
    [](const SetBackward& p, const Launch& launch) {
      dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
    },
};

}  // namespace dlkern::gpu
