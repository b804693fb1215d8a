// Reductions on the CPU: how the elements of all results are walked.
//
// The elements of one result, in the order in which they lie in memory, are cut into blocks of
// kBlock. A block is reduced in kLanes interleaved lanes, and the block results are added in pairs,
// so the rounding error grows like log n, and the bits of a result depend on its own elements and
// their order alone: not on threads, nor on which of two walks is taken. "Rows" reduces the blocks
// of one result after the other, along the reduced axes; "columns" reduces neighbouring results
// together, where they are closer in memory than the elements of one. Both are vectorised.
#pragma once

#include <cmath>
#include <memory>

#include "core/fast_math.h"
#include "core/index.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/spans.h"
#include "cpu/reduce_ops.h"
#include "ops/reduce.h"

namespace dlkern::cpu::axis {

inline constexpr int64_t kBlock = kSumBlock;
inline constexpr int64_t kPartials = 1 << 16;     // block results kept at a time
inline constexpr int64_t kGrainElements = 32768;  // work worth a thread

// How one problem is walked. Results are numbered along `kept`; tiles of `width` of them do not
// reach over the end of a row of `inner` results.
struct Walk {
  StridedIndex<3> kept;     // x, result, pivot
  StridedIndex<1> reduced;  // x
  int64_t blocks;
  int64_t inner;
  int64_t width;
  bool columns;

  int64_t tiles_per_row() const { return ceil_div(inner, width); }
  int64_t tiles() const { return inner == 0 ? 0 : kept.numel / inner * tiles_per_row(); }
};

inline Walk make_walk(const Reduce& p, const Tensor& pivot) {
  Walk walk;
  walk.kept = in_memory_order(make_index<3>({&p.x, &p.y, &pivot}, ~p.axes));
  walk.reduced = make_index<1>({&p.x}, p.axes);
  if (!is_arg(p.kind)) walk.reduced = in_memory_order(walk.reduced);
  const int64_t n = walk.reduced.numel;
  walk.blocks = ceil_div(n, kBlock);
  const int last = walk.kept.ndim - 1, last_reduced = walk.reduced.ndim - 1;
  const auto closer = [&] {
    return std::abs(walk.kept.stride[0][last]) < std::abs(walk.reduced.stride[0][last_reduced]);
  };
  walk.columns = last >= 0 && walk.kept.shape[last] >= 8 && (n < kLanes || closer());
  walk.inner = walk.columns ? walk.kept.shape[last] : walk.kept.numel;
  walk.width = walk.columns ? std::min(walk.inner, kColumns)
                            : std::clamp<int64_t>(kBlock / (n + 1), 1, kColumns);
  return walk;
}

// What is reduced in place of an element v, some with a pivot for each result.
enum class Term {
  kValue,
  kAbs,
  kSquare,
  kPower,     // |v|^ord
  kNonzero,   // v != 0
  kZero,      // v == 0
  kFactor,    // 1 where v is 0
  kEqual,     // v == pivot
  kAbsEqual,  // |v| == pivot
  kMinus,     // v - pivot
  kExpMinus,  // exp(v - pivot)
};

// out[i] for v[i] and the pivot at i * stride, i < n.
template <class Acc>
void map_terms(Term term, Acc ord, const Acc* v, const Acc* pivot, int64_t stride, int64_t n,
               Acc* out) {
  const auto map = [=](auto f) { DLK_SIMD for (int64_t i = 0; i < n; ++i) out[i] = f(v[i]); };
  const auto with_pivot = [=](auto f) {
    for (int64_t i = 0; i < n; ++i) out[i] = f(v[i], pivot[i * stride]);
  };
  const auto one_if = [](bool condition) { return condition ? Acc(1) : Acc(0); };
  switch (term) {
    case Term::kValue:
      return;
    case Term::kAbs:
      return map([](Acc x) { return std::abs(x); });
    case Term::kSquare:
      return map([](Acc x) { return x * x; });
    case Term::kPower:
      return map([ord](Acc x) { return static_cast<Acc>(std::pow(std::abs(x), ord)); });
    case Term::kNonzero:
      return map([=](Acc x) { return one_if(x != 0); });
    case Term::kZero:
      return map([=](Acc x) { return one_if(x == 0); });
    case Term::kFactor:
      return map([](Acc x) { return x == 0 ? Acc(1) : x; });
    case Term::kEqual:
      return with_pivot([=](Acc x, Acc p) { return one_if(x == p); });
    case Term::kAbsEqual:
      return with_pivot([=](Acc x, Acc p) { return one_if(std::abs(x) == p); });
    case Term::kMinus:
      return with_pivot([](Acc x, Acc p) { return x - p; });
    case Term::kExpMinus:
      if constexpr (std::is_floating_point_v<Acc>) {
        with_pivot([](Acc x, Acc p) { return exp_fast(x - p); });
      }
      return;
  }
}

// Reduces the terms of T to Op's partial results.
template <class T, class Op>
class Reducer {
  using Acc = typename Op::Value;
  using Partial = typename Op::Partial;

 public:
  explicit Reducer(const Reduce& p, Term term = Term::kValue, const Tensor& pivot = {})
      : p_(p), term_(term), pivot_(pivot), walk_(make_walk(p, pivot)) {}

  // finish(offset in the result, partial) for every result.
  template <class Finish>
  void run(Finish&& finish) {
    const int64_t blocks = walk_.blocks, tiles = walk_.tiles(), width = walk_.width;
    const int64_t stored = std::max<int64_t>(blocks, 1);
    const int64_t panel = std::clamp<int64_t>(kPartials / (width * stored), 1, tiles);
    const std::unique_ptr<Partial[]> partials(new Partial[panel * width * stored]);
    const bool in_one_row = walk_.columns || walk_.kept.ndim <= 1;  // all results of a tile
    const int64_t step = walk_.kept.ndim ? walk_.kept.stride[1][walk_.kept.ndim - 1] : 0;
    const int64_t tile_work = width * std::min(kBlock, walk_.reduced.numel) + 1;
    for (int64_t first = 0; first < tiles; first += panel) {
      const int64_t count = std::min(panel, tiles - first);
      parallel_for(count * blocks, kGrainElements / tile_work, [&](int64_t begin, int64_t end) {
        const std::unique_ptr<Scratch> scratch(new Scratch);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t tile = i / blocks, block = i % blocks;
          reduce_tile(first + tile, block, *scratch, &partials[tile * width * blocks + block]);
        }
      });
      parallel_for(count, kGrainElements / (width * stored), [&](int64_t begin, int64_t end) {
        for (int64_t tile = begin; tile < end; ++tile) {
          const auto [result, w] = results_of(first + tile);
          const Partial* partial = &partials[tile * width * blocks];
          const int64_t start = offset(result, 0)[1];
          for (int64_t j = 0; j < w; ++j, partial += blocks) {
            const int64_t at = in_one_row ? start + j * step : offset(result, j)[1];
            finish(at, blocks == 1 ? *partial : Op::combine(partial, blocks));
          }
        }
      });
    }
  }

 private:
  struct Scratch {
    Acc values[kAtOnce][kBlock];
    Acc pivots[kColumns];
    Partial partials[kColumns];
  };
  struct Results {
    int64_t first, count;
  };
  struct Offsets {
    int64_t at[3];
    int64_t operator[](int i) const { return at[i]; }
  };

  Results results_of(int64_t tile) const {
    const int64_t per_row = walk_.tiles_per_row();
    const int64_t begin = tile % per_row * walk_.width;
    return {tile / per_row * walk_.inner + begin, std::min(walk_.width, walk_.inner - begin)};
  }
  Offsets offset(int64_t first, int64_t j) const {
    Offsets o;
    walk_.kept.offsets(first + j, o.at);
    return o;
  }

  // Of the next result in a row.
  Offsets next(const Offsets& of) const {
    const auto& stride = walk_.kept.stride;
    return {{of.at[0] + stride[0][0], of.at[1] + stride[1][0], of.at[2] + stride[2][0]}};
  }

  // One block of each result of a tile; result j's partial goes to out[j * blocks].
  void reduce_tile(int64_t tile, int64_t block, Scratch& scratch, Partial* out) const {
    const auto [result, w] = results_of(tile);
    const int64_t begin = block * kBlock, end = std::min(begin + kBlock, walk_.reduced.numel);
    if (walk_.columns) {
      reduce_columns(result, w, begin, end, scratch, out);
      return;
    }
    const bool in_one_row = walk_.kept.ndim <= 1;
    Offsets at = offset(result, 0);
    for (int64_t j = 0; j < w; ++j) {
      if (j > 0) at = in_one_row ? next(at) : offset(result, j);
      const Acc* v = read_block(p_.x.as<T>() + at[0], begin, end, scratch.values[0]);
      if (term_ != Term::kValue) {
        const Acc pivot = pivot_ ? static_cast<Acc>(pivot_.as<T>()[at[2]]) : Acc(0);
        v = terms(v, &pivot, 0, end - begin, scratch.values[0]);
      }
      out[j * walk_.blocks] = Op::span(v, end - begin, begin);
    }
  }

  void reduce_columns(int64_t result, int64_t w, int64_t begin, int64_t end, Scratch& scratch,
                      Partial* out) const {
    const int last = walk_.kept.ndim - 1;
    const Offsets at = offset(result, 0);
    const T* x = p_.x.as<T>() + at[0];
    const int64_t stride = walk_.kept.stride[0][last];
    if (pivot_) {
      load_span(pivot_.as<T>() + at[2], walk_.kept.stride[2][last], w, scratch.pivots);
    }
    int buffers = 0;
    const auto row = [&](int64_t i) {
      int64_t offset[1];
      walk_.reduced.offsets(begin + i, offset);
      Acc* buffer = scratch.values[buffers++ % kAtOnce];
      const Acc* v = read_span(x + offset[0], stride, w, buffer);
      return term_ == Term::kValue ? v : terms(v, scratch.pivots, 1, w, buffer);
    };
    Op::columns(end - begin, w, row, begin, scratch.partials);
    for (int64_t j = 0; j < w; ++j) out[j * walk_.blocks] = scratch.partials[j];
  }

  const Acc* terms(const Acc* v, const Acc* pivot, int64_t stride, int64_t n, Acc* out) const {
    map_terms(term_, static_cast<Acc>(p_.ord), v, pivot, stride, n, out);
    return out;
  }

  // Elements [begin, end) of the result whose first element is x.
  const Acc* read_block(const T* x, int64_t begin, int64_t end, Acc* buffer) const {
    const StridedIndex<1>& r = walk_.reduced;
    if (r.ndim <= 1) {
      const int64_t stride = r.stride[0][0];
      return read_span(x + begin * stride, stride, end - begin, buffer);
    }
    const int64_t inner = r.shape[r.ndim - 1], stride = r.stride[0][r.ndim - 1];
    int64_t at[1];
    for (int64_t i = begin; i < end;) {
      const int64_t n = std::min(inner - i % inner, end - i);
      r.offsets(i, at);
      if (n == end - begin) return read_span(x + at[0], stride, n, buffer);
      load_span(x + at[0], stride, n, buffer + (i - begin));
      i += n;
    }
    return buffer;
  }

  const Reduce& p_;
  const Term term_;
  const Tensor pivot_;
  const Walk walk_;
};

}  // namespace dlkern::cpu::axis
