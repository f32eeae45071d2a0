# The CPU kernels: one body, compiled once for each instruction set and chosen at run time.
set(cpu ${CMAKE_CURRENT_LIST_DIR})
target_sources(tutti PRIVATE ${cpu}/arithmetic.cpp ${cpu}/kernels.cpp ${cpu}/kernels_portable.cpp
                             ${cpu}/cut.cpp ${cpu}/select.cpp)
# Of one text, like those below: in a unity build they stay apart.
set_source_files_properties(${cpu}/kernels_portable.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

if(tutti_x86_64)
  target_sources(tutti PRIVATE ${cpu}/isa_x86.cpp ${cpu}/relax_x86.cpp ${cpu}/ticks_x86.cpp
                               ${cpu}/kernels_avx2.cpp ${cpu}/kernels_avx512.cpp)
  set(avx2 -mavx2 -mf16c)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
  set_source_files_properties(${cpu}/kernels_avx2.cpp PROPERTIES COMPILE_OPTIONS "${avx2}")
  set_source_files_properties(${cpu}/kernels_avx512.cpp PROPERTIES COMPILE_OPTIONS "${avx512}")
else()
  target_sources(tutti PRIVATE ${cpu}/isa_other.cpp ${cpu}/relax_other.cpp ${cpu}/ticks_other.cpp)
endif()
