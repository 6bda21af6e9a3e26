#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/library.md names every public member of the headers it calls a reference of, and nothing that is not there.

check_library.py ROOT compares; check_library.py --self-test proves that it sees what is missing.

A heading "### `tessera/<room>/<header>.h`" begins a header's rows, a heading with `Name` in it those of one class. In the first
column of a table, `Name` is declared in the header and `.member` belongs to the class named last.
"""
import pathlib
import re
import sys

LIST = "## Stable headers"
CODE = re.compile(r"`([^`]+)`")
HEADER = re.compile(r"tessera/[\w/]+\.h")


def statements(text):
    """(declaration, body or None) of the outermost level."""
    at = begin = round_ = 0
    while at < len(text):
        char = text[at]
        round_ += (char == "(") - (char == ")")
        if char == "{" and round_ == 0:
            end, depth = at, 0
            while True:
                depth += (text[end] == "{") - (text[end] == "}")
                end += 1
                if depth == 0:
                    break
            head = text[begin:at]
            value = re.search(r"=\s*$|\w\s*$", head) and "(" not in without_templates(head) and not re.match(
                r"(\s|template\b.*?>|public:|private:|protected:)*(enum|class|struct|namespace|union)\b", head, re.S)
            if value:  # an initial value: the declaration goes on
                text = text[:at] + " " * (end - at) + text[end:]
                at = end
                continue
            yield head, text[at + 1:end - 1]
            at = begin = end
            continue
        if char == ";" and round_ == 0:
            yield text[begin:at], None
            begin = at + 1
        at += 1


def without_templates(text):
    """Template arguments and default values are not part of a name."""
    while True:
        shorter = re.sub(r"<[^<>]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def names_of(head, class_name):
    """What one declaration that is no type declares."""
    head = without_templates(re.sub(r"\[\[.*?\]\]", "", head)).strip()
    macro = re.match(r"(TORCH_ARG|TORCH_MODULE)\(([^()]*)\)", head)
    if macro:
        return [macro[2].split(",")[-1].strip()]
    alias = re.match(r"using\s+(\w+)\s*=", head)
    if alias:
        return [alias[1]]
    if not head or re.match(r"(friend|using|namespace|class|struct|enum)\b", head) or "operator" in head:
        return []
    function = re.search(r"(~?\w+)\s*\(", head.split("=")[0] if "(" not in head.split("=")[0] else head)
    if function:
        return [] if function[1].lstrip("~") == class_name else [function[1]]
    fields = re.sub(r"=[^,]*", "", head).split(",")
    return [match[1] for match in (re.search(r"(\w+)\s*(\[\w*\])?\s*$", field.strip()) for field in fields) if match]


def declared(text, class_name=None, access="public"):
    """Names: "Type", "function", "Type.member"."""
    found = []
    for head, body in statements(text):
        for label in re.findall(r"\b(public|private|protected)\s*:(?!:)", head):
            access = label
        head = re.sub(r"\b(public|private|protected)\s*:(?!:)", "", head).strip()
        if access != "public":
            continue
        space = re.match(r"namespace\s*([\w:]*)\s*$", head)
        if space and body is not None:
            if space[1] != "detail":
                found += declared(body)
            continue
        kind = re.match(r"(?:template\s*<.*?>\s*)?(class|struct|enum(?:\s+class)?)\s+(\w+)[^;(]*$", head, re.S)
        if kind and body is not None:
            name = kind[2]
            found.append(name)
            if kind[1].startswith("enum"):
                found += [f"{name}.{entry.split('=')[0].strip()}" for entry in body.split(",") if entry.strip()]
            else:
                members = declared(body, name, "private" if kind[1] == "class" else "public")
                found += [f"{name}.{member}" for member in members if "." not in member]
            continue
        found += names_of(head, class_name)
    return found


def of_header(text):
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^\s*#(?:[^\n\\]|\\\n|\\.)*", "", text, flags=re.M)
    return set(declared(text))


def of_page(page):
    """{header: names}, and the list of stable headers."""
    named, header, owner, stable, listing = {}, None, None, [], False
    for line in page.splitlines():
        if line.startswith("#"):
            codes = CODE.findall(line)
            if codes and HEADER.fullmatch(codes[0]):
                header, owner = codes[0], None
                named.setdefault(header, set())
            elif codes and re.fullmatch(r"\w+", codes[0]):
                owner, header = codes[0], None
            else:
                owner = header = None
            listing = line == LIST
        elif listing:
            stable += [code for code in CODE.findall(line) if HEADER.fullmatch(code)]
        elif line.startswith("|") and (header or owner):
            for code in CODE.findall(line.split("|")[1]):
                name = re.match(r"\.?\w+", code)
                if not name:
                    continue
                if name[0].startswith(".") or header is None:
                    named.setdefault(header, set()).add(f"{owner}.{name[0].lstrip('.')}")
                else:
                    owner = name[0]
                    named[header].add(name[0])
    return named, stable


def faults(root):
    named, stable = of_page((root / "docs/library.md").read_text())
    found = [] if stable else [f"no headers under '{LIST}'"]
    found += [f"no header {header}" for header in stable if not (root / header).is_file()]
    must = {str(path.relative_to(root)) for path in (root / "tessera/library").glob("*.h")
            if "Private to the\n// room" not in path.read_text() and "Private to the room" not in path.read_text()}
    found += [f"{header} has no section" for header in sorted(must - set(named))]
    found += [f"{header} is not among the stable headers" for header in sorted(must - set(stable))]
    elsewhere = named.pop(None, set())  # a class whose settings have a section of their own
    for header, names in named.items():
        if not (root / header).is_file():
            found.append(f"no header {header}")
            continue
        there = of_header((root / header).read_text())
        known = names | {name for name in elsewhere if name.split(".")[0] in {n.split(".")[0] for n in there}}
        found += [f"{header}: {name} is in no table" for name in sorted(there - known)]
        found += [f"{header}: there is no {name}" for name in sorted(known - there)]
    return found


SAMPLE = """#pragma once
#include <x>
namespace tessera::library {
enum class Kind { kOne, kTwo = 4 };
/// class Hidden { int no; };
struct Options : Base<Options> {
  explicit Options(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(Pair<int, int>, betas) = make({1, 2});
  std::vector<Axis> axes = {{"shard", 0}};
  std::chrono::milliseconds timeout{600'000};
  int64_t begin = 0, end = 0;
  std::function<int(const A& a, B b)> wrap = {};
 public:
  double get() const override { return lr_; }
};
class Mesh;
class Net {
 public:
  Net(int a, Options options = {});
  ~Net();
  Net& operator=(Net&&) noexcept;
  template <typename Body>
  std::invoke_result_t<Body> forward(Body&& body) { if (x) { y(); } return 1; }
  const std::string& name() const { return name_; }
  class Engine;
 private:
  class Scope { public: int inner; };
  int name_ = 0;
};
using List = std::vector<int>;
namespace detail { int hidden(); }
template <typename... Modules>
Policy by_type(Options options = {}) { return {}; }
}
"""
EXPECTED = {"Kind", "Kind.kOne", "Kind.kTwo", "Options", "Options.betas", "Options.axes", "Options.timeout", "Options.begin",
            "Options.end", "Options.wrap", "Options.get", "Net", "Net.forward", "Net.name", "List", "by_type"}


def self_test():
    found = of_header(SAMPLE)
    assert found == EXPECTED, found ^ EXPECTED
    page = "## Settings: `Options`\n| `axes` | a |\n## R\n### `tessera/library/x.h`\n| `Net` | n |\n| `.forward(b)`, `.name()` | f |\n"
    named, _ = of_page(page + LIST + "\n`tessera/library/x.h`\n")
    assert named == {None: {"Options.axes"}, "tessera/library/x.h": {"Net", "Net.forward", "Net.name"}}, named
    assert of_page(page + LIST + "\n`tessera/library/x.h` and `y`\n")[1] == ["tessera/library/x.h"]


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    sys.exit("\n".join(faults(pathlib.Path(sys.argv[1]))) or 0)
