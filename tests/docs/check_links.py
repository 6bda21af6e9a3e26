#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Documentation points at things that exist: relative links (with their #heading) and the tests it names.

check_links.py [ROOT] prints every dead one; check_links.py --self-test proves that it sees them.
"""
import pathlib
import re
import sys
import tempfile

LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)
NAMED_TEST = re.compile(r"`(?:[a-z_]+\.)?([A-Z]\w+\.[A-Z]\w+)`")
TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.M)
SKIPPED = {".git", ".venv", ".venv-peers", ".cache", "build", "runs", "shared"}


def pages(root):
    return [page for page in sorted(root.rglob("*.md")) if not SKIPPED & set(page.relative_to(root).parts)]


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead(root):
    """Lines `page: what does not exist`."""
    tests = {f"{suite}.{name}" for source in (root / "tests").rglob("*.cpp")
             for suite, name in TEST.findall(source.read_text())}
    found = []
    for page in pages(root):
        text = page.read_text()
        for target in LINK.findall(CODE.sub("", text)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            if not file.exists():
                found.append(f"{page.relative_to(root)}: no file {target}")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                found.append(f"{page.relative_to(root)}: no heading {target}")
        found += [f"{page.relative_to(root)}: no test {name}"
                  for name in NAMED_TEST.findall(text) if name not in tests]
    return found


def self_test():
    cases = [("[a](docs/a.md)", None), ("[a](docs/b.md)", "no file docs/b.md"), ("![p](p.png)", "no file p.png"),
             ("[a](docs/a.md#the-first-one)", None), ("[a](docs/a.md#second)", "no heading docs/a.md#second"),
             ("[h](#here-1)\n# Here 1", None), ("[h](#there)", "no heading #there"),
             ("[w](https://example.org/x)", None), ("`[a](b)`", None), ("```\n[a](b)\n```", None),
             ("proved by `room.Suite.Works`", None), ("`Suite.Breaks`", "no test Suite.Breaks")]
    for text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("docs", "tests", "build"):
                (root / name).mkdir()
            (root / "docs/a.md").write_text("# A\n## The `first` one!\n")
            (root / "build/skipped.md").write_text("[a](nowhere)")
            (root / "tests/x_test.cpp").write_text("TEST(Suite, Works) {}\n")
            (root / "page.md").write_text(text)
            found = dead(root)
        assert found == ([f"page.md: {expected}"] if expected else []), (text, found)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    sys.exit("\n".join(dead(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))) or 0)
