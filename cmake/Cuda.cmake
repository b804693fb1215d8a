# CUDA language, from a toolkit on the machine or from the cuda-toolkit wheels.
if(NOT CMAKE_CUDA_COMPILER)
  if(NOT DLKERN_NVCC)
    message(FATAL_ERROR
            "dlkern: DLKERN_GPU=cuda needs nvcc 12.8 or newer and found none. `pip install .` "
            "fetches it; for plain CMake:\n"
            "  ${Python_EXECUTABLE} -m pip install 'cuda-toolkit[nvcc,cudart,cccl]==13.0.*'")
  endif()
  set(CMAKE_CUDA_COMPILER "${DLKERN_NVCC}")
endif()
# The wheels keep libraries in lib (nvcc looks in lib64) and have no unversioned libcudart.so.
if(CMAKE_CUDA_COMPILER MATCHES "(.*/nvidia/cu13)/bin/nvcc$")
  set(CMAKE_CUDA_FLAGS_INIT "-L${CMAKE_MATCH_1}/lib")
  set(CUDA_CUDART "${CMAKE_MATCH_1}/lib/libcudart.so.13" CACHE FILEPATH "")
endif()
if(NOT CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
endif()

# Architectures are set per target below; this one only lets the language be enabled.
set(CMAKE_CUDA_ARCHITECTURES 80)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# GPU architectures in CMake's syntax (commas allowed), or native for the GPUs of this machine.
# 80: every Ampere/Ada GPU by its binary, Blackwell datacentre by its PTX. 90a: Hopper.
# 120: newest consumer GPUs and what follows them, by PTX.
dlkern_option(DLKERN_CUDA_ARCHS "80;90a-real;120-virtual")
string(REGEX REPLACE "[, ]+" ";" archs "${DLKERN_CUDA_ARCHS}")
if(archs STREQUAL "native")
  set(archs "${CMAKE_CUDA_ARCHITECTURES_NATIVE}")
  if(NOT archs)
    message(FATAL_ERROR "dlkern: DLKERN_CUDA_ARCHS=native, but this machine shows no GPU")
  endif()
endif()
# Compute capability 9.0 is always built as 90a: same GPUs, with TMA and wgmma.
list(TRANSFORM archs REPLACE "^90(-.*)?$" "90a\\1")
list(REMOVE_DUPLICATES archs)
set(DLKERN_ARCHS "${archs}")
if(archs MATCHES "(^|;)90a")
  set(DLKERN_WITH_SM90 TRUE)
endif()

set(DLKERN_GPU_LANGUAGE CUDA)
set(DLKERN_GPU_LIBRARY CUDA::cudart_static)
set(DLKERN_GPU_OPTIONS --expt-relaxed-constexpr --extended-lambda "SHELL:-Xfatbin -compress-all"
                       "SHELL:-Xcompiler -Wall")
set(DLKERN_GPU_COMPILER "nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
