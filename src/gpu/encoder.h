// Writes dispatches into one command buffer: grids planned in 64 bits and cut to what a device takes, counts kept, and the
// first thing that goes wrong remembered, so that code which encodes a layer reads straight through.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "gpu/device.h"
#include "gpu/kernel_set.h"

namespace colibri::gpu {

struct EncoderCounts {
  std::uint64_t command_buffers = 0, dispatches = 0, barriers = 0, waits = 0;
};

// A grid of threadgroups. x may be any size: it is cut into launches of at most kMaxGroupsX, and args.first_group says where
// a launch begins. y and z are at most 65,535.
struct Groups {
  std::int64_t x = 1, y = 1, z = 1;
};
inline constexpr std::int64_t kMaxGroupsX = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxGroupsYZ = 65535;

class Encoder {
 public:
  Encoder(KernelSet& kernels, EncoderCounts& counts) : kernels_(kernels), counts_(counts) {}

  // Args: a trivially copyable struct shared with the kernel, with a member `std::uint32_t first_group` that a kernel adds to
  // its threadgroup position in x. A grid without groups is no dispatch.
  template <class Args>
  void dispatch(const KernelId& id, Args args, const Groups& groups, std::uint32_t threads, std::uint32_t threadgroup_bytes = 0) {
    for (std::int64_t first = 0; first < groups.x; first += kMaxGroupsX) {
      args.first_group = static_cast<std::uint32_t>(first);
      launch(id, std::as_bytes(std::span(&args, 1)), first, groups, threads, threadgroup_bytes);
    }
  }
  // What follows sees what came before.
  void barrier();

  Address address(const void* p);  // an error of the encoder when p is in no region of the device

  // Hands the command buffer over; nothing may be encoded afterwards. Fails with what went wrong while encoding.
  Result<std::unique_ptr<Commands>> commit();
  const std::optional<Error>& error() const { return error_; }
  Fault fault() const { return fault_; }

 private:
  void launch(const KernelId& id, std::span<const std::byte> args, std::int64_t first, const Groups& groups, std::uint32_t threads,
              std::uint32_t threadgroup_bytes);
  bool ready();
  void fail_with(Fault fault, Error error);

  KernelSet& kernels_;
  EncoderCounts& counts_;
  std::unique_ptr<Commands> commands_;
  bool pending_writes_ = false;  // since the last barrier
  std::optional<Error> error_;
  Fault fault_ = Fault::kNone;
};

}  // namespace colibri::gpu
