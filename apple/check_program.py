#!/usr/bin/env python3
"""Checks a linked macOS program as far as that goes without a Mac.

    check_program.py PROGRAM MINIMUM    MINIMUM is the oldest macOS it shall start on, for example 13.0

Header and load commands, segments on 16 KiB pages, the oldest system, which libraries it loads and which of them every imported
symbol comes from, that classes of newer systems may be missing, and the ad-hoc signature, without which Apple silicon starts
nothing, with the hash of every page.
"""
import hashlib
import re
import struct
import sys
from pathlib import Path

LIBRARIES = {
    "/System/Library/Frameworks/Metal.framework/Versions/A/Metal",
    "/System/Library/Frameworks/Foundation.framework/Versions/C/Foundation",
    "/System/Library/Frameworks/CoreFoundation.framework/Versions/A/CoreFoundation",
    "/usr/lib/libobjc.A.dylib",
    "/usr/lib/libedit.3.dylib",
    "/usr/lib/libSystem.B.dylib",
}
METAL = "/System/Library/Frameworks/Metal.framework/Versions/A/Metal"
PAGE = 0x4000

MH_MAGIC_64, CPU_ARM64, MH_EXECUTE = 0xFEEDFACF, 0x0100000C, 2
MH_DYLDLINK, MH_TWOLEVEL, MH_PIE = 0x4, 0x80, 0x200000
LC_LOAD_DYLIB, LC_LOAD_WEAK_DYLIB, LC_OTHER_DYLIBS = 0xC, 0x80000018, (0x8000001F, 0x80000023, 0x20)
LC_SEGMENT_64, LC_CODE_SIGNATURE, LC_BUILD_VERSION, LC_DYLD_INFO_ONLY = 0x19, 0x1D, 0x32, 0x80000022
LC_MAIN, LC_RPATH = 0x80000028, 0x8000001C
PLATFORM_MACOS = 1
BIND_SET_LIBRARY, BIND_SET_LIBRARY_LEB, BIND_SET_SYMBOL, BIND_SET_ADDEND, BIND_SET_SEGMENT, BIND_ADD, BIND_DO, BIND_DO_ADD, BIND_DO_TIMES = (
    0x10, 0x20, 0x40, 0x60, 0x70, 0x80, 0x90, 0xA0, 0xC0)
BIND_WEAK_IMPORT = 0x1
CS_SUPERBLOB, CS_CODEDIRECTORY, CS_ADHOC, CS_SHA256 = 0xFADE0CC0, 0xFADE0C02, 0x2, 2


class Refused(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise Refused(text)


def c_string(data, at):
    return data[at:data.index(b"\0", at)].decode()


class Program:
    def __init__(self, data):
        self.data = data
        magic, cpu, _, kind, count, _, self.flags, _ = struct.unpack_from("<8I", data)
        expect(magic == MH_MAGIC_64 and cpu == CPU_ARM64, f"not an arm64 Mach-O file: magic {magic:#x}, processor {cpu:#x}")
        expect(kind == MH_EXECUTE, f"file type {kind}, expected {MH_EXECUTE} (a program)")
        self.commands, at = [], 32
        for _ in range(count):
            command, size = struct.unpack_from("<2I", data, at)
            expect(size >= 8 and at + size <= len(data), f"load command {command:#x} is cut off")
            self.commands.append((command, at))
            at += size

    def find(self, command):
        return [at for c, at in self.commands if c == command]

    def one(self, command, what):
        found = self.find(command)
        expect(len(found) == 1, f"{len(found)} load commands for {what}, expected one")
        return found[0]


def check_load_commands(program, minimum):
    wanted = MH_DYLDLINK | MH_TWOLEVEL | MH_PIE
    expect(program.flags & wanted == wanted, f"header flags {program.flags:#x} lack some of {wanted:#x}")
    program.one(LC_MAIN, "the entry point")
    platform, oldest = struct.unpack_from("<2I", program.data, program.one(LC_BUILD_VERSION, "the system") + 8)
    expect(platform == PLATFORM_MACOS, f"platform {platform}, expected macOS")
    found = f"{oldest >> 16}.{oldest >> 8 & 255}"
    expect(found == minimum, f"the oldest system is macOS {found}, expected {minimum}")
    expect(not program.find(LC_RPATH), "it has an rpath: it would load libraries from somewhere else than the system")
    sections = set()
    for at in program.find(LC_SEGMENT_64):
        name = program.data[at + 8:at + 24].rstrip(b"\0").decode()
        address, _, offset, size = struct.unpack_from("<4Q", program.data, at + 24)
        maximum, initial = struct.unpack_from("<2I", program.data, at + 56)
        expect(address % PAGE == 0 and offset % PAGE == 0, f"segment {name} is not on a 16 KiB page")
        expect(offset + size <= len(program.data), f"segment {name} is cut off")
        expect(initial & 6 != 6 and maximum & 6 != 6, f"segment {name} is writable and executable")
        count, = struct.unpack_from("<I", program.data, at + 64)
        sections |= {program.data[s:s + 16].rstrip(b"\0").decode() for s in range(at + 72, at + 72 + 80 * count, 80)}
    expect("__unwind_info" in sections, "no section __unwind_info: a C++ exception would end the program")
    return found


def bindings(stream):
    """(symbol, number of its library, may it be missing) of each entry of dyld's list, a program in a small language."""
    at, library, symbol, weak = 0, 0, "", False
    seen = set()

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = stream[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(stream):
        operation, operand = stream[at] & 0xF0, stream[at] & 0x0F
        at += 1
        if operation == BIND_SET_LIBRARY:
            library = operand
        elif operation == BIND_SET_LIBRARY_LEB:
            library = number()
        elif operation == BIND_SET_SYMBOL:
            symbol, weak = c_string(stream, at), bool(operand & BIND_WEAK_IMPORT)
            at += len(symbol) + 1
        elif operation in (BIND_SET_ADDEND, BIND_SET_SEGMENT, BIND_ADD):
            number()
        elif operation >= BIND_DO:
            for _ in range({BIND_DO_ADD: 1, BIND_DO_TIMES: 2}.get(operation, 0)):
                number()
            seen.add((symbol, library, weak))
    return seen


def newer_classes(minimum):
    """Classes that appeared after the oldest system."""
    oldest = tuple(map(int, minimum.split(".")))
    header = (Path(__file__).resolve().parent / "include/Metal/Metal.h").read_text("utf8")
    found = re.findall(r"^MTL_SINCE_(\d+)_(\d+)\n@interface (\w+)", header, re.M)
    return {f"_OBJC_CLASS_$_{name}" for major, minor, name in found if (int(major), int(minor)) > oldest}


def check_imports(program, minimum):
    libraries = []
    for command, at in program.commands:
        expect(command not in LC_OTHER_DYLIBS, f"it loads a library in an unusual way (load command {command:#x})")
        if command in (LC_LOAD_DYLIB, LC_LOAD_WEAK_DYLIB):
            libraries.append(c_string(program.data, at + struct.unpack_from("<I", program.data, at + 8)[0]))
            expect(command == LC_LOAD_DYLIB or libraries[-1] == METAL, f"it starts without {libraries[-1]}, which it needs")
    unknown = set(libraries) - LIBRARIES
    expect(not unknown, f"it loads {', '.join(sorted(unknown))}, which is not part of macOS or not needed")
    expect(METAL in libraries, "it does not load Metal")
    newer = newer_classes(minimum)
    imports = {library: [] for library in libraries}
    lists = struct.unpack_from("<10I", program.data, program.one(LC_DYLD_INFO_ONLY, "what to bind") + 8)
    expect(lists[5] == 0, "it lets other libraries replace its C++ symbols")
    entries = set()
    for offset, size in (lists[2:4], lists[6:8]):
        entries |= bindings(program.data[offset:offset + size])
    for symbol, number, weak in sorted(entries):
        expect(1 <= number <= len(libraries), f"{symbol} comes from library number {number} of {len(libraries)}")
        library = libraries[number - 1]
        imports[library].append(symbol)
        expect(("MTL" in symbol) == (library == METAL), f"{symbol} is imported from {library}")
        expect(not symbol.startswith("__Z"), f"{symbol} is imported from {library}: the C++ library should be linked in")
        expect(weak or symbol not in newer, f"{symbol} must be there at the start, but macOS {minimum} lacks it")
    expect("_MTLCreateSystemDefaultDevice" in imports[METAL], "it does not call MTLCreateSystemDefaultDevice")
    return imports


def check_signature(program):
    start, size = struct.unpack_from("<2I", program.data, program.one(LC_CODE_SIGNATURE, "the signature") + 8)
    blob = program.data[start:start + size]
    expect(len(blob) == size and size > 12, "the signature is cut off")
    magic, _, count = struct.unpack_from(">3I", blob)
    expect(magic == CS_SUPERBLOB, f"the signature's magic is {magic:#x}")
    directories = [at for _, at in struct.iter_unpack(">2I", blob[12:12 + 8 * count])
                   if struct.unpack_from(">I", blob, at)[0] == CS_CODEDIRECTORY]
    expect(len(directories) == 1, f"{len(directories)} code directories, expected one")
    at = directories[0]
    _, _, _, flags, hashes, _, _, slots, limit = struct.unpack_from(">9I", blob, at)
    hash_size, hash_type, _, page_shift = struct.unpack_from("4B", blob, at + 36)
    expect(flags & CS_ADHOC, f"flags {flags:#x}: not an ad-hoc signature")
    expect(hash_type == CS_SHA256 and hash_size == 32, f"hash type {hash_type}, expected SHA-256")
    expect(limit == start, f"the signature covers {limit} bytes, expected all {start} before it")
    page = 1 << page_shift
    expect(slots == -(-limit // page), f"{slots} page hashes for {limit} bytes")
    for i in range(slots):
        digest = hashlib.sha256(program.data[i * page:min((i + 1) * page, limit)]).digest()
        expect(digest == blob[at + hashes + 32 * i:at + hashes + 32 * (i + 1)], f"page {i} is not the one that was signed")
    return slots


def main(arguments):
    if len(arguments) != 2:
        sys.exit(__doc__)
    path, minimum = arguments
    with open(path, "rb") as file:
        program = Program(file.read())
    oldest = check_load_commands(program, minimum)
    imports = check_imports(program, minimum)
    pages = check_signature(program)
    print(f"{path}: arm64, macOS {oldest} and later, {len(program.data) / 2**20:.1f} MiB, ad-hoc signature over {pages} pages")
    for library, symbols in imports.items():
        print(f"  {len(symbols):4} symbols from {library}")


try:
    main(sys.argv[1:])
except (Refused, struct.error, ValueError) as error:
    sys.exit(f"check_program: {sys.argv[1]}: {error}")
