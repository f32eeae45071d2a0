# Installs the library, its headers, the launcher, and what find_package(tutti) and pkg-config need.
include(CMakePackageConfigHelpers)

install(TARGETS tutti EXPORT tuttiTargets)
install(TARGETS tutti_launcher)
install(DIRECTORY include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.hpp)

set(tutti_cudart "")
if(tutti_has_cuda AND NOT BUILD_SHARED_LIBS)
  set(tutti_cudart ${CMAKE_INSTALL_LIBDIR}/tutti/libtutti_cudart.a)
  install(FILES ${CUDA_cudart_static_LIBRARY} DESTINATION ${CMAKE_INSTALL_LIBDIR}/tutti
          RENAME libtutti_cudart.a)
endif()

set(tutti_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${tutti_cmake_dir})
configure_package_config_file(cmake/tuttiConfig.cmake.in tuttiConfig.cmake
                              INSTALL_DESTINATION ${tutti_cmake_dir} PATH_VARS tutti_cudart)
write_basic_package_version_file(tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
        DESTINATION ${tutti_cmake_dir})

# The prefix in tutti.pc is relative to the file, so that an installation may be moved, and
# `cmake --install --prefix` need not agree with the prefix of the configuration.
file(RELATIVE_PATH tutti_pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
list(TRANSFORM MPI_CXX_INCLUDE_DIRS PREPEND -isystem OUTPUT_VARIABLE tutti_pc_mpi_includes)
list(TRANSFORM MPI_CXX_COMPILE_DEFINITIONS PREPEND -D OUTPUT_VARIABLE tutti_pc_mpi_definitions)
list(JOIN tutti_pc_mpi_includes " " tutti_pc_mpi_includes)
list(JOIN tutti_pc_mpi_definitions " " tutti_pc_mpi_definitions)
set(tutti_pc_mpi_libs ${MPI_CXX_LIBRARIES})
list(FILTER tutti_pc_mpi_libs EXCLUDE REGEX mpi_cxx)  # MPI's C++ interface, which mpicxx adds
list(JOIN tutti_pc_mpi_libs " " tutti_pc_mpi_libs)
set(tutti_pc_gpu_libs "")
if(tutti_cudart)
  set(tutti_pc_gpu_libs "-L\${libdir}/tutti -ltutti_cudart -ldl -lrt")
endif()
configure_file(tutti.pc.in tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
