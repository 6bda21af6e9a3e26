#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public header compiles alone: check_headers.py torch-free|torch COMPILER [FLAGS...].

The torch-free rooms and folders are compiled without LibTorch's folders, the others with the FLAGS that name them. The build
proves nothing: sources begin with precompiled headers, or follow others that are compiled with them.
"""
import concurrent.futures
import functools
import os
import pathlib
import platform
import re
import subprocess
import sys

from check_rooms import is_torch_free

kind, compiler, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
root = pathlib.Path(__file__).resolve().parents[2]
headers = [path.relative_to(root) for path in sorted(root.glob("tessera/**/*.h"))
           if is_torch_free(path.relative_to(root)) == (kind == "torch-free")]


@functools.cache
def is_vector(header):
    """Private to kernels that are compiled for these instructions."""
    path = root / header
    text = path.read_text() if path.exists() else ""  # or the build makes it
    return "<immintrin.h>" in text or any(map(is_vector, re.findall(r'^#include "(tessera/.+)"', text, re.M)))


if platform.machine() != "x86_64":
    headers = [header for header in headers if not is_vector(header)]


def compile_alone(header):
    vector = ["-march=sapphirerapids"] if is_vector(header) else []
    command = [compiler, *vector, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-I.",
               *flags, "-x", "c++", "-include", str(header), os.devnull]
    return header, subprocess.run(command, cwd=root, capture_output=True, text=True)


with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    failed = [(header, run.stderr) for header, run in pool.map(compile_alone, headers) if run.returncode]
for header, output in failed:
    print(f"{header} does not compile alone:\n{output}")
print(f"{len(headers)} headers, {len(failed)} that do not compile alone")
sys.exit(1 if failed or not headers else 0)
