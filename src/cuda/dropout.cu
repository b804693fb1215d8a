// Dropout, forward and backward: y_i = x_i / (1 - p) where element i is kept, else 0.
//
// The mask is a function of (seed, offset) and of the row-major position i; it is computed where it
// is needed and never stored. One Philox block serves 4 neighbouring elements, so a pack of 4 or 8
// takes 1 or 2 blocks; a strided layout takes one block per element. Bound by memory in the packed
// case, though the integer multiplications of Philox are close behind.
#include "ops/dropout.h"

#include "core/philox.h"
#include "cuda/prims/elementwise.cuh"

namespace dlkern {
namespace {

using namespace gpu;

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
  // Packs of W > 1 begin at a multiple of W.
  template <int W>
  __device__ void operator()(Pack<Acc, W>& y, const Pack<Acc, W>& x,
                             const Pack<int64_t, W>& position) const {
    constexpr int kPerBlock = W < 4 ? W : 4;
#pragma unroll
    for (int first = 0; first < W; first += kPerBlock) {
      const int64_t i = position[first];
      const PhiloxWords words = philox(static_cast<uint64_t>(i) / 4, offset, seed);
#pragma unroll
      for (int k = 0; k < kPerBlock; ++k) {
        const uint32_t bits = kPerBlock == 4 ? words.v[k] : philox_word(words, i + k);
        y[first + k] = rule(x[first + k], bits);
      }
    }
  }
};

template <class T>
void launch_dropout(const Dropout& p, const Launch& launch) {
  const Mask<Accumulator<T>> f{DropoutRule<Accumulator<T>>(p.p), p.rng.as<const uint64_t>(),
                               p.rng.strides[0], 0, 0};
  const Tensor positions = row_major(p.y);
  map_elements(in_memory_order(make_index<3>({&p.y, &p.x, &positions})), f, launch.stream,
               Out<T>{p.y.as<T>()}, In<T>{p.x.as<T>()}, Position{});
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
