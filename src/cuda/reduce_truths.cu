// any and all over any axes, of bool (prims/axis_reduce.cuh).
//
// all is "not any that is not". Four neighbours are taken as a word where that is possible: along a
// reduced axis the word's bytes join at the end, along a kept one they are four results.
#include "cuda/reduce.h"
#include "cuda/reduce_ops.cuh"

namespace dlkern {

namespace gpu {
namespace {

inline constexpr int kWord = 4;

// One bool or kWord of them.
template <class Bits>
struct Truths {
  Bits bits;

  // A byte becomes 1 where it is not 0.
  DLK_HD explicit operator uint32_t() const {
    const uint32_t word = bits;
    return ((word | ((word & 0x7f7f7f7fu) + 0x7f7f7f7fu)) >> 7) & 0x01010101u;
  }
};

}  // namespace
}  // namespace gpu

template <class Bits>
struct AccumulatorOf<gpu::Truths<Bits>> {
  using type = uint32_t;
};

namespace gpu {
namespace {

template <class Bits>
struct TruthsOp {
  using State = uint32_t;
  static constexpr bool kPivot = false, kVector = sizeof(Bits) == kWord, kLooksUp = false;
  static constexpr uint32_t kAllTrue = sizeof(Bits) == kWord ? 0x01010101u : 1u;
  void* y;
  bool words;      // results are
  uint32_t flips;  // kAllTrue where true and false change places

  __device__ State identity() const { return 0; }
  template <int W>
  __device__ __forceinline__ void add(State& state, const uint32_t (&values)[W], int count,
                                      int64_t /*piece*/, uint32_t /*pivot*/) const {
#pragma unroll
    for (int e = 0; e < W; ++e) state |= e < count ? values[e] ^ flips : 0;
  }
  __device__ State close(State state) const { return state; }
  __device__ State combine(State a, State b) const { return a | b; }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    if (words) {
      static_cast<uint32_t*>(y)[found.at] = state ^ flips;
    } else {
      static_cast<uint8_t*>(y)[found.at] = (state != 0) != (flips != 0);
    }
  }
};

// Whether a tensor's elements along axis d lie side by side, in words.
bool is_words(const Tensor& t, int d) {
  bool words = is_aligned(t.data, kWord) && t.strides[d] == 1 && t.shape[d] % kWord == 0;
  for (int other = 0; other < t.ndim; ++other) {
    words = words && (other == d || t.shape[other] == 1 || t.strides[other] % kWord == 0);
  }
  return words;
}
Tensor as_words(Tensor t, int d) {
  t.dtype = DType::kInt32;  // of that size
  for (int64_t& stride : t.strides) stride /= kWord;
  t.shape[d] /= kWord, t.strides[d] = 1;
  return t;
}

}  // namespace

Reduce in_words(const Reduce& p) {
  if (!is_logical(p.kind)) return p;
  for (int d = 0; d < p.x.ndim; ++d) {
    const bool reduced = p.axes >> d & 1u;
    if (p.x.shape[d] == 0 || !is_words(p.x, d) || !(reduced || is_words(p.y, d))) continue;
    Reduce words = p;
    words.x = as_words(p.x, d);
    if (!reduced) words.y = as_words(p.y, d);
    return words;
  }
  return p;
}

void reduce_truths(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace) {
  const auto reduce = [&]<class Bits>() {
    using Op = TruthsOp<Bits>;
    const Op op{p.y.data, p.y.dtype != DType::kBool, p.kind == DLK_REDUCE_ALL ? Op::kAllTrue : 0};
    reduce_axes<Truths<Bits>>(p.x, Tensor{}, plan, op, stream, workspace);
  };
  p.x.dtype == DType::kBool ? reduce.template operator()<uint8_t>()
                            : reduce.template operator()<uint32_t>();
}

}  // namespace gpu
}  // namespace dlkern
