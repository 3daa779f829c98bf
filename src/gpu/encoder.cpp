#include "gpu/encoder.h"

#include <algorithm>
#include <cassert>

namespace colibri::gpu {

bool Encoder::ready() {
  if (error_) return false;
  if (commands_) return true;
  auto commands = kernels_.device().begin();
  if (!commands) {
    fail_with(Fault::kMemory, std::move(commands).error());
    return false;
  }
  commands_ = std::move(*commands);
  ++counts_.command_buffers;
  return true;
}

void Encoder::fail_with(Fault fault, Error error) {
  if (error_) return;
  fault_ = fault;
  error_ = std::move(error);
}

void Encoder::launch(const KernelId& id, std::span<const std::byte> args, std::int64_t first, const Groups& groups,
                     std::uint32_t threads, std::uint32_t threadgroup_bytes) {
  assert(groups.y >= 0 && groups.y <= kMaxGroupsYZ && groups.z >= 0 && groups.z <= kMaxGroupsYZ && threads % 32 == 0);
  if (groups.y == 0 || groups.z == 0 || !ready()) return;
  auto kernel = kernels_.get(id);
  if (!kernel) return fail_with(Fault::kCompile, std::move(kernel).error());
  if (threads > (*kernel)->max_threads())
    return fail_with(Fault::kCompile, {fmt::format("kernel {} needs {} threads, the GPU gives it {}", id.function, threads,
                                                   (*kernel)->max_threads())});
  Dispatch d;
  d.kernel = *kernel;
  d.args = args;
  d.groups = {static_cast<std::uint32_t>(std::min(groups.x - first, kMaxGroupsX)), static_cast<std::uint32_t>(groups.y),
              static_cast<std::uint32_t>(groups.z)};
  d.threads = threads;
  d.threadgroup_bytes = threadgroup_bytes;
  commands_->dispatch(d);
  ++counts_.dispatches;
  pending_writes_ = true;
}

void Encoder::barrier() {
  if (!pending_writes_ || error_) return;
  pending_writes_ = false;
  if (work_ > kMaxWork) {  // command buffers are in order, so this is a barrier too
    commands_->commit();
    committed_.push_back(std::move(commands_));
    work_ = 0;
    return;
  }
  commands_->barrier();
  ++counts_.barriers;
}

Result<Submission> Encoder::commit() {
  if (!ready()) {
    Submission(std::move(committed_)).wait();
    return pass(*error_);
  }
  commands_->commit();
  committed_.push_back(std::move(commands_));
  return Submission(std::move(committed_));
}

const Completion& Submission::wait() {
  for (const auto& commands : commands_) {
    const Completion& one = commands->wait();
    completion_.gpu_seconds += one.gpu_seconds;
    if (completion_.fault != Fault::kNone || one.fault == Fault::kNone) continue;
    completion_.fault = one.fault;
    completion_.message = one.message;
  }
  commands_.clear();
  return completion_;
}

}  // namespace colibri::gpu
