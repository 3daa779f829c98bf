#include "capi/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "capi/moe_work.h"

namespace colibri::capi {
namespace {

constexpr std::size_t kSpareBlocks = 4;
constexpr std::uint64_t kLeastWork = std::uint64_t{1} << 20;

std::uint64_t& reason(coli_metal_counter_values& c, gpu::Fault fault) {
  switch (fault) {
    case gpu::Fault::kTimeout: return c.fallback_timeout;
    case gpu::Fault::kMemory: return c.fallback_memory;
    case gpu::Fault::kResidency: return c.fallback_residency;
    case gpu::Fault::kCompile: return c.fallback_compile;
    default: return c.fallback_error;
  }
}

}  // namespace

void WorkMemory::put(gpu::Address to, const void* from, std::uint64_t count) {
  if (from == nullptr)
    std::memset(block.host<std::byte>(to), 0, count);
  else
    std::memcpy(block.host<std::byte>(to), from, count);
}

void WorkMemory::get(void* to, gpu::Address from, std::uint64_t count) { std::memcpy(to, block.host<std::byte>(from), count); }

WorkLease::~WorkLease() {
  if (memory_) backend_->keep(std::move(memory_));
}

Backend::Backend(std::unique_ptr<gpu::Device> device) : device_(std::move(device)), kernels_(*device_) {
  if (const char* text = std::getenv("COLI_METAL_GEMM_MIN"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    const long long value = std::strtoll(text, &end, 10);
    if (*end == '\0' && value > 0) plan_.tile_from = value;
  }
}

Backend::~Backend() {
  for (auto& [key, work] : open_)
    if (work->pending) work->pending->wait();
  open_.clear();
  const auto regions = memory_.regions().regions();
  for (const auto& region : regions) (void)device_->unregister_region(const_cast<std::byte*>(region.base));
}

Outcome<std::unique_ptr<Backend>> Backend::open(std::uint32_t flags) {
  if ((flags & ~COLI_METAL_ALLOW_SOFTWARE) != 0) return bad("flags: expected 0 or COLI_METAL_ALLOW_SOFTWARE, found {}", flags);
  auto device = gpu::open_metal();
  if (!device && (flags & COLI_METAL_ALLOW_SOFTWARE) != 0) device = gpu::open_software_metal();
  if (!device) return refuse(COLI_METAL_UNAVAILABLE, "{}", device.error().message);
  return std::unique_ptr<Backend>(new Backend(std::move(*device)));
}

coli_metal_counter_values Backend::counters() const {
  coli_metal_counter_values c = counters_;
  c.command_buffers = encoded_.command_buffers;
  c.dispatches = encoded_.dispatches;
  c.waits = encoded_.waits;
  return c;
}

Outcome<> Backend::add_region(void* base, std::uint64_t bytes) {
  COLIBRI_CHECK(check_pointer(base, "base"));
  if (const auto fits = device_->regions().check(base, bytes, device_->info().longest_buffer); !fits)
    return bad("{}", fits.error().message);
  if (const auto added = device_->register_region(base, bytes); !added)
    return refuse(COLI_METAL_OUT_OF_MEMORY, "{}", added.error().message);
  memory_.regions().add(base, bytes, device_->address(base));
  return {};
}

Outcome<> Backend::remove_region(void* base) {
  COLIBRI_CHECK(check_pointer(base, "base"));
  const auto& regions = memory_.regions().regions();
  if (std::none_of(regions.begin(), regions.end(), [&](const auto& r) { return r.base == base; }))
    return refuse(COLI_METAL_NOT_REGISTERED, "base: expected the start of a registered region, found {}",
                  static_cast<const void*>(base));
  for (auto& [key, work] : open_) moe_settle(*work);
  if (const auto removed = device_->unregister_region(base); !removed)
    return refuse(COLI_METAL_INTERNAL_ERROR, "{}", removed.error().message);
  memory_.regions().remove(base);
  return {};
}

bool Backend::usable() {
  if (on()) return true;
  ++counters_.fallback_off;
  ++counters_.fallbacks;
  return false;
}

std::optional<WorkLease> Backend::lease(std::uint64_t bytes) {
  if (!usable()) return {};
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const auto& m) { return m->bytes >= bytes; });
  if (fits != spare_.end()) {
    auto memory = std::move(*fits);
    spare_.erase(fits);
    return WorkLease(*this, std::move(memory));
  }
  if (!spare_.empty()) spare_.pop_back();  // a larger one takes its place
  auto memory = std::make_unique<WorkMemory>();
  memory->bytes = std::max(bytes, kLeastWork);
  auto block = gpu::DeviceBlock::allocate(*device_, memory->bytes);
  if (!block) {
    failed(gpu::Fault::kMemory, block.error().message);
    return {};
  }
  memory->block = std::move(*block);
  return WorkLease(*this, std::move(memory));
}

void Backend::keep(std::unique_ptr<WorkMemory> memory) {
  if (spare_.size() >= kSpareBlocks) return;
  // The smallest that does is found first.
  const auto at = std::find_if(spare_.begin(), spare_.end(), [&](const auto& m) { return m->bytes >= memory->bytes; });
  spare_.insert(at, std::move(memory));
}

void Backend::failed(gpu::Fault fault, const std::string& message) {
  faults_.failed(fault, message);
  last_fault_ = fmt::format("{}{}{}", gpu::fault_name(fault), message.empty() ? "" : ": ", message);
  ++reason(counters_, fault);
  ++counters_.fallbacks;
}

void Backend::succeeded(std::uint64_t experts) {
  faults_.succeeded();
  ++counters_.ok;
  counters_.experts += experts;
}

std::optional<gpu::Submission> Backend::submit(const Encode& encode) {
  if (!usable()) return {};
  const Stopwatch watch(counters_.setup_seconds);
  gpu::Encoder e(kernels_, encoded_);
  encode(e);
  auto work = e.commit();
  if (work) return std::move(*work);
  failed(e.fault(), e.error()->message);
  return {};
}

bool Backend::finish(gpu::Submission& work) {
  gpu::Completion end;
  {
    const Stopwatch watch(counters_.gpu_wall_seconds);
    ++encoded_.waits;
    end = work.wait();
  }
  counters_.kernel_seconds += end.gpu_seconds;
  if (end.fault == gpu::Fault::kNone) return true;
  failed(end.fault, end.message);
  return false;
}

Outcome<> Backend::product(const coli_metal_matrix* w, const float* x, std::int64_t x_stride, std::int64_t rows, float* y,
                           std::int64_t y_stride, bool tiled) {
  COLIBRI_CHECK(check_pointer(w, "w"));
  COLIBRI_TRY(matrix, memory_.matrix(*w, "w", -1, -1));
  COLIBRI_CHECK(check_floats(x, "x"));
  COLIBRI_CHECK(check_floats(y, "y"));
  COLIBRI_CHECK(check_range(rows, 1, kMostExtent, "rows"));
  COLIBRI_CHECK(check_range(x_stride, matrix.cols, std::int64_t{1} << 31, "x_stride"));
  COLIBRI_CHECK(check_range(y_stride, matrix.rows, std::int64_t{1} << 31, "y_stride"));
  constexpr std::int64_t kMostOutputs = std::int64_t{1} << 34;
  if (rows * matrix.rows > kMostOutputs || rows * matrix.cols > kMostOutputs)
    return bad("rows: expected at most {} numbers in x and in y, found {} rows of {} and {}", kMostOutputs, rows, matrix.cols,
               matrix.rows);
  if (!gpu_product(matrix, x, x_stride, rows, y, y_stride, tiled)) cpu_.product(matrix, x, x_stride, rows, y, y_stride);
  return {};
}

bool Backend::gpu_product(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t rows, float* y,
                          std::int64_t y_stride, bool tiled) {
  gpu::Placer count(0);
  count.floats(rows * w.cols);
  count.floats(rows * w.rows);
  auto work = lease(count.used());
  if (!work) return false;
  gpu::Placer placer(work->address());
  const gpu::Address in = placer.floats(rows * w.cols), out = placer.floats(rows * w.rows);
  {
    const Stopwatch watch(counters_.scatter_seconds);
    for (std::int64_t r = 0; r < rows; ++r) (*work)->put(in + float_bytes(r * w.cols), x + r * x_stride, float_bytes(w.cols));
  }
  const gpu::ProductPlan plan = tiled ? gpu::ProductPlan{1} : plan_;
  auto commands = submit([&](gpu::Encoder& e) { gpu::product(e, plan, w, {in, rows, w.cols, w.cols}, out, w.rows); });
  if (!commands || !finish(*commands)) return false;
  const Stopwatch watch(counters_.scatter_seconds);
  for (std::int64_t r = 0; r < rows; ++r) (*work)->get(y + r * y_stride, out + float_bytes(r * w.rows), float_bytes(w.rows));
  succeeded(0);
  return true;
}

}  // namespace colibri::capi
