// The lists of the convolutions of the GPU backend.
#include "cuda/conv.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

namespace dlkern {
namespace {

template <class Problem>
std::vector<Impl<Problem>> joined(std::initializer_list<ImplList<Problem>> kinds) {
  std::vector<Impl<Problem>> all;
  for (const ImplList<Problem>& kind : kinds) all.insert(all.end(), kind.begin(), kind.end());
  return all;
}

const std::vector<Impl<ConvBackwardWeight>>& weight_impls() {
  static const auto all = joined<ConvBackwardWeight>(
      {conv_backward_weight_depthwise_impls(), conv_backward_weight_pointwise_impls(),
       conv_backward_weight_groups_impls(),
#if DLKERN_WITH_SM90
       conv_backward_weight_few_channels_sm90_impls(), conv_backward_weight_sm90_impls(),
#endif
       conv_backward_weight_sm80_impls(), conv_backward_weight_simt_impls()});
  return all;
}

// Whoever computes a gradient of weights adds that of a bias with add_bias_gradient(): the workspace is
// large enough for it.
constexpr size_t kMostWeightImpls = 16;

template <size_t kNumber>
size_t workspace_bytes(const ConvBackwardWeight& p) {
  const Impl<ConvBackwardWeight>& impl = weight_impls()[kNumber];
  const size_t bytes = impl.workspace_bytes ? impl.workspace_bytes(p) : 0;
  return p.bias ? std::max(bytes, gpu::bias_gradient_workspace_bytes(p)) : bytes;
}
template <size_t... kNumbers>
std::vector<Impl<ConvBackwardWeight>> with_room_for_bias(std::index_sequence<kNumbers...>) {
  std::vector<Impl<ConvBackwardWeight>> all = weight_impls();
  if (all.size() > kMostWeightImpls) fail(DLK_INTERNAL, "more gradients of weights than expected");
  size_t (*const bytes[])(const ConvBackwardWeight&) = {workspace_bytes<kNumbers>...};
  for (size_t i = 0; i < all.size(); ++i) all[i].workspace_bytes = bytes[i];
  return all;
}

}  // namespace

template <>
ImplList<ConvForward> gpu_impls<ConvForward>() {
  static const auto all = joined<ConvForward>(
      {conv_forward_depthwise_impls(), conv_forward_depthwise_planes_impls(),
       conv_forward_pointwise_impls(), conv_forward_groups_impls(),
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
      {conv_backward_input_depthwise_impls(), conv_backward_input_depthwise_planes_impls(),
       conv_backward_input_pointwise_impls(), conv_backward_input_groups_impls(),
       conv_backward_input_few_channels_impls(),
#if DLKERN_WITH_SM90
       conv_backward_input_sm90_impls(), conv_backward_input_planes_sm90_impls(),
#endif
       conv_backward_input_sm80_impls(), conv_backward_input_simt_impls(),
       conv_backward_input_passes_impls()});
  return all;
}

template <>
ImplList<ConvBackwardWeight> gpu_impls<ConvBackwardWeight>() {
  static const auto all = with_room_for_bias(std::make_index_sequence<kMostWeightImpls>());
  return all;
}

}  // namespace dlkern
