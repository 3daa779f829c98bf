// Writes dispatches into command buffers: grids planned in 64 bits and cut to what a device takes, counts kept, and the
// first thing that goes wrong remembered, so that code which encodes a layer reads straight through. One command buffer
// as long as the work in it is bounded, another one where it would keep the GPU busy for too long.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

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

// What was committed together, in order.
class Submission {
 public:
  Submission() = default;
  explicit Submission(std::vector<std::unique_ptr<Commands>> commands) : commands_(std::move(commands)) {}
  bool empty() const { return commands_.empty(); }
  // Blocks until all have ended. The first fault of them; seconds added up. May be asked again.
  const Completion& wait();

 private:
  std::vector<std::unique_ptr<Commands>> commands_;
  Completion completion_;
};

// A system ends command buffers that keep its GPU busy for seconds. This many fused multiply-adds take a slow one (a base M1
// at a tenth of its peak) about a tenth of a second.
inline constexpr double kMaxWork = 3e10;

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
  // Says how many multiply-adds the next dispatches do, so that long work is cut (at a barrier) into several command buffers.
  void add_work(double multiply_adds) { work_ += multiply_adds; }

  Device& device() const { return kernels_.device(); }
  // The first failure is kept; nothing is encoded after it.
  void fail_with(Fault fault, Error error);

  // Hands over what is left and everything handed over before; nothing may be encoded afterwards. Fails with what went wrong
  // while encoding, after waiting for what had been handed over.
  Result<Submission> commit();
  const std::optional<Error>& error() const { return error_; }
  Fault fault() const { return fault_; }

 private:
  void launch(const KernelId& id, std::span<const std::byte> args, std::int64_t first, const Groups& groups,
              std::uint32_t threads, std::uint32_t threadgroup_bytes);
  bool ready();

  KernelSet& kernels_;
  EncoderCounts& counts_;
  std::unique_ptr<Commands> commands_;
  std::vector<std::unique_ptr<Commands>> committed_;
  double work_ = 0;              // in the open command buffer
  bool pending_writes_ = false;  // since the last barrier
  std::optional<Error> error_;
  Fault fault_ = Fault::kNone;
};

}  // namespace colibri::gpu
