// What the implementation of the software device uses besides Foundation.h: GCC's Objective-C runtime, pools, making errors.
#pragma once

#import <Foundation/Foundation.h>

#include <string>

extern "C" {
size_t class_getInstanceSize(Class);
const char* class_getName(Class);
BOOL class_respondsToSelector(Class, SEL);
const char* sel_getName(SEL);
Class objc_getClass(const char*);
extern IMP (*__objc_msg_forward2)(id, SEL);

void* objc_autoreleasePoolPush(void);
void objc_autoreleasePoolPop(void*);
}

id softmetal_autorelease(id object);  // adds it to the pool on top
long softmetal_live_objects();

NSString* softmetal_string(const std::string& text);  // autoreleased
NSError* softmetal_error(NSString* domain, NSInteger code, const std::string& text);
