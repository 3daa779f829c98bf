// The functions that clang calls for automatic reference counting, which GCC's runtime lacks. Compiled without ARC.
//
// ARC code is compiled for ObjFW's runtime, the only one with GCC's way of sending messages for which clang offers ARC. Its
// modules carry another version number; the layout is GCC's for code that defines no classes, and ARC code here must not. The
// link wraps __objc_exec_class (-Wl,--wrap) to change the number back.
#include <cstdio>
#include <vector>

#include "foundation/runtime.h"

namespace {

struct Pool {
  std::vector<id> objects;
  Pool* below;
};
thread_local Pool* top_pool = nullptr;

}  // namespace

id softmetal_autorelease(id object) {
  if (object == nil) return nil;
  if (top_pool == nullptr) {
    std::fprintf(stderr, "software Metal device: an object is autoreleased outside any @autoreleasepool and leaks\n");
  } else {
    top_pool->objects.push_back(object);
  }
  return object;
}

extern "C" {

void* objc_autoreleasePoolPush(void) { return top_pool = new Pool{{}, top_pool}; }

void objc_autoreleasePoolPop(void* pool) {
  for (bool last = false; !last && top_pool != nullptr;) {
    Pool* p = top_pool;
    last = p == pool;
    for (std::size_t i = 0; i < p->objects.size(); ++i) [p->objects[i] release];  // may add more
    top_pool = p->below;
    delete p;
  }
}

id objc_retain(id object) { return [object retain]; }
void objc_release(id object) { [object release]; }
id objc_autorelease(id object) { return [object autorelease]; }
id objc_retainAutorelease(id object) { return [[object retain] autorelease]; }
id objc_autoreleaseReturnValue(id object) { return [object autorelease]; }
id objc_retainAutoreleaseReturnValue(id object) { return [[object retain] autorelease]; }
id objc_retainAutoreleasedReturnValue(id object) { return [object retain]; }
id objc_unsafeClaimAutoreleasedReturnValue(id object) { return object; }
void objc_storeStrong(id* at, id object) {
  id old = *at;
  *at = [object retain];
  [old release];
}

struct ObjcModule {
  unsigned long version, size;
  const char* name;
  void* symbols;
};
void __real___objc_exec_class(ObjcModule*);
void __wrap___objc_exec_class(ObjcModule* module) {
  constexpr unsigned long kGcc = 8;
  module->version = kGcc;
  module->size = sizeof(ObjcModule);
  __real___objc_exec_class(module);
}

// ObjFW's runtime looks methods that return structs up by another name.
IMP objc_msg_lookup(id, SEL);
IMP objc_msg_lookup_stret(id object, SEL selector) { return objc_msg_lookup(object, selector); }

}  // extern "C"
