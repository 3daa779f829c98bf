#!/bin/sh
# Builds one CMake preset: scripts/build.sh PRESET [cmake cache options] [-- targets]
# After `release` the command is linked as ./coli at the root.
set -eu
cd "$(dirname "$0")/.."

preset=$1
shift
options=""
while [ $# -gt 0 ] && [ "$1" != -- ]; do options="$options $1"; shift; done
[ $# -eq 0 ] || shift

for tool in cmake ninja; do
  command -v $tool >/dev/null 2>&1 || { echo "build: $tool is not installed; 'make setup' installs what a build needs" >&2; exit 1; }
done
jobs=${JOBS:-$(nproc 2>/dev/null || sysctl -n hw.ncpu)}

# A plain build leaves the tests out, so that it needs no test packages; a folder that has them keeps them.
if [ -z "$options" ] && [ "$preset" = release ] && [ ! -f build/release/build.ninja ]; then options="-DCOLIBRI_TESTS=OFF"; fi
quiet=$(mktemp)
trap 'rm -f "$quiet"' EXIT
cmake --preset "$preset" $options >"$quiet" 2>&1 || { cat "$quiet" >&2; exit 1; }
if [ $# -gt 0 ]; then
  cmake --build --preset "$preset" -j "$jobs" --target "$@"
else
  cmake --build --preset "$preset" -j "$jobs"
fi
if [ -x build/release/apps/coli/coli ] && [ "$preset" = release ]; then ln -sf build/release/apps/coli/coli coli; fi
