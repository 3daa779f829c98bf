colibri_test(model_step_test SOURCES model_step_test.cpp LIBS colibri_model)
