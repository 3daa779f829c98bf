// The state behind the C API: a device, the caller's regions, memory for activations, counters. Used from one thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "capi/cpu_blocks.h"
#include "gpu/experts.h"
#include "gpu/fault_log.h"
#include "gpu/layer.h"
#include "gpu/placer.h"
#include "gpu/products.h"
#include "gpu/registered.h"

namespace colibri::capi {

// Adds the time it lives to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& sum_;
  Clock::time_point start_ = Clock::now();
};

// Memory of one block's activations. Blocks are kept for the next call.
struct WorkMemory {
  gpu::DeviceBlock block;
  std::uint64_t bytes = 0;

  void put(gpu::Address to, const void* from, std::uint64_t bytes);  // from null: zeros
  void get(void* to, gpu::Address from, std::uint64_t bytes);
};

class Backend;

// Gives its memory back when it ends; by then no command buffer uses it.
class WorkLease {
 public:
  WorkLease(Backend& backend, std::unique_ptr<WorkMemory> memory) : backend_(&backend), memory_(std::move(memory)) {}
  WorkLease(WorkLease&& other) noexcept = default;
  WorkLease& operator=(WorkLease&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~WorkLease();
  WorkMemory* operator->() { return memory_.get(); }
  gpu::Address address() const { return memory_->block.address(); }

 private:
  Backend* backend_;
  std::unique_ptr<WorkMemory> memory_;
};

struct MoeWork;  // moe.cpp

class Backend {
 public:
  static Outcome<std::unique_ptr<Backend>> open(std::uint32_t flags);
  ~Backend();

  bool on() const { return faults_.on(); }
  gpu::Device& device() { return *device_; }
  const Memory& memory() const { return memory_; }
  coli_metal_counter_values counters() const;

  Outcome<> add_region(void* base, std::uint64_t bytes);
  Outcome<> remove_region(void* base);

  Outcome<> product(const coli_metal_matrix* w, const float* x, std::int64_t x_stride, std::int64_t rows, float* y,
                    std::int64_t y_stride, bool tiled);
  Outcome<> moe_block(const coli_metal_moe* moe, float* y);
  Outcome<coli_metal_moe_work*> moe_begin(const coli_metal_moe* moe);
  Outcome<> moe_end(coli_metal_moe_work* work, const coli_metal_expert* late, float* y);
  Outcome<> attention(const coli_metal_attention* shape, const coli_metal_matrix* kv_b, const coli_metal_sequence* sequences,
                      std::int64_t sequence_count, const coli_metal_selection* selection, const float* queries, float* context);
  Outcome<> layer(const coli_metal_layer* layer, const coli_metal_sequence* sequences, std::int64_t sequence_count,
                  coli_metal_selection* selection, const float* x, float* x_out);

  // --- for the parts of this room ---
  // Nothing when the GPU is off or has no memory, which is counted.
  std::optional<WorkLease> lease(std::uint64_t bytes);
  using Encode = std::function<void(gpu::Encoder&)>;
  // Nothing when it failed, which is counted. The memory it uses lives until it has been finished.
  std::optional<gpu::Submission> submit(const Encode& encode);
  bool finish(gpu::Submission& work);  // blocks; false when it failed, which is counted
  void succeeded(std::uint64_t experts);
  const std::string& last_fault() const { return last_fault_; }
  coli_metal_counter_values& counted() { return counters_; }
  CpuBlocks& cpu() { return cpu_; }

 private:
  friend class WorkLease;
  explicit Backend(std::unique_ptr<gpu::Device> device);
  bool usable();  // false, counted, when the GPU is off
  void failed(gpu::Fault fault, const std::string& message);
  void keep(std::unique_ptr<WorkMemory> memory);
  bool gpu_product(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t rows, float* y, std::int64_t y_stride,
                   bool tiled);
  bool gpu_attention(const AttentionJob& job, float* context);

  // MoeWork in three steps.
  Outcome<std::unique_ptr<MoeWork>> moe_prepare(const coli_metal_moe* moe);
  void moe_submit(MoeWork& work);
  void moe_settle(MoeWork& work);
  Outcome<> moe_finish(MoeWork& work, const coli_metal_expert* late, float* y);

  std::unique_ptr<gpu::Device> device_;
  gpu::KernelSet kernels_;
  gpu::EncoderCounts encoded_;
  gpu::ProductPlan plan_;
  gpu::FaultLog faults_;
  std::string last_fault_;
  coli_metal_counter_values counters_ = {};
  Memory memory_;
  std::vector<std::unique_ptr<WorkMemory>> spare_;
  std::map<const void*, std::unique_ptr<MoeWork>> open_;
  CpuBlocks cpu_;
};

gpu::AttentionShape attention_shape(const coli_metal_attention& shape);
// Scores of a row at the longest context are few enough to be planned for.
Outcome<> check_scores(const coli_metal_attention& shape, const StepRows& rows);

inline std::uint64_t float_bytes(std::int64_t count) { return static_cast<std::uint64_t>(count) * sizeof(float); }

}  // namespace colibri::capi
