#include "gpu/kernel_set.h"

#include <algorithm>
#include <chrono>

namespace colibri::gpu {

Result<const Kernel*> KernelSet::get(const KernelId& id) {
  std::string key = fmt::format("{}/{}", id.file, id.function);
  for (const std::uint32_t c : id.constants) key += fmt::format(",{}", c);
  auto kernel = kernels_.find(key);
  if (kernel == kernels_.end()) {
    const auto start = std::chrono::steady_clock::now();
    auto library = libraries_.find(id.file);
    if (library == libraries_.end()) {
      const auto files = kernel_files();
      const auto file = std::find_if(files.begin(), files.end(), [&](const KernelFile& f) { return f.name == id.file; });
      library =
          libraries_
              .emplace(id.file, file == files.end() ? Result<std::unique_ptr<Library>>(fail("no kernels named '{}'", id.file))
                                                    : device_.compile(file->name, file->text))
              .first;
    }
    kernel = kernels_
                 .emplace(std::move(key), library->second ? (*library->second)->kernel(std::string(id.function), id.constants)
                                                          : Result<std::unique_ptr<Kernel>>(pass(library->second.error())))
                 .first;
    compile_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  if (!kernel->second) return pass(kernel->second.error());
  return kernel->second->get();
}

}  // namespace colibri::gpu
