#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Functions of tessera/ have at most 60 lines and 5 parameters, or a comment that says why.

check_functions.py ROOT; check_functions.py --self-test proves that it sees what is wrong. The comment stands right above the
definition: "(Longer than 60 lines: REASON)", "(More than 5 parameters: REASON)". Kernels (rooms ops and cuda, data/pixel_kernels*) are exempt.
It relies on clang-format and reads brackets, not C++.
"""
import pathlib
import re
import sys
import tempfile

MOST_LINES, MOST_PARAMETERS = 60, 5
KERNELS = ("tessera/ops/", "tessera/cuda/", "tessera/data/pixel_kernels")
TYPES = ("namespace", "struct", "class", "enum", "union", "extern")


def blank(text):
    """The text with comments, strings and preprocessor lines as spaces; lines stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'', re.S)
    text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return re.sub(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def is_function(head):
    """What stands before a brace outside of functions: a function's head?"""
    head = re.sub(r"^(?:template\s*<[^{}]*>\s*)+", "", head)
    first = re.match(r"(?:inline\s+|\[\[\w+\]\]\s*)*(\w+)", head)
    if first and first[1] in TYPES and not re.search(r"\)\s*(?:const|noexcept|override|final|\s)*$", head):
        return False
    before = head.split("(")[0]
    return "(" in head and ("=" not in before or "operator" in before)


def parameters_of(head):
    """The number of parameters in the first parentheses of a head."""
    inside = head[head.index("(") + 1:]
    depth, count, seen = 0, 0, False
    for char in inside:
        if char in "(<[{":
            depth += 1
        elif char in ")>]}":
            if char == ")" and depth == 0:
                break
            depth -= 1
        elif char == "," and depth == 0:
            count += 1
        seen = seen or not char.isspace()
    return count + 1 if seen else 0


def functions_in(text):
    """(first line, last line, head) of each function that is defined outside of others; lines begin with 0."""
    code, stack, start, found = blank(text), [], 0, []
    for i, char in enumerate(code):
        if char == "{":
            head = re.sub(r"^\s*(?:(?:public|private|protected)\s*:\s*)*", "", code[start:i])
            first = i - len(head)
            stack.append((first, head if not any(kind for _, kind in stack) and is_function(head.strip()) else ""))
            start = i + 1
        elif char == "}" and stack:
            first, head = stack.pop()
            if head:
                found.append((text.count("\n", 0, first), text.count("\n", 0, i), " ".join(head.split())))
            start = i + 1
        elif char == ";":
            start = i + 1
    return found


def faults_of(name, text):
    lines, found = text.split("\n"), []
    for first, last, head in functions_in(text):
        comment, above = "", first - 1
        while above >= 0 and lines[above].strip().startswith("//"):
            comment = lines[above] + comment
            above -= 1
        reasons = re.sub(r"\s*//+\s*", " ", comment)
        title = f"{name}:{first + 1}: {head.split('(')[0].split()[-1]}"
        length, count = last - first + 1, parameters_of(head)
        if length > MOST_LINES and f"(Longer than {MOST_LINES} lines: " not in reasons:
            found.append(f"{title} has {length} lines: expected at most {MOST_LINES}, or why not")
        if count > MOST_PARAMETERS and f"(More than {MOST_PARAMETERS} parameters: " not in reasons:
            found.append(f"{title} has {count} parameters: expected at most {MOST_PARAMETERS}, or why not")
    return found


def faults(root):
    found = []
    for path in sorted((root / "tessera").rglob("*.*")):
        name = str(path.relative_to(root))
        if path.suffix in (".h", ".cpp") and not name.startswith(KERNELS):
            found += faults_of(name, path.read_text())
    return found


def self_test():
    long = "void long_one(int a) {\n" + "  // {\n" * 60 + "}\n"
    six = "int six(int a, std::map<int, int> b, int (*c)(int, int), int d,\n        std::pair<int, int> e, int f) {\n  return 1;\n}\n"
    five = "class Five {\n public:\n  Five(int a, std::map<int, int> b, int c, int d, int e) : a_{a} {}\n  const char* x = \"}\";\n};\n"
    why = "/// What it does.\n// (More than 5\n// parameters: a reason)\n" + six + "// (Longer than 60 lines: a reason)\n" + long
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"a/long.cpp": long, "a/six.h": six, "a/five.h": five, "a/why.cpp": why, "ops/six.cpp": six}.items():
            (root / "tessera" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "tessera" / name).write_text(text)
        assert faults(root) == ["tessera/a/long.cpp:1: long_one has 62 lines: expected at most 60, or why not",
                                "tessera/a/six.h:1: six has 6 parameters: expected at most 5, or why not"], faults(root)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    sys.exit("\n".join(faults(pathlib.Path(sys.argv[1]))) or 0)
