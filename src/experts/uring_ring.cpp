#include "experts/uring_ring.h"

#ifdef COLIBRI_HAVE_URING

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <system_error>

namespace colibri {
namespace {

constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};

class Uring final : public ReadRing {
 public:
  Uring() = default;
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;
  // The caller has taken every result; the read of the wake-up counter alone is still in flight, and its buffer
  // must outlive it, so it is answered before the ring goes.
  ~Uring() override {
    if (ready_) {
      if (wake_armed_) {
        wake();
        io_uring_cqe* entry = nullptr;
        while (io_uring_submit_and_wait(&ring_, 1) == -EINTR) {
        }
        if (io_uring_peek_cqe(&ring_, &entry) == 0) io_uring_cqe_seen(&ring_, entry);
      }
      io_uring_queue_exit(&ring_);
    }
    if (wake_fd_ >= 0) ::close(wake_fd_);
  }

  Result<void> start(unsigned depth) {
    wake_fd_ = ::eventfd(0, EFD_CLOEXEC);
    if (wake_fd_ < 0) return fail("io_uring: no event counter: {}", std::generic_category().message(errno));
    const int error = io_uring_queue_init(depth + 1, &ring_, 0);
    if (error < 0) return fail("io_uring: the system refuses it: {}", std::generic_category().message(-error));
    ready_ = true;
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    const bool reads = probe && io_uring_opcode_supported(probe, IORING_OP_READ);
    if (probe) io_uring_free_probe(probe);
    if (!reads) return fail("io_uring: this kernel is too old for it");
    return {};
  }

  void push(const RingRead& read) override {
    io_uring_sqe* const entry = next_entry();
    io_uring_prep_read(entry, read.fd, read.dst, static_cast<unsigned>(read.bytes), read.offset);
    io_uring_sqe_set_data64(entry, read.tag);
  }

  std::size_t wait(std::span<RingResult> out, bool block) override {
    if (!wake_armed_) {
      io_uring_sqe* const entry = next_entry();
      io_uring_prep_read(entry, wake_fd_, &wake_count_, sizeof(wake_count_), 0);
      io_uring_sqe_set_data64(entry, kWakeTag);
      wake_armed_ = true;
    }
    // After EAGAIN or EBUSY (the kernel is short of memory) what was not submitted stays queued for the next call.
    while (io_uring_submit_and_wait(&ring_, block ? 1 : 0) == -EINTR) {
    }
    std::size_t count = 0;
    io_uring_cqe* entry = nullptr;
    while (count < out.size() && io_uring_peek_cqe(&ring_, &entry) == 0) {
      const std::uint64_t tag = io_uring_cqe_get_data64(entry);
      if (tag == kWakeTag)
        wake_armed_ = false;
      else
        out[count++] = {static_cast<std::uint32_t>(tag), entry->res};
      io_uring_cqe_seen(&ring_, entry);
    }
    return count;
  }

  void wake() override {
    const std::uint64_t one = 1;
    while (::write(wake_fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

 private:
  io_uring_sqe* next_entry() {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    assert(entry);  // the ring holds depth reads and the wake-up
    return entry;
  }

  io_uring ring_ = {};
  bool ready_ = false;
  int wake_fd_ = -1;
  bool wake_armed_ = false;
  std::uint64_t wake_count_ = 0;  // written by the kernel
};

}  // namespace

Result<std::unique_ptr<ReadRing>> make_uring(unsigned depth) {
  auto ring = std::make_unique<Uring>();
  COLIBRI_CHECK(ring->start(depth));
  return ring;
}

}  // namespace colibri

#else

namespace colibri {

Result<std::unique_ptr<ReadRing>> make_uring(unsigned) { return fail("io_uring: this program was built without liburing"); }

}  // namespace colibri

#endif
