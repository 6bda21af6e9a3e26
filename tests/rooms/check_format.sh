#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Is the tree formatted? check_format.sh [-i]: with -i it is formatted in place. Exit 77: no clang-format 14.
# Version 14 is part of the agreement: another one formats some lines differently.
set -eu
cd "$(dirname "$0")/../.."
command -v clang-format-14 >/dev/null || { echo "skipped: clang-format-14 is not installed"; exit 77; }
[ "${1:-}" = -i ] && mode=-i || mode="--dry-run -Werror"
find tessera tests bench fuzz examples \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 2>/dev/null |
  xargs -0 -r -n 20 -P "$(nproc)" clang-format-14 $mode
