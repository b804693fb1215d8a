// What src/core needs of the GPU runtime; defined in src/cuda/runtime.cu, GPU builds only.
#pragma once

#include <dlkern/core.h>

#include <cstddef>

namespace dlkern::gpu {

int device_count();  // 0 without a driver or a device
void device_info(int device, dlk_device_info* info);

// Makes `device` current; returns the one that was, or -1 where nothing had to change.
int push_device(int device);
void pop_device(int previous) noexcept;

bool is_capturing(void* stream);
void synchronize(void* stream);                                             // throws DEVICE_ERROR
void copy_to_host(void* dst, const void* src, size_t bytes, void* stream);  // synchronises

// One launch of a kernel given by its driver's handle (CUfunction, CUkernel or hipFunction_t) on the
// current device, in one dimension; params: the addresses of its arguments.
void launch_handle(void* kernel, unsigned blocks, unsigned threads, void** params, void* stream);

// nullptr where [data, data + bytes) is memory that kernels on `device` can reach, else why not.
const char* check_pointer(const void* data, size_t bytes, int device);

}  // namespace dlkern::gpu
