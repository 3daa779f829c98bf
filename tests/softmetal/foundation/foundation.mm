// NSObject, NSString and NSError over GCC's Objective-C runtime. Compiled without ARC.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "foundation/runtime.h"

namespace {

// An object's reference count lies before it: NSConstantString's layout, which the compiler writes, leaves no room inside.
struct alignas(16) Header {
  std::atomic<long> references;
};
Header& header(id object) { return reinterpret_cast<Header*>(object)[-1]; }

std::atomic<long> live_objects{0};

id no_such_method(id object, SEL selector, ...) {
  std::fprintf(stderr, "software Metal device: unrecognized selector: -[%s %s]\n", class_getName(object->isa),
               sel_getName(selector));
  std::abort();
}

__attribute__((constructor)) void install_forwarding() {
  __objc_msg_forward2 = [](id, SEL) -> IMP { return no_such_method; };
}

}  // namespace

long softmetal_live_objects() { return live_objects; }

@implementation NSObject
+ (void)initialize {
}
+ (void)load {
}
+ (id)alloc {
  const size_t size = class_getInstanceSize((Class)self);
  char* memory = static_cast<char*>(std::calloc(1, sizeof(Header) + size));
  if (memory == nullptr) throw std::bad_alloc();
  new (memory) Header{1};
  id object = reinterpret_cast<id>(memory + sizeof(Header));
  object->isa = (Class)self;
  ++live_objects;
  return object;
}
+ (id)new {
  return [[self alloc] init];
}
- (instancetype)init {
  return self;
}
- (void)dealloc {
  --live_objects;
  std::free(&header((id)self));
}
- (id)retain {
  header((id)self).references.fetch_add(1, std::memory_order_relaxed);
  return (id)self;
}
- (oneway void)release {
  const long before = header((id)self).references.fetch_sub(1, std::memory_order_acq_rel);
  if (before == 1) {
    [self dealloc];
  } else if (before < 1) {
    std::fprintf(stderr, "software Metal device: a %s is released more often than it is retained\n", class_getName(isa));
    std::abort();
  }
}
- (id)autorelease {
  return softmetal_autorelease((id)self);
}
- (BOOL)respondsToSelector:(SEL)selector {
  return class_respondsToSelector(isa, selector);
}
@end

@interface SoftString : NSString {
  std::string* text_;
}
@end

// NSString itself is abstract: what is made is a SoftString, or a constant of the compiler's.
@implementation NSString
+ (id)alloc {
  if ((Class)self == objc_getClass("NSString")) return [SoftString alloc];
  return [super alloc];
}
+ (instancetype)stringWithUTF8String:(const char*)text {
  return [[[self alloc] initWithBytes:text length:std::strlen(text) encoding:NSUTF8StringEncoding] autorelease];
}
- (instancetype)initWithBytes:(const void*)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding {
  return self;
}
- (const char*)UTF8String {
  return "";
}
- (NSUInteger)length {
  return std::strlen([self UTF8String]);
}
@end

@implementation SoftString
- (instancetype)initWithBytes:(const void*)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding {
  text_ = new std::string(static_cast<const char*>(bytes), length);
  return self;
}
- (const char*)UTF8String {
  return text_ != nullptr ? text_->c_str() : "";
}
- (void)dealloc {
  delete text_;
  [super dealloc];
}
@end

@implementation NSConstantString
- (const char*)UTF8String {
  return text_;
}
- (id)retain {
  return self;
}
- (oneway void)release {
}
- (id)autorelease {
  return self;
}
@end

@implementation NSError
- (instancetype)initWithDomain:(NSString*)domain code:(NSInteger)code text:(NSString*)text {
  domain_ = [domain retain];
  text_ = [text retain];
  code_ = code;
  return self;
}
- (NSInteger)code {
  return code_;
}
- (NSString*)domain {
  return domain_;
}
- (NSString*)localizedDescription {
  return text_;
}
- (void)dealloc {
  [domain_ release];
  [text_ release];
  [super dealloc];
}
@end

NSString* softmetal_string(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }

NSError* softmetal_error(NSString* domain, NSInteger code, const std::string& text) {
  return [[[NSError alloc] initWithDomain:domain code:code text:softmetal_string(text)] autorelease];
}
