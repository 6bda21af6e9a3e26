# SPDX-License-Identifier: Apache-2.0
"""What the tests with hosts as network namespaces share. The namespaces are their own and gone at the test's end."""
import os
import shutil
import subprocess

from harness import Skip, check


def system(*words):
    """Runs a command that must succeed; returns what it printed."""
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    check(result.returncode == 0, *words, result.stderr)
    return result.stdout


def need_namespaces(*programs):
    """Skips the test where it may not make namespaces, or where one of the programs is not installed."""
    if os.geteuid() != 0 or any(shutil.which(program) is None for program in ("ip", *programs)):
        raise Skip("needs root and iproute2 (apt-get install iproute2)")
    probe = f"tessera-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        raise Skip(f"no network namespaces here: {made.stderr.strip()}")
    system("ip", "netns", "delete", probe)
