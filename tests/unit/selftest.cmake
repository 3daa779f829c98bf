colibri_test(selftest_test SOURCES selftest_test.cpp LIBS colibri_selftest)
