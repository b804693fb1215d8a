// Convolution as a matrix product on the CPU: weights seen as matrices, and the size of panels.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu/conv_patches.h"
#include "cpu/prims/parallel.h"

namespace dlkern::cpu {

inline constexpr int64_t kGrain = int64_t{1} << 20;  // multiplications worth a thread
inline constexpr int64_t kTasksPerImage = 4;         // enough of them
inline constexpr int64_t kPanelElements = 192 * 1024;
inline constexpr int64_t kPanelRows = 768;

// Tasks worth a thread.
inline int64_t conv_grain(int64_t multiplications_per_task) {
  return 1 + kGrain / (multiplications_per_task + 1);
}

inline Form form_of(const ConvProblem& p) {
  return channels_last(p) ? Form::kPositionMajor : Form::kChannelMajor;
}

// Positions of a panel whose patches have `rows` rows: enough for efficient products, few enough for
// the L2 cache, and never a buffer past 64 MB for the sake of efficiency.
inline int64_t panel_columns(int64_t rows) {
  const int64_t least = std::clamp<int64_t>((int64_t{1} << 24) / rows, 1, 192);
  return std::clamp<int64_t>(kPanelElements / rows, least, 1024);
}

// How a forward convolution is cut: so many units of patch rows for each product, panels of positions,
// and parts of the output channels. Depends on the extents alone.
struct ForwardCuts {
  int64_t inner, outer, units, rows;
  PanelPlan panels;
  int64_t parts, part, columns;  // columns: of the largest panel

  // The patches are `outer_` units of `inner_` rows.
  ForwardCuts(const ConvGeometry& g, int64_t outer_, int64_t inner_)
      : inner(std::max<int64_t>(inner_, 1)),
        outer(g.c > 0 ? outer_ : 0),  // nothing to sum: the bias alone
        units(std::clamp<int64_t>(kPanelRows / inner, 1, std::max<int64_t>(outer, 1))),
        rows(units * inner),
        panels(g, panel_columns(rows), false),
        // Small images: their output channels are shared as well, though each part builds the patches.
        parts(std::clamp<int64_t>(g.k / 128, 1,
                                  ceil_div(kTasksPerImage, panels.panels_per_image * g.groups))),
        part(ceil_div(g.k, parts)),
        columns(panels.max_columns()) {}

  int64_t tasks(const ConvGeometry& g) const { return g.groups * panels.count * parts; }
  int64_t grain() const { return conv_grain(part * columns * rows); }
};

// Offset of tap t, counted in row-major order.
inline int64_t tap_offset(const ConvGeometry& g, const ConvWeightStrides& s, int64_t t) {
  const int64_t t2 = t % g.window[2].kernel, t01 = t / g.window[2].kernel;
  return t01 / g.window[1].kernel * s.taps[0] + t01 % g.window[1].kernel * s.taps[1] +
         t2 * s.taps[2];
}

// The weights as matrices [k, r] of the accumulation type, r ordered as the form wants it, in blocks
// of `chunk` channels: the tensor's own memory where it is that already.
template <class T>
class Weights {
 public:
  using Acc = Accumulator<T>;

  Weights(const ConvProblem& p, Form form, int64_t chunk)
      : g_(p.geometry), chunk_(std::max<int64_t>(chunk, 1)) {
    const ConvWeightStrides& s = p.w_strides;
    const int64_t taps = g_.taps();
    StridedIndex<1> reduction;  // (c, taps) or (taps, c)
    if (form == Form::kChannelMajor) reduction.push(g_.c, {s.c});
    for (int d = 0; d < 3; ++d) reduction.push(g_.window[d].kernel, {s.taps[d]});
    if (form == Form::kPositionMajor) reduction.push(g_.c, {s.c});
    const bool whole = form == Form::kChannelMajor || chunk_ >= g_.c;
    if (std::is_same_v<T, Acc> && whole && reduction.is_flat() && s.k >= g_.c * taps) {
      direct_ = reinterpret_cast<const Acc*>(p.w.as<T>());
      ld_ = s.k;
      group_ = s.group;
      return;
    }
    storage_.resize(g_.groups * g_.k * g_.c * taps);
    const int64_t chunks = ceil_div(g_.c, chunk_);
    parallel_for(g_.groups * chunks * g_.k, 1 + 4096 / (chunk_ * taps),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t k = i % g_.k, first = i / g_.k % chunks * chunk_,
                                   group = i / g_.k / chunks;
                     const int64_t channels = std::min(chunk_, g_.c - first);
                     const T* from = p.w.as<T>() + group * s.group + k * s.k + first * s.c;
                     Acc* to = storage_.data() + offset(group, first) + k * channels * taps;
                     const bool channel_major = form == Form::kChannelMajor;
                     for (int64_t t = 0; t < taps; ++t) {
                       const T* tap = from + tap_offset(g_, s, t);
                       for (int64_t c = 0; c < channels; ++c) {
                         to[channel_major ? c * taps + t : t * channels + c] =
                             static_cast<Acc>(tap[c * s.c]);
                       }
                     }
                   }
                 });
  }

  // Rows [0, k) of the chunk of channels that begins at `first`.
  Matrix<const Acc> block(int64_t group, int64_t first) const {
    const int64_t taps = g_.taps();
    if (direct_) return {direct_ + group * group_ + first * taps, ld_};
    return {storage_.data() + offset(group, first), std::min(chunk_, g_.c - first) * taps};
  }

 private:
  int64_t offset(int64_t group, int64_t first) const {
    return (group * g_.c + first) * g_.k * g_.taps();
  }

  ConvGeometry g_;
  int64_t chunk_;
  const Acc* direct_ = nullptr;
  int64_t ld_ = 0, group_ = 0;
  std::vector<Acc> storage_;
};

}  // namespace dlkern::cpu
