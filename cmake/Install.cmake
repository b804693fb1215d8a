# What `cmake --install` lays down. In a wheel the same tree lies inside the package:
#   dlkern/include/dlkern/*.h, dlkern/include/dlpack/dlpack.h   dlkern.get_include()
#   dlkern/lib/libdlkern.so, libscipy_openblas.so               dlkern.get_library()
# beside dlkern/_dlkern.*.so. Python must look next to _dlkern's file, not next to
# dlkern/__init__.py: in an editable install the two are in different places.
if(SKBUILD)
  set(CMAKE_INSTALL_INCLUDEDIR dlkern/include)
  set(CMAKE_INSTALL_LIBDIR dlkern/lib)
endif()

install(DIRECTORY include/dlkern DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_BINARY_DIR}/include/dlpack/dlpack.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dlpack")
set_target_properties(dlkern_shared PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS dlkern_shared LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(IMPORTED_RUNTIME_ARTIFACTS OpenBLAS::OpenBLAS LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(DLKERN_PYTHON)
  set_target_properties(_dlkern PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
  install(TARGETS _dlkern LIBRARY DESTINATION dlkern)
endif()
