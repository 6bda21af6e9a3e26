#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs this kit on a machine with a GPU, the most important steps first:
#   run.sh [--minutes 8] [--only STEP,...] [--skip STEP,...] OUT
#   run.sh --rehearse OUT        the same steps in small on a CPU
#   run.sh --list                the steps in their order
# OUT gets results.md, next.md, results.json, kernels.csv and log.txt, written anew after each step. The kit needs a python3
# with torch of the version in kit.json (TESSERA_PYTHON chooses another one); timm and torchvision serve the comparisons.
# Exit code: 0 when some step passed and none failed, 1 otherwise, 2 for a wrong argument.
set -eu
kit=$(CDPATH= cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd -P)
exec "${TESSERA_PYTHON:-python3}" "$kit/tools/steps.py" "$@"
