# Tests of the cache's decisions in src/experts: traces, policies, the directory, replay.
colibri_test(experts_cache_test SOURCES experts_cache_test.cpp LIBS colibri_experts)
colibri_test(experts_cache_policy_test SOURCES experts_cache_policy_test.cpp LIBS colibri_experts)
colibri_test(experts_cache_governor_test SOURCES experts_cache_governor_test.cpp LIBS colibri_experts)
colibri_test(experts_cache_trace_test SOURCES experts_cache_trace_test.cpp LIBS colibri_experts)
colibri_test(experts_cache_overlap_test SOURCES experts_cache_overlap_test.cpp LIBS colibri_experts)
