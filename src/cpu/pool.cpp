// Pooling on the CPU.
//
// Results are computed in spans along the axis that is contiguous in memory: a row of windows, or,
// where the channels come last, the channels of one window. The taps of a window are taken one after
// the other, each for the whole span, so that the inner loop is a vector operation over results.
// Rows of x that are not float or double already are converted once per span and row.
// The gradient of max pooling adds into one plane (or a few channels' planes) after the other; those
// of average and Lp pooling gather, in the same spans as the forward.
// Windows of adaptive pooling along W are of several sizes: they are taken one after the other.
#include "ops/pool.h"

#include <limits>
#include <vector>

#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"
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

// The spans of a volume [N, C, extent...], in order.
class Places {
 public:
  Places(const PoolShape& s, const int64_t (&extent)[kMaxSpatial], bool along_channels)
      : channels_(s.channels),
        width_(along_channels ? kChannels : 1),
        along_channels_(along_channels),
        extent_{extent[0], extent[1], along_channels ? extent[2] : 1},
        length_(extent[2]) {}

  int64_t count(int64_t batch) const {
    return batch * ceil_div(channels_, width_) * extent_[0] * extent_[1] * extent_[2];
  }
  Place operator[](int64_t i) const {
    const int64_t tiles = ceil_div(channels_, width_);
    Place p;
    p.w = i % extent_[2], i /= extent_[2];
    p.h = i % extent_[1], i /= extent_[1];
    p.d = i % extent_[0], i /= extent_[0];
    p.c = i % tiles * width_, p.n = i / tiles;
    set_count(p);
    return p;
  }
  // To the one behind p, without divisions.
  void next(Place& p) const {
    if (++p.w < extent_[2]) return;
    p.w = 0;
    if (++p.h < extent_[1]) return;
    p.h = 0;
    if (++p.d < extent_[0]) return;
    p.d = 0;
    p.c += width_;
    if (p.c >= channels_) p.c = 0, ++p.n;
    set_count(p);
  }

 private:
  void set_count(Place& p) const {
    p.count = along_channels_ ? std::min(kChannels, channels_ - p.c) : length_;
  }

  int64_t channels_, width_;
  bool along_channels_;
  int64_t extent_[kMaxSpatial], length_;
};

// f(places, begin, end) in parallel over all spans of a volume [N, C, extent...].
template <class F>
void for_each_place(const PoolShape& s, const int64_t (&extent)[kMaxSpatial], bool channels,
                    F&& f) {
  const Places places(s, extent, channels);
  const int64_t length = channels ? std::min(s.channels, kChannels) : extent[2];
  parallel_for(places.count(s.batch), kGrainElements / (length * std::min<int64_t>(s.taps(), 64)),
               [&](int64_t begin, int64_t end) { f(places, begin, end); });
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
  // `count` taps of window i alone.
  void take_one(int64_t i, const Acc* v, int64_t count, int64_t number) {
    for (int64_t k = 0; k < count; ++k) {
      if (!is_better<false>(v[k], value[i])) continue;
      value[i] = v[k];
      if constexpr (kWithTap) tap[i] = static_cast<Tap>(number + k);
    }
  }
};
// The sum of f(v).
template <class Acc, class F>
struct Total {
  static constexpr Acc kPadding = 0;
  std::vector<Acc> value;
  F f;

  explicit Total(int64_t n, F f_) : value(n), f(f_) {}
  void begin(int64_t n, int64_t, const int64_t*) { std::fill_n(value.begin(), n, Acc(0)); }
  void take(int64_t n, const Acc* v, int64_t step, int64_t /*number*/) {
    Acc* sum = value.data();
    with_step(step, [=, f = f](auto step) {
      DLK_SIMD for (int64_t i = 0; i < n; ++i) sum[i] += f(v[i * step]);
    });
  }
  void take_one(int64_t i, const Acc* v, int64_t count, int64_t /*number*/) {
    for (int64_t k = 0; k < count; ++k) value[i] += f(v[k]);
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

// Puts all windows through what make(n) gives for spans of at most n; finish(op, place) stores a
// span of results.
template <class T, class Make, class Finish>
void pool(const PoolShape& s, const Tensor& x, bool channels, Make&& make, Finish&& finish) {
  using Acc = Accumulator<T>;
  const Window &wd = s.window[0], &wh = s.window[1], &ww = s.window[2];
  std::vector<Range> taps(s.out[2]);  // along W, of each window
  std::vector<int64_t> first_taps(s.out[2]);
  for (int64_t w = 0; w < s.out[2]; ++w) {
    taps[w] = s.taps_inside(2, w);
    first_taps[w] = taps[w].begin;
  }
  for_each_place(s, s.out, channels, [&](const Places& places, int64_t begin, int64_t end) {
    auto op = make(channels ? kChannels : s.out[2]);
    std::vector<Acc> buffer(channels ? kChannels : s.adaptive[2] ? s.in[2] : padded_width(s));
    Place p = places[begin];
    for (int64_t i = begin; i < end; ++i, places.next(p)) {
      const T* image = x.as<T>() + p.n * x.strides[0] + p.c * x.strides[1];
      const Range td = s.taps_inside(0, p.d), th = s.taps_inside(1, p.h);
      const int64_t first = (td.begin * wh.kernel + th.begin) * ww.kernel;
      op.begin(p.count, first + (channels ? first_taps[p.w] : 0),
               channels ? nullptr : first_taps.data());
      for (int64_t kd = td.begin; kd < td.end; ++kd) {
        for (int64_t kh = th.begin; kh < th.end; ++kh) {
          const T* row = image + (s.origin(0, p.d) + kd * wd.dilation) * x.strides[2] +
                         (s.origin(1, p.h) + kh * wh.dilation) * x.strides[3];
          const int64_t number = (kd * wh.kernel + kh) * ww.kernel;
          if (channels) {
            for (int64_t kw = taps[p.w].begin; kw < taps[p.w].end; ++kw) {
              const T* pixel = row + (s.origin(2, p.w) + kw * ww.dilation) * x.strides[4];
              const Acc* v = read_span(pixel, x.strides[1], p.count, buffer.data());
              op.take(p.count, v, 1, number + kw);
            }
          } else if (s.adaptive[2]) {
            const Acc* v = read_span(row, x.strides[4], s.in[2], buffer.data());
            for (int64_t w = 0; w < p.count; ++w) {
              op.take_one(w, v + s.origin(2, w), taps[w].end, number);
            }
          } else {
            const Acc* v = padded_row(s, row, x.strides[4], op.kPadding, buffer.data());
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

// Flat position in x's plane of tap 0 of a window; what tap_positions() holds is counted from it.
int64_t plane_position(const PoolShape& s, const Place& o) {
  return (s.origin(0, o.d) * s.in[1] + s.origin(1, o.h)) * s.in[2] + s.origin(2, o.w);
}

// Flat position in x's plane of each tap, counted from that of tap 0.
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
  if (!p.indices) {
    return pool<T>(s, p.x, channels, [](int64_t n) { return Maximum<Acc, false>(n); }, store);
  }
  dispatch_tap_index(p.indices.dtype, [&]<class Index>() {
    const std::vector<int64_t> positions = tap_positions(s);
    const auto make = [](int64_t n) { return Maximum<Acc, true>(n); };
    pool<T>(s, p.x, channels, make, [&](const auto& op, Place at) {
      store(op, at);
      Index* index = p.indices.as<Index>() + offset_of(p.indices, at);
      for (int64_t i = 0; i < at.count; ++i, index += p.indices.strides[axis]) {
        if constexpr (sizeof(Index) == 1) {
          *index = static_cast<Index>(op.tap[i]);
        } else {
          *index = static_cast<Index>(plane_position(s, at) + positions[op.tap[i]]);
          if (!channels) ++at.w;
        }
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

struct Identity {
  template <class Acc>
  Acc operator()(Acc v) const {
    return v;
  }
};

template <class T>
void avg_forward(const AvgPoolForward& p) {
  using Acc = Accumulator<T>;
  const bool channels = is_channels_last(p.x);
  const std::vector<Acc> columns = column_divisors<Acc>(p.shape, p.divisor);
  const auto make = [](int64_t n) { return Total<Acc, Identity>(n, {}); };
  pool<T>(p.shape, p.x, channels, make, [&](auto& op, const Place& at) {
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

template <class T, class Norm>
void lp_forward(const LpPoolForward& p, const Norm& norm) {
  using Acc = Accumulator<T>;
  const bool channels = is_channels_last(p.x);
  const auto power = [=](Acc v) { return norm.power(v); };
  const auto make = [=](int64_t n) { return Total<Acc, decltype(power)>(n, power); };
  pool<T>(p.shape, p.x, channels, make, [&](auto& op, const Place& at) {
    Acc* v = op.value.data();
    for (int64_t i = 0; i < at.count; ++i) v[i] = norm.root(v[i]);
    store_span(v, p.y.as<T>() + offset_of(p.y, at), p.y.strides[channels ? 1 : 4], at.count);
  });
}

// f(norm) with the powers of a norm.
template <class Acc, class F>
void with_norm(double p, F&& f) {
  if (p == 2) {
    f(Norm2<Acc>{});
  } else {
    f(AnyNorm<Acc>{static_cast<Acc>(p)});
  }
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
  constexpr bool kIsTap = sizeof(Index) == 1;
  const std::vector<int64_t> positions = kIsTap ? tap_positions(s) : std::vector<int64_t>();
  parallel_for(s.batch * tiles, grain, [&](int64_t begin, int64_t end) {
    Planes<T> to(p.dx, plane, width);
    for (int64_t i = begin; i < end; ++i) {
      Place at{i / tiles, i % tiles * width, 0, 0, 0, 0};
      const int64_t channels = std::min(width, s.channels - at.c);
      to.begin(at, channels);
      for (Place o = at; o.d < s.out[0]; ++o.d) {
        for (o.h = 0; o.h < s.out[1]; ++o.h) {
          o.w = 0;
          const T* g = dy.as<T>() + offset_of(dy, o);
          const Index* index = indices.as<Index>() + offset_of(indices, o);
          for (; o.w < s.out[2]; ++o.w, g += dy.strides[4], index += indices.strides[4]) {
            const int64_t first = kIsTap ? plane_position(s, o) : 0;
            for (int64_t c = 0; c < channels; ++c) {
              int64_t position = index[c * indices.strides[1]];
              if constexpr (kIsTap) {
                position = position < s.taps() ? first + positions[position] : -1;
              }
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

// What a window gives to all of its elements, for spans of windows along W or C; and what an
// element makes of the sum of that. A Gradient belongs to one thread.
template <class T>
class AvgGradient {
 public:
  using Acc = Accumulator<T>;
  AvgGradient(const AvgPoolBackward& p, int64_t span)
      : p_(p), columns_(column_divisors<Acc>(p.shape, p.divisor)), buffer_(span) {}

  const Acc* windows(const Place& o, bool channels) {
    Acc* g = buffer_.data();
    const Acc* dy =
        read_span(p_.dy.as<T>() + offset_of(p_.dy, o), p_.dy.strides[channels ? 1 : 4], o.count, g);
    const Acc rows = static_cast<Acc>(p_.divisor.rows(p_.shape, o.d, o.h));
    if (channels) {
      const Acc divisor = rows * columns_[o.w];
      DLK_SIMD for (int64_t i = 0; i < o.count; ++i) g[i] = dy[i] / divisor;
    } else {
      const Acc* columns = columns_.data();
      DLK_SIMD for (int64_t i = 0; i < o.count; ++i) g[i] = dy[i] / (rows * columns[i]);
    }
    return g;
  }
  void elements(const Place&, bool, Acc*) {}

 private:
  const AvgPoolBackward& p_;
  std::vector<Acc> columns_, buffer_;
};

template <class T, class Norm>
class LpGradient {
 public:
  using Acc = Accumulator<T>;
  LpGradient(const LpPoolBackward& p, const Norm& norm, int64_t span)
      : p_(p), norm_(norm), g_(span), y_(span), x_(span) {}

  const Acc* windows(const Place& o, bool channels) {
    const int axis = channels ? 1 : 4;
    load_span(p_.dy.as<T>() + offset_of(p_.dy, o), p_.dy.strides[axis], o.count, g_.data());
    const Acc* y =
        read_span(p_.y.as<T>() + offset_of(p_.y, o), p_.y.strides[axis], o.count, y_.data());
    for (int64_t i = 0; i < o.count; ++i) g_[i] = norm_.weight(g_[i], y[i]);
    return g_.data();
  }
  void elements(const Place& at, bool channels, Acc* sum) {
    const Acc* x = read_span(p_.x.as<T>() + offset_of(p_.x, at), p_.x.strides[channels ? 1 : 4],
                             at.count, x_.data());
    for (int64_t i = 0; i < at.count; ++i) sum[i] *= norm_.slope(x[i]);
  }

 private:
  const LpPoolBackward& p_;
  Norm norm_;
  std::vector<Acc> g_, y_, x_;
};

// make(span) gives a thread its Gradient.
template <class T, class Make>
void gather_backward(const PoolShape& s, const Tensor& dx, Make&& make) {
  using Acc = Accumulator<T>;
  const bool channels = is_channels_last(dx);
  const Window& ww = s.window[2];
  std::vector<Range> over(channels ? s.in[2] : 0);  // the windows over each column
  for (int64_t w = 0; w < std::ssize(over); ++w) over[w] = s.windows_over(2, w);
  for_each_place(s, s.in, channels, [&](const Places& places, int64_t begin, int64_t end) {
    // A row of sums includes the padding, so that every tap of every window has its place.
    const int64_t before = channels ? 0 : ww.pad_begin;
    std::vector<Acc> sums(channels        ? kChannels
                          : s.adaptive[2] ? s.in[2]
                                          : std::max(padded_width(s), before + s.in[2]));
    auto gradient = make(channels ? kChannels : std::max(s.in[2], s.out[2]));
    Acc* sum = sums.data();
    Place at = places[begin];
    Range od, oh;
    for (int64_t i = begin; i < end; ++i, places.next(at)) {
      std::fill_n(sum, channels ? at.count : std::ssize(sums), Acc(0));
      if (i == begin || at.w == 0) od = s.windows_over(0, at.d), oh = s.windows_over(1, at.h);
      for (int64_t d = od.begin; d < od.end; ++d) {
        for (int64_t h = oh.begin; h < oh.end; ++h) {
          if (channels) {
            for (int64_t w = over[at.w].begin; w < over[at.w].end; ++w) {
              const Acc* g = gradient.windows({at.n, at.c, d, h, w, at.count}, true);
              DLK_SIMD for (int64_t c = 0; c < at.count; ++c) sum[c] += g[c];
            }
            continue;
          }
          const Acc* g = gradient.windows({at.n, at.c, d, h, 0, s.out[2]}, false);
          if (s.adaptive[2]) {
            for (int64_t w = 0; w < s.out[2]; ++w) {
              Acc* to = sum + s.origin(2, w);
              for (int64_t k = s.taps_inside(2, w).end; k > 0; --k) *to++ += g[w];
            }
            continue;
          }
          for (int64_t kw = 0; kw < ww.kernel; ++kw) {
            with_step(ww.stride, [=, &s](auto step) {
              DLK_SIMD for (int64_t w = 0; w < s.out[2]; ++w) sum[w * step + kw] += g[w];
            });
          }
        }
      }
      gradient.elements(at, channels, sum + before);
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
         dispatch_tap_index(p.indices.dtype, [&]<class Index>() { max_backward<T, Index>(p); });
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
       dispatch_floating(p.dy.dtype, [&]<class T>() {
         gather_backward<T>(p.shape, p.dx, [&](int64_t span) { return AvgGradient<T>(p, span); });
       });
     }},
};
constexpr Impl<LpPoolForward> kLpForward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const LpPoolForward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() {
         with_norm<Accumulator<T>>(p.norm, [&](auto norm) { lp_forward<T>(p, norm); });
       });
     }},
};
constexpr Impl<LpPoolBackward> kLpBackward[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const LpPoolBackward& p, const Launch&) {
       dispatch_floating(p.dy.dtype, [&]<class T>() {
         with_norm<Accumulator<T>>(p.norm, [&]<class Norm>(const Norm& norm) {
           gather_backward<T>(p.shape, p.dx,
                              [&](int64_t span) { return LpGradient<T, Norm>(p, norm, span); });
         });
       });
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
template <>
ImplList<LpPoolForward> cpu_impls<LpPoolForward>() {
  return kLpForward;
}
template <>
ImplList<LpPoolBackward> cpu_impls<LpPoolBackward>() {
  return kLpBackward;
}

}  // namespace dlkern
