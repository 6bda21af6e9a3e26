#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that a GPU can launch every kernel of the CUDA plug-in: check_registers.sh BUILD_FOLDER, a folder of preset cuda.
# All threads of a block together have 65,536 registers on every GPU that CUDA 13 knows. ptxas prints how many registers a
# thread of a kernel needs; its largest block is its __launch_bounds__ (.maxntid in PTX), or 1,024 threads without. A kernel
# that keeps values in local memory because it has too few registers (a spill) fails as well.
set -eu
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The build's own commands, with a report and without its output files.
ninja -C "$build" -t commands tessera_cuda | grep ' -x cu -c ' | sed -E 's/ -MD -MT [^ ]+ -MF [^ ]+//; s/ -o [^ ]+$//' |
  awk -v work="$work" '{ d = work "/" NR; print "mkdir " d " && " $0 " --resource-usage --keep --keep-dir " d " -o " d "/out.o >" d "/log 2>&1" }' \
  >"$work/commands"
(cd "$build" && tr '\n' '\0' <"$work/commands" | xargs -0 -P "$(nproc)" -n 1 sh -c) || { cat "$work"/*/log >&2; exit 1; }

status=0
awk '
  FNR == 1 { is_ptx = FILENAME ~ /\.ptx$/ }
  is_ptx && /\.entry / { name = $NF; sub(/\(.*/, "", name) }
  is_ptx && /^\.maxntid / { most[name] = $2 + 0 }
  is_ptx { next }
  /Compiling entry function/ { split($0, quoted, "\047"); name = quoted[2]; gpu = quoted[4] }
  /spill stores/ { spilled = $5 }
  /Used [0-9]+ registers/ {
    ++kernels
    registers = int(($5 + 7) / 8) * 8  # handed out in eights
    threads = name in most ? most[name] : 1024
    what = name " for " gpu ": " $5 " registers, blocks of up to " threads " threads"
    if (registers * threads > 65536) { print "too many registers: " what; failed = 1 }
    if (spilled > 0) { print "spills " spilled " bytes: " what; failed = 1 }
    if ($5 > largest) { largest = $5; where = what }
  }
  END {
    if (kernels == 0) { print "ptxas reported no kernel"; failed = 1 }
    print kernels " kernels; most registers: " where
    exit failed
  }' "$work"/*/*.ptx "$work"/*/log >"$work/report" || status=1
if command -v c++filt >/dev/null; then c++filt <"$work/report"; else cat "$work/report"; fi
exit $status
