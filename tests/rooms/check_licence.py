#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tree can be published: licence lines in all sources, LICENSE, NOTICE, and one version in every file that states it.

check_licence.py [ROOT] prints a line for each fault; check_licence.py --self-test proves that it sees them. It reads the
folder, not git, so that it also works in an unpacked archive.
"""
import hashlib
import os
import pathlib
import re
import sys
import tempfile

SLASHES = {".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".proto"}
HASHES = {".py", ".sh", ".sbatch", ".cmake"}
SCRIPTS = {"dev", ".ci/run"}  # without an ending
SKIPPED = {".git", "__pycache__", "fixtures"}  # folders anywhere
SKIPPED_AT_ROOT = ("build", ".venv", ".cache", "runs", "shared")  # beginnings of folders of the root
SKIPPED_PATHS = {"fuzz/corpus"}
SPDX = "SPDX-License-Identifier: Apache-2.0"
# Of the words up to "END OF TERMS AND CONDITIONS", which are the same in every copy.
APACHE = "09ae9bf1886f530f7338889ef805f37b288ec6adedd1e1e32058921acf05a782"
END = "END OF TERMS AND CONDITIONS"
COPYRIGHT = re.compile(r"^ *Copyright \d{4}(-\d{4})? The Tessera authors$", re.M)
VERSION = r"\d+\.\d+\.\d+"
STATED = {"CMakeLists.txt": rf"^project\(tessera VERSION ({VERSION})\b", "CITATION.cff": rf"^version: \"?({VERSION})\"?$",
          "CHANGELOG.md": rf"^## \[?({VERSION})\b"}
PATH = re.compile(r"(?<![\w./-])(?:bench|docs|examples|fuzz|recipes|tessera|tests)/[\w./*-]*[\w*]")


def comment_of(path):
    """What a comment of this file begins with; None where it is no source file. `path` is relative to the root."""
    if path.name == "CMakeLists.txt" or path.name.endswith(".cmake.in") or path.suffix in HASHES or str(path) in SCRIPTS:
        return "#"
    return "//" if path.suffix in SLASHES else None


def sources(root):
    """(path relative to the root, beginning of a comment) of every source file."""
    for folder, folders, files in os.walk(root):
        at = pathlib.Path(folder).relative_to(root)
        folders[:] = sorted(name for name in folders if name not in SKIPPED and str(at / name) not in SKIPPED_PATHS
                            and not (at == pathlib.Path() and name.startswith(SKIPPED_AT_ROOT)))
        for name in sorted(files):
            if comment_of(at / name):
                yield at / name, comment_of(at / name)


def text_of(path):
    return path.read_text(errors="replace") if path.is_file() else None


def licence_lines(root):
    count = 0
    for path, comment in sources(root):
        count += 1
        with open(root / path, errors="replace") as file:
            begin = [file.readline().rstrip("\n") for _ in range(2)]
        if f"{comment} {SPDX}" not in begin:
            yield f"{path}: no licence in its first two lines; add the line '{comment} {SPDX}'"
    if not count:
        yield f"{root}: found no source files; name the root of the checkout"


def licence_files(root):
    text = text_of(root / "LICENSE")
    if text is None:
        yield "LICENSE: the file is missing; restore the text of the Apache License 2.0"
    else:
        words = " ".join(text.split(END)[0].split()) if END in text else ""
        if hashlib.sha256(words.encode()).hexdigest() != APACHE:
            yield "LICENSE: its terms are not those of the Apache License 2.0; restore them word for word"
        if not COPYRIGHT.search(text):
            yield "LICENSE: names no owner; write 'Copyright YEAR The Tessera authors' in its appendix"
    text = text_of(root / "NOTICE")
    if text is None:
        yield "NOTICE: the file is missing; restore the list of sources"
        return
    if not COPYRIGHT.search(text):
        yield "NOTICE: names no owner; begin it with 'Tessera' and 'Copyright YEAR The Tessera authors'"
    for name in sorted(set(PATH.findall(text))):
        if not any(root.glob(name)):
            yield f"NOTICE: {name} does not exist; write where it is now, or remove the entry"


def versions(root):
    found = {}
    for name, pattern in STATED.items():
        match = re.search(pattern, text_of(root / name) or "", re.M)
        if match:
            found[name] = match[1]
        else:
            yield f"{name}: states no version; add one like that of the other files ({', '.join(STATED)})"
    right = found.pop("CMakeLists.txt", None)
    for name, version in found.items():
        if right and version != right:
            yield f"{name}: its version is {version}, that of CMakeLists.txt is {right}; make them equal"
    text = text_of(root / "CITATION.cff")
    if text is not None and not re.search(r"^license: Apache-2\.0$", text, re.M):
        yield "CITATION.cff: states another licence or none; write 'license: Apache-2.0'"


def faults(root):
    return [*licence_lines(root), *licence_files(root), *versions(root)]


def self_test():
    here = pathlib.Path(__file__).resolve().parents[2]
    terms = (here / "LICENSE").read_text()
    good = {"LICENSE": terms, "NOTICE": "Tessera\nCopyright 2026 The Tessera authors\n\ntables: tessera/x.cpp, tests/*.py.\n",
            "CMakeLists.txt": f"# {SPDX}\nproject(tessera VERSION 1.2.3 LANGUAGES CXX)\n",
            "CITATION.cff": "version: 1.2.3\nlicense: Apache-2.0\n", "CHANGELOG.md": "# C\n## 1.2.3 - unreleased\n## 1.0.0\n",
            "tessera/x.cpp": f"// {SPDX}\n", "tests/y.py": f"#!/usr/bin/env python3\n# {SPDX}\n",
            "dev": f"#!/bin/sh\n# {SPDX}\n", ".ci/run": f"#!/bin/sh\n# {SPDX}\n", "docs/page.md": "no source",
            "build/made.cpp": "", "build-2/made.cpp": "", ".venv-peers/x.py": "", ".cache/x.py": "", ".git/hook.sh": "",
            "fuzz/corpus/a/in.h": "", "tests/data/fixtures/f.py": ""}
    cases = [({}, None),
             ({"CITATION.cff": 'version: "1.2.3"\nlicense: Apache-2.0\n', "CHANGELOG.md": "## [1.2.3] - 2026-01-01\n"}, None),
             ({"tessera/build/z.h": "#pragma once\n"}, "tessera/build/z.h: no licence"),
             ({"tools/dev": "#!/bin/sh\n", "runs/x.py": ""}, None),
             ({"tessera/x.cpp": f"\n\n// {SPDX}\n"}, "tessera/x.cpp: no licence"),
             ({"tessera/x.cpp": f"# {SPDX}\n"}, "add the line '// SPDX"),
             ({"tessera/x.cpp": "// SPDX-License-Identifier: MIT\n"}, "tessera/x.cpp: no licence"),
             *(({name: "\n"}, f"{name}: no licence in its first two lines; add the line '# SPDX")
               for name in ("tests/y.py", "dev", ".ci/run", "a/CMakeLists.txt", "a/b.cmake", "a/b.cmake.in", "a/b.sbatch",
                            "b.sh")),
             *(({name: "\n"}, f"{name}: no licence in its first two lines; add the line '// SPDX")
               for name in ("a/b.h", "a/b.cu", "a/b.cuh", "a/b.proto")),
             ({"LICENSE": None}, "LICENSE: the file is missing"), ({"NOTICE": None}, "NOTICE: the file is missing"),
             ({"LICENSE": terms.replace("perpetual", "temporary")}, "LICENSE: its terms are not"),
             ({"LICENSE": "Copyright 2026 The Tessera authors\n"}, "LICENSE: its terms are not"),
             ({"LICENSE": terms.replace("2026 The Tessera authors", "[yyyy] [name]")}, "LICENSE: names no owner"),
             ({"NOTICE": "Tessera\n"}, "NOTICE: names no owner"),
             ({"NOTICE": good["NOTICE"] + "more: tests/gone.py\n"}, "NOTICE: tests/gone.py does not exist"),
             ({"NOTICE": good["NOTICE"] + "more: tessera/y*.cpp\n"}, "NOTICE: tessera/y*.cpp does not exist"),
             ({"CITATION.cff": "version: 1.2.4\nlicense: Apache-2.0\n"}, "CITATION.cff: its version is 1.2.4"),
             ({"CITATION.cff": "version: 1.2.3\nlicense: MIT\n"}, "CITATION.cff: states another licence"),
             ({"CITATION.cff": None}, "CITATION.cff: states no version"),
             ({"CHANGELOG.md": "## 1.3.0\n## 1.2.3\n"}, "CHANGELOG.md: its version is 1.3.0"),
             ({"CHANGELOG.md": "# Changes\n"}, "CHANGELOG.md: states no version"),
             ({"CMakeLists.txt": f"# {SPDX}\nproject(tessera)\n"}, "CMakeLists.txt: states no version")]
    for changes, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**good, **changes}.items():
                if text is None:
                    continue
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            found = faults(pathlib.Path(folder))
        assert len(found) == (expected is not None) and (not found or expected in found[0]), (changes, found)
    with tempfile.TemporaryDirectory() as folder:
        assert any("found no source files" in line for line in faults(pathlib.Path(folder)))


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    sys.exit("\n".join(faults(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))) or 0)
