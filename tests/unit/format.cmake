# Tests of src/format.
colibri_test(format_models_test SOURCES format_models_test.cpp LIBS colibri_format)
