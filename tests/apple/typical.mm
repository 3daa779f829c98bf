// The calls a compute program makes, from the device to the completed command buffer, as an ordinary Mac program spells them.
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <cstdint>
#include <string>
#include <vector>

std::string run(void* memory, std::size_t bytes, const std::string& source, const std::vector<std::uint32_t>& constants) {
  @autoreleasepool {
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    if (device == nil || ![device supportsFamily:MTLGPUFamilyApple7]) return "no GPU";
    id<MTLCommandQueue> queue = [device newCommandQueue];
    id<MTLBuffer> buffer = [device newBufferWithBytesNoCopy:memory
                                                     length:bytes
                                                    options:MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked
                                                deallocator:nil];
    MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
    if (@available(macOS 15.0, *)) options.mathMode = MTLMathModeSafe;
#endif
    NSError* error = nil;
    id<MTLLibrary> library = [device newLibraryWithSource:[NSString stringWithUTF8String:source.c_str()]
                                                  options:options
                                                    error:&error];
    if (library == nil) return error.localizedDescription.UTF8String;
    MTLFunctionConstantValues* values = [[MTLFunctionConstantValues alloc] init];
    for (NSUInteger i = 0; i < constants.size(); i++) [values setConstantValue:&constants[i] type:MTLDataTypeUInt atIndex:i];
    id<MTLFunction> function = [library newFunctionWithName:@"product" constantValues:values error:&error];
    id<MTLComputePipelineState> pipeline = [device newComputePipelineStateWithFunction:function error:&error];
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
    if (@available(macOS 15.0, *)) {
      MTLResidencySetDescriptor* descriptor = [[MTLResidencySetDescriptor alloc] init];
      descriptor.initialCapacity = 4;
      id<MTLResidencySet> set = [device newResidencySetWithDescriptor:descriptor error:&error];
      [set addAllocation:buffer];
      [set commit];
      [set requestResidency];
      [queue addResidencySet:set];
    }
#endif
    id<MTLCommandBuffer> commands = [queue commandBufferWithUnretainedReferences];
    id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    [encoder setComputePipelineState:pipeline];
    const std::uint64_t address = buffer.gpuAddress;
    [encoder setBytes:&address length:sizeof address atIndex:0];
    [encoder setThreadgroupMemoryLength:128 atIndex:0];
    [encoder useResource:buffer usage:MTLResourceUsageRead | MTLResourceUsageWrite];
    [encoder dispatchThreadgroups:MTLSizeMake(bytes / 32, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
    [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
    [encoder endEncoding];
    __block double seconds = 0;
    [commands addCompletedHandler:^(id<MTLCommandBuffer> done) {
      seconds = done.GPUEndTime - done.GPUStartTime;
    }];
    [commands commit];
    [commands waitUntilCompleted];
    if (commands.status == MTLCommandBufferStatusError && commands.error.code == MTLCommandBufferErrorTimeout) return "timeout";
    return std::to_string(seconds);
  }
}
