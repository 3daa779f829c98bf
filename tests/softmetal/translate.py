#!/usr/bin/env python3
"""Turns Metal Shading Language into C++ that clang compiles against msl/.

    translate.py NAME TEXT.metal    prints a unit that defines softmetal::CompiledText softmetal_text_NAME

Most of the language is C++ already. Changed are:
    constant uint n [[function_constant(i)]];    a global that the device sets before each launch
    threadgroup T a[n];  inside a kernel         memory of the threadgroup
    [[buffer(i)]] and the other attributes       written down for the entry of each kernel
    template [[host_name("x")]] kernel ... f<..> an entry with that name
A kernel parameter without an attribute and a vector cast in C's style (it would reinterpret bits) are errors."""
import os
import re
import sys

POSITIONS = {
    "thread_position_in_grid": "kThreadInGrid",
    "thread_position_in_threadgroup": "kThreadInGroup",
    "threadgroup_position_in_grid": "kGroupInGrid",
    "threads_per_threadgroup": "kThreadsPerGroup",
    "dispatch_threads_per_threadgroup": "kThreadsPerGroup",
    "threadgroups_per_grid": "kGroupsPerGrid",
    "threads_per_grid": "kThreadsPerGrid",
    "thread_index_in_threadgroup": "kThreadIndex",
    "simdgroup_index_in_threadgroup": "kSimdIndex",
    "thread_index_in_simdgroup": "kLane",
    "simdgroups_per_threadgroup": "kSimdsPerGroup",
    "threads_per_simdgroup": "kSimdWidth",
}
MEMORY = {"buffer": "kBuffer", "threadgroup": "kThreadgroupMemory"}
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def without_comments(text):
    """The same text, position for position, with comments blank and strings empty."""

    def blank(match):
        s = match[0]
        if s[0] == "/":
            return re.sub(r"[^\n]", " ", s)
        return '"' + " " * (len(s) - 2) + '"'

    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def closing(text, at, pair):
    depth = 0
    for i in range(at, len(text)):
        if text[i] == pair[0]:
            depth += 1
        elif text[i] == pair[1]:
            depth -= 1
            if depth == 0:
                return i
    raise Wrong(text, at, f"'{pair[0]}' is never closed")


def parts(text):
    """Split at the commas that are in no bracket."""
    found, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "(<[{") - (c in ")>]}")
        if c == "," and depth == 0:
            found.append(text[start:i])
            start = i + 1
    if text.strip():
        found.append(text[start:])
    return found


class Wrong(Exception):
    def __init__(self, text, at, what):
        super().__init__(f"{text.count(chr(10), 0, at) + 1}: error: {what}")


class Translation:
    def __init__(self, name, text):
        self.name, self.text, self.plain = name, text, without_comments(text)
        self.edits = []      # (begin, end, replacement)
        self.sources = {}    # kernel -> [(From, index)]
        self.entries = []    # (name for the host, kernel, expression)
        self.constants = []  # (variable, index)
        self.find_kernels()
        self.find_instances()
        self.find_threadgroup_arrays()
        self.find_constants()
        self.forbid_vector_casts()
        self.bodies = self.find_bodies()

    def find_kernels(self):
        for k in re.finditer(r"(?:\bkernel\b|\[\[\s*kernel\s*\]\])\s+void\s+(\w+)\s*\(", self.plain):
            begin = k.end() - 1
            end = closing(self.plain, begin, "()")
            if self.plain[end + 1 :].lstrip()[:1] != "{":
                continue
            sources, at = [], begin + 1
            for p in parts(self.plain[begin + 1 : end]):
                a = re.search(r"\[\[\s*(\w+)\s*(?:\(\s*(\d+)\s*\))?\s*\]\]", p)
                if not a:
                    raise Wrong(self.plain, at, f"kernel {k[1]}: a parameter without attribute: {p.strip()}")
                if a[1] in MEMORY and a[2]:
                    sources.append((MEMORY[a[1]], int(a[2])))
                elif a[1] in POSITIONS:
                    sources.append((POSITIONS[a[1]], 0))
                else:
                    raise Wrong(self.plain, at, f"kernel {k[1]}: the attribute [[{a[1]}]] is not supported")
                self.edits.append((at + a.start(), at + a.end(), ""))
                at += len(p) + 1
            self.sources[k[1]] = sources
            before = self.plain[: k.start()].rstrip()
            if not (before.endswith(">") and re.search(r"template\s*<[^;{}]*$", before[-400:])):
                self.entries.append((k[1], k[1], k[1]))

    def find_instances(self):
        pattern = r"template\s*(\[\[\s*host_name\(\s*\"[^\"]*\"\s*\)\s*\]\])\s*kernel\s+\w+\s+(\w+)\s*(<[^;(]*>)"
        for i in re.finditer(pattern, self.plain):
            if i[2] not in self.sources:
                raise Wrong(self.plain, i.start(), f"host_name of {i[2]}, which is no kernel")
            host = re.search(r'"([^"]*)"', self.text[i.start(1) : i.end(1)])[1]
            self.entries.append((host, i[2], i[2] + i[3]))
            self.edits.append((i.start(1), i.end(1), ""))

    def find_threadgroup_arrays(self):
        one = r"\w+(?:\s*\[[^;=]*?\])*"
        pattern = rf"(?<=[;{{}}])(\s*)threadgroup\s+([\w:]+(?:<[^;]*?>)?)\s+({one}(?:\s*,\s*{one})*)\s*;"
        count = 0
        for t in re.finditer(pattern, self.plain):
            new = []
            for declarator in parts(t[3]):
                d = re.match(r"\s*(\w+)\s*(.*)$", declarator, re.S)
                new.append(f"auto& {d[1]} = msl::threadgroup_array<{t[2]}{d[2].strip()}, {count}>();")
                count += 1
            self.edits.append((t.start(), t.end(), t[1] + " ".join(new)))

    def find_constants(self):
        for c in re.finditer(r"constant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\((\d+)\)\s*\]\]\s*;", self.plain):
            if c[1] not in ("uint", "u32"):
                raise Wrong(self.plain, c.start(), f"function constant {c[2]} is a {c[1]}; this project's are all uint")
            self.constants.append((c[2], int(c[3])))
            self.edits.append((c.start(), c.end(), f"static uint {c[2]};"))

    def forbid_vector_casts(self):
        types = "float|half|bfloat|u?int|u?char|u?short|u?long"
        for v in re.finditer(rf"(?<![\w\]])\(\s*((?:{types})[234])\s*\)\s*[\w(]", self.plain):
            raise Wrong(self.plain, v.start(), f"write {v[1]}(x): as a cast in C's style clang takes the bits, not the values")

    def find_bodies(self):
        """The identifiers in each function and global: what a kernel reaches through the functions it calls."""
        bodies = {}
        for f in re.finditer(r"\b(?!(?:if|for|while|switch)\b)(\w+)\s*\([^;{}]*\)\s*\{", self.plain):
            end = closing(self.plain, f.end() - 1, "{}")
            bodies.setdefault(f[1], set()).update(IDENTIFIER.findall(self.plain[f.end() : end]))
        for g in re.finditer(r"\bconstant\s+[\w ]*?(\w+)\s*=([^;]*);", self.plain):
            bodies.setdefault(g[1], set()).update(IDENTIFIER.findall(g[2]))
        return bodies

    def reached(self, kernel):
        seen, left = set(), [kernel]
        while left:
            for word in self.bodies.get(left.pop(), ()):
                if word not in seen:
                    seen.add(word)
                    left.append(word)
        return seen

    def cpp(self):
        out = self.text
        for begin, end, new in sorted(self.edits, reverse=True):
            out = out[:begin] + new + "\n" * self.text.count("\n", begin, end) + out[end:] if "\n" not in new else out[:begin] + new + out[end:]
        return out

    def tables(self):
        lines = ['#line 1 "entries"', "namespace {"]
        for i, (_, kernel, expression) in enumerate(self.entries):
            sources = ", ".join(f"{{msl::From::{f}, {n}}}" for f, n in self.sources[kernel])
            lines.append(
                f"void softmetal_entry_{i}(const softmetal::ThreadContext& c) {{ "
                f"static constexpr msl::Source s[] = {{{sources}}}; msl::enter(&{expression}, c, s); }}"
            )
        lines.append("const softmetal::KernelEntry softmetal_kernels[] = {")
        for i, (host, kernel, expression) in enumerate(self.entries):
            words = self.reached(kernel) | set(IDENTIFIER.findall(expression))
            used = sum(1 << n for n in {n for v, n in self.constants if v in words})
            lines.append(f'  {{"{host}", softmetal_entry_{i}, {used}ull}},')
        lines += ["  {nullptr, nullptr, 0}};", "const softmetal::ConstantEntry softmetal_constants[] = {"]
        lines += [f"  {{{n}, &{v}}}," for v, n in self.constants]
        lines += ["  {-1, nullptr}};", "}  // namespace"]
        lines.append(
            f"extern const softmetal::CompiledText softmetal_text_{self.name};\n"
            f"const softmetal::CompiledText softmetal_text_{self.name} = "
            f'{{{text_hash(self.text)}ull, "{self.name}", softmetal_kernels, softmetal_constants}};'
        )
        return "\n".join(lines)


def text_hash(text):  # FNV-1a, as in executor/kernel_abi.h
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def unit(name, path):
    """The C++ of a text, or the end of the program with the mistake."""
    with open(path, encoding="utf8", newline="") as f:
        text = f.read()
    try:
        t = Translation(name, text)
    except Wrong as e:
        sys.exit(f"{path}:{e}")
    return f'#include "all.h"\n#line 1 "{os.path.basename(path)}"\n{t.cpp()}\n{t.tables()}\n'


if __name__ == "__main__":
    print(unit(sys.argv[1], sys.argv[2]))
