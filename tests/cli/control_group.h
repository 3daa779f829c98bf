// A memory control group for a test's child process (Linux, version 1 or 2), gone when the object is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace colibri {

class ControlGroup {
 public:
  // A group below this process's own, or below the nearest of its ancestors where that is allowed. limit: in bytes, and no
  // swap beside it; nullopt for none. Null where this machine or user may not make one; why_not then says so.
  static std::unique_ptr<ControlGroup> create(std::optional<std::uint64_t> limit, std::string& why_not);
  ~ControlGroup();  // every process of the group must have ended
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  // A process that writes "0" into this file joins.
  std::string members_file() const;
  // Memory that was charged to the group, at its highest: of its processes, the kernel's for them, and the page cache for
  // what they were first to read. Nullopt where the kernel does not tell (version 2 before Linux 5.19).
  std::optional<std::uint64_t> peak() const;
  std::uint64_t page_cache() const;      // of it now, what files hold
  std::uint64_t times_at_limit() const;  // how often something had to go to stay below the limit
  std::uint64_t kills() const;           // processes that were killed because nothing could go

 private:
  ControlGroup(std::string path, bool v2) : path_(std::move(path)), v2_(v2) {}
  bool accepts_processes() const;
  bool set_limit(std::uint64_t limit) const;

  std::string path_;
  bool v2_;
};

}  // namespace colibri
