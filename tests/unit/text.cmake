# Tests of src/text.
colibri_test(text_test
  SOURCES text_tokenizer_test.cpp text_utf8_test.cpp text_bpe_test.cpp text_split_test.cpp text_pattern_test.cpp
    text_added_tokens_test.cpp text_hostile_test.cpp text_stop_test.cpp
  LIBS colibri_text colibri_json colibri_pcre2 colibri_utf8proc)

# Other models' tokenizers, installed by scripts/fetch_test_tokenizers.sh.
set(COLIBRI_TEST_TOKENIZERS "${PROJECT_SOURCE_DIR}/build/test-data/tokenizers" CACHE PATH "Folder of the test tokenizers")
colibri_test(text_golden_test SOURCES text_golden_test.cpp LIBS colibri_text colibri_json)
target_compile_definitions(text_golden_test PRIVATE COLIBRI_TEST_TOKENIZERS="${COLIBRI_TEST_TOKENIZERS}")
