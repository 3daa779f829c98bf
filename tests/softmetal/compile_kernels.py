#!/usr/bin/env python3
"""Compiles one kernel text for the software Metal device.

    compile_kernels.py NAME TEXT.metal OBJECT CACHE CLANG option...     (--inline may be among the options)

Translates, compiles with a call before every access to memory and, with --inline, compiles a second time to inline those
calls, which the compiler puts in too late for that. The second run is slow and no compiler cache knows it; its results are
kept in the folder CACHE, by a hash of all that went in, for the other presets of this source tree."""
import hashlib
import os
import subprocess
import sys

import translate

CHECKS = ["-fsanitize=kernel-address", "-mllvm", "-asan-instrumentation-with-call-threshold=0", "-mllvm", "-asan-stack=0",
          "-mllvm", "-asan-globals=0", "-mllvm", "-asan-kernel-mem-intrinsic-prefix=1",
          "-mllvm", "-asan-memory-access-callback-prefix=__softmetal_"]
LANGUAGE = ["-O2", "-std=c++20", "-fvisibility=hidden", "-fno-math-errno", "-fno-exceptions", "-fno-rtti", "-D__METAL_VERSION__=310",
            "-Wno-unknown-attributes", "-Wno-ignored-attributes", "-Wno-unknown-pragmas"]
HERE = os.path.dirname(os.path.abspath(__file__))


def write(path, data):
    """Whole or not at all: several builds may write the same file."""
    new = f"{path}.{os.getpid()}"
    with open(new, "wb") as f:
        f.write(data)
    os.replace(new, path)


def key(clang, options, cpp):
    h = hashlib.sha256()
    h.update(subprocess.run([clang, "--version"], capture_output=True, check=True).stdout)
    h.update(repr(CHECKS + LANGUAGE + options).encode())
    h.update(cpp.encode())
    for folder in ("msl", "executor"):
        for name in sorted(os.listdir(os.path.join(HERE, folder))):
            if folder == "msl" or name.endswith(".h"):
                with open(os.path.join(HERE, folder, name), "rb") as f:
                    h.update(f.read())
    return h.hexdigest()


def main():
    name, text, out, cache, clang, *options = sys.argv[1:]
    inline = "--inline" in options
    options = [o for o in options if o != "--inline"]
    cpp = translate.unit(name, text)
    source = out + ".cpp"
    write(source, cpp.encode())
    first = [clang, *LANGUAGE, *CHECKS, *options, f"-I{HERE}/msl", "-c", source]
    if not inline:
        sys.exit(subprocess.run([*first, "-o", out]).returncode)
    kept = os.path.join(cache, key(clang, options, cpp) + ".o")
    if not os.path.exists(kept):
        os.makedirs(cache, exist_ok=True)
        bitcode = out + ".bc"
        for command in ([*first, "-emit-llvm", "-o", bitcode], [clang, "-O1", *options, "-c", bitcode, "-o", out]):
            code = subprocess.run(command).returncode
            if code != 0:
                sys.exit(code)
        with open(out, "rb") as f:
            write(kept, f.read())
    else:
        with open(kept, "rb") as f:
            write(out, f.read())


if __name__ == "__main__":
    main()
