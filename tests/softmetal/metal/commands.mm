// Queue, command buffer and compute encoder of the software Metal, with the checks of Apple's validation layer that fit.
#include <algorithm>
#include <string>

#include "foundation/runtime.h"
#include "metal/objects.h"

using softmetal::Binding;
using softmetal::DispatchWork;
using softmetal::violation;
using softmetal::Work;

@implementation SoftQueue
- (instancetype)init {
  queue_ = new softmetal::WorkQueue;
  sets_ = new std::vector<SoftResidencySet*>;
  return self;
}
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor*)descriptor {
  SoftCommandBuffer* b = [SoftCommandBuffer new];
  b->queue_ = [self retain];
  b->work_ = new std::shared_ptr<Work>(std::make_shared<Work>());
  return [b autorelease];
}
- (void)addResidencySet:(id<MTLResidencySet>)set {
  sets_->push_back([(SoftResidencySet*)set retain]);
}
- (void)removeResidencySet:(id<MTLResidencySet>)set {
  const auto at = std::find(sets_->begin(), sets_->end(), (SoftResidencySet*)set);
  if (at == sets_->end()) violation("removeResidencySet: of a set that the queue does not have");
  sets_->erase(at);
  [set release];
}
- (void)dealloc {
  delete queue_;
  for (SoftResidencySet* s : *sets_) [s release];
  delete sets_;
  [super dealloc];
}
@end

@implementation MTLCommandBufferDescriptor
- (MTLCommandBufferErrorOption)errorOptions {
  return options_;
}
- (void)setErrorOptions:(MTLCommandBufferErrorOption)options {
  options_ = options;
}
@end

@implementation SoftCommandBuffer
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
  if (committed_) violation("an encoder for a command buffer that is committed");
  if (encoding_) violation("a second encoder while one is open");
  encoding_ = true;
  SoftEncoder* e = [SoftEncoder new];
  e->buffer_ = [self retain];
  e->type_ = type;
  e->bindings_ = new std::map<int, Binding>;
  e->threadgroup_bytes_ = new std::map<int, unsigned>;
  e->used_ = new std::vector<softmetal::RegionPtr>;
  (*work_)->stages.emplace_back();
  return [e autorelease];
}
- (void)commit {
  if (encoding_) violation("commit while an encoder is open");
  if (committed_) violation("a command buffer is committed twice");
  committed_ = true;
  for (SoftResidencySet* set : *queue_->sets_) {
    if (!set->requested_) continue;
    for (SoftBuffer* b : *set->committed_) (*work_)->resident.push_back(*b->region_);
  }
  queue_->queue_->commit(*work_);
}
- (void)waitUntilCompleted {
  if (!committed_) violation("waitUntilCompleted of a command buffer that is not committed would wait for ever");
  std::unique_lock lock((*work_)->mutex);
  (*work_)->done.wait(lock, [&] { return (*work_)->complete; });
}
- (MTLCommandBufferStatus)status {
  if (!committed_) return MTLCommandBufferStatusNotEnqueued;
  const std::lock_guard lock((*work_)->mutex);
  if (!(*work_)->complete) return MTLCommandBufferStatusCommitted;
  return (*work_)->error != 0 ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
}
- (NSError*)error {
  const std::lock_guard lock((*work_)->mutex);
  if (!(*work_)->complete || (*work_)->error == 0) return nil;
  if (error_ == nil) error_ = [softmetal_error(@"MTLCommandBufferErrorDomain", (*work_)->error, (*work_)->message) retain];
  return error_;
}
- (CFTimeInterval)GPUStartTime {
  const std::lock_guard lock((*work_)->mutex);
  return (*work_)->start;
}
- (CFTimeInterval)GPUEndTime {
  const std::lock_guard lock((*work_)->mutex);
  return (*work_)->end;
}
- (void)dealloc {
  if (committed_) [self waitUntilCompleted];  // the device holds on to it until then
  delete work_;
  [error_ release];
  [queue_ release];
  [super dealloc];
}
@end

@implementation SoftEncoder
- (void)checkOpen:(const char*)what {
  if (ended_) violation(std::string(what) + " after endEncoding");
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  [self checkOpen:"setComputePipelineState:"];
  if (state == nil) violation("setComputePipelineState: without a pipeline");
  [state retain];
  [pipeline_ release];
  pipeline_ = (SoftPipeline*)state;
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  [self checkOpen:"setBytes:"];
  if (index > 30) violation("setBytes: index " + std::to_string(index) + " is above 30");
  if (length == 0 || length > 4096) violation("setBytes: of " + std::to_string(length) + " bytes: 1 to 4096 are allowed");
  const char* b = static_cast<const char*>(bytes);
  (*bindings_)[static_cast<int>(index)] = {nullptr, std::vector<char>(b, b + length), 0};
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  [self checkOpen:"setBuffer:"];
  if (index > 30) violation("setBuffer: index " + std::to_string(index) + " is above 30");
  if (buffer == nil || offset >= buffer.length) violation("setBuffer: the offset lies outside the buffer");
  (*bindings_)[static_cast<int>(index)] = {*((SoftBuffer*)buffer)->region_, {}, offset};
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  [self checkOpen:"setThreadgroupMemoryLength:"];
  if (length % 16 != 0) violation("setThreadgroupMemoryLength: " + std::to_string(length) + " is not a multiple of 16");
  if (index > 7) violation("setThreadgroupMemoryLength: index " + std::to_string(index) + " is above 7");
  (*threadgroup_bytes_)[static_cast<int>(index)] = static_cast<unsigned>(length);
  unsigned total = 0;
  for (const auto& [i, bytes] : *threadgroup_bytes_) total += bytes;
  if (total > 32768) violation("a threadgroup has " + std::to_string(total) + " bytes of memory: at most 32768 are allowed");
}
- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage {
  [self checkOpen:"useResource:"];
  used_->push_back(*((SoftBuffer*)resource)->region_);
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
  [self checkOpen:"dispatchThreadgroups:"];
  if (pipeline_ == nil) violation("a dispatch without a pipeline");
  const NSUInteger count = threads.width * threads.height * threads.depth;
  if (count == 0 || count > [pipeline_ maxTotalThreadsPerThreadgroup])
    violation("a threadgroup of " + std::to_string(count) + " threads: the pipeline takes 1 to 1024");
  if (groups.width == 0 || groups.height == 0 || groups.depth == 0) violation("a dispatch without threadgroups");
  constexpr NSUInteger kMost = 0xffffffffu;
  if (groups.width * threads.width > kMost || groups.height * threads.height > kMost || groups.depth * threads.depth > kMost)
    violation("a grid of more than 2^32 - 1 threads in one direction");
  DispatchWork d;
  d.function = *pipeline_->function_;
  d.used = *used_;
  for (const auto& [index, binding] : *bindings_) {
    d.bindings.emplace_back(index, binding);
    if (binding.region != nullptr) d.used.push_back(binding.region);
  }
  for (const auto& [index, bytes] : *threadgroup_bytes_) d.threadgroup_bytes[index] = bytes;
  const NSUInteger g[3] = {groups.width, groups.height, groups.depth}, t[3] = {threads.width, threads.height, threads.depth};
  for (int i = 0; i < 3; ++i) {
    d.groups[i] = static_cast<unsigned>(g[i]);
    d.threads[i] = static_cast<unsigned>(t[i]);
  }
  auto& stages = (*buffer_->work_)->stages;
  if (type_ == MTLDispatchTypeSerial && !stages.back().empty()) stages.emplace_back();
  stages.back().push_back(std::move(d));
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  [self checkOpen:"memoryBarrierWithScope:"];
  if ((scope & MTLBarrierScopeBuffers) != 0) (*buffer_->work_)->stages.emplace_back();
}
- (void)waitForFence:(id<MTLFence>)fence {
  [self checkOpen:"waitForFence:"];
  (*buffer_->work_)->waits.insert(fence);
}
- (void)updateFence:(id<MTLFence>)fence {
  [self checkOpen:"updateFence:"];
  (*buffer_->work_)->updates.insert(fence);
}
- (void)endEncoding {
  [self checkOpen:"endEncoding"];
  ended_ = true;
  buffer_->encoding_ = false;
}
- (void)dealloc {
  if (!ended_) violation("an encoder is released without endEncoding");
  delete bindings_;
  delete threadgroup_bytes_;
  delete used_;
  [pipeline_ release];
  [buffer_ release];
  [super dealloc];
}
@end
