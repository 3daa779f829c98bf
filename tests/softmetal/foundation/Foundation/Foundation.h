// As much of Foundation as src/gpu/metal needs, for Linux: declarations; foundation.mm implements them over GCC's
// Objective-C runtime.
#pragma once

#ifdef __APPLE__
#error "this stands in for Apple's Foundation where there is none"
#endif

#include <stddef.h>
#include <stdint.h>

#define __MAC_OS_X_VERSION_MAX_ALLOWED 150000  // we act like the SDK of macOS 15

typedef struct objc_class* Class;
typedef struct objc_object {
  Class isa;
}* id;
typedef const struct objc_selector* SEL;
typedef id (*IMP)(id, SEL, ...);
typedef unsigned char BOOL;
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define nil nullptr
#define Nil nullptr

typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef double CFTimeInterval;
typedef NSUInteger NSStringEncoding;
enum { NSUTF8StringEncoding = 4 };

#define NS_ENUM(type, name) \
  enum name : type name;    \
  enum name : type
#define NS_OPTIONS(type, name) \
  type name;                   \
  enum : type

@class NSString;

@protocol NSObject
- (id)retain;
- (oneway void)release;
- (id)autorelease;
- (BOOL)respondsToSelector:(SEL)selector;
@end

__attribute__((objc_root_class))
@interface NSObject<NSObject> {
 @public
  Class isa;
}
+ (void)initialize;
+ (void)load;
+ (id)alloc;
+ (id)new;
- (instancetype)init;
- (void)dealloc;
@end

@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char*)text;
- (instancetype)initWithBytes:(const void*)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding;
@property(readonly) NSUInteger length;
@property(readonly) const char* UTF8String __attribute__((objc_returns_inner_pointer));
@end

@interface NSConstantString : NSString {
  char* text_;
  unsigned int length_;
}
@end

@interface NSError : NSObject {
  NSString* domain_;
  NSString* text_;
  NSInteger code_;
}
@property(readonly) NSInteger code;
@property(readonly) NSString* domain;
@property(readonly) NSString* localizedDescription;
@end
