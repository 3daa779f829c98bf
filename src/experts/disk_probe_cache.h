// What the page cache holds of a file. A disk is measured only on bytes that it does not hold.
#pragma once

#include <cstdint>
#include <optional>

namespace colibri {

// How many of the bytes [offset, offset + bytes) are in the page cache, in whole pages; nullopt: this system does not say.
std::optional<std::uint64_t> cached_bytes(int fd, std::uint64_t offset, std::uint64_t bytes);

// Lets go of clean cached pages that lie entirely inside the range; a request that the system may ignore.
void drop_cached(int fd, std::uint64_t offset, std::uint64_t bytes);

}  // namespace colibri
