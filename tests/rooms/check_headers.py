#!/usr/bin/env python3
"""Every public header compiles alone: check_headers.py torch-free|torch COMPILER [FLAGS...].

The torch-free rooms are compiled without LibTorch's folders, the others with the FLAGS that name them. Where a torch-free
header's own source includes it before anything else, the build has already done that and it is not done again; the
sources of cli and of the other rooms begin with precompiled headers and prove nothing.
"""
import concurrent.futures
import functools
import os
import pathlib
import platform
import re
import subprocess
import sys

from check_rooms import TORCH_FREE

kind, compiler, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
root = pathlib.Path(__file__).resolve().parents[2]
headers = [path.relative_to(root) for path in sorted(root.glob("tessera/**/*.h"))
           if (path.relative_to(root).parts[1] in TORCH_FREE) == (kind == "torch-free")]


@functools.cache
def is_vector(header):
    """Private to kernels that are compiled for these instructions."""
    path = root / header
    text = path.read_text() if path.exists() else ""  # or the build makes it
    return "<immintrin.h>" in text or any(map(is_vector, re.findall(r'^#include "(tessera/.+)"', text, re.M)))


if platform.machine() != "x86_64":
    headers = [header for header in headers if not is_vector(header)]


def built_alone(header):
    source = root / header.with_suffix(".cpp")
    proves = kind == "torch-free" and header.parts[1] != "cli" and source.exists()
    lines = source.read_text().splitlines() if proves else []
    return next((line for line in lines if line.startswith("#include")), "") == f'#include "{header}"'


def compile_alone(header):
    vector = ["-march=sapphirerapids"] if is_vector(header) else []
    command = [compiler, *vector, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-I.",
               *flags, "-x", "c++", "-include", str(header), os.devnull]
    return header, subprocess.run(command, cwd=root, capture_output=True, text=True)


rest = [header for header in headers if not built_alone(header)]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    failed = [(header, run.stderr) for header, run in pool.map(compile_alone, rest) if run.returncode]
for header, output in failed:
    print(f"{header} does not compile alone:\n{output}")
built = len(headers) - len(rest)
print(f"{len(headers)} headers, {built} of them first in their source, {len(failed)} that do not compile alone")
sys.exit(1 if failed or not rest else 0)
