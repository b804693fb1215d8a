// The lists of the convolutions of the GPU backend.
#include "cuda/conv.h"

#include <initializer_list>
#include <vector>

namespace dlkern {
namespace {

template <class Problem>
std::vector<Impl<Problem>> joined(std::initializer_list<ImplList<Problem>> kinds) {
  std::vector<Impl<Problem>> all;
  for (const ImplList<Problem>& kind : kinds) all.insert(all.end(), kind.begin(), kind.end());
  return all;
}

}  // namespace

template <>
ImplList<ConvForward> gpu_impls<ConvForward>() {
  static const auto all = joined<ConvForward>(
      {conv_forward_depthwise_impls(), conv_forward_pointwise_impls(), conv_forward_groups_impls(),
#if DLKERN_WITH_SM90
       conv_forward_few_channels_sm90_impls(), conv_forward_sm90_impls(),
       conv_forward_planes_sm90_impls(),
#endif
       conv_forward_sm80_impls(), conv_forward_simt_impls(), conv_forward_passes_impls()});
  return all;
}

template <>
ImplList<ConvBackwardInput> gpu_impls<ConvBackwardInput>() {
  static const auto all = joined<ConvBackwardInput>(
      {conv_backward_input_depthwise_impls(), conv_backward_input_pointwise_impls(),
       conv_backward_input_groups_impls(),
#if DLKERN_WITH_SM90
       conv_backward_input_sm90_impls(), conv_backward_input_planes_sm90_impls(),
#endif
       conv_backward_input_sm80_impls(), conv_backward_input_simt_impls(),
       conv_backward_input_passes_impls()});
  return all;
}

template <>
ImplList<ConvBackwardWeight> gpu_impls<ConvBackwardWeight>() {
  static const auto all = joined<ConvBackwardWeight>(
      {conv_backward_weight_depthwise_impls(), conv_backward_weight_pointwise_impls(),
       conv_backward_weight_groups_impls(),
#if DLKERN_WITH_SM90
       conv_backward_weight_few_channels_sm90_impls(), conv_backward_weight_sm90_impls(),
#endif
       conv_backward_weight_sm80_impls(), conv_backward_weight_simt_impls()});
  return all;
}

}  // namespace dlkern
