#!/usr/bin/env python3
"""What a kernel text must be, beyond what the compiler of the software device says.

    lint.py CLANG MSL_FOLDER TEXT.metal...      lint these; the errors go to stderr
    lint.py CLANG MSL_FOLDER --expect TEXT...   each must have the error that its first line names: // expect: WORDS

The rules of this project (docs/numerics.md, src/gpu/device.h):
  - `#pragma METAL fp contract(off)`: safe math alone has been seen to contract
  - nothing whose rounding Metal leaves open: functions of the fast library, exp, rsqrt, pow and their like, a sqrt that is not
    precise::sqrt, sums of floats over a simdgroup; no double, no names of the C library
  - a kernel's only buffer is `constant ...& a [[buffer(0)]]`, and one that knows its place in the grid adds a.first_group
  - device, constant and threadgroup pointers do not mix: clang checks that with real address spaces"""
import re
import subprocess
import sys

import translate

INEXACT = "exp exp2 exp10 log log2 log10 pow powr sin cos tan sinh cosh tanh asin acos atan atan2 rsqrt sincos normalize length distance mix smoothstep"
FLOAT_NAMES = "expf logf powf sqrtf fabsf fmaf fmaxf fminf floorf ceilf roundf memcpy memset printf"
RULES = [
    (re.compile(r"\bfast\s*::"), "fast:: rounds as it likes"),
    (re.compile(rf"(?<![\w.:])(?:metal\s*::\s*)?({'|'.join(INEXACT.split())})\s*\("), "'{0}' has no defined rounding"),
    (re.compile(rf"\bprecise\s*::\s*({'|'.join(INEXACT.split())})\s*\("), "'precise::{0}' has no defined rounding"),
    (re.compile(r"(?<![\w.])(?<!precise::)(?:metal\s*::\s*)?(sqrt)\s*\("), "write precise::sqrt"),
    (re.compile(rf"(?<![\w.:])({'|'.join(FLOAT_NAMES.split())})\s*\("), "'{0}' is the C library's"),
    (re.compile(r"\bdouble\b"), "Metal has no double"),
    (re.compile(r"\bsimd(?:group)?_multiply|\bsimdgroup_(?:float|half|matrix)"), "matrix instructions have no defined order of sums"),
]


def own_functions(plain):
    """Names that the text defines itself: they are not Metal's."""
    return set(re.findall(r"\b(?:inline|static)\s[^;{}()]*?\b(\w+)\s*\(", plain))


def rule_errors(text):
    plain = translate.without_comments(text)
    line = lambda at: plain.count("\n", 0, at) + 1
    if not re.search(r"^[ \t]*#pragma METAL fp contract\(off\)", plain, re.M):
        yield 1, "there is no '#pragma METAL fp contract(off)'"
    own = own_functions(plain)
    for pattern, what in RULES:
        for m in pattern.finditer(plain):
            word = m[1] if pattern.groups else ""
            before = plain[max(0, m.start() - 200) : m.start()]
            defines = re.search(r"\b(?:inline|static)\s[^;{}()]*$", before)
            if word and word in own and (defines or "::" not in m[0]):
                continue
            yield line(m.start()), what.format(word)
    for m in re.finditer(r"(?:\bkernel\b)\s+void\s+(\w+)\s*\(", plain):
        end = translate.closing(plain, m.end() - 1, "()")
        if plain[end + 1 :].lstrip()[:1] != "{":
            continue
        parameters = translate.parts(plain[m.end() : end])
        buffers = [p for p in parameters if re.search(r"\[\[\s*buffer\b", p)]
        if len(buffers) != 1 or not re.match(r"\s*constant\s+\w+\s*&\s*\w+\s*\[\[\s*buffer\(0\)\s*\]\]\s*$", buffers[0]):
            yield line(m.start()), f"kernel {m[1]}: its only buffer is `constant Args& a [[buffer(0)]]`"
        open_brace = plain.index("{", end)
        body = plain[open_brace : translate.closing(plain, open_brace, "{}")]
        placed = [p for p in parameters if re.search(r"\[\[\s*thread(?:group)?_position_in_grid\b", p)]
        if placed and "first_group" not in body:
            yield line(m.start()), f"kernel {m[1]}: its place in the grid is used without first_group: grids are cut to launches"
        if any("thread_position_in_grid" in p for p in placed):
            yield line(m.start()), f"kernel {m[1]}: take threadgroup_position_in_grid: a launch may begin at any group"


def errors(clang, msl, path):
    with open(path, encoding="utf8", newline="") as f:
        text = f.read()
    found = [f"{path}:{n}: error: {what}" for n, what in rule_errors(text)]
    try:
        cpp = translate.Translation("lint", text).cpp()
    except translate.Wrong as e:
        return found + [f"{path}:{e}"]
    run = subprocess.run(
        [clang, "-x", "c++", "-std=c++20", "-fsyntax-only", "-DMSL_LINT", "-D__METAL_VERSION__=310", f"-I{msl}", "-Wall", "-Wextra",
         "-Wdouble-promotion", "-Wshadow", "-Werror", "-Wno-unknown-attributes", "-Wno-ignored-attributes", "-Wno-unknown-pragmas",
         "-Wno-unused-function", "-Wno-unused-parameter", "-Wno-unused-const-variable", "-Wno-pragma-once-outside-header",
         "-Wno-missing-field-initializers", "-"],
        input=f'#include "all.h"\n#line 1 "{path}"\n{cpp}', text=True, capture_output=True)
    if run.returncode != 0:
        found.append(run.stderr.strip())
    return found


def main():
    clang, msl = sys.argv[1:3]
    expect = "--expect" in sys.argv
    failed = False
    for path in [a for a in sys.argv[3:] if a != "--expect"]:
        found = "\n".join(errors(clang, msl, path))
        if expect:
            with open(path, encoding="utf8") as f:
                words = re.match(r"// expect: (.*)", f.readline())[1]
            if words not in found:
                failed = True
                print(f"{path}: expected an error with '{words}', found: {found or 'none'}", file=sys.stderr)
        elif found:
            failed = True
            print(found, file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
