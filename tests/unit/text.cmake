# Tests of src/text.
colibri_test(text_tokenizer_test SOURCES text_tokenizer_test.cpp LIBS colibri_text nlohmann_json::nlohmann_json)
colibri_test(text_golden_test SOURCES text_golden_test.cpp LIBS colibri_text nlohmann_json::nlohmann_json)
# Where scripts/fetch_test_tokenizers.sh puts other models' tokenizers.
set(COLIBRI_TEST_TOKENIZERS "${PROJECT_SOURCE_DIR}/build/test-data/tokenizers" CACHE PATH "Folder of the test tokenizers")
target_compile_definitions(text_golden_test PRIVATE COLIBRI_TEST_TOKENIZERS="${COLIBRI_TEST_TOKENIZERS}")
