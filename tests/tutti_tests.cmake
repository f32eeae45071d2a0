# How a test becomes ctest's tests. Labels: unit, multirank, rig, simulation, fuzz, python, launch, package, gpu, nccl.

include(GoogleTest)

# The user may be root. Inside containers Open MPI may not read the memory of its own neighbours
# (single_copy). A test that hangs ends in PeerLost, long before ctest would kill it.
set(tutti_test_environment
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_btl_vader_single_copy_mechanism=none
    TUTTI_TIMEOUT=30)

# Of Python's tests, which start a thousand interpreters. It goes into the build, whatever the user has chosen.
set(tutti_bytecode PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=${PROJECT_BINARY_DIR}/bytecode)

if(TUTTI_SANITIZE MATCHES "address")
  # The fake stack of GCC 12's runtime does not align vectors of 64 bytes, as AVX-512 has them.
  list(APPEND tutti_test_environment
       ASAN_OPTIONS=detect_stack_use_after_return=0:fast_unwind_on_malloc=0 UBSAN_OPTIONS=print_stacktrace=1
       LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/support/lsan.supp:print_suppressions=0)
elseif(TUTTI_SANITIZE MATCHES "thread")
  list(APPEND tutti_test_environment TSAN_OPTIONS=halt_on_error=1)
endif()

# Where no run before has told how long each takes, these begin first.
set(tutti_long_tests "benchmarks\\.scale" cluster "communicator\\..*" "example\\.mnist_.*"
    "launch\\.(endings|keep_going|machines|soak.*|ssh)" many_hosts "mpi_loss\\..*" "one_way\\..*" "ps\\.faults"
    "python\\.(communicator|ctr|data_workers|dist_opt|example|fleetrun|launcher|lifetime|package|ps_paddle)"
    "rig\\.(faults|late_rank|mpi_ends|store_loss)" simulation)
list(JOIN tutti_long_tests "|" tutti_long_tests)

# tutti_add_test(NAME LABEL TIMEOUT SLOTS COMMAND...): what all kinds of tests share. There are four slots for each
# core (Makefile). SLOTS is `waits`, one slot, for a test that hardly computes, however many ranks it has; `half` for
# one that does half of the time; or how many cores it would keep busy, with three slots for each.
function(tutti_add_test name label timeout slots)
  if(slots STREQUAL "waits")
    set(slots 1)
  elseif(slots STREQUAL "half")
    set(slots 2)
  else()
    math(EXPR slots "3 * ${slots}")
  endif()
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${timeout}
                       PROCESSORS ${slots} ENVIRONMENT "${tutti_test_environment}")
  if(name MATCHES "^(${tutti_long_tests})$")
    set_tests_properties(${name} PROPERTIES COST 1000)
  endif()
endfunction()

set(tutti_unit_timeout 60)
if(TUTTI_SANITIZE MATCHES "thread")  # some compute for as long as a minute
  set(tutti_unit_timeout 300)
endif()

# tutti_unit_tests(): the program unit_tests of all unit/*_test.cpp; one test of ctest per TEST.
# They need no environment of MPI: no MPI job, no waits.
function(tutti_unit_tests)
  file(GLOB sources CONFIGURE_DEPENDS unit/*_test.cpp)
  if(NOT TARGET mnist_cnn)
    list(FILTER sources EXCLUDE REGEX /mnist_)  # those of the example
  endif()
  add_executable(unit_tests ${sources} $<TARGET_OBJECTS:tutti_launch>)
  # First, or main() would be that of test_support.
  target_link_libraries(unit_tests PRIVATE GTest::gtest_main test_support $<TARGET_NAME_IF_EXISTS:mnist_cnn>)
  if(TUTTI_SANITIZE MATCHES "thread")  # which does not see how OpenBLAS hands work to its threads
    set(environment ENVIRONMENT OPENBLAS_NUM_THREADS=1)
  endif()
  gtest_discover_tests(unit_tests TEST_PREFIX unit. DISCOVERY_MODE PRE_TEST
                       PROPERTIES LABELS unit TIMEOUT ${tutti_unit_timeout} PROCESSORS 2 ${environment})
endfunction()

# tutti_multirank_test(NAME SOURCES file... [RANKS n...] [MPI_RANKS n...] [LAUNCH mpi fork threads]
#                      [HOSTS layout... [ONLY_HOSTS]] [MPIEXEC_FLAGS flag...] [LABEL label] [TIMEOUT seconds]
#                      [SLOTS waits|half])
#
# One program NAME_test of the files, linked to test_support (which has main()), and for each number
# of ranks (1 2 3 4 unless told) and way to launch (all three unless told) a test:
#   NAME.mpi.n      mpiexec -n n PROGRAM
#   NAME.fork.n     PROGRAM --ranks n --launch fork
#   NAME.threads.n  PROGRAM --ranks n --launch threads, for ThreadSanitizer above all: two or three, and
#                   one for it alone
# and for each layout of pretended hosts NAME.hosts<layout>: mpiexec with TUTTI_TEST_HOSTS=<layout>,
# where 3x1 is three hosts of one rank each, 2+1 is two ranks on a host and one on another, and 0,1,0
# is the host of each rank. With ONLY_HOSTS there are these alone: on one host nothing is to be tested. A rank is taken
# to keep a core busy, unless SLOTS tells otherwise.
# Under mpiexec MPI brings the ranks of a host together, and has no part in what they do then: where that takes long,
# MPI_RANKS are fewer numbers than RANKS for mpi.n.
function(tutti_multirank_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ONLY_HOSTS" "LABEL;TIMEOUT;SLOTS" "SOURCES;RANKS;MPI_RANKS;LAUNCH;HOSTS;MPIEXEC_FLAGS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "tutti_multirank_test(${name}): SOURCES missing, or what is "
                        "'${arg_UNPARSED_ARGUMENTS}'?")
  endif()
  foreach(default IN ITEMS "RANKS;1;2;3;4" "LAUNCH;mpi;fork;threads" "LABEL;multirank" "TIMEOUT;120")
    list(POP_FRONT default key)
    if(NOT DEFINED arg_${key})
      set(arg_${key} ${default})
    endif()
  endforeach()
  if(arg_ONLY_HOSTS)
    set(arg_LAUNCH "")
  endif()
  if(NOT arg_MPI_RANKS)
    set(arg_MPI_RANKS ${arg_RANKS})
  endif()
  # Open MPI is not clean under ThreadSanitizer, which sees no races between forked processes.
  set(threads 2 3)
  if(TUTTI_SANITIZE MATCHES "thread")
    list(REMOVE_ITEM arg_LAUNCH mpi fork)
    unset(arg_HOSTS)
    list(APPEND threads 1)
  endif()
  if(NOT arg_LAUNCH AND NOT arg_HOSTS)
    return()
  endif()

  add_executable(${name}_test ${arg_SOURCES})
  target_link_libraries(${name}_test PRIVATE test_support)
  set(program $<TARGET_FILE:${name}_test>)
  set(mpiexec ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none ${arg_MPIEXEC_FLAGS})

  foreach(ranks IN LISTS arg_RANKS)
    set(slots ${ranks})
    if(arg_SLOTS)
      set(slots ${arg_SLOTS})
    endif()
    if("mpi" IN_LIST arg_LAUNCH AND ranks IN_LIST arg_MPI_RANKS)
      tutti_add_test(${name}.mpi.${ranks} ${arg_LABEL} ${arg_TIMEOUT} ${slots}
                     ${mpiexec} -n ${ranks} ${program})
    endif()
    foreach(launch IN ITEMS fork threads)
      if(launch IN_LIST arg_LAUNCH AND (launch STREQUAL "fork" OR ranks IN_LIST threads))
        tutti_add_test(${name}.${launch}.${ranks} ${arg_LABEL} ${arg_TIMEOUT} ${slots}
                       ${program} --ranks ${ranks} --launch ${launch})
      endif()
    endforeach()
  endforeach()

  foreach(layout IN LISTS arg_HOSTS)
    if(layout MATCHES ",")
      string(REGEX MATCHALL "[0-9]+" ranks ${layout})
      list(LENGTH ranks ranks)
    else()
      string(REPLACE "x" "*" ranks ${layout})
      math(EXPR ranks ${ranks})
    endif()
    set(slots ${ranks})
    if(arg_SLOTS)
      set(slots ${arg_SLOTS})
    endif()
    tutti_add_test(${name}.hosts${layout} ${arg_LABEL} ${arg_TIMEOUT} ${slots}
                   ${mpiexec} -n ${ranks} -x TUTTI_TEST_HOSTS=${layout} ${program})
  endforeach()
endfunction()
