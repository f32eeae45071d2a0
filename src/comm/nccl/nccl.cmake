# NCCL's part of the library, or the file that stands in for it.
set(nccl ${CMAKE_CURRENT_LIST_DIR})

if(tutti_has_nccl)
  file(GLOB nccl_sources CONFIGURE_DEPENDS ${nccl}/*.cpp)
  list(REMOVE_ITEM nccl_sources ${nccl}/no_nccl.cpp)
  target_sources(tutti PRIVATE ${nccl_sources})
  target_include_directories(tutti SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
  target_link_libraries(tutti PRIVATE ${CMAKE_DL_LIBS})
else()
  target_sources(tutti PRIVATE ${nccl}/no_nccl.cpp)
endif()
