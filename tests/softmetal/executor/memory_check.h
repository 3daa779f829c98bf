// Kernels are compiled with clang's -fsanitize=kernel-address, which calls a function before each access to memory. Here those
// functions stand in for the sanitizer's runtime: allowed is what is resident, and nothing else. Kernels include this header,
// so that the common case becomes part of them; no C++ library here.
#pragma once

namespace softmetal {

inline constexpr unsigned long kPage = 16384;  // Apple's

// Memory that was found to be allowed, in a table by page. An entry is the whole range that the page belongs to.
struct KnownMemory {
  struct Range {
    unsigned long begin, end;
  };
  Range ranges[2][256] = {};  // to read, to write
  Range& slot(unsigned long address, bool write) { return ranges[write][address / kPage % 256]; }
};

}  // namespace softmetal

extern "C" {
extern __attribute__((tls_model("initial-exec"))) __thread softmetal::KnownMemory* softmetal_known;
// Looks everywhere, or ends the process. Leaves all registers as they were, so that callers need not save theirs.
__attribute__((preserve_all, cold)) void softmetal_check(unsigned long address, unsigned long bytes, bool write);
}
