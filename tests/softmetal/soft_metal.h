// The controls of the software Metal device, for tests: functions of libcolibri_softmetal.so, found with dlsym.
#pragma once

#include <cstdint>

extern "C" {

// Faults that can be armed. The first `after` occasions pass, the next `count` fail (all of them when count is negative).
enum SoftMetalFault : int {
  kSoftMetalError,         // a command buffer ends with an internal error
  kSoftMetalTimeout,       // ... with the watchdog's error
  kSoftMetalMemory,        // ... out of memory
  kSoftMetalResidency,     // ... because memory was not resident
  kSoftMetalCompile,       // newLibraryWithSource: fails
  kSoftMetalAllocation,    // newBufferWithBytesNoCopy: gives nothing
  kSoftMetalResidencySet,  // newResidencySetWithDescriptor: gives nothing, as before macOS 15
  kSoftMetalFaults,        // how many there are
};

struct SoftMetalCounters {
  std::uint64_t command_buffers, dispatches, threadgroups, threads, barriers, simd_operations, switches;
};

// The same from the environment: COLI_SOFT_METAL_FAULT=KIND[:AFTER[:COUNT]][,...] with KIND one of error, timeout, memory,
// residency, compile, allocation, residency-set; AFTER is 0 and COUNT 1 unless given.
// A command buffer that is made to fail runs about half of its dispatches first.
void soft_metal_arm(SoftMetalFault fault, int after, int count);
void soft_metal_disarm(void);  // all

void soft_metal_counters(SoftMetalCounters* out);  // since the library was loaded
// Of the order of threads, threadgroups and concurrent dispatches; 0 is the natural order. COLI_SOFT_METAL_SEED, or 1.
void soft_metal_set_seed(std::uint64_t seed);
void soft_metal_set_threads(unsigned threads);  // that run kernels; as many as there are processors unless set
}
