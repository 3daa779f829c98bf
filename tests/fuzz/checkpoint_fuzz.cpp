// A folder of two shards with arbitrary bytes: opened, every tensor looked up as a matrix, read and decoded. The
// first byte says where the first shard ends (in 1/256 of the input), the next two the shape that is asked for.
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "format/checkpoint.h"

using namespace colibri;

namespace {

void require(bool promise) {
  if (!promise) std::abort();
}

// One folder for the whole run, removed when the program ends; its shards are links to files in memory, which is
// many times faster than a disk.
struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "colibri-fuzz-XXXXXX").string();
  int shards[2] = {};
  Folder() {
    require(mkdtemp(path.data()) != nullptr);
    for (int i = 0; i < 2; ++i) {
      shards[i] = memfd_create("shard", 0);
      require(shards[i] >= 0);
      std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(shards[i]), path + (i ? "/b" : "/a") + ".safetensors");
    }
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  void write(int shard, const std::uint8_t* data, std::size_t size) const {
    require(ftruncate(shards[shard], 0) == 0);
    require(pwrite(shards[shard], data, size, 0) == static_cast<ssize_t>(size));
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  if (size < 3) return 0;
  const std::size_t body = size - 3, first = body * data[0] / 256;
  folder.write(0, data + 3, first);
  folder.write(1, data + 3 + first, body - first);
  const std::int64_t rows = 1 + data[1] % 40, cols = 1 + data[2];

  const auto checkpoint = Checkpoint::open(folder.path);
  if (!checkpoint) return 0;
  for (const TensorInfo& tensor : checkpoint->tensors()) {
    const auto& shape = tensor.shape;
    const bool is_matrix = shape.size() == 2, is_stack = shape.size() == 3;
    const auto source = is_stack ? checkpoint->find_stacked(tensor.name, shape[0], shape[1], shape[2], shape[0] - 1, 0, shape[1])
                                 : checkpoint->find_matrix(tensor.name, is_matrix ? shape[0] : rows, is_matrix ? shape[1] : cols);
    if (!source) continue;
    AlignedBytes memory(Checkpoint::matrix_bytes(*source));
    const auto matrix = checkpoint->read_matrix(*source, memory.data());
    if (!matrix) continue;
    std::vector<float> row(static_cast<std::size_t>(round_up(static_cast<std::uint64_t>(matrix->cols), 32)));
    std::vector<float> scale(row.size() / 32);
    for (std::int64_t o = 0; o < matrix->rows; ++o) {
      dequantize_row(*matrix, o, row.data());
      decode_row(*matrix, o, row.data(), scale.data());
    }
    (void)checkpoint->read_floats(tensor.name, matrix->rows * matrix->cols);
  }
  return 0;
}
