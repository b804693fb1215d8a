// What this library is, and what machine it runs on.
#include <cstdlib>

#include "build_info.h"
#include "core/call.h"
#include "core/gpu_runtime.h"
#include "core/macros.h"
#include "core/status.h"

#ifndef DLKERN_CPU_ARCH
#define DLKERN_CPU_ARCH ""
#endif

namespace dlkern {
namespace {

// nullptr where this CPU runs code compiled with -march=DLKERN_CPU_ARCH.
const char* missing_cpu_feature() {
#if defined(__x86_64__) && defined(__GNUC__)
  const std::string_view arch = DLKERN_CPU_ARCH;
  __builtin_cpu_init();
  if (arch == "x86-64-v3" || arch == "x86-64-v4") {
    if (!__builtin_cpu_supports("avx2")) return "AVX2";
    if (!__builtin_cpu_supports("fma")) return "FMA";
    if (!__builtin_cpu_supports("bmi2")) return "BMI2";
  }
  if (arch == "x86-64-v4" && !__builtin_cpu_supports("avx512f")) return "AVX-512";
#endif
  return nullptr;
}

}  // namespace
}  // namespace dlkern

int dlk_version(void) { return DLK_VERSION; }

dlk_status_t dlk_get_build_info(dlk_build_info* info) {
  if (!dlkern::write_struct(info,
                            {0, 0, DLKERN_VERSION_STRING, DLKERN_BUILD_GPU, DLKERN_BUILD_ARCHS,
                             DLKERN_BUILD_COMPILERS, DLKERN_BUILD_BLAS, DLKERN_CPU_ARCH})) {
    return dlkern::set_last_error(DLK_INVALID_ARGUMENT, "get_build_info",
                                  "info is NULL or its struct_size is not set");
  }
  return DLK_SUCCESS;
}

dlk_status_t dlk_check_cpu(void) {
  const char* missing = dlkern::missing_cpu_feature();
  if (!missing) return DLK_SUCCESS;
  const std::string message = dlkern::cat(
      "this CPU lacks ", missing,
      ", which dlkern was compiled for (" DLKERN_CPU_ARCH
      "); rebuild it with DLKERN_CPU_ARCH=x86-64 pip install --no-binary dlkern dlkern");
  return dlkern::set_last_error(DLK_NOT_SUPPORTED, "check_cpu", message.c_str());
}

int dlk_device_count(void) {
#if DLKERN_WITH_GPU
  return dlkern::gpu::device_count();
#else
  return 0;
#endif
}

dlk_status_t dlk_get_device_info(int device, dlk_device_info* info) {
  if (!info || info->struct_size < sizeof(uint32_t)) {
    return dlkern::set_last_error(DLK_INVALID_ARGUMENT, "get_device_info",
                                  "info is NULL or its struct_size is not set");
  }
  const int count = dlk_device_count();
  if (device < 0 || device >= count) {
    const std::string message = dlkern::cat("device is ", device, ", expected one of ", count);
    return dlkern::set_last_error(DLK_INVALID_ARGUMENT, "get_device_info", message.c_str());
  }
#if DLKERN_WITH_GPU
  try {
    dlk_device_info facts = {};
    dlkern::gpu::device_info(device, &facts);
    dlkern::write_struct(info, facts);
  } catch (const dlkern::Error& error) {
    return dlkern::set_last_error(error.status(), "get_device_info", error.what());
  }
#endif
  return DLK_SUCCESS;
}
