# The GPU's part of the library, or the file that stands in for it.
set(cuda ${CMAKE_CURRENT_LIST_DIR})

if(tutti_has_cuda)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${cuda}/*.cpp)
  list(REMOVE_ITEM cuda_sources ${cuda}/no_cuda.cpp)
  target_sources(tutti PRIVATE ${cuda_sources})
  file(GLOB cuda_kernels CONFIGURE_DEPENDS ${cuda}/*.cu)
  if(cuda_kernels)
    tutti_add_cuda_objects(tutti ${cuda_kernels})
  endif()
  # System headers, which are not as tidy as ours.
  target_include_directories(tutti SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  # Installed beside a static library: those who use it need no CUDA. A shared one contains it.
  target_link_libraries(tutti PRIVATE $<BUILD_INTERFACE:CUDA::cudart_static>)
  if(NOT BUILD_SHARED_LIBS)
    target_link_libraries(tutti PRIVATE $<INSTALL_INTERFACE:tutti::cudart>)
  endif()
else()
  target_sources(tutti PRIVATE ${cuda}/no_cuda.cpp)
endif()
