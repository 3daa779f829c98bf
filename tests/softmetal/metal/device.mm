// Device, library, function, pipeline, buffer and residency set of the software Metal.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "foundation/runtime.h"
#include "metal/objects.h"

using softmetal::Region;
using softmetal::Specialised;
using softmetal::violation;

extern "C" const softmetal::CompiledText* const softmetal_texts[];  // written by CMake; ends with nullptr

namespace {

constexpr NSUInteger kPage = 16384;
std::atomic<NSUInteger> allocated_bytes{0};

}  // namespace

@implementation SoftBuffer
- (NSUInteger)length {
  return (*region_)->bytes;
}
- (NSUInteger)allocatedSize {
  return (*region_)->bytes;
}
- (uint64_t)gpuAddress {
  return reinterpret_cast<uint64_t>((*region_)->data);
}
- (void*)contents {
  return (*region_)->data;
}
- (void)dealloc {
  if ((*region_)->in_flight != 0) violation("a buffer is released while a command buffer uses it");
  allocated_bytes -= (*region_)->bytes;
  delete region_;
  [super dealloc];
}
@end

SoftBuffer* softmetal_make_buffer(void* data, NSUInteger bytes) {
  SoftBuffer* b = [SoftBuffer new];
  auto region = std::make_shared<Region>();
  region->data = static_cast<char*>(data);
  region->bytes = bytes;
  b->region_ = new softmetal::RegionPtr(std::move(region));
  allocated_bytes += bytes;
  return b;
}

NSUInteger softmetal_allocated_bytes() { return allocated_bytes; }

@implementation SoftFence
@end

@implementation MTLFunctionConstantValues
using Values = std::map<int, unsigned>;
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index {
  if (type != MTLDataTypeUInt) violation("a function constant that is not a uint");
  if (index > 63) violation("function constant " + std::to_string(index) + ": the software device takes 0 to 63");
  if (values_ == nullptr) values_ = new Values;
  std::memcpy(&(*static_cast<Values*>(values_))[static_cast<int>(index)], value, sizeof(unsigned));
}
- (void)dealloc {
  delete static_cast<Values*>(values_);
  [super dealloc];
}
@end

@implementation MTLCompileOptions
- (instancetype)init {
  math_ = MTLMathModeFast;  // Apple's defaults
  fast_ = YES;
  return self;
}
- (MTLMathMode)mathMode {
  return math_;
}
- (void)setMathMode:(MTLMathMode)mode {
  math_ = mode;
  fast_ = mode == MTLMathModeFast;
}
- (BOOL)fastMathEnabled {
  return fast_;
}
- (void)setFastMathEnabled:(BOOL)fast {
  fast_ = fast;
  math_ = fast ? MTLMathModeFast : MTLMathModeSafe;
}
@end

@implementation MTLResidencySetDescriptor
- (NSUInteger)initialCapacity {
  return capacity_;
}
- (void)setInitialCapacity:(NSUInteger)capacity {
  capacity_ = capacity;
}
@end

@implementation SoftFunction
- (void)dealloc {
  delete function_;
  [super dealloc];
}
@end

@implementation SoftLibrary
- (id<MTLFunction>)newFunctionWithName:(NSString*)name constantValues:(MTLFunctionConstantValues*)values error:(NSError**)error {
  NSString* const domain = @"MTLLibraryErrorDomain";
  const softmetal::KernelEntry* k = text_->kernels;
  while (k->name != nullptr && std::strcmp(k->name, name.UTF8String) != 0) ++k;
  if (k->name == nullptr) {
    if (error != nullptr) *error = softmetal_error(domain, 5, std::string("there is no function ") + name.UTF8String);
    return nil;
  }
  auto f = std::make_shared<Specialised>();
  f->text = text_;
  f->kernel = k;
  unsigned long long given = 0;
  if (values != nil && values->values_ != nullptr) {
    for (const auto& [index, value] : *static_cast<Values*>(values->values_)) {
      f->constants.emplace_back(index, value);
      given |= 1ull << index;
    }
  }
  if ((k->constants & ~given) != 0) {
    std::string missing;
    for (int i = 0; i < 64; ++i) {
      if ((k->constants & ~given) >> i & 1) missing += " " + std::to_string(i);
    }
    if (error != nullptr) {
      *error = softmetal_error(domain, 3, std::string("the function ") + k->name + " needs values for its constants" + missing);
    }
    return nil;
  }
  SoftFunction* function = [SoftFunction new];
  function->function_ = new std::shared_ptr<const Specialised>(std::move(f));
  return function;
}
@end

@implementation SoftPipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return 1024;
}
- (NSUInteger)threadExecutionWidth {
  return 32;
}
- (void)dealloc {
  delete function_;
  [super dealloc];
}
@end

@implementation SoftResidencySet
- (instancetype)init {
  wanted_ = new std::vector<SoftBuffer*>;
  committed_ = new std::vector<SoftBuffer*>;
  return self;
}
- (void)addAllocation:(id<MTLAllocation>)allocation {
  SoftBuffer* b = (SoftBuffer*)allocation;
  if (std::find(wanted_->begin(), wanted_->end(), b) == wanted_->end()) wanted_->push_back([b retain]);
}
- (void)removeAllocation:(id<MTLAllocation>)allocation {
  SoftBuffer* b = (SoftBuffer*)allocation;
  const auto at = std::find(wanted_->begin(), wanted_->end(), b);
  if (at == wanted_->end()) violation("removeAllocation: of something that is not in the residency set");
  if ((*b->region_)->in_flight != 0) violation("memory leaves the residency set while a command buffer may use it");
  wanted_->erase(at);
  [b release];
}
- (void)commit {
  for (SoftBuffer* b : *wanted_) {
    if (std::find(committed_->begin(), committed_->end(), b) == committed_->end()) requested_ = false;
    [b retain];
  }
  for (SoftBuffer* b : *committed_) [b release];
  *committed_ = *wanted_;
}
- (void)requestResidency {
  requested_ = true;
}
- (void)dealloc {
  for (SoftBuffer* b : *wanted_) [b release];
  for (SoftBuffer* b : *committed_) [b release];
  delete wanted_;
  delete committed_;
  [super dealloc];
}
@end

@implementation SoftDevice
- (NSString*)name {
  return @"software Metal device, for tests";
}
- (BOOL)hasUnifiedMemory {
  return YES;
}
- (NSUInteger)maxBufferLength {
  return NSUInteger{16} << 30;
}
- (NSUInteger)maxThreadgroupMemoryLength {
  return 32768;
}
- (NSUInteger)currentAllocatedSize {
  return softmetal_allocated_bytes();
}
- (uint64_t)recommendedMaxWorkingSetSize {
  return uint64_t{16} << 30;
}
- (id<MTLCommandQueue>)newCommandQueue {
  return [SoftQueue new];
}
- (id<MTLFence>)newFence {
  return [SoftFence new];
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void* pointer, NSUInteger length))deallocator {
  if (deallocator != nil) violation("newBufferWithBytesNoCopy: with a deallocator is not supported");
  if (reinterpret_cast<uintptr_t>(pointer) % kPage != 0)
    violation("newBufferWithBytesNoCopy: the pointer is not at a page's start");
  if (length == 0 || length % kPage != 0) violation("newBufferWithBytesNoCopy: the length is not a multiple of the page size");
  if (length > [self maxBufferLength]) return nil;
  if (softmetal::should_fail(kSoftMetalAllocation)) return nil;
  return softmetal_make_buffer(pointer, length);
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source options:(MTLCompileOptions*)options error:(NSError**)error {
  NSString* const domain = @"MTLLibraryErrorDomain";
  if (options == nil || options.mathMode != MTLMathModeSafe || options.fastMathEnabled)
    violation("newLibraryWithSource: without safe math");
  if (softmetal::should_fail(kSoftMetalCompile)) {
    if (error != nullptr) *error = softmetal_error(domain, 3, "program_source: error: a fault that a test injected");
    return nil;
  }
  const unsigned long long hash = softmetal::text_hash(source.UTF8String, source.length);
  for (const softmetal::CompiledText* const* t = softmetal_texts; *t != nullptr; ++t) {
    if ((*t)->hash != hash) continue;
    SoftLibrary* library = [SoftLibrary new];
    library->text_ = *t;
    return library;
  }
  if (error != nullptr) {
    *error = softmetal_error(domain, 3,
                             "program_source: error: this text is none of those that were compiled with the software device "
                             "(kernel texts are compiled when it is built)");
  }
  return nil;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError**)error {
  if (function == nil) violation("newComputePipelineStateWithFunction: without a function");
  SoftPipeline* p = [SoftPipeline new];
  p->function_ = new std::shared_ptr<const Specialised>(*((SoftFunction*)function)->function_);
  return p;
}
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor*)descriptor error:(NSError**)error {
  if (softmetal::should_fail(kSoftMetalResidencySet)) {
    if (error != nullptr)
      *error = softmetal_error(@"MTLDeviceErrorDomain", 1, "residency sets are not available (a fault that a test injected)");
    return nil;
  }
  return [SoftResidencySet new];
}
@end

extern "C" id<MTLDevice> MTLCreateSystemDefaultDevice(void) { return [SoftDevice new]; }
