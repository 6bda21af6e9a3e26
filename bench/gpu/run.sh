#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs this kit on a machine with a GPU, the most important steps first:
#   run.sh [--minutes 8] [--only STEP,...] [--skip STEP,...] OUT
#   run.sh --rehearse OUT        the same steps with a small model on a CPU
#   run.sh --list                the steps in their order
# OUT gets results.md, next.md, results.json, kernels.csv and log.txt, written anew after each step. The kit needs a Python
# with torch of the version in kit.json: python3, or the one that TESSERA_PYTHON names. timm and torchvision are needed only for
# the comparisons.
# Exit code: 0 when at least one step passed and none failed; 1 otherwise; 2 for a wrong argument, or where no step can run (no
# torch, or no GPU and not --rehearse). With 2, OUT is not made.
set -eu
kit=$(CDPATH= cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd -P)
exec "${TESSERA_PYTHON:-python3}" "$kit/tools/steps.py" "$@"
