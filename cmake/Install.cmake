# What `cmake --install` lays down. A wheel holds the same tree inside the package, so that C
# hosts can use either:
#   include/dlkern/*.h  include/dlpack/dlpack.h                dlkern.get_include()
#   lib/libdlkern.so    lib/libscipy_openblas.so (its BLAS)    dlkern.get_library()
#   lib/libdlkern.a     (not in a wheel)
#   lib/cmake/dlkern    find_package(dlkern): dlkern::dlkern, dlkern::static
#   lib/pkgconfig       dlkern.pc
# In a wheel this is dlkern/include and dlkern/lib, beside dlkern/_dlkern.*.so. Python must look
# for it next to _dlkern's file, not next to dlkern/__init__.py: in an editable install the two
# are in different places.
include(CMakePackageConfigHelpers)
if(SKBUILD)
  set(CMAKE_INSTALL_INCLUDEDIR dlkern/include)
  set(CMAKE_INSTALL_LIBDIR dlkern/lib)
  set(libraries dlkern_shared)
else()
  set(libraries dlkern_shared dlkern_static)
endif()
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/dlkern")
set(pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

set_target_properties(dlkern_shared PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS ${libraries}
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(IMPORTED_RUNTIME_ARTIFACTS OpenBLAS::OpenBLAS LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY include/dlkern DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_BINARY_DIR}/include/dlpack/dlpack.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dlpack")
if(DLKERN_PYTHON)
  set_target_properties(_dlkern PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
  install(TARGETS _dlkern LIBRARY DESTINATION dlkern)
endif()

# What a host adds when it links the static library.
get_target_property(blas_file OpenBLAS::OpenBLAS IMPORTED_LOCATION)
get_filename_component(blas_name "${blas_file}" NAME)
set(static_needs stdc++ ${OpenMP_CXX_LIB_NAMES} m dl rt)
if(DLKERN_BACKEND STREQUAL "cuda")
  list(PREPEND static_needs cudart_static)
elseif(DLKERN_BACKEND STREQUAL "hip")
  list(PREPEND static_needs amdhip64)
endif()

configure_package_config_file(
  cmake/dlkernConfig.cmake.in "${PROJECT_BINARY_DIR}/dlkernConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/dlkernConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/dlkernConfig.cmake" "${PROJECT_BINARY_DIR}/dlkernConfigVersion.cmake"
        DESTINATION "${package_dir}")

# pkg-config takes the prefix from where the file lies, so the tree can be moved.
file(RELATIVE_PATH pc_to_include "/${pc_dir}" "/${CMAKE_INSTALL_INCLUDEDIR}")
list(TRANSFORM static_needs PREPEND "-l" OUTPUT_VARIABLE pc_static)
list(JOIN pc_static " " pc_static)
configure_file(cmake/dlkern.pc.in dlkern.pc @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/dlkern.pc" DESTINATION "${pc_dir}")
