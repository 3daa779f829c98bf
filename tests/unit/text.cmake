# Tests of src/text.
colibri_test(text_tokenizer_test SOURCES text_tokenizer_test.cpp LIBS colibri_text nlohmann_json::nlohmann_json)
