# Finds a Python with headers and NumPy, and pybind11: its own, or the system's. What is missing, if
# anything, is in TUTTI_PYTHON_MISSING.
set(TUTTI_PYTHON_MISSING "")
set(TUTTI_PYTHON_PATH ${PROJECT_BINARY_DIR}/python)

# The user's Python, or else the system's, which Debian's packages serve.
if(NOT SKBUILD AND NOT Python3_EXECUTABLE)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/find_python.sh numpy
                  OUTPUT_VARIABLE Python3_EXECUTABLE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT Python3_EXECUTABLE)
    unset(Python3_EXECUTABLE)
    set(TUTTI_PYTHON_MISSING "no Python with NumPy (Debian: python3-numpy)")
    return()
  endif()
endif()

find_package(Python3 3.9 QUIET COMPONENTS Interpreter Development.Module)
if(NOT Python3_FOUND)
  set(TUTTI_PYTHON_MISSING "no headers of ${Python3_EXECUTABLE} (Debian: python3-dev)")
  return()
endif()

find_package(pybind11 2.10 CONFIG QUIET)
if(NOT pybind11_FOUND)
  execute_process(COMMAND ${Python3_EXECUTABLE} -m pybind11 --cmakedir
                  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(pybind11 2.10 CONFIG QUIET)
endif()
if(NOT pybind11_FOUND)
  set(TUTTI_PYTHON_MISSING "no pybind11 (Debian: pybind11-dev)")
endif()
