# Tests of src/numerics.
colibri_test(numerics_test SOURCES numerics_test.cpp LIBS colibri_numerics)
