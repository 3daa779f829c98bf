#!/bin/sh
# Builds `coli` for macOS on Apple silicon, with Metal, on Linux: dist/macos-arm64, ready to be copied to a Mac. Set-up is
# scripts/setup.sh macos. The program is checked as far as that goes without a Mac (apple/check_program.py); no Mac has run it.
set -eu
cd "$(dirname "$0")/.."

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || {
  echo "macos_cross: this cross build runs on Linux on x86-64 only; on a Mac 'make colibri METAL=1' builds the same program" >&2
  exit 1
}
oldest=13.0  # what apple/cxx compiles for
out=dist/macos-arm64
# A compiler cache, where there is one, then serves every clone of this repository.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_COMPILERTYPE=clang CCACHE_COMPILERCHECK=content
CCACHE_EXTRAFILES=$(command -v clang++-19) && export CCACHE_EXTRAFILES
jobs=${JOBS:-$(nproc)}

scripts/fetch_apple_api.sh
apple/libraries.sh
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake -S . -B build/macos -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/macos-cross.cmake" -DCMAKE_BUILD_TYPE=Release \
  -DCOLIBRI_TESTS=OFF >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
cmake --build build/macos -j "$jobs" --target coli

program=build/macos/apps/coli/coli
apple/check_program.py $program $oldest
# The check itself: a program with one bit changed must be refused.
cp $program $program.damaged
printf '\377' | dd of=$program.damaged bs=1 seek=40000 conv=notrunc 2>/dev/null
if apple/check_program.py $program.damaged $oldest >"$log" 2>&1 || ! grep -q 'is not the one that was signed' "$log"; then
  echo "macos_cross: apple/check_program.py accepts a damaged program" >&2
  cat "$log" >&2
  exit 1
fi
rm $program.damaged

rm -rf "$out"
mkdir -p "$out/models"
cp $program LICENSE THIRD_PARTY.md "$out/"
cp -R models/demo "$out/models/"
echo "macos_cross: $out/coli and its demo model; no Mac has run it yet"
