colibri_test(gpu_regions_test SOURCES gpu_regions_test.cpp LIBS colibri_gpu)
