// Device facts and the launch itself.
#include "core/gpu_runtime.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/index.h"
#include "cuda/prims/gpu.h"
#if !defined(__HIPCC__)
#include <cudaTypedefs.h>

#include "cuda/prims/driver.h"
#endif

namespace dlkern::gpu {
namespace {

#if defined(__HIPCC__)
constexpr ErrorCode kNotInitialized = hipErrorNotInitialized;
constexpr ErrorCode kOutOfMemory = hipErrorOutOfMemory;
#else
constexpr ErrorCode kNotInitialized = cudaErrorInitializationError;
constexpr ErrorCode kOutOfMemory = cudaErrorMemoryAllocation;
#endif

// Errors that a fault in an earlier kernel leaves on the whole context.
bool is_sticky(ErrorCode code) {
#if defined(__HIPCC__)
  return code == hipErrorIllegalAddress || code == hipErrorLaunchFailure;
#else
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorECCUncorrectable:
      return true;
    default:
      return false;
  }
#endif
}

}  // namespace

void check(ErrorCode code, const char* what) {
  if (code == kSuccess) return;
  if (DLK_GPU(PeekAtLastError)() == code)
    (void)DLK_GPU(GetLastError)();  // told here, not left behind
  // What a child process gets that was forked after its parent had used the GPU.
  const char* hint = code == kNotInitialized
                         ? "; a process forked after CUDA was initialised cannot use it: start it "
                           "with the spawn method"
                         : "";
  fail(code == kOutOfMemory ? DLK_OUT_OF_MEMORY : DLK_DEVICE_ERROR, what, ": ",
       DLK_GPU(GetErrorName)(code), " (", DLK_GPU(GetErrorString)(code), ")", hint);
}

#if !defined(__HIPCC__)
namespace {

struct ClusterLaunch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};

  ClusterLaunch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, Stream stream,
                int cluster) {
    // More than 48 KB must be asked for, on each device; kernels have up to 16 KB of their own beside.
    constexpr size_t kGranted = 32 * 1024;
    if (shared_bytes > kGranted) {
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)),
            "shared memory of a kernel");
    }
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
  }
};

}  // namespace

int max_active_clusters(const void* kernel, int threads, size_t shared_bytes, int cluster) {
  const ClusterLaunch launch(kernel, cluster, threads, shared_bytes, nullptr, cluster);
  int count = 0;
  check(cudaOccupancyMaxActiveClusters(&count, kernel, &launch.config), "clusters at once");
  return count;
}
#endif

void launch_raw(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, Stream stream,
                void** args, int cluster) {
  const ErrorCode pending = DLK_GPU(PeekAtLastError)();
#if defined(__HIPCC__)
  (void)cluster;
  const ErrorCode code = hipLaunchKernel(kernel, grid, block, args, shared_bytes, stream);
#else
  const ClusterLaunch launch(kernel, grid, block, shared_bytes, stream, cluster);
  const ErrorCode code = cudaLaunchKernelExC(&launch.config, kernel, args);
#endif
  if (code == kSuccess) return;
  if (is_sticky(code)) {
    fail(DLK_DEVICE_ERROR, "the device already failed in earlier work, before this call: ",
         DLK_GPU(GetErrorName)(code), " (", DLK_GPU(GetErrorString)(code), ")");
  }
  if (pending != kSuccess && pending == code) {
    fail(DLK_DEVICE_ERROR, "kernel launch: ", DLK_GPU(GetErrorName)(code));  // and theirs stays
  }
  check(code, "kernel launch");
}

void launch_handle(void* kernel, unsigned blocks, unsigned threads, void** params, void* stream) {
#if defined(__HIPCC__)
  check(hipModuleLaunchKernel(static_cast<hipFunction_t>(kernel), blocks, 1, 1, threads, 1, 1, 0,
                              static_cast<Stream>(stream), params, nullptr),
        "kernel launch");
#else
  static const auto launch_kernel = driver_function<PFN_cuLaunchKernel_v4000>("cuLaunchKernel");
  const auto launch = [&] {
    return launch_kernel(static_cast<CUfunction>(kernel), blocks, 1, 1, threads, 1, 1, 0,
                         static_cast<Stream>(stream), params, nullptr);
  };
  CUresult code = launch();
  if (code == CUDA_ERROR_INVALID_CONTEXT) {  // of a thread that has not used the runtime yet
    int device = 0;
    check(cudaGetDevice(&device), "current device");
    check(cudaSetDevice(device), "set device");
    code = launch();
  }
  if (code == CUDA_SUCCESS) return;
  static const auto error_name = driver_function<PFN_cuGetErrorName_v6000>("cuGetErrorName");
  const char* name = "unknown error";
  (void)error_name(code, &name);
  fail(DLK_DEVICE_ERROR, "kernel launch: ", name);
#endif
}

int device_count() {
  const ErrorCode pending = DLK_GPU(PeekAtLastError)();
  int count = 0;
  if (DLK_GPU(GetDeviceCount)(&count) != kSuccess) {
    count = 0;  // no driver or no device
    if (pending == kSuccess) (void)DLK_GPU(GetLastError)();
  }
  return count;
}

int multiprocessor_count() {
  static std::atomic<int> cached[kMaxDevices];
  return cached_fact(cached, [](int device) {
    int count = 0;
#if defined(__HIPCC__)
    const ErrorCode code =
        hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, device);
#else
    const ErrorCode code = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
#endif
    check(code, "multiprocessor count");
    return count;
  });
}

int compute_capability() {
#if defined(__HIPCC__)
  return 0;
#else
  static std::atomic<int> cached[kMaxDevices];
  return cached_fact(cached, [](int device) {
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "capability");
    return 10 * major + minor;
  });
#endif
}

int grid_for(int64_t n, int per_block, int blocks_per_multiprocessor) {
  const int64_t full = int64_t{multiprocessor_count()} * blocks_per_multiprocessor;
  return static_cast<int>(std::clamp<int64_t>(ceil_div(n, per_block), 1, full));
}

void device_info(int device, dlk_device_info* info) {
#if defined(__HIPCC__)
  hipDeviceProp_t properties;
#else
  cudaDeviceProp properties;
#endif
  check(DLK_GPU(GetDeviceProperties)(&properties, device), "device properties");
  std::strncpy(info->name, properties.name, sizeof(info->name) - 1);
  info->name[sizeof(info->name) - 1] = '\0';
  info->compute_capability = 10 * properties.major + properties.minor;
  info->multiprocessors = properties.multiProcessorCount;
  const int previous = push_device(device);
  const ErrorCode code = DLK_GPU(MemGetInfo)(&info->free_memory_bytes, &info->total_memory_bytes);
  pop_device(previous);
  check(code, "memory size");
  check(DLK_GPU(DriverGetVersion)(&info->driver_version), "driver version");
  check(DLK_GPU(RuntimeGetVersion)(&info->runtime_version), "runtime version");
}

int push_device(int device) {
  int current = -1;
  check(DLK_GPU(GetDevice)(&current), "current device");
  if (current == device) return -1;
  check(DLK_GPU(SetDevice)(device), "set device");
  return current;
}

void pop_device(int previous) noexcept {
  if (previous >= 0) (void)DLK_GPU(SetDevice)(previous);
}

bool is_capturing(void* stream) {
#if defined(__HIPCC__)
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  const ErrorCode code = hipStreamIsCapturing(static_cast<Stream>(stream), &status);
  return code == kSuccess && status != hipStreamCaptureStatusNone;
#else
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const ErrorCode pending = cudaPeekAtLastError();
  const ErrorCode code = cudaStreamIsCapturing(static_cast<Stream>(stream), &status);
  if (code == kSuccess) return status != cudaStreamCaptureStatusNone;
  if (pending == kSuccess) (void)cudaGetLastError();
  // The legacy stream while another one captures: to synchronise it would break that capture.
  return code == cudaErrorStreamCaptureImplicit;
#endif
}

void synchronize(void* stream) {
  check(DLK_GPU(StreamSynchronize)(static_cast<Stream>(stream)), "after the kernel");
}

void copy_to_host(void* dst, const void* src, size_t bytes, void* stream) {
  check(DLK_GPU(MemcpyAsync)(dst, src, bytes, DLK_GPU(MemcpyDeviceToHost),
                             static_cast<Stream>(stream)),
        "copy to host");
  synchronize(stream);
}

const char* check_pointer(const void* data, size_t bytes, int device) {
#if defined(__HIPCC__)
  (void)bytes;
  hipPointerAttribute_t attributes;
  if (hipPointerGetAttributes(&attributes, data) != hipSuccess) {
    (void)hipGetLastError();
    return "is not memory that the HIP runtime knows";
  }
  if (attributes.memoryType == hipMemoryTypeDevice && attributes.device != device) {
    return "lies on another device than its DLTensor says";
  }
#else
  cudaPointerAttributes attributes;
  const cudaError_t pending = cudaPeekAtLastError();
  if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
    if (pending == cudaSuccess) (void)cudaGetLastError();
    return "is not memory that the CUDA runtime knows";
  }
  if (attributes.type == cudaMemoryTypeUnregistered) {
    return "is pageable host memory, not device memory";
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
    return "lies on another device than its DLTensor says";
  }
  // The driver knows how far the allocation around an address reaches.
  static const auto range = driver_function<PFN_cuMemGetAddressRange_v3020>("cuMemGetAddressRange");
  CUdeviceptr base = 0;
  size_t size = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  if (range(&base, &size, address) == CUDA_SUCCESS && address + bytes > base + size) {
    return "reaches past the end of its allocation";
  }
#endif
  return nullptr;
}

}  // namespace dlkern::gpu
