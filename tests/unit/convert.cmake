# Tests of src/convert and of the packed layout.
colibri_test(convert_packed_test SOURCES convert_packed_test.cpp LIBS colibri_convert colibri_json)
colibri_test(convert_quantize_test SOURCES convert_quantize_test.cpp LIBS colibri_convert)
colibri_test(convert_model_test SOURCES convert_model_test.cpp LIBS colibri_convert)
colibri_test(convert_engine_test SOURCES convert_engine_test.cpp LIBS colibri_convert colibri_engine)
colibri_test(convert_synth_test SOURCES convert_synth_test.cpp LIBS colibri_convert)
if(COLIBRI_APPS)
  target_link_libraries(convert_synth_test PRIVATE colibri_text)
  target_compile_definitions(convert_synth_test PRIVATE COLIBRI_TEST_TEXT=1)
endif()
# Most of their time would go into optimising GoogleTest.
foreach(name convert_packed_test convert_quantize_test convert_model_test convert_engine_test convert_synth_test)
  target_compile_options(${name} PRIVATE -O1)
endforeach()
