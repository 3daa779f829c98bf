# Tests of src/format.
colibri_test(format_decode_test SOURCES format_decode_test.cpp LIBS colibri_format)
colibri_test(format_container_test SOURCES format_container_test.cpp LIBS colibri_format)
colibri_test(format_models_test SOURCES format_models_test.cpp LIBS colibri_format)
colibri_test(format_config_test SOURCES format_config_test.cpp LIBS colibri_format colibri_json)
colibri_test(format_hostile_test SOURCES format_hostile_test.cpp LIBS colibri_format)
colibri_test(format_safetensors_test SOURCES format_safetensors_test.cpp LIBS colibri_format)
