// Convolution as a matrix product on the CPU: images seen as matrices.
//
// The patch matrix of an image has one column per output position and one row per (channel, tap):
// the values that the taps see there. It is never built whole: a Panel is a run of positions, and a
// chunk of its rows is built when a product needs it. The same class with a single tap reads and
// writes an image itself as the matrix [channels, positions].
//
// Form: how matrices lie in memory, chosen so that loops run along memory.
//     kChannelMajor   row-major [(c, tap), position], for images with adjacent positions (NCHW)
//     kPositionMajor  the transpose, [position, (tap, c)], for images with adjacent channels (NHWC)
// The order of a panel's rows is cut into `outer` units (channels, or rows of taps) of `inner`.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "core/index.h"
#include "core/window.h"
#include "cpu/prims/any_dtype.h"
#include "ops/conv.h"

namespace dlkern::cpu {

enum class Form { kChannelMajor, kPositionMajor };

template <class T>
struct Matrix {
  T* data;
  int64_t ld;
};

// Adjacent positions of one output row.
struct Segment {
  int64_t n, o[2];        // image; output position in the first two dimensions
  int64_t begin, length;  // in the last dimension
  int64_t column;         // of the panel
};

// Positions [begin, end) of images [first, last); all of them if there is more than one image.
struct Panel {
  int64_t first, last, begin, end;
  std::vector<Segment> segments;

  int64_t images() const { return last - first; }
  int64_t columns() const { return images() * (end - begin); }

  Panel(const ConvGeometry& g, int64_t first_, int64_t last_, int64_t begin_, int64_t end_)
      : first(first_), last(last_), begin(begin_), end(end_) {
    const int64_t width = g.out[2];
    int64_t column = 0;
    for (int64_t n = first; n < last; ++n) {
      for (int64_t p = begin; p < end;) {
        const int64_t row = p / width, w = p % width;
        const int64_t length = std::min(width - w, end - p);
        segments.push_back({n, {row / g.out[1], row % g.out[1]}, w, length, column});
        p += length;
        column += length;
      }
    }
  }
};

// How the positions of a batch are cut into panels: a part of an image each, so that an image's bits
// do not depend on the batch, or also several small images. Depends on the extents alone.
struct PanelPlan {
  int64_t images_per_panel = 1, positions_per_panel = 1, panels_per_image = 1, count = 0;

  PanelPlan(const ConvGeometry& g, int64_t columns, bool several_images) {
    const int64_t positions = g.out_count();
    if (positions == 0 || g.batch == 0) return;
    if (several_images) images_per_panel = std::clamp<int64_t>(columns / positions, 1, g.batch);
    const int64_t parts = std::max<int64_t>((positions + columns / 2) / columns, 1);
    positions_per_panel = std::min(ceil_div(ceil_div(positions, parts), 16) * 16, positions);
    panels_per_image = ceil_div(positions, positions_per_panel);
    count = ceil_div(g.batch, images_per_panel) * panels_per_image;
  }
  int64_t max_columns() const { return images_per_panel * positions_per_panel; }
  Panel panel(const ConvGeometry& g, int64_t i) const {
    const int64_t first = i / panels_per_image * images_per_panel;
    const int64_t begin = i % panels_per_image * positions_per_panel;
    return {g, first, std::min(first + images_per_panel, g.batch), begin,
            std::min(begin + positions_per_panel, g.out_count())};
  }
};

// The geometry in which each position is its own patch of the k channels of y.
inline ConvGeometry pointwise(const ConvGeometry& g) {
  ConvGeometry r{};
  r.batch = g.batch;
  r.groups = g.groups;
  r.c = r.k = g.k;
  for (int s = 0; s < 3; ++s) r.in[s] = r.out[s] = g.out[s];
  return r;
}

// One tap that moves with the positions: patches are the image itself.
inline bool is_pointwise(const ConvGeometry& g) {
  for (int s = 0; s < 3; ++s) {
    const Window& w = g.window[s];
    if (w.kernel != 1 || w.stride != 1 || w.pad_begin != 0 || g.in[s] != g.out[s]) return false;
  }
  return true;
}

template <class T>
class Patches {
 public:
  using Acc = Accumulator<T>;

  Patches(const ConvGeometry& g, Form form, T* image, const ConvImageStrides& strides)
      : g_(g), form_(form), image_(image), s_(strides), pointwise_(is_pointwise(g)) {
    for (int64_t t = 0; t < g.window[2].kernel; ++t) {
      inside_.push_back(g.window[2].windows_inside(t, g.in[2], g.out[2]));
    }
  }

  int64_t outer() const {
    return form_ == Form::kChannelMajor ? g_.c : g_.window[0].kernel * g_.window[1].kernel;
  }
  int64_t inner() const {
    return form_ == Form::kChannelMajor ? g_.taps() : g_.window[2].kernel * g_.c;
  }

  // Units [begin, end) of a panel's rows for one group: the image itself where it has the form of
  // the matrix, else copied to buffer, which has room for all.
  Matrix<const Acc> read(const Panel& panel, int64_t group, int64_t begin, int64_t end,
                         Acc* buffer) const {
    const bool channel_major = form_ == Form::kChannelMajor;
    if (pointwise_) {
      const auto direct = view(panel, group * g_.c + (channel_major ? begin : 0),
                               channel_major ? end - begin : g_.c);
      if (direct) return {direct->data, direct->ld};
    }
    const int64_t ld = channel_major ? panel.columns() : (end - begin) * inner();
    walk(panel, group * g_.c, begin, end, buffer, ld,
         [](const T* from, int64_t step, int64_t n, Acc* to) {
           if (from) {
             load_span(from, step, n, to);
           } else {
             std::fill_n(to, n, Acc(0));
           }
         });
    return {buffer, ld};
  }

  // Adds the matrix to the image: the adjoint of read() for all channels of group 0.
  void add(const Panel& panel, Matrix<Acc> m) {
    static_assert(std::is_same_v<T, Acc>);
    walk(panel, 0, 0, outer(), m.data, m.ld, [](T* to, int64_t step, int64_t n, const Acc* from) {
      if (!to) return;
      if (step == 1) {
        for (int64_t i = 0; i < n; ++i) to[i] += from[i];
      } else {
        for (int64_t i = 0; i < n; ++i) to[i * step] += from[i];
      }
    });
  }

  // Pointwise only: `channels` channels of a panel, from `first` on (of all groups), as a matrix in
  // the image's own memory, where that is possible.
  std::optional<Matrix<Acc>> view(const Panel& panel, int64_t first, int64_t channels) const {
    if constexpr (!std::is_same_v<T, Acc>) {
      return {};
    } else {
      int64_t step = 0, count = 1;  // between positions; 0: not known yet
      for (int s = 2; s >= -1; --s) {
        const int64_t extent = s < 0 ? panel.images() : g_.out[s];
        const int64_t stride = s < 0 ? s_.n : s_.spatial[s];
        if (extent == 1) continue;
        if (step == 0) step = stride;
        if (stride != step * count) return {};
        count *= extent;
      }
      T* data = image_ + panel.first * s_.n + panel.begin * step + first * s_.c;
      if (form_ == Form::kChannelMajor) {
        if (step != 1 && panel.columns() > 1) return {};
        if (channels == 1) return Matrix<Acc>{data, panel.columns()};
        if (s_.c < panel.columns()) return {};
        return Matrix<Acc>{data, s_.c};
      }
      if (s_.c != 1 && channels > 1) return {};
      if (panel.columns() == 1) return Matrix<Acc>{data, channels};
      if (step < channels) return {};
      return Matrix<Acc>{data, step};
    }
  }

  // Pointwise only: stores `channels` channels of a panel, from `first` on (of all groups).
  void write(const Panel& panel, int64_t first, int64_t channels, Matrix<const Acc> m) {
    for (const Segment& seg : panel.segments) {
      T* row = image_ + first * s_.c + seg.n * s_.n + seg.o[0] * s_.spatial[0] +
               seg.o[1] * s_.spatial[1] + seg.begin * s_.spatial[2];
      if (form_ == Form::kChannelMajor) {
        for (int64_t c = 0; c < channels; ++c) {
          store_span(m.data + c * m.ld + seg.column, row + c * s_.c, s_.spatial[2], seg.length);
        }
      } else {
        for (int64_t i = 0; i < seg.length; ++i) {
          store_span(m.data + (seg.column + i) * m.ld, row + i * s_.spatial[2], s_.c, channels);
        }
      }
    }
  }

 private:
  // visit(image, step, n, matrix) for all spans of n elements that a panel's matrix shares with the
  // image: matrix[i] is image[i * step], or image is nullptr outside it.
  template <class M, class Visit>
  void walk(const Panel& panel, int64_t channel, int64_t begin, int64_t end, M* m, int64_t ld,
            Visit&& visit) const {
    for (const Segment& seg : panel.segments) {
      if (form_ == Form::kChannelMajor) {
        walk_channel_major(seg, channel, begin, end, m, ld, visit);
      } else {
        walk_position_major(seg, channel, begin, end, m, ld, visit);
      }
    }
  }

  // The image row that taps (t0, t1, ...) see at a segment, nullptr outside the image.
  T* source_row(const Segment& seg, int64_t t0, int64_t t1) const {
    const int64_t d = g_.window[0].start(seg.o[0]) + t0 * g_.window[0].dilation;
    const int64_t h = g_.window[1].start(seg.o[1]) + t1 * g_.window[1].dilation;
    if (d < 0 || d >= g_.in[0] || h < 0 || h >= g_.in[1]) return nullptr;
    return image_ + seg.n * s_.n + d * s_.spatial[0] + h * s_.spatial[1];
  }

  template <class M, class Visit>
  void walk_channel_major(const Segment& seg, int64_t channel, int64_t begin, int64_t end, M* m,
                          int64_t ld, Visit&& visit) const {
    const Window& window = g_.window[2];
    const int64_t step = window.stride * s_.spatial[2], last = seg.begin + seg.length;
    const int64_t taps = window.kernel, rows = g_.window[0].kernel * g_.window[1].kernel;
    for (int64_t t = 0; t < rows; ++t) {
      T* const row = source_row(seg, t / g_.window[1].kernel, t % g_.window[1].kernel);
      for (int64_t c = begin; c < end; ++c) {
        M* to = m + ((c - begin) * rows + t) * taps * ld + seg.column;
        for (int64_t t2 = 0; t2 < taps; ++t2, to += ld) {
          if (!row) {
            visit(row, 0, seg.length, to);
            continue;
          }
          const int64_t low = std::clamp(inside_[t2].begin, seg.begin, last);
          const int64_t high = std::clamp(inside_[t2].end, low, last);
          const int64_t at = window.start(low) + t2 * window.dilation;
          visit(static_cast<T*>(nullptr), 0, low - seg.begin, to);
          visit(row + (channel + c) * s_.c + at * s_.spatial[2], step, high - low,
                to + (low - seg.begin));
          visit(static_cast<T*>(nullptr), 0, last - high, to + (high - seg.begin));
        }
      }
    }
  }

  template <class M, class Visit>
  void walk_position_major(const Segment& seg, int64_t channel, int64_t begin, int64_t end, M* m,
                           int64_t ld, Visit&& visit) const {
    const Window& window = g_.window[2];
    const int64_t taps = window.kernel, tap_step = window.dilation * s_.spatial[2];
    // A run of taps is one span where the channels of one tap end where those of the next begin.
    const bool merged = s_.c * g_.c == tap_step;
    for (int64_t unit = begin; unit < end; ++unit) {
      T* const row = source_row(seg, unit / g_.window[1].kernel, unit % g_.window[1].kernel);
      M* to = m + seg.column * ld + (unit - begin) * taps * g_.c;
      for (int64_t i = 0; i < seg.length; ++i, to += ld) {
        const int64_t first = window.start(seg.begin + i);  // element of tap 0
        const Range inside = window.taps_inside(seg.begin + i, g_.in[2]);
        const int64_t low = row ? std::min(inside.begin, taps) : taps;
        const int64_t high = row ? std::max(inside.end, low) : taps;
        visit(static_cast<T*>(nullptr), 0, low * g_.c, to);
        visit(static_cast<T*>(nullptr), 0, (taps - high) * g_.c, to + high * g_.c);
        if (low == high) continue;
        T* image = row + first * s_.spatial[2] + low * tap_step + channel * s_.c;
        if (merged) {
          visit(image, s_.c, (high - low) * g_.c, to + low * g_.c);
          continue;
        }
        for (int64_t t = low; t < high; ++t, image += tap_step) {
          visit(image, s_.c, g_.c, to + t * g_.c);
        }
      }
    }
  }

  ConvGeometry g_;
  Form form_;
  T* image_;
  ConvImageStrides s_;
  bool pointwise_;
  std::vector<Range> inside_;  // outputs of a row that see inside it, per tap of the last dimension
};

}  // namespace dlkern::cpu
