// What the tests of the record reader share: files of known bytes, records over them, and a system that can be told
// to fail.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "experts/record_reader.h"

namespace colibri::experts_io {

// A folder that goes away with the test.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::path(testing::TempDir()) / "colibri-io-XXXXXX").string();
    if (::mkdtemp(name.data())) path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Random bytes of which any four (or two) are a finite float.
inline std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t word = random() & 0x3f3f3f3f3f3f3f3f;
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, count - i));
  }
  return bytes;
}

inline void write_file(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.flush());
}

struct Shards {
  explicit Shards(std::vector<std::size_t> sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      bytes.push_back(random_bytes(sizes[i], static_cast<std::uint32_t>(i + 1)));
      paths.push_back(folder.path() / ("shard-" + std::to_string(i)));
      write_file(paths.back(), bytes.back());
    }
  }
  const std::byte* at(const FileRange& range) const { return bytes[static_cast<std::size_t>(range.shard)].data() + range.offset; }

  ScratchFolder folder;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::filesystem::path> paths;
};

// data and, when scale_bytes > 0, scales somewhere else. The shape is without meaning here.
inline MatrixSource source_at(FileRange data, FileRange scales = {}, bool bf16 = false) {
  MatrixSource source;
  source.matrix.format = scales.bytes > 0 ? WeightFormat::kInt8Row : WeightFormat::kF32;
  source.matrix.rows = 1;
  source.data = data;
  source.scales = scales;
  source.scales_are_bf16 = bf16;
  return source;
}

// Whether the slot holds what the files hold, scales widened.
inline testing::AssertionResult slot_is_right(const Shards& shards, const ReadPlan& plan, std::byte* slot) {
  const ExpertWeights weights = weights_in_slot(plan, slot);
  const Matrix* const views[] = {&weights.gate, &weights.up, &weights.down};
  for (const ReadPart& part : plan.parts()) {
    const Matrix& view = *views[part.matrix];
    const void* const got = part.scales ? static_cast<const void*>(view.scales) : view.data;
    if (got != slot + part.slot_offset) return testing::AssertionFailure() << "view of matrix " << int(part.matrix);
    if (reinterpret_cast<std::uintptr_t>(got) % kWeightAlignment != 0) return testing::AssertionFailure() << "alignment";
    const std::byte* const expected = shards.at(part.source);
    if (!part.widen) {
      if (std::memcmp(got, expected, part.source.bytes) != 0)
        return testing::AssertionFailure() << "matrix " << int(part.matrix) << (part.scales ? " scales" : " data");
      continue;
    }
    for (std::uint64_t i = 0; i < part.source.bytes / 2; ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, expected + 2 * i, 2);
      if (view.scales[i] != f32_from_bf16(bits)) return testing::AssertionFailure() << "narrow scale " << i;
    }
  }
  return testing::AssertionSuccess();
}

// The real system with a say in every read, on any file system: `direct` files are plain ones whose reads must be
// aligned. Its ring answers in reverse order.
class TestOps : public FileOps {
 public:
  struct Call {
    int number = 0;  // from 0
    int fd = -1;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;
    const std::byte* dst = nullptr;
  };
  // Returns how many bytes really to read (at most call.bytes), or -errno to fail with. Called without a lock.
  std::function<std::int64_t(const Call&)> decide;

  Result<OpenedFile> open(const std::filesystem::path& path, bool direct) override {
    auto file = FileOps::open(path, false);
    if (file && direct) file->alignment = kDirectAlignment;
    const std::lock_guard lock(mutex_);
    if (file) {
      alignments_.resize(std::max(alignments_.size(), static_cast<std::size_t>(file->fd) + 1));
      alignments_[static_cast<std::size_t>(file->fd)] = file->alignment;
      last_opened_ = file->fd;
    }
    return file;
  }

  std::int64_t pread(int fd, std::byte* dst, std::uint64_t bytes, std::uint64_t offset) override {
    Call call{0, fd, bytes, offset, dst};
    std::uint64_t alignment = 1;
    {
      const std::lock_guard lock(mutex_);
      call.number = static_cast<int>(calls_.size());
      calls_.push_back(call);
      alignment = alignments_[static_cast<std::size_t>(fd)];
    }
    if (bytes % alignment != 0 || offset % alignment != 0 || reinterpret_cast<std::uintptr_t>(dst) % alignment != 0)
      return -EINVAL;
    const std::int64_t allowed = decide ? decide(call) : static_cast<std::int64_t>(bytes);
    return allowed < 0 ? allowed : FileOps::pread(fd, dst, static_cast<std::uint64_t>(allowed), offset);
  }

  Result<std::unique_ptr<ReadRing>> make_ring(unsigned depth) override { return std::make_unique<Ring>(*this, depth); }

  // The descriptor of the file opened last, which is the highest shard.
  int last_opened() const {
    const std::lock_guard lock(mutex_);
    return last_opened_;
  }
  std::vector<Call> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  class Ring final : public ReadRing {
   public:
    Ring(TestOps& ops, unsigned depth) : ops_(ops), depth_(depth) {}
    void push(const RingRead& read) override {
      EXPECT_LT(pushed_.size(), depth_);
      pushed_.push_back(read);
    }
    std::size_t wait(std::span<RingResult> out, bool block) override {
      if (pushed_.empty() && block) {
        std::unique_lock lock(mutex_);
        woken_.wait(lock, [&] { return wake_; });
        wake_ = false;
        return 0;
      }
      std::size_t count = 0;
      for (; count < out.size() && !pushed_.empty(); ++count) {
        const RingRead read = pushed_.back();
        pushed_.pop_back();
        out[count] = {read.tag, ops_.pread(read.fd, read.dst, read.bytes, read.offset)};
      }
      return count;
    }
    void wake() override {
      const std::lock_guard lock(mutex_);
      wake_ = true;
      woken_.notify_one();
    }

   private:
    TestOps& ops_;
    unsigned depth_;
    std::vector<RingRead> pushed_;
    std::mutex mutex_;
    std::condition_variable woken_;
    bool wake_ = false;
  };

  mutable std::mutex mutex_;
  std::vector<Call> calls_;
  std::vector<std::uint64_t> alignments_;  // by descriptor
  int last_opened_ = -1;
};

// A door that reads wait at.
class Door {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait_for_arrivals(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  bool open_ = false;
};

}  // namespace colibri::experts_io
