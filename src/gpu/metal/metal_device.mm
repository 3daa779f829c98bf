// Metal behind the Device interface: the only Objective-C of the project. Compiled with ARC for macOS, and unchanged on Linux
// against the software Metal of tests/softmetal.
//
// Kernels reach all data through addresses inside their arguments, so Metal tracks no hazards for us: a barrier orders the
// dispatches of a command buffer, and one fence orders command buffers.
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "gpu/metal/metal_device.h"

// Residency sets came with macOS 15: code that names them needs that SDK, calls need that system.
#if defined(__MAC_OS_X_VERSION_MAX_ALLOWED) && __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
#define COLI_HAS_RESIDENCY_SETS 1
#else
#define COLI_HAS_RESIDENCY_SETS 0
#endif

namespace colibri::gpu {
namespace {

std::string text_of(NSString* s) {
  const char* utf8 = s != nil ? s.UTF8String : nullptr;
  return utf8 != nullptr ? utf8 : "";
}

std::string text_of(NSError* error) { return error != nil ? text_of(error.localizedDescription) : "no reason given"; }

NSString* string_of(std::string_view s) {
  return [[NSString alloc] initWithBytes:s.data() length:s.size() encoding:NSUTF8StringEncoding];
}

Fault fault_of(NSInteger code) {
  switch (code) {
    case MTLCommandBufferErrorTimeout: return Fault::kTimeout;
    case MTLCommandBufferErrorOutOfMemory: return Fault::kMemory;
    case MTLCommandBufferErrorPageFault:  // memory that was not resident when a kernel touched it
    case MTLCommandBufferErrorInvalidResource: return Fault::kResidency;
    default: return Fault::kError;
  }
}

class MetalKernel final : public Kernel {
 public:
  explicit MetalKernel(id<MTLComputePipelineState> pipeline) : pipeline_(pipeline) {}
  std::uint32_t max_threads() const override { return static_cast<std::uint32_t>(pipeline_.maxTotalThreadsPerThreadgroup); }
  id<MTLComputePipelineState> pipeline() const { return pipeline_; }

 private:
  id<MTLComputePipelineState> pipeline_;
};

class MetalLibrary final : public Library {
 public:
  MetalLibrary(id<MTLDevice> device, id<MTLLibrary> library, std::string name)
      : device_(device), library_(library), name_(std::move(name)) {}

  Result<std::unique_ptr<Kernel>> kernel(const std::string& function, std::span<const std::uint32_t> constants) override {
    @autoreleasepool {
      NSError* error = nil;
      MTLFunctionConstantValues* values = [MTLFunctionConstantValues new];
      for (std::size_t i = 0; i < constants.size(); ++i) [values setConstantValue:&constants[i] type:MTLDataTypeUInt atIndex:i];
      id<MTLFunction> f = [library_ newFunctionWithName:string_of(function) constantValues:values error:&error];
      if (f == nil) return fail("GPU kernel {} of '{}' cannot be specialised: {}", function, name_, text_of(error));
      id<MTLComputePipelineState> pipeline = [device_ newComputePipelineStateWithFunction:f error:&error];
      if (pipeline == nil) return fail("GPU kernel {} of '{}' has no pipeline: {}", function, name_, text_of(error));
      if (pipeline.threadExecutionWidth != 32)
        return fail("GPU kernel {} of '{}': simdgroups have {} lanes, expected 32", function, name_,
                    pipeline.threadExecutionWidth);
      return std::make_unique<MetalKernel>(pipeline);
    }
  }

 private:
  id<MTLDevice> device_;
  id<MTLLibrary> library_;
  std::string name_;
};

class MetalDevice;

class MetalCommands final : public Commands {
 public:
  MetalCommands(MetalDevice& device, id<MTLCommandBuffer> buffer, id<MTLComputeCommandEncoder> encoder)
      : device_(device), buffer_(buffer), encoder_(encoder) {}
  ~MetalCommands() override;
  MetalCommands(const MetalCommands&) = delete;
  MetalCommands& operator=(const MetalCommands&) = delete;

  void dispatch(const Dispatch& dispatch) override;
  void barrier() override;
  void commit() override;
  const Completion& wait() override;
  bool done() const override;

 private:
  MetalDevice& device_;
  id<MTLCommandBuffer> buffer_;
  id<MTLComputeCommandEncoder> encoder_;  // nil once committed
  std::uint64_t used_ = 0;                // the regions, in their state number used_, are declared as used by the encoder
  std::uint32_t threadgroup_bytes_ = 0;   // the encoder's, which stays from dispatch to dispatch
  bool waited_ = false;
  Completion completion_;
};

class MetalDevice final : public Device {
 public:
  static Result<std::unique_ptr<Device>> open(id<MTLDevice> device) {
    auto d = std::make_unique<MetalDevice>(device);
    if (auto ready = d->prepare(); !ready) return pass(std::move(ready).error());
    return d;
  }
  explicit MetalDevice(id<MTLDevice> device) : device_(device) {}
  ~MetalDevice() override {
    @autoreleasepool {
      wait_for_all();
#if COLI_HAS_RESIDENCY_SETS
      if (@available(macOS 15.0, *)) {
        if (resident_ != nil) [queue_ removeResidencySet:static_cast<id<MTLResidencySet>>(resident_)];
      }
#endif
    }
  }
  MetalDevice(const MetalDevice&) = delete;
  MetalDevice& operator=(const MetalDevice&) = delete;

  const DeviceInfo& info() const override { return info_; }

  Result<std::unique_ptr<Library>> compile(std::string_view name, std::string_view text) override {
    @autoreleasepool {
      MTLCompileOptions* options = [MTLCompileOptions new];
      set_safe_math(options);
      NSError* error = nil;
      id<MTLLibrary> library = [device_ newLibraryWithSource:string_of(text) options:options error:&error];
      if (library == nil) return fail("GPU kernels '{}' do not compile: {}", name, text_of(error));
      return std::make_unique<MetalLibrary>(device_, library, std::string(name));
    }
  }

  Result<void> register_region(void* base, std::uint64_t bytes) override {
    COLIBRI_CHECK(regions_.check(base, bytes, info_.longest_buffer));
    @autoreleasepool {
      const MTLResourceOptions options = MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked;
      id<MTLBuffer> buffer = [device_ newBufferWithBytesNoCopy:base length:bytes options:options deallocator:nil];
      if (buffer == nil)
        return fail("the GPU ({}) refused {} bytes of memory at {}; it uses {} of {} bytes", info_.name, bytes, base,
                    memory().used, memory().total);
      regions_.add(base, bytes, buffer.gpuAddress);
      buffers_.emplace(base, buffer);
      ++state_;
      add_resident(buffer);
      return {};
    }
  }

  Result<void> unregister_region(void* base) override {
    @autoreleasepool {
      const auto found = buffers_.find(base);
      if (found == buffers_.end()) return fail("no memory is registered with the GPU at {}", base);
      wait_for_all();
      remove_resident(found->second);
      regions_.remove(base);
      buffers_.erase(found);
      ++state_;
      return {};
    }
  }

  Result<std::unique_ptr<Commands>> begin() override {
    @autoreleasepool {
      MTLCommandBufferDescriptor* descriptor = [MTLCommandBufferDescriptor new];
      descriptor.errorOptions = MTLCommandBufferErrorOptionEncoderExecutionStatus;
      id<MTLCommandBuffer> buffer = [queue_ commandBufferWithDescriptor:descriptor];
      if (buffer == nil) return fail("the GPU ({}) has no command buffer to give", info_.name);
      id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
      if (encoder == nil) return fail("the GPU ({}) has no command encoder to give", info_.name);
      [encoder waitForFence:fence_];
      return std::make_unique<MetalCommands>(*this, buffer, encoder);
    }
  }

  DeviceMemory memory() const override { return {device_.currentAllocatedSize, info_.working_set}; }

  ResidencyStats residency() const override {
    ResidencyStats stats = residency_;
    stats.allocations = buffers_.size();
    stats.bytes = regions_.total_bytes();
    return stats;
  }

  // Declares the regions to an encoder, unless a residency set holds them; a number that changes with them.
  std::uint64_t use_regions(id<MTLComputeCommandEncoder> encoder, std::uint64_t used) const {
    if (!info_.residency_set && used != state_) {
      for (const auto& [base, buffer] : buffers_) [encoder useResource:buffer usage:MTLResourceUsageRead | MTLResourceUsageWrite];
    }
    return state_;
  }

  id<MTLFence> fence() const { return fence_; }

  void flush_residency() {
    if (!unflushed_) return;
    unflushed_ = false;
#if COLI_HAS_RESIDENCY_SETS
    if (@available(macOS 15.0, *)) {
      if (resident_ == nil) return;
      id<MTLResidencySet> set = static_cast<id<MTLResidencySet>>(resident_);
      const auto start = std::chrono::steady_clock::now();
      [set commit];
      [set requestResidency];
      ++residency_.flushes;
      residency_.flush_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
#endif
  }

  void committed(id<MTLCommandBuffer> buffer) {
    std::erase_if(in_flight_, [](id<MTLCommandBuffer> b) { return b.status >= MTLCommandBufferStatusCompleted; });
    in_flight_.push_back(buffer);
  }

 private:
  Result<void> prepare() {
    @autoreleasepool {
      info_.name = text_of(device_.name);
      info_.api = "Metal";
#ifndef __APPLE__
      info_.software = true;  // the only Metal elsewhere is tests/softmetal
#endif
      if (@available(macOS 13.0, *)) {
      } else {
        return fail("the GPU ({}) needs macOS 13 or later: kernels reach memory by its address", info_.name);
      }
      if (!device_.hasUnifiedMemory)
        return fail("the GPU ({}) has memory of its own: expected one that shares the system's, as Apple silicon does",
                    info_.name);
      queue_ = [device_ newCommandQueue];
      fence_ = [device_ newFence];
      if (queue_ == nil || fence_ == nil) return fail("the GPU ({}) has no command queue or no fence to give", info_.name);
      info_.longest_buffer = device_.maxBufferLength / kRegionAlignment * kRegionAlignment;
      info_.working_set = device_.recommendedMaxWorkingSetSize;
      info_.threadgroup_bytes = static_cast<std::uint32_t>(device_.maxThreadgroupMemoryLength);
      info_.residency_set = make_residency_set();
      return {};
    }
  }

  // COLI_METAL_RESSET=0 declares memory encoder by encoder, as before macOS 15.
  bool make_residency_set() {
#if COLI_HAS_RESIDENCY_SETS
    const char* wanted = std::getenv("COLI_METAL_RESSET");
    if (wanted != nullptr && std::string_view(wanted) == "0") return false;
    if (@available(macOS 15.0, *)) {
      MTLResidencySetDescriptor* descriptor = [MTLResidencySetDescriptor new];
      descriptor.initialCapacity = 64;
      NSError* error = nil;
      id<MTLResidencySet> set = [device_ newResidencySetWithDescriptor:descriptor error:&error];
      if (set == nil) return false;
      [queue_ addResidencySet:set];
      resident_ = set;
      return true;
    }
#endif
    return false;
  }

  void add_resident([[maybe_unused]] id<MTLBuffer> buffer) {
#if COLI_HAS_RESIDENCY_SETS
    if (@available(macOS 15.0, *)) {
      if (resident_ != nil) [static_cast<id<MTLResidencySet>>(resident_) addAllocation:buffer];
    }
#endif
    unflushed_ = true;
  }

  // Taking memory out of a set that is in use has panicked Macs: this is only for shutting down.
  void remove_resident([[maybe_unused]] id<MTLBuffer> buffer) {
#if COLI_HAS_RESIDENCY_SETS
    if (@available(macOS 15.0, *)) {
      if (resident_ == nil) return;
      id<MTLResidencySet> set = static_cast<id<MTLResidencySet>>(resident_);
      [set removeAllocation:buffer];
      [set commit];
    }
#endif
  }

  static void set_safe_math(MTLCompileOptions* options) {
#if COLI_HAS_RESIDENCY_SETS  // mathMode came with the same SDK
    if (@available(macOS 15.0, *)) {
      options.mathMode = MTLMathModeSafe;
      return;
    }
#endif
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
    options.fastMathEnabled = NO;
#pragma clang diagnostic pop
  }

  void wait_for_all() {
    for (id<MTLCommandBuffer> b : in_flight_) [b waitUntilCompleted];
    in_flight_.clear();
  }

  id<MTLDevice> device_;
  id<MTLCommandQueue> queue_ = nil;
  id<MTLFence> fence_ = nil;
  [[maybe_unused]] id resident_ = nil;  // id<MTLResidencySet>, a type that older SDKs lack
  DeviceInfo info_;
  std::map<const void*, id<MTLBuffer>> buffers_;  // of the regions, by base
  std::uint64_t state_ = 1;                       // of buffers_: changes when they do
  bool unflushed_ = false;
  ResidencyStats residency_;
  std::vector<id<MTLCommandBuffer>> in_flight_;
};

MetalCommands::~MetalCommands() {
  @autoreleasepool {
    if (encoder_ != nil)
      [encoder_ endEncoding];  // never committed: dropped
    else if (!waited_)
      [buffer_ waitUntilCompleted];
  }
}

void MetalCommands::dispatch(const Dispatch& d) {
  @autoreleasepool {
    assert(encoder_ != nil && d.kernel != nullptr && d.args.size() <= kMaxArgsBytes);
    assert(d.threads % 32 == 0 && d.threads <= d.kernel->max_threads() && d.threadgroup_bytes % 16 == 0);
    used_ = device_.use_regions(encoder_, used_);
    [encoder_ setComputePipelineState:static_cast<const MetalKernel*>(d.kernel)->pipeline()];
    if (!d.args.empty()) [encoder_ setBytes:d.args.data() length:d.args.size() atIndex:0];
    if (d.threadgroup_bytes != threadgroup_bytes_) [encoder_ setThreadgroupMemoryLength:d.threadgroup_bytes atIndex:0];
    threadgroup_bytes_ = d.threadgroup_bytes;
    [encoder_ dispatchThreadgroups:MTLSizeMake(d.groups.x, d.groups.y, d.groups.z)
             threadsPerThreadgroup:MTLSizeMake(d.threads, 1, 1)];
  }
}

void MetalCommands::barrier() {
  @autoreleasepool {
    [encoder_ memoryBarrierWithScope:MTLBarrierScopeBuffers];
  }
}

void MetalCommands::commit() {
  @autoreleasepool {
    assert(encoder_ != nil);
    [encoder_ updateFence:device_.fence()];
    [encoder_ endEncoding];
    encoder_ = nil;
    device_.flush_residency();
    [buffer_ commit];
    device_.committed(buffer_);
  }
}

const Completion& MetalCommands::wait() {
  assert(encoder_ == nil);
  if (waited_) return completion_;
  @autoreleasepool {
    [buffer_ waitUntilCompleted];
    waited_ = true;
    NSError* error = buffer_.error;
    if (buffer_.status == MTLCommandBufferStatusError || error != nil) {
      completion_.fault = error != nil ? fault_of(error.code) : Fault::kError;
      completion_.message = text_of(error);
    }
    completion_.gpu_seconds = std::max(0.0, buffer_.GPUEndTime - buffer_.GPUStartTime);
    return completion_;
  }
}

bool MetalCommands::done() const {
  @autoreleasepool {
    return buffer_.status >= MTLCommandBufferStatusCompleted;
  }
}

}  // namespace

Result<std::unique_ptr<Device>> open_default_metal_device() {
  @autoreleasepool {
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    if (device == nil) return fail("this machine has no GPU that Metal can use");
    return MetalDevice::open(device);
  }
}

#ifdef __APPLE__
Result<std::unique_ptr<Device>> open_metal() { return open_default_metal_device(); }
#endif

}  // namespace colibri::gpu
