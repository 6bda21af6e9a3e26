#!/bin/sh
# Makes the ResNet fixture again and compares it with the committed one. Exit code 77 (skipped) without torchvision.
folder=$(cd "$(dirname "$0")" && pwd)
python=${TESSERA_PEERS_PYTHON:-$folder/../../.venv-peers/bin/python}
if [ ! -x "$python" ] || ! "$python" -c "import timm, torchvision"; then
  echo "[tests.resnet_fixture] a Python with torchvision and timm was expected: not found" \
       "($python; run ./dev peers, or set TESSERA_PEERS_PYTHON)"
  exit 77
fi
exec "$python" "$folder/make_resnet_fixture.py" --check
