#!/bin/bash
# Fetches llama.cpp's prebuilt CPU libraries and the headers of the same release from npm (packages
# @node-llama-cpp/linux-x64 and node-llama-cpp, MIT) into build/peer, and builds what run.sh needs. Needs npm, git and g++.
set -euo pipefail
version=3.21.1
here=$(cd "$(dirname "$0")" && pwd)
work=$here/../../build/peer
mkdir -p "$work"
cd "$work"
fetch() {  # PACKAGE FILE-IN-PACKAGE...: unpacks into ./package
  local package=$1
  shift
  tar xzf "$(npm pack --silent "$package@$version")" "$@"
}
[ -d package/bins/linux-x64 ] || fetch @node-llama-cpp/linux-x64
[ -d source ] || { fetch node-llama-cpp package/llama/gitRelease.bundle && git clone -q package/llama/gitRelease.bundle source; }
libraries=$work/package/bins/linux-x64
g++ -O2 -std=c++20 -Isource/include -Isource/ggml/include "$here/llama_speed.cpp" -o llama_speed \
  "$libraries"/libllama*.so* "$libraries"/libggml.*so* "$libraries"/libggml-base*.so* -Wl,-rpath,"$libraries" 2> build.log ||
  { cat build.log; exit 1; }
g++ -O2 -std=c++20 "$here/make_gguf.cpp" -o make_gguf
echo "ready: $work"
