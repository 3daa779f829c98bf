// The bytes of a synthetic model.
#include "convert/synth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/thread_team.h"
#include "convert/matrix_units.h"
#include "convert/synth_jobs.h"

namespace colibri {
namespace {

// A counter-based generator: word n of stream `key` is a hash of both, so that any thread can make any part.
std::uint64_t random_word(std::uint64_t key, std::uint64_t n) {
  std::uint64_t z = key + n * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93u;
  z = (z ^ (z >> 29)) * 0xd6e8feb86659fd93u;
  return z ^ (z >> 32);
}

// The key of a tensor's numbers: its name and the model's seed (FNV-1a, then mixed).
std::uint64_t stream_key(std::string_view name, std::uint64_t seed, std::uint64_t purpose) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3u;
  return random_word(random_word(hash, seed), purpose);
}

// Words first .. of the stream as bytes. first counts words of eight bytes.
void fill_random(std::uint64_t key, std::uint64_t first, std::span<std::byte> out) {
  std::size_t at = 0;
  for (; at + 8 <= out.size(); at += 8) {
    const std::uint64_t word = random_word(key, first + at / 8);
    std::memcpy(out.data() + at, &word, 8);
  }
  if (at < out.size()) {
    const std::uint64_t word = random_word(key, first + at / 8);
    std::memcpy(out.data() + at, &word, out.size() - at);
  }
}

// Uniform in [-1, 1), 24 bits.
float uniform(std::uint64_t key, std::uint64_t n) {
  return static_cast<float>(static_cast<std::int64_t>(random_word(key, n) >> 40) - (1 << 23)) * 0x1p-23f;
}

// Standard deviation of the stored integers when every code is equally likely.
double code_deviation(WeightFormat format) {
  const double levels = format == WeightFormat::kInt8Row   ? 256
                        : format == WeightFormat::kInt3G64 ? 8
                        : format == WeightFormat::kInt2Row ? 4
                                                           : 16;
  return std::sqrt((levels * levels - 1) / 12);
}

class SynthMaker : public UnitMaker {
 public:
  SynthMaker(const std::vector<SynthJob>& jobs, std::uint64_t seed, int threads)
      : jobs_(jobs), seed_(seed), buffers_(static_cast<std::size_t>(threads)) {}

  std::int64_t pieces(const PlannedUnit& unit) const override {
    const SynthJob& job = jobs_[unit.job];
    const Matrix& m = job.matrices[0].matrix;
    return job.matrices.size() == 1 ? row_pieces(m.rows, m.cols) : 1;
  }

  Result<void> make(const PlannedUnit& unit, std::int64_t piece, int worker, const OutputFile& file, ClassErrors&) override {
    const SynthJob& job = jobs_[unit.job];
    if (unit.record) return make_record(unit, job, worker, file);
    if (job.matrices.size() == 1) {
      const Matrix& m = job.matrices[0].matrix;
      const RowPiece rows = row_piece(m.rows, m.cols, piece);
      return make_rows(job.matrices[0], rows, unit.tensors.front(), unit.tensors.back(), worker, file);
    }
    const std::size_t scales_from = unit.tensors.size() - 3;  // blobs, then scales; or three float tensors
    for (std::size_t i = 0; i < 3; ++i) {
      const RowPiece rows{0, job.matrices[i].matrix.rows};
      COLIBRI_CHECK(make_rows(job.matrices[i], rows, unit.tensors[i], unit.tensors[scales_from + i], worker, file));
    }
    return {};
  }

 private:
  std::span<std::byte> buffer(int worker, std::uint64_t bytes) {
    AlignedBytes& memory = buffers_[static_cast<std::size_t>(worker)];
    if (memory.size() < bytes) memory = AlignedBytes(round_up(bytes, kDirectBlock), kDirectBlock);
    return {memory.data(), bytes};
  }

  Result<void> make_record(const PlannedUnit& unit, const SynthJob& job, int worker, const OutputFile& file) {
    const PlannedTensor& tensor = unit.tensors[0];
    const std::span<std::byte> record = buffer(worker, tensor.bytes);
    for (std::size_t i = 0; i < 3; ++i) {
      const PackedMatrix& part = unit.record->parts[i];
      fill(job.matrices[i], {0, part.matrix.rows}, record.data() + part.data_offset,
           reinterpret_cast<float*>(record.data() + part.scale_offset));
    }
    seal_packed_record(*unit.record, tensor.name, record);
    return file.write(tensor.offset, record);
  }

  Result<void> make_rows(const SynthMatrix& matrix, const RowPiece& rows, const PlannedTensor& blob, const PlannedTensor& scales,
                         int worker, const OutputFile& file) {
    const Matrix& m = matrix.matrix;
    const auto at = [](std::int64_t count, std::int64_t each) { return static_cast<std::uint64_t>(count * each); };
    const std::uint64_t data_bytes = at(rows.count, m.row_bytes), scale_bytes = 4 * at(rows.count, m.scale_stride);
    const std::span<std::byte> memory = buffer(worker, round_up(data_bytes, kWeightAlignment) + scale_bytes);
    const auto scale_part = memory.last(scale_bytes);
    fill(matrix, rows, memory.data(), reinterpret_cast<float*>(scale_part.data()));
    COLIBRI_CHECK(file.write(blob.offset + at(rows.first, m.row_bytes), memory.first(data_bytes)));
    if (scale_bytes == 0) return {};
    return file.write(scales.offset + 4 * at(rows.first, m.scale_stride), scale_part);
  }

  // Rows of a matrix: data and scales.
  void fill(const SynthMatrix& matrix, const RowPiece& rows, std::byte* data, float* scales) const {
    const Matrix& m = matrix.matrix;
    const std::uint64_t key = stream_key(matrix.name, seed_, 0), scale_key = stream_key(matrix.name, seed_, 1);
    const double deviation = matrix.gain / std::sqrt(static_cast<double>(m.cols));
    const auto words_per_row = static_cast<std::uint64_t>(ceil_div(m.row_bytes, 8));
    if (m.scale_stride == 0) return fill_floats(matrix, rows, deviation, key, data);
    // Rows of whole words are one run of the stream.
    if (m.row_bytes % 8 == 0) {
      fill_random(key, static_cast<std::uint64_t>(rows.first) * words_per_row,
                  {data, static_cast<std::size_t>(rows.count * m.row_bytes)});
    } else {
      for (std::int64_t r = 0; r < rows.count; ++r)
        fill_random(key, static_cast<std::uint64_t>(rows.first + r) * words_per_row,
                    {data + r * m.row_bytes, static_cast<std::size_t>(m.row_bytes)});
    }
    if (matrix.matrix.format == WeightFormat::kInt3G64 && m.cols % 64 != 0) clear_tails(m, rows, data);
    const float scale = static_cast<float>(deviation / code_deviation(m.format));
    const std::int64_t first = rows.first * m.scale_stride, count = rows.count * m.scale_stride;
    for (std::int64_t i = 0; i < count; ++i)
      scales[i] = scale * (1 + 0.25f * uniform(scale_key, static_cast<std::uint64_t>(first + i)));
  }

  // The columns that pad a short last group of int3 are code 4, zero.
  static void clear_tails(const Matrix& m, const RowPiece& rows, std::byte* data) {
    for (std::int64_t r = 0; r < rows.count; ++r) {
      std::byte* const group = data + (r + 1) * m.row_bytes - 24;
      for (std::int64_t k = m.cols % 64; k < 64; ++k) {
        group[k / 4] &= ~(std::byte{3} << (2 * (k % 4)));
        group[16 + k / 8] |= std::byte{1} << (k % 8);
      }
    }
  }

  static void fill_floats(const SynthMatrix& matrix, const RowPiece& rows, double deviation, std::uint64_t key, std::byte* data) {
    const Matrix& m = matrix.matrix;
    const bool vector = matrix.gain == 0, bias = matrix.name.ends_with("bias");
    const float middle = vector && !bias ? 1.0f : 0.0f;
    const float width = vector ? (bias ? 0.01f : 0.1f) : static_cast<float>(deviation * std::sqrt(3.0));
    const auto first = static_cast<std::uint64_t>(rows.first * m.cols);
    for (std::uint64_t i = 0, n = static_cast<std::uint64_t>(rows.count * m.cols); i < n; ++i) {
      const float value = middle + width * uniform(key, first + i);
      if (m.format == WeightFormat::kF32) {
        std::memcpy(data + 4 * i, &value, 4);
      } else {  // bf16: the upper half
        std::uint32_t bits;
        std::memcpy(&bits, &value, 4);
        const auto upper = static_cast<std::uint16_t>(bits >> 16);
        std::memcpy(data + 2 * i, &upper, 2);
      }
    }
  }

  const std::vector<SynthJob>& jobs_;
  std::uint64_t seed_;
  std::vector<AlignedBytes> buffers_;  // one per worker, as large as the largest piece it made
};

}  // namespace

double synth_gain(const TensorSpec& spec) {
  // Embedding rows of deviation 1, logits that are not all alike, everything else keeps the size of its input.
  if (spec.name.ends_with("embed_tokens.weight")) return std::sqrt(static_cast<double>(spec.cols));
  return spec.name == "lm_head.weight" ? 3 : 1;
}

Result<ModelFiles> plan_synthetic_model(const SynthOptions& options) {
  COLIBRI_TRY(plan, plan_synth_jobs(options));
  return std::move(plan.files);
}

Result<WriteReport> synthesize_model(const std::filesystem::path& dir, const SynthOptions& options, const WriteOptions& write) {
  COLIBRI_TRY(plan, plan_synth_jobs(options));
  WriteOptions resolved = write;
  if (resolved.threads < 1) resolved.threads = available_cpus();
  SynthMaker maker(plan.jobs, options.seed, resolved.threads);
  return write_model(dir, plan.files, maker, resolved);
}

}  // namespace colibri
