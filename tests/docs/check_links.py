#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Documentation points at things that exist: relative links (with their #heading) and the tests it names. Every feature in
docs/features.md has a state and, unless it is planned, a test.

check_links.py [ROOT] prints every fault; check_links.py --self-test proves that it sees them.
"""
import pathlib
import re
import sys
import tempfile

LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)
NAMED_TEST = re.compile(r"`(?:[a-z_]+\.)?([A-Z]\w+\.[A-Z]\w+)`")
NAMED_SCRIPT = re.compile(r"`e2e\.([a-z]\w*)`")
SCRIPT = re.compile(r"^tessera_e2e\((\w+)", re.M)
FEATURES = "docs/features.md"
HEAD = "| feature | state | tests |\n| --- | --- | --- |\n"
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
    scripts = {name for listing in (root / "tests").rglob("CMakeLists.txt") for name in SCRIPT.findall(listing.read_text())}
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
        found += [f"{page.relative_to(root)}: no test e2e.{name}" for name in NAMED_SCRIPT.findall(text) if name not in scripts]
        if page == root / FEATURES:
            found += [f"{FEATURES}: {fault}" for fault in features_without_proof(text)]
    return found


def features_without_proof(text):
    """Rows of the tables of features that have no state, or no test although they are not planned."""
    tables = text.split(HEAD)[1:]
    if not tables:
        yield "no table of features"
    for row in "\n".join(table.split("\n\n")[0] for table in tables).splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) != 3:
            yield f"no row of three cells: {row}"
        elif not re.match(r"(works|experimental|planned)\b", cells[1]):
            yield f"no state of '{cells[0]}'"
        elif not cells[1].startswith("planned") and "`" not in cells[2]:
            yield f"no test of '{cells[0]}'"


def self_test():
    cases = [("[a](docs/a.md)", None), ("[a](docs/b.md)", "no file docs/b.md"), ("![p](p.png)", "no file p.png"),
             ("[a](docs/a.md#the-first-one)", None), ("[a](docs/a.md#second)", "no heading docs/a.md#second"),
             ("[h](#here-1)\n# Here 1", None), ("[h](#there)", "no heading #there"),
             ("[w](https://example.org/x)", None), ("`[a](b)`", None), ("```\n[a](b)\n```", None),
             ("proved by `room.Suite.Works`", None), ("`Suite.Breaks`", "no test Suite.Breaks"),
             ("`e2e.kill`", None), ("`e2e.die`", "no test e2e.die")]
    rows = [("| a | works | `Suite.Works` |", []), ("| a | planned | |", []), ("| a | works: slow | |", ["no test of 'a'"]),
            ("| a | | `Suite.Works` |", ["no state of 'a'"]), ("| a | experimental | none |", ["no test of 'a'"]),
            ("| a | works |", ["no row of three cells: | a | works |"])]
    for row, expected in rows:
        for text in (f"{HEAD}{row}\n", f"# F\n{HEAD}| b | works | `e2e.kill` |\n\n## G\n{HEAD}{row}\n\n## H\n| x | y |\n"):
            assert list(features_without_proof(text)) == expected, (text, list(features_without_proof(text)))
    assert list(features_without_proof("# F\n")) == ["no table of features"]
    for text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("docs", "tests", "build"):
                (root / name).mkdir()
            (root / "docs/a.md").write_text("# A\n## The `first` one!\n")
            (root / "build/skipped.md").write_text("[a](nowhere)")
            (root / "tests/x_test.cpp").write_text("TEST(Suite, Works) {}\n")
            (root / "tests/CMakeLists.txt").write_text("tessera_e2e(kill kill ranks 240)\n")
            (root / "page.md").write_text(text)
            found = dead(root)
        assert found == ([f"page.md: {expected}"] if expected else []), (text, found)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    sys.exit("\n".join(dead(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))) or 0)
