// Dropout, forward and backward: y_i = x_i / (1 - p) where element i is kept, else 0; forward with a
// residual that is added.
//
// The mask is a function of (seed, offset) and of the row-major position i; it is computed where it
// is needed and never stored. One Philox block serves 8 neighbouring elements with the upper halves
// of their random bits; only a tie with the upper half of p (once in 2^16 elements) needs the lower
// ones. A pack of 8, 4 or 2 takes one block, an element of a strided layout one of its own. Bound by
// memory where packs are whole; the multiplications of Philox then take about half of the time.
#include "ops/dropout.h"

#include "cuda/prims/elementwise.cuh"

namespace dlkern {
namespace {

using namespace gpu;

// Half-word k of a block.
__device__ __forceinline__ int half_of(const PhiloxWords& words, int k) {
  const uint32_t low = k & 2 ? words.v[1] : words.v[0], high = k & 2 ? words.v[3] : words.v[2];
  const uint32_t word = k & 4 ? high : low;
  return static_cast<int>(k & 1 ? word >> 16 : word & 0xffffu);
}

template <class Acc>
struct Mask {
  DropoutRule<Acc> rule;
  const uint64_t* rng;  // device memory
  int64_t rng_stride;
  uint64_t seed, offset;

  __device__ void prepare() {
    seed = rng[0];
    offset = rng[rng_stride];
  }
  // What becomes of W elements from position i on, which is a multiple of W.
  template <int W>
  __device__ __forceinline__ void apply(Pack<Acc, W>& v, int64_t i) const {
    const int first = W == kDropoutBlock ? 0 : static_cast<int>(i % kDropoutBlock);
    const PhiloxWords words = dropout_words(i, false, seed, offset);
    int half[W];
    bool tie = false;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      half[k] = half_of(words, first + k);
      tie = tie || half[k] == rule.upper;
    }
    if (tie && rule.lower != 0) {
      const PhiloxWords lower = dropout_words(i, true, seed, offset);
#pragma unroll
      for (int k = 0; k < W; ++k) {
        // One that is not kept after all is made less than the others.
        if (half[k] == rule.upper && half_of(lower, first + k) < rule.lower) half[k] = -1;
      }
    }
#pragma unroll
    for (int k = 0; k < W; ++k) v[k] = half[k] >= rule.upper ? v[k] * rule.scale : Acc(0);
  }
};

template <class Acc>
struct Drop : Mask<Acc> {
  template <int W>
  __device__ void operator()(Pack<Acc, W>& y, const Pack<Acc, W>& x,
                             const Pack<int64_t, W>& position) const {
    static_assert(W <= kDropoutBlock);
    y = x;
    this->apply(y, position[0]);
  }
};
template <class Acc>
struct DropAdd : Mask<Acc> {
  template <int W>
  __device__ void operator()(Pack<Acc, W>& y, const Pack<Acc, W>& x, const Pack<Acc, W>& residual,
                             const Pack<int64_t, W>& position) const {
    y = x;
    this->apply(y, position[0]);
#pragma unroll
    for (int k = 0; k < W; ++k) y[k] += residual[k];
  }
};

template <class T>
void launch_dropout(const Dropout& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const Mask<Acc> mask{DropoutRule<Acc>(p.p), p.rng.as<const uint64_t>(), p.rng.strides[0], 0, 0};
  const Tensor positions = row_major(p.y);
  const Out<T> y{p.y.as<T>()};
  const In<T> x{p.x.as<T>()}, residual{p.residual.as<T>()};
  if (p.residual) {
    map_elements(in_memory_order(make_index<4>({&p.y, &p.x, &p.residual, &positions})),
                 DropAdd<Acc>{mask}, launch.stream, y, x, residual, Position{});
  } else {
    map_elements(in_memory_order(make_index<3>({&p.y, &p.x, &positions})), Drop<Acc>{mask},
                 launch.stream, y, x, Position{});
  }
}

constexpr Impl<Dropout> kImpls[] = {
    {"elementwise", supports_all, nullptr,
     [](const Dropout& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_dropout<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<Dropout> gpu_impls<Dropout>() {
  return kImpls;
}

}  // namespace dlkern
