// Direct convolution of groups of a few channels (depthwise above all), where matrix products have
// nothing to share. Both images are seen from the result: each of its positions has a list of taps
// and of source positions, in all directions and for any stride.
//
//   planes     lanes along the last spatial dimension: the sources of a group are copied into zero-
//              padded planes, cut so that neighbouring results read neighbouring elements whatever
//              the stride; results are computed in registers, a row segment at a time
//   channels   lanes along channels, where those are adjacent in memory (NHWC) and each group has
//              one: taps outside the image are left out
//
// A task is a group or a row of an image; its bits depend neither on threads nor on the batch.
#include <cstring>
#include <vector>

#include "cpu/conv.h"
#include "cpu/conv_epilogue.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"

namespace dlkern::cpu {
namespace {

constexpr int64_t kGrain = 1 << 16;  // multiplications worth a thread

template <class Acc>
struct VectorOf {
  typedef Acc type __attribute__((vector_size(32)));
};
template <class Acc>
using Vector = typename VectorOf<Acc>::type;
template <class Acc>
inline constexpr int kWidth = 32 / sizeof(Acc);

template <class Acc>
inline Vector<Acc> load(const Acc* p) {
  Vector<Acc> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <class Acc>
inline void store(Acc* p, Vector<Acc> v) {
  std::memcpy(p, &v, sizeof(v));
}

// ---- What a result sees -------------------------------------------------------------------------

// A tap, and the source position that it sees from the first result of a class.
struct Reach {
  int64_t tap, source;
};

// Results first + i * result_step, i < count, whose sources are reach.source + i * source_step.
struct ResultClass {
  int64_t first, count;
  std::vector<Reach> reaches;
};

// One spatial dimension. Forward: one class. For the input gradient the results that have the same
// remainder modulo the stride are a class: they see the same taps.
struct Axis {
  int64_t result_step, source_step;
  int64_t low = 0, extent = 0;  // sources in [low, low + extent) are seen, some of them outside
  std::vector<ResultClass> classes;

  Axis(const Window& w, int64_t in, int64_t out, bool inverse)
      : result_step(inverse ? w.stride : 1), source_step(inverse ? 1 : w.stride) {
    for (int64_t first = 0; first < std::min(result_step, in); ++first) {
      ResultClass c{first, inverse ? ceil_div(in - first, w.stride) : out, {}};
      for (int64_t t = 0; t < w.kernel; ++t) {
        const int64_t at = t * w.dilation - w.pad_begin;
        if (!inverse) c.reaches.push_back({t, at});
        if (inverse && (first - at) % w.stride == 0) {
          c.reaches.push_back({t, (first - at) / w.stride});
        }
      }
      classes.push_back(std::move(c));
    }
    int64_t high = 0;
    for (const ResultClass& c : classes) {
      for (const Reach& r : c.reaches) {
        low = std::min(low, r.source);
        high = std::max(high, r.source + (c.count - 1) * source_step);
      }
    }
    extent = high - low + 1;
  }
};

// An operation as "result image from source image".
template <class T>
struct Job {
  const ConvProblem& p;
  const ConvGeometry& g = p.geometry;
  bool inverse;
  int64_t sources = inverse ? g.k : g.c, results = inverse ? g.c : g.k;  // channels per group
  const int64_t* extent = inverse ? g.out : g.in;                        // of the source
  const ConvImageStrides& source_strides = inverse ? p.y_strides : p.x_strides;
  const ConvImageStrides& result_strides = inverse ? p.x_strides : p.y_strides;
  T* source = (inverse ? p.y : p.x).template as<T>();
  T* result = (inverse ? p.x : p.y).template as<T>();
  Axis axis[3] = {{g.window[0], g.in[0], g.out[0], inverse},
                  {g.window[1], g.in[1], g.out[1], inverse},
                  {g.window[2], g.in[2], g.out[2], inverse}};
  std::optional<ConvFinish<T>> finish = conv_finish_of<T>(p, g.groups* results);

  // Weight of a result's and a source's channel.
  const T* weight(int64_t group, int64_t r, int64_t s) const {
    const ConvWeightStrides& w = p.w_strides;
    return p.w.as<T>() + group * w.group + (inverse ? s : r) * w.k + (inverse ? r : s) * w.c;
  }
  int64_t tap_offset(int64_t t0, int64_t t1, int64_t t2) const {
    return t0 * p.w_strides.taps[0] + t1 * p.w_strides.taps[1] + t2 * p.w_strides.taps[2];
  }
  Accumulator<T> bias(int64_t channel) const {
    using Acc = Accumulator<T>;
    if (finish || !p.bias) return Acc(0);
    return static_cast<Acc>(p.bias.as<T>()[channel * p.bias.strides[0]]);
  }
  int64_t multiplications() const { return g.k * g.c * g.taps() * g.out_count(); }  // of a group
};

// ---- Lanes along the last dimension ---------------------------------------------------------------

// The sources of one group of one image, zero-padded to all that is seen. Elements of a row lie in
// source_step parts: part f holds elements f, f + source_step, ...
template <class T>
class Planes {
 public:
  using Acc = Accumulator<T>;
  static constexpr int64_t kTail = 4 * kWidth<Acc>;  // loads may reach so far past a row's end

  explicit Planes(const Job<T>& job)
      : job_(job),
        part_(ceil_div(job.axis[2].extent, job.axis[2].source_step) + kTail),
        row_(part_ * job.axis[2].source_step),
        plane_(row_ * job.axis[0].extent * job.axis[1].extent),
        data_(plane_ * job.sources) {}

  void fill(int64_t n, int64_t group) {
    const ConvImageStrides& s = job_.source_strides;
    const Axis(&axis)[3] = job_.axis;
    const int64_t step = axis[2].source_step, low = axis[2].low;
    for (int64_t c = 0; c < job_.sources; ++c) {
      const T* image = job_.source + n * s.n + (group * job_.sources + c) * s.c;
      for (int64_t d = std::max<int64_t>(-axis[0].low, 0); d < axis[0].extent; ++d) {
        if (d + axis[0].low >= job_.extent[0]) break;
        for (int64_t h = std::max<int64_t>(-axis[1].low, 0); h < axis[1].extent; ++h) {
          if (h + axis[1].low >= job_.extent[1]) break;
          const T* from =
              image + (d + axis[0].low) * s.spatial[0] + (h + axis[1].low) * s.spatial[1];
          Acc* row = data_.data() + c * plane_ + (d * axis[1].extent + h) * row_;
          for (int64_t part = 0; part < step; ++part) {
            // Element i of the part is source position low + part + i * step.
            const int64_t first = low + part;
            const int64_t begin = first < 0 ? ceil_div(-first, step) : 0;
            const int64_t end = std::min(ceil_div(job_.extent[2] - first, step), part_ - kTail);
            if (begin >= end) continue;
            load_span(from + (first + begin * step) * s.spatial[2], step * s.spatial[2],
                      end - begin, row + part * part_ + begin);
          }
        }
      }
    }
  }

  // Of the element that the first result of a class sees; result i is at `+ i`.
  int64_t offset(int64_t c, int64_t d, int64_t h, int64_t w) const {
    const Axis(&axis)[3] = job_.axis;
    const int64_t at = w - axis[2].low, step = axis[2].source_step;
    return c * plane_ + ((d - axis[0].low) * axis[1].extent + (h - axis[1].low)) * row_ +
           at % step * part_ + at / step;
  }
  // Where rows (i, j) of results have their sources, relative to those of rows (0, 0).
  int64_t row_offset(int64_t i, int64_t j) const {
    const Axis(&axis)[3] = job_.axis;
    return (i * axis[0].source_step * axis[1].extent + j * axis[1].source_step) * row_;
  }
  const Acc* data() const { return data_.data(); }

 private:
  const Job<T>& job_;
  int64_t part_, row_, plane_;
  std::vector<Acc> data_;  // what lies outside the image stays 0
};

// row[i] = bias + sum_e weights[e] * source[offsets[e] + i], i < n rounded up to kVectors vectors.
template <int kVectors, class Acc>
void compute_row(int64_t n, Acc bias, int64_t count, const Acc* weights, const int64_t* offsets,
                 const Acc* source, Acc* row) {
  for (int64_t i = 0; i < n; i += kVectors * kWidth<Acc>) {
    Vector<Acc> sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = Vector<Acc>{} + bias;
    for (int64_t e = 0; e < count; ++e) {
      const Acc* at = source + offsets[e] + i;
      const Acc w = weights[e];
      for (int v = 0; v < kVectors; ++v) sum[v] += w * load(at + v * kWidth<Acc>);
    }
    for (int v = 0; v < kVectors; ++v) store(row + i + v * kWidth<Acc>, sum[v]);
  }
}

template <class Acc>
void compute_row(int64_t n, Acc bias, int64_t count, const Acc* weights, const int64_t* offsets,
                 const Acc* source, Acc* row) {
  if (n > 2 * kWidth<Acc>) {
    compute_row<4>(n, bias, count, weights, offsets, source, row);
  } else if (n > kWidth<Acc>) {
    compute_row<2>(n, bias, count, weights, offsets, source, row);
  } else {
    compute_row<1>(n, bias, count, weights, offsets, source, row);
  }
}

// All pairs of a source channel and a tap that a class of results sees, as offsets into the planes
// and into the weights of (result channel 0, source channel 0).
struct Entries {
  std::vector<int64_t> planes, weights;
};
template <class T>
Entries entries_of(const Job<T>& job, const Planes<T>& planes, const ResultClass& a,
                   const ResultClass& b, const ResultClass& c) {
  Entries e;
  for (int64_t s = 0; s < job.sources; ++s) {
    for (const Reach& i : a.reaches) {
      for (const Reach& j : b.reaches) {
        for (const Reach& k : c.reaches) {
          e.planes.push_back(planes.offset(s, i.source, j.source, k.source));
          e.weights.push_back(job.weight(0, 0, s) - job.weight(0, 0, 0) +
                              job.tap_offset(i.tap, j.tap, k.tap));
        }
      }
    }
  }
  return e;
}

// f(class a, class b, class c, number) for all combinations of the three dimensions.
template <class T, class F>
void each_class(const Job<T>& job, F&& f) {
  int64_t number = 0;
  for (const ResultClass& a : job.axis[0].classes) {
    for (const ResultClass& b : job.axis[1].classes) {
      for (const ResultClass& c : job.axis[2].classes) f(a, b, c, number++);
    }
  }
}

template <class T>
void by_planes(const Job<T>& job) {
  using Acc = Accumulator<T>;
  const ConvGeometry& g = job.g;
  const ConvImageStrides& s = job.result_strides;
  parallel_for(
      g.batch * g.groups, 1 + kGrain / (job.multiplications() + 1),
      [&](int64_t begin, int64_t end) {
        Planes<T> planes(job);
        std::vector<Entries> entries;
        each_class(job, [&](const auto& a, const auto& b, const auto& c, int64_t) {
          entries.push_back(entries_of(job, planes, a, b, c));
        });
        const Axis& last = job.axis[2];
        std::vector<Acc> row(last.classes.empty() ? 0 : last.classes[0].count + planes.kTail);
        std::vector<Acc> weights;
        for (int64_t task = begin; task < end; ++task) {
          const int64_t n = task / g.groups, group = task % g.groups;
          planes.fill(n, group);
          for (int64_t r = 0; r < job.results; ++r) {
            const int64_t channel = group * job.results + r;
            T* result = job.result + n * s.n + channel * s.c;
            const Acc bias = job.bias(channel);
            each_class(job, [&](const auto& a, const auto& b, const auto& c, int64_t number) {
              const Entries& e = entries[number];
              const auto count = static_cast<int64_t>(e.planes.size());
              weights.resize(count);
              for (int64_t i = 0; i < count; ++i) {
                weights[i] = static_cast<Acc>(job.weight(group, r, 0)[e.weights[i]]);
              }
              for (int64_t i = 0; i < a.count; ++i) {
                for (int64_t j = 0; j < b.count; ++j) {
                  compute_row(c.count, bias, count, weights.data(), e.planes.data(),
                              planes.data() + planes.row_offset(i, j), row.data());
                  const int64_t o[3] = {a.first + i * job.axis[0].result_step,
                                        b.first + j * job.axis[1].result_step, c.first};
                  if (job.finish) {
                    job.finish->template pixels<false>(row.data(), c.count, n, channel, o,
                                                       last.result_step);
                  }
                  store_span(
                      row.data(),
                      result + o[0] * s.spatial[0] + o[1] * s.spatial[1] + o[2] * s.spatial[2],
                      last.result_step * s.spatial[2], c.count);
                }
              }
            });
          }
        }
      });
}

// weights[k, (c, t)] += sum over a row of y[k, i] * planes[offset(c, t) + i].
template <class Acc>
void add_products(int64_t n, const Acc* y, int64_t count, const int64_t* offsets, const Acc* source,
                  Vector<Acc>* sums) {
  constexpr int kBlock = 4;
  int64_t e = 0;
  for (; e + kBlock <= count; e += kBlock) {
    Vector<Acc> sum[kBlock];
    for (int b = 0; b < kBlock; ++b) sum[b] = sums[e + b];
    for (int64_t i = 0; i < n; i += kWidth<Acc>) {
      const Vector<Acc> v = load(y + i);
      for (int b = 0; b < kBlock; ++b) sum[b] += v * load(source + offsets[e + b] + i);
    }
    for (int b = 0; b < kBlock; ++b) sums[e + b] = sum[b];
  }
  for (; e < count; ++e) {
    for (int64_t i = 0; i < n; i += kWidth<Acc>) {
      sums[e] += load(y + i) * load(source + offsets[e] + i);
    }
  }
}

template <class T>
void weight_by_planes(const Job<T>& job) {
  using Acc = Accumulator<T>;
  const ConvGeometry& g = job.g;
  const ConvImageStrides& s = job.result_strides;
  const int64_t width = g.out[2], padded = ceil_div(width, kWidth<Acc>) * kWidth<Acc>;
  parallel_for(g.groups, 1 + kGrain / (g.batch * job.multiplications() + 1),
               [&](int64_t begin, int64_t end) {
                 Planes<T> planes(job);
                 const Entries e = entries_of(job, planes, job.axis[0].classes[0],
                                              job.axis[1].classes[0], job.axis[2].classes[0]);
                 const auto count = static_cast<int64_t>(e.planes.size());
                 std::vector<Acc> row(padded), total(g.k * count);
                 // Not a vector of Vector: that would need aligned memory from the allocator.
                 std::vector<Acc> lanes(g.k * count * kWidth<Acc> + kWidth<Acc>);
                 for (int64_t group = begin; group < end; ++group) {
                   std::fill(total.begin(), total.end(), Acc(0));
                   for (int64_t n = 0; n < g.batch; ++n) {
                     planes.fill(n, group);
                     std::fill(lanes.begin(), lanes.end(), Acc(0));
                     auto* sums = reinterpret_cast<Vector<Acc>*>(
                         (reinterpret_cast<uintptr_t>(lanes.data()) + 31) / 32 * 32);
                     for (int64_t k = 0; k < g.k; ++k) {
                       for (int64_t i = 0; i < g.out[0]; ++i) {
                         for (int64_t j = 0; j < g.out[1]; ++j) {
                           load_span(job.result + n * s.n + (group * g.k + k) * s.c +
                                         i * s.spatial[0] + j * s.spatial[1],
                                     s.spatial[2], width, row.data());
                           add_products(padded, row.data(), count, e.planes.data(),
                                        planes.data() + planes.row_offset(i, j), sums + k * count);
                         }
                       }
                     }
                     for (int64_t i = 0; i < g.k * count; ++i) {
                       Acc sum = 0;
                       for (int lane = 0; lane < kWidth<Acc>; ++lane) sum += sums[i][lane];
                       total[i] += sum;
                     }
                   }
                   for (int64_t k = 0; k < g.k; ++k) {
                     T* to = job.p.w.template as<T>() + group * job.p.w_strides.group +
                             k * job.p.w_strides.k;
                     for (int64_t i = 0; i < count; ++i) {
                       T& out = to[e.weights[i]];
                       const Acc before = job.p.accumulate ? static_cast<Acc>(out) : Acc(0);
                       out = static_cast<T>(before + total[k * count + i]);
                     }
                   }
                 }
               });
}

// ---- Lanes along channels -------------------------------------------------------------------------

// f.operator()<V>(first channel) for runs of channels, V the vectors of a run, and for the channels
// that are left over with V = 0, one by one.
template <class Acc, class F>
void each_run(int64_t channels, F&& f) {
  constexpr int kLong = 4, kLanes = kWidth<Acc>;
  int64_t c = 0;
  for (; c + kLong * kLanes <= channels; c += kLong * kLanes) f.template operator()<kLong>(c);
  for (; c + kLanes <= channels; c += kLanes) f.template operator()<1>(c);
  for (; c < channels; ++c) f.template operator()<0>(c);
}

// Sums of a run of channels, held in registers.
template <class Acc, int kVectors>
struct Run {
  Vector<Acc> v[kVectors];

  explicit Run(const Acc* from) {
    for (int i = 0; i < kVectors; ++i) v[i] = load(from + i * kWidth<Acc>);
  }
  void add(const Acc* x, const Acc* w) {
    for (int i = 0; i < kVectors; ++i)
      v[i] += load(x + i * kWidth<Acc>) * load(w + i * kWidth<Acc>);
  }
  void save(Acc* to) const {
    for (int i = 0; i < kVectors; ++i) store(to + i * kWidth<Acc>, v[i]);
  }
};
template <class Acc>
struct Run<Acc, 0> {
  Acc v;

  explicit Run(const Acc* from) : v(*from) {}
  void add(const Acc* x, const Acc* w) { v += *x * *w; }
  void save(Acc* to) const { *to = v; }
};

// A row of positions with their channels side by side: the image itself where it is that, else a
// copy.
template <class T>
class ChannelRow {
 public:
  using Acc = Accumulator<T>;

  void read(const T* row, const ConvImageStrides& s, int64_t channels, int64_t width) {
    if constexpr (std::is_same_v<T, Acc>) {
      if (s.c == 1) {
        data_ = row;
        step_ = s.spatial[2];
        return;
      }
    }
    buffer_.resize(width * channels);
    for (int64_t i = 0; i < width; ++i) {
      load_span(row + i * s.spatial[2], s.c, channels, buffer_.data() + i * channels);
    }
    data_ = buffer_.data();
    step_ = channels;
  }
  const Acc* at(int64_t i) const { return data_ + i * step_; }

 private:
  const Acc* data_ = nullptr;
  int64_t step_ = 0;
  std::vector<Acc> buffer_;
};

// The sources that each result of a dimension sees inside the image: reaches [begin[i], begin[i+1]).
struct Inside {
  std::vector<int64_t> begin;
  std::vector<Reach> reaches;

  Inside(const Axis& axis, int64_t results, int64_t extent) {
    for (int64_t i = 0; i < results; ++i) {
      begin.push_back(static_cast<int64_t>(reaches.size()));
      const ResultClass& c = axis.classes[i % axis.result_step];
      for (const Reach& r : c.reaches) {
        const int64_t at = r.source + i / axis.result_step * axis.source_step;
        if (at >= 0 && at < extent) reaches.push_back({r.tap, at});
      }
    }
    begin.push_back(static_cast<int64_t>(reaches.size()));
  }
};

// The weights as [tap, channel].
template <class T>
std::vector<Accumulator<T>> weights_by_tap(const Job<T>& job) {
  const ConvGeometry& g = job.g;
  std::vector<Accumulator<T>> weights(g.taps() * g.groups);
  auto* to = weights.data();
  for (int64_t t0 = 0; t0 < g.window[0].kernel; ++t0) {
    for (int64_t t1 = 0; t1 < g.window[1].kernel; ++t1) {
      for (int64_t t2 = 0; t2 < g.window[2].kernel; ++t2, to += g.groups) {
        load_span(job.p.w.template as<T>() + job.tap_offset(t0, t1, t2), job.p.w_strides.group,
                  g.groups, to);
      }
    }
  }
  return weights;
}

template <class T>
void by_channels(const Job<T>& job) {
  using Acc = Accumulator<T>;
  const ConvGeometry& g = job.g;
  const ConvImageStrides &from = job.source_strides, &to = job.result_strides;
  const int64_t* results = job.inverse ? g.in : g.out;
  const int64_t channels = g.groups;
  const auto weights = weights_by_tap(job);
  std::vector<Acc> bias(channels);
  for (int64_t c = 0; c < channels; ++c) bias[c] = job.bias(c);
  const Inside inside[3] = {{job.axis[0], results[0], job.extent[0]},
                            {job.axis[1], results[1], job.extent[1]},
                            {job.axis[2], results[2], job.extent[2]}};
  const int64_t rows = g.batch * results[0] * results[1];
  parallel_for(
      rows, 1 + kGrain / (results[2] * channels * g.taps()), [&](int64_t begin, int64_t end) {
        std::vector<ChannelRow<T>> sources(g.window[0].kernel * g.window[1].kernel);
        std::vector<const Acc*> row_weights(sources.size());  // of the first tap in a source row
        std::vector<const Acc*> seen(2 * g.taps());           // of a pixel: values, weights
        std::vector<Acc> buffer(channels);
        for (int64_t row = begin; row < end; ++row) {
          const int64_t h = row % results[1], d = row / results[1] % results[0];
          const int64_t n = row / results[1] / results[0];
          const T* image = job.source + n * from.n;
          T* out = job.result + n * to.n + d * to.spatial[0] + h * to.spatial[1];
          int64_t used = 0;
          for (int64_t i = inside[0].begin[d]; i < inside[0].begin[d + 1]; ++i) {
            for (int64_t j = inside[1].begin[h]; j < inside[1].begin[h + 1]; ++j) {
              const Reach &a = inside[0].reaches[i], &b = inside[1].reaches[j];
              sources[used].read(image + a.source * from.spatial[0] + b.source * from.spatial[1],
                                 from, channels, job.extent[2]);
              const int64_t tap = (a.tap * g.window[1].kernel + b.tap) * g.window[2].kernel;
              row_weights[used++] = weights.data() + tap * channels;
            }
          }
          for (int64_t w = 0; w < results[2]; ++w) {
            int64_t count = 0;
            for (int64_t source = 0; source < used; ++source) {
              for (int64_t k = inside[2].begin[w]; k < inside[2].begin[w + 1]; ++k) {
                const Reach& reach = inside[2].reaches[k];
                seen[count++] = sources[source].at(reach.source);
                seen[count++] = row_weights[source] + reach.tap * channels;
              }
            }
            T* pixel = out + w * to.spatial[2];
            Acc* sums = begin_span(pixel, to.c, buffer.data());
            each_run<Acc>(channels, [&]<int kVectors>(int64_t c) {
              Run<Acc, kVectors> sum(bias.data() + c);
              for (int64_t i = 0; i < count; i += 2) sum.add(seen[i] + c, seen[i + 1] + c);
              sum.save(sums + c);
            });
            if (job.finish) {
              job.finish->template pixels<true>(sums, channels, n, 0, {d, h, w});
            }
            finish_span(sums, pixel, to.c, channels);
          }
        }
      });
}

// A task: neighbouring channels, through the whole batch.
template <class T>
void weight_by_channels(const Job<T>& job) {
  using Acc = Accumulator<T>;
  constexpr int64_t kBlock = 32;
  const ConvGeometry& g = job.g;
  const ConvImageStrides &xs = job.source_strides, &ys = job.result_strides;
  const Inside inside[2] = {{job.axis[0], g.out[0], g.in[0]}, {job.axis[1], g.out[1], g.in[1]}};
  const Window& last = g.window[2];
  const int64_t work = kBlock * g.batch * job.multiplications();
  parallel_for(
      ceil_div(g.groups, kBlock), 1 + kGrain / (work + 1), [&](int64_t begin, int64_t end) {
        ChannelRow<T> y, x;
        std::vector<Acc> sums(g.taps() * kBlock), total(sums.size());
        for (int64_t block = begin; block < end; ++block) {
          const int64_t first = block * kBlock, channels = std::min(kBlock, g.groups - first);
          const T *dy = job.result + first * ys.c, *image = job.source + first * xs.c;
          std::fill(total.begin(), total.end(), Acc(0));
          for (int64_t n = 0; n < g.batch; ++n) {
            std::fill(sums.begin(), sums.end(), Acc(0));
            for (int64_t row = 0; row < g.out[0] * g.out[1]; ++row) {
              const int64_t d = row / g.out[1], h = row % g.out[1];
              y.read(dy + n * ys.n + d * ys.spatial[0] + h * ys.spatial[1], ys, channels, g.out[2]);
              for (int64_t i = inside[0].begin[d]; i < inside[0].begin[d + 1]; ++i) {
                for (int64_t j = inside[1].begin[h]; j < inside[1].begin[h + 1]; ++j) {
                  const Reach &a = inside[0].reaches[i], &b = inside[1].reaches[j];
                  x.read(image + n * xs.n + a.source * xs.spatial[0] + b.source * xs.spatial[1], xs,
                         channels, g.in[2]);
                  Acc* tap =
                      sums.data() + (a.tap * g.window[1].kernel + b.tap) * last.kernel * kBlock;
                  for (int64_t t = 0; t < last.kernel; ++t, tap += kBlock) {
                    const Range range = last.windows_inside(t, g.in[2], g.out[2]);
                    each_run<Acc>(channels, [&]<int kVectors>(int64_t c) {
                      Run<Acc, kVectors> sum(tap + c);
                      for (int64_t w = range.begin; w < range.end; ++w) {
                        sum.add(x.at(last.start(w) + t * last.dilation) + c, y.at(w) + c);
                      }
                      sum.save(tap + c);
                    });
                  }
                }
              }
            }
            for (size_t i = 0; i < sums.size(); ++i) total[i] += sums[i];
          }
          T* to = job.p.w.template as<T>() + first * job.p.w_strides.group;
          for (int64_t t = 0; t < g.taps(); ++t) {
            const int64_t t01 = t / last.kernel;
            T* tap = to + job.tap_offset(t01 / g.window[1].kernel, t01 % g.window[1].kernel,
                                         t % last.kernel);
            for (int64_t c = 0; c < channels; ++c) {
              T& out = tap[c * job.p.w_strides.group];
              const Acc before = job.p.accumulate ? static_cast<Acc>(out) : Acc(0);
              out = static_cast<T>(before + total[t * kBlock + c]);
            }
          }
        }
      });
}

// Channels closer together than positions, and one of them per group.
bool channels_adjacent(const ConvProblem& p) {
  const auto adjacent = [](const ConvImageStrides& s) {
    return std::abs(s.c) < std::abs(s.spatial[2]);
  };
  return p.geometry.c == 1 && p.geometry.k == 1 && adjacent(p.x_strides) && adjacent(p.y_strides);
}

}  // namespace

void conv_direct(const ConvProblem& p, bool inverse) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    const Job<T> job{.p = p, .inverse = inverse};
    channels_adjacent(p) ? by_channels(job) : by_planes(job);
  });
}

void conv_direct_backward_weight(const ConvProblem& p) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    const Job<T> job{.p = p, .inverse = false};
    channels_adjacent(p) ? weight_by_channels(job) : weight_by_planes(job);
  });
}

const char* conv_direct_declines(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  if (g.groups == 1) return "there is one group";
  if (g.c > 8 || g.k > 8) return "a group has more than 8 channels";
  return nullptr;
}

}  // namespace dlkern::cpu
