// What translated kernels and the executor know of each other. Included by kernel text too: no C++ library here.
#pragma once

namespace softmetal {

// The thread that runs, as a kernel's entry needs it.
struct ThreadContext {
  void* buffers[31];
  void* threadgroup_memory[8];
  unsigned place[3];    // thread_position_in_threadgroup
  unsigned group[3];    // threadgroup_position_in_grid
  unsigned threads[3];  // threads_per_threadgroup
  unsigned groups[3];   // threadgroups_per_grid
  unsigned index;       // thread_index_in_threadgroup
};

struct KernelEntry {
  const char* name;
  void (*run)(const ThreadContext&);
  unsigned long long constants;  // bit i: the kernel uses function constant i
};

struct ConstantEntry {  // a settable global; the list ends with value == nullptr
  int index;
  unsigned* value;
};

// One compiled text. The lists end with an entry without a name or value.
struct CompiledText {
  unsigned long long hash;  // of the text, text_hash()
  const char* name;
  const KernelEntry* kernels;
  const ConstantEntry* constants;
};

inline unsigned long long text_hash(const char* text, unsigned long size) {  // FNV-1a; translate.py has the same
  unsigned long long h = 0xcbf29ce484222325ull;
  for (unsigned long i = 0; i < size; ++i) h = (h ^ (unsigned char)text[i]) * 0x100000001b3ull;
  return h;
}

}  // namespace softmetal

extern "C" {
void softmetal_barrier(int line);
// Every live lane of the simdgroup leaves `bytes` (at most 64); the answer is the 32 lanes' slots of 64 bytes, *lanes has a
// bit for each lane that left something.
const char* softmetal_exchange(const void* in, unsigned long bytes, int line, unsigned* lanes);
unsigned softmetal_lane(void);
void* softmetal_threadgroup_array(int id, unsigned long bytes);  // declared inside a kernel
}
