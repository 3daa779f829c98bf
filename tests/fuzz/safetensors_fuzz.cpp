// Any header text must give an error or a header that keeps its promises.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "format/safetensors.h"

using namespace colibri;

namespace {

void require(bool promise) {
  if (!promise) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The first two bytes choose how much data the file would have after the header.
  if (size < 2) return 0;
  const std::uint64_t data_bytes = static_cast<std::uint64_t>(data[0]) << (data[1] % 57);
  const std::span json(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::uint64_t file_bytes = 8 + json.size() + data_bytes;
  const auto header = parse_safetensors_header(json, file_bytes, 0);
  if (!header) {
    require(!header.error().message.empty());
    return 0;
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const TensorInfo& tensor : header->tensors) {
    const auto& [shard, offset, bytes] = tensor.range;
    require(shard == 0 && offset >= header->data_start && offset <= file_bytes && bytes <= file_bytes - offset);
    unsigned __int128 expected = dtype_bytes(tensor.dtype);
    for (const std::int64_t extent : tensor.shape) {
      require(extent >= 0 && expected <= UINT64_MAX);
      expected *= static_cast<std::uint64_t>(extent);
    }
    require(expected == bytes);
    ranges.emplace_back(offset, offset + bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) require(ranges[i - 1].second <= ranges[i].first);
  if (const auto stamp = header->metadata.find("colibri.fmt"); stamp != header->metadata.end()) {
    const auto map = parse_string_map(stamp->second, 4096);
    require(!map || map->size() <= 4096);
  }
  return 0;
}
