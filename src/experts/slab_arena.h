// The memory of streamed experts: a few large slabs, allocated once and cut into equal slots. Nothing is allocated
// afterwards, so what the plan says is what the process uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_team.h"

namespace colibri {

// Slabs start and end on pages of every system we run on, so that a GPU can use them without a copy.
inline constexpr std::uint64_t kSlabAlignment = 16384;

// How a number of slots is laid out in slabs. All values are bytes unless named otherwise.
struct SlabPlan {
  std::uint64_t slot_bytes = 0;      // distance of two slots
  std::uint64_t slots = 0;           // in all slabs together
  std::uint64_t slots_per_slab = 0;  // of every slab but the last, which may hold fewer
  std::vector<std::uint64_t> slab_bytes;

  std::uint64_t total_bytes() const;
};

// As many slots as fit into `budget` bytes, at most max_slots (more than all experts would be waste). longest_slab
// is what the device allows in one buffer. Errors say which of the two is too small, and the least that works.
Result<SlabPlan> plan_slabs(std::uint64_t budget, std::uint64_t slot_bytes, std::uint64_t max_slots, std::uint64_t longest_slab);

class SlabArena {
 public:
  // Reserves every slab. With a team every page is written once, so that the memory is really there (the budget is a
  // fact, and a machine that cannot give it says so now); without one pages appear as they are first used.
  static Result<SlabArena> allocate(const SlabPlan& plan, ThreadTeam* touch);
  SlabArena(SlabArena&& other) noexcept = default;
  SlabArena& operator=(SlabArena&& other) noexcept = default;

  std::uint64_t slots() const { return plan_.slots; }
  std::uint64_t slot_bytes() const { return plan_.slot_bytes; }
  std::byte* slot(std::uint64_t index) const;

  // Returns a slot's whole pages to the system. The slot may be written again at any time, which takes new pages; what it held is
  // gone. Not for memory that a device uses. False: the system refused. Then the slot must not be used any more: on Linux its
  // pages are still there, on macOS there may be no memory at all.
  [[nodiscard]] bool give_back(std::uint64_t index) const;

  // The slabs, for registration with a device.
  std::vector<std::span<std::byte>> slabs() const;

 private:
  class Slab {
   public:
    Slab(void* mapping, std::size_t mapped, std::byte* data, std::uint64_t bytes)
        : mapping_(mapping), mapped_(mapped), data_(data), bytes_(bytes) {}
    Slab(Slab&& other) noexcept;
    Slab& operator=(Slab&& other) noexcept;
    ~Slab();
    std::byte* data() const { return data_; }
    std::uint64_t bytes() const { return bytes_; }

   private:
    void* mapping_;
    std::size_t mapped_;  // 0: moved from
    std::byte* data_;
    std::uint64_t bytes_;
  };
  explicit SlabArena(SlabPlan plan) : plan_(std::move(plan)) {}

  SlabPlan plan_;
  std::vector<Slab> slabs_;
};

}  // namespace colibri
