#!/bin/bash
# How close a run comes to the least time its disk, its computing and its predictions allow.
#   bench/overlap.sh MODEL_DIR [EXPERTS] [NEW_TOKENS] [ROUNDS]
# MODEL_DIR: of `coli synth --like glm-5.2`. EXPERTS: how many stay in memory; 0 for a quarter. Each round runs the model, then
# again with experts in memory standing in for all (the same products, no reads); `coli replay --overlap` makes the bound of the
# second run's times and a rate of the disk: the probe's, the run's (bytes over the time with a read in flight), and that of the
# answer's reads alone. Needs jq. KEEP=DIR keeps traces and statistics there.
# The machine's speed may differ between the two runs: for the ratio at equal speed the second run's times are multiplied by what the
# head took in the first over what it took in the second, because nothing is read while the head is computed.
# What is lost against the bound is then split: the same bound with the real run's computing times tells how much slower
# computing was beside the reads; the rest is waiting that the model does not have.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,11p "$0"; exit 2; }
model=$1 slots=${2:-0} fresh=${3:-64} rounds=${4:-3}
coli=${COLI:-$(dirname "$0")/../coli}
if [ -n "${KEEP:-}" ]; then
  work=$KEEP
  mkdir -p "$work"
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
[ "$slots" -gt 0 ] || slots=$(jq '.n_routed_experts * ([.mlp_layer_types[] | select(. == "sparse")] | length) / 4 | floor' "$model/config.json")
cold() { sync; [ -w /proc/sys/vm/drop_caches ] && echo 3 > /proc/sys/vm/drop_caches || true; }
run() { "$coli" run --model "$model" --raw "a b c d e f g h" --temp 0 -n "$fresh" --ctx 1024 --cache-experts "$slots" --no-usage --json "$@" 2> /dev/null; }
disk() { "$coli" plan --model "$model" --ctx 1024 --cache-experts "$slots" --no-usage --json | jq "$1"; }
bound() {  # trace rate
  "$coli" replay "$1" --overlap --disk "$2" --slots "$slots" --json |
    jq -r '[.sizes[] | select(.predictions)][0].decode | "\(.wall_ms) \(.max_of_both_ms) \(.compute_ms) \(.disk_ms)"'
}
cold
echo "disk: $(disk '.disk | "\(.gb_per_second) GB/s, direct \(.direct), \(.in_flight) in flight"')"
probed=$(disk '.disk.gb_per_second')
for round in $(seq "$rounds"); do
  cold
  run --trace "$work/real.$round" > "$work/real.$round.json"
  run --trace "$work/alone.$round" --stand-in-experts > "$work/alone.$round.json"
  wall=$(jq '1000 / .decode_tok_s' "$work/real.$round.json")
  echo "round $round: $wall $(jq '1000 / .decode_tok_s' "$work/alone.$round.json")" |
    awk '{printf "%s %s %.1f ms a token; with stand-ins %.1f\n", $1, $2, $3, $4}'
  head=$(jq -s '.[0].answer_ms_per_token.head / .[1].answer_ms_per_token.head' "$work/real.$round.json" "$work/alone.$round.json")
  awk -v f="$head" '$1 == "step" { $4 = sprintf("%.0f", $4 * f) } $1 == "layer" { for (i = 3; i <= 5; ++i) $i = sprintf("%.0f", $i * f) } { print }' \
    "$work/alone.$round" > "$work/equal.$round"
  for what in probe run answer; do
    case $what in
      probe) rate=$probed ;;
      run) rate=$(jq '.experts.gb_per_second' "$work/real.$round.json") ;;
      answer) rate=$(jq '.experts.answer_gb_per_second' "$work/real.$round.json") ;;
    esac
    echo "$what $rate $wall $(bound "$work/alone.$round" "$rate") $(bound "$work/real.$round" "$rate") $(bound "$work/equal.$round" "$rate")" |
      awk '{printf "  rate of the %s, %.2f GB/s: bound %.1f ms, ratio %.3f, at equal speed %.3f (max of disk and computing %.1f: disk %.1f, computing %.1f); lost: computing slower beside reads %.1f, other waiting %.1f\n",
            $1, $2, $4, $3 / $4, $3 / $12, $5, $7, $6, $8 - $4, $3 - $8}'
  done
  jq -c '{answer_ms_per_token, per_token: .experts.per_token, answer: .experts.answer, peak_memory_bytes}' "$work/real.$round.json"
  jq -c '{stand_ins: .answer_ms_per_token}' "$work/alone.$round.json"
done
