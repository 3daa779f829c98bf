#!/bin/bash
# How close a run comes to the least time its disk, its computing and its predictions allow.
#   bench/overlap.sh MODEL_DIR [EXPERTS] [NEW_TOKENS] [ROUNDS]
# MODEL_DIR: of `coli synth --like glm-5.2`. EXPERTS: how many stay in memory; 0 for a quarter. Each round runs the model, then
# again with experts in memory standing in for all (the same products, no reads); `coli replay --overlap` makes the bound of the
# second run's times and the disk's measured rate. Needs jq.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,6p "$0"; exit 2; }
model=$1 slots=${2:-0} fresh=${3:-64} rounds=${4:-3}
coli=${COLI:-$(dirname "$0")/../coli}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ "$slots" -gt 0 ] || slots=$(jq '.n_routed_experts * ([.mlp_layer_types[] | select(. == "sparse")] | length) / 4 | floor' "$model/config.json")
cold() { sync; [ -w /proc/sys/vm/drop_caches ] && echo 3 > /proc/sys/vm/drop_caches || true; }
run() { "$coli" run --model "$model" --raw "a b c d e f g h" --temp 0 -n "$fresh" --ctx 1024 --cache-experts "$slots" --no-usage --json "$@" 2> /dev/null; }
disk() { "$coli" plan --model "$model" --ctx 1024 --cache-experts "$slots" --no-usage --json | jq "$1"; }
cold
echo "disk: $(disk '.disk | "\(.gb_per_second) GB/s, direct \(.direct), \(.in_flight) in flight"')"
rate=$(disk '.disk.gb_per_second')
for round in $(seq "$rounds"); do
  cold
  run --trace "$work/real" > "$work/real.json"
  run --trace "$work/alone" --stand-in-experts > "$work/alone.json"
  wall=$(jq '1000 / .decode_tok_s' "$work/real.json")
  used=$(jq '.experts.gb_per_second' "$work/real.json")
  for disk_rate in $rate $used; do
    bound=$("$coli" replay "$work/alone" --overlap --disk "$disk_rate" --slots "$slots" --json |
      jq -r '[.sizes[] | select(.predictions)][0].decode | "\(.wall_ms) \(.max_of_both_ms) \(.compute_ms) \(.disk_ms)"')
    echo "$round $wall $bound $disk_rate" | awk '{printf "round %d: %.1f ms a token; bound at %.2f GB/s %.1f ms: ratio %.3f (max of disk and computing %.1f: disk %.1f, computing %.1f)\n", $1, $2, $7, $3, $2 / $3, $4, $6, $5}'
  done
  jq -c '{seconds, per_token: .experts.per_token, answer: .experts.answer, peak_memory_bytes}' "$work/real.json"
done
