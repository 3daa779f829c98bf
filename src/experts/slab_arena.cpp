#include "experts/slab_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <numeric>
#include <system_error>

#include "base/aligned.h"

namespace colibri {
namespace {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;  // slabs start on one, so that the system can use them
constexpr std::uint64_t kSmallestPage = 4096;

}  // namespace

std::uint64_t SlabPlan::total_bytes() const { return std::accumulate(slab_bytes.begin(), slab_bytes.end(), std::uint64_t{0}); }

Result<SlabPlan> plan_slabs(std::uint64_t budget, std::uint64_t slot_bytes, std::uint64_t max_slots, std::uint64_t longest_slab) {
  assert(slot_bytes > 0 && slot_bytes % kWeightAlignment == 0 && max_slots > 0);
  // Lengths are whole pages; rounding down keeps every slab inside both limits.
  const std::uint64_t longest = longest_slab / kSlabAlignment * kSlabAlignment;
  const std::uint64_t least = round_up(slot_bytes, kSlabAlignment);
  if (longest < least)
    return fail("expert memory: one expert needs a buffer of {} bytes, but the device allows at most {}", least, longest_slab);
  if (budget < least) return fail("expert memory: {} bytes are too few, one expert needs {}", budget, least);

  SlabPlan plan;
  plan.slot_bytes = slot_bytes;
  plan.slots_per_slab = longest / slot_bytes;
  const std::uint64_t full_slab = round_up(plan.slots_per_slab * slot_bytes, kSlabAlignment);
  std::uint64_t left = budget;
  while (plan.slots < max_slots) {
    std::uint64_t slots = std::min(plan.slots_per_slab, max_slots - plan.slots);
    if (left < full_slab) slots = std::min(slots, left / kSlabAlignment * kSlabAlignment / slot_bytes);
    if (slots == 0) break;
    const std::uint64_t bytes = round_up(slots * slot_bytes, kSlabAlignment);
    plan.slab_bytes.push_back(bytes);
    plan.slots += slots;
    left -= bytes;
    if (slots < plan.slots_per_slab) break;
  }
  plan.slots_per_slab = std::min(plan.slots_per_slab, plan.slots);
  return plan;
}

SlabArena::Slab::Slab(Slab&& other) noexcept
    : mapping_(other.mapping_), mapped_(std::exchange(other.mapped_, 0)), data_(other.data_), bytes_(other.bytes_) {}

SlabArena::Slab& SlabArena::Slab::operator=(Slab&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SlabArena::Slab::~Slab() {
  if (mapped_) ::munmap(mapping_, mapped_);
}

Result<SlabArena> SlabArena::allocate(const SlabPlan& plan, ThreadTeam* touch) {
  SlabArena arena(plan);
  arena.slabs_.reserve(plan.slab_bytes.size());
  for (const std::uint64_t bytes : plan.slab_bytes) {
    const std::uint64_t alignment = bytes >= kHugePage ? kHugePage : kSlabAlignment;
    const std::size_t mapped = bytes + alignment;
    void* const mapping = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
      return fail("expert memory: the system refused slab {} of {} ({} bytes): {}; use a smaller --ram", arena.slabs_.size() + 1,
                  plan.slab_bytes.size(), bytes, std::generic_category().message(errno));
    auto* const first = static_cast<std::byte*>(mapping);
    std::byte* const data = first + (round_up(reinterpret_cast<std::uintptr_t>(first), alignment) -
                                     reinterpret_cast<std::uintptr_t>(first));  // pages around it are never used
#ifdef MADV_HUGEPAGE
    ::madvise(data, bytes, MADV_HUGEPAGE);
#endif
    arena.slabs_.emplace_back(mapping, mapped, data, bytes);
    if (touch) {
      const auto pieces = static_cast<std::int64_t>(ceil_div(static_cast<std::int64_t>(bytes), std::int64_t{kHugePage}));
      touch->parallel_for(pieces, 16, [&](std::int64_t begin, std::int64_t end, int) {
        const std::uint64_t last = std::min(static_cast<std::uint64_t>(end) * kHugePage, bytes);
        for (std::uint64_t at = static_cast<std::uint64_t>(begin) * kHugePage; at < last; at += kSmallestPage)
          *reinterpret_cast<volatile std::byte*>(data + at) = std::byte{0};
      });
    }
  }
  return arena;
}

std::byte* SlabArena::slot(std::uint64_t index) const {
  assert(index < plan_.slots);
  return slabs_[index / plan_.slots_per_slab].data() + index % plan_.slots_per_slab * plan_.slot_bytes;
}

bool SlabArena::give_back(std::uint64_t index) const {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(slot(index));
  const std::uintptr_t begin = (first + page - 1) / page * page, end = (first + plan_.slot_bytes) / page * page;
  if (begin >= end) return true;
  auto* const pages = reinterpret_cast<void*>(begin);
#if defined(__APPLE__)
  // New empty pages in place of the old ones. madvise(MADV_FREE_REUSABLE) would leave what the compressor holds of them.
  // Where it fails, the old ones may be gone already.
  return ::mmap(pages, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
#else
#ifdef MADV_NOHUGEPAGE
  // Otherwise the kernel soon makes a whole huge page of what is left, and what was given back is taken again.
  ::madvise(pages, end - begin, MADV_NOHUGEPAGE);
#endif
  return ::madvise(pages, end - begin, MADV_DONTNEED) == 0;
#endif
}

std::vector<std::span<std::byte>> SlabArena::slabs() const {
  std::vector<std::span<std::byte>> all;
  for (const Slab& slab : slabs_) all.emplace_back(slab.data(), slab.bytes());
  return all;
}

}  // namespace colibri
