# GPUs: built where nvcc is found, with NCCL where its header is; otherwise files that say so stand
# in. Neither the driver nor NCCL is linked: both are looked for when the program runs.
option(TUTTI_CUDA "Build for GPUs where nvcc is found" ON)

# tutti_local_architectures(VARIABLE): those of this machine's GPUs; without a GPU, one that the
# driver can translate for all later ones.
function(tutti_local_architectures variable)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE capabilities ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" architectures "${capabilities}")
  list(TRANSFORM architectures REPLACE "\\." "")
  list(TRANSFORM architectures APPEND -real)
  list(REMOVE_DUPLICATES architectures)
  if(NOT architectures)
    set(architectures 80)
  endif()
  set(${variable} ${architectures} PARENT_SCOPE)
endfunction()

set(tutti_has_cuda OFF)
set(tutti_has_nccl OFF)
if(TUTTI_CUDA)
  if("${CMAKE_CUDA_ARCHITECTURES}" STREQUAL "")
    if(DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES $ENV{CUDAARCHS})
    elseif(SKBUILD)
      tutti_local_architectures(CMAKE_CUDA_ARCHITECTURES)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
    endif()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  find_package(CUDAToolkit QUIET)
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cudart_static)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 has not heard of it
    endif()
    set(tutti_has_cuda ON)
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    mark_as_advanced(NCCL_INCLUDE_DIR)
    if(NCCL_INCLUDE_DIR)
      set(tutti_has_nccl ON)
    endif()
  endif()
endif()
if(tutti_has_cuda)
  message(STATUS "tutti: CUDA for ${CMAKE_CUDA_ARCHITECTURES}, NCCL ${tutti_has_nccl}")
else()
  message(STATUS "tutti: no CUDA")
endif()

# tutti_add_cuda_objects(TARGET): compiles the .cu files for TARGET. Through objects, so that what
# links TARGET is linked by the C++ compiler and not by nvcc.
function(tutti_add_cuda_objects target)
  add_library(${target}_cuda OBJECT ${ARGN})
  set_target_properties(${target}_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON
                        CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
                        UNITY_BUILD OFF)
  target_include_directories(${target}_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  # As on the CPU, a product and a sum round twice. constexpr functions run on both sides.
  target_compile_options(${target}_cuda PRIVATE -fmad=false --expt-relaxed-constexpr
                         -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter)
  if(TUTTI_WERROR)
    target_compile_options(${target}_cuda PRIVATE -Werror all-warnings)
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_cuda>)
endfunction()
