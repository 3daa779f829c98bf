# Tests of src/cpu.
colibri_test(cpu_products_test SOURCES cpu_products_test.cpp LIBS colibri_cpu)
colibri_test(cpu_elementwise_test SOURCES cpu_elementwise_test.cpp LIBS colibri_cpu)
if(CMAKE_NM AND NOT APPLE AND NOT COLIBRI_SANITIZE)
  add_test(NAME cpu_symbols COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} "-DOBJECTS=$<TARGET_OBJECTS:colibri_cpu>"
                                    -P ${CMAKE_CURRENT_SOURCE_DIR}/cpu_symbols.cmake)
endif()
