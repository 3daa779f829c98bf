#!/bin/sh
# Makes build/apple/prefix and build/apple/stubs, what `coli` for macOS is compiled and linked against besides the compilers:
# header-only libraries as links to Debian's packages, PCRE2 and utf8proc built from Debian's sources, Apple's libraries as stubs.
# What is there already is kept.
set -eu
cd "$(dirname "$0")/.."

build=$PWD/build/apple
prefix=$build/prefix
die() { echo "libraries: $*" >&2; exit 1; }

mkdir -p "$prefix/include"
for header in tl fmt nlohmann CLI xxhash.h histedit.h; do
  [ -e "/usr/include/$header" ] || die "/usr/include/$header is missing; 'scripts/setup.sh macos' installs it"
  ln -sfn "/usr/include/$header" "$prefix/include/$header"
done
python3 apple/write_stubs.py /usr/include/histedit.h "$build/stubs"

# Debian's sources, from the same mirrors as its packages. apt keeps lists of sources only for entries that say so, and the system's
# mostly do not: these are entries and lists of our own, in build/, for which it needs no rights.
private_apt() {
  apt=$build/apt
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u |
    sed -n "s|^\([^ ]*/debian[^ ]*/* [a-z/-]* main\)$|deb-src $signed\1|p" >"$apt/sources.list"
  [ -s "$apt/sources.list" ] || die "apt knows no Debian mirror; run 'apt-get update' first"
  apt_options="-q -o Dir::Etc::SourceList=$apt/sources.list -o Dir::Etc::SourceParts=- -o Dir::State::Lists=$apt/lists
    -o Dir::Cache=$apt/cache -o Acquire::Retries=3 -o APT::Sandbox::User=$(id -un)"
  apt-get $apt_options update >"$apt/log" 2>&1 || { tail -n 20 "$apt/log" >&2; die "apt-get update failed for the source entries in $apt/sources.list"; }
}
signed=""
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -f $keyring ]; then signed="[signed-by=$keyring] "; fi

# library NAME OPTIONS...: the Debian source package NAME, built with its own CMake files into the prefix
library() {
  name=$1
  shift
  [ ! -f "$build/$name.done" ] || return 0
  [ -n "${apt_options:-}" ] || private_apt
  rm -rf "$build/$name"
  mkdir -p "$build/$name"
  # Some mirrors lack the files with a plus sign in their names, which updates have; the author's own archive is enough then.
  (cd "$build/$name" && apt-get $apt_options source "$name") >"$build/$name.log" 2>&1 || {
    echo "libraries: Debian's changes to $name could not be fetched; its original archive is used"
    (cd "$build/$name" && apt-get $apt_options source --tar-only "$name" && tar -xf "$name"_*.orig.tar.*) >>"$build/$name.log" 2>&1 ||
      { tail -n 20 "$build/$name.log" >&2; die "the source package $name could not be fetched or unpacked"; }
  }
  source=$(find "$build/$name" -mindepth 2 -maxdepth 2 -name CMakeLists.txt)
  { cmake -S "${source%/*}" -B "$build/$name/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/macos-cross.cmake" -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF "$@" &&
    cmake --build "$build/$name/build" -j "${JOBS:-$(nproc)}" --target install; } >>"$build/$name.log" 2>&1 ||
    { tail -n 20 "$build/$name.log" >&2; die "$name did not build for macOS (all of it: $build/$name.log)"; }
  echo "libraries: built $(basename "${source%/*}") for macOS"
  : >"$build/$name.done"
}
library utf8proc
library pcre2 -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF -DPCRE2_SUPPORT_JIT=ON -DPCRE2_SUPPORT_LIBZ=OFF -DPCRE2_SUPPORT_LIBBZ2=OFF \
  -DPCRE2_SUPPORT_LIBREADLINE=OFF -DPCRE2_SUPPORT_LIBEDIT=OFF
