// The statistics of a convolution's result.
#include "cpu/conv_epilogue.h"

#include "cpu/norm_channels.h"

namespace dlkern::cpu {
namespace {

template <class T>
void moments(const ConvEpilogue& e, const Tensor& result) {
  using Acc = Accumulator<T>;
  const std::vector<Moments> moments = statistics<T>(result, e.channel);
  const MixedView<T> mean(e.mean), var(e.var);
  for (int64_t c = 0; c < result.shape[e.channel]; ++c) {
    const Moments& m = moments[c];
    mean.store(c, static_cast<Acc>(m.n == 0 ? NAN : m.mean));
    var.store(c, static_cast<Acc>(m.n == 0 ? NAN : m.variance()));
  }
}

}  // namespace

void conv_moments(const ConvProblem& p, const Tensor& result) {
  dispatch_floating(result.dtype, [&]<class T>() { moments<T>(p.epilogue, result); });
}

}  // namespace dlkern::cpu
