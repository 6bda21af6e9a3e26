#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The front door's words and exit codes. A copy of ./dev runs in a scratch folder and sees only the few programs
# put on its PATH, some of them stand-ins, so that nothing is installed or built.
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin" "$scratch/tree"
cp "$source/dev" "$scratch/tree/dev"
for tool in awk cat dirname env flock mkdir sed; do ln -s "$(command -v $tool)" "$scratch/bin/$tool"; done
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
expect "unknown verb" 2 1 "[dev.tset] unknown verb 'tset': expected one of quickstart, test, " tset
expect "a verb with a slip" 2 1 ", clean, help; did you mean quickstart?" quikstart
expect "a verb near no other" 2 1 "clean, help" nonsense
cp "$source/CMakePresets.json" "$scratch/tree"
expect "unknown preset" 2 1 "[dev.build] unknown preset 'relase': expected one of dev, edit, release, asan, tsan, tidy, torch210, cuda, fuzz; did you mean release?" \
  build relase
expect "a hidden preset" 2 1 "[dev.build] unknown preset 'base': expected one of dev, " build base
[ ! -e "$scratch/tree/build" ] || { failures=$((failures + 1)); echo "FAILED: an unknown preset left a build folder"; }
for words in "build --fast" "install --prefix" "gpu-kit --rehearse" "setup --all" "peers --all" "cuda-check --all" "format --check"; do
  expect "$words" 2 1 "unknown option '${words#* }': expected ./dev ${words%% *}" $words
done
mkdir "$scratch/tree/build"
expect "clean with a wrong option" 2 1 "[dev.clean] unknown option '--al': expected ./dev clean [--all]" clean --al
[ -d "$scratch/tree/build" ] || { failures=$((failures + 1)); echo "FAILED: a wrong option removed the build folder"; }
rmdir "$scratch/tree/build"
expect "one argument too many" 2 1 "[dev.build] unexpected argument 'asan': expected ./dev build [PRESET]" build dev asan

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

# From here on all packages and wheels are in place (their stamps say so); cmake and ctest are stand-ins, whose words
# and environment are noted in $scratch/calls.
export TESSERA_SKIP_APT=1
unset CUDA CUDACXX TESSERA_NO_SKIP
for tool in cksum cp cut grep ln nproc rm seq wc; do ln -s "$(command -v $tool)" "$scratch/bin/$tool"; done
cp -r "$source/tools" "$source/CMakePresets.json" "$scratch/tree"
mkdir -p "$scratch/tree/.venv/bin"
stamp() { cksum <"$source/tools/$2.txt" >"$scratch/tree/$1/.$2"; }
stamp .venv requirements
stand_in cmake "echo \"cmake \$* CUDACXX=\${CUDACXX:-}\" >>'$scratch/calls'
  case \$1 in --fresh) mkdir -p build/dev; : >build/dev/build.ninja ;; esac"

# noted WHAT TEXT: the calls since the last one hold TEXT; "" for none.
noted() {
  calls=$(cat "$scratch/calls" 2>/dev/null || true)
  rm -f "$scratch/calls"
  case "$calls" in *"$2"*) [ -n "$2" ] || [ -z "$calls" ] && return ;; esac
  failures=$((failures + 1))
  printf 'FAILED %s: expected the calls to hold "%s": found\n%s\n' "$1" "$2" "$calls"
}
plain="cmake --fresh --preset dev CUDACXX="  # the end of the line: without the plug-in
afresh() { rm -rf "$scratch/tree/build" "$scratch/calls"; }

expect "set-up without a GPU" 0 2 "-- ready" setup
noted "the CPU alone" "$plain"
expect "set-up again" 0 1 "-- ready" setup
noted "nothing to do" ""
stand_in nvidia-smi 'exit 9'
expect "a driver that finds no GPU" 0 1 "-- ready" setup
noted "the CPU alone" ""
if [ ! -x /usr/local/cuda/bin/nvcc ]; then
  export CUDA=1
  expect "CUDA=1 without nvcc" 2 1 "[dev.setup] CUDA=1 expects the CUDA 13 toolkit: found no nvcc" setup
  expect "CUDA=1 without nvcc, the main command" 2 1 "[dev.setup] CUDA=1 expects" quickstart
  unset CUDA
  stand_in nvidia-smi 'echo "GPU 0: a stand-in"'
  afresh
  expect "a GPU without nvcc" 0 3 "-- a GPU is here but no nvcc: building for the CPU alone" setup
  noted "the CPU alone" "$plain"
  expect "cuda-check without nvcc" 0 1 "cuda-check: skipped: no nvcc" cuda-check
fi
stand_in nvidia-smi 'echo "GPU 0: a stand-in"'
stand_in nvcc 'echo "Cuda compilation tools, release 13.0, V13.0.88"'
stand_in ../tree/.venv/bin/python "echo \"python \$*\" >>'$scratch/calls'; exit 1"
afresh
expect "the CUDA wheels cannot be had" 2 0 \
  "[dev.setup] expected pip to install tools/requirements-cuda.txt into .venv: it failed" setup
noted "pip" "-r tools/requirements-cuda.txt"
stamp .venv requirements-cuda
with="cmake --fresh --preset dev -DTESSERA_CUDA=ON CUDACXX=$scratch/bin/nvcc"
expect "a GPU and nvcc" 0 2 "-- ready" setup
noted "the plug-in" "$with"
export CUDA=0
expect "CUDA=0 where a GPU is" 0 2 "-- ready" setup
noted "the CPU alone" "$plain"
export CUDA=1
rm "$scratch/bin/nvidia-smi"
expect "CUDA=1 without a GPU" 0 2 "-- ready" setup
noted "the plug-in" "$with"
unset CUDA

# The last lines of ./dev test tell what was skipped, also in tests that passed; its exit code is ctest's.
stand_in ctest "[ \$# = 0 ] || mkdir -p build/dev/Testing/Temporary
  cat >build/dev/Testing/Temporary/LastTest.log <<END
1/3 Testing: e2e.launchers
by_hand_trains: passed (1.2 s)
torchrun_trains: skipped: no Python with torch (0.1 s)
2/3 Testing: data.Shared.Photos
tests/data/shared_test.cpp:12: Skipped
no photos here
3/3 Testing: data.Shared.MorePhotos
tests/data/shared_test.cpp:24: Skipped
no photos here
3/3 Testing: train.guard
warning: step 41 is skipped: not finite
END
  exit 8"
expect "a first build" 8 0 "-- building build/dev (from nothing: some minutes)" test
expect "a second build" 8 0 "-- bringing build/dev up to date" test
expect "skipped parts are told" 8 0 "--   e2e.launchers: torchrun_trains: no Python with torch
--   data.Shared.Photos and 1 more: no photos here" test
case "$output" in
  *"step 41"*) failures=$((failures + 1)); echo "FAILED: what a test itself prints is no skipped part" ;;
esac

# What failed is run again, alone, up to twice: the stand-in passes in its run number $1 with `--rerun-failed`.
failing() {
  rm -f "$scratch/calls" "$scratch/turns"
  stand_in ctest "
    [ \$# -gt 0 ] || exit 0
    case \"\$*\" in *--rerun-failed*) ;; *) [ $2 = 0 ] || seq $2 | sed 's/.*/&:room.Test&/' >build/dev/Testing/Temporary/LastTestsFailed.log; exit 8 ;; esac
    echo x >>'$scratch/turns'
    [ \$(wc -l <'$scratch/turns') -lt $1 ] || exit 0
    exit 8"
}
failing 1 2
expect "passes when run again" 0 0 "-- passed only when run again, alone: room.Test1 room.Test2" test
failing 2 1
expect "passes in the second turn" 0 0 "-- passed only when run again, alone: room.Test1" test
failing 3 1
expect "fails always" 8 0 "-- failed above and run again, alone (second time): room.Test1" test
failing 1 21
expect "too many to be an accident" 8 0 "" test
failing 1 0  # ctest fails without a list, beside the one of an earlier run
echo 1:room.Earlier >"$scratch/tree/build/dev/Testing/Temporary/LastTestsFailed.log"
expect "an earlier run's failures" 8 0 "" test
[ ! -f "$scratch/turns" ] || { failures=$((failures + 1)); echo "FAILED: an earlier run's failures were run again"; }

# ./dev test --all: every preset has its turn although the tests fail, and no test may skip what is installed.
stand_in ctest "echo \"ctest \$2 TESSERA_NO_SKIP=\${TESSERA_NO_SKIP:-}\" >>'$scratch/calls'; exit 8"
mkdir -p "$scratch/tree/.venv-peers" "$scratch/tree/.venv-torch210"
stamp .venv-peers requirements-peers
stamp .venv-torch210 requirements-torch210
rm -f "$scratch/calls"
expect "./dev test --all with failures" 1 0 "-- failed presets: asan tsan torch210 dev" test --all
cp "$scratch/calls" "$scratch/all"
for call in "cmake --build build/asan" "cmake --build build/tsan" "cmake --fresh --preset tidy" "cmake --build build/tidy" \
  "cmake --fresh --preset torch210" "cmake --build build/torch210" "cmake --build build/edit" "ctest build/torch210" \
  "ctest build/asan TESSERA_NO_SKIP=1" "ctest build/dev TESSERA_NO_SKIP=1"; do
  cp "$scratch/all" "$scratch/calls"
  noted "./dev test --all" "$call"
done

# Where TESSERA_NO_SKIP=1, what lacks something that ./dev installs fails instead.
for maker in check_fixture.sh check_parity_fixture.sh; do
  for no_skip in 0:77 1:1; do
    got=0
    output=$(TESSERA_PEERS_PYTHON=/nowhere TESSERA_NO_SKIP=${no_skip%:*} "$source/tests/models/$maker" x json) || got=$?
    [ "$got" = "${no_skip#*:}" ] || { failures=$((failures + 1)); echo "FAILED $maker $no_skip: exit $got"; }
  done
done
for no_skip in 0:77 1:1; do
  got=0
  output=$(TESSERA_BIN=/bin/sh TESSERA_NO_SKIP=${no_skip%:*} PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$source/tests/e2e" \
    python3 -c 'import harness
def lacks():
    raise harness.Missing("no such program")
harness.main(lacks)') || got=$?
  [ "$got" = "${no_skip#*:}" ] || { failures=$((failures + 1)); echo "FAILED harness.main $no_skip: exit $got: $output"; }
done

[ $failures = 0 ] || exit 1
echo "all cases passed"
