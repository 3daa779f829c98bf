// The policies behind make_cache_policy().
#pragma once

#include "experts/cache_policy.h"

namespace colibri {

std::unique_ptr<CachePolicy> make_lru(const CacheShape& shape);
std::unique_ptr<CachePolicy> make_lfu(const CacheShape& shape);
std::unique_ptr<CachePolicy> make_learned(const CacheShape& shape);

}  // namespace colibri
