// The bytes of a conversion.
#include "convert/convert.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>

#include "base/thread_team.h"
#include "convert/convert_jobs.h"
#include "format/file.h"

namespace colibri {
namespace {

constexpr std::uint64_t kCopyBytes = 16 << 20;  // one piece of a copy

std::int64_t copy_pieces(std::uint64_t bytes) { return ceil_div(static_cast<std::int64_t>(bytes), kCopyBytes); }

std::uint64_t product(std::int64_t a, std::int64_t b) { return static_cast<std::uint64_t>(a * b); }

// dequantize_row, with the formats of large sources done in bulk.
void widen_row(const Matrix& m, std::int64_t o, float* out) {
  const std::byte* const row = m.row(o);
  if (m.format == WeightFormat::kBF16) {
    for (std::int64_t k = 0; k < m.cols; ++k) {
      std::uint16_t bits;
      std::memcpy(&bits, row + 2 * k, 2);
      out[k] = f32_from_bf16(bits);
    }
  } else if (m.format == WeightFormat::kF8Block128) {
    static const std::array<float, 256> kValues = [] {
      std::array<float, 256> values;
      for (std::size_t code = 0; code < values.size(); ++code) values[code] = f32_from_e4m3(static_cast<std::uint8_t>(code));
      return values;
    }();
    const float* const scales = m.row_scales(o);
    for (std::int64_t k = 0; k < m.cols; ++k) out[k] = kValues[static_cast<std::uint8_t>(row[k])] * scales[k / 128];
  } else {
    dequantize_row(m, o, out);
  }
}

}  // namespace

MatrixSource slice_rows(const MatrixSource& source, std::int64_t first, std::int64_t count) {
  MatrixSource slice = source;
  const Matrix& m = source.matrix;
  slice.matrix.rows = count;
  slice.data.offset += product(first, m.row_bytes);
  slice.data.bytes = product(count, m.row_bytes);
  if (source.scales.bytes == 0) return slice;
  std::int64_t scale_row = first, scale_rows = count;
  if (m.format == WeightFormat::kF8Block128) {
    slice.matrix.row_origin = m.row_origin + first;
    scale_row = slice.matrix.row_origin / 128 - m.row_origin / 128;
    scale_rows = (slice.matrix.row_origin + count - 1) / 128 - slice.matrix.row_origin / 128 + 1;
  }
  const std::uint64_t each = source.scales_are_bf16 ? 2 : 4;
  slice.scales.offset += product(scale_row, m.scale_stride) * each;
  slice.scales.bytes = product(scale_rows, m.scale_stride) * each;
  return slice;
}

std::span<std::byte> ConvertMaker::Worker::grown(AlignedBytes& memory, std::uint64_t bytes) {
  // The slack is what Matrix promises past its end.
  const std::uint64_t whole = round_up(bytes + kReadSlack, kDirectBlock);
  if (memory.size() < whole) {
    memory = AlignedBytes();  // the old one first: both may not fit
    memory = AlignedBytes(whole, kDirectBlock);
  }
  return {memory.data(), bytes};
}

std::int64_t ConvertMaker::pieces(const PlannedUnit& unit) const {
  const ConvertJob& job = jobs_[unit.job];
  switch (job.kind) {
    case ConvertJob::Kind::kCopy: {
      std::int64_t pieces = 0;
      for (const FileRange& range : job.ranges) pieces += copy_pieces(range.bytes);
      return pieces;
    }
    case ConvertJob::Kind::kMatrix: return row_pieces(job.matrices[0].source.matrix.rows, job.matrices[0].source.matrix.cols);
    case ConvertJob::Kind::kFloats:
    case ConvertJob::Kind::kExpert: break;
  }
  return 1;
}

Result<void> ConvertMaker::make(const PlannedUnit& unit, std::int64_t piece, int worker_number, const OutputFile& file,
                                ClassErrors& errors) {
  const ConvertJob& job = jobs_[unit.job];
  Worker& worker = workers_[static_cast<std::size_t>(worker_number)];
  QuantizationError& error = errors[static_cast<std::size_t>(job.tensor_class)];
  switch (job.kind) {
    case ConvertJob::Kind::kCopy: return copy(unit, job, piece, worker, file);
    case ConvertJob::Kind::kFloats: return floats(unit, job, file);
    case ConvertJob::Kind::kMatrix: return matrix(unit, job, piece, worker, file, error);
    case ConvertJob::Kind::kExpert: break;
  }
  return expert(unit, job, worker, file, error);
}

Result<void> ConvertMaker::copy(const PlannedUnit& unit, const ConvertJob& job, std::int64_t piece, Worker& worker,
                                const OutputFile& file) {
  std::size_t i = 0;
  for (; piece >= copy_pieces(job.ranges[i].bytes); ++i) piece -= copy_pieces(job.ranges[i].bytes);
  const std::uint64_t first = static_cast<std::uint64_t>(piece) * kCopyBytes;
  const FileRange& range = job.ranges[i];
  const std::uint64_t bytes = std::min(kCopyBytes, range.bytes - first);
  const std::span<std::byte> memory = worker.source_bytes(bytes);
  COLIBRI_CHECK(checkpoint_.read({range.shard, range.offset + first, bytes}, memory.data()));
  return file.write(unit.tensors[i].offset + first, memory);
}

Result<void> ConvertMaker::floats(const PlannedUnit& unit, const ConvertJob& job, const OutputFile& file) {
  COLIBRI_TRY(values, checkpoint_.read_floats(job.name, job.count));
  return file.write(unit.tensors[0].offset, std::as_bytes(values.span()));
}

Result<void> ConvertMaker::matrix(const PlannedUnit& unit, const ConvertJob& job, std::int64_t piece, Worker& worker,
                                  const OutputFile& file, QuantizationError& error) {
  const ConvertMatrix& m = job.matrices[0];
  const std::int64_t cols = m.source.matrix.cols;
  const RowPiece rows = row_piece(m.source.matrix.rows, cols, piece);
  const std::int64_t row_bytes = format_row_bytes(m.target.format, cols);
  const std::int64_t row_scales = format_row_scales(m.target.format, cols, m.target.group);
  const std::uint64_t data_bytes = product(rows.count, row_bytes), scale_bytes = 4 * product(rows.count, row_scales);
  const std::span<std::byte> result = worker.result_bytes(round_up(data_bytes, kWeightAlignment) + scale_bytes);
  const std::span<std::byte> scales = result.last(scale_bytes);
  COLIBRI_CHECK(quantize(m, slice_rows(m.source, rows.first, rows.count), rows.first, worker, result.data(),
                         reinterpret_cast<float*>(scales.data()), error));
  COLIBRI_CHECK(file.write(unit.tensors[0].offset + product(rows.first, row_bytes), result.first(data_bytes)));
  if (scale_bytes == 0) return {};
  return file.write(unit.tensors[1].offset + 4 * product(rows.first, row_scales), scales);
}

Result<void> ConvertMaker::expert(const PlannedUnit& unit, const ConvertJob& job, Worker& worker, const OutputFile& file,
                                  QuantizationError& error) {
  // In the plain layout the parts are first put together as in a record, too.
  PackedLayout layout;
  if (unit.record) {
    layout = *unit.record;
  } else {
    std::array<Matrix, 3> m;
    for (std::size_t i = 0; i < 3; ++i)
      m[i] = describe_matrix(job.matrices[i].target, job.matrices[i].source.matrix.rows, job.matrices[i].source.matrix.cols);
    layout = make_packed_layout(m[0], m[1], m[2]);
  }
  const std::span<std::byte> record = worker.result_bytes(layout.record_bytes);
  for (std::size_t i = 0; i < 3; ++i) {
    const ConvertMatrix& m = job.matrices[i];
    const PackedMatrix& part = layout.parts[i];
    std::byte* const data = record.data() + part.data_offset;
    if (m.keep) {
      COLIBRI_CHECK(checkpoint_.read_matrix(m.source, data));  // data, then scales at the next multiple of 64
    } else {
      COLIBRI_CHECK(quantize(m, m.source, 0, worker, data, reinterpret_cast<float*>(record.data() + part.scale_offset), error));
    }
  }
  if (unit.record) {
    seal_packed_record(layout, unit.tensors[0].name, record);
    return file.write(unit.tensors[0].offset, record);
  }
  for (std::size_t i = 0, next_scales = 3; i < 3; ++i) {
    const PackedMatrix& part = layout.parts[i];
    COLIBRI_CHECK(file.write(unit.tensors[i].offset, record.subspan(part.data_offset, part.data_bytes)));
    if (part.scale_bytes > 0)
      COLIBRI_CHECK(file.write(unit.tensors[next_scales++].offset, record.subspan(part.scale_offset, part.scale_bytes)));
  }
  return {};
}

Result<void> ConvertMaker::quantize(const ConvertMatrix& matrix, const MatrixSource& source, std::int64_t first_row,
                                    Worker& worker, std::byte* data, float* scales, QuantizationError& error) {
  COLIBRI_TRY(stored, checkpoint_.read_matrix(source, worker.source_bytes(Checkpoint::matrix_bytes(source)).data()));
  worker.row.resize(static_cast<std::size_t>(stored.cols));
  const std::int64_t row_bytes = format_row_bytes(matrix.target.format, stored.cols);
  const std::int64_t row_scales = format_row_scales(matrix.target.format, stored.cols, matrix.target.group);
  for (std::int64_t o = 0; o < stored.rows; ++o) {
    widen_row(stored, o, worker.row.data());
    if (!quantize_row(matrix.target, worker.row.data(), stored.cols, data + o * row_bytes, scales + o * row_scales, error))
      return fail("tensor {}: row {} holds a weight that is not a finite number; the source is damaged", in_quotes(matrix.name),
                  first_row + o);
  }
  return {};
}

Result<ConvertReport> convert_model(const std::filesystem::path& source, const std::filesystem::path& destination,
                                    const ConvertOptions& options, const WriteOptions& write) {
  COLIBRI_TRY(config, ModelConfig::load(source));
  COLIBRI_TRY(checkpoint, Checkpoint::open(source));
  std::error_code error;
  if (std::filesystem::equivalent(source, destination, error))
    return fail("{}: source and destination are the same directory", destination.string());
  COLIBRI_TRY(plan, plan_conversion(checkpoint, config, options));
  WriteOptions resolved = write;
  if (resolved.threads < 1) resolved.threads = available_cpus();
  ConvertMaker maker(checkpoint, plan.jobs, resolved.threads);
  COLIBRI_TRY(written, write_model(destination, plan.files, maker, resolved));
  return ConvertReport{written, std::move(plan.formats), std::move(plan.notices)};
}

}  // namespace colibri
