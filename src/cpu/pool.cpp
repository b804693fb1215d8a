// Pooling on the CPU.
//
// Results are computed in spans along the axis that is contiguous in memory: a row of windows, or,
// where the channels come last, the channels of one window. The taps of a window are taken one after
// the other, each for the whole span, so that the inner loop is a vector operation over results.
// Rows of x that are not float or double already are converted once per span and row.
// The gradient of max pooling adds into one plane (or a few channels' planes) after the other; that
// of average pooling gathers, in the same spans as the forward.
#include "ops/pool.h"

#include <limits>
#include <vector>

#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/spans.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kGrainElements = 32768;  // work worth a thread
constexpr int64_t kChannels = 256;         // of a span at most

// A span of results (or of positions of dx): along W, or along C from `c` on.
struct Place {
  int64_t n, c, d, h, w;
  int64_t count;
};

int64_t offset_of(const Tensor& t, const Place& p) {
  return p.n * t.strides[0] + p.c * t.strides[1] + p.d * t.strides[2] + p.h * t.strides[3] +
         p.w * t.strides[4];
}

// f(begin, end, place_of) in parallel over all spans of a volume [N, C, extent...].
template <class F>
void for_each_place(const PoolShape& s, const int64_t (&extent)[kMaxSpatial], bool channels,
                    F&& f) {
  const int64_t inner = channels ? extent[2] : 1;  // spans per row
  const int64_t tiles = channels ? ceil_div(s.channels, kChannels) : s.channels;
  const int64_t spans = s.batch * tiles * extent[0] * extent[1] * inner;
  const int64_t length = channels ? std::min(s.channels, kChannels) : extent[2];
  const auto place_of = [=, &s](int64_t i) {
    Place p;
    p.w = i % inner, i /= inner;
    p.h = i % extent[1], i /= extent[1];
    p.d = i % extent[0], i /= extent[0];
    p.c = i % tiles * (channels ? kChannels : 1), p.n = i / tiles;
    p.count = channels ? std::min(kChannels, s.channels - p.c) : extent[2];
    return p;
  };
  parallel_for(spans, kGrainElements / (length * std::min<int64_t>(s.taps(), 64)),
               [&](int64_t begin, int64_t end) { f(begin, end, place_of); });
}

// f(step) with the step as a constant where it is a common one, so that the loop is vectorised.
template <class F>
void with_step(int64_t step, F&& f) {
  if (step == 1) {
    f(std::integral_constant<int64_t, 1>{});
  } else if (step == 2) {
    f(std::integral_constant<int64_t, 2>{});
  } else {
    f(step);
  }
}

// What is kept for a span of windows while their taps go by; padding is a tap of value kPadding.
template <class Acc, bool kWithTap>
struct Maximum {
  using Tap = std::conditional_t<sizeof(Acc) == 4, int32_t, int64_t>;  // as wide as the values
  static constexpr Acc kPadding = -std::numeric_limits<Acc>::infinity();
  std::vector<Acc> value;
  std::vector<Tap> tap;  // the first maximum, or the first NaN

  explicit Maximum(int64_t n) : value(n), tap(kWithTap ? n : 0) {}
  // Tap number first + more[i] is the first one of window i that lies inside x.
  void begin(int64_t n, int64_t first, const int64_t* more) {
    std::fill_n(value.begin(), n, kPadding);
    if constexpr (kWithTap) {
      for (int64_t i = 0; i < n; ++i) tap[i] = static_cast<Tap>(first + (more ? more[i] : 0));
    }
  }
  void take(int64_t n, const Acc* v, int64_t step, int64_t number) {
    Acc* m = value.data();
    Tap* t = tap.data();
    const Tap here = static_cast<Tap>(number);
    with_step(step, [=](auto step) {
      DLK_SIMD for (int64_t i = 0; i < n; ++i) {
        const Acc x = v[i * step], best = m[i];
        if constexpr (kWithTap) {
          // By a mask, since the compiler makes a branch of a condition.
          const Tap mask = -static_cast<Tap>((x > best) | ((x != x) & (best == best)));
          t[i] ^= (t[i] ^ here) & mask;
        }
        m[i] = (x > best) | (x != x) ? x : best;
      }
    });
  }
};
template <class Acc>
struct Total {
  static constexpr Acc kPadding = 0;
  std::vector<Acc> value;

  explicit Total(int64_t n) : value(n) {}
  void begin(int64_t n, int64_t, const int64_t*) { std::fill_n(value.begin(), n, Acc(0)); }
  void take(int64_t n, const Acc* v, int64_t step, int64_t /*number*/) {
    Acc* sum = value.data();
    with_step(step,
              [=](auto step) { DLK_SIMD for (int64_t i = 0; i < n; ++i) sum[i] += v[i * step]; });
  }
};

// Positions along W, padding included, that a row of windows reads.
int64_t padded_width(const PoolShape& s) {
  return (s.out[2] - 1) * s.window[2].stride + s.window[2].span();
}

// A row of x with its padding, in `buffer` (of padded_width) unless it can be read where it is.
template <class T, class Acc>
const Acc* padded_row(const PoolShape& s, const T* row, int64_t stride, Acc padding, Acc* buffer) {
  const int64_t width = padded_width(s), before = s.window[2].pad_begin;
  const int64_t n = std::min(s.in[2], width - before);
  if (before == 0 && n == width) return read_span(row, stride, n, buffer);
  std::fill_n(buffer, before, padding);
  load_span(row, stride, n, buffer + before);
  std::fill(buffer + before + n, buffer + width, padding);
  return buffer;
}

// Puts all windows through Op; finish(op, place) stores a span of results.
template <class T, class Op, class Finish>
void pool(const PoolShape& s, const Tensor& x, bool channels, Finish&& finish) {
  using Acc = Accumulator<T>;
  const Window &wd = s.window[0], &wh = s.window[1], &ww = s.window[2];
  std::vector<int64_t> first_taps(s.out[2]);
  for (int64_t w = 0; w < s.out[2]; ++w) first_taps[w] = ww.taps_inside(w, s.in[2]).begin;
  for_each_place(s, s.out, channels, [&](int64_t begin, int64_t end, const auto& place_of) {
    Op op(channels ? kChannels : s.out[2]);
    std::vector<Acc> buffer(channels ? kChannels : padded_width(s));
    for (int64_t i = begin; i < end; ++i) {
      const Place p = place_of(i);
      const T* image = x.as<T>() + p.n * x.strides[0] + p.c * x.strides[1];
      const Range td = wd.taps_inside(p.d, s.in[0]), th = wh.taps_inside(p.h, s.in[1]);
      const int64_t first = (td.begin * wh.kernel + th.begin) * ww.kernel;
      op.begin(p.count, first + (channels ? first_taps[p.w] : 0),
               channels ? nullptr : first_taps.data());
      for (int64_t kd = td.begin; kd < td.end; ++kd) {
        for (int64_t kh = th.begin; kh < th.end; ++kh) {
          const T* row = image + (wd.start(p.d) + kd * wd.dilation) * x.strides[2] +
                         (wh.start(p.h) + kh * wh.dilation) * x.strides[3];
          const int64_t number = (kd * wh.kernel + kh) * ww.kernel;
          if (channels) {
            const Range tw = ww.taps_inside(p.w, s.in[2]);
            for (int64_t kw = tw.begin; kw < tw.end; ++kw) {
              const T* pixel = row + (ww.start(p.w) + kw * ww.dilation) * x.strides[4];
              const Acc* v = read_span(pixel, x.strides[1], p.count, buffer.data());
              op.take(p.count, v, 1, number + kw);
            }
          } else {
            const Acc* v = padded_row(s, row, x.strides[4], Op::kPadding, buffer.data());
            for (int64_t kw = 0; kw < ww.kernel; ++kw) {
              op.take(p.count, v + kw * ww.dilation, ww.stride, number + kw);
            }
          }
        }
      }
      finish(op, p);
    }
  });
}

// Flat position in x's plane of each tap, counted from the window's first.
std::vector<int64_t> tap_positions(const PoolShape& s) {
  const Window &wd = s.window[0], &wh = s.window[1], &ww = s.window[2];
  std::vector<int64_t> positions;
  positions.reserve(s.taps());
  for (int64_t kd = 0; kd < wd.kernel; ++kd) {
    for (int64_t kh = 0; kh < wh.kernel; ++kh) {
      for (int64_t kw = 0; kw < ww.kernel; ++kw) {
        positions.push_back(((kd * wd.dilation) * s.in[1] + kh * wh.dilation) * s.in[2] +
                            kw * ww.dilation);
      }
    }
  }
  return positions;
}

template <class T>
void max_forward(const MaxPoolForward& p) {
  using Acc = Accumulator<T>;
  const PoolShape& s = p.shape;
  const bool channels = is_channels_last(p.x);
  const int axis = channels ? 1 : 4;
  const auto store = [&](const auto& op, const Place& at) {
    store_span(op.value.data(), p.y.as<T>() + offset_of(p.y, at), p.y.strides[axis], at.count);
  };
  if (!p.indices) return pool<T, Maximum<Acc, false>>(s, p.x, channels, store);
  dispatch_index(p.indices.dtype, [&]<class Index>() {
    const std::vector<int64_t> positions = tap_positions(s);
    pool<T, Maximum<Acc, true>>(s, p.x, channels, [&](const auto& op, const Place& at) {
      store(op, at);
      const int64_t step = channels ? 0 : s.window[2].stride;
      int64_t first = (s.window[0].start(at.d) * s.in[1] + s.window[1].start(at.h)) * s.in[2] +
                      s.window[2].start(at.w);
      Index* index = p.indices.as<Index>() + offset_of(p.indices, at);
      for (int64_t i = 0; i < at.count; ++i, first += step) {
        index[i * p.indices.strides[axis]] = static_cast<Index>(first + positions[op.tap[i]]);
      }
    });
  });
}

// Divisors of a row of windows, without the factor of d and h.
template <class Acc>
std::vector<Acc> column_divisors(const PoolShape& s, const PoolDivisor& divisor) {
  std::vector<Acc> columns(s.out[2]);
  for (int64_t w = 0; w < s.out[2]; ++w) columns[w] = static_cast<Acc>(divisor.columns(s, w));
  return columns;
}

template <class T>
void avg_forward(const AvgPoolForward& p) {
  using Acc = Accumulator<T>;
  const bool channels = is_channels_last(p.x);
  const std::vector<Acc> columns = column_divisors<Acc>(p.shape, p.divisor);
  pool<T, Total<Acc>>(p.shape, p.x, channels, [&](Total<Acc>& op, const Place& at) {
    const Acc rows = static_cast<Acc>(p.divisor.rows(p.shape, at.d, at.h));
    Acc* v = op.value.data();
    if (channels) {
      const Acc divisor = rows * columns[at.w];
      DLK_SIMD for (int64_t i = 0; i < at.count; ++i) v[i] /= divisor;
    } else {
      DLK_SIMD for (int64_t i = 0; i < at.count; ++i) v[i] /= rows * columns[i];
    }
    store_span(v, p.y.as<T>() + offset_of(p.y, at), p.y.strides[channels ? 1 : 4], at.count);
  });
}

// Where the gradients of some channels of one image are added up: dx itself where it can be, else a
// buffer [plane][width] that is stored at the end.
template <class T>
class Planes {
  using Acc = Accumulator<T>;

 public:
  Planes(const Tensor& dx, int64_t plane, int64_t width)
      : dx_(dx),
        plane_(plane),
        width_(width),
        direct_(is_direct(dx)),
        buffer_(direct_ ? 0 : plane * width) {}

  Acc* sums;
  int64_t pixel_stride, channel_stride;

  void begin(const Place& at, int64_t channels) {
    if constexpr (std::is_same_v<T, Acc>) {
      if (direct_) {
        sums = dx_.as<T>() + offset_of(dx_, at);
        pixel_stride = dx_.strides[4], channel_stride = dx_.strides[1];
        if (pixel_stride == 1) {
          for (int64_t c = 0; c < channels; ++c)
            std::fill_n(sums + c * channel_stride, plane_, T(0));
        } else {
          for (int64_t i = 0; i < plane_; ++i) std::fill_n(sums + i * pixel_stride, channels, T(0));
        }
        return;
      }
    }
    sums = buffer_.data();
    pixel_stride = width_, channel_stride = 1;
    std::fill(buffer_.begin(), buffer_.end(), Acc(0));
  }
  void finish(Place at, int64_t channels) {
    if (direct_) return;
    const Acc* from = buffer_.data();
    for (at.d = 0; at.d < dx_.shape[2]; ++at.d) {
      for (at.h = 0; at.h < dx_.shape[3]; ++at.h) {
        T* to = dx_.as<T>() + offset_of(dx_, at);
        if (width_ == 1) {
          store_span(from, to, dx_.strides[4], dx_.shape[4]);
          from += dx_.shape[4];
          continue;
        }
        for (int64_t w = 0; w < dx_.shape[4]; ++w, from += width_, to += dx_.strides[4]) {
          store_span(from, to, dx_.strides[1], channels);
        }
      }
    }
  }

  // dx holds the type that is summed in, and its plane can be walked with one stride.
  static bool is_direct(const Tensor& dx) {
    return std::is_same_v<T, Acc> && (dx.strides[4] == 1 || dx.strides[1] == 1) &&
           (dx.shape[3] == 1 || dx.strides[3] == dx.strides[4] * dx.shape[4]) &&
           (dx.shape[2] == 1 || dx.strides[2] == dx.strides[4] * dx.shape[4] * dx.shape[3]);
  }

 private:
  const Tensor& dx_;
  int64_t plane_, width_;
  bool direct_;
  std::vector<Acc> buffer_;
};

template <class T, class Index>
void max_backward(const MaxPoolBackward& p) {
  const PoolShape& s = p.shape;
  const Tensor &dy = p.dy, &indices = p.indices;
  const int64_t plane = s.in_plane();
  const int64_t width = !is_channels_last(p.dx) ? 1 : Planes<T>::is_direct(p.dx) ? 64 : 16;
  const int64_t tiles = ceil_div(s.channels, width);
  const int64_t grain = kGrainElements / ((plane + s.out_plane()) * width);
  parallel_for(s.batch * tiles, grain, [&](int64_t begin, int64_t end) {
    Planes<T> to(p.dx, plane, width);
    for (int64_t i = begin; i < end; ++i) {
      Place at{i / tiles, i % tiles * width, 0, 0, 0, 0};
      const int64_t channels = std::min(width, s.channels - at.c);
      to.begin(at, channels);
      for (Place o = at; o.d < s.out[0]; ++o.d) {
        for (o.h = 0; o.h < s.out[1]; ++o.h) {
          const T* g = dy.as<T>() + offset_of(dy, o);
          const Index* index = indices.as<Index>() + offset_of(indices, o);
          for (int64_t w = 0; w < s.out[2]; ++w, g += dy.strides[4], index += indices.strides[4]) {
            for (int64_t c = 0; c < channels; ++c) {
              const int64_t position = index[c * indices.strides[1]];
              if (position < 0 || position >= plane) continue;  // not of the forward's making
              to.sums[position * to.pixel_stride + c * to.channel_stride] +=
                  static_cast<Accumulator<T>>(g[c * dy.strides[1]]);
            }
          }
        }
      }
      to.finish(at, channels);
    }
  });
}

template <class T>
void avg_backward(const AvgPoolBackward& p) {
  using Acc = Accumulator<T>;
  const PoolShape& s = p.shape;
  const Tensor &dy = p.dy, &dx = p.dx;
  const bool channels = is_channels_last(dx);
  const Window &wd = s.window[0], &wh = s.window[1], &ww = s.window[2];
  const std::vector<Acc> columns = column_divisors<Acc>(s, p.divisor);
  for_each_place(s, s.in, channels, [&](int64_t begin, int64_t end, const auto& place_of) {
    // A row of sums includes the padding, so that every tap of every window has its place.
    const int64_t before = channels ? 0 : ww.pad_begin;
    std::vector<Acc> sums(channels ? kChannels : std::max(padded_width(s), before + s.in[2]));
    std::vector<Acc> span(channels ? kChannels : s.out[2]);
    Acc *sum = sums.data(), *g = span.data();
    for (int64_t i = begin; i < end; ++i) {
      const Place at = place_of(i);
      std::fill(sums.begin(), sums.end(), Acc(0));
      const Range od = wd.windows_over(at.d, s.out[0]), oh = wh.windows_over(at.h, s.out[1]);
      for (int64_t d = od.begin; d < od.end; ++d) {
        for (int64_t h = oh.begin; h < oh.end; ++h) {
          const Acc rows = static_cast<Acc>(p.divisor.rows(s, d, h));
          if (channels) {
            const Range ow = ww.windows_over(at.w, s.out[2]);
            for (int64_t w = ow.begin; w < ow.end; ++w) {
              const T* from = dy.as<T>() + offset_of(dy, {at.n, at.c, d, h, w, 0});
              const Acc* v = read_span(from, dy.strides[1], at.count, g);
              const Acc divisor = rows * columns[w];
              DLK_SIMD for (int64_t c = 0; c < at.count; ++c) sum[c] += v[c] / divisor;
            }
            continue;
          }
          const T* from = dy.as<T>() + offset_of(dy, {at.n, at.c, d, h, 0, 0});
          load_span(from, dy.strides[4], s.out[2], g);
          DLK_SIMD for (int64_t w = 0; w < s.out[2]; ++w) g[w] /= rows * columns[w];
          for (int64_t kw = 0; kw < ww.kernel; ++kw) {
            with_step(ww.stride, [=, &s](auto step) {
              DLK_SIMD for (int64_t w = 0; w < s.out[2]; ++w) sum[w * step + kw] += g[w];
            });
          }
        }
      }
      store_span(sum + before, dx.as<T>() + offset_of(dx, at), dx.strides[channels ? 1 : 4],
                 at.count);
    }
  });
}

constexpr Impl<MaxPoolForward> kMaxForward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const MaxPoolForward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { max_forward<T>(p); });
     }},
};
constexpr Impl<MaxPoolBackward> kMaxBackward[] = {
    {"cpu_planes", supports_all, nullptr,
     [](const MaxPoolBackward& p, const Launch&) {
       dispatch_floating(p.dy.dtype, [&]<class T>() {
         dispatch_index(p.indices.dtype, [&]<class Index>() { max_backward<T, Index>(p); });
       });
     }},
};
constexpr Impl<AvgPoolForward> kAvgForward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const AvgPoolForward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { avg_forward<T>(p); });
     }},
};
constexpr Impl<AvgPoolBackward> kAvgBackward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const AvgPoolBackward& p, const Launch&) {
       dispatch_floating(p.dy.dtype, [&]<class T>() { avg_backward<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<MaxPoolForward> cpu_impls<MaxPoolForward>() {
  return kMaxForward;
}
template <>
ImplList<MaxPoolBackward> cpu_impls<MaxPoolBackward>() {
  return kMaxBackward;
}
template <>
ImplList<AvgPoolForward> cpu_impls<AvgPoolForward>() {
  return kAvgForward;
}
template <>
ImplList<AvgPoolBackward> cpu_impls<AvgPoolBackward>() {
  return kAvgBackward;
}

}  // namespace dlkern
