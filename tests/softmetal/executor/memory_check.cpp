#include "executor/memory_check.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "executor/worker.h"

using softmetal::Worker;

extern "C" {

__attribute__((tls_model("initial-exec"))) __thread softmetal::KnownMemory* softmetal_known = nullptr;

__attribute__((preserve_all)) void softmetal_check(unsigned long address, unsigned long bytes, bool write) {
  Worker::here().check(address, bytes, write);
}

void* __softmetal_memcpy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) {
    softmetal_check(reinterpret_cast<std::uintptr_t>(from), bytes, false);
    softmetal_check(reinterpret_cast<std::uintptr_t>(to), bytes, true);
  }
  return std::memcpy(to, from, bytes);
}
void* __softmetal_memmove(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) {
    softmetal_check(reinterpret_cast<std::uintptr_t>(from), bytes, false);
    softmetal_check(reinterpret_cast<std::uintptr_t>(to), bytes, true);
  }
  return std::memmove(to, from, bytes);
}
void* __softmetal_memset(void* to, int value, std::size_t bytes) {
  if (bytes != 0) softmetal_check(reinterpret_cast<std::uintptr_t>(to), bytes, true);
  return std::memset(to, value, bytes);
}

}  // extern "C"
