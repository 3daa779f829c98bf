#!/bin/sh
# Builds and runs every benchmark of bench/: achieved bandwidth and arithmetic beside what this machine can do.
set -eu
cd "$(dirname "$0")/.."
scripts/build.sh bench
for program in build/bench/bench/*_bench; do
  if [ -x "$program" ]; then echo "=== $(basename "$program") ==="; "$program"; fi
done
