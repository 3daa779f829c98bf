# Tests of the reading side of src/experts.
colibri_test(experts_io_test SOURCES experts_io_plan_test.cpp experts_io_reader_test.cpp experts_io_fault_test.cpp
  experts_io_probe_test.cpp
  LIBS colibri_experts)
