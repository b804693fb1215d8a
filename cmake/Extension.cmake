# The one Cython extension, dlkern._dlkern. It binds the C API of the shared library that lies
# beside it, so that the kernels are in a wheel once.
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
python_add_library(_dlkern MODULE WITH_SOABI "${extension_source}")
target_link_libraries(_dlkern PRIVATE dlkern_shared)
