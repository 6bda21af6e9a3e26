#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_commit.sh CMAKE SCRIPT: cmake/TesseraVersion.cmake names the commit by its hash, on a tagged commit and after one,
# and says "unknown" in a folder without git. Exit code 77 (skipped) where git is not installed.
set -eu
cmake=$1 script=$2
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE  # of a hook: they name another repository
command -v git >/dev/null || { echo "skipped: git is not installed"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# expect WHAT COMMIT: the header that the script makes for the folder names COMMIT.
expect() {
  "$cmake" "-DGIT=$(command -v git)" -DSOURCE="$folder/source" -DVERSION=9.9.9 -DOUT="$folder/version.h" -P "$script"
  grep -qxF "#define TESSERA_BUILD_COMMIT \"$2\"" "$folder/version.h" && return
  echo "$1: expected commit '$2' in:"; cat "$folder/version.h"; exit 1
}
in_source() {
  git -C "$folder/source" -c user.name=test -c user.email=test@test -c commit.gpgsign=false -c tag.gpgsign=false "$@"
}

mkdir "$folder/source"
expect "a folder without git" unknown
in_source init -q
echo one >"$folder/source/file"
in_source add file
in_source commit -qm first
hash=$(in_source rev-parse HEAD | cut -c 1-12)
expect "a commit" "$hash"
in_source tag -am tag v9.9.9
expect "a tagged commit" "$hash"
echo two >"$folder/source/file"
expect "uncommitted changes" "$hash-dirty"
in_source commit -qam second
expect "a commit after a tag" "$(in_source rev-parse HEAD | cut -c 1-12)"
