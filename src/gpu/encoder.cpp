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
  commands_->barrier();
  ++counts_.barriers;
  pending_writes_ = false;
}

Address Encoder::address(const void* p) {
  const Address a = kernels_.device().address(p);
  if (a == 0) fail_with(Fault::kResidency, {fmt::format("memory at {} is not registered with the GPU", p)});
  return a;
}

Result<std::unique_ptr<Commands>> Encoder::commit() {
  if (!ready()) return pass(*error_);
  commands_->commit();
  return std::move(commands_);
}

}  // namespace colibri::gpu
