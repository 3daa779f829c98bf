#!/bin/sh
# The record reader beside fio on the same scratch file: the same block size (the reader's pieces) and depth, uncached
# and buffered. Five rounds of four runs, one second each: fio, reader, reader, fio. Prints the median of the rounds' means in GB/s
# and the ratio (aim: at least 0.9).
#   bench/io_fio.sh [GIB [WAY [DEPTHS]]]     size of the scratch file in the build folder (default 4; it is deleted
#                                            afterwards), one way only ("threads buffered"), its depths ("1 4")
# VERBOSE=1 prints every run too.
# Needs fio, which scripts/setup.sh does not install (Debian: apt-get install fio; Homebrew: brew install fio).
# The reader reads whole records (21.2 MB) in random order, fio blocks in random order. fio's threads share the file out among
# them: each would else choose from all of it, and what another one read before comes from the page cache.
# Why not simply by turns: Linux keeps up to an eighth of the memory as lists of free pages per processor, last in first out.
# What a run read forwards and dropped is handed to the next run backwards; a read into pages that do not follow each other
# reaches the disk in requests of 512 KiB instead of 2 MiB, at about two thirds of the speed. So every other buffered run,
# of either program, is slow, and by turns it is always the same one. A round gives each program one run of both sorts.
set -eu
cd "$(dirname "$0")/.."
case ${2:-} in
  "" | "threads direct" | "io_uring direct" | "threads buffered") ;;
  *) echo "io_fio: unknown way '$2': use 'threads direct', 'io_uring direct' or 'threads buffered'" >&2; exit 2 ;;
esac
command -v fio >/dev/null 2>&1 || { echo "io_fio: fio is not installed; it is the package fio of Debian and of Homebrew" >&2; exit 1; }
bench=build/bench/bench/io_bench
[ -x $bench ] || scripts/build.sh bench -- io_bench
gib=${1:-4}
file=build/bench/io_fio.scratch
trap 'rm -f $file' EXIT INT TERM
record=21233664
seconds=1

fio --name=lay --filename=$file --size=${gib}g --rw=write --bs=4m --ioengine=psync --end_fsync=1 --refill_buffers \
  --output=/dev/null

# fio's buffers on large pages too, like the reader's: scattered small pages halve what either reads.
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1

fio_speed() {  # engine direct depth block
  jobs=1 depth=$3
  if [ "$1" = psync ]; then jobs=$3 depth=1; fi
  part=$((gib * 1024 / jobs))m
  # Buffered: --invalidate drops the file's pages before each run.
  fio --name=read --filename=$file --rw=randread --bs="$4" --direct="$2" --ioengine="$1" --iodepth="$depth" --numjobs="$jobs" \
    --size=$part --offset_increment=$part \
    --iomem_align=2m --thread --group_reporting --time_based --runtime=$seconds --invalidate=1 --randrepeat=0 --output-format=terse --terse-version=3 |
    awk -F';' '{ printf "%.4f\n", $7 * 1024 / 1e9 }'
}
reader_speed() {  # backend mode depth block
  $bench $file --record $record --piece "$4" --in-flight "$3" --backend "$1" --mode "$2" --seconds $seconds
}
# Both find the page cache empty; each would else spend some of its time on dropping what the one before has read.
drop() { dd of=$file oflag=nocache conv=notrunc,fdatasync count=0 2>/dev/null || true; }
mean() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.4f\n", (a + b) / 2 }'; }
median() { sort -n | sed -n 3p; }

printf '%-9s %-9s %6s %9s %8s %8s %6s\n' backend mode depth block fio reader ratio
for way in "threads direct" "io_uring direct" "threads buffered"; do
  [ -z "${2:-}" ] || [ "$2" = "$way" ] || continue
  backend=${way% *} mode=${way#* }
  engine=psync
  if [ $backend = io_uring ]; then engine=io_uring; fi
  direct=0
  if [ $mode = direct ]; then direct=1; fi
  for depth in ${3:-1 4 8}; do
    for block in 2097152; do
      theirs="" ours=""
      for round in 1 2 3 4 5; do
        drop; f1=$(fio_speed $engine $direct $depth $block)
        drop; r1=$(reader_speed $backend $mode $depth $block)
        drop; r2=$(reader_speed $backend $mode $depth $block)
        drop; f2=$(fio_speed $engine $direct $depth $block)
        theirs="$theirs $(mean $f1 $f2)"
        ours="$ours $(mean $r1 $r2)"
        [ -z "${VERBOSE:-}" ] || echo "fio $f1 $f2 reader $r1 $r2" >&2
      done
      t=$(echo $theirs | tr ' ' '\n' | median)
      o=$(echo $ours | tr ' ' '\n' | median)
      printf '%-9s %-9s %6s %9s %8s %8s %6s\n' $backend $mode "$depth" "$block" "$t" "$o" "$(echo "$o $t" | awk '{ printf "%.2f", $1 / $2 }')"
    done
  done
done
