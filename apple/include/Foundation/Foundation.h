// The part of Foundation that Metal host code uses. Written by apple/generate_headers.py; do not edit.
#pragma once

#include <objc/NSObject.h>
#include <objc/objc.h>
#include <stddef.h>
#include <stdint.h>

#define NS_INLINE static inline
#define NS_ENUM(type, name) enum name : type name; enum name : type
#ifdef __cplusplus
#define NS_OPTIONS(type, name) type name; enum : type
#define FOUNDATION_EXPORT extern "C"
#else
#define NS_OPTIONS(type, name) enum name : type name; enum name : type
#define FOUNDATION_EXPORT extern
#endif
#ifndef NS_RETURNS_RETAINED
#define NS_RETURNS_RETAINED __attribute__((ns_returns_retained))
#endif

typedef double CFTimeInterval;
typedef double NSTimeInterval;
typedef unsigned short unichar;
typedef NSUInteger NSStringEncoding;
enum { NSUTF8StringEncoding = 4 };
typedef struct _NSZone NSZone;
typedef struct _NSRange { NSUInteger location, length; } NSRange;
NS_INLINE NSRange NSMakeRange(NSUInteger location, NSUInteger length) { NSRange range = {location, length}; return range; }
typedef struct { NSInteger majorVersion, minorVersion, patchVersion; } NSOperatingSystemVersion;
typedef struct { unsigned long state; id __unsafe_unretained *itemsPtr; unsigned long *mutationsPtr; unsigned long extra[5]; } NSFastEnumerationState;

@class NSString, NSDictionary, NSArray, NSURL, NSBundle, NSData;
FOUNDATION_EXPORT void NSLog(NSString *format, ...) __attribute__((format(__NSString__, 1, 2)));

@protocol NSCopying
- (id)copyWithZone:(NSZone *)zone;
@end

@protocol NSFastEnumeration
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state objects:(id __unsafe_unretained [])buffer count:(NSUInteger)len;
@end

@interface NSString : NSObject <NSCopying>
@property (readonly) NSUInteger length;
@property (readonly) const char *UTF8String __attribute__((objc_returns_inner_pointer));
+ (instancetype)stringWithUTF8String:(const char *)text;
+ (instancetype)stringWithFormat:(NSString *)format, ... __attribute__((format(__NSString__, 1, 2)));
- (instancetype)initWithUTF8String:(const char *)text;
- (instancetype)initWithBytes:(const void *)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding;
- (instancetype)initWithBytesNoCopy:(void *)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding freeWhenDone:(BOOL)free;
- (BOOL)isEqualToString:(NSString *)other;
@end

@interface NSError : NSObject <NSCopying>
@property (readonly) NSInteger code;
@property (readonly, copy) NSString *domain;
@property (readonly, copy) NSDictionary *userInfo;
@property (readonly, copy) NSString *localizedDescription;
+ (instancetype)errorWithDomain:(NSString *)domain code:(NSInteger)code userInfo:(NSDictionary *)info;
@end

@interface NSNumber : NSObject <NSCopying>
@property (readonly) int intValue;
@property (readonly) unsigned long unsignedLongValue;
@property (readonly) double doubleValue;
@property (readonly) BOOL boolValue;
+ (NSNumber *)numberWithInt:(int)value;
+ (NSNumber *)numberWithUnsignedInt:(unsigned)value;
+ (NSNumber *)numberWithLong:(long)value;
+ (NSNumber *)numberWithUnsignedLong:(unsigned long)value;
+ (NSNumber *)numberWithDouble:(double)value;
+ (NSNumber *)numberWithBool:(BOOL)value;
@end

@interface NSArray<__covariant ObjectType> : NSObject <NSCopying, NSFastEnumeration>
@property (readonly) NSUInteger count;
- (ObjectType)objectAtIndex:(NSUInteger)index;
- (ObjectType)objectAtIndexedSubscript:(NSUInteger)index;
+ (instancetype)arrayWithObjects:(const ObjectType *)objects count:(NSUInteger)count;
@end

@interface NSDictionary<__covariant KeyType, __covariant ObjectType> : NSObject <NSCopying, NSFastEnumeration>
@property (readonly) NSUInteger count;
- (ObjectType)objectForKey:(KeyType)key;
- (ObjectType)objectForKeyedSubscript:(KeyType)key;
+ (instancetype)dictionaryWithObjects:(const ObjectType *)objects forKeys:(const id<NSCopying> *)keys count:(NSUInteger)count;
@end

@interface NSURL : NSObject <NSCopying>
+ (NSURL *)fileURLWithPath:(NSString *)path;
@end

@interface NSBundle : NSObject
@end

@interface NSData : NSObject <NSCopying>
@property (readonly) NSUInteger length;
@end

@interface NSProcessInfo : NSObject
@property (class, readonly) NSProcessInfo *processInfo;
@property (readonly) NSOperatingSystemVersion operatingSystemVersion;
@property (readonly) unsigned long long physicalMemory;
@end
