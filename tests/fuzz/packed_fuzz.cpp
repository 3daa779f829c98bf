// Any text as a shard's `colibri.packed` metadata, any text as its header's tensors (split at the first line that is
// "---"): an error, or records inside the file whose matrices can be read and decoded. The first byte says how many
// blocks of 16 KiB follow the header. The same bytes are also tried as a record.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "format/packed.h"

using namespace colibri;

namespace {

void require(bool promise) {
  if (!promise) std::abort();
}

// One folder for the whole run, removed when the program ends; its shard is a link to a file in memory.
struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "colibri-fuzz-XXXXXX").string();
  int shard = memfd_create("shard", 0);
  Folder() {
    require(mkdtemp(path.data()) != nullptr && shard >= 0);
    std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(shard), path + "/a.safetensors");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  // The header text, padded so that data starts at a multiple of 16 KiB, and `blocks` times 16 KiB of zeros.
  void write(std::string header, std::uint64_t blocks) const {
    const std::uint64_t start = round_up(8 + header.size(), kRecordAlignment);
    header.resize(start - 8, ' ');
    std::string length;
    for (int i = 0; i < 8; ++i) length += static_cast<char>(header.size() >> (8 * i) & 255);
    header.insert(0, length);
    require(ftruncate(shard, 0) == 0);
    require(pwrite(shard, header.data(), header.size(), 0) == static_cast<ssize_t>(header.size()));
    require(ftruncate(shard, static_cast<off_t>(start + blocks * kRecordAlignment)) == 0);
  }
};

void check_layout(const PackedLayout& layout) {
  std::uint64_t end = 0;
  for (const PackedMatrix& part : layout.parts) {
    require(part.matrix.rows > 0 && part.matrix.cols > 0 && part.data_bytes > 0);
    require(part.data_offset >= end && part.data_offset % 64 == 0 && part.scale_offset % 64 == 0);
    require(part.scale_offset >= part.data_offset + part.data_bytes);
    end = part.scale_offset + part.scale_bytes;
  }
  require(end + kRecordTrailerBytes <= layout.record_bytes && layout.record_bytes % kRecordAlignment == 0);
}

void decode(const Checkpoint& checkpoint, const MatrixSource& source) {
  AlignedBytes memory(Checkpoint::matrix_bytes(source));
  const auto matrix = checkpoint.read_matrix(source, memory.data());
  if (!matrix) return;
  std::vector<float> row(static_cast<std::size_t>(round_up(static_cast<std::uint64_t>(matrix->cols), 32)));
  std::vector<float> scale(row.size() / 32);
  for (const std::int64_t o : {std::int64_t{0}, matrix->rows - 1}) {
    dequantize_row(*matrix, o, row.data());
    decode_row(*matrix, o, row.data(), scale.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1), cut = "\n---\n";
  // The checksum of a stranger's bytes is right only when they were sealed.
  require(!check_packed_record(std::as_bytes(std::span(data, size)), "a.0.packed"));

  const std::size_t at = text.find(cut);
  const std::string_view metadata = text.substr(0, at);
  if (const auto shard = parse_packed_metadata(metadata)) {
    for (const PackedLayout& layout : shard->layouts) check_layout(layout);
    for (const auto& [name, layout] : shard->records) require(layout < shard->layouts.size());
    // What is written again is read as the same.
    const std::string again = packed_metadata_text(*shard);
    const auto same = parse_packed_metadata(again);
    require(same && same->records == shard->records && packed_metadata_text(*same) == again);
  } else {
    require(!shard.error().message.empty());
  }
  if (at == text.npos) return 0;

  const nlohmann::json quoted = std::string(metadata);
  folder.write("{\"__metadata__\":{\"colibri.packed\":" + quoted.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) +
                   "}" + std::string(text.substr(at + cut.size())) + "}",
               data[0] % 16);
  const auto checkpoint = Checkpoint::open(folder.path);
  if (!checkpoint) return 0;
  const auto index = PackedIndex::open(*checkpoint);
  if (!index) {
    require(!index.error().message.empty());
    return 0;
  }
  const std::uint64_t file_bytes = checkpoint->shards()[0].file_bytes;
  for (const PackedExpert& expert : index->all()) {
    const std::uint64_t record_end = expert.record.offset + expert.record.bytes;
    require(expert.record.offset % kRecordAlignment == 0 && record_end <= file_bytes);
    for (const MatrixSource* source : {&expert.gate, &expert.up, &expert.down}) {
      require(source->data.offset >= expert.record.offset && source->data.offset + source->data.bytes <= record_end);
      require(source->scales.bytes == 0 || source->scales.offset + source->scales.bytes <= record_end);
      decode(*checkpoint, *source);
    }
  }
  for (std::int64_t e = 0; e < 3; ++e) (void)index->find("a.", e, 16, 32);
  return 0;
}
