#!/bin/sh
# Makes the parity fixture again and compares it with the committed one. Exit code 77 (skipped) without timm.
folder=$(cd "$(dirname "$0")" && pwd)
python=${TESSERA_PEERS_PYTHON:-$folder/../../.venv-peers/bin/python}
if [ ! -x "$python" ]; then
  echo "[tests.parity_fixture] a Python with timm 1.0.31 was expected: not found" \
       "($python; run ./dev peers, or set TESSERA_PEERS_PYTHON)"
  exit 77
fi
exec "$python" "$folder/make_parity_fixture.py" --check
