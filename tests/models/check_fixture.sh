#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_fixture.sh MAKER MODULE...: makes a fixture again with the Python program MAKER and compares it with the committed
# one. Exit code 77 (skipped) where a module is missing, 1 with TESSERA_NO_SKIP=1.
maker=$1
shift
python=${TESSERA_PEERS_PYTHON:-$(cd "$(dirname "$0")" && pwd)/../../.venv-peers/bin/python}
for module; do
  if [ ! -x "$python" ] || ! "$python" -c "import $module"; then
    echo "skipped: [tests.fixture] a Python with $module was expected: not found" \
         "($python; run ./dev peers, or set TESSERA_PEERS_PYTHON)"
    [ "${TESSERA_NO_SKIP:-}" = 1 ] && exit 1  # ./dev test --all has installed it
    exit 77
  fi
done
exec "$python" "$maker" --check
