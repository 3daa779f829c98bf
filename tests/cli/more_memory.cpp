// Loaded into coli before it starts (LD_PRELOAD): takes as many bytes as MORE_MEMORY says, which no plan knows of.
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

struct MoreMemory {
  MoreMemory() {
    const char* const text = std::getenv("MORE_MEMORY");
    const std::size_t bytes = text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
    if (bytes == 0) return;
    memory = static_cast<char*>(std::malloc(bytes));
    if (memory != nullptr) std::memset(memory, 1, bytes);
  }
  ~MoreMemory() { std::free(memory); }
  char* memory = nullptr;
};
const MoreMemory more_memory;

}  // namespace
