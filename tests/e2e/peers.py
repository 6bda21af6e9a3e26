# SPDX-License-Identifier: Apache-2.0
"""The Python of the peers: full torch, timm, safetensors, in .venv-peers or where TESSERA_PEERS_PYTHON says."""
import os
import subprocess

from harness import SOURCE, Missing


def peers_python(*modules):
    """Its path; Missing where there is none or a module is missing."""
    path = os.environ.get("TESSERA_PEERS_PYTHON") or str(SOURCE / ".venv-peers/bin/python")
    if not os.access(path, os.X_OK):
        raise Missing("no Python with torch: ./dev peers makes .venv-peers, or TESSERA_PEERS_PYTHON names one")
    imports = "; ".join(f"import importlib.util as u; assert u.find_spec('{name}')" for name in modules)
    if subprocess.run([path, "-c", imports], capture_output=True).returncode != 0:
        raise Missing(f"{path} lacks one of {', '.join(modules)} (./dev peers installs them)")
    return path
