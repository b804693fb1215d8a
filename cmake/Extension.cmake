# The one Cython extension, dlkern._dlkern. It binds the C API of the shared library that lies
# beside it, so that the kernels are in a wheel once. With XLA's headers, which jaxlib brings, it has
# XLA's handlers in it; it is linked to nothing of jaxlib's.
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
list(APPEND CMAKE_MODULE_PATH "${DLKERN_CYTHON_CMAKE_DIR}")
include(UseCython)

file(GLOB pyx_parts CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/pyx/*.px[id]")
cython_transpile("${PROJECT_SOURCE_DIR}/src/pyx/_dlkern.pyx"
  LANGUAGE C
  MODULE_NAME dlkern._dlkern
  INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/src/pyx"
  DEPENDS ${pyx_parts}
  OUTPUT "${PROJECT_BINARY_DIR}/_dlkern.c"
  OUTPUT_VARIABLE extension_source)

# The C functions that the headers declare, as lists for src/ffi.
file(GLOB api_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/dlkern/*.h")
list(FILTER api_headers EXCLUDE REGEX "/core\\.h$")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${api_headers})
set(function_list "")
set(renames "")
foreach(header IN LISTS api_headers)
  file(STRINGS "${header}" declarations REGEX "^DLK_API dlk_status_t dlk_[a-z0-9_]+\\(")
  foreach(declaration IN LISTS declarations)
    string(REGEX REPLACE "^DLK_API dlk_status_t (dlk_[a-z0-9_]+).*" "\\1" function "${declaration}")
    string(APPEND function_list " \\\n  X(${function})")
    string(APPEND renames "#define ${function} recorded_${function}\n")
  endforeach()
endforeach()
file(CONFIGURE OUTPUT generated/ffi/dlk_functions.h CONTENT "#define DLK_FUNCTIONS(X)@function_list@\n" @ONLY)
file(CONFIGURE OUTPUT generated/ffi/dlk_recorded_names.h CONTENT "@renames@" @ONLY)

file(GLOB ffi_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/ffi/*.cpp")
python_add_library(_dlkern MODULE WITH_SOABI "${extension_source}" ${ffi_sources})
target_include_directories(_dlkern PRIVATE "${PROJECT_SOURCE_DIR}/src"
                                           "${PROJECT_BINARY_DIR}/generated/ffi")
if(DLKERN_XLA_DIR)
  target_include_directories(_dlkern SYSTEM PRIVATE "${DLKERN_XLA_DIR}")
endif()
target_compile_options(_dlkern PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>")
target_link_libraries(_dlkern PRIVATE dlkern_shared)
