# The test package.consumer; its arguments are in CMakeLists.txt.
set(prefix ${work}/prefix)
set(source ${CMAKE_CURRENT_LIST_DIR}/project)
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY
                  WORKING_DIRECTORY ${work})
endfunction()

run(${CMAKE_COMMAND} --install ${build} --prefix ${prefix})

run(${CMAKE_COMMAND} -S ${source} -B found -G ${generator}
    -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build found)
run(found/consumer)

set(ENV{PKG_CONFIG_PATH} ${prefix}/${libdir}/pkgconfig)
execute_process(COMMAND ${pkg_config} --cflags --libs tutti OUTPUT_VARIABLE flags
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${compiler} ${source}/consumer.cpp -o consumer ${flags} -Wl,-rpath,${prefix}/${libdir})
run(${work}/consumer)
