// The software Metal classes. No ARC; C++ state is behind pointers because GCC's runtime constructs no C++ members.
#pragma once

#import <Metal/Metal.h>

#include <map>
#include <memory>
#include <vector>

#include "metal/work.h"

@interface SoftBuffer : NSObject <MTLBuffer> {
 @public
  softmetal::RegionPtr* region_;
}
@end

@interface SoftFence : NSObject <MTLFence>
@end

@interface SoftFunction : NSObject <MTLFunction> {
 @public
  std::shared_ptr<const softmetal::Specialised>* function_;
}
@end

@interface SoftLibrary : NSObject <MTLLibrary> {
 @public
  const softmetal::CompiledText* text_;
}
@end

@interface SoftPipeline : NSObject <MTLComputePipelineState> {
 @public
  std::shared_ptr<const softmetal::Specialised>* function_;
}
@end

@interface SoftResidencySet : NSObject <MTLResidencySet> {
 @public
  std::vector<SoftBuffer*>* wanted_;     // retained
  std::vector<SoftBuffer*>* committed_;  // retained
  bool requested_;                       // since the last commit that added something
}
@end

@interface SoftQueue : NSObject <MTLCommandQueue> {
 @public
  softmetal::WorkQueue* queue_;
  std::vector<SoftResidencySet*>* sets_;  // retained
}
@end

@interface SoftCommandBuffer : NSObject <MTLCommandBuffer> {
 @public
  SoftQueue* queue_;  // retained
  std::shared_ptr<softmetal::Work>* work_;
  bool encoding_, committed_, ended_;
  NSError* error_;
}
@end

@interface SoftEncoder : NSObject <MTLComputeCommandEncoder> {
 @public
  SoftCommandBuffer* buffer_;  // retained
  MTLDispatchType type_;
  bool ended_;
  SoftPipeline* pipeline_;  // retained
  std::map<int, softmetal::Binding>* bindings_;
  std::map<int, unsigned>* threadgroup_bytes_;
  std::vector<softmetal::RegionPtr>* used_;
}
@end

@interface SoftDevice : NSObject <MTLDevice>
@end

SoftBuffer* softmetal_make_buffer(void* data, NSUInteger bytes);
NSUInteger softmetal_allocated_bytes();
