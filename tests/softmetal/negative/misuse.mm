// Wrong uses of Metal, each of which must end the process with a message. Compiled without ARC into the library for tests.
#import <Metal/Metal.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "foundation/runtime.h"
#include "metal/objects.h"

namespace {

struct Metal {
  id<MTLDevice> device = MTLCreateSystemDefaultDevice();
  id<MTLCommandQueue> queue = [device newCommandQueue];
  id<MTLCommandBuffer> buffer = [queue commandBufferWithDescriptor:[[MTLCommandBufferDescriptor new] autorelease]];

  ~Metal() {
    [queue release];
    [device release];
  }
  id<MTLComputeCommandEncoder> encoder() { return [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent]; }
};

using Misuse = void (*)(Metal&);
struct Named {
  const char* name;
  Misuse run;
};

const Named kMisuses[] = {
    {"commit-twice",
     [](Metal& m) {
       [m.buffer commit];
       [m.buffer commit];
     }},
    {"commit-while-encoding",
     [](Metal& m) {
       m.encoder();
       [m.buffer commit];
     }},
    {"two-encoders",
     [](Metal& m) {
       m.encoder();
       m.encoder();
     }},
    {"encoder-after-commit",
     [](Metal& m) {
       [m.buffer commit];
       m.encoder();
     }},
    {"wait-before-commit", [](Metal& m) { [m.buffer waitUntilCompleted]; }},
    {"call-after-end",
     [](Metal& m) {
       id<MTLComputeCommandEncoder> e = m.encoder();
       [e endEncoding];
       [e memoryBarrierWithScope:MTLBarrierScopeBuffers];
     }},
    {"end-twice",
     [](Metal& m) {
       id<MTLComputeCommandEncoder> e = m.encoder();
       [e endEncoding];
       [e endEncoding];
     }},
    {"no-end",
     [](Metal& m) {
       void* pool = objc_autoreleasePoolPush();
       m.encoder();
       objc_autoreleasePoolPop(pool);
     }},
    {"no-pipeline",
     [](Metal& m) { [m.encoder() dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)]; }},
    {"long-arguments",
     [](Metal& m) {
       static const char bytes[4097] = {};
       [m.encoder() setBytes:bytes length:sizeof bytes atIndex:0];
     }},
    {"odd-threadgroup-memory", [](Metal& m) { [m.encoder() setThreadgroupMemoryLength:24 atIndex:0]; }},
    {"much-threadgroup-memory", [](Metal& m) { [m.encoder() setThreadgroupMemoryLength:32784 atIndex:0]; }},
    {"unaligned-buffer",
     [](Metal& m) {
       char* p = static_cast<char*>(std::aligned_alloc(16384, 32768));
       [m.device newBufferWithBytesNoCopy:p + 4096 length:16384 options:MTLResourceStorageModeShared deallocator:nil];
     }},
    {"odd-buffer-length",
     [](Metal& m) {
       void* p = std::aligned_alloc(16384, 16384);
       [m.device newBufferWithBytesNoCopy:p length:8192 options:MTLResourceStorageModeShared deallocator:nil];
     }},
    {"fast-math",
     [](Metal& m) {
       NSError* error = nil;
       [m.device newLibraryWithSource:@"" options:[MTLCompileOptions new] error:&error];
     }},
    {"wrong-selector",
     [](Metal& m) {
       id anything = m.device;
       [anything addResidencySet:nil];
     }},
    {"remove-what-is-not-there",
     [](Metal& m) {
       NSError* error = nil;
       id<MTLResidencySet> set = [m.device newResidencySetWithDescriptor:[MTLResidencySetDescriptor new] error:&error];
       void* p = std::aligned_alloc(16384, 16384);
       id<MTLBuffer> b = [m.device newBufferWithBytesNoCopy:p length:16384 options:MTLResourceStorageModeShared deallocator:nil];
       [set removeAllocation:b];
     }},
};

}  // namespace

// Whether one of 16 command buffers, committed before any ran, overtook another.
extern "C" __attribute__((visibility("default"))) bool soft_metal_overtakes(bool fenced) {
  void* pool = objc_autoreleasePoolPush();
  bool overtook = false;
  {
    Metal metal;
    id<MTLFence> fence = [metal.device newFence];
    id<MTLCommandBuffer> buffers[16];
    for (auto& b : buffers) {
      b = [metal.queue commandBufferWithDescriptor:[[MTLCommandBufferDescriptor new] autorelease]];
      id<MTLComputeCommandEncoder> e = [b computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
      if (fenced) [e waitForFence:fence];
      if (fenced) [e updateFence:fence];
      [e endEncoding];
    }
    ((SoftQueue*)metal.queue)->queue_->hold(true);
    for (auto& b : buffers) [b commit];
    ((SoftQueue*)metal.queue)->queue_->hold(false);
    for (auto& b : buffers) [b waitUntilCompleted];
    for (int i = 0; i < 15; ++i) overtook = overtook || buffers[i + 1].GPUStartTime < buffers[i].GPUStartTime;
    [fence release];
  }
  objc_autoreleasePoolPop(pool);
  return overtook;
}

// Returns only when the misuse was not noticed, or is not known: then false.
extern "C" __attribute__((visibility("default"))) bool soft_metal_misuse(const char* name) {
  void* pool = objc_autoreleasePoolPush();
  bool known = false;
  {
    Metal metal;
    for (const Named& n : kMisuses) {
      if (std::strcmp(n.name, name) != 0) continue;
      n.run(metal);
      known = true;
    }
  }
  objc_autoreleasePoolPop(pool);
  return known;
}
