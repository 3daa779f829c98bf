# A thin front to CMake and the scripts. `make demo` and `make test` need nothing but git, make and apt (or Homebrew).
#
#   make          build the release preset and put ./coli here      make asan    the tests under address and UB sanitizers
#   make demo     install what is missing, build, tell a story      make tsan    the threaded tests under the thread sanitizer
#   make test     install what is missing, run every test           make arm64   the arithmetic tests on emulated AArch64
#   make bench    build and run the benchmarks                      make lint    clang-format and clang-tidy
#   make setup    only install what a build needs                   make clean   remove what was built

DEMO_PROMPT ?= Once upon a time, there was a little fox who

.PHONY: all demo test bench asan tsan arm64 lint format setup clean

all:
	@scripts/build.sh release

demo:
	@scripts/setup.sh build
	@scripts/build.sh release
	@printf '\n%s' "$(DEMO_PROMPT)"
	@./coli run "$(DEMO_PROMPT)"

test:
	@scripts/setup.sh test
	@scripts/test.sh all

asan tsan arm64:
	@scripts/setup.sh test
	@scripts/test.sh $@

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
	rm -rf build coli
