// Dropout on the CPU: spans in parallel; the random bits of a contiguous span come from a vectorised
// Philox, 8 elements a block.
#include "ops/dropout.h"

#include <cstring>

#include "cpu/prims/spans.h"

namespace dlkern {
namespace {

using namespace cpu;

struct Stream {
  uint64_t seed, offset;
};

// half[k] = one half of the random bits of element first + k, k < n <= kSpan.
void random_halves(Stream stream, bool lower, int64_t first, int64_t n, uint16_t* half) {
  constexpr int64_t kBlocks = kSpan / kDropoutBlock + 2;
  uint32_t words[4 * kBlocks];
  const int64_t skip = first % kDropoutBlock, blocks = ceil_div(skip + n, kDropoutBlock);
  DLK_SIMD for (int64_t b = 0; b < blocks; ++b) {
    const PhiloxWords w =
        dropout_words(first - skip + b * kDropoutBlock, lower, stream.seed, stream.offset);
    for (int k = 0; k < 4; ++k) words[4 * b + k] = w.v[k];
  }
  std::memcpy(half, reinterpret_cast<const uint16_t*>(words) + skip, n * sizeof(uint16_t));
}

// keep[k] = whether element first + k * stride is kept.
template <class Acc>
void draw(Stream stream, const DropoutRule<Acc>& rule, Position::Value at, int64_t n,
          uint16_t* keep) {
  uint16_t half[kSpan];
  if (at.stride == 1) {
    random_halves(stream, false, at.first, n, half);
  } else {
    for (int64_t k = 0; k < n; ++k) {
      random_halves(stream, false, at.first + k * at.stride, 1, half + k);
    }
  }
  int ties = 0;
#pragma omp simd reduction(| : ties)
  for (int64_t k = 0; k < n; ++k) {
    keep[k] = half[k] >= rule.upper;
    ties |= half[k] == rule.upper;
  }
  for (int64_t k = 0; rule.lower && ties && k < n; ++k) {
    if (half[k] != rule.upper) continue;
    uint16_t lower;
    random_halves(stream, true, at.first + k * at.stride, 1, &lower);
    keep[k] = lower >= rule.lower;
  }
}

template <class Acc>
void apply(int64_t n, Acc* y, const Acc* x, const Acc* residual, const uint16_t* keep, Acc scale) {
  if (residual) {
    DLK_SIMD for (int64_t i = 0; i < n; ++i) y[i] = residual[i] + (keep[i] ? x[i] * scale : Acc(0));
  } else {
    DLK_SIMD for (int64_t i = 0; i < n; ++i) y[i] = keep[i] ? x[i] * scale : Acc(0);
  }
}

template <class T>
void dropout(const Dropout& p) {
  using Acc = Accumulator<T>;
  const uint64_t* rng = p.rng.as<uint64_t>();
  const Stream stream{rng[0], rng[p.rng.strides[0]]};
  const DropoutRule<Acc> rule(p.p);
  const Tensor positions = row_major(p.y);
  map_spans(
      in_memory_order(make_index<4>({&p.y, &p.x, &p.residual, &positions})),
      [&](int64_t n, Acc* y, const Acc* x, const Acc* residual, Position::Value at) {
        uint16_t keep[kSpan];
        draw(stream, rule, at, n, keep);
        apply(n, y, x, residual, keep, rule.scale);
      },
      Out<T>{p.y.as<T>()}, In<T>{p.x.as<T>()}, In<T>{p.residual.as<T>()}, Position{});
}

constexpr Impl<Dropout> kImpls[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const Dropout& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { dropout<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<Dropout> cpu_impls<Dropout>() {
  return kImpls;
}

}  // namespace dlkern
