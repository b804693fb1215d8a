// Windows that slide along one spatial dimension: what convolution and pooling share, on the host
// and in kernels. Tap t of window o lies at input position o * stride - pad_begin + t * dilation.
#pragma once

#include <dlkern/core.h>

#include <algorithm>
#include <cstdint>

#include "core/index.h"
#include "core/macros.h"
#include "core/status.h"

namespace dlkern {

inline constexpr int kMaxSpatial = 3;

DLK_HD int64_t round_up_quotient(int64_t a, int64_t b) { return quotient(a + b - 1, b); }

template <class I>
struct RangeOf {
  I begin, end;  // half open; empty where end <= begin
};
using Range = RangeOf<int64_t>;

struct Window {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t pad_begin = 0;
  int64_t pad_end = 0;
  int64_t dilation = 1;

  // Input positions from the first tap to the last one.
  DLK_HD int64_t span() const { return dilation * (kernel - 1) + 1; }
  // Input position of window o's first tap; negative in the padding.
  DLK_HD int64_t start(int64_t o) const { return start_as(o); }

  // The three below for kernels, in a type I that holds all positions; `by_dilation` and `by_stride`
  // divide such numbers.
  template <class I>
  DLK_HD I start_as(I o) const {
    return o * static_cast<I>(stride) - static_cast<I>(pad_begin);
  }
  // Taps of window o that lie inside an input of extent n.
  template <class I, class Division>
  DLK_HD RangeOf<I> taps_inside(I o, I n, const Division& by_dilation) const {
    const I first = start_as(o), gap = static_cast<I>(dilation);
    RangeOf<I> taps{0, static_cast<I>(kernel)};
    if (first < 0) taps.begin = by_dilation(gap - 1 - first);
    if (first + static_cast<I>(span()) > n) {
      const I end = first < n ? by_dilation(n - first + gap - 1) : 0;
      if (end < taps.end) taps.end = end;
    }
    return taps;
  }
  // Windows (of `out`) whose span covers input position i. With dilation, i may fall between taps.
  template <class I, class Division>
  DLK_HD RangeOf<I> windows_over(I i, I out, const Division& by_stride) const {
    const I last = i + static_cast<I>(pad_begin), behind = last - static_cast<I>(span());
    const I begin = behind >= 0 ? by_stride(behind) + 1 : 0, end = by_stride(last) + 1;
    return {begin, end < out ? end : out};
  }
  DLK_HD Range taps_inside(int64_t o, int64_t n) const {
    return taps_inside(o, n, [this](int64_t a) { return quotient(a, dilation); });
  }
  // Windows (of `out`) whose tap t lies inside an input of extent n.
  DLK_HD Range windows_inside(int64_t t, int64_t n, int64_t out) const {
    const int64_t shift = pad_begin - t * dilation;  // inside: shift <= o * stride < n + shift
    const int64_t begin = shift > 0 ? round_up_quotient(shift, stride) : 0;
    const int64_t end = n + shift > 0 ? round_up_quotient(n + shift, stride) : 0;
    return {begin, end < out ? end : out};
  }
  // Number of windows over an input of extent n; below 1 where none fits. With ceil_mode a last
  // window that reaches past the end counts too, if it starts inside the input or before it.
  int64_t output_extent(int64_t n, bool ceil_mode = false) const {
    const int64_t slack = n + pad_begin + pad_end - span() + (ceil_mode ? stride - 1 : 0);
    if (slack < 0) return 0;
    int64_t out = slack / stride + 1;
    if (ceil_mode && start(out - 1) >= n) --out;
    return out;
  }

  // Sets the padding for which there are ceil(n / stride) windows, the larger half at the end.
  void pad_same(int64_t n) {
    const int64_t out = ceil_div(n, stride);
    const int64_t total = std::max<int64_t>((out - 1) * stride + span() - n, 0);
    pad_begin = total / 2;
    pad_end = total - pad_begin;
  }
};

// Window of spatial dimension d from a params struct (padding_mode, stride, dilation, pad_begin,
// pad_end) over an input of extent n.
template <class Params>
Window make_window(const Params& p, int d, int64_t kernel, int64_t n) {
  const auto at_least = [d](const char* what, int64_t value, int64_t low) {
    if (value < low) {
      fail(DLK_INVALID_ARGUMENT, what, "[", d, "] is ", value, ", expected at least ", low);
    }
  };
  at_least("stride", p.stride[d], 1);
  at_least("dilation", p.dilation[d], 1);
  Window w{kernel, p.stride[d], 0, 0, p.dilation[d]};
  switch (p.padding_mode) {
    case DLK_PADDING_EXPLICIT:
      at_least("padding: pad_begin", p.pad_begin[d], 0);
      at_least("padding: pad_end", p.pad_end[d], 0);
      w.pad_begin = p.pad_begin[d];
      w.pad_end = p.pad_end[d];
      break;
    case DLK_PADDING_SAME:
      w.pad_same(n);
      break;
    case DLK_PADDING_VALID:
      break;
    default:
      fail(DLK_INVALID_ARGUMENT, "padding_mode is ", p.padding_mode,
           ", expected a dlk_padding_mode");
  }
  return w;
}

}  // namespace dlkern
