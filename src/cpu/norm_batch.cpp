// Batch norm on the CPU.
//
// Work is done in spans that either lie inside one channel (NCHW) or run across all channels at one
// position (NHWC), chosen by x's strides, so that both are vectorised. Statistics: each chunk of
// positions, small enough for the L1 cache, by the corrected two-pass method in float (double for
// float64); chunks are merged in double by Chan's formula. Where chunks begin depends on the shape
// alone, so the bits do not depend on the number of threads.
//
// Reference: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/index.h"
#include "core/mixed.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"
#include "ops/norm.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kGrain = 16384;        // elements worth a thread
constexpr int64_t kChunk = 4096;         // positions of one channel handled at once
constexpr int64_t kChannelBlock = 512;   // channels handled at once where spans run across them
constexpr int64_t kRows = 64;            // positions of such a block
constexpr int64_t kMaxPartitions = 128;  // of the positions, each with its own partial sums

// N tensors of x's shape, walked by channel and position.
template <int N>
struct Walk {
  StridedIndex<N> positions;
  int64_t channels;
  int64_t channel_stride[N];
  bool across;  // spans run across channels

  Walk(const Tensor* const (&tensors)[N], int channel)
      : positions(make_index<N>(tensors, ~(1u << channel))),
        channels(tensors[0]->shape[channel]),
        across(tensors[0]->strides[channel] == 1 && channels >= 8) {
    for (int n = 0; n < N; ++n) channel_stride[n] = tensors[n]->strides[channel];
  }
  int64_t chunks() const { return ceil_div(positions.numel, kChunk); }
  int64_t inner() const { return positions.ndim ? positions.shape[positions.ndim - 1] : 1; }
  int64_t inner_stride(int n) const {
    return positions.ndim ? positions.stride[n][positions.ndim - 1] : 1;
  }
};

// f(i, n, at) for the longest runs along the innermost dimension that make up [begin, end):
// positions i to i + n - 1 lie inner_stride apart from offset `at` on.
template <int N, class F>
void for_runs(const Walk<N>& walk, int64_t begin, int64_t end, F&& f) {
  const int64_t inner = walk.inner();
  for (int64_t i = begin, n; i < end; i += n) {
    int64_t at[N];
    walk.positions.offsets(i, at);
    n = std::min(end - i, inner - i % inner);
    f(i, n, at);
  }
}

// f.operator()<kAcross>(channel, n, at, stride) over all elements, in parallel: n elements whose
// channels are `channel`, or with kAcross `channel` and those after it.
template <int N, class F>
void for_spans(const Walk<N>& walk, F&& f) {
  if (walk.across) {
    parallel_for(walk.positions.numel, kGrain / walk.channels, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        int64_t at[N];
        walk.positions.offsets(m, at);
        for (int64_t c = 0; c < walk.channels; c += kChunk) {
          f.template operator()<true>(c, std::min(kChunk, walk.channels - c), at,
                                      walk.channel_stride);
          for (int n = 0; n < N; ++n) at[n] += kChunk * walk.channel_stride[n];
        }
      }
    });
    return;
  }
  int64_t stride[N];
  for (int n = 0; n < N; ++n) stride[n] = walk.inner_stride(n);
  const int64_t chunks = walk.chunks(), size = std::min(walk.positions.numel, kChunk);
  parallel_for(walk.channels * chunks, kGrain / (size + 1), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t c = unit / chunks, first = unit % chunks * kChunk;
      const int64_t last = std::min(first + kChunk, walk.positions.numel);
      for_runs(walk, first, last, [&](int64_t, int64_t count, int64_t(&at)[N]) {
        for (int n = 0; n < N; ++n) at[n] += c * walk.channel_stride[n];
        f.template operator()<false>(c, count, at, stride);
      });
    }
  });
}

// Positions [begin, end) of channel c of tensor n as one span.
template <class Acc, class T, int N>
const Acc* gather(const Walk<N>& walk, int n, const T* data, int64_t c, int64_t begin, int64_t end,
                  Acc* buffer) {
  const Acc* span = buffer;
  for_runs(walk, begin, end, [&](int64_t i, int64_t count, const int64_t(&at)[N]) {
    const T* src = data + at[n] + c * walk.channel_stride[n];
    if (count == end - begin) {
      span = read_span(src, walk.inner_stride(n), count, buffer);
    } else {
      load_span(src, walk.inner_stride(n), count, buffer + (i - begin));
    }
  });
  return span;
}

// Count, mean and sum of squared deviations of a set of values.
struct Moments {
  double n = 0, mean = 0, m2 = 0;

  void merge(const Moments& other) {
    if (other.n == 0) return;
    const double total = n + other.n, delta = other.mean - mean;
    mean += delta * (other.n / total);
    m2 += other.m2 + delta * delta * (n * other.n / total);
    n = total;
  }
};

template <class Acc>
Moments moments_of(const Acc* v, int64_t n) {
  const Acc mean = sum_of<Acc>(n, [&](int64_t i) { return v[i]; }) / n;
  const double rest = sum_of<Acc>(n, [&](int64_t i) { return v[i] - mean; });
  const double squares = sum_of<Acc>(n, [&](int64_t i) { return (v[i] - mean) * (v[i] - mean); });
  return {static_cast<double>(n), mean + rest / n, squares - rest * rest / n};
}

// Two sums over positions per channel.
struct Sums {
  double a = 0, b = 0;

  void merge(const Sums& other) { a += other.a, b += other.b; }
};

// The `Partial` of each channel: of_chunk(c, begin, end) for positions [begin, end) merged in order.
template <class Partial, int N, class F>
std::vector<Partial> reduce_within(const Walk<N>& walk, F&& of_chunk) {
  const int64_t chunks = walk.chunks(), size = std::min(walk.positions.numel, kChunk);
  std::vector<Partial> partial(walk.channels * chunks), result(walk.channels);
  parallel_for(walk.channels * chunks, kGrain / (size + 1), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit % chunks * kChunk;
      partial[unit] =
          of_chunk(unit / chunks, first, std::min(first + kChunk, walk.positions.numel));
    }
  });
  for (int64_t c = 0; c < walk.channels; ++c) {
    for (int64_t k = 0; k < chunks; ++k) result[c].merge(partial[c * chunks + k]);
  }
  return result;
}

// The same where spans run across channels: add(c, n, begin, end, partial) merges positions
// [begin, end), at most kRows, of channels [c, c + n), at most kChannelBlock, into partial[0, n).
template <class Partial, int N, class F>
std::vector<Partial> reduce_across(const Walk<N>& walk, F&& add) {
  const int64_t m = walk.positions.numel, channels = walk.channels;
  const int64_t partitions = std::clamp<int64_t>(m / kRows, 1, kMaxPartitions);
  const int64_t blocks = ceil_div(channels, kChannelBlock);
  std::vector<Partial> partial(partitions * channels), result(channels);
  const int64_t work = ceil_div(m, partitions) * std::min(channels, kChannelBlock);
  parallel_for(partitions * blocks, kGrain / (work + 1), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t p = unit / blocks, c = unit % blocks * kChannelBlock;
      const int64_t last = m * (p + 1) / partitions;
      for (int64_t first = m * p / partitions; first < last; first += kRows) {
        add(c, std::min(kChannelBlock, channels - c), first, std::min(first + kRows, last),
            &partial[p * channels + c]);
      }
    }
  });
  for (int64_t p = 0; p < partitions; ++p) {
    for (int64_t c = 0; c < channels; ++c) result[c].merge(partial[p * channels + c]);
  }
  return result;
}

template <class T>
std::vector<Moments> statistics(const BatchNormTraining& p) {
  using Acc = Accumulator<T>;
  const Walk<1> walk({&p.x}, p.channel);
  if (!walk.across) {
    return reduce_within<Moments>(walk, [&](int64_t c, int64_t begin, int64_t end) {
      Acc buffer[kChunk];
      return moments_of(gather(walk, 0, p.x.as<const T>(), c, begin, end, buffer), end - begin);
    });
  }
  return reduce_across<Moments>(walk, [&](int64_t c, int64_t n, int64_t begin, int64_t end,
                                          Moments* partial) {
    const int64_t rows = end - begin;
    const Acc* row[kRows];
    std::vector<Acc> buffer(std::is_same_v<T, Acc> ? 0 : rows * n);
    Acc mean[kChannelBlock] = {}, rest[kChannelBlock] = {}, squares[kChannelBlock] = {};
    for (int64_t r = 0; r < rows; ++r) {
      int64_t at[1];
      walk.positions.offsets(begin + r, at);
      Acc* space = buffer.empty() ? nullptr : &buffer[r * n];
      row[r] = read_span(p.x.as<const T>() + at[0] + c, 1, n, space);
      for (int64_t i = 0; i < n; ++i) mean[i] += row[r][i];
    }
    for (int64_t i = 0; i < n; ++i) mean[i] /= rows;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        const Acc d = row[r][i] - mean[i];
        rest[i] += d;
        squares[i] += d * d;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      const double shift = double{rest[i]} / rows;
      partial[i].merge({static_cast<double>(rows), mean[i] + shift, squares[i] - rest[i] * shift});
    }
  });
}

// y = (x - center) * scale + offset, per channel.
template <class Acc>
struct Affine {
  std::vector<Acc> center, scale, offset;

  explicit Affine(int64_t channels) : center(channels), scale(channels), offset(channels) {}
};

template <class T>
void apply(const Tensor& x, const Tensor& y, int channel, const Affine<Accumulator<T>>& affine) {
  using Acc = Accumulator<T>;
  for_spans(Walk<2>({&x, &y}, channel), [&]<bool kAcross>(int64_t c, int64_t n,
                                                          const int64_t(&at)[2],
                                                          const int64_t(&stride)[2]) {
    constexpr int kStep = kAcross ? 1 : 0;
    Acc in[kChunk], out[kChunk];
    const Acc* v = read_span(x.as<const T>() + at[0], stride[0], n, in);
    const Acc *center = &affine.center[c], *scale = &affine.scale[c], *offset = &affine.offset[c];
    for (int64_t i = 0; i < n; ++i) {
      out[i] = (v[i] - center[i * kStep]) * scale[i * kStep] + offset[i * kStep];
    }
    store_span(out, y.as<T>() + at[1], stride[1], n);
  });
}

template <class T>
void training(const BatchNormTraining& p) {
  using Acc = Accumulator<T>;
  const std::vector<Moments> moments = statistics<T>(p);
  const int64_t channels = p.x.shape[p.channel];
  const MixedView<T> weight(p.weight), bias(p.bias), mean(p.mean), rstd(p.rstd);
  const MixedView<T> running_mean(p.running_mean), running_var(p.running_var);
  Affine<Acc> affine(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const Moments& m = moments[c];
    const double inverse = 1 / std::sqrt(m.m2 / m.n + p.eps);
    const double scale = weight.load_or(c, 1) * inverse;
    // The mean in two parts, so that its rounding to float does not show in x - mean.
    affine.center[c] = static_cast<Acc>(m.mean);
    affine.scale[c] = static_cast<Acc>(scale);
    affine.offset[c] = static_cast<Acc>(bias.load_or(c, 0) + (affine.center[c] - m.mean) * scale);
    mean.store(c, static_cast<Acc>(m.mean));
    rstd.store(c, static_cast<Acc>(inverse));
    if (running_mean) {
      const auto blend = [&](const MixedView<T>& running, double now) {
        running.store(c, static_cast<Acc>((1 - p.momentum) * running.load(c) + p.momentum * now));
      };
      blend(running_mean, m.mean);
      blend(running_var, m.m2 / (m.n - 1));
    }
  }
  apply<T>(p.x, p.y, p.channel, affine);
}

template <class T>
void inference(const BatchNormInference& p) {
  using Acc = Accumulator<T>;
  const int64_t channels = p.x.shape[p.channel];
  const MixedView<T> weight(p.weight), bias(p.bias), mean(p.running_mean), var(p.running_var);
  Affine<Acc> affine(channels);
  for (int64_t c = 0; c < channels; ++c) {
    affine.center[c] = mean.load(c);
    affine.scale[c] = static_cast<Acc>(weight.load_or(c, 1) / std::sqrt(var.load(c) + p.eps));
    affine.offset[c] = bias.load_or(c, 0);
  }
  apply<T>(p.x, p.y, p.channel, affine);
}

// Sums of dy and of dy * (x - mean).
template <class T>
std::vector<Sums> gradient_sums(const BatchNormBackward& p,
                                const std::vector<Accumulator<T>>& mean) {
  using Acc = Accumulator<T>;
  const Walk<2> walk({&p.x, &p.dy}, p.channel);
  if (!walk.across) {
    return reduce_within<Sums>(walk, [&](int64_t c, int64_t begin, int64_t end) -> Sums {
      Acc x_buffer[kChunk], g_buffer[kChunk];
      const Acc* x = gather(walk, 0, p.x.as<const T>(), c, begin, end, x_buffer);
      const Acc* g = gather(walk, 1, p.dy.as<const T>(), c, begin, end, g_buffer);
      const Acc center = mean[c];
      return {sum_of<Acc>(end - begin, [&](int64_t i) { return g[i]; }),
              sum_of<Acc>(end - begin, [&](int64_t i) { return g[i] * (x[i] - center); })};
    });
  }
  return reduce_across<Sums>(
      walk, [&](int64_t c, int64_t n, int64_t begin, int64_t end, Sums* partial) {
        Acc x_buffer[kChannelBlock], g_buffer[kChannelBlock];
        Acc a[kChannelBlock] = {}, b[kChannelBlock] = {};
        const Acc* center = &mean[c];
        for (int64_t m = begin; m < end; ++m) {
          int64_t at[2];
          walk.positions.offsets(m, at);
          const Acc* x = read_span(p.x.as<const T>() + at[0] + c, 1, n, x_buffer);
          const Acc* g = read_span(p.dy.as<const T>() + at[1] + c * walk.channel_stride[1],
                                   walk.channel_stride[1], n, g_buffer);
          for (int64_t i = 0; i < n; ++i) {
            a[i] += g[i];
            b[i] += g[i] * (x[i] - center[i]);
          }
        }
        for (int64_t i = 0; i < n; ++i) partial[i].merge({a[i], b[i]});
      });
}

template <class T>
void backward(const BatchNormBackward& p) {
  using Acc = Accumulator<T>;
  const int64_t channels = p.x.shape[p.channel];
  const MixedView<T> weight(p.weight), mean(p.mean), stat(p.scale), dweight(p.dweight),
      dbias(p.dbias);
  std::vector<Acc> center(channels), rstd(channels);
  for (int64_t c = 0; c < channels; ++c) {
    center[c] = mean.load(c);
    rstd[c] = p.training ? stat.load(c) : static_cast<Acc>(1 / std::sqrt(stat.load(c) + p.eps));
  }
  std::vector<Sums> sums(channels);
  if (p.training || dweight || dbias) sums = gradient_sums<T>(p, center);
  // dx = a * dy + b * (x - mean) + c; b and c are 0 where the statistics are constants.
  const double values = channels ? static_cast<double>(p.x.numel() / channels) : 0;
  std::vector<Acc> a(channels), b(channels), c(channels);
  for (int64_t k = 0; k < channels; ++k) {
    if (dweight) dweight.store(k, static_cast<Acc>(sums[k].b * rstd[k]));
    if (dbias) dbias.store(k, static_cast<Acc>(sums[k].a));
    a[k] = static_cast<Acc>(weight.load_or(k, 1) * rstd[k]);
    b[k] = static_cast<Acc>(-a[k] * sums[k].b * rstd[k] * rstd[k] / values);
    c[k] = static_cast<Acc>(-a[k] * sums[k].a / values);
  }
  for_spans(
      Walk<3>({&p.x, &p.dy, &p.dx}, p.channel),
      [&]<bool kAcross>(int64_t k, int64_t n, const int64_t(&at)[3], const int64_t(&stride)[3]) {
        constexpr int kStep = kAcross ? 1 : 0;
        Acc x_buffer[kChunk], g_buffer[kChunk], out[kChunk];
        const Acc* g = read_span(p.dy.as<const T>() + at[1], stride[1], n, g_buffer);
        if (p.training) {
          const Acc* x = read_span(p.x.as<const T>() + at[0], stride[0], n, x_buffer);
          for (int64_t i = 0; i < n; ++i) {
            const int64_t j = k + i * kStep;
            out[i] = a[j] * g[i] + b[j] * (x[i] - center[j]) + c[j];
          }
        } else {
          for (int64_t i = 0; i < n; ++i) out[i] = a[k + i * kStep] * g[i];
        }
        store_span(out, p.dx.as<T>() + at[2], stride[2], n);
      });
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
