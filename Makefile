# A thin front to CMake and the scripts. `make demo` and `make test` need nothing but git, make and apt (or Homebrew).
#
#   make          build the release preset and put ./coli here      make asan    the tests under address and UB sanitizers
#   make demo     install what is missing, build, tell a story      make tsan    the threaded tests under the thread sanitizer
#   make test     install what is missing, run every test           make arm64   the arithmetic tests on emulated AArch64
#   make bench    build and run the benchmarks                      make lint    clang-format and clang-tidy
#   make colibri METAL=1   on a Mac: install what is missing and build with Metal, as plain make does there
#   make macos-cross       on Linux: the same program for a Mac, into dist/
#   make metal-test        the GPU's tests alone: on the software Metal device, on macOS on the GPU
#   make setup    only install what a build needs                   make clean   remove what was built

DEMO_PROMPT ?= Once upon a time, there was a little fox who

.PHONY: all colibri macos-cross metal-possible demo test bench asan tsan arm64 metal-test lint format setup clean

all: metal-possible
	@scripts/build.sh release

colibri: metal-possible
	@scripts/setup.sh build
	@scripts/build.sh release

metal-possible:
	@if [ "$(METAL)" = 1 ] && [ "$$(uname -s)" != Darwin ]; then \
	  echo "make: METAL=1 builds for Apple's GPU, which takes a Mac, and this is $$(uname -s). Here 'make macos-cross' builds the" >&2; \
	  echo "program for a Mac, and after a plain 'make' the option '--gpu metal' runs the Metal code on the software device, for tests." >&2; \
	  exit 1; \
	fi

macos-cross:
	@scripts/setup.sh macos
	@scripts/macos_cross.sh

demo:
	@scripts/setup.sh build
	@scripts/build.sh release -- coli
	@printf '\n%s' "$(DEMO_PROMPT)"
	@./coli run "$(DEMO_PROMPT)"

test:
	@scripts/setup.sh test
	@scripts/test.sh all

asan tsan arm64:
	@scripts/setup.sh test
	@scripts/test.sh $@

metal-test:
	@scripts/setup.sh test
	@scripts/test.sh metal

bench:
	@scripts/setup.sh build
	@scripts/bench.sh

lint:
	@scripts/setup.sh lint
	@scripts/lint.sh

format:
	@scripts/setup.sh lint
	@scripts/lint.sh --fix

setup:
	@scripts/setup.sh build

clean:
	rm -rf build dist coli
