#!/usr/bin/env python3
"""Writes Metal/Metal.h and Foundation/Foundation.h for compiling Metal host code without Apple's SDK.

    generate_headers.py NODE_MODULES OUT      write both headers under the folder OUT
    generate_headers.py NODE_MODULES --check  exit 1 when the headers beside this script are not what it would write

NODE_MODULES is where scripts/fetch_apple_api.sh put these two npm packages, made from Apple's SDKs for JavaScript:

  @nativescript/macos-node-api  classes, protocols, members, parameter types, enum values (types/*.d.ts); and a program
                                whose tables hold every selector as Objective-C spells it
  @nativescript/types-ios       the iOS version that each name appeared in; macOS versions follow from it

The .d.ts files join the parts of a selector: newLibraryWithSource:options:error: reads newLibraryWithSourceOptionsError
there. The selector is the one in the program's tables that joins to the same name and has as many colons as there are
parameters. A name that is not in the data, or is there in two spellings, is an error.

Metal: all members of the protocols and classes below whose types are among them too, that is compute without graphics.
Foundation: the few declarations below, each checked against the data.
"""
import os
import re
import sys
from pathlib import Path

METAL_PROTOCOLS = """MTLAllocation MTLDevice MTLCommandQueue MTLCommandBuffer MTLCommandEncoder MTLComputeCommandEncoder
    MTLBlitCommandEncoder MTLResource MTLBuffer MTLHeap MTLLibrary MTLFunction MTLComputePipelineState MTLResidencySet
    MTLEvent MTLSharedEvent MTLFence MTLCommandBufferEncoderInfo""".split()
METAL_CLASSES = """MTLCompileOptions MTLResidencySetDescriptor MTLComputePipelineDescriptor MTLCommandBufferDescriptor
    MTLCommandQueueDescriptor MTLHeapDescriptor MTLFunctionConstantValues MTLSharedEventListener MTLSharedEventHandle
    MTLComputePassDescriptor MTLArchitecture""".split()
METAL_STRUCTS = ["MTLSize", "MTLSizeAndAlign", "MTLResourceID"]
METAL_STRINGS = ["MTLCommandBufferErrorDomain", "MTLLibraryErrorDomain", "MTLCommandBufferEncoderInfoErrorKey"]
METAL_ENUMS = ["MTLBarrierScope", "MTLCommandBufferError", "MTLDataType", "MTLGPUFamily", "MTLLibraryError", "MTLMathMode"]
METAL_LEFT_OUT = ["MTL4CounterHeapType", "MTLCounterSamplingPoint", "MTLFeatureSet", "MTLPatchType", "MTLPixelFormat",
                  "MTLReadWriteTextureTier", "MTLStages"]  # enums that compute has no use for, with the members that need them
METAL_FLAGS = ["MTLBarrierScope", "MTLCommandBufferErrorOption", "MTLResourceOptions", "MTLResourceUsage"]  # may be combined

# What the .d.ts files do not tell: there every number is "number" and every pointer is "interop.PointerConvertible".
NUMBER_TYPES = {
    **dict.fromkeys("registryID gpuAddress recommendedMaxWorkingSetSize maxTransferRate peerGroupID signaledValue value "
                    "milliseconds _impl".split(), "uint64_t"),
    **dict.fromkeys("GPUStartTime GPUEndTime kernelStartTime kernelEndTime".split(), "CFTimeInterval"),
    **dict.fromkeys("peerIndex peerCount".split(), "uint32_t"),
}
POINTER_TYPES = {
    "error": "NSError **", "contents": "void *", "resources": "const id<MTLResource> *", "heaps": "const id<MTLHeap> *",
    "allocations": "const id<MTLAllocation> *", "buffers": "const id<MTLBuffer> *", "offsets": "const NSUInteger *",
    "residencySets": "const id<MTLResidencySet> *", "bytes": "const void *", "values": "const void *", "value": "const void *",
    "strides": "const NSUInteger *", "newBufferWithBytesNoCopyLengthOptionsDeallocator.pointer": "void *",
    "pointer": "const void *", "block": "void *", "cpuTimestamp": "uint64_t *", "gpuTimestamp": "uint64_t *",
}
# The .d.ts files cut from an enum's constants what they have in common, and write the name of the enum before the rest only
# where this says nothing else.
ENUM_PREFIX = {"MTLResourceOptions": "MTLResource"}

# Allocations of every kind became one protocol in macOS 15. Before that MTLResource was only an NSObject, so naming the
# protocol is not an error for an older system; using a residency set is.
ALWAYS = {"MTLAllocation"}

FOUNDATION_TOP = """#pragma once

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
"""
# class or protocol: (declaration, members)
FOUNDATION = {
    "NSCopying": ("@protocol NSCopying", ["- (id)copyWithZone:(NSZone *)zone;"]),
    "NSFastEnumeration": ("@protocol NSFastEnumeration", [
        "- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state objects:(id __unsafe_unretained [])buffer count:(NSUInteger)len;"]),
    "NSString": ("@interface NSString : NSObject <NSCopying>", [
        "@property (readonly) NSUInteger length;",
        "@property (readonly) const char *UTF8String __attribute__((objc_returns_inner_pointer));",
        "+ (instancetype)stringWithUTF8String:(const char *)text;",
        "+ (instancetype)stringWithFormat:(NSString *)format, ... __attribute__((format(__NSString__, 1, 2)));",
        "- (instancetype)initWithUTF8String:(const char *)text;",
        "- (instancetype)initWithBytes:(const void *)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding;",
        "- (instancetype)initWithBytesNoCopy:(void *)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding freeWhenDone:(BOOL)free;",
        "- (BOOL)isEqualToString:(NSString *)other;",
    ]),
    "NSError": ("@interface NSError : NSObject <NSCopying>", [
        "@property (readonly) NSInteger code;",
        "@property (readonly, copy) NSString *domain;",
        "@property (readonly, copy) NSDictionary *userInfo;",
        "@property (readonly, copy) NSString *localizedDescription;",
        "+ (instancetype)errorWithDomain:(NSString *)domain code:(NSInteger)code userInfo:(NSDictionary *)info;",
    ]),
    "NSNumber": ("@interface NSNumber : NSObject <NSCopying>", [
        "@property (readonly) int intValue;",
        "@property (readonly) unsigned long unsignedLongValue;",
        "@property (readonly) double doubleValue;",
        "@property (readonly) BOOL boolValue;",
        "+ (NSNumber *)numberWithInt:(int)value;",
        "+ (NSNumber *)numberWithUnsignedInt:(unsigned)value;",
        "+ (NSNumber *)numberWithLong:(long)value;",
        "+ (NSNumber *)numberWithUnsignedLong:(unsigned long)value;",
        "+ (NSNumber *)numberWithDouble:(double)value;",
        "+ (NSNumber *)numberWithBool:(BOOL)value;",
    ]),
    "NSArray": ("@interface NSArray<__covariant ObjectType> : NSObject <NSCopying, NSFastEnumeration>", [
        "@property (readonly) NSUInteger count;",
        "- (ObjectType)objectAtIndex:(NSUInteger)index;",
        "- (ObjectType)objectAtIndexedSubscript:(NSUInteger)index;",
        "+ (instancetype)arrayWithObjects:(const ObjectType *)objects count:(NSUInteger)count;",
    ]),
    "NSDictionary": ("@interface NSDictionary<__covariant KeyType, __covariant ObjectType> : NSObject <NSCopying, NSFastEnumeration>", [
        "@property (readonly) NSUInteger count;",
        "- (ObjectType)objectForKey:(KeyType)key;",
        "- (ObjectType)objectForKeyedSubscript:(KeyType)key;",
        "+ (instancetype)dictionaryWithObjects:(const ObjectType *)objects forKeys:(const id<NSCopying> *)keys count:(NSUInteger)count;",
    ]),
    "NSURL": ("@interface NSURL : NSObject <NSCopying>", ["+ (NSURL *)fileURLWithPath:(NSString *)path;"]),
    "NSBundle": ("@interface NSBundle : NSObject", []),
    "NSData": ("@interface NSData : NSObject <NSCopying>", ["@property (readonly) NSUInteger length;"]),
    "NSProcessInfo": ("@interface NSProcessInfo : NSObject", [
        "@property (class, readonly) NSProcessInfo *processInfo;",
        "@property (readonly) NSOperatingSystemVersion operatingSystemVersion;",
        "@property (readonly) unsigned long long physicalMemory;",
    ]),
}
FOUNDATION_CLASSES = [name for name, (text, _) in FOUNDATION.items() if text.startswith("@interface")]


class Outside(Exception):
    """The declaration needs a type that the header does not have."""


def fail(text):
    sys.exit(f"generate_headers: {text}")


def joined(selector):
    """newLibraryWithSource:options:error: -> newLibraryWithSourceOptionsError"""
    first, *rest = selector.split(":")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def split_parameters(text):
    """Splits at the commas outside all brackets."""
    parts, depth, part = [], 0, ""
    for c in text.replace("=>", "\1"):
        depth += (c in "(<[{") - (c in ")>]}")
        if c == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    return [p.replace("\1", "=>").strip() for p in parts + [part] if p.strip()]


class Data:
    """What the packages say."""

    def __init__(self, modules):
        mac = modules / "@nativescript/macos-node-api"
        self.text = {name: (mac / f"types/{name}.d.ts").read_text(encoding="utf8") for name in ("Metal", "Foundation")}
        self.enums = {
            name: re.findall(r"(\w+): (-?\d+)", body)
            for name, body in re.findall(r"declare const (MTL\w+): \{\n((?:  \w+: -?\d+,\n)+)\};", self.text["Metal"])}
        self.selectors = {}  # (joined name, number of colons) -> spellings
        tables = mac / "build/RelWithDebInfo/NativeScript.apple.node/macos-arm64/NativeScript.framework/Versions/0.1.0/NativeScript"
        for spelling in set(re.findall(rb"(?<=\0)[A-Za-z_]\w*:(?:\w+:)*(?=\0)", tables.read_bytes())):
            selector = spelling.decode()
            self.selectors.setdefault((joined(selector), selector.count(":")), []).append(selector)
        self.read_versions(modules / "@nativescript/types-ios/lib/ios/objc-x86_64/objc!Metal.d.ts")

    def read_versions(self, path):
        """since[name] or since[owner, name]: (introduced, deprecated) on iOS, as text or None."""
        self.since = {}
        owner, now = None, [None, None]
        for line in path.read_text(encoding="utf8").splitlines():
            if m := re.search(r"\* @(since|deprecated) ([\d.]+)", line):
                now[m[1] == "deprecated"] = m[2]
                continue
            if m := re.match(r"(?:interface|declare class|declare const enum|declare var|declare function) (\w+)", line):
                owner = m[1]
                self.since.setdefault(owner, tuple(now))
                now = [None, None]
            elif m := re.match(r"\t(?:static |readonly )?(\w+)[?(:, ]", line):
                self.since[owner, m[1]] = tuple(now)
                now = [None, None]

    def body(self, name, framework="Metal"):
        """(bases, lines) of a protocol (declared as an interface) or a class."""
        for kind in ("interface", "class"):
            if m := re.search(rf"^declare {kind} {name}(?:<[^{{]*?>)?(?: extends ([\w, ]+?))?(?: implements [\w, ]+)? \{{\n(.*?)^\}}",
                              self.text[framework], re.S | re.M):
                if m[2].strip() or kind == "class":
                    return (m[1] or "").split(", "), [s.strip().rstrip(";") for s in m[2].splitlines() if s.strip()]
        fail(f"{name} is not in the types of {framework}")

    def selector(self, name, count):
        found = self.selectors.get((name, count), [])
        if len(found) != 1:
            fail(f"the selector that joins to {name} with {count} arguments has these spellings: {sorted(found)}; one was expected")
        return found[0]


class MetalHeader:
    def __init__(self, data):
        self.data = data
        self.enums = set(METAL_ENUMS) | set(METAL_FLAGS)
        self.versions = set()

    # --- availability ---------------------------------------------------------------------------------------------

    def macro(self, kind, ios):
        """iOS 17.4 came with macOS 14.4; from 26 on the numbers are equal. Before macOS 13 it does not matter here."""
        major, minor = (ios.split(".") + ["0"])[:2]
        major = int(major) if int(major) >= 26 else int(major) - 3
        if major < 13:
            return ""
        self.versions.add((kind, major, int(minor)))
        return f" MTL_{kind}_{major}_{minor}"

    def availability(self, *key):
        introduced, deprecated = self.data.since.get(key if len(key) > 1 else key[0], (None, None))
        text = self.macro("SINCE", introduced) if introduced else ""
        if deprecated and not text:
            text = self.macro("UNTIL", deprecated)
        return text

    # --- types ----------------------------------------------------------------------------------------------------

    def type(self, text, name, method=""):
        text = re.sub(r"\s*\|\s*null", "", text).strip()
        if m := re.match(r"\((.*)\) => (.*)$", text):
            # Two blocks have something else than objects: a deallocator (pointer, length), an event's listener (event, value).
            number = "value" if method.startswith("notifyListener") else "length"
            args = [self.type(p.split(":", 1)[1], number if p.endswith(" number") else "block") for p in split_parameters(m[1])]
            return f"{self.type(m[2], '')} (^)({', '.join(args) or 'void'})"
        if m := re.match(r"interop\.Enum<typeof (\w+)>", text):
            if m[1] in METAL_LEFT_OUT:
                raise Outside(m[1])
            self.enums.add(m[1])
            return m[1]
        if text in METAL_PROTOCOLS:
            return f"id<{text}>"
        if text in METAL_CLASSES or text in FOUNDATION_CLASSES:
            return f"{text} *"
        if text in METAL_STRUCTS:
            return text
        if m := re.match(r"(NSArray|NSDictionary|Array|Record)<", text):
            return "NSDictionary *" if m[1] in ("NSDictionary", "Record") else "NSArray *"
        if text.startswith("interop.Pointer"):
            pointer = POINTER_TYPES.get(f"{method}.{name}") or POINTER_TYPES.get(name)
            if not pointer:
                raise Outside(f"pointer {method}.{name}")
            return pointer
        simple = {"number": NUMBER_TYPES.get(name, "NSUInteger"), "boolean": "BOOL", "void": "void", "string": "NSString *",
                  "_NSRange": "NSRange", "interop.Object": "id", "this": "instancetype"}
        if text not in simple:
            raise Outside(text)
        return simple[text]

    # --- members --------------------------------------------------------------------------------------------------

    def method(self, owner, static, name, parameters, result):
        sign = "+" if static else "-"
        end = self.availability(owner, name) + ";"
        result = self.type(result, name)
        if not parameters:
            return f"{sign} ({result}){name}{end}"
        parts = self.data.selector(name, len(parameters)).split(":")[:-1]
        arguments = []
        for part, parameter in zip(parts, parameters):
            argument, kind = parameter.split(":", 1)
            argument = argument.rstrip("$?")
            arguments.append(f"{part}:({self.type(kind, argument, name)}){argument}")
        return f"{sign} ({result}){' '.join(arguments)}{end}"

    def property(self, owner, lines, name, kind, readonly):
        kind = self.type(kind, name)
        attributes = ["readonly"] if readonly else ["readwrite"]
        if not readonly and (kind == "NSString *" or kind in ("NSArray *", "NSDictionary *")):
            attributes.append("copy")
        elif not readonly and (kind.endswith("*") or kind.startswith("id")):
            attributes.append("retain")
        for prefix in ("is", "are"):
            getter = prefix + name[0].upper() + name[1:]
            if kind == "BOOL" and f"{getter}(): boolean" in lines:
                attributes.append(f"getter={getter}")
        space = "" if kind.endswith("*") else " "
        return f"@property ({', '.join(attributes)}) {kind}{space}{name}{self.availability(owner, name)};"

    def members(self, owner, lines):
        properties = {m[1] for line in lines if (m := re.match(r"(?:readonly |get )?(\w+)(?:\(\))?: ", line))
                      and (line.startswith("get ") or "(" not in line.split(":")[0])}
        getters = {p + name[0].upper() + name[1:] for name in properties for p in ("is", "are")}
        for line in lines:
            try:
                if m := re.match(r"(static )?(\w+)\$?(\?)?\((.*)\): (.*)$", line):
                    static, name, _, parameters, result = m.groups()
                    setter_of = name[3:4].lower() + name[4:] if name.startswith("set") else ""
                    if name == "copyWithZone" or setter_of in properties or name in getters:
                        continue
                    parameters = [p for p in split_parameters(parameters) if not p.startswith("this:")]
                    yield self.method(owner, static, name, parameters, result)
                elif m := re.match(r"(readonly |get )?(\w+): (.*)$", line):
                    access, name, kind = m.groups()
                    settable = not access or access == "get " and any(x.startswith(f"set {name}(") for x in lines)
                    yield self.property(owner, lines, name, kind, not settable)
                elif m := re.match(r"get (\w+)\(\): (.*)$", line):
                    settable = any(x.startswith(f"set {m[1]}(") for x in lines)
                    yield self.property(owner, lines, m[1], m[2], not settable)
            except Outside:
                pass  # graphics, or something else that the header leaves out

    def protocol(self, name):
        bases, lines = self.data.body(name)
        bases = ["NSObject" if b == "NSObjectProtocol" else b for b in bases if b == "NSObjectProtocol" or b in METAL_PROTOCOLS]
        top = [] if name in ALWAYS else [m.strip() for m in [self.availability(name)] if m]
        return "\n".join([*top, f"@protocol {name} <{', '.join(bases)}>", *self.members(name, lines), "@end"])

    def class_(self, name):
        bases, lines = self.data.body(name)
        copying = " <NSCopying>" if any(line.startswith("copyWithZone(") for line in lines) else ""
        top = [m.strip() for m in [self.availability(name)] if m]
        return "\n".join([*top, f"@interface {name} : {bases[0]}{copying} MTL_CLASS_STORAGE", *self.members(name, lines), "@end"])

    def struct(self, name):
        _, lines = self.data.body(name)
        fields = [m for line in lines if (m := re.match(r"(\w+): number$", line))]
        return "typedef struct { " + " ".join(f"{NUMBER_TYPES.get(m[1], 'NSUInteger')} {m[1]};" for m in fields) + f" }} {name};"

    def enum(self, name):
        values = self.data.enums.get(name)
        if not values:
            return f"typedef NSUInteger {name};"
        prefix = ENUM_PREFIX.get(name, name[:-1] if name.endswith("Options") else name)
        signed = any(value.startswith("-") for _, value in values) or name in ("MTLGPUFamily", "MTLMathMode")
        constants = []
        for key, value in values:
            # A constant that repeats the end of its enum's name is spelled once: Tier1 of MTLArgumentBuffersTier.
            overlap = next((n for n in range(min(len(prefix), len(key)), 3, -1) if prefix.endswith(key[:n])), 0)
            since = self.availability(name, key) or self.availability(name)
            constants.append(f"  {prefix}{key[overlap:]}{since} = {value},")
        macro = "NS_OPTIONS" if name in METAL_FLAGS else "NS_ENUM"
        return "\n".join([f"typedef {macro}({'NSInteger' if signed else 'NSUInteger'}, {name}) {{", *constants, "};"])

    def version_macros(self):
        yield "// MTL_SINCE_x: not before macOS x, and not with an older SDK at all. MTL_UNTIL_x: deprecated from macOS x on."
        yield "#ifdef __APPLE__\n#include <Availability.h>"
        for kind, major, minor in sorted(self.versions):
            number = major * 10000 + minor * 100
            what = f"introduced = {major}.{minor}" if kind == "SINCE" else f"deprecated = {major}.{minor}"
            older = f'__attribute__((unavailable("first in the SDK of macOS {major}.{minor}")))' if kind == "SINCE" else ""
            yield (f"#if __MAC_OS_X_VERSION_MAX_ALLOWED >= {number}\n"
                   f"#define MTL_{kind}_{major}_{minor} __attribute__((availability(macos, {what})))\n"
                   f"#else\n#define MTL_{kind}_{major}_{minor} {older}".rstrip() + "\n#endif")
        yield "#else"
        yield from (f"#define MTL_{kind}_{major}_{minor}" for kind, major, minor in sorted(self.versions))
        yield "#endif"

    def text(self):
        data = self.data
        for name in METAL_STRINGS:
            if f"declare const {name}: string;" not in data.text["Metal"]:
                fail(f"the string {name} is not in the types of Metal")
        for name in ("MTLCreateSystemDefaultDevice(): MTLDevice", "MTLCopyAllDevices(): NSArray"):
            if f"declare function {name};" not in data.text["Metal"]:
                fail(f"the function {name} is not in the types of Metal")
        protocols = [self.protocol(name) for name in METAL_PROTOCOLS]
        classes = [self.class_(name) for name in METAL_CLASSES]
        enums = [self.enum(name) for name in sorted(self.enums)]
        return "\n\n".join([
            "// Metal for compute: declarations of Apple's API. Written by apple/generate_headers.py; do not edit.\n#pragma once",
            "#import <Foundation/Foundation.h>",
            "\n".join(self.version_macros()),
            "// Instance variables for whoever implements the classes with an Objective-C runtime that wants them declared.\n"
            "#ifndef MTL_CLASS_STORAGE\n#define MTL_CLASS_STORAGE\n#endif",
            "\n".join(map(self.struct, METAL_STRUCTS)),
            "NS_INLINE MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {\n"
            "  MTLSize size = {width, height, depth};\n  return size;\n}",
            *enums,
            "\n".join([*(f"@protocol {name};" for name in METAL_PROTOCOLS), *(f"@class {name};" for name in METAL_CLASSES)]),
            *protocols, *classes,
            "\n".join(f"FOUNDATION_EXPORT NSString *const {name};" for name in METAL_STRINGS),
            "FOUNDATION_EXPORT id<MTLDevice> MTLCreateSystemDefaultDevice(void) NS_RETURNS_RETAINED;\n"
            "FOUNDATION_EXPORT NSArray<id<MTLDevice>> *MTLCopyAllDevices(void) NS_RETURNS_RETAINED;"]) + "\n"


def foundation_header(data):
    """The declarations above, after a look whether the data knows each of them."""
    for owner, (_, members) in FOUNDATION.items():
        bases, lines = data.body(owner, "Foundation")
        for member in members:
            if member.startswith("@property"):
                name, count = re.search(r"(\w+)(?: __attribute__.*)?;$", member)[1], 0
            else:
                parts = re.findall(r"(\w+):\(", member) or [re.search(r"\)(\w+);", member)[1]]
                count = member.count(":(")
                name = joined("".join(part + ":" for part in parts)) if count else parts[0]
                if count and not data.selectors.get((name, count)):
                    fail(f"Foundation has no selector {parts}")
            known = [line for line in lines if re.match(rf"(?:static |readonly |get )*{name}[$(:<]", line)]
            if not known:
                fail(f"Foundation's {owner} has no {name}")
    blocks = ["\n".join([text, *members, "@end"]) for text, members in FOUNDATION.values()]
    return "\n\n".join(["// The part of Foundation that Metal host code uses. Written by apple/generate_headers.py; do not edit.\n"
                        + FOUNDATION_TOP.rstrip(), *blocks]) + "\n"


def main(arguments):
    if len(arguments) != 2:
        sys.exit(__doc__)
    data = Data(Path(arguments[0]))
    headers = {"Metal/Metal.h": MetalHeader(data).text(), "Foundation/Foundation.h": foundation_header(data)}
    if arguments[1] == "--check":
        here = Path(os.path.abspath(__file__)).parent / "include"
        stale = [name for name, text in headers.items() if not (here / name).is_file() or (here / name).read_text("utf8") != text]
        if stale:
            fail(f"{', '.join(stale)} in {here} differ from what this script writes; run apple/generate_headers.py {arguments[0]} {here}, commit")
        return
    for name, text in headers.items():
        path = Path(arguments[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf8")


main(sys.argv[1:])
