#!/bin/sh
# Layout by clang-format 19 and checks by clang-tidy 19 over our own sources.
#   scripts/lint.sh          both
#   scripts/lint.sh FILE...  both, only these files
#   scripts/lint.sh --fix    rewrite the layout, no checks
set -eu
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc 2>/dev/null || sysctl -n hw.ncpu)}

fix=""
if [ "${1:-}" = --fix ]; then fix=yes; shift; fi
if [ $# -gt 0 ]; then files="$*"; else files=$(git ls-files '*.cpp' '*.h' ':!apple/include'); fi

format=clang-format-19
command -v $format >/dev/null 2>&1 || format=clang-format
if [ -n "$fix" ]; then
  echo "$files" | tr ' ' '\n' | xargs $format -i
  exit 0
fi
echo "$files" | tr ' ' '\n' | xargs $format --dry-run --Werror
echo "lint: layout is right"

# clang-tidy reads compile commands made for clang; nothing needs to be built for that.
tidy=clang-tidy-19
command -v $tidy >/dev/null 2>&1 || tidy=clang-tidy
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset lint >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
# Only files of this configuration: another architecture's kernels are not compiled here.
known=$(sed -n 's/^  "file": "\(.*\)",*$/\1/p' build/lint/compile_commands.json)
echo "$known" | while read -r path; do
  file=${path#"$PWD/"}
  case " $(echo $files) " in *" $file "*) echo "$file" ;; esac
done | xargs -P "$jobs" -n 1 $tidy -p build/lint --quiet
echo "lint: checks passed"
