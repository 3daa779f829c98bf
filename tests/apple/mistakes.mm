// One mistake at a time, chosen by MISTAKE, each an error that the type-check must name.
#import <Metal/Metal.h>

#ifndef MISTAKE
#error "define MISTAKE"
#endif

void mistake(id<MTLDevice> device, id<MTLCommandQueue> queue, id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> buffer) {
  (void)device, (void)queue, (void)encoder, (void)buffer;
#if MISTAKE == 1  // no such selector
  [encoder setBuffer:buffer offset:0 index:0];
#elif MISTAKE == 2  // a call of macOS 15 without asking whether the system has it
  NSError* error = nil;
  [queue addResidencySet:[device newResidencySetWithDescriptor:[[MTLResidencySetDescriptor alloc] init] error:&error]];
#elif MISTAKE == 3  // the same, asked for, with an SDK that does not declare it
  if (@available(macOS 15.0, *)) [queue addResidencySet:nil];
#elif MISTAKE == 4  // an argument of another type
  [encoder useResource:queue usage:MTLResourceUsageRead];
#elif MISTAKE == 5  // no such constant
  [encoder memoryBarrierWithScope:MTLBarrierScopeBuffer];
#elif MISTAKE == 6  // deprecated in macOS 15, for a program that needs macOS 15
  [[MTLCompileOptions alloc] init].fastMathEnabled = NO;
#elif MISTAKE == 7  // a read-only property
  buffer.gpuAddress = 0;
#elif MISTAKE == 8  // memory managed by hand under ARC
  [buffer release];
#endif
}
