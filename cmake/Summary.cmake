# What was built, said at the end of configuring and again at the end of every build.
list(JOIN DLKERN_ARCHS " " archs)
set(summary "dlkern ${PROJECT_VERSION}: CPU")
if(DLKERN_GPU_LANGUAGE)
  string(APPEND summary " + ${DLKERN_GPU_LANGUAGE} (${archs})\n")
else()
  string(APPEND summary " only\n")
endif()
string(APPEND summary "  compilers  ${DLKERN_COMPILERS}\n"
                      "  BLAS       ${DLKERN_BLAS}\n"
                      "  CPU code   ${DLKERN_CPU_ARCH}\n")
if(DLKERN_BACKEND STREQUAL "none")
  string(APPEND summary "  for CUDA   DLKERN_GPU=cuda pip install .\n")
endif()
message(STATUS "----\n${summary}----")

file(WRITE "${PROJECT_BINARY_DIR}/summary.txt" "${summary}")
add_custom_target(dlkern_summary ALL COMMAND "${CMAKE_COMMAND}" -E cat summary.txt
                  WORKING_DIRECTORY "${PROJECT_BINARY_DIR}" VERBATIM)
add_dependencies(dlkern_summary dlkern_static dlkern_shared)
if(DLKERN_PYTHON)
  add_dependencies(dlkern_summary _dlkern)
endif()
