#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The list of installed headers is complete and holds nothing that calls itself private.

check_public_headers.py ROOT; check_public_headers.py --self-test proves that it sees what is wrong.
"""
import pathlib
import re
import sys
import tempfile

LIST = "cmake/TesseraPublicHeaders.cmake"


def faults(root):
    """Lines: what is wrong with the list of `root`."""
    listed = re.findall(r"^\s+(tessera/\S+\.h)", (root / LIST).read_text(), re.M)
    found = [f"{LIST}: {header} is listed twice" for header in {h for h in listed if listed.count(h) > 1}]
    for header in listed:
        path = root / header
        if not path.is_file():
            found.append(f"{LIST}: there is no {header}")
            continue
        text = path.read_text()
        if re.search(r"\bprivate(\s|//)+to\b", text, re.I):
            found.append(f"{header} is installed and says that it is private")
        found += [f"{header} is installed and includes {name}, which is not in {LIST}"
                  for name in re.findall(r'^#include "(tessera/[^"]+)"', text, re.M) if name not in listed]
    for example in sorted(root.glob("examples/*.*")):
        found += [f"{example.relative_to(root)} includes {name}, which is not in {LIST}"
                  for name in re.findall(r'^#include <(tessera/[^>]+)>', example.read_text(), re.M)
                  if name not in listed]
    return found


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {LIST: "set(X\n  tessera/a/x.h\n  tessera/a/none.h\n  tessera/a/x.h\n  tessera/a/z.h)\n",
                           "tessera/a/z.h": "// Two lines. Private\n// to the room.\n",
                           "tessera/a/x.h": '// Private to the room.\n#include "tessera/a/y.h"\n', "tessera/a/y.h": "",
                           "examples/own.cpp": "#include <tessera/a/y.h>\n"}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        text = "\n".join(faults(root))
        for expected in ("x.h is listed twice", "there is no tessera/a/none.h", "x.h is installed and says that it is private",
                         "z.h is installed and says that it is private",
                         "includes tessera/a/y.h", "examples/own.cpp includes"):
            assert expected in text, (expected, text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    sys.exit("\n".join(faults(pathlib.Path(sys.argv[1]))) or 0)
