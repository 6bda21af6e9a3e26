#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A room includes only itself and rooms in lower rows, and a torch-free room no LibTorch header. A folder of a room may
be allowed less than its room (INNER).

check_rooms.py [ROOT] prints every wrong arrow; check_rooms.py --self-test proves that it sees them.
"""
import pathlib
import re
import sys
import tempfile

ROWS = ["cli", "train library", "profile", "eager", "loop optim models weights", "recipe prepare", "cuda parallel shard", "mesh",
        "ops data checkpoint monitor planner", "plan", "arch device formats launch", "base"]
ROW = {room: row for row, rooms in enumerate(ROWS) for room in rooms.split()}
TORCH_FREE = set("base arch formats plan planner data recipe checkpoint monitor prepare weights launch loop cli".split())
# Folders inside a room which include only themselves and these rooms, and no LibTorch header.
INNER = {"ops/cpu": {"base"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"tessera/(\w+)/([^"]*)|([<"](?:torch|ATen|c10)/))', re.M)


def is_torch_free(path):
    """Whether a file, given relative to the root, lies in a torch-free room or folder."""
    return path.parts[1] in TORCH_FREE or "/".join(path.parts[1:3]) in INNER


def wrong_arrows(root):
    """Lines `file: what is wrong` for all sources of root/tessera."""
    found = []
    for path in sorted((root / "tessera").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        name, room = path.relative_to(root), path.relative_to(root).parts[1]
        if room not in ROW:
            found.append(f"{name}: room '{room}' is not in the table of check_rooms.py")
            continue
        folder = "/".join(name.parts[1:3])
        inner = folder if folder in INNER else None
        for target, rest, torch in INCLUDE.findall(path.read_text()):
            if torch and is_torch_free(name):
                found.append(f"{name}: torch-free {f'folder {inner!r}' if inner else f'room {room!r}'} includes a LibTorch header")
            elif target and target != room and ROW.get(target, -1) <= ROW[room]:
                found.append(f"{name}: room '{room}' may not include room '{target}'")
            elif target and inner and target not in INNER[inner] and not f"{target}/{rest}".startswith(f"{inner}/"):
                found.append(f"{name}: folder '{inner}' may not include '{target}/{rest}'")
    return found


def self_test():
    cases = [("plan", '#include "tessera/data/loader.h"', "'plan' may not include room 'data'"),
             ("ops", '#  include "tessera/mesh/x.h"', "'ops' may not include room 'mesh'"),
             ("data", "#include <torch/torch.h>", "'data' includes a LibTorch header"),
             ("cli", "#include <ATen/ATen.h>", "'cli' includes a LibTorch header"),
             ("shed", "#include <vector>", "'shed' is not in the table"),
             ("ops", '#include "tessera/shed/x.h"', "'ops' may not include room 'shed'"),
             ("ops/cpu", '#include "tessera/ops/linear.h"', "'ops/cpu' may not include 'ops/linear.h'"),
             ("ops/cpu", '#include "tessera/plan/plan.h"', "'ops/cpu' may not include 'plan/plan.h'"),
             ("ops/cpu", "#include <c10/x.h>", "'ops/cpu' includes a LibTorch header"),
             ("ops/cpu", '#include "tessera/ops/cpu/cpu.h"', None), ("ops/cpu", '#include "tessera/base/error.h"', None),
             ("cli", '#include "tessera/base/error.h"', None), ("mesh", "#include <c10/x.h>", None)]
    for room, line, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "tessera", room, "x.cpp")
            source.parent.mkdir(parents=True)
            source.write_text(f"// A file.\n{line}\n")
            found = wrong_arrows(pathlib.Path(folder))
        assert len(found) == (expected is not None) and (not found or expected in found[0]), (line, found)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    arrows = wrong_arrows(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    sys.exit("\n".join(arrows) or 0)
