# Tests of src/base.
colibri_test(base_test SOURCES base_test.cpp LIBS colibri_base colibri_json)
