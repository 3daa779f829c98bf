#!/bin/bash
# coli beside llama.cpp on the same synthetic dimensions, by turns, each under the same memory limit.
#   bench/peer/run.sh MODEL_DIR [MEMORY_MB] [NEW_TOKENS] [ROUNDS]
# MODEL_DIR: of `coli synth --no-routing`, so that both models' own random routers choose. MEMORY_MB: a memory control group of
# this size holds each run, page cache included (needs root; without the number nothing is limited). Run setup.sh first.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,5p "$0"; exit 2; }
model=$(realpath "$1") memory=${2:-0} fresh=${3:-32} rounds=${4:-3}
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../.. work=$here/../../build/peer
coli=${COLI:-$root/coli} threads=${THREADS:-$(nproc)}
gguf=${GGUF:-$work/$(basename "$model").gguf}
[ -x "$work/llama_speed" ] || { echo "run setup.sh first"; exit 1; }
[ -f "$gguf" ] || "$work/make_gguf" "$model" "$gguf"
prompt=$(printf 'a %.0s' $(seq 16))

group=
if [ "$memory" -gt 0 ]; then
  if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
    group=/sys/fs/cgroup/memory/coli-peer limit=memory.limit_in_bytes
  else
    group=/sys/fs/cgroup/coli-peer limit=memory.max
  fi
  mkdir -p "$group"
  echo $((memory * 1000000)) > "$group/$limit"
  trap 'rmdir "$group"' EXIT
fi
cold() { sync; [ -w /proc/sys/vm/drop_caches ] && echo 3 > /proc/sys/vm/drop_caches || true; }
limited() { if [ -n "$group" ]; then bash -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$group" "$@"; else "$@"; fi; }
number() { grep -o "\"$1\": [0-9.]*" | grep -o '[0-9.]*$'; }
median() { sort -n | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

ours=() theirs=()
for round in $(seq "$rounds"); do
  cold
  out=$(limited "$coli" run --model "$model" --raw "$prompt" --temp 0 -n "$fresh" --threads "$threads" --ctx 256 --json 2> "$work/coli.log") ||
    { cat "$work/coli.log"; exit 1; }
  ours+=("$(number decode_tok_s <<< "$out")")
  cold
  out=$(limited "$work/llama_speed" "$gguf" "$work/package/bins/linux-x64" 16 "$fresh" "$threads")
  theirs+=("$(number decode_tok_s <<< "$out")")
  echo "round $round: coli ${ours[-1]} tok/s, llama.cpp ${theirs[-1]} tok/s"
done
a=$(printf '%s\n' "${ours[@]}" | median) b=$(printf '%s\n' "${theirs[@]}" | median)
echo "median of $rounds, $fresh tokens, $threads threads, limit ${memory} MB: coli $a tok/s, llama.cpp $b tok/s, ratio $(awk "BEGIN {print $a / $b}")"
