#!/bin/sh
# The front door's words and exit codes. A copy of ./dev runs in a scratch folder and sees only the few programs
# put on its PATH, some of them stand-ins, so that nothing is installed or built.
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin" "$scratch/tree"
cp "$source/dev" "$scratch/tree/dev"
for tool in cat dirname env flock mkdir sed; do ln -s "$(command -v $tool)" "$scratch/bin/$tool"; done
failures=0

stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$scratch/bin/$1"; chmod +x "$scratch/bin/$1"; }

# expect WHAT STATUS LINES TEXT ARGS...: ./dev ARGS exits with STATUS, prints LINES lines (0: any) and TEXT among them.
expect() {
  what=$1 status=$2 lines=$3 text=$4; shift 4
  got=0
  output=$(PATH="$scratch/bin" "$scratch/tree/dev" "$@" 2>&1) || got=$?
  count=$(printf '%s\n' "$output" | wc -l)
  case "$output" in *"$text"*) has_text=1 ;; *) has_text=0 ;; esac
  if [ "$got" != "$status" ] || [ $has_text = 0 ] || { [ "$lines" != 0 ] && [ "$count" != "$lines" ]; }; then
    failures=$((failures + 1))
    printf 'FAILED %s: expected exit %s, %s lines, "%s": found exit %s and\n%s\n' \
      "$what" "$status" "$lines" "$text" "$got" "$output"
  fi
}

expect "help lists the verbs" 0 0 "./dev quickstart" help
expect "no verb is help" 0 0 "./dev clean"
expect "unknown verb" 2 1 "[dev.tset] expected a verb that ./dev help lists: found 'tset'" tset

expect "no dpkg" 2 1 "[dev.setup] expected Debian 12 or a system like it: found no dpkg-query" setup
# Every package is there but libpng-dev, and one is known but removed.
stand_in dpkg-query 'shift 3; for p; do case $p in libpng-dev) ;; zlib1g-dev) printf " config-files:$p " ;;
  *) printf " installed:$p " ;; esac; done; exit 1'
stand_in id 'echo 1000'
command="apt-get install -y --no-install-recommends libpng-dev zlib1g-dev"
expect "not root, no sudo" 2 1 \
  "[dev.setup] Debian packages are missing; run: su -c 'apt-get update && $command'" quickstart
stand_in sudo 'exit 1'
expect "not root, sudo asks for a password" 2 1 \
  "[dev.setup] Debian packages are missing; run: sudo apt-get update && sudo $command" test
stand_in sudo 'shift; [ "$1" = true ] || { echo "sudo ran: $*"; exit 1; }'
expect "sudo without a password, apt-get fails" 1 0 "sudo ran: env DEBIAN_FRONTEND=noninteractive apt-get update" setup
stand_in sudo 'shift; [ "$1" = true ] || "$@"'
stand_in apt-get 'echo "apt-get ran: $*"; [ "$1" = update ]'
expect "apt-get update works, the package is unknown" 1 0 "apt-get ran: install -y" setup

[ $failures = 0 ] || exit 1
echo "all cases passed"
