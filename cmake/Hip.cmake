# HIP language: the portable .cu files by clang for AMD GPUs.
set(CMAKE_HIP_PLATFORM amd)
if(NOT CMAKE_HIP_COMPILER AND NOT DEFINED ENV{HIPCXX})
  find_program(DLKERN_HIP_CLANG NAMES clang++-15 amdclang++ clang++ PATHS /opt/rocm/llvm/bin REQUIRED)
  set(CMAKE_HIP_COMPILER "${DLKERN_HIP_CLANG}")
endif()
# Debian spreads ROCm over /usr, where clang does not look for it.
find_path(DLKERN_HIP_BITCODE ocml.bc PATHS /usr/lib/x86_64-linux-gnu/amdgcn/bitcode
          NO_DEFAULT_PATH)
if(DLKERN_HIP_BITCODE)
  set(CMAKE_HIP_FLAGS_INIT "--rocm-path=/usr --rocm-device-lib-path=${DLKERN_HIP_BITCODE}")
endif()

dlkern_option(DLKERN_HIP_ARCHS "gfx90a;gfx1030")
string(REGEX REPLACE "[, ]+" ";" DLKERN_ARCHS "${DLKERN_HIP_ARCHS}")
set(CMAKE_HIP_ARCHITECTURES "${DLKERN_ARCHS}")
enable_language(HIP)

# Not hip-config.cmake: Debian's is refused by CMake 4 for its age.
find_path(DLKERN_HIP_INCLUDE hip/hip_runtime.h PATHS /opt/rocm/include REQUIRED)
find_library(DLKERN_HIP_RUNTIME amdhip64 PATHS /opt/rocm/lib REQUIRED)
add_library(dlkern_hip INTERFACE)
target_compile_definitions(dlkern_hip INTERFACE __HIP_PLATFORM_AMD__=1)
target_include_directories(dlkern_hip SYSTEM INTERFACE "${DLKERN_HIP_INCLUDE}")
target_link_libraries(dlkern_hip INTERFACE "${DLKERN_HIP_RUNTIME}")

set(DLKERN_GPU_LANGUAGE HIP)
set(DLKERN_GPU_LIBRARY dlkern_hip)
set(DLKERN_GPU_OPTIONS -Wall)
set(DLKERN_GPU_COMPILER "${CMAKE_HIP_COMPILER_ID} ${CMAKE_HIP_COMPILER_VERSION}")
