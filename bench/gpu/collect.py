# SPDX-License-Identifier: Apache-2.0
"""Fills the folder of a GPU kit from the builds dev and cuda; `./dev gpu-kit DIR` calls it.

Libraries of Debian travel along where the torch package does not bring them, with the licences of their packages. It refuses a
kit that is too large, that names a place of this machine, or that holds a file without a known licence.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MOST_BYTES = 48 << 20
# Of the C and C++ runtime, which every machine has; libgomp comes with torch.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux[-\w]*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp|tessera\w*))\.so")
# Compiled into the program or its tests: headers alone, and GoogleTest's static library.
COMPILED_IN = ["libcli11-dev", "libtomlplusplus-dev", "nlohmann-json3-dev", "libgloo-dev", "libgtest-dev"]

# The entries of a kit's folder, and nothing else, are removed before a new kit is made there.
PARTS = ["bin", "lib", "tests", "recipes", "peers", "tools", "licences", "run.sh", "README.md", "LICENSE", "NOTICE", "kit.json"]


def run(*words):
    return subprocess.run([str(word) for word in words], check=True, text=True, stdout=subprocess.PIPE).stdout


def install(kit):
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder)
        run("cmake", "--install", SOURCE / "build/dev", "--prefix", prefix, "--strip")
        run("cmake", "--install", SOURCE / "build/dev", "--prefix", prefix, "--strip", "--component", "gpu_tests")
        run("cmake", "--install", SOURCE / "build/cuda", "--prefix", prefix, "--strip", "--component", "cuda_plugin")
        for name in ("bin", "lib", "tests"):
            shutil.copytree(prefix / name, kit / name, symlinks=True)
        shutil.copytree(prefix / "share/tessera/recipes", kit / "recipes")
    shutil.rmtree(kit / "lib/cmake")
    (kit / "lib/torch.path").unlink()


def bundle_libraries(kit):
    """The shared libraries of Debian's packages that the program needs; {package: [files]}."""
    packages = {}
    for line in run("ldd", SOURCE / "build/dev/lib/libtessera_core.so").splitlines():
        found = re.match(r"\s+(\S+) => (/\S+)", line)
        if not found or SYSTEM.match(found[1]):
            continue
        path = pathlib.Path(found[2]).resolve()
        shutil.copy(path, kit / "lib" / found[1])
        owner = run("dpkg-query", "--search", f"*/{path.name}").split(":")[0]
        packages.setdefault(owner, []).append(f"lib/{found[1]}")
    return packages


def copy_licences(kit, packages):
    shutil.copy(SOURCE / "LICENSE", kit)
    shutil.copy(SOURCE / "NOTICE", kit)
    (kit / "licences").mkdir()
    for package in [*packages, *COMPILED_IN]:
        shutil.copy(f"/usr/share/doc/{package}/copyright", kit / "licences" / package)


def copy_scripts(kit):
    shutil.copy(SOURCE / "bench/gpu/run.sh", kit)
    shutil.copy(SOURCE / "bench/gpu/README.md", kit)
    (kit / "tools").mkdir()
    for name in ("steps.py", "kit.py", "layouts.py", "planning.py", "results.py"):
        shutil.copy(SOURCE / "bench/gpu" / name, kit / "tools")
    shutil.copy(SOURCE / "bench/make_images.py", kit / "tools")
    shutil.copytree(SOURCE / "bench/peers", kit / "peers", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCE / "fuzz/corpus/jpeg/rgb.jpg", kit / "tools/small.jpg")


def check(kit, packages):
    """Faults of the kit: size, places of this machine, files without a licence."""
    files = [path for path in sorted(kit.rglob("*")) if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    if size > MOST_BYTES:
        raise SystemExit(f"[dev.gpu-kit] the kit has {size / 2**20:.1f} MiB: at most {MOST_BYTES >> 20} are allowed")
    bundled = {name for names in packages.values() for name in names}
    ours = re.compile(r"^(bin/tessera|lib/libtessera\w*\.so|tests/test_cuda|recipes/.*\.toml|(peers|tools)/.*\.py|tools/small\.jpg|"
                      r"run\.sh|README\.md|LICENSE|NOTICE|kit\.json|licences/.*)$")
    for path in files:
        name = str(path.relative_to(kit))
        if str(SOURCE).encode() in path.read_bytes():
            raise SystemExit(f"[dev.gpu-kit] {name} names this checkout, {SOURCE}")
        if name not in bundled and not ours.match(name):
            raise SystemExit(f"[dev.gpu-kit] {name} has no known licence: name its source in bench/gpu/collect.py")
    return size, len(files)


def main():
    kit = pathlib.Path(sys.argv[1])
    strange = [path.name for path in kit.iterdir() if path.name not in PARTS]
    if strange:
        raise SystemExit(f"[dev.gpu-kit] {kit} holds {strange[0]}, which is not a kit's: move it away, or name a new folder")
    for path in kit.iterdir():  # an earlier kit
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (kit / "kit.json").write_text("{}\n")  # marks the folder as a kit's, should this be interrupted
    install(kit)
    packages = bundle_libraries(kit)
    copy_licences(kit, packages)
    copy_scripts(kit)
    version = re.search(r"tessera (\S+) \((.+)\)", run(kit / "bin/tessera", "--version"))
    torch = re.search(r"torch==([\d.]+)", (SOURCE / "tools/requirements.txt").read_text())[1]
    (kit / "kit.json").write_text(json.dumps({"version": version[1], "commit": version[2], "torch": torch, "libraries": packages,
                                              "compiled_in": COMPILED_IN}, indent=1) + "\n")
    size, count = check(kit, packages)
    print(f"-- {kit}: {count} files, {size / 2**20:.1f} MiB")
    print(f"-- rehearse here:    TESSERA_PYTHON={SOURCE}/.venv/bin/python {kit}/run.sh --rehearse OUT")
    print("-- measure on a GPU: run.sh OUT, in a copy of that folder")


main()
