// What the normalisations over channels share on the CPU: moments and sums for each channel of a
// tensor, and the element-wise passes whose factors belong to a channel.
//
// Work is done in spans that either lie inside one channel (NCHW) or run across channels at one
// position (NHWC), chosen by how x lies in memory, so that both are vectorised. Statistics: each
// span or group of rows, in cache, by the corrected two-pass method in float (double for float64);
// they are merged in double by Chan's formula. What is merged with what depends on the shape alone,
// so the bits do not depend on the number of threads.
//
// Reference: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/activation_math.h"
#include "core/fast_math.h"
#include "core/index.h"
#include "core/mixed.h"
#include "cpu/prims/blocks.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"
#include "cpu/prims/spans.h"

namespace dlkern::cpu {

inline constexpr int64_t kGrain = 16384;   // elements worth a thread
inline constexpr int64_t kMaxSpan = 4096;  // elements of a span
inline constexpr int64_t kRows = 64;    // positions handled at once where spans run across channels
inline constexpr int64_t kGroup = 128;  // channels handled at once
inline constexpr int64_t kPartitions = 64;  // of the positions at most, each with partial results
inline constexpr int64_t kPerPartition = 512;  // positions at least

// N tensors of x's shape, by position (all dimensions but the channels) and channel.
template <int N>
struct Walk {
  StridedIndex<N> positions;
  Blocks<N> blocks;  // spans inside a channel
  int64_t channels;
  int64_t channel_stride[N];
  bool across;  // spans run across channels

  Walk(const Tensor* const (&tensors)[N], int channel)
      : positions(make_index<N>(tensors, ~(1u << channel))),
        blocks(positions, kMaxSpan),
        channels(tensors[0]->shape[channel]) {
    for (int n = 0; n < N; ++n) channel_stride[n] = tensors[n]->strides[channel];
    // Spans inside a channel are gathered where they are strided, and cost much where short.
    across = channels >= 8 && (blocks.stride(0) != 1 || blocks.size() < 8);
  }
};

// f.operator()<kAcross>(channel, n, at, stride) over all elements, in parallel: n elements, at most
// kMaxSpan, whose channels are `channel`, or with kAcross `channel` and those after it.
template <int N, class F>
void for_spans(const Walk<N>& walk, F&& f) {
  const int64_t channels = walk.channels;
  if (walk.across) {
    parallel_for(walk.positions.numel, kGrain / channels, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        int64_t at[N];
        walk.positions.offsets(m, at);
        for (int64_t c = 0; c < channels; c += kMaxSpan) {
          f.template operator()<true>(c, std::min(kMaxSpan, channels - c), at, walk.channel_stride);
          for (int n = 0; n < N; ++n) at[n] += kMaxSpan * walk.channel_stride[n];
        }
      }
    });
    return;
  }
  const int64_t grain = kGrain / (walk.blocks.size() + 1);
  parallel_for(walk.blocks.count() * channels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin, c = begin % channels; i < end; c = 0) {
      const auto block = walk.blocks[i / channels];
      int64_t at[N];
      for (int n = 0; n < N; ++n) at[n] = block.at[n] + c * walk.channel_stride[n];
      for (; c < channels && i < end; ++c, ++i) {
        f.template operator()<false>(c, block.n, at, walk.blocks.strides());
        for (int n = 0; n < N; ++n) at[n] += walk.channel_stride[n];
      }
    }
  });
}

// Consecutive blocks: many where they are short, so that sums over them are long enough to be quick.
template <int N>
struct Run {
  static inline constexpr int64_t kEnough = 1024;  // positions
  static constexpr int kMost = 128;                // blocks
  typename Blocks<N>::Block block[kMost];
  int count = 0;
  int64_t n = 0;  // positions in all

  static int64_t blocks_for(int64_t size) {
    return std::clamp<int64_t>(kEnough / std::max<int64_t>(size, 1), 1, kMost);
  }
  Run(const Blocks<N>& blocks, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) n += (block[count++] = blocks[i]).n;
  }
  // Its positions of channel c of tensor t as one span; buffer holds kMaxSpan elements.
  template <class T, class Acc>
  const Acc* read(const Walk<N>& walk, int t, const T* data, int64_t c, Acc* buffer) const {
    data += c * walk.channel_stride[t];
    const int64_t stride = walk.blocks.stride(t);
    if (count == 1) return read_span(data + block[0].at[t], stride, n, buffer);
    Acc* to = buffer;
    for (int i = 0; i < count; ++i) {
      load_span(data + block[i].at[t], stride, block[i].n, to);
      to += block[i].n;
    }
    return buffer;
  }
};

// A `Partial` for each channel, merged over the positions.
//   within(c, run, partial) adds a run of positions of channel c;
//   across(c, n, begin, end, partial) adds positions [begin, end), at most kRows, of channels
//   [c, c + n), at most kGroup, to partial[0, n).
template <class Partial, int N, class Within, class Across>
std::vector<Partial> reduce(const Walk<N>& walk, Within&& within, Across&& across) {
  const int64_t items = walk.across ? walk.positions.numel : walk.blocks.count();
  const int64_t most = std::min(items, kPartitions), channels = walk.channels;
  const int64_t parts =
      std::clamp<int64_t>(walk.positions.numel / kPerPartition, 1, std::max<int64_t>(most, 1));
  const int64_t group = walk.across ? kGroup : 16, groups = ceil_div(channels, group);
  std::vector<Partial> partial(parts * channels), result(channels);
  const int64_t work = ceil_div(walk.positions.numel, parts) * group;
  parallel_for(parts * groups, kGrain / (work + 1), [&](int64_t first, int64_t last) {
    for (int64_t unit = first; unit < last; ++unit) {
      const int64_t part = unit / groups, c = unit % groups * group;
      const int64_t n = std::min(group, channels - c);
      const int64_t begin = items * part / parts, end = items * (part + 1) / parts;
      Partial* to = &partial[part * channels + c];
      if (walk.across) {
        for (int64_t i = begin; i < end; i += kRows) across(c, n, i, std::min(i + kRows, end), to);
      } else {
        const int64_t step = Run<N>::blocks_for(walk.blocks.size());
        for (int64_t i = begin; i < end; i += step) {
          const Run<N> run(walk.blocks, i, std::min(i + step, end));
          for (int64_t k = 0; k < n; ++k) within(c + k, run, to[k]);
        }
      }
    }
  });
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t c = 0; c < channels; ++c) result[c].merge(partial[part * channels + c]);
  }
  return result;
}

// a_i = sum over r < rows of term_a(r, i), b_i likewise, i < n.
template <class Acc, class A, class B>
void sum_rows(int64_t rows, int64_t n, A&& term_a, Acc* a, B&& term_b, Acc* b) {
  std::fill_n(a, n, Acc(0));
  std::fill_n(b, n, Acc(0));
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    DLK_SIMD
    for (int64_t i = 0; i < n; ++i) {
      a[i] += (term_a(r, i) + term_a(r + 1, i)) + (term_a(r + 2, i) + term_a(r + 3, i));
      b[i] += (term_b(r, i) + term_b(r + 1, i)) + (term_b(r + 2, i) + term_b(r + 3, i));
    }
  }
  for (; r < rows; ++r) {
    DLK_SIMD
    for (int64_t i = 0; i < n; ++i) {
      a[i] += term_a(r, i);
      b[i] += term_b(r, i);
    }
  }
}

// Positions [begin, end) of channels [c, c + n) of tensor t, row by row.
template <class T>
struct Tile {
  using Acc = Accumulator<T>;
  const Acc* row[kRows];
  Acc buffer[kRows * kGroup];

  template <int N>
  void load(const Walk<N>& walk, int t, const T* data, int64_t c, int64_t n, int64_t begin,
            int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      int64_t at[N];
      walk.positions.offsets(m, at);
      const int64_t r = m - begin, stride = walk.channel_stride[t];
      row[r] = read_span(data + at[t] + c * stride, stride, n, buffer + r * kGroup);
    }
  }
};

// Count, mean and sum of squared deviations of a set of values.
struct Moments {
  double n = 0, mean = 0, m2 = 0;

  // m2 can become negative by rounding.
  double variance() const { return m2 < 0 ? 0 : m2 / n; }
  void merge(const Moments& other) {
    if (other.n == 0) return;
    const double total = n + other.n, delta = other.mean - mean, share = other.n / total;
    mean += delta * share;
    m2 += other.m2 + delta * delta * n * share;
    n = total;
  }
};

template <class T>
std::vector<Moments> statistics(const Tensor& tensor, int channel) {
  using Acc = Accumulator<T>;
  const Walk<1> walk({&tensor}, channel);
  const T* x = tensor.as<const T>();
  // Sums of deviations from an approximate mean make a mean in double precision.
  const auto moments = [](int64_t n, Acc mean, double rest, double squares) -> Moments {
    return {static_cast<double>(n), mean + rest / n, squares - rest * rest / n};
  };
  return reduce<Moments>(
      walk,
      [&](int64_t c, const Run<1>& run, Moments& partial) {
        Acc buffer[kMaxSpan];
        const Acc* v = run.read(walk, 0, x, c, buffer);
        const Acc mean = sum_of<Acc>(run.n, [&](int64_t i) { return v[i]; }) / run.n;
        const auto [rest, squares] = two_sums_of<Acc>(
            run.n, [&](int64_t i) { return v[i] - mean; },
            [&](int64_t i) { return (v[i] - mean) * (v[i] - mean); });
        partial.merge(moments(run.n, mean, rest, squares));
      },
      [&](int64_t c, int64_t n, int64_t begin, int64_t end, Moments* partial) {
        Tile<T> tile;
        tile.load(walk, 0, x, c, n, begin, end);
        const int64_t rows = end - begin;
        Acc mean[kGroup], rest[kGroup], squares[kGroup];
        const auto zero = [](int64_t, int64_t) { return Acc(0); };
        sum_rows(rows, n, [&](int64_t r, int64_t i) { return tile.row[r][i]; }, mean, zero, rest);
        for (int64_t i = 0; i < n; ++i) mean[i] /= rows;
        const auto deviation = [&](int64_t r, int64_t i) { return tile.row[r][i] - mean[i]; };
        sum_rows(
            rows, n, deviation, rest,
            [&](int64_t r, int64_t i) { return deviation(r, i) * deviation(r, i); }, squares);
        for (int64_t i = 0; i < n; ++i) {
          partial[i].merge(moments(rows, mean[i], rest[i], squares[i]));
        }
      });
}

// y = activation((x - center) * scale + offset + residual), all but x, y and residual per channel.
template <class Acc>
struct Affine {
  std::vector<Acc> center, scale, offset;

  explicit Affine(int64_t channels) : center(channels), scale(channels), offset(channels) {}
  // The mean in two parts, so that its rounding does not show in x - mean.
  void set(int64_t c, double mean, double factor, double bias) {
    center[c] = static_cast<Acc>(mean);
    scale[c] = static_cast<Acc>(factor);
    offset[c] = static_cast<Acc>(bias + (center[c] - mean) * factor);
  }
};

// f.operator()<kind>() for those that a norm can be followed by.
template <class F>
void dispatch_norm_activation(dlk_activation activation, F&& f) {
  switch (activation) {
    case DLK_ACTIVATION_RELU:
      return f.template operator()<DLK_ACTIVATION_RELU>();
    case DLK_ACTIVATION_SILU:
      return f.template operator()<DLK_ACTIVATION_SILU>();
    default:
      return f.template operator()<DLK_ACTIVATION_NONE>();
  }
}

struct ForwardTensors {
  Tensor x, y, residual;
  int channel;
  dlk_activation activation;
};

template <class T>
void apply(const ForwardTensors& p, const Affine<Accumulator<T>>& affine) {
  using Acc = Accumulator<T>;
  const Walk<3> walk({&p.x, &p.y, &p.residual}, p.channel);
  dispatch_norm_activation(p.activation, [&]<dlk_activation kActivation>() {
    const ActivationScalars<Acc> scalars;
    for_spans(walk, [&]<bool kAcross>(int64_t c, int64_t n, const int64_t(&at)[3],
                                      const int64_t(&stride)[3]) {
      constexpr int kStep = kAcross ? 1 : 0;
      Acc v_buffer[kMaxSpan], buffer[kMaxSpan];
      const Acc* r = nullptr;
      if (p.residual) r = read_span(p.residual.as<const T>() + at[2], stride[2], n, v_buffer);
      const Acc* v = read_span(p.x.as<const T>() + at[0], stride[0], n, buffer);
      Acc* out = begin_span(p.y.as<T>() + at[1], stride[1], buffer);
      const Acc *center = &affine.center[c], *scale = &affine.scale[c], *offset = &affine.offset[c];
      const auto write = [&](auto&& added) {
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) {
          const Acc z = (v[i] - center[i * kStep]) * scale[i * kStep] + offset[i * kStep];
          out[i] = activation_forward<kActivation, FastMath>(z + added(i), scalars);
        }
      };
      if (r) {
        write([&](int64_t i) { return r[i]; });
      } else {
        write([](int64_t) { return Acc(0); });
      }
      finish_span(out, p.y.as<T>() + at[1], stride[1], n);
    });
  });
}

struct BackwardTensors {
  Tensor x, dy, y, dx, dresidual;  // y: where the argument of relu's gradient is taken from it
  int channel;
  dlk_activation activation;
};

// Per channel: z = (x - center) * along + bias is what the activation was applied to, and
// dx = along * dz + across * (x - center) + offset.
template <class Acc>
struct GradientTerms {
  std::vector<Acc> center, along, bias, across, offset;

  explicit GradientTerms(int64_t channels)
      : center(channels), along(channels), bias(channels), across(channels), offset(channels) {}
};

// dz of n elements whose terms are those of channel c, or with kStep 1 of c and those after it.
// v, g, y: spans of x, dy and y (nullptr: absent). dz itself, or `buffer`.
template <int kStep, class Acc>
const Acc* before_activation(dlk_activation activation, int64_t n, const GradientTerms<Acc>& terms,
                             int64_t c, const Acc* v, const Acc* g, const Acc* y, Acc* buffer) {
  if (activation == DLK_ACTIVATION_NONE) return g;
  const ActivationScalars<Acc> scalars;
  const Acc *m = &terms.center[c], *a = &terms.along[c], *b = &terms.bias[c];
  dispatch_norm_activation(activation, [&]<dlk_activation kActivation>() {
    if (y) {
      DLK_SIMD
      for (int64_t i = 0; i < n; ++i) {
        buffer[i] = activation_backward<kActivation, FastMath>(g[i], y[i], scalars);
      }
    } else {
      DLK_SIMD
      for (int64_t i = 0; i < n; ++i) {
        const Acc z = (v[i] - m[i * kStep]) * a[i * kStep] + b[i * kStep];
        buffer[i] = activation_backward<kActivation, FastMath>(g[i], z, scalars);
      }
    }
  });
  return buffer;
}

// Two sums over positions per channel.
struct Sums {
  double a = 0, b = 0;

  void merge(const Sums& other) { a += other.a, b += other.b; }
};

// Sums of dz and of dz * (x - center).
template <class T>
std::vector<Sums> gradient_sums(const BackwardTensors& p,
                                const GradientTerms<Accumulator<T>>& terms) {
  using Acc = Accumulator<T>;
  const Walk<3> walk({&p.x, &p.dy, &p.y}, p.channel);
  const T *x = p.x.as<const T>(), *dy = p.dy.as<const T>(), *y = p.y.as<const T>();
  return reduce<Sums>(
      walk,
      [&](int64_t c, const Run<3>& run, Sums& partial) {
        Acc v_buffer[kMaxSpan], g_buffer[kMaxSpan], y_buffer[kMaxSpan], z_buffer[kMaxSpan];
        const Acc* v = run.read(walk, 0, x, c, v_buffer);
        const Acc* g = run.read(walk, 1, dy, c, g_buffer);
        const Acc* r = y ? run.read(walk, 2, y, c, y_buffer) : nullptr;
        g = before_activation<0>(p.activation, run.n, terms, c, v, g, r, z_buffer);
        const Acc center = terms.center[c];
        const auto sums = two_sums_of<Acc>(
            run.n, [&](int64_t i) { return g[i]; },
            [&](int64_t i) { return g[i] * (v[i] - center); });
        partial.merge({sums.a, sums.b});
      },
      [&](int64_t c, int64_t n, int64_t begin, int64_t end, Sums* partial) {
        Tile<T> v, g, r;
        v.load(walk, 0, x, c, n, begin, end);
        g.load(walk, 1, dy, c, n, begin, end);
        if (y) r.load(walk, 2, y, c, n, begin, end);
        for (int64_t k = 0; k < end - begin; ++k) {
          g.row[k] = before_activation<1>(p.activation, n, terms, c, v.row[k], g.row[k],
                                          y ? r.row[k] : nullptr, g.buffer + k * kGroup);
        }
        Acc a[kGroup], b[kGroup];
        const Acc* center = &terms.center[c];
        sum_rows(
            end - begin, n, [&](int64_t k, int64_t i) { return g.row[k][i]; }, a,
            [&](int64_t k, int64_t i) { return g.row[k][i] * (v.row[k][i] - center[i]); }, b);
        for (int64_t i = 0; i < n; ++i) partial[i].merge({a[i], b[i]});
      });
}

template <class T>
void apply_gradient(const BackwardTensors& p, const GradientTerms<Accumulator<T>>& terms) {
  using Acc = Accumulator<T>;
  const Walk<5> walk({&p.x, &p.dy, &p.y, &p.dx, &p.dresidual}, p.channel);
  for_spans(walk, [&]<bool kAcross>(int64_t c, int64_t n, const int64_t(&at)[5],
                                    const int64_t(&stride)[5]) {
    constexpr int kStep = kAcross ? 1 : 0;
    Acc v_buffer[kMaxSpan], g_buffer[kMaxSpan], y_buffer[kMaxSpan], z_buffer[kMaxSpan];
    const Acc* v = read_span(p.x.as<const T>() + at[0], stride[0], n, v_buffer);
    const Acc* g = read_span(p.dy.as<const T>() + at[1], stride[1], n, g_buffer);
    const Acc* y = nullptr;
    if (p.y) y = read_span(p.y.as<const T>() + at[2], stride[2], n, y_buffer);
    g = before_activation<kStep>(p.activation, n, terms, c, v, g, y, z_buffer);
    if (p.dresidual) store_span(g, p.dresidual.as<T>() + at[4], stride[4], n);
    Acc* out = begin_span(p.dx.as<T>() + at[3], stride[3], y_buffer);
    const Acc *m = &terms.center[c], *a = &terms.along[c], *b = &terms.across[c],
              *k = &terms.offset[c];
    DLK_SIMD
    for (int64_t i = 0; i < n; ++i) {
      out[i] = a[i * kStep] * g[i] + (b[i * kStep] * (v[i] - m[i * kStep]) + k[i * kStep]);
    }
    finish_span(out, p.dx.as<T>() + at[3], stride[3], n);
  });
}

// running = (1 - momentum) running + momentum now
template <class T>
void blend(const MixedView<T>& running, int64_t c, double momentum, double now) {
  running.store(c, static_cast<Accumulator<T>>((1 - momentum) * running.load(c) + momentum * now));
}

}  // namespace dlkern::cpu
