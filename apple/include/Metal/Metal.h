// Metal for compute: declarations of Apple's API. Written by apple/generate_headers.py; do not edit.
#pragma once

#import <Foundation/Foundation.h>

// MTL_SINCE_x: not before macOS x, and not with an older SDK at all. MTL_UNTIL_x: deprecated from macOS x on.
#ifdef __APPLE__
#include <Availability.h>
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 130000
#define MTL_SINCE_13_0 __attribute__((availability(macos, introduced = 13.0)))
#else
#define MTL_SINCE_13_0 __attribute__((unavailable("first in the SDK of macOS 13.0")))
#endif
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 130400
#define MTL_SINCE_13_4 __attribute__((availability(macos, introduced = 13.4)))
#else
#define MTL_SINCE_13_4 __attribute__((unavailable("first in the SDK of macOS 13.4")))
#endif
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 140000
#define MTL_SINCE_14_0 __attribute__((availability(macos, introduced = 14.0)))
#else
#define MTL_SINCE_14_0 __attribute__((unavailable("first in the SDK of macOS 14.0")))
#endif
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 140400
#define MTL_SINCE_14_4 __attribute__((availability(macos, introduced = 14.4)))
#else
#define MTL_SINCE_14_4 __attribute__((unavailable("first in the SDK of macOS 14.4")))
#endif
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
#define MTL_SINCE_15_0 __attribute__((availability(macos, introduced = 15.0)))
#else
#define MTL_SINCE_15_0 __attribute__((unavailable("first in the SDK of macOS 15.0")))
#endif
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 260000
#define MTL_SINCE_26_0 __attribute__((availability(macos, introduced = 26.0)))
#else
#define MTL_SINCE_26_0 __attribute__((unavailable("first in the SDK of macOS 26.0")))
#endif
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 130000
#define MTL_UNTIL_13_0 __attribute__((availability(macos, deprecated = 13.0)))
#else
#define MTL_UNTIL_13_0
#endif
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
#define MTL_UNTIL_15_0 __attribute__((availability(macos, deprecated = 15.0)))
#else
#define MTL_UNTIL_15_0
#endif
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 260400
#define MTL_UNTIL_26_4 __attribute__((availability(macos, deprecated = 26.4)))
#else
#define MTL_UNTIL_26_4
#endif
#else
#define MTL_SINCE_13_0
#define MTL_SINCE_13_4
#define MTL_SINCE_14_0
#define MTL_SINCE_14_4
#define MTL_SINCE_15_0
#define MTL_SINCE_26_0
#define MTL_UNTIL_13_0
#define MTL_UNTIL_15_0
#define MTL_UNTIL_26_4
#endif

// Instance variables for whoever implements the classes with an Objective-C runtime that wants them declared.
#ifndef MTL_CLASS_STORAGE
#define MTL_CLASS_STORAGE
#endif

typedef struct { NSUInteger width; NSUInteger height; NSUInteger depth; } MTLSize;
typedef struct { NSUInteger size; NSUInteger align; } MTLSizeAndAlign;
typedef struct { uint64_t _impl; } MTLResourceID;

NS_INLINE MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  MTLSize size = {width, height, depth};
  return size;
}

typedef NS_ENUM(NSUInteger, MTLArgumentBuffersTier) {
  MTLArgumentBuffersTier1 = 0,
  MTLArgumentBuffersTier2 = 1,
};

typedef NS_OPTIONS(NSUInteger, MTLBarrierScope) {
  MTLBarrierScopeBuffers = 1,
  MTLBarrierScopeTextures = 2,
  MTLBarrierScopeRenderTargets = 4,
};

typedef NS_ENUM(NSUInteger, MTLBufferSparseTier) {
  MTLBufferSparseTierNone = 0,
  MTLBufferSparseTier1 = 1,
};

typedef NS_ENUM(NSUInteger, MTLCPUCacheMode) {
  MTLCPUCacheModeDefaultCache = 0,
  MTLCPUCacheModeWriteCombined = 1,
};

typedef NS_ENUM(NSUInteger, MTLCommandBufferError) {
  MTLCommandBufferErrorNone = 0,
  MTLCommandBufferErrorInternal = 1,
  MTLCommandBufferErrorTimeout = 2,
  MTLCommandBufferErrorPageFault = 3,
  MTLCommandBufferErrorBlacklisted = 4,
  MTLCommandBufferErrorAccessRevoked = 4,
  MTLCommandBufferErrorNotPermitted = 7,
  MTLCommandBufferErrorOutOfMemory = 8,
  MTLCommandBufferErrorInvalidResource = 9,
  MTLCommandBufferErrorMemoryless = 10,
  MTLCommandBufferErrorDeviceRemoved = 11,
  MTLCommandBufferErrorStackOverflow = 12,
};

typedef NS_OPTIONS(NSUInteger, MTLCommandBufferErrorOption) {
  MTLCommandBufferErrorOptionNone = 0,
  MTLCommandBufferErrorOptionEncoderExecutionStatus = 1,
};

typedef NS_ENUM(NSUInteger, MTLCommandBufferStatus) {
  MTLCommandBufferStatusNotEnqueued = 0,
  MTLCommandBufferStatusEnqueued = 1,
  MTLCommandBufferStatusCommitted = 2,
  MTLCommandBufferStatusScheduled = 3,
  MTLCommandBufferStatusCompleted = 4,
  MTLCommandBufferStatusError = 5,
};

typedef NS_ENUM(NSUInteger, MTLCommandEncoderErrorState) {
  MTLCommandEncoderErrorStateUnknown = 0,
  MTLCommandEncoderErrorStateCompleted = 1,
  MTLCommandEncoderErrorStateAffected = 2,
  MTLCommandEncoderErrorStatePending = 3,
  MTLCommandEncoderErrorStateFaulted = 4,
};

typedef NS_ENUM(NSUInteger, MTLCompileSymbolVisibility) {
  MTLCompileSymbolVisibilityDefault MTL_SINCE_13_4 = 0,
  MTLCompileSymbolVisibilityHidden MTL_SINCE_13_4 = 1,
};

typedef NS_ENUM(NSUInteger, MTLDataType) {
  MTLDataTypeNone = 0,
  MTLDataTypeStruct = 1,
  MTLDataTypeArray = 2,
  MTLDataTypeFloat = 3,
  MTLDataTypeFloat2 = 4,
  MTLDataTypeFloat3 = 5,
  MTLDataTypeFloat4 = 6,
  MTLDataTypeFloat2x2 = 7,
  MTLDataTypeFloat2x3 = 8,
  MTLDataTypeFloat2x4 = 9,
  MTLDataTypeFloat3x2 = 10,
  MTLDataTypeFloat3x3 = 11,
  MTLDataTypeFloat3x4 = 12,
  MTLDataTypeFloat4x2 = 13,
  MTLDataTypeFloat4x3 = 14,
  MTLDataTypeFloat4x4 = 15,
  MTLDataTypeHalf = 16,
  MTLDataTypeHalf2 = 17,
  MTLDataTypeHalf3 = 18,
  MTLDataTypeHalf4 = 19,
  MTLDataTypeHalf2x2 = 20,
  MTLDataTypeHalf2x3 = 21,
  MTLDataTypeHalf2x4 = 22,
  MTLDataTypeHalf3x2 = 23,
  MTLDataTypeHalf3x3 = 24,
  MTLDataTypeHalf3x4 = 25,
  MTLDataTypeHalf4x2 = 26,
  MTLDataTypeHalf4x3 = 27,
  MTLDataTypeHalf4x4 = 28,
  MTLDataTypeInt = 29,
  MTLDataTypeInt2 = 30,
  MTLDataTypeInt3 = 31,
  MTLDataTypeInt4 = 32,
  MTLDataTypeUInt = 33,
  MTLDataTypeUInt2 = 34,
  MTLDataTypeUInt3 = 35,
  MTLDataTypeUInt4 = 36,
  MTLDataTypeShort = 37,
  MTLDataTypeShort2 = 38,
  MTLDataTypeShort3 = 39,
  MTLDataTypeShort4 = 40,
  MTLDataTypeUShort = 41,
  MTLDataTypeUShort2 = 42,
  MTLDataTypeUShort3 = 43,
  MTLDataTypeUShort4 = 44,
  MTLDataTypeChar = 45,
  MTLDataTypeChar2 = 46,
  MTLDataTypeChar3 = 47,
  MTLDataTypeChar4 = 48,
  MTLDataTypeUChar = 49,
  MTLDataTypeUChar2 = 50,
  MTLDataTypeUChar3 = 51,
  MTLDataTypeUChar4 = 52,
  MTLDataTypeBool = 53,
  MTLDataTypeBool2 = 54,
  MTLDataTypeBool3 = 55,
  MTLDataTypeBool4 = 56,
  MTLDataTypeTexture = 58,
  MTLDataTypeSampler = 59,
  MTLDataTypePointer = 60,
  MTLDataTypeR8Unorm = 62,
  MTLDataTypeR8Snorm = 63,
  MTLDataTypeR16Unorm = 64,
  MTLDataTypeR16Snorm = 65,
  MTLDataTypeRG8Unorm = 66,
  MTLDataTypeRG8Snorm = 67,
  MTLDataTypeRG16Unorm = 68,
  MTLDataTypeRG16Snorm = 69,
  MTLDataTypeRGBA8Unorm = 70,
  MTLDataTypeRGBA8Unorm_sRGB = 71,
  MTLDataTypeRGBA8Snorm = 72,
  MTLDataTypeRGBA16Unorm = 73,
  MTLDataTypeRGBA16Snorm = 74,
  MTLDataTypeRGB10A2Unorm = 75,
  MTLDataTypeRG11B10Float = 76,
  MTLDataTypeRGB9E5Float = 77,
  MTLDataTypeRenderPipeline = 78,
  MTLDataTypeComputePipeline = 79,
  MTLDataTypeIndirectCommandBuffer = 80,
  MTLDataTypeLong = 81,
  MTLDataTypeLong2 = 82,
  MTLDataTypeLong3 = 83,
  MTLDataTypeLong4 = 84,
  MTLDataTypeULong = 85,
  MTLDataTypeULong2 = 86,
  MTLDataTypeULong3 = 87,
  MTLDataTypeULong4 = 88,
  MTLDataTypeVisibleFunctionTable = 115,
  MTLDataTypeIntersectionFunctionTable = 116,
  MTLDataTypePrimitiveAccelerationStructure = 117,
  MTLDataTypeInstanceAccelerationStructure = 118,
  MTLDataTypeBFloat = 121,
  MTLDataTypeBFloat2 = 122,
  MTLDataTypeBFloat3 = 123,
  MTLDataTypeBFloat4 = 124,
  MTLDataTypeDepthStencilState = 139,
  MTLDataTypeTensor = 140,
};

typedef NS_ENUM(NSInteger, MTLDeviceLocation) {
  MTLDeviceLocationBuiltIn = 0,
  MTLDeviceLocationSlot = 1,
  MTLDeviceLocationExternal = 2,
  MTLDeviceLocationUnspecified = -1,
};

typedef NS_ENUM(NSUInteger, MTLDispatchType) {
  MTLDispatchTypeSerial = 0,
  MTLDispatchTypeConcurrent = 1,
};

typedef NS_ENUM(NSUInteger, MTLFunctionOptions) {
  MTLFunctionOptionNone = 0,
  MTLFunctionOptionCompileToBinary = 1,
  MTLFunctionOptionStoreFunctionInMetalPipelinesScript = 2,
  MTLFunctionOptionStoreFunctionInMetalScript = 2,
  MTLFunctionOptionFailOnBinaryArchiveMiss = 4,
  MTLFunctionOptionPipelineIndependent = 8,
};

typedef NS_ENUM(NSUInteger, MTLFunctionType) {
  MTLFunctionTypeVertex = 1,
  MTLFunctionTypeFragment = 2,
  MTLFunctionTypeKernel = 3,
  MTLFunctionTypeVisible = 5,
  MTLFunctionTypeIntersection = 6,
  MTLFunctionTypeMesh = 7,
  MTLFunctionTypeObject = 8,
};

typedef NS_ENUM(NSInteger, MTLGPUFamily) {
  MTLGPUFamilyApple1 = 1001,
  MTLGPUFamilyApple2 = 1002,
  MTLGPUFamilyApple3 = 1003,
  MTLGPUFamilyApple4 = 1004,
  MTLGPUFamilyApple5 = 1005,
  MTLGPUFamilyApple6 = 1006,
  MTLGPUFamilyApple7 = 1007,
  MTLGPUFamilyApple8 = 1008,
  MTLGPUFamilyApple9 = 1009,
  MTLGPUFamilyApple10 = 1010,
  MTLGPUFamilyMac1 = 2001,
  MTLGPUFamilyMac2 = 2002,
  MTLGPUFamilyCommon1 = 3001,
  MTLGPUFamilyCommon2 = 3002,
  MTLGPUFamilyCommon3 = 3003,
  MTLGPUFamilyMacCatalyst1 = 4001,
  MTLGPUFamilyMacCatalyst2 = 4002,
  MTLGPUFamilyMetal3 = 5001,
  MTLGPUFamilyMetal4 = 5002,
};

typedef NS_ENUM(NSUInteger, MTLHazardTrackingMode) {
  MTLHazardTrackingModeDefault = 0,
  MTLHazardTrackingModeUntracked = 1,
  MTLHazardTrackingModeTracked = 2,
};

typedef NS_ENUM(NSUInteger, MTLHeapType) {
  MTLHeapTypeAutomatic = 0,
  MTLHeapTypePlacement = 1,
  MTLHeapTypeSparse = 2,
};

typedef NS_ENUM(NSUInteger, MTLLanguageVersion) {
  MTLLanguageVersion1_1 = 65537,
  MTLLanguageVersion1_2 = 65538,
  MTLLanguageVersion2_0 = 131072,
  MTLLanguageVersion2_1 = 131073,
  MTLLanguageVersion2_2 = 131074,
  MTLLanguageVersion2_3 = 131075,
  MTLLanguageVersion2_4 = 131076,
  MTLLanguageVersion3_0 = 196608,
  MTLLanguageVersion3_1 = 196609,
  MTLLanguageVersion3_2 = 196610,
  MTLLanguageVersion4_0 = 262144,
};

typedef NS_ENUM(NSUInteger, MTLLibraryError) {
  MTLLibraryErrorUnsupported = 1,
  MTLLibraryErrorInternal = 2,
  MTLLibraryErrorCompileFailure = 3,
  MTLLibraryErrorCompileWarning = 4,
  MTLLibraryErrorFunctionNotFound = 5,
  MTLLibraryErrorFileNotFound = 6,
};

typedef NS_ENUM(NSUInteger, MTLLibraryOptimizationLevel) {
  MTLLibraryOptimizationLevelDefault MTL_SINCE_13_0 = 0,
  MTLLibraryOptimizationLevelSize MTL_SINCE_13_0 = 1,
};

typedef NS_ENUM(NSUInteger, MTLLibraryType) {
  MTLLibraryTypeExecutable = 0,
  MTLLibraryTypeDynamic = 1,
};

typedef NS_ENUM(NSUInteger, MTLMathFloatingPointFunctions) {
  MTLMathFloatingPointFunctionsFast = 0,
  MTLMathFloatingPointFunctionsPrecise = 1,
};

typedef NS_ENUM(NSInteger, MTLMathMode) {
  MTLMathModeSafe = 0,
  MTLMathModeRelaxed = 1,
  MTLMathModeFast = 2,
};

typedef NS_ENUM(NSUInteger, MTLPipelineOption) {
  MTLPipelineOptionNone = 0,
  MTLPipelineOptionArgumentInfo = 1,
  MTLPipelineOptionBindingInfo = 1,
  MTLPipelineOptionBufferTypeInfo = 2,
  MTLPipelineOptionFailOnBinaryArchiveMiss = 4,
};

typedef NS_ENUM(NSUInteger, MTLPurgeableState) {
  MTLPurgeableStateKeepCurrent = 1,
  MTLPurgeableStateNonVolatile = 2,
  MTLPurgeableStateVolatile = 3,
  MTLPurgeableStateEmpty = 4,
};

typedef NS_OPTIONS(NSUInteger, MTLResourceOptions) {
  MTLResourceCPUCacheModeDefaultCache = 0,
  MTLResourceCPUCacheModeWriteCombined = 1,
  MTLResourceStorageModeShared = 0,
  MTLResourceStorageModeManaged = 16,
  MTLResourceStorageModePrivate = 32,
  MTLResourceStorageModeMemoryless = 48,
  MTLResourceHazardTrackingModeDefault = 0,
  MTLResourceHazardTrackingModeUntracked = 256,
  MTLResourceHazardTrackingModeTracked = 512,
  MTLResourceOptionCPUCacheModeDefault = 0,
  MTLResourceOptionCPUCacheModeWriteCombined = 1,
};

typedef NS_OPTIONS(NSUInteger, MTLResourceUsage) {
  MTLResourceUsageRead = 1,
  MTLResourceUsageWrite = 2,
  MTLResourceUsageSample = 4,
};

typedef NS_ENUM(NSUInteger, MTLShaderValidation) {
  MTLShaderValidationDefault MTL_SINCE_15_0 = 0,
  MTLShaderValidationEnabled MTL_SINCE_15_0 = 1,
  MTLShaderValidationDisabled MTL_SINCE_15_0 = 2,
};

typedef NS_ENUM(NSUInteger, MTLSparsePageSize) {
  MTLSparsePageSize16 MTL_SINCE_13_0 = 101,
  MTLSparsePageSize64 MTL_SINCE_13_0 = 102,
  MTLSparsePageSize256 MTL_SINCE_13_0 = 103,
};

typedef NS_ENUM(NSUInteger, MTLStorageMode) {
  MTLStorageModeShared = 0,
  MTLStorageModeManaged = 1,
  MTLStorageModePrivate = 2,
  MTLStorageModeMemoryless = 3,
};

typedef NS_ENUM(NSUInteger, MTLTextureType) {
  MTLTextureType1D = 0,
  MTLTextureType1DArray = 1,
  MTLTextureType2D = 2,
  MTLTextureType2DArray = 3,
  MTLTextureType2DMultisample = 4,
  MTLTextureTypeCube = 5,
  MTLTextureTypeCubeArray = 6,
  MTLTextureType3D = 7,
  MTLTextureType2DMultisampleArray = 8,
  MTLTextureTypeTextureBuffer = 9,
};

@protocol MTLAllocation;
@protocol MTLDevice;
@protocol MTLCommandQueue;
@protocol MTLCommandBuffer;
@protocol MTLCommandEncoder;
@protocol MTLComputeCommandEncoder;
@protocol MTLBlitCommandEncoder;
@protocol MTLResource;
@protocol MTLBuffer;
@protocol MTLHeap;
@protocol MTLLibrary;
@protocol MTLFunction;
@protocol MTLComputePipelineState;
@protocol MTLResidencySet;
@protocol MTLEvent;
@protocol MTLSharedEvent;
@protocol MTLFence;
@protocol MTLCommandBufferEncoderInfo;
@class MTLCompileOptions;
@class MTLResidencySetDescriptor;
@class MTLComputePipelineDescriptor;
@class MTLCommandBufferDescriptor;
@class MTLCommandQueueDescriptor;
@class MTLHeapDescriptor;
@class MTLFunctionConstantValues;
@class MTLSharedEventListener;
@class MTLSharedEventHandle;
@class MTLComputePassDescriptor;
@class MTLArchitecture;

@protocol MTLAllocation <NSObject>
@property (readonly) NSUInteger allocatedSize MTL_SINCE_15_0;
@end

@protocol MTLDevice <NSObject>
@property (readonly) NSString *name;
@property (readonly) uint64_t registryID;
@property (readonly) MTLArchitecture *architecture MTL_SINCE_14_0;
@property (readonly) MTLSize maxThreadsPerThreadgroup;
@property (readonly, getter=isLowPower) BOOL lowPower;
@property (readonly, getter=isHeadless) BOOL headless;
@property (readonly, getter=isRemovable) BOOL removable;
@property (readonly) BOOL hasUnifiedMemory;
@property (readonly) uint64_t recommendedMaxWorkingSetSize MTL_SINCE_13_0;
@property (readonly) MTLDeviceLocation location;
@property (readonly) NSUInteger locationNumber;
@property (readonly) uint64_t maxTransferRate;
@property (readonly, getter=isDepth24Stencil8PixelFormatSupported) BOOL depth24Stencil8PixelFormatSupported;
@property (readonly) MTLArgumentBuffersTier argumentBuffersSupport;
@property (readonly, getter=areRasterOrderGroupsSupported) BOOL rasterOrderGroupsSupported;
@property (readonly) BOOL supports32BitFloatFiltering;
@property (readonly) BOOL supports32BitMSAA;
@property (readonly) BOOL supportsQueryTextureLOD;
@property (readonly) BOOL supportsBCTextureCompression MTL_SINCE_13_4;
@property (readonly) BOOL supportsPullModelInterpolation;
@property (readonly, getter=areBarycentricCoordsSupported) BOOL barycentricCoordsSupported MTL_UNTIL_13_0;
@property (readonly) BOOL supportsShaderBarycentricCoordinates;
@property (readonly) NSUInteger currentAllocatedSize;
- (id<MTLCommandQueue>)newCommandQueue;
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)maxCommandBufferCount;
- (id<MTLCommandQueue>)newCommandQueueWithDescriptor:(MTLCommandQueueDescriptor *)descriptor MTL_SINCE_15_0;
- (MTLSizeAndAlign)heapBufferSizeAndAlignWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLHeap>)newHeapWithDescriptor:(MTLHeapDescriptor *)descriptor;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytes:(const void *)pointer length:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer length:(NSUInteger)length options:(MTLResourceOptions)options deallocator:(void (^)(void *, NSUInteger))deallocator;
- (id<MTLLibrary>)newDefaultLibrary;
- (id<MTLLibrary>)newDefaultLibraryWithBundle:(NSBundle *)bundle error:(NSError **)error;
- (id<MTLLibrary>)newLibraryWithFile:(NSString *)filepath error:(NSError **)error MTL_UNTIL_13_0;
- (id<MTLLibrary>)newLibraryWithURL:(NSURL *)url error:(NSError **)error;
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error;
- (void)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options completionHandler:(void (^)(id<MTLLibrary>, NSError *))completionHandler;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)computeFunction error:(NSError **)error;
- (void)newComputePipelineStateWithFunction:(id<MTLFunction>)computeFunction completionHandler:(void (^)(id<MTLComputePipelineState>, NSError *))completionHandler;
- (id<MTLFence>)newFence;
- (BOOL)supportsFamily:(MTLGPUFamily)gpuFamily;
- (BOOL)supportsTextureSampleCount:(NSUInteger)sampleCount;
@property (readonly) NSUInteger maxThreadgroupMemoryLength;
@property (readonly) NSUInteger maxArgumentBufferSamplerCount;
@property (readonly, getter=areProgrammableSamplePositionsSupported) BOOL programmableSamplePositionsSupported;
- (BOOL)supportsRasterizationRateMapWithLayerCount:(NSUInteger)layerCount;
- (id<MTLEvent>)newEvent;
- (id<MTLSharedEvent>)newSharedEvent;
- (id<MTLSharedEvent>)newSharedEventWithHandle:(MTLSharedEventHandle *)sharedEventHandle;
@property (readonly) uint64_t peerGroupID;
@property (readonly) uint32_t peerIndex;
@property (readonly) uint32_t peerCount;
@property (readonly) NSUInteger sparseTileSizeInBytes;
- (NSUInteger)sparseTileSizeInBytesForSparsePageSize:(MTLSparsePageSize)sparsePageSize MTL_SINCE_13_0;
@property (readonly) NSUInteger maxBufferLength;
@property (readonly) NSArray *counterSets;
- (void)sampleTimestamps:(uint64_t *)cpuTimestamp gpuTimestamp:(uint64_t *)gpuTimestamp;
- (BOOL)supportsVertexAmplificationCount:(NSUInteger)count;
@property (readonly) BOOL supportsDynamicLibraries;
@property (readonly) BOOL supportsRenderDynamicLibraries;
@property (readonly) BOOL supportsRaytracing;
- (MTLSizeAndAlign)heapAccelerationStructureSizeAndAlignWithSize:(NSUInteger)size MTL_SINCE_13_0;
@property (readonly) BOOL supportsFunctionPointers;
@property (readonly) BOOL supportsFunctionPointersFromRender;
@property (readonly) BOOL supportsRaytracingFromRender;
@property (readonly) BOOL supportsPrimitiveMotionBlur;
@property (readwrite) BOOL shouldMaximizeConcurrentCompilation;
@property (readonly) NSUInteger maximumConcurrentCompilationTaskCount MTL_SINCE_26_0;
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)desc error:(NSError **)error MTL_SINCE_15_0;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options placementSparsePageSize:(MTLSparsePageSize)placementSparsePageSize;
- (NSUInteger)queryTimestampFrequency;
@end

@protocol MTLCommandQueue <NSObject>
@property (readwrite, copy) NSString *label;
@property (readonly) id<MTLDevice> device;
- (id<MTLCommandBuffer>)commandBuffer;
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor *)descriptor;
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences;
- (void)insertDebugCaptureBoundary;
- (void)addResidencySet:(id<MTLResidencySet>)residencySet MTL_SINCE_15_0;
- (void)addResidencySets:(const id<MTLResidencySet> *)residencySets count:(NSUInteger)count MTL_SINCE_15_0;
- (void)removeResidencySet:(id<MTLResidencySet>)residencySet MTL_SINCE_15_0;
- (void)removeResidencySets:(const id<MTLResidencySet> *)residencySets count:(NSUInteger)count MTL_SINCE_15_0;
@end

@protocol MTLCommandBuffer <NSObject>
@property (readonly) id<MTLDevice> device;
@property (readonly) id<MTLCommandQueue> commandQueue;
@property (readonly) BOOL retainedReferences;
@property (readonly) MTLCommandBufferErrorOption errorOptions;
@property (readwrite, copy) NSString *label;
@property (readonly) CFTimeInterval kernelStartTime;
@property (readonly) CFTimeInterval kernelEndTime;
@property (readonly) CFTimeInterval GPUStartTime;
@property (readonly) CFTimeInterval GPUEndTime;
- (void)enqueue;
- (void)commit;
- (void)addScheduledHandler:(void (^)(id<MTLCommandBuffer>))block;
- (void)waitUntilScheduled;
- (void)addCompletedHandler:(void (^)(id<MTLCommandBuffer>))block;
- (void)waitUntilCompleted;
@property (readonly) MTLCommandBufferStatus status;
@property (readonly) NSError *error;
- (id<MTLBlitCommandEncoder>)blitCommandEncoder;
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDescriptor:(MTLComputePassDescriptor *)computePassDescriptor;
- (id<MTLComputeCommandEncoder>)computeCommandEncoder;
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)dispatchType;
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)pushDebugGroup:(NSString *)string;
- (void)popDebugGroup;
- (void)useResidencySet:(id<MTLResidencySet>)residencySet MTL_SINCE_15_0;
- (void)useResidencySets:(const id<MTLResidencySet> *)residencySets count:(NSUInteger)count MTL_SINCE_15_0;
@end

@protocol MTLCommandEncoder <NSObject>
@property (readonly) id<MTLDevice> device;
@property (readwrite, copy) NSString *label;
- (void)endEncoding;
- (void)insertDebugSignpost:(NSString *)string;
- (void)pushDebugGroup:(NSString *)string;
- (void)popDebugGroup;
@end

@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
@property (readonly) MTLDispatchType dispatchType;
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBuffers:(const id<MTLBuffer> *)buffers offsets:(const NSUInteger *)offsets withRange:(NSRange)range;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset attributeStride:(NSUInteger)stride atIndex:(NSUInteger)index MTL_SINCE_14_0;
- (void)setBuffers:(const id<MTLBuffer> *)buffers offsets:(const NSUInteger *)offsets attributeStrides:(const NSUInteger *)strides withRange:(NSRange)range MTL_SINCE_14_0;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length attributeStride:(NSUInteger)stride atIndex:(NSUInteger)index MTL_SINCE_14_0;
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setImageblockWidth:(NSUInteger)width height:(NSUInteger)height;
- (void)setStageInRegionWithIndirectBuffer:(id<MTLBuffer>)indirectBuffer indirectBufferOffset:(NSUInteger)indirectBufferOffset;
- (void)dispatchThreadgroups:(MTLSize)threadgroupsPerGrid threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)dispatchThreadgroupsWithIndirectBuffer:(id<MTLBuffer>)indirectBuffer indirectBufferOffset:(NSUInteger)indirectBufferOffset threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)dispatchThreads:(MTLSize)threadsPerGrid threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)updateFence:(id<MTLFence>)fence;
- (void)waitForFence:(id<MTLFence>)fence;
- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage;
- (void)useResources:(const id<MTLResource> *)resources count:(NSUInteger)count usage:(MTLResourceUsage)usage;
- (void)useHeap:(id<MTLHeap>)heap;
- (void)useHeaps:(const id<MTLHeap> *)heaps count:(NSUInteger)count;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
- (void)memoryBarrierWithResources:(const id<MTLResource> *)resources count:(NSUInteger)count;
@end

@protocol MTLBlitCommandEncoder <MTLCommandEncoder>
- (void)synchronizeResource:(id<MTLResource>)resource;
- (void)fillBuffer:(id<MTLBuffer>)buffer range:(NSRange)range value:(uint64_t)value;
- (void)copyFromBuffer:(id<MTLBuffer>)sourceBuffer sourceOffset:(NSUInteger)sourceOffset toBuffer:(id<MTLBuffer>)destinationBuffer destinationOffset:(NSUInteger)destinationOffset size:(NSUInteger)size;
- (void)updateFence:(id<MTLFence>)fence;
- (void)waitForFence:(id<MTLFence>)fence;
@end

@protocol MTLResource <MTLAllocation>
@property (readwrite, copy) NSString *label;
@property (readonly) id<MTLDevice> device;
@property (readonly) MTLCPUCacheMode cpuCacheMode;
@property (readonly) MTLStorageMode storageMode;
@property (readonly) MTLHazardTrackingMode hazardTrackingMode;
@property (readonly) MTLResourceOptions resourceOptions;
- (MTLPurgeableState)setPurgeableState:(MTLPurgeableState)state;
@property (readonly) id<MTLHeap> heap;
@property (readonly) NSUInteger heapOffset;
@property (readonly) NSUInteger allocatedSize;
- (void)makeAliasable;
- (BOOL)isAliasable;
- (NSUInteger)setOwnerWithIdentity:(NSUInteger)task_id_token MTL_SINCE_14_4;
@end

@protocol MTLBuffer <MTLResource>
@property (readonly) NSUInteger length;
- (void *)contents;
- (void)didModifyRange:(NSRange)range;
- (void)addDebugMarker:(NSString *)marker range:(NSRange)range;
- (void)removeAllDebugMarkers;
@property (readonly) id<MTLBuffer> remoteStorageBuffer;
- (id<MTLBuffer>)newRemoteBufferViewForDevice:(id<MTLDevice>)device;
@property (readonly) uint64_t gpuAddress MTL_SINCE_13_0;
@property (readonly) MTLBufferSparseTier sparseBufferTier;
@end

@protocol MTLHeap <MTLAllocation>
@property (readwrite, copy) NSString *label;
@property (readonly) id<MTLDevice> device;
@property (readonly) MTLStorageMode storageMode;
@property (readonly) MTLCPUCacheMode cpuCacheMode;
@property (readonly) MTLHazardTrackingMode hazardTrackingMode;
@property (readonly) MTLResourceOptions resourceOptions;
@property (readonly) NSUInteger size;
@property (readonly) NSUInteger usedSize;
@property (readonly) NSUInteger currentAllocatedSize;
- (NSUInteger)maxAvailableSizeWithAlignment:(NSUInteger)alignment;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (MTLPurgeableState)setPurgeableState:(MTLPurgeableState)state;
@property (readonly) MTLHeapType type;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options offset:(NSUInteger)offset;
@end

@protocol MTLLibrary <NSObject>
@property (readwrite, copy) NSString *label;
@property (readonly) id<MTLDevice> device;
- (id<MTLFunction>)newFunctionWithName:(NSString *)functionName;
- (id<MTLFunction>)newFunctionWithName:(NSString *)name constantValues:(MTLFunctionConstantValues *)constantValues error:(NSError **)error;
- (void)newFunctionWithName:(NSString *)name constantValues:(MTLFunctionConstantValues *)constantValues completionHandler:(void (^)(id<MTLFunction>, NSError *))completionHandler;
@property (readonly) NSArray *functionNames;
@property (readonly) MTLLibraryType type;
@property (readonly) NSString *installName;
@end

@protocol MTLFunction <NSObject>
@property (readwrite, copy) NSString *label;
@property (readonly) id<MTLDevice> device;
@property (readonly) MTLFunctionType functionType;
@property (readonly) NSUInteger patchControlPointCount;
@property (readonly) NSArray *vertexAttributes;
@property (readonly) NSArray *stageInputAttributes;
@property (readonly) NSString *name;
@property (readonly) NSDictionary *functionConstantsDictionary;
@property (readonly) MTLFunctionOptions options;
@end

@protocol MTLComputePipelineState <MTLAllocation, NSObject>
@property (readonly) NSString *label;
- (id<MTLComputePipelineState>)newComputePipelineStateWithBinaryFunctions:(NSArray *)additionalBinaryFunctions error:(NSError **)error;
@property (readonly) id<MTLDevice> device;
@property (readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property (readonly) NSUInteger threadExecutionWidth;
@property (readonly) NSUInteger staticThreadgroupMemoryLength;
- (NSUInteger)imageblockMemoryLengthForDimensions:(MTLSize)imageblockDimensions;
@property (readonly) BOOL supportIndirectCommandBuffers;
@property (readonly) MTLResourceID gpuResourceID;
- (id<MTLComputePipelineState>)newComputePipelineStateWithAdditionalBinaryFunctions:(NSArray *)functions error:(NSError **)error;
@property (readonly) MTLShaderValidation shaderValidation MTL_SINCE_15_0;
@property (readonly) MTLSize requiredThreadsPerThreadgroup;
@end

MTL_SINCE_15_0
@protocol MTLResidencySet <NSObject>
@property (readonly) id<MTLDevice> device;
@property (readonly) NSString *label;
@property (readonly) NSUInteger allocatedSize;
- (void)requestResidency;
- (void)endResidency;
- (void)addAllocation:(id<MTLAllocation>)allocation;
- (void)addAllocations:(const id<MTLAllocation> *)allocations count:(NSUInteger)count;
- (void)removeAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllocations:(const id<MTLAllocation> *)allocations count:(NSUInteger)count;
- (void)removeAllAllocations;
- (BOOL)containsAllocation:(id<MTLAllocation>)anAllocation;
@property (readonly) NSArray *allAllocations;
@property (readonly) NSUInteger allocationCount;
- (void)commit;
@end

@protocol MTLEvent <NSObject>
@property (readonly) id<MTLDevice> device;
@property (readwrite, copy) NSString *label;
@end

@protocol MTLSharedEvent <MTLEvent>
- (void)notifyListener:(MTLSharedEventListener *)listener atValue:(uint64_t)value block:(void (^)(id<MTLSharedEvent>, uint64_t))block;
- (MTLSharedEventHandle *)newSharedEventHandle;
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds;
@property (readwrite) uint64_t signaledValue;
@end

@protocol MTLFence <NSObject>
@property (readonly) id<MTLDevice> device;
@property (readwrite, copy) NSString *label;
@end

@protocol MTLCommandBufferEncoderInfo <NSObject>
@property (readonly) NSString *label;
@property (readonly) NSArray *debugSignposts;
@property (readonly) MTLCommandEncoderErrorState errorState;
@end

@interface MTLCompileOptions : NSObject <NSCopying> MTL_CLASS_STORAGE
@property (readwrite, copy) NSDictionary *preprocessorMacros;
@property (readwrite) BOOL fastMathEnabled MTL_UNTIL_15_0;
@property (readwrite) MTLMathMode mathMode MTL_SINCE_15_0;
@property (readwrite) MTLMathFloatingPointFunctions mathFloatingPointFunctions MTL_SINCE_15_0;
@property (readwrite) MTLLanguageVersion languageVersion;
@property (readwrite) MTLLibraryType libraryType;
@property (readwrite, copy) NSString *installName;
@property (readwrite, copy) NSArray *libraries;
@property (readwrite) BOOL preserveInvariance;
@property (readwrite) MTLLibraryOptimizationLevel optimizationLevel MTL_SINCE_13_0;
@property (readwrite) MTLCompileSymbolVisibility compileSymbolVisibility MTL_SINCE_13_4;
@property (readwrite) BOOL allowReferencingUndefinedSymbols MTL_SINCE_13_4;
@property (readwrite) NSUInteger maxTotalThreadsPerThreadgroup MTL_SINCE_13_4;
@property (readwrite) MTLSize requiredThreadsPerThreadgroup;
@property (readwrite) BOOL enableLogging MTL_SINCE_15_0;
@end

MTL_SINCE_15_0
@interface MTLResidencySetDescriptor : NSObject <NSCopying> MTL_CLASS_STORAGE
@property (readwrite, copy) NSString *label;
@property (readwrite) NSUInteger initialCapacity;
@end

@interface MTLComputePipelineDescriptor : NSObject <NSCopying> MTL_CLASS_STORAGE
@property (readwrite, copy) NSString *label;
@property (readwrite, retain) id<MTLFunction> computeFunction;
@property (readwrite) BOOL threadGroupSizeIsMultipleOfThreadExecutionWidth;
@property (readwrite) NSUInteger maxTotalThreadsPerThreadgroup;
@property (readwrite) BOOL supportIndirectCommandBuffers;
@property (readwrite, copy) NSArray *insertLibraries;
@property (readwrite, copy) NSArray *preloadedLibraries;
@property (readwrite, copy) NSArray *binaryArchives;
- (void)reset;
@property (readwrite) BOOL supportAddingBinaryFunctions;
@property (readwrite) NSUInteger maxCallStackDepth;
@property (readwrite) MTLShaderValidation shaderValidation MTL_SINCE_15_0;
@property (readwrite) MTLSize requiredThreadsPerThreadgroup;
@end

@interface MTLCommandBufferDescriptor : NSObject <NSCopying> MTL_CLASS_STORAGE
@property (readwrite) BOOL retainedReferences;
@property (readwrite) MTLCommandBufferErrorOption errorOptions;
@end

MTL_SINCE_15_0
@interface MTLCommandQueueDescriptor : NSObject <NSCopying> MTL_CLASS_STORAGE
@property (readwrite) NSUInteger maxCommandBufferCount;
@end

@interface MTLHeapDescriptor : NSObject <NSCopying> MTL_CLASS_STORAGE
@property (readwrite) NSUInteger size;
@property (readwrite) MTLStorageMode storageMode;
@property (readwrite) MTLCPUCacheMode cpuCacheMode;
@property (readwrite) MTLSparsePageSize sparsePageSize MTL_SINCE_13_0;
@property (readwrite) MTLHazardTrackingMode hazardTrackingMode;
@property (readwrite) MTLResourceOptions resourceOptions;
@property (readwrite) MTLHeapType type;
@property (readwrite) MTLSparsePageSize maxCompatiblePlacementSparsePageSize;
@end

@interface MTLFunctionConstantValues : NSObject <NSCopying> MTL_CLASS_STORAGE
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index;
- (void)setConstantValues:(const void *)values type:(MTLDataType)type withRange:(NSRange)range;
- (void)setConstantValue:(const void *)value type:(MTLDataType)type withName:(NSString *)name;
- (void)reset;
@end

@interface MTLSharedEventListener : NSObject MTL_CLASS_STORAGE
- (instancetype)init;
+ (MTLSharedEventListener *)sharedListener MTL_SINCE_26_0;
@end

@interface MTLSharedEventHandle : NSObject MTL_CLASS_STORAGE
@property (readonly) NSString *label;
@end

@interface MTLComputePassDescriptor : NSObject <NSCopying> MTL_CLASS_STORAGE
+ (MTLComputePassDescriptor *)computePassDescriptor;
@property (readwrite) MTLDispatchType dispatchType;
@end

MTL_SINCE_14_0
@interface MTLArchitecture : NSObject <NSCopying> MTL_CLASS_STORAGE
@property (readonly) NSString *name;
@end

FOUNDATION_EXPORT NSString *const MTLCommandBufferErrorDomain;
FOUNDATION_EXPORT NSString *const MTLLibraryErrorDomain;
FOUNDATION_EXPORT NSString *const MTLCommandBufferEncoderInfoErrorKey;

FOUNDATION_EXPORT id<MTLDevice> MTLCreateSystemDefaultDevice(void) NS_RETURNS_RETAINED;
FOUNDATION_EXPORT NSArray<id<MTLDevice>> *MTLCopyAllDevices(void) NS_RETURNS_RETAINED;
