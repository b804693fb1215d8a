// logsumexp over any axes (prims/axis_reduce.cuh): maximum and sum of exponentials in one pass.
//
// Reference: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "cuda/prims/softmax.cuh"
#include "cuda/reduce.h"
#include "cuda/reduce_ops.cuh"

namespace dlkern::gpu {

namespace {

// State: the largest element (a) and the sum of exp(x - that) (b), with 0 in place of an infinite
// one: the sum becomes 0 for nothing but -inf, +inf and NaN where there are those.
template <class Acc>
struct LogSumExpOp {
  using State = Pair<Acc>;
  static constexpr bool kPivot = false, kVector = true, kLooksUp = false;
  Result result;

  __device__ State identity() const { return {Acc(-INFINITY), Acc(0)}; }
  template <int W>
  __device__ __forceinline__ void add(State& state, const Acc (&values)[W], int count,
                                      int64_t /*piece*/, Acc /*pivot*/) const {
    Acc v[W];
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? values[e] : Acc(-INFINITY);
    const Acc largest = Larger()(state.a, tree(v, Larger()));
    const Acc shift = zero_if_infinite(largest);
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = e < count ? exp_fast(values[e] - shift) : Acc(0);
    state = {largest, shifted(state, shift) + tree(v, Sum{})};
  }
  __device__ State close(const State& state) const { return state; }
  __device__ State combine(State lower, State upper) const {
    const Acc largest = Larger()(lower.a, upper.a), shift = zero_if_infinite(largest);
    return {largest, shifted(lower, shift) + shifted(upper, shift)};
  }
  // Of a state without elements, or of -inf alone, 0 whatever the shift is.
  __device__ __forceinline__ Acc shifted(const State& state, Acc shift) const {
    return state.b == 0 ? Acc(0) : state.b * exp_fast(zero_if_infinite(state.a) - shift);
  }
  template <class T>
  __device__ void finish(const axis::Found<T>& found, State state) const {
    store(result, found.at, zero_if_infinite(state.a) + log(state.b));
  }
};

}  // namespace

void reduce_logsumexp(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    const LogSumExpOp<Accumulator<T>> op{{p.y.data, p.y.dtype}};
    reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
  });
}

}  // namespace dlkern::gpu
