// Between the plan of a conversion and the maker of its bytes.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "convert/convert.h"
#include "convert/matrix_units.h"

namespace colibri {

struct ConvertMatrix {
  std::string name;  // for messages
  MatrixSource source;
  TargetFormat target;
  bool keep = false;  // the stored weights are taken over unchanged
};

struct ConvertJob {
  enum class Kind : std::uint8_t {
    kCopy,    // `ranges`, one per tensor of the unit, byte for byte
    kFloats,  // a vector, widened to f32
    kMatrix,  // one matrix, quantised in pieces of rows
    kExpert,  // three matrices: a record, or tensors
  };
  Kind kind = Kind::kCopy;
  TensorClass tensor_class = TensorClass::kFloats;
  std::vector<ConvertMatrix> matrices;
  std::vector<FileRange> ranges;
  std::string name;        // kFloats
  std::int64_t count = 0;  // kFloats
};

struct ConvertPlan {
  ModelFiles files;
  std::vector<ConvertJob> jobs;  // by PlannedUnit::job
  std::array<std::string, kTensorClassCount> formats;
  std::vector<std::string> notices;
};
Result<ConvertPlan> plan_conversion(const Checkpoint& checkpoint, const ModelConfig& config, const ConvertOptions& options);

class ConvertMaker : public UnitMaker {
 public:
  // checkpoint and jobs must outlive it.
  ConvertMaker(const Checkpoint& checkpoint, const std::vector<ConvertJob>& jobs, int threads)
      : checkpoint_(checkpoint), jobs_(jobs), workers_(static_cast<std::size_t>(threads)) {}
  std::int64_t pieces(const PlannedUnit& unit) const override;
  Result<void> make(const PlannedUnit& unit, std::int64_t piece, int worker, const OutputFile& file,
                    ClassErrors& errors) override;

 private:
  // Memory that a thread keeps between pieces.
  struct Worker {
    AlignedBytes source, result;
    std::vector<float> row;
    std::span<std::byte> source_bytes(std::uint64_t bytes) { return grown(source, bytes); }
    std::span<std::byte> result_bytes(std::uint64_t bytes) { return grown(result, bytes); }

   private:
    static std::span<std::byte> grown(AlignedBytes& memory, std::uint64_t bytes);
  };

  Result<void> copy(const PlannedUnit& unit, const ConvertJob& job, std::int64_t piece, Worker& worker, const OutputFile& file);
  Result<void> floats(const PlannedUnit& unit, const ConvertJob& job, const OutputFile& file);
  Result<void> matrix(const PlannedUnit& unit, const ConvertJob& job, std::int64_t piece, Worker& worker, const OutputFile& file,
                      QuantizationError& error);
  Result<void> expert(const PlannedUnit& unit, const ConvertJob& job, Worker& worker, const OutputFile& file,
                      QuantizationError& error);
  Result<void> quantize(const ConvertMatrix& matrix, const MatrixSource& source, std::int64_t first_row, Worker& worker,
                        std::byte* data, float* scales, QuantizationError& error);

  const Checkpoint& checkpoint_;
  const std::vector<ConvertJob>& jobs_;
  std::vector<Worker> workers_;
};

// Rows [first, first + count) of a stored matrix; for fp8 `first` is a multiple of 128.
MatrixSource slice_rows(const MatrixSource& source, std::int64_t first, std::int64_t count);

}  // namespace colibri
