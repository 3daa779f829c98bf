// A model directory on disk: every *.safetensors file indexed by its header alone, Hugging Face checkpoints and
// colibri containers alike. Nothing here knows what a tensor is for; src/model asks by name and shape.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "base/result.h"
#include "format/matrix.h"

namespace colibri {

// A run of bytes in one shard.
struct FileRange {
  std::int32_t shard = -1;   // index into Checkpoint::shards()
  std::uint64_t offset = 0;  // from the start of the file
  std::uint64_t bytes = 0;
};

// Where a weight matrix lies and how it is stored: all that is needed to read it later (experts are
// streamed from such records). matrix.data and matrix.scales are null here.
struct MatrixSource {
  Matrix matrix;
  FileRange data;
  FileRange scales;              // bytes == 0 when the format has none
  bool scales_are_bf16 = false;  // Hugging Face fp8 scales may be BF16 on disk; in memory they are always f32
};

enum class DType : std::uint8_t { kF32, kF16, kBF16, kF8E4M3, kF8E8M0, kU8, kI8, kI32, kI64, kU64, kBool };
std::string_view dtype_name(DType type);  // as safetensors spells it
std::size_t dtype_bytes(DType type);

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  FileRange range;
};

class Checkpoint {
 public:
  // Reads the headers of all *.safetensors in dir, in order of their path; expected.safetensors and
  // contract.safetensors, the reference values beside a model, are left out. Errors name shard and tensor.
  static Result<Checkpoint> open(const std::filesystem::path& dir);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  struct Shard {
    std::filesystem::path path;
    std::uint64_t file_bytes = 0;
    std::map<std::string, std::string> metadata;  // the header's __metadata__
  };
  const std::filesystem::path& dir() const;
  const std::vector<Shard>& shards() const;
  const std::vector<TensorInfo>& tensors() const;  // sorted by name
  const TensorInfo* find(std::string_view name) const;
  // Human remarks gathered while resolving, such as a group size that more than one rule would fit. One per kind.
  std::vector<std::string> notices() const;

  // The matrix [rows, cols] stored under `name`: float tensors by their dtype and shape, F8_E4M3 with
  // `<name>_scale_inv`, U8 blobs with `<name>.qs` by byte arithmetic (docs/containers.md). Safe to call from several
  // threads, as all of this class. rows, cols: 1 .. 2^31.
  Result<MatrixSource> find_matrix(std::string_view name, std::int64_t rows, std::int64_t cols) const;
  // Rows [first, first + rows) of item `index` of a stacked tensor [items, stack_rows, cols] (experts of newer
  // Hugging Face checkpoints: gate and up stacked in one tensor).
  Result<MatrixSource> find_stacked(std::string_view name, std::int64_t items, std::int64_t stack_rows, std::int64_t cols,
                                    std::int64_t index, std::int64_t first, std::int64_t rows) const;

  // Reads source into memory that starts at dst (64-byte aligned, matrix_bytes(source) long, data first and scales
  // after it, each 64-byte aligned) and returns the view over it. Scales must be finite. Safe to call from several threads.
  // matrix_bytes is a multiple of 64; the slack that Matrix asks for past its end is the caller's.
  Result<Matrix> read_matrix(const MatrixSource& source, std::byte* dst) const;
  static std::uint64_t matrix_bytes(const MatrixSource& source);

  // A small float tensor of exactly `count` elements (norms, biases), widened to f32. The values must be finite.
  Result<AlignedArray<float>> read_floats(std::string_view name, std::int64_t count) const;
  // For messages: shard and tensor that bytes belong to.
  std::string owner(const FileRange& range) const;
  // Raw bytes, exactly range.bytes of them. EINTR and short reads are handled.
  Result<void> read(const FileRange& range, std::byte* dst) const;

 private:
  struct State;
  struct StackSlice {
    std::int64_t items = 1, stack_rows = 0, cols = 0;  // the whole tensor
    std::int64_t index = 0, first = 0, rows = 0;       // the rows asked for
  };
  Result<MatrixSource> find_in_stack(const TensorInfo& tensor, const StackSlice& slice, bool stacked) const;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace colibri
