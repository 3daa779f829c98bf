#include "format/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <system_error>

#include "format/blob_format.h"
#include "format/file.h"
#include "format/safetensors.h"

namespace colibri {
namespace {

constexpr std::size_t kMaxStampEntries = 4096;
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 31;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 56;  // four bytes each still fit 64 bits with room to add

struct Stamp {
  std::string format;
  std::int32_t shard = -1;
};

WeightFormat float_format(DType type) {
  return type == DType::kF32 ? WeightFormat::kF32 : type == DType::kF16 ? WeightFormat::kF16 : WeightFormat::kBF16;
}

bool is_float(DType type) { return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }

// The index of the first value that is infinite or NaN, or the number of values. Scales are a tenth of what an expert
// reads, so the loop that finds nothing has no branch and the compiler makes it wide.
std::uint64_t first_not_finite(const float* values, std::uint64_t count) {
  constexpr std::uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;
  std::uint32_t largest = 0;
  for (std::uint64_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & kMagnitude);
  if (largest < kInfinity) return count;
  return static_cast<std::uint64_t>(std::find_if(values, values + count, [](float v) { return !std::isfinite(v); }) - values);
}

Result<std::vector<std::filesystem::path>> list_shards(const std::filesystem::path& dir) {
  std::error_code error;
  const auto status = std::filesystem::status(dir, error);
  if (!std::filesystem::exists(status)) return fail("{}: there is no such directory", dir.string());
  if (!std::filesystem::is_directory(status)) return fail("{}: expected a model directory", dir.string());
  std::vector<std::filesystem::path> paths;
  std::filesystem::directory_iterator it(dir, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::filesystem::path name = it->path().filename();
    // Dot-files are other programs' (a copy made on macOS leaves ._NAME.safetensors beside each shard).
    if (name.extension() != ".safetensors" || name.string().front() == '.') continue;
    if (name != "expected.safetensors" && name != "contract.safetensors") paths.push_back(it->path());
  }
  if (error) return fail("{}: cannot be listed: {}", dir.string(), error.message());
  if (paths.empty())
    return fail("{}: holds no *.safetensors file; expected a Hugging Face checkpoint or a colibri container", dir.string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

struct Checkpoint::State {
  std::filesystem::path dir;
  std::vector<Shard> shards;
  std::vector<InputFile> files;
  std::vector<TensorInfo> tensors;
  std::map<std::string, Stamp, std::less<>> stamps;

  std::mutex mutex;                              // guards the next line: finding tensors is const to callers
  std::map<std::string, std::string> ambiguous;  // remark -> the first tensor it was made for

  std::string shard_name(std::int32_t shard) const { return shards[static_cast<std::size_t>(shard)].path.string(); }
  // "DIR/out-00001.safetensors: tensor 'a'"
  std::string label(const TensorInfo& t) const {
    return fmt::format("{}: tensor {}", shard_name(t.range.shard), in_quotes(t.name));
  }

  Result<void> add_stamps(const std::map<std::string, std::string>& metadata, std::int32_t shard);
  Result<void> sort_tensors();
  const TensorInfo* find(std::string_view name) const;
  Result<const TensorInfo*> require(std::string_view name, std::string_view what) const;
  std::string_view stamp_of(std::string_view name) const;
  Result<void> check_stamp(const TensorInfo& tensor, WeightFormat format) const;

  Result<const TensorInfo*> fp8_scales(const TensorInfo& tensor, std::span<const std::int64_t> expected) const;
  Result<MatrixSource> find_blob(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols);
};

// ---- opening

Result<void> Checkpoint::State::add_stamps(const std::map<std::string, std::string>& metadata, std::int32_t shard) {
  const auto text = metadata.find("colibri.fmt");
  if (text == metadata.end()) return {};
  auto map = parse_string_map(text->second, kMaxStampEntries);
  if (!map) return fail("{}: the colibri.fmt stamp: {}", shard_name(shard), map.error().message);
  for (const auto& [name, format] : *map) {
    const auto [it, is_new] = stamps.try_emplace(name, Stamp{format, shard});
    if (!is_new && it->second.format != format)
      return fail("the colibri.fmt stamps of {} and {} disagree on tensor {}: {} and {}", shard_name(it->second.shard),
                  shard_name(shard), in_quotes(name), in_quotes(it->second.format), in_quotes(format));
  }
  return {};
}

Result<void> Checkpoint::State::sort_tensors() {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    const int order = a.name.compare(b.name);
    return order != 0 ? order < 0 : a.range.shard < b.range.shard;
  });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twice == tensors.end()) return {};
  return fail("tensor {} is in both {} and {}; remove the shard that does not belong to this model", in_quotes(twice->name),
              shard_name(twice->range.shard), shard_name(std::next(twice)->range.shard));
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& dir) {
  COLIBRI_TRY(paths, list_shards(dir));
  auto state = std::make_unique<State>();
  state->dir = dir;
  for (const auto& path : paths) {
    const auto shard = static_cast<std::int32_t>(state->shards.size());
    COLIBRI_TRY(file, InputFile::open(path));
    COLIBRI_TRY(header, read_safetensors_header(file, shard));
    state->shards.push_back({path, file.bytes(), std::move(header.metadata)});
    state->files.push_back(std::move(file));
    COLIBRI_CHECK(state->add_stamps(state->shards.back().metadata, shard));
    std::move(header.tensors.begin(), header.tensors.end(), std::back_inserter(state->tensors));
  }
  COLIBRI_CHECK(state->sort_tensors());
  return Checkpoint(std::move(state));
}

const std::filesystem::path& Checkpoint::dir() const { return state_->dir; }
const std::vector<Checkpoint::Shard>& Checkpoint::shards() const { return state_->shards; }
const std::vector<TensorInfo>& Checkpoint::tensors() const { return state_->tensors; }
const TensorInfo* Checkpoint::find(std::string_view name) const { return state_->find(name); }

std::vector<std::string> Checkpoint::notices() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> notices;
  for (const auto& [remark, tensor] : state_->ambiguous) notices.push_back(fmt::format("{} (first: {})", remark, tensor));
  return notices;
}

// ---- finding

const TensorInfo* Checkpoint::State::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors.begin(), tensors.end(), name,
                                   [](const TensorInfo& t, std::string_view key) { return std::string_view(t.name) < key; });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

Result<const TensorInfo*> Checkpoint::State::require(std::string_view name, std::string_view what) const {
  if (const TensorInfo* tensor = find(name)) return tensor;
  return fail("{}: tensor {} ({}) is missing from the {} tensors of {} shard{}; is the download complete?", dir.string(),
              in_quotes(name), what, tensors.size(), shards.size(), shards.size() == 1 ? "" : "s");
}

std::string_view Checkpoint::State::stamp_of(std::string_view name) const {
  const auto it = stamps.find(name);
  return it == stamps.end() ? std::string_view() : it->second.format;
}

Result<void> Checkpoint::State::check_stamp(const TensorInfo& tensor, WeightFormat format) const {
  const std::string_view stamp = stamp_of(tensor.name);
  if (stamp.empty() || stamp_names(stamp, format)) return {};
  return fail("{}: the container's stamp says {}, the tensor's dtype is {}", label(tensor), in_quotes(stamp),
              dtype_name(tensor.dtype));
}

std::string Checkpoint::owner(const FileRange& range) const {
  for (const TensorInfo& t : state_->tensors)
    if (t.range.shard == range.shard && range.offset >= t.range.offset && range.offset - t.range.offset < t.range.bytes)
      return state_->label(t);
  return state_->shard_name(range.shard);
}

Result<const TensorInfo*> Checkpoint::State::fp8_scales(const TensorInfo& tensor, std::span<const std::int64_t> expected) const {
  COLIBRI_TRY(scales, require(tensor.name + "_scale_inv", "the scales of an F8_E4M3 tensor, " + shape_text(expected)));
  if (scales->dtype == DType::kF8E8M0)
    return fail("{}: scales in F8_E8M0, which colibri does not read; expected F32 or BF16", label(*scales));
  if (scales->dtype != DType::kF32 && scales->dtype != DType::kBF16)
    return fail("{}: scales in {}, expected F32 or BF16", label(*scales), dtype_name(scales->dtype));
  if (!std::equal(scales->shape.begin(), scales->shape.end(), expected.begin(), expected.end()))
    return fail("{}: shape {}, expected {}, one scale for 128x128 weights", label(*scales), shape_text(scales->shape),
                shape_text(expected));
  return scales;
}

Result<MatrixSource> Checkpoint::State::find_blob(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols) {
  COLIBRI_TRY(scales, require(tensor.name + ".qs", fmt::format("the scales of a {} blob, F32", dtype_name(tensor.dtype))));
  if (scales->dtype == DType::kF8E8M0 || scales->dtype == DType::kU8)
    return fail("{}: scales in {} (UE8M0, one byte each), which colibri does not read; expected F32", label(*scales),
                dtype_name(scales->dtype));
  if (scales->dtype != DType::kF32) return fail("{}: scales in {}, expected F32", label(*scales), dtype_name(scales->dtype));
  auto blob = infer_blob_format(rows, cols, tensor.range.bytes, scales->range.bytes, stamp_of(tensor.name));
  if (!blob) return fail("{}: {}", label(tensor), blob.error().message);
  if (!blob->ambiguity.empty()) {
    const std::lock_guard lock(mutex);
    ambiguous.try_emplace(blob->ambiguity, label(tensor));
  }
  MatrixSource source;
  source.matrix.format = blob->format;
  source.matrix.group = blob->group;
  source.matrix.rows = rows;
  source.matrix.cols = cols;
  source.matrix.row_bytes = format_row_bytes(blob->format, cols);
  source.matrix.scale_stride = format_row_scales(blob->format, cols, blob->group);
  source.data = tensor.range;
  source.scales = scales->range;
  return source;
}

Result<MatrixSource> Checkpoint::find_matrix(std::string_view name, std::int64_t rows, std::int64_t cols) const {
  if (rows < 1 || cols < 1 || rows > kMaxExtent || cols > kMaxExtent || rows > kMaxElements / cols)
    return fail("tensor {}: a matrix [{}, {}] cannot exist", in_quotes(name), rows, cols);
  COLIBRI_TRY(tensor, state_->require(name, fmt::format("[{}, {}]", rows, cols)));
  if (tensor->dtype == DType::kU8 || tensor->dtype == DType::kI8) return state_->find_blob(*tensor, rows, cols);
  const std::int64_t expected[] = {rows, cols};
  if (!std::equal(tensor->shape.begin(), tensor->shape.end(), std::begin(expected), std::end(expected)))
    return fail("{}: {} {}, expected {}", state_->label(*tensor), dtype_name(tensor->dtype), shape_text(tensor->shape),
                shape_text(expected));
  // A plain matrix is a stack of one.
  return find_in_stack(*tensor, StackSlice{.items = 1, .stack_rows = rows, .cols = cols, .rows = rows}, false);
}

Result<MatrixSource> Checkpoint::find_stacked(std::string_view name, std::int64_t items, std::int64_t stack_rows,
                                              std::int64_t cols, std::int64_t index, std::int64_t first,
                                              std::int64_t rows) const {
  const std::int64_t expected[] = {items, stack_rows, cols};
  if (items < 1 || stack_rows < 1 || cols < 1 || items > kMaxExtent || stack_rows > kMaxExtent || cols > kMaxExtent ||
      stack_rows > kMaxElements / cols || items > kMaxElements / (stack_rows * cols))
    return fail("tensor {}: a stack {} cannot exist", in_quotes(name), shape_text(expected));
  if (index < 0 || index >= items || first < 0 || rows < 1 || first >= stack_rows || rows > stack_rows - first)
    return fail("tensor {}: rows {} to {} of item {} lie outside {}", in_quotes(name), first, first + rows, index,
                shape_text(expected));
  COLIBRI_TRY(tensor, state_->require(name, shape_text(expected)));
  if (!std::equal(tensor->shape.begin(), tensor->shape.end(), std::begin(expected), std::end(expected)))
    return fail("{}: {} {}, expected {}", state_->label(*tensor), dtype_name(tensor->dtype), shape_text(tensor->shape),
                shape_text(expected));
  return find_in_stack(*tensor, StackSlice{items, stack_rows, cols, index, first, rows}, true);
}

Result<MatrixSource> Checkpoint::find_in_stack(const TensorInfo& tensor, const StackSlice& slice, bool stacked) const {
  const auto bytes = [](std::int64_t count, std::size_t each) { return static_cast<std::uint64_t>(count) * each; };
  MatrixSource source;
  Matrix& m = source.matrix;
  m.rows = slice.rows;
  m.cols = slice.cols;
  if (is_float(tensor.dtype)) {
    m.format = float_format(tensor.dtype);
  } else if (tensor.dtype == DType::kF8E4M3) {
    m.format = WeightFormat::kF8Block128;
    m.group = 128;
    m.row_origin = slice.first;
    m.scale_stride = ceil_div(slice.cols, 128);
    const std::int64_t blocks = ceil_div(slice.stack_rows, 128);
    const std::int64_t expected[] = {slice.items, blocks, m.scale_stride};
    COLIBRI_TRY(scales, state_->fp8_scales(tensor, std::span(expected).subspan(stacked ? 0 : 1)));
    const std::size_t each = dtype_bytes(scales->dtype);
    const std::int64_t first_block = slice.first / 128, last_block = (slice.first + slice.rows - 1) / 128;
    source.scales = {scales->range.shard,
                     scales->range.offset + bytes((slice.index * blocks + first_block) * m.scale_stride, each),
                     bytes((last_block - first_block + 1) * m.scale_stride, each)};
    source.scales_are_bf16 = scales->dtype == DType::kBF16;
  } else {
    return fail("{}: dtype {}, expected F32, F16, BF16 or F8_E4M3{}", state_->label(tensor), dtype_name(tensor.dtype),
                stacked ? "" : " (or a U8 blob with .qs scales)");
  }
  m.row_bytes = format_row_bytes(m.format, slice.cols);
  COLIBRI_CHECK(state_->check_stamp(tensor, m.format));
  source.data = {tensor.range.shard,
                 tensor.range.offset + bytes(slice.index * slice.stack_rows + slice.first, static_cast<std::size_t>(m.row_bytes)),
                 bytes(slice.rows, static_cast<std::size_t>(m.row_bytes))};
  return source;
}

// ---- reading

std::uint64_t Checkpoint::matrix_bytes(const MatrixSource& source) {
  const std::uint64_t scale_bytes = source.scales.bytes * (source.scales_are_bf16 ? 2 : 1);
  return round_up(source.data.bytes, kWeightAlignment) + round_up(scale_bytes, kWeightAlignment);
}

Result<void> Checkpoint::read(const FileRange& range, std::byte* dst) const {
  assert(range.shard >= 0 && static_cast<std::size_t>(range.shard) < state_->files.size());
  return state_->files[static_cast<std::size_t>(range.shard)].read(range.offset, range.bytes, dst);
}

Result<Matrix> Checkpoint::read_matrix(const MatrixSource& source, std::byte* dst) const {
  assert(reinterpret_cast<std::uintptr_t>(dst) % kWeightAlignment == 0);
  COLIBRI_CHECK(read(source.data, dst));
  Matrix matrix = source.matrix;
  matrix.data = dst;
  if (source.scales.bytes == 0) return matrix;

  std::byte* const at = dst + round_up(source.data.bytes, kWeightAlignment);
  float* const scales = reinterpret_cast<float*>(at);
  const std::uint64_t count = source.scales.bytes / (source.scales_are_bf16 ? 2 : 4);
  if (source.scales_are_bf16) {
    // Read into the second half of their place and widened from the front: writing never overtakes reading.
    const std::byte* const narrow = at + 2 * count;
    COLIBRI_CHECK(read(source.scales, at + 2 * count));
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, narrow + 2 * i, 2);
      scales[i] = f32_from_bf16(bits);
    }
  } else {
    COLIBRI_CHECK(read(source.scales, at));
  }
  for (std::uint64_t i = 0; i < count; ++i)
    if (!std::isfinite(scales[i]))
      return fail("{}: scale {} is {}, expected a finite number; the file is damaged: fetch or convert it again",
                  owner(source.scales), i, scales[i]);
  matrix.scales = scales;
  return matrix;
}

Result<AlignedArray<float>> Checkpoint::read_floats(std::string_view name, std::int64_t count) const {
  COLIBRI_TRY(tensor, state_->require(name, fmt::format("{} numbers", count)));
  if (!is_float(tensor->dtype))
    return fail("{}: dtype {}, expected F32, F16 or BF16", state_->label(*tensor), dtype_name(tensor->dtype));
  const std::size_t each = dtype_bytes(tensor->dtype);
  const std::uint64_t found = tensor->range.bytes / each;
  if (count < 0 || found != static_cast<std::uint64_t>(count))
    return fail("{}: shape {} holds {} numbers, expected {}", state_->label(*tensor), shape_text(tensor->shape), found, count);
  AlignedArray<float> values(found);
  // Narrow values go into the second half and are widened from the front, as in read_matrix.
  std::byte* const raw = reinterpret_cast<std::byte*>(values.data()) + found * (4 - each);
  COLIBRI_CHECK(read(tensor->range, raw));
  for (std::uint64_t i = 0; i < found; ++i) {
    if (each == 2) {
      std::uint16_t bits;
      std::memcpy(&bits, raw + 2 * i, 2);
      values[i] = tensor->dtype == DType::kF16 ? f32_from_f16(bits) : f32_from_bf16(bits);
    }
  }
  if (const std::uint64_t i = first_not_finite(values.data(), found); i < found)
    return fail("{}: element {} is {}, expected a finite number; the file is damaged: fetch or convert it again",
                state_->label(*tensor), i, values[i]);
  return values;
}

}  // namespace colibri
