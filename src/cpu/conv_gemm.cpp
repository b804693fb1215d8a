// Convolution as matrix products, for any geometry, strides and dtype.
//
//   forward          Y[k, p]   = W[k, r] X[r, p]      X: the patch matrix, r = (channel, tap)
//   backward_input   X[r, p]   = W[k, r]^T Y[k, p]    added to the image where patches overlap
//   backward_weight  W[k, r]   = Y[k, p] X[r, p]^T
//
// Threads share panels of positions (forward), channels and images (backward_input), weights and
// fixed parts of the batch (backward_weight), so that nothing is written by two of them. The cuts
// depend on the extents alone, and in the first two not on the batch: so do an image's bits. 16-bit
// data pass through float32 panels.
#include "cpu/conv.h"
#include "cpu/conv_epilogue.h"
#include "cpu/conv_weights.h"
#include "cpu/prims/blas.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"

namespace dlkern::cpu {
namespace {

constexpr int64_t kTasks = 16;  // enough parts of a whole problem

// c[channel, position] of a panel starts as the bias of `channels` channels from `first` on, or 0.
template <class T, class Acc>
void fill_bias(const Tensor& bias, int64_t first, int64_t channels, Form form, int64_t columns,
               Matrix<Acc> c) {
  const bool channel_major = form == Form::kChannelMajor;
  const int64_t stride = bias ? bias.strides[0] : 0;
  const T* values = bias ? bias.as<T>() + first * stride : nullptr;
  for (int64_t row = 0; row < (channel_major ? channels : columns); ++row) {
    Acc* to = c.data + row * c.ld;
    if (!values) {
      std::fill_n(to, channel_major ? columns : channels, Acc(0));
    } else if (channel_major) {
      std::fill_n(to, columns, static_cast<Acc>(values[row * stride]));
    } else {
      load_span(values, stride, channels, to);
    }
  }
}

// What follows the sums c[channel, position] of a panel, of `channels` channels from `first` on.
template <class T, class Acc>
void finish_panel(const ConvFinish<T>& finish, const Panel& panel, int64_t first, int64_t channels,
                  Form form, Matrix<Acc> c) {
  for (const Segment& seg : panel.segments) {
    if (form == Form::kChannelMajor) {
      for (int64_t k = 0; k < channels; ++k) {
        finish.template pixels<false>(c.data + k * c.ld + seg.column, seg.length, seg.n, first + k,
                                      {seg.o[0], seg.o[1], seg.begin});
      }
    } else {
      for (int64_t i = 0; i < seg.length; ++i) {
        finish.template pixels<true>(c.data + (seg.column + i) * c.ld, channels, seg.n, first,
                                     {seg.o[0], seg.o[1], seg.begin + i});
      }
    }
  }
}

template <class T>
void forward(const ConvProblem& p) {
  using Acc = Accumulator<T>;
  const ConvGeometry& g = p.geometry;
  const Form form = form_of(p);
  const bool channel_major = form == Form::kChannelMajor;
  const Weights<T> weights(p, form, g.c);
  const Patches<T> x(g, form, p.x.as<T>(), p.x_strides);
  Patches<T> y(pointwise(g), form, p.y.as<T>(), p.y_strides);

  const auto finish = conv_finish_of<T>(p, g.groups * g.k);

  const ForwardCuts cuts(g, x.outer(), x.inner());
  const auto& [inner, outer, units, rows, panels, parts, part, columns] = cuts;
  parallel_for(cuts.tasks(g), cuts.grain(), [&](int64_t begin, int64_t end) {
    std::vector<Acc> patches(rows * columns), result(part * columns);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task % g.groups, first = task / g.groups % parts * part;
      const Panel panel = panels.panel(g, task / g.groups / parts);
      const int64_t n = panel.columns(), k = std::min(part, g.k - first);
      if (k <= 0) continue;
      const auto direct = y.view(panel, group * g.k + first, k);
      const Matrix<Acc> c = direct ? *direct : Matrix<Acc>{result.data(), channel_major ? n : k};
      fill_bias<T>(finish ? Tensor{} : p.bias, group * g.k + first, k, form, n, c);
      for (int64_t unit = 0; unit < outer; unit += units) {
        const int64_t last = std::min(unit + units, outer);
        const int64_t r = (last - unit) * inner;
        const Matrix<const Acc> b = x.read(panel, group, unit, last, patches.data());
        const Matrix<const Acc> w = weights.block(group, 0);
        const Acc* a = w.data + first * w.ld + unit * inner;
        if (channel_major) {
          gemm(false, false, k, n, r, Acc(1), a, w.ld, b.data, b.ld, Acc(1), c.data, c.ld);
        } else {
          gemm(false, true, n, k, r, Acc(1), b.data, b.ld, a, w.ld, Acc(1), c.data, c.ld);
        }
      }
      if (finish) finish_panel(*finish, panel, group * g.k + first, k, form, c);
      if (!direct) y.write(panel, group * g.k + first, k, {c.data, c.ld});
    }
  });
}

// The part of dx that one task computes, in the accumulation type: dx itself or a contiguous copy.
template <class T>
class Gradient {
 public:
  using Acc = Accumulator<T>;
  static constexpr bool kDirect = std::is_same_v<T, Acc>;

  // dx: the first element of the part; bias: of its first channel, or nullptr.
  Gradient(const ConvGeometry& g, Form form, T* dx, const ConvImageStrides& dx_strides,
           const T* bias, int64_t bias_stride)
      : g_(g), form_(form), dx_(dx), dx_strides_(dx_strides), span_(span()) {
    const int64_t pixels = g.in_count();
    if constexpr (kDirect) {
      data_ = dx;
      strides_ = dx_strides;
    } else {
      buffer_.resize(g.batch * g.c * pixels);
      data_ = buffer_.data();
      const int64_t step = channel_major() ? 1 : g.c;
      strides_ = {g.c * pixels,
                  channel_major() ? pixels : 1,
                  {step * g.in[1] * g.in[2], step * g.in[2], step}};
    }
    each_span([&](int64_t offset, int64_t, int64_t c, const int64_t(&)[3]) {
      Acc* to = data_ + offset;
      for (int64_t i = 0; i < span(); ++i) {
        const int64_t channel = channel_major() ? c : i;
        to[i * step(strides_)] = bias ? static_cast<Acc>(bias[channel * bias_stride]) : Acc(0);
      }
    });
  }

  Patches<Acc> patches() { return {g_, form_, data_, strides_}; }

  // What follows the sums, for channels from `channel` on of an image.
  void finish(const ConvFinish<T>& finish, int64_t image, int64_t channel) {
    each_span([&](int64_t at, int64_t, int64_t c, const int64_t(&o)[3]) {
      Acc* v = data_ + at;
      const int64_t stride = step(strides_);
      if (stride != 1) load_span(v, stride, span(), span_.data());
      Acc* const in_place = stride == 1 ? v : span_.data();
      if (channel_major()) {
        finish.template pixels<false>(in_place, span(), image, channel + c, o);
      } else {
        finish.template pixels<true>(in_place, span(), image, channel + c, o);
      }
      if (stride != 1) store_span(in_place, v, stride, span());
    });
  }

  void store() {
    if constexpr (!kDirect) {
      each_span([&](int64_t from, int64_t to, int64_t, const int64_t(&)[3]) {
        store_span(data_ + from, dx_ + to, step(dx_strides_), span());
      });
    }
  }

 private:
  bool channel_major() const { return form_ == Form::kChannelMajor; }
  // Spans run along the last spatial dimension, or along the channels.
  int64_t span() const { return channel_major() ? g_.in[2] : g_.c; }
  int64_t step(const ConvImageStrides& s) const { return channel_major() ? s.spatial[2] : s.c; }

  // f(offset in data_, offset in dx_, first channel, first pixel) for all spans.
  template <class F>
  void each_span(F&& f) const {
    const auto offset = [](const ConvImageStrides& s, int64_t n, int64_t c, int64_t d, int64_t h,
                           int64_t w) {
      return n * s.n + c * s.c + d * s.spatial[0] + h * s.spatial[1] + w * s.spatial[2];
    };
    for (int64_t n = 0; n < g_.batch; ++n) {
      for (int64_t c = 0; c < (channel_major() ? g_.c : 1); ++c) {
        for (int64_t d = 0; d < g_.in[0]; ++d) {
          for (int64_t h = 0; h < g_.in[1]; ++h) {
            for (int64_t w = 0; w < (channel_major() ? 1 : g_.in[2]); ++w) {
              f(offset(strides_, n, c, d, h, w), offset(dx_strides_, n, c, d, h, w), c, {d, h, w});
            }
          }
        }
      }
    }
  }

  ConvGeometry g_;
  Form form_;
  T* dx_;
  ConvImageStrides dx_strides_;
  Acc* data_;
  ConvImageStrides strides_;
  std::vector<Acc> buffer_, span_;
};

template <class T>
void backward_input(const ConvProblem& p) {
  using Acc = Accumulator<T>;
  const ConvGeometry& g = p.geometry;
  const Form form = form_of(p);
  const bool channel_major = form == Form::kChannelMajor;
  const int64_t taps = g.taps();
  // A task: an image, one group, a chunk of its channels.
  int64_t chunks = ceil_div(g.c * taps, 512);
  if (g.groups * chunks < kTasksPerImage) {
    chunks = std::clamp(ceil_div(g.c * taps, 144), chunks, kTasksPerImage);
  }
  const int64_t chunk = ceil_div(g.c, chunks);
  chunks = ceil_div(g.c, chunk);
  const Weights<T> weights(p, form, chunk);
  const auto finish = conv_finish_of<T>(p, g.groups * g.c);

  const int64_t rows = chunk * taps;
  const PanelPlan panels(g, std::min<int64_t>(panel_columns(rows), 384), false);
  const int64_t columns = panels.max_columns();
  const int64_t work = g.out_count() * g.k * rows;
  parallel_for(g.batch * g.groups * chunks, conv_grain(work), [&](int64_t begin, int64_t end) {
    std::vector<Acc> product(rows * columns), buffer(g.k * columns);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % chunks * chunk, group = task / chunks % g.groups;
      const int64_t image = task / chunks / g.groups;
      ConvGeometry part = g;
      part.batch = 1;
      part.c = std::min(chunk, g.c - first);
      const int64_t channel = group * g.c + first;
      const int64_t bias_stride = p.bias ? p.bias.strides[0] : 0;
      Gradient<T> gradient(
          part, form, p.x.as<T>() + image * p.x_strides.n + channel * p.x_strides.c, p.x_strides,
          p.bias && !finish ? p.bias.as<T>() + channel * bias_stride : nullptr, bias_stride);
      Patches<Acc> dx = gradient.patches();
      const Patches<T> y(pointwise(part), form, p.y.as<T>() + image * p.y_strides.n, p.y_strides);
      const Matrix<const Acc> w = weights.block(group, first);
      for (int64_t at = 0; at < g.out_count(); at += panels.positions_per_panel) {
        const Panel panel(part, 0, 1, at, std::min(at + panels.positions_per_panel, g.out_count()));
        const Matrix<const Acc> dy = y.read(panel, group, 0, y.outer(), buffer.data());
        const int64_t n = panel.columns(), r = part.c * taps;
        const Matrix<Acc> x{product.data(), channel_major ? n : r};
        if (channel_major) {
          gemm(true, false, r, n, g.k, Acc(1), w.data, w.ld, dy.data, dy.ld, Acc(0), x.data, x.ld);
        } else {
          gemm(false, false, n, r, g.k, Acc(1), dy.data, dy.ld, w.data, w.ld, Acc(0), x.data, x.ld);
        }
        dx.add(panel, x);
      }
      if (finish) gradient.finish(*finish, image, channel);
      gradient.store();
    }
  });
}

// Writes sums[k, r], r ordered as the form has it, to the weights' gradient.
template <class T, class Acc>
void store_weights(const ConvProblem& p, Form form, int64_t splits, const std::vector<Acc>& sums) {
  const ConvGeometry& g = p.geometry;
  const ConvWeightStrides& s = p.w_strides;
  const int64_t taps = g.taps(), r = g.c * taps, rows = g.groups * g.k;
  const bool channel_major = form == Form::kChannelMajor;
  parallel_for(rows, 1 + 4096 / r, [&](int64_t begin, int64_t end) {
    std::vector<Acc> row(r);
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(sums.data() + i * r, r, row.data());
      for (int64_t split = 1; split < splits; ++split) {
        const Acc* more = sums.data() + (split * rows + i) * r;
        for (int64_t j = 0; j < r; ++j) row[j] += more[j];
      }
      T* to = p.w.as<T>() + i / g.k * s.group + i % g.k * s.k;
      for (int64_t t = 0; t < taps; ++t) {
        T* tap = to + tap_offset(g, s, t);
        for (int64_t c = 0; c < g.c; ++c) {
          const Acc v = row[channel_major ? c * taps + t : t * g.c + c];
          T& out = tap[c * s.c];
          out = static_cast<T>(p.accumulate ? static_cast<Acc>(out) + v : v);
        }
      }
    }
  });
}

template <class T>
void backward_weight(const ConvProblem& p) {
  using Acc = Accumulator<T>;
  const ConvGeometry& g = p.geometry;
  const Form form = form_of(p);
  const bool channel_major = form == Form::kChannelMajor;
  const Patches<T> x(g, form, p.x.as<T>(), p.x_strides);
  const Patches<T> y(pointwise(g), form, p.y.as<T>(), p.y_strides);

  // A task: one group, a chunk of the patch rows, a fixed part of the panels.
  const int64_t inner = x.inner(), r = x.outer() * inner;
  const int64_t units = std::clamp<int64_t>(kPanelRows / inner, 1, x.outer());
  const int64_t chunks = ceil_div(x.outer(), units), rows = units * inner;
  const PanelPlan panels(g, panel_columns(rows), true);
  const int64_t splits =
      std::clamp<int64_t>(kTasks / (g.groups * chunks), 1, std::max<int64_t>(panels.count, 1));
  std::vector<Acc> sums(splits * g.groups * g.k * r);

  const int64_t columns = panels.max_columns();
  const int64_t work = g.k * rows * columns * ceil_div(panels.count, splits);
  parallel_for(splits * g.groups * chunks, conv_grain(work), [&](int64_t begin, int64_t end) {
    std::vector<Acc> patches(rows * columns), gradient(g.k * columns);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t unit = task % chunks * units, group = task / chunks % g.groups;
      const int64_t split = task / chunks / g.groups;
      const int64_t last = std::min(unit + units, x.outer()), m = (last - unit) * inner;
      Acc* sum = sums.data() + (split * g.groups + group) * g.k * r + unit * inner;
      for (int64_t i = panels.count * split / splits; i < panels.count * (split + 1) / splits;
           ++i) {
        const Panel panel = panels.panel(g, i);
        const Matrix<const Acc> a = y.read(panel, group, 0, y.outer(), gradient.data());
        const Matrix<const Acc> b = x.read(panel, group, unit, last, patches.data());
        gemm(!channel_major, channel_major, g.k, m, panel.columns(), Acc(1), a.data, a.ld, b.data,
             b.ld, Acc(1), sum, r);
      }
    }
  });
  store_weights<T>(p, form, splits, sums);
}

// Rows are summed in the accumulation type, rows together in float64.
template <class T>
void bias_gradient(const ConvProblem& p) {
  using Acc = Accumulator<T>;
  const ConvGeometry& g = p.geometry;
  const ConvImageStrides& s = p.transposed ? p.x_strides : p.y_strides;
  const Tensor& gradient = p.transposed ? p.x : p.y;
  const int64_t* extent = p.transposed ? g.in : g.out;
  const int64_t channels = g.groups * (p.transposed ? g.c : g.k), width = extent[2];
  const int64_t rows = g.batch * extent[0] * extent[1];
  const bool along_channels = channels > 1 && std::abs(s.c) < std::abs(s.spatial[2]);
  const int64_t block = along_channels ? 64 : 1;
  parallel_for(ceil_div(channels, block), 1 + 16384 / (block * rows * width + 1),
               [&](int64_t begin, int64_t end) {
                 std::vector<Acc> buffer(std::max(width, block)), sum(block);
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t first = i * block, count = std::min(block, channels - first);
                   std::vector<double> total(count);
                   for (int64_t row = 0; row < rows; ++row) {
                     const int64_t h = row % extent[1], d = row / extent[1] % extent[0];
                     const T* from = gradient.as<T>() + row / extent[1] / extent[0] * s.n +
                                     d * s.spatial[0] + h * s.spatial[1] + first * s.c;
                     if (!along_channels) {
                       const Acc* v = read_span(from, s.spatial[2], width, buffer.data());
                       total[0] += sum_of<Acc>(width, [&](int64_t j) { return v[j]; });
                       continue;
                     }
                     std::fill_n(sum.begin(), count, Acc(0));
                     for (int64_t w = 0; w < width; ++w) {
                       const Acc* v = read_span(from + w * s.spatial[2], s.c, count, buffer.data());
                       for (int64_t j = 0; j < count; ++j) sum[j] += v[j];
                     }
                     for (int64_t j = 0; j < count; ++j) total[j] += sum[j];
                   }
                   for (int64_t j = 0; j < count; ++j) {
                     T& out = p.bias.as<T>()[(first + j) * p.bias.strides[0]];
                     const Acc before = p.accumulate ? static_cast<Acc>(out) : Acc(0);
                     out = static_cast<T>(static_cast<Acc>(before + total[j]));
                   }
                 }
               });
}

}  // namespace

void conv_gemm_forward(const ConvProblem& p) {
  dispatch_floating(p.x.dtype, [&]<class T>() { forward<T>(p); });
}
void conv_gemm_backward_input(const ConvProblem& p) {
  dispatch_floating(p.x.dtype, [&]<class T>() { backward_input<T>(p); });
}
void conv_gemm_backward_weight(const ConvProblem& p) {
  dispatch_floating(p.x.dtype, [&]<class T>() { backward_weight<T>(p); });
}
void conv_bias_gradient(const ConvProblem& p) {
  dispatch_floating(p.x.dtype, [&]<class T>() { bias_gradient<T>(p); });
}

}  // namespace dlkern::cpu
