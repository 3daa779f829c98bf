// Facts about this process and machine.
#pragma once

#include <cstdint>
#include <string>

namespace colibri {

std::uint64_t peak_resident_bytes();     // the largest resident size so far
std::uint64_t available_memory_bytes();  // what the system says can still be used; 0 when it does not say
std::string cpu_model_name();            // "AMD EPYC ..." or the architecture's name

}  // namespace colibri
