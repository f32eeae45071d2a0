# How everything in this tree is compiled. Nothing here reaches those who use the library.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)  # for clang-tidy
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release)
  endif()
endif()

find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# For C++ alone: nvcc's options are in cuda.cmake.
function(add_cxx_options)
  foreach(flag IN LISTS ARGN)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${flag}>)
  endforeach()
endfunction()

# A fused multiply-add rounds once where a product and a sum round twice: without it the portable,
# AVX2 and AVX-512 kernels give the same bits.
add_cxx_options(-ffp-contract=off)

add_cxx_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_cxx_options(-Wno-restrict)  # false alarms on "text" + std::string, GCC bug 105651
endif()
if(CMAKE_UNITY_BUILD)
  add_cxx_options(-Wno-subobject-linkage)  # a source in an anonymous namespace counts as a header there
endif()
if(TUTTI_WERROR)
  add_cxx_options(-Werror)
endif()

if(TUTTI_SANITIZE)
  # To check the type of an object it first looks at memory through a pipe, which tests that have no
  # descriptors left do not get.
  add_cxx_options(-fsanitize=${TUTTI_SANITIZE} -fno-sanitize=vptr -fno-sanitize-recover=all
                  -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's flow analysis sees paths that only the sanitizer's own code makes.
    add_cxx_options(-Wno-maybe-uninitialized)
    if(TUTTI_SANITIZE MATCHES "thread")
      # It does not model fences, and says so. No plain memory is handed over by one here: they stand
      # before looks that tell whether what was read is to be used.
      add_cxx_options(-Wno-tsan)
    endif()
  endif()
endif()
