#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A training on the hosts of a file with nothing but ssh: a rank is a connection, and gets the variables that torchrun would set.
#   launch/ssh.sh HOSTS RECIPE [OPTION...]
#   launch/ssh.sh hosts.txt recipes/vit_large.toml --set data.source=folder:/data/imagenet --resume latest
# HOSTS has a line a host, rank 0's first: "node0 slots=1". slots are its ranks: 1 where the CPU computes (a rank uses all cores),
# else as many as it has GPUs. Needed: ssh without a password to all of them, bash, and the program, this folder and the data at the
# same paths. Ctrl-C and SIGTERM reach every rank: all save and end. A rank that fails is named, and 5 s later the others are
# killed. Ranks whose connection or whose launch/ssh.sh is gone save and end as well.
set -u
fail() { echo "error: [launch/ssh.sh] $*" >&2; exit 2; }
[ $# -ge 2 ] || fail "HOSTS RECIPE [OPTION of tessera train...]: found $# words"
places=$(awk '!/^[ \t]*(#|$)/ { n = match($0, /slots=[0-9]+/) ? substr($0, RSTART + 6, RLENGTH - 6) : 1
  for (i = 0; i < n; i++) print $1, i, n }' "$1") # a line a rank: host, local rank, ranks there
[ -n "$places" ] || fail "a host in a line of $1: found none"
shift
program=$(command -v "${TESSERA:-tessera}") || fail "the program ${TESSERA:-tessera}: not found (set TESSERA or PATH)"
WORLD_SIZE=$(wc -l <<<"$places") MASTER_ADDR=${MASTER_ADDR:-${places%% *}}
MASTER_PORT=${MASTER_PORT:-29500}                                         # edit: a port that is free on the first host
forward="WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS ${FORWARD:-}" # edit: names of variables that ranks need
read -ra ssh <<<"${SSH:-ssh -o BatchMode=yes -o ServerAliveInterval=15}"  # edit: its options
# Every connection follows this file: names of signals for its rank. The end of that input means that nobody is here any more.
work=$(mktemp -d) || fail "a temporary folder: none can be made"
: >"$work/signals"
trap 'rm -rf "$work"' EXIT
trap 'echo TERM >>"$work/signals"' INT TERM
# shellcheck disable=SC2016 # what each host runs; its words are a folder and a command
there='cd "$1" || exit; shift; exec 3<&0; env "$@" </dev/null 3<&- & rank=$!;
  { while read -r name <&3; do kill -s "$name" "$rank"; done; kill -s TERM "$rank"; } >/dev/null 2>&1 &
  { wait "$rank"; code=$?; kill "$!"; } 2>/dev/null; exit "$code"'
start() { # RANK HOST LOCAL_RANK LOCAL_WORLD_SIZE OPTION...
  local rank=$1 host=$2 variables=("RANK=$1" "LOCAL_RANK=$3" "LOCAL_WORLD_SIZE=$4") name words code
  for name in $forward; do [ -z "${!name+set}" ] || variables+=("$name=${!name}"); done
  words=(bash -c "${there//$'\n'/ }" launch/ssh.sh "$PWD" "${variables[@]}" "$program" train "${@:5}")
  "${ssh[@]}" "$host" "${words[*]@Q}" < <(exec tail -s 0.2 --pid=$$ -n +1 -f "$work/signals" 2>/dev/null) && return
  code=$?
  echo "error: [launch/ssh.sh] rank $rank of $WORLD_SIZE on $host ended with exit code $code" >&2
  mkdir "$work/failed" 2>/dev/null && echo "$code" >"$work/failed/code" && sleep 5 && echo KILL >>"$work/signals"
}
rank=0
while read -r place; do
  # shellcheck disable=SC2086 # three words
  start "$rank" $place "$@" &
  rank=$((rank + 1))
done <<<"$places"
until wait; do :; done # a signal that is handled interrupts it
exit "$(cat "$work/failed/code" 2>/dev/null || echo 0)"
