// SGD and Lion: see optim.cuh.
#include "cuda/optim.cuh"

namespace dlkern {
namespace {

constexpr Impl<SgdStep> kSgd[] = {
    {"tensor_list", supports_all, nullptr, gpu::launch_step<SgdStep>},
};
constexpr Impl<LionStep> kLion[] = {
    {"tensor_list", supports_all, nullptr, gpu::launch_step<LionStep>},
};

}  // namespace

template <>
ImplList<SgdStep> gpu_impls<SgdStep>() {
  return kSgd;
}
template <>
ImplList<LionStep> gpu_impls<LionStep>() {
  return kLion;
}

}  // namespace dlkern
