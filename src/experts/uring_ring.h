// io_uring as a ReadRing.
#pragma once

#include <memory>

#include "experts/file_ops.h"

namespace colibri {

// Errors: not built with liburing, or the kernel refuses (containers often forbid it); the reader then uses threads.
Result<std::unique_ptr<ReadRing>> make_uring(unsigned depth);

}  // namespace colibri
