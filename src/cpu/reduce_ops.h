// What the elements of reductions come to on the CPU: sums and products, moments, extremes and where
// they lie.
//
// An op reduces a block of contiguous values (span), or w of them at once from rows of values
// (columns), to partial results, and combines those of the blocks. A block has kLanes interleaved
// lanes; the bits do not depend on which of the two is used.
#pragma once

#include <algorithm>
#include <memory>
#include <type_traits>

#include "cpu/prims/reduce.h"
#include "cpu/prims/spans.h"

namespace dlkern::cpu::axis {

inline constexpr int64_t kColumns = 512;  // results of a tile at most
inline constexpr int kAtOnce = 4;         // rows read together

// a + b or a * b; integers modulo 2^64.
template <bool kProduct, class Acc>
inline Acc join(Acc a, Acc b) {
  using Unsigned = std::conditional_t<std::is_integral_v<Acc>, uint64_t, Acc>;
  const auto u = static_cast<Unsigned>(a), v = static_cast<Unsigned>(b);
  return static_cast<Acc>(kProduct ? u * v : u + v);
}

// Sums and products.
template <bool kProduct>
struct Chain {
  template <class Acc>
  struct Of {
    using Value = Acc;
    using Partial = Acc;
    static constexpr Acc kNeutral = kProduct ? 1 : 0;

    static Partial span(const Acc* v, int64_t n, int64_t /*first*/) {
      if constexpr (!kProduct && std::is_floating_point_v<Acc>) {
        return sum_of<Acc>(n, [v](int64_t i) { return v[i]; });
      }
      Acc lane[kLanes];
      std::fill_n(lane, kLanes, kNeutral);
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        // Without the mark gcc shuffles what it takes from several i.
        DLK_SIMD for (int k = 0; k < kLanes; ++k) lane[k] = join<kProduct>(lane[k], v[i + k]);
      }
      for (int k = 0; i < n; ++i, ++k) lane[k] = join<kProduct>(lane[k], v[i]);
      for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int k = 0; k < width; ++k) lane[k] = join<kProduct>(lane[k], lane[k + width]);
      }
      return lane[0];
    }
    // In pairs; the order depends on n alone.
    static Partial combine(const Partial* p, int64_t n) {
      if (n <= 2) return n == 0 ? kNeutral : (n == 1 ? p[0] : join<kProduct>(p[0], p[1]));
      return join<kProduct>(combine(p, n / 2), combine(p + n / 2, n - n / 2));
    }

    // Rows [0, n) of w values each: the additions of span(), in the same order. Of what row()
    // returned the last kAtOnce stay valid.
    template <class Rows>
    static void columns(int64_t n, int64_t w, Rows&& row, int64_t /*first*/, Partial* out) {
      Acc lane[kLanes][kColumns];
      const int used = static_cast<int>(std::min<int64_t>(n, kLanes));
      for (int k = 0; k < used; ++k) {
        Acc* total = lane[k];
        const Acc* v = row(k);
        DLK_SIMD for (int64_t j = 0; j < w; ++j) total[j] = join<kProduct>(kNeutral, v[j]);
        int64_t i = k + kLanes;
        for (; i + 3 * kLanes < n; i += 4 * kLanes) {
          const Acc *a = row(i), *b = row(i + kLanes), *c = row(i + 2 * kLanes),
                    *d = row(i + 3 * kLanes);
          DLK_SIMD for (int64_t j = 0; j < w; ++j) {
            const Acc two = join<kProduct>(join<kProduct>(total[j], a[j]), b[j]);
            total[j] = join<kProduct>(join<kProduct>(two, c[j]), d[j]);
          }
        }
        for (; i < n; i += kLanes) {
          const Acc* a = row(i);
          DLK_SIMD for (int64_t j = 0; j < w; ++j) total[j] = join<kProduct>(total[j], a[j]);
        }
      }
      for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int k = 0; k < width && k + width < used; ++k) {
          DLK_SIMD for (int64_t j = 0; j < w; ++j) {
            lane[k][j] = join<kProduct>(lane[k][j], lane[k + width][j]);
          }
        }
      }
      std::copy_n(lane[0], w, out);
    }
  };
};
template <class Acc>
using Sum = Chain<false>::Of<Acc>;
template <class Acc>
using Product = Chain<true>::Of<Acc>;

// Mean and sum of squared deviations: Welford's recurrence in lanes, Chan's formula between them.
template <class Acc>
struct Moments {
  using Value = Acc;
  struct Partial {
    Acc n, mean, m2;
  };

  static Partial merge(const Partial& a, const Partial& b) {
    if (a.n == 0 || b.n == 0) return a.n == 0 ? b : a;
    const Acc total = a.n + b.n, share = b.n / total, delta = b.mean - a.mean;
    return {total, a.mean + delta * share, a.m2 + b.m2 + delta * delta * share * a.n};
  }
  static void step(Acc v, Acc factor, Acc& mean, Acc& m2) {
    const Acc delta = v - mean;
    mean += delta * factor;
    m2 += delta * (v - mean);
  }
  // Lane k of n elements.
  static Acc count(int64_t n, int k) { return static_cast<Acc>((n + kLanes - 1 - k) / kLanes); }

  static Partial span(const Acc* v, int64_t n, int64_t /*first*/) {
    Acc mean[kLanes] = {}, m2[kLanes] = {};
    for (int64_t i = 0; i < n; i += kLanes) {
      const Acc factor = Acc(1) / static_cast<Acc>(i / kLanes + 1);
      if (i + kLanes <= n) {
        DLK_SIMD for (int k = 0; k < kLanes; ++k) step(v[i + k], factor, mean[k], m2[k]);
      } else {
        for (int k = 0; i + k < n; ++k) step(v[i + k], factor, mean[k], m2[k]);
      }
    }
    Partial lane[kLanes];
    for (int k = 0; k < kLanes; ++k) lane[k] = {count(n, k), mean[k], m2[k]};
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) lane[k] = merge(lane[k], lane[k + width]);
    }
    return lane[0];
  }
  static Partial combine(const Partial* p, int64_t n) {
    if (n <= 2) return n == 0 ? Partial{} : (n == 1 ? p[0] : merge(p[0], p[1]));
    return merge(combine(p, n / 2), combine(p + n / 2, n - n / 2));
  }

  template <class Rows>
  static void columns(int64_t n, int64_t w, Rows&& row, int64_t /*first*/, Partial* out) {
    const std::unique_ptr<Acc[][kColumns]> mean(new Acc[kLanes][kColumns]),
        m2(new Acc[kLanes][kColumns]);
    for (int64_t i = 0; i < n; ++i) {
      Acc *lane_mean = mean[i % kLanes], *lane_m2 = m2[i % kLanes];
      if (i < kLanes) std::fill_n(lane_mean, w, Acc(0)), std::fill_n(lane_m2, w, Acc(0));
      const Acc factor = Acc(1) / static_cast<Acc>(i / kLanes + 1);
      const Acc* v = row(i);
      DLK_SIMD for (int64_t j = 0; j < w; ++j) step(v[j], factor, lane_mean[j], lane_m2[j]);
    }
    for (int64_t j = 0; j < w; ++j) {
      Partial lane[kLanes] = {};
      for (int k = 0; k < kLanes && k < n; ++k) lane[k] = {count(n, k), mean[k][j], m2[k][j]};
      for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int k = 0; k < width; ++k) lane[k] = merge(lane[k], lane[k + width]);
      }
      out[j] = lane[0];
    }
  }
};

template <bool kMin>
struct Extreme {
  template <class Acc>
  struct Of {
    using Value = Acc;
    using Partial = Acc;

    static Partial span(const Acc* v, int64_t n, int64_t /*first*/) {
      return extreme_of<kMin>(v, n);
    }
    static Partial combine(const Partial* p, int64_t n) { return extreme_of<kMin>(p, n); }

    template <class Rows>
    static void columns(int64_t n, int64_t w, Rows&& row, int64_t /*first*/, Partial* out) {
      const auto better = [](Acc v, Acc m) { return (kMin ? v < m : v > m) || v != v ? v : m; };
      std::copy_n(row(0), w, out);
      int64_t i = 1;
      for (; i + 3 < n; i += 4) {
        const Acc *a = row(i), *b = row(i + 1), *c = row(i + 2), *d = row(i + 3);
        DLK_SIMD for (int64_t j = 0; j < w; ++j) {
          out[j] = better(d[j], better(c[j], better(b[j], better(a[j], out[j]))));
        }
      }
      for (; i < n; ++i) {
        const Acc* a = row(i);
        DLK_SIMD for (int64_t j = 0; j < w; ++j) out[j] = better(a[j], out[j]);
      }
    }
  };
};

template <bool kMin>
struct ArgExtreme {
  template <class Acc>
  struct Of {
    using Value = Acc;
    struct Partial {
      Acc value;
      int64_t index;
    };

    static Partial span(const Acc* v, int64_t n, int64_t first) {
      const Acc best = extreme_of<kMin>(v, n);
      int64_t i = 0;
      while (i + 1 < n && v[i] != best && (v[i] == v[i] || best == best)) ++i;
      return {best, first + i};
    }
    static Partial combine(const Partial* p, int64_t n) {
      Partial best = p[0];
      for (int64_t i = 1; i < n; ++i) {
        if (is_better<kMin>(p[i].value, best.value)) best = p[i];
      }
      return best;
    }

    template <class Rows>
    static void columns(int64_t n, int64_t w, Rows&& row, int64_t first, Partial* out) {
      // As wide as the values, so that both are selected by one comparison.
      using Row = std::conditional_t<sizeof(Acc) == 4, int32_t, int64_t>;
      Acc best[kColumns];
      Row at[kColumns] = {};
      std::copy_n(row(0), w, best);
      for (int64_t i = 1; i < n; ++i) {
        const Acc* v = row(i);
        DLK_SIMD for (int64_t j = 0; j < w; ++j) {
          const bool better = is_better<kMin>(v[j], best[j]);
          best[j] = better ? v[j] : best[j];
          at[j] = better ? static_cast<Row>(i) : at[j];
        }
      }
      for (int64_t j = 0; j < w; ++j) out[j] = {best[j], first + at[j]};
    }
  };
};

}  // namespace dlkern::cpu::axis
