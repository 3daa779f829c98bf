#include "selftest/workbench.h"

#include <algorithm>
#include <new>

#include "base/aligned.h"

namespace colibri::selftest {
namespace {

constexpr std::uint64_t kSmallBytes = std::uint64_t{16} << 20, kFullBytes = std::uint64_t{512} << 20;

float scaled(std::uint64_t bits, float spread) {
  return spread * static_cast<float>(static_cast<std::int64_t>(bits % 2000001) - 1000000) * 1e-6f;
}

// Random bits become numbers that are finite.
void make_finite(WeightFormat format, std::span<std::byte> data) {
  if (format == WeightFormat::kF8Block128) {
    for (std::byte& b : data)
      if ((b & std::byte{0x7f}) == std::byte{0x7f}) b = std::byte{0x30};
    return;
  }
  if (format == WeightFormat::kF32) {
    for (std::size_t i = 0; i + 4 <= data.size(); i += 4) {
      std::uint32_t bits;
      std::memcpy(&bits, data.data() + i, sizeof bits);
      const float value = scaled(bits, 1.0f);
      std::memcpy(data.data() + i, &value, sizeof value);
    }
    return;
  }
  if (format != WeightFormat::kBF16 && format != WeightFormat::kF16) return;
  for (std::size_t i = 0; i + 2 <= data.size(); i += 2) {
    std::uint16_t bits;
    std::memcpy(&bits, data.data() + i, sizeof bits);
    bits &= 0xbfff;                                               // below 2 in either format
    if (format == WeightFormat::kBF16) bits |= (bits & 1) << 13;  // and not all of them tiny
    std::memcpy(data.data() + i, &bits, sizeof bits);
  }
}

}  // namespace

Result<std::unique_ptr<Workbench>> Workbench::create(gpu::KernelSet& kernels, bool small) {
  const std::uint64_t bytes = small ? kSmallBytes : kFullBytes;
  COLIBRI_TRY(memory, gpu::DeviceBlock::allocate(kernels.device(), bytes));
  return std::unique_ptr<Workbench>(new Workbench(kernels, small, std::move(memory), bytes));
}

void Workbench::clear() {
  placer_ = gpu::Placer(memory_.address());
  numbers_.seed(1);
}

gpu::Address Workbench::place(std::uint64_t bytes) {
  const gpu::Address at = placer_.take(bytes + kReadSlack);
  if (placer_.used() > bytes_) throw std::bad_alloc();
  return at;
}

std::span<std::uint32_t> Workbench::damage_word() { return copy(std::vector<std::uint32_t>{0}); }

std::span<float> Workbench::floats(std::int64_t count, float spread) {
  const auto to = take<float>(count);
  for (float& v : to) v = scaled(random(), spread);
  return to;
}

Matrix Workbench::matrix(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  Matrix m;
  m.format = format;
  m.group = format == WeightFormat::kInt4Grouped || format == WeightFormat::kInt3G64 ? 64
            : format == WeightFormat::kF8Block128                                    ? 128
                                                                                     : 0;
  m.rows = rows;
  m.cols = cols;
  m.row_bytes = format_row_bytes(format, cols);
  const auto data = take<std::byte>(format_bytes(format, rows, cols));
  for (std::size_t i = 0; i < data.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = random();
    std::memcpy(data.data() + i, &bits, std::min(sizeof bits, data.size() - i));
  }
  make_finite(format, data);
  m.data = data.data();
  m.scale_stride = format_row_scales(format, cols, m.group);
  if (m.scale_stride > 0) m.scales = floats(format_scales(format, rows, cols, m.group)).data();
  return m;
}

Result<gpu::Completion> Workbench::run(const std::function<void(gpu::Encoder&)>& encode) {
  gpu::EncoderCounts counts;
  gpu::Encoder encoder(kernels_, counts);
  encode(encoder);
  COLIBRI_TRY(commands, encoder.commit());
  const gpu::Completion& end = commands.wait();
  if (end.fault != gpu::Fault::kNone) return fail("{}: {}", gpu::fault_name(end.fault), end.message);
  return end;
}

}  // namespace colibri::selftest
