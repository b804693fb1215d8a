// Pooling of planar tensors, tile by tile. Windows overlap and rows are rarely aligned: a block copies
// what its tile needs to shared memory and works on it there.
#pragma once

#include <algorithm>
#include <vector>

#include "cuda/pool.cuh"
#include "cuda/prims/copy_async.cuh"

namespace dlkern::gpu {

inline constexpr int kPlaneThreads = 128;

// ---- Tiles -------------------------------------------------------------------------------------

// Forward, a target (y) needs the positions under its window; backward, a target (dx) needs the windows
// over its position. Both begin and end at quotients of linear functions of the target's number.
struct PoolReach {
  int scale, first, last, bias;
  int sources;  // that there are
  FastDiv by;

  static PoolReach forward(const PoolShape& s, int d) {
    const Window& w = s.window[d];
    const auto n = static_cast<int>(s.in[d]), m = static_cast<int>(s.out[d]);
    if (s.adaptive[d]) return {n, 0, n + m - 1, 0, n, FastDiv(m)};
    return {static_cast<int>(w.stride),    0, static_cast<int>(w.span()),
            static_cast<int>(w.pad_begin), n, FastDiv(1)};
  }
  static PoolReach backward(const PoolShape& s, int d) {
    const Window& w = s.window[d];
    const auto n = static_cast<int>(s.in[d]), m = static_cast<int>(s.out[d]);
    if (s.adaptive[d]) return {m, 0, m + n - 1, 0, m, FastDiv(n)};
    const auto stride = static_cast<int>(w.stride), span = static_cast<int>(w.span());
    const int bias = (span - 1) / stride + 1;  // no numerator is negative
    const int last = static_cast<int>(w.pad_begin) + (1 + bias) * stride;
    return {1, last - span, last, bias, m, FastDiv(stride)};
  }
  // Before the first source, maybe.
  __device__ __forceinline__ int origin(int i) const { return by.quick(i * scale + first) - bias; }
  __device__ __forceinline__ int begin(int i) const { return max(origin(i), 0); }
  __device__ __forceinline__ int end(int i) const {
    return min(by.quick(i * scale + last) - bias, sources);
  }
  __device__ __forceinline__ RangeOf<int> operator()(int i) const { return {begin(i), end(i)}; }
  // The most that `count` neighbours need.
  int most(int64_t count) const {
    const int64_t steps = ((count - 1) * scale + last - first) / by.divisor() + 1;
    return static_cast<int>(std::min<int64_t>(steps, sources));
  }
};

// Some neighbouring volumes [D, H, W], or a band of rows of some slices of one.
struct PlanePart {
  int volumes, d, slices, h, rows;
};

// What one block computes, neighbours in memory: whole volumes of one batch item, or a band of rows
// of one slice; and the part of the source that it needs.
struct PlaneTile {
  int64_t n;
  int c;  // the first channel
  PlanePart target, source;
};

// A place within a tile.
struct PlanePlace {
  int volume, d, h, w;
};

// The extents [D, H, W] of tensors without gaps.
struct PlaneExtents {
  int d, h, w;
  FastDiv by_d, by_h, by_w;

  explicit PlaneExtents(const int64_t (&e)[kMaxSpatial])
      : d(static_cast<int>(e[0])),
        h(static_cast<int>(e[1])),
        w(static_cast<int>(e[2])),
        by_d(d),
        by_h(h),
        by_w(w) {}
  DLK_HD int slice() const { return h * w; }
  DLK_HD int volume() const { return d * slice(); }
};

// How planar tensors are cut into tiles.
struct PlaneTiles {
  PlaneExtents target, source;
  PoolReach reach[kMaxSpatial];
  int channels;
  bool whole;                           // tiles are whole volumes, else bands
  bool deep;                            // windows have more than the one slice that there is
  int volumes, rows;                    // of a tile
  int slices, source_rows;              // of the source of a band, at most
  FastDiv by_group, by_slice, by_band;  // tiles of a batch item
  int64_t count, bytes;                 // of all; of one in shared memory

  // bytes_of(targets, sources): what so many elements take in shared memory. packed: neighbouring
  // volumes lie together.
  template <class Bytes>
  PlaneTiles(const PoolShape& s, bool forward, bool packed, Bytes&& bytes_of)
      : target(forward ? s.out : s.in),
        source(forward ? s.in : s.out),
        reach{reach_of(s, forward, 0), reach_of(s, forward, 1), reach_of(s, forward, 2)},
        channels(static_cast<int>(s.channels)),
        deep(!is_flat(s)) {
    // Backward, what neighbouring tiles both read is more.
    const int64_t enough = (forward ? 12 : 20) * 1024;
    const int64_t blocks = (forward ? 16 : 4) * multiprocessor_count(), all = s.batch * s.channels;
    const int64_t volume_bytes = bytes_of(target.volume(), source.volume());
    whole = volume_bytes <= enough && all >= blocks;
    slices = reach[0].most(1);
    volumes = 1;
    int64_t most = 1;
    if (whole) {
      most = target.h;
      if (packed)
        volumes = static_cast<int>(std::clamp<int64_t>(enough / volume_bytes, 1, all / blocks));
    } else {
      const auto fits = [&](int64_t n) {
        return n <= target.h && all * target.d * ceil_div(target.h, n) >= blocks &&
               bytes_of(n * target.w, slices * (reach[1].most(n) * source.w + 15)) <= enough;
      };
      for (int64_t step = int64_t{1} << 30; step > 0; step /= 2) {
        if (fits(most + step)) most += step;
      }
    }
    const int64_t bands = ceil_div(target.h, most);
    rows = static_cast<int>(ceil_div(target.h, bands));
    source_rows = reach[1].most(rows);
    by_group = FastDiv(ceil_div(channels, volumes));
    by_slice = FastDiv(whole ? 1 : target.d);
    by_band = FastDiv(bands);
    count = s.batch * ceil_div(channels, volumes) * by_slice.divisor() * bands;
    bytes = bytes_of(most_targets(), most_sources());
  }
  int grid() const { return static_cast<int>(std::max<int64_t>(count, 1)); }
  // Why a kernel cannot take them; nullptr: it can.
  const char* decline() const {
    if (count > INT32_MAX) return "too many tiles";
    return bytes > 48 * 1024 ? "rows too long for shared memory" : nullptr;
  }
  // Elements of a tile and of its source. A slice is followed by some that align the next one.
  DLK_HD int most_targets() const { return whole ? volumes * target.volume() : rows * target.w; }
  DLK_HD int most_sources() const {
    return whole ? volumes * source.volume() : slices * (source_rows * source.w + 15);
  }

  __device__ __forceinline__ PlaneTile tile(int i) const {
    const auto take = [&i](const FastDiv& by) {
      const int q = by.quick(i), r = i - q * static_cast<int>(by.divisor());
      i = q;
      return r;
    };
    const int h = take(by_band) * rows, d = take(by_slice), c = take(by_group) * volumes;
    PlaneTile t{i, c};
    if (whole) {
      const int here = min(channels - c, volumes);
      t.target = {here, 0, target.d, 0, target.h};
      t.source = {here, 0, source.d, 0, source.h};
    } else {
      const int here = min(target.h - h, rows);
      const int from_d = deep ? reach[0].begin(d) : 0, to_d = deep ? reach[0].end(d) : 1;
      const int from_h = reach[1].begin(h), to_h = reach[1].end(h + here - 1);
      t.target = {1, d, 1, h, here};
      t.source = {1, from_d, max(to_d - from_d, 0), from_h, max(to_h - from_h, 0)};
    }
    return t;
  }
  // Elements of a tile, and where one of them lies.
  __device__ __forceinline__ int targets_of(const PlanePart& t) const {
    return t.volumes * t.slices * t.rows * target.w;
  }
  __device__ __forceinline__ PlanePlace place(const PlanePart& t, int i) const {
    int row = target.by_w.quick(i), slice = 0;
    const int w = i - row * target.w;
    if (!whole) return {0, t.d, t.h + row, w};
    slice = target.by_h.quick(row);
    row -= slice * target.h;
    const int volume = deep ? target.by_d.quick(slice) : slice;
    return {volume, slice - volume * target.d, row, w};
  }

 private:
  static PoolReach reach_of(const PoolShape& s, bool forward, int d) {
    return forward ? PoolReach::forward(s, d) : PoolReach::backward(s, d);
  }
};

// Where a part of a tensor of any element type begins.
template <class Strided>
__device__ __forceinline__ int64_t offset_of(const Strided& image, const PlaneTile& t,
                                             const PlanePart& part) {
  return image.at(t.n, t.c, part.d, part.h, 0);
}

// f(i, offset from the part's begin, elements) for what of a source lies together, run by run.
template <class F>
__device__ __forceinline__ void for_runs(const PlaneTiles& tiles, const PlanePart& part, F&& f) {
  if (tiles.whole) return f(0, 0, part.volumes * tiles.source.volume());
  for (int i = 0; i < part.slices; ++i) {
    f(i, i * tiles.source.slice(), part.rows * tiles.source.w);
  }
}

// Where element i of a run of a source lies.
__device__ __forceinline__ PlanePlace window_place(const PlaneTiles& tiles, const PlanePart& from,
                                                   int run, int i) {
  const PlaneExtents& e = tiles.source;
  int row = e.by_w.quick(i);
  const int w = i - row * e.w;
  if (!tiles.whole) return {0, from.d + run, from.h + row, w};
  int slice = e.by_h.quick(row);
  row -= slice * e.h;
  const int volume = e.by_d.quick(slice);
  return {volume, slice - volume * e.d, row, w};
}

// ---- Shared memory -----------------------------------------------------------------------------

// Elements between an address and the multiple of 16 before it.
template <class T>
__device__ __forceinline__ int misalignment(const T* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(T));
}

// f(first, whole) for the groups of elements that 16 aligned bytes hold, of `count` elements from
// `data` on: a group begins at element `first`, and is not whole at the ends.
template <class T, class F>
__device__ __forceinline__ void for_groups(const T* data, int count, F&& f) {
  constexpr int kGroup = 16 / sizeof(T);
  for (int i = threadIdx.x * kGroup - misalignment(data); i < count; i += kPlaneThreads * kGroup) {
    f(i, i >= 0 && count - i >= kGroup);
  }
}

// Copies elements to shared memory; `to` is misaligned as `from` is. See copy_16.
template <class T>
__device__ __forceinline__ void stage(T* to, const T* from, int count) {
  for_groups(from, count, [&](int first, bool whole) {
    if (whole) return copy_16(to + first, from + first);
#pragma unroll
    for (int e = first; e < first + static_cast<int>(16 / sizeof(T)); ++e) {
      if (e >= 0 && e < count) to[e] = from[e];
    }
  });
}

// Writes sums from shared memory, where those for 16 aligned bytes of `to` begin at multiples of 16
// bytes.
template <class T>
__device__ __forceinline__ void write_out(T* to, const Accumulator<T>* sums, int count) {
  constexpr int kGroup = 16 / sizeof(T);
  for_groups(to, count, [&](int first, bool whole) {
    if (whole) {
      using Acc = Accumulator<T>;
      constexpr int kLoad = 16 / sizeof(Acc);
      Acc v[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; i += kLoad) {
        const Vec<Acc, kLoad> some = load_vec<kLoad>(sums + first + i);
#pragma unroll
        for (int e = 0; e < kLoad; ++e) v[i + e] = some.v[e];
      }
      return store_rounded(to + first, v);
    }
#pragma unroll
    for (int e = first; e < first + kGroup; ++e) {
      if (e >= 0 && e < count) to[e] = static_cast<T>(sums[e]);
    }
  });
}

// ---- Choices, on the host ----------------------------------------------------------------------

inline std::vector<Tensor*> tensors_of(MaxPoolForward& p) {
  if (!p.indices) return {&p.x, &p.y};
  return {&p.x, &p.y, &p.indices};
}
inline std::vector<Tensor*> tensors_of(AvgPoolForward& p) { return {&p.x, &p.y}; }
inline std::vector<Tensor*> tensors_of(LpPoolForward& p) { return {&p.x, &p.y}; }
inline std::vector<Tensor*> tensors_of(MaxPoolBackward& p) { return {&p.dy, &p.indices, &p.dx}; }
inline std::vector<Tensor*> tensors_of(AvgPoolBackward& p) { return {&p.dy, &p.dx}; }
inline std::vector<Tensor*> tensors_of(LpPoolBackward& p) { return {&p.dy, &p.x, &p.y, &p.dx}; }

// A problem as the kernels over planes see it. One spatial dimension lies along H, so that a long one
// can be cut into bands; batch and channels are one dimension where all tensors allow it.
template <class Problem>
Problem as_planes(Problem p) {
  PoolShape& s = p.shape;
  const bool turn = s.in[0] == 1 && s.in[1] == 1 && s.out[0] == 1 && s.out[1] == 1;
  bool merge = true;
  for (Tensor* t : tensors_of(p)) {
    if (turn) std::swap(t->shape[3], t->shape[4]), std::swap(t->strides[3], t->strides[4]);
    merge = merge && (t->shape[0] == 1 || t->strides[0] == t->shape[1] * t->strides[1]);
  }
  if (turn) {
    std::swap(s.in[1], s.in[2]), std::swap(s.out[1], s.out[2]);
    std::swap(s.window[1], s.window[2]), std::swap(s.adaptive[1], s.adaptive[2]);
    s.prepare(1), s.prepare(2);
  }
  if (merge) s.channels *= s.batch, s.batch = 1;
  return p;
}

// Volumes without gaps.
inline bool has_volumes(const Tensor& t) {
  int64_t step = 1;
  for (int d = 4; d > 1; --d) {
    if (t.shape[d] > 1 && t.strides[d] != step) return false;
    step *= t.shape[d];
  }
  return true;
}
// Neighbouring ones lie together.
template <class Problem>
bool are_packed(Problem p) {
  bool packed = true;
  for (const Tensor* t : tensors_of(p)) {
    packed = packed && t->strides[1] == t->shape[2] * t->shape[3] * t->shape[4];
  }
  return packed;
}

// Why kernels over planes do not take a problem, whatever their tiles; nullptr: they do.
template <class Problem>
const char* planes_decline(Problem p) {
  for (const Tensor* t : tensors_of(p)) {
    if (!has_volumes(*t)) return "channels last, or volumes with gaps";
  }
  return p.shape.is_narrow() && p.shape.channels <= INT32_MAX ? nullptr
                                                              : "too large for indices of 32 bits";
}

}  // namespace dlkern::gpu
