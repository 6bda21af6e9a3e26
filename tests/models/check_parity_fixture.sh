#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_parity_fixture.sh TEST_MODELS: makes the parity fixture again and compares it with the committed one, then lets
# the test program compare every gradient whole. Exit code 77 (skipped) without timm,
# 1 with TESSERA_NO_SKIP=1.
folder=$(cd "$(dirname "$0")" && pwd)
python=${TESSERA_PEERS_PYTHON:-$folder/../../.venv-peers/bin/python}
if [ ! -x "$python" ]; then
  echo "skipped: [tests.parity_fixture] a Python with timm 1.0.31 and torchvision was expected: not found" \
       "($python; run ./dev peers, or set TESSERA_PEERS_PYTHON)"
  [ "${TESSERA_NO_SKIP:-}" = 1 ] && exit 1  # ./dev test --all has installed it
  exit 77
fi
scratch=$(mktemp -d) || exit 1
trap 'rm -r "$scratch"' EXIT
"$python" "$folder/make_parity_fixture.py" --check --gradients "$scratch/gradients.safetensors" &&
  TESSERA_PARITY_GRADIENTS="$scratch/gradients.safetensors" "$1" --gtest_filter='Timm/Parity.*'
