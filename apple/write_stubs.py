#!/usr/bin/env python3
"""Writes the text stubs (.tbd) that a macOS program is linked against in place of Apple's SDK.

    write_stubs.py HISTEDIT_H OUT    OUT/Frameworks/{Metal,Foundation,CoreFoundation}.framework and OUT/lib/{libobjc,libedit}.tbd

A stub exports what apple/include declares and nothing else, so that a program that needs more does not link.
"""
import re
import sys
from pathlib import Path

INCLUDE = Path(__file__).resolve().parent / "include"
# These classes, and the class of constant strings, live in Core Foundation, which Foundation exports as its own too.
CORE_FOUNDATION = {"NSArray", "NSData", "NSDictionary", "NSURL"}
# What clang calls for ARC, blocks, @autoreleasepool, loops over collections and exceptions.
OBJC_FUNCTIONS = """_objc_alloc _objc_alloc_init _objc_autorelease _objc_autoreleasePoolPop _objc_autoreleasePoolPush
    _objc_autoreleaseReturnValue _objc_begin_catch _objc_claimAutoreleasedReturnValue _objc_copyWeak _objc_destroyWeak
    _objc_end_catch _objc_enumerationMutation _objc_exception_rethrow _objc_exception_throw _objc_getProperty _objc_initWeak
    _objc_loadWeakRetained _objc_moveWeak _objc_msgSend _objc_msgSendSuper2 _objc_opt_class _objc_opt_isKindOfClass _objc_opt_new
    _objc_opt_respondsToSelector _objc_opt_self _objc_release _objc_retain _objc_retainAutorelease
    _objc_retainAutoreleaseReturnValue _objc_retainAutoreleasedReturnValue _objc_retainBlock _objc_setProperty_atomic
    _objc_setProperty_nonatomic_copy _objc_storeStrong _objc_storeWeak _objc_terminate
    _objc_unsafeClaimAutoreleasedReturnValue __objc_empty_cache ___objc_personality_v0""".split()


def class_symbols(names):
    return [f"_OBJC_{kind}_$_{name}" for name in names for kind in ("CLASS", "METACLASS")]


def exports(header):
    """(classes, functions and constants) that a header declares."""
    text = (INCLUDE / header).read_text("utf8")
    classes = re.findall(r"^@interface (\w+)", text, re.M)
    others = re.findall(r"^FOUNDATION_EXPORT [^;(]*?(\w+)(?:;|\()", text, re.M)
    return classes, ["_" + name for name in others]


def write(path, install_name, symbols, reexports=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["--- !tapi-tbd", "tbd-version: 4", "targets: [ arm64-macos ]", f"install-name: '{install_name}'",
             "current-version: 1", "compatibility-version: 1"]
    if reexports:
        lines += ["reexported-libraries:", "  - targets: [ arm64-macos ]", f"    libraries: [ '{reexports}' ]"]
    lines += ["exports:", "  - targets: [ arm64-macos ]", "    symbols: [ " + ", ".join(f"'{s}'" for s in sorted(symbols)) + " ]", "..."]
    path.write_text("\n".join(lines) + "\n", "utf8")


def framework(out, name, version, symbols):
    write(out / f"Frameworks/{name}.framework/{name}.tbd", f"/System/Library/Frameworks/{name}.framework/Versions/{version}/{name}", symbols)


def main(arguments):
    if len(arguments) != 2:
        sys.exit(__doc__)
    out = Path(arguments[1])
    classes, others = exports("Metal/Metal.h")
    framework(out, "Metal", "A", class_symbols(classes) + others)
    classes, others = exports("Foundation/Foundation.h")
    framework(out, "Foundation", "C", class_symbols(c for c in classes if c not in CORE_FOUNDATION) + others)
    framework(out, "CoreFoundation", "A", class_symbols(CORE_FOUNDATION) + ["___CFConstantStringClassReference"])
    write(out / "lib/libobjc.tbd", "/usr/lib/libobjc.A.dylib", OBJC_FUNCTIONS + class_symbols(["NSObject"]))
    editline = set(re.findall(r"\b((?:el|history|tok)_\w+|history)\(", Path(arguments[0]).read_text("utf8")))
    write(out / "lib/libedit.tbd", "/usr/lib/libedit.3.dylib", ["_" + name for name in editline])


main(sys.argv[1:])
