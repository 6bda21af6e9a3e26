#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A room includes only itself and rooms in lower rows, and a torch-free room no LibTorch header.

check_rooms.py [ROOT] prints every wrong arrow; check_rooms.py --self-test proves that it sees them.
"""
import pathlib
import re
import sys
import tempfile

ROWS = ["cli", "train library", "profile", "eager", "loop optim models weights", "recipe prepare", "cuda parallel shard", "mesh",
        "ops data checkpoint monitor planner", "plan", "arch formats launch", "base"]
ROW = {room: row for row, rooms in enumerate(ROWS) for room in rooms.split()}
TORCH_FREE = set("base arch formats plan planner data recipe checkpoint monitor prepare weights launch loop cli".split())
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"tessera/(\w+)/|([<"](?:torch|ATen|c10)/))', re.M)


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
        for target, torch in INCLUDE.findall(path.read_text()):
            if torch and room in TORCH_FREE:
                found.append(f"{name}: torch-free room '{room}' includes a LibTorch header")
            elif target and target != room and ROW.get(target, -1) <= ROW[room]:
                found.append(f"{name}: room '{room}' may not include room '{target}'")
    return found


def self_test():
    cases = [("plan", '#include "tessera/data/loader.h"', "'plan' may not include room 'data'"),
             ("ops", '#  include "tessera/mesh/x.h"', "'ops' may not include room 'mesh'"),
             ("data", "#include <torch/torch.h>", "'data' includes a LibTorch header"),
             ("cli", "#include <ATen/ATen.h>", "'cli' includes a LibTorch header"),
             ("shed", "#include <vector>", "'shed' is not in the table"),
             ("ops", '#include "tessera/shed/x.h"', "'ops' may not include room 'shed'"),
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
