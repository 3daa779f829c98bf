# Run by CTest: cmake -DNM=... -DOBJECTS=a.o;b.o -P cpu_symbols.cmake
# An inline function that a file compiled for AVX2 or AVX-512 emits is weak, and the linker may keep that copy for the
# whole program, which then stops with an illegal instruction on other machines. So those objects must have none.
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "/(avx2|avx512|neon)[^/]*\\.o$")
    continue()
  endif()
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [WwVvu] [^\n]*" weak "${symbols}")
  if(weak)
    list(JOIN weak "\n" weak)
    message(FATAL_ERROR "${object} defines weak symbols:\n${weak}")
  endif()
  # Code that runs before main would run on every machine.
  if(symbols MATCHES "_GLOBAL__sub_I")
    message(FATAL_ERROR "${object} has a static initialiser")
  endif()
  list(APPEND checked ${object})
endforeach()
list(LENGTH checked count)
if(count EQUAL 0)
  message(FATAL_ERROR "no object of an instruction set among: ${OBJECTS}")
endif()
message(STATUS "${count} objects checked")
