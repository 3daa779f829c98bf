// Switching between stacks: the callee-saved registers go on the stack that is left and come from the one that is entered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// Saves where we are in *from and continues at `to`, which an earlier switch saved or prepare_stack() made.
extern "C" void softmetal_switch(void** from, void* to);

namespace softmetal {

// The first switch to the returned place calls entry(), which never returns, on the stack that ends at `top`.
inline void* prepare_stack(char* top, void (*entry)()) {
#if defined(__x86_64__)
  constexpr std::size_t kSaved = 6;  // rbp, rbx, r12..r15
  void** sp = reinterpret_cast<void**>(top - 64);
  *--sp = nullptr;  // where entry() would return to; also leaves the stack as the calling convention has it at an entry
  *--sp = reinterpret_cast<void*>(entry);
  sp -= kSaved;
  std::memset(sp, 0, kSaved * sizeof(void*));
  return sp;
#elif defined(__aarch64__)
  constexpr std::size_t kSaved = 20;  // x19..x30, d8..d15
  void** sp = reinterpret_cast<void**>(top - 64) - kSaved;
  std::memset(sp, 0, kSaved * sizeof(void*));
  sp[11] = reinterpret_cast<void*>(entry);  // x30, the link register
  return sp;
#else
#error "the software Metal device needs a stack switch for this processor"
#endif
}

}  // namespace softmetal
