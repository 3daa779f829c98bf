// The functions of the C API: one at a time, with nothing thrown across the border.
#include "colibri/backend_metal.h"

#include <mutex>
#include <new>

#include "base/fp_mode.h"
#include "capi/backend.h"

namespace colibri::capi {
namespace {

struct Global {
  std::mutex mutex;
  std::unique_ptr<Backend> backend;
};

Global& global() {
  static Global* const kGlobal = new Global;  // outlives every thread that may still call
  return *kGlobal;
}

thread_local std::string last_error;

int report(coli_metal_status status, std::string_view message) {
  try {
    last_error = message;
  } catch (const std::bad_alloc&) {
    last_error.clear();
  }
  return status;
}

// Runs call() -> Outcome<> alone. Subnormals count as zero while it computes (rule C1).
template <class Call>
int guarded(std::string_view function, const Call& call) {
  try {
    const std::lock_guard lock(global().mutex);
    const FlushDenormals flush;
    const Outcome<> end = call();
    if (end) return COLI_METAL_OK;
    return report(end.error().status, fmt::format("{}: {}", function, end.error().message));
  } catch (const std::bad_alloc&) {
    return report(COLI_METAL_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return report(COLI_METAL_INTERNAL_ERROR, e.what());
  }
}

// The same with the backend, which must be there.
template <class Call>
int with_backend(std::string_view function, const Call& call) {
  return guarded(function, [&]() -> Outcome<> {
    if (!global().backend) return refuse(COLI_METAL_UNAVAILABLE, "expected a call of coli_metal_init before, found none");
    return call(*global().backend);
  });
}

}  // namespace
}  // namespace colibri::capi

using colibri::capi::Backend;
using colibri::capi::check_pointer;
using colibri::capi::global;
using colibri::capi::guarded;
using colibri::capi::Outcome;
using colibri::capi::with_backend;

extern "C" {

const char* coli_metal_last_error(void) { return colibri::capi::last_error.c_str(); }

int coli_metal_init(uint32_t flags) {
  return guarded("coli_metal_init", [&]() -> Outcome<> {
    if (global().backend) return {};
    COLIBRI_TRY(backend, Backend::open(flags));
    global().backend = std::move(backend);
    return {};
  });
}

void coli_metal_shutdown(void) {
  (void)guarded("coli_metal_shutdown", []() -> Outcome<> {
    global().backend.reset();
    return {};
  });
}

int coli_metal_available(void) {
  const std::lock_guard lock(global().mutex);
  return global().backend && global().backend->on() ? 1 : 0;
}

int coli_metal_stats(uint64_t* regions, uint64_t* bytes) {
  return with_backend("coli_metal_stats", [&](Backend& b) -> Outcome<> {
    if (regions != nullptr) *regions = b.memory().regions().regions().size();
    if (bytes != nullptr) *bytes = b.memory().regions().total_bytes();
    return {};
  });
}

int coli_metal_mem_info(uint64_t* used, uint64_t* total) {
  return with_backend("coli_metal_mem_info", [&](Backend& b) -> Outcome<> {
    const colibri::gpu::DeviceMemory memory = b.device().memory();
    if (used != nullptr) *used = memory.used;
    if (total != nullptr) *total = memory.total;
    return {};
  });
}

int coli_metal_register(void* base, uint64_t bytes) {
  return with_backend("coli_metal_register", [&](Backend& b) { return b.add_region(base, bytes); });
}

int coli_metal_unregister(void* base) {
  return with_backend("coli_metal_unregister", [&](Backend& b) { return b.remove_region(base); });
}

int coli_metal_matmul(const coli_metal_matrix* w, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride) {
  return with_backend("coli_metal_matmul", [&](Backend& b) { return b.product(w, x, x_stride, rows, y, y_stride, false); });
}

int coli_metal_gemm(const coli_metal_matrix* w, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride) {
  return with_backend("coli_metal_gemm", [&](Backend& b) { return b.product(w, x, x_stride, rows, y, y_stride, true); });
}

int coli_metal_moe_block(const coli_metal_moe* moe, float* y) {
  return with_backend("coli_metal_moe_block", [&](Backend& b) { return b.moe_block(moe, y); });
}

int coli_metal_moe_block_begin(const coli_metal_moe* moe, coli_metal_moe_work** work) {
  if (work != nullptr) *work = nullptr;
  return with_backend("coli_metal_moe_block_begin", [&](Backend& b) -> Outcome<> {
    COLIBRI_CHECK(check_pointer(static_cast<const void*>(work), "work"));
    COLIBRI_TRY(begun, b.moe_begin(moe));
    *work = begun;
    return {};
  });
}

int coli_metal_moe_block_end(coli_metal_moe_work* work, const coli_metal_expert* late, float* y) {
  return with_backend("coli_metal_moe_block_end", [&](Backend& b) { return b.moe_end(work, late, y); });
}

int coli_metal_attn_decode(const coli_metal_attention* shape, const coli_metal_matrix* kv_b, const coli_metal_sequence* sequences,
                           int64_t sequence_count, const coli_metal_selection* selection, const float* queries, float* context) {
  return with_backend("coli_metal_attn_decode", [&](Backend& b) {
    return b.attention(shape, kv_b, sequences, sequence_count, selection, queries, context);
  });
}

int coli_metal_layer_decode(const coli_metal_layer* layer, const coli_metal_sequence* sequences, int64_t sequence_count,
                            coli_metal_selection* selection, const float* x, float* x_out) {
  return with_backend("coli_metal_layer_decode",
                      [&](Backend& b) { return b.layer(layer, sequences, sequence_count, selection, x, x_out); });
}

int coli_metal_counters(coli_metal_counter_values* out) {
  return with_backend("coli_metal_counters", [&](Backend& b) -> Outcome<> {
    COLIBRI_CHECK(check_pointer(out, "out"));
    *out = b.counters();
    return {};
  });
}

int coli_metal_resset_stats(coli_metal_resset_values* out) {
  return with_backend("coli_metal_resset_stats", [&](Backend& b) -> Outcome<> {
    COLIBRI_CHECK(check_pointer(out, "out"));
    const colibri::gpu::ResidencyStats s = b.device().residency();
    *out = {b.device().info().residency_set ? 1 : 0, s.allocations, s.bytes, s.flushes, s.flush_seconds};
    return {};
  });
}

}  // extern "C"
