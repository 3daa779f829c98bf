#!/bin/sh
# Installs the packages that are missing, and nothing else: a machine that has them all needs no network and no root.
#
#   scripts/setup.sh build    what `make` and `make demo` need (the default)
#   scripts/setup.sh test     the same and what `make test` needs: GoogleTest, clang 19 with its sanitizers, the AArch64
#                             compiler and emulator, npm (the tokenizers that some tests compare with are npm packages)
#   scripts/setup.sh macos    what `make macos-cross` needs on Debian: header-only libraries, clang 19, npm, dpkg-dev
#   scripts/setup.sh lint     what test needs, and clang-format and clang-tidy
#
# Debian 12 and its relatives use apt (through sudo when not root); macOS uses Homebrew, which nobody has tried yet.
set -eu

want=${1:-build}

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

case $want in build | test | macos | lint) ;; *) die "unknown set '$want': use build, test, macos or lint" ;; esac

# --- Debian ------------------------------------------------------------------------------------------------------
deb_build="g++ cmake ninja-build pkg-config nlohmann-json3-dev libcli11-dev libfmt-dev libexpected-dev libpcre2-dev
  libutf8proc-dev libedit-dev libxxhash-dev liburing-dev"
deb_test="libgtest-dev googletest clang-19 python3 libobjc-12-dev libclang-rt-19-dev llvm-19 g++-aarch64-linux-gnu qemu-user"
deb_macos="cmake ninja-build nlohmann-json3-dev libcli11-dev libfmt-dev libexpected-dev libedit-dev libxxhash-dev clang-19 llvm-19
  dpkg-dev python3"
deb_lint="clang-format-19 clang-tidy-19"

# --- Homebrew (Apple's own clang is the compiler; sanitizers and AArch64 emulation are for Linux) --------------------
brew_build="cmake ninja pkg-config nlohmann-json cli11 fmt tl-expected pcre2 utf8proc xxhash"
brew_test="googletest node"
brew_lint="llvm"

pick() {  # pick PREFIX: the packages of the wanted set
  eval "b=\$$1_build t=\$$1_test m=\${$1_macos:-} l=\$$1_lint"
  case $want in
    build) echo $b ;;
    test) echo $b $t ;;
    macos) echo $m ;;
    lint) echo $b $t $l ;;
  esac
}

setup_apt() {
  missing=""
  for package in $(pick deb); do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing="$missing $package"
  done
  case $want in
    test | macos | lint) command -v npm >/dev/null 2>&1 || missing="$missing nodejs npm ca-certificates" ;;
  esac
  [ -n "$missing" ] || return 0

  root=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || die "needs root to install:$missing (run as root or install sudo)"
    root=sudo
  fi
  say "installing:$missing"
  apt="$root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0"
  log=$(mktemp)
  if $apt update >"$log" 2>&1 && $apt install -y --no-install-recommends $missing >>"$log" 2>&1 </dev/null; then
    rm -f "$log"
  else
    tail -n 40 "$log" >&2
    rm -f "$log"
    die "apt-get failed (its last lines are above). The packages it should install:$missing"
  fi
}

setup_brew() {
  missing=""
  have=" $(brew list --formula -1 2>/dev/null | tr '\n' ' ') "
  for formula in $(pick brew); do
    case $have in *" $formula "*) ;; *) missing="$missing $formula" ;; esac
  done
  [ -n "$missing" ] || return 0
  say "installing:$missing"
  brew install $missing </dev/null || die "brew failed. The formulas it should install:$missing"
}

if command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1; then
  setup_apt
elif command -v brew >/dev/null 2>&1; then
  setup_brew
else
  say "found neither apt (Debian, Ubuntu) nor Homebrew (macOS, https://brew.sh)."
  say "Install these or their like by hand, then run make:" $(pick deb)
  exit 1
fi
