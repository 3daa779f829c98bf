// Kernels are compiled with clang's -fsanitize=kernel-address, which calls one of these before each access to memory. They
// stand in for the sanitizer's runtime: allowed is what is resident, and nothing else.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "executor/worker.h"

using softmetal::Worker;

#define SOFTMETAL_ACCESS(bytes)                                                                  \
  void __asan_load##bytes##_noabort(std::uintptr_t a) { Worker::here().check(a, bytes, false); } \
  void __asan_store##bytes##_noabort(std::uintptr_t a) { Worker::here().check(a, bytes, true); }

extern "C" {
SOFTMETAL_ACCESS(1)
SOFTMETAL_ACCESS(2)
SOFTMETAL_ACCESS(4)
SOFTMETAL_ACCESS(8)
SOFTMETAL_ACCESS(16)
void __asan_loadN_noabort(std::uintptr_t a, std::size_t bytes) { Worker::here().check(a, bytes, false); }
void __asan_storeN_noabort(std::uintptr_t a, std::size_t bytes) { Worker::here().check(a, bytes, true); }
void* __asan_memcpy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) {
    Worker::here().check(reinterpret_cast<std::uintptr_t>(from), bytes, false);
    Worker::here().check(reinterpret_cast<std::uintptr_t>(to), bytes, true);
  }
  return std::memcpy(to, from, bytes);
}
void* __asan_memmove(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) {
    Worker::here().check(reinterpret_cast<std::uintptr_t>(from), bytes, false);
    Worker::here().check(reinterpret_cast<std::uintptr_t>(to), bytes, true);
  }
  return std::memmove(to, from, bytes);
}
void* __asan_memset(void* to, int value, std::size_t bytes) {
  if (bytes != 0) Worker::here().check(reinterpret_cast<std::uintptr_t>(to), bytes, true);
  return std::memset(to, value, bytes);
}
void __asan_handle_no_return() {}
}
