// Adam and AdamW: see optim.cuh.
#include "cuda/optim.cuh"

namespace dlkern {
namespace {

constexpr Impl<AdamwStep> kAdamw[] = {
    {"tensor_list", supports_all, nullptr, gpu::launch_step<AdamwStep>},
};

}  // namespace

template <>
ImplList<AdamwStep> gpu_impls<AdamwStep>() {
  return kAdamw;
}

}  // namespace dlkern
