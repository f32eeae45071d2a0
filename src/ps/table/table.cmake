# Rows are changed while others read them, element by element, which ThreadSanitizer is not to report.
# A compiler makes vectors of square roots where nobody asks for errno.
set(row_options -fno-math-errno)
if(TUTTI_SANITIZE MATCHES "thread")
  list(APPEND row_options -fno-sanitize=thread)
endif()
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/rules.cpp
                            PROPERTIES COMPILE_OPTIONS "${row_options}")
