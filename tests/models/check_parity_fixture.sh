#!/bin/sh
# Makes a parity fixture again and compares it with the committed one: $1, make_parity_fixture.py without. Exit code 77
# (skipped) without timm and torchvision.
folder=$(cd "$(dirname "$0")" && pwd)
python=${TESSERA_PEERS_PYTHON:-$folder/../../.venv-peers/bin/python}
if [ ! -x "$python" ]; then
  echo "[tests.parity_fixture] a Python with timm 1.0.31 and torchvision was expected: not found" \
       "($python; run ./dev peers, or set TESSERA_PEERS_PYTHON)"
  exit 77
fi
exec "$python" "$folder/${1:-make_parity_fixture.py}" --check
