# Facts that Python knows: build_backend/probe.py finds them, this file only reads them.
#   DLKERN_BACKEND           none | cuda | hip: what DLKERN_GPU resolved to
#   DLKERN_NVCC              CUDA compiler, empty without one
#   DLKERN_DLPACK_DIR        folder of dlpack.h
#   DLKERN_OPENBLAS_DIR      CMake package folder of scipy-openblas32
#   DLKERN_CYTHON_CMAKE_DIR  folder of UseCython.cmake
#   DLKERN_XLA_DIR           include folder of jaxlib, empty without one
find_package(Python REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/build_backend/probe.py" "${DLKERN_GPU}"
  OUTPUT_VARIABLE facts
  ERROR_VARIABLE error
  RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "dlkern: ${error}")
endif()

function(dlkern_fact key variable)
  if(NOT facts MATCHES "(^|\n)${key}=([^\n]*)")
    message(FATAL_ERROR "dlkern: build_backend/probe.py gave no ${key}")
  endif()
  set(${variable} "${CMAKE_MATCH_2}" PARENT_SCOPE)
endfunction()
dlkern_fact(gpu DLKERN_BACKEND)
dlkern_fact(nvcc DLKERN_NVCC)
dlkern_fact(dlpack_dir DLKERN_DLPACK_DIR)
dlkern_fact(openblas_dir DLKERN_OPENBLAS_DIR)
dlkern_fact(cython_cmake_dir DLKERN_CYTHON_CMAKE_DIR)
dlkern_fact(xla_dir DLKERN_XLA_DIR)

foreach(need "DLPACK_DIR;apache-tvm-ffi" "OPENBLAS_DIR;scipy-openblas32")
  list(GET need 0 variable)
  list(GET need 1 package)
  if(NOT DLKERN_${variable})
    message(FATAL_ERROR "dlkern: Python package ${package} is missing.\n"
                        "Install it: ${Python_EXECUTABLE} -m pip install ${package}")
  endif()
endforeach()
