# SPDX-License-Identifier: Apache-2.0
"""The GPU kit: made, then rehearsed on a machine's CPU where neither the checkout nor its virtual environments are."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from harness import SOURCE, Skip, check, main, scratch

PEERS = SOURCE / ".venv-peers"
PACKAGES = next((SOURCE / ".venv/lib").glob("python3*/site-packages"), None)


def make_kit(folder):
    if not shutil.which("nvcc") and not os.access("/usr/local/cuda/bin/nvcc", os.X_OK):
        raise Skip("no nvcc: the kit holds the CUDA plug-in")
    made = subprocess.run([SOURCE / "dev", "gpu-kit", folder / "kit"], text=True, capture_output=True, timeout=3000)
    check(made.returncode == 0, made.stdout[-2000:], made.stderr[-3000:])
    return folder / "kit"


def without_checkout(folder, command, variables=None):
    """Runs `command` where the checkout's folder is empty; LibTorch, and PyTorch if it is there, lie elsewhere."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        raise Skip("this user may not make mount namespaces (unshare --mount)")
    (folder / "packages").mkdir(exist_ok=True)
    system = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    python, environment = system, {"PYTHONPATH": str(folder / "packages")}
    mounts = f"mount --bind {PACKAGES} {folder}/packages"
    if (PEERS / "bin/python").exists():
        (folder / "peers").mkdir(exist_ok=True)
        mounts += f" && mount --bind {PEERS} {folder}/peers"
        python, environment = str(folder / "peers/bin/python"), {}
    script = f'{mounts} && mount -t tmpfs none {SOURCE} && cd {folder} && exec "$@"'
    return subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *map(str, command)], text=True, capture_output=True, timeout=2400,
                          env={"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "TESSERA_PYTHON": python,
                               **environment, **(variables or {})})


def rehearsal():
    with scratch() as folder:
        kit = make_kit(folder)
        size = sum(path.stat().st_size for path in kit.rglob("*") if path.is_file())
        check(size <= 48 << 20, f"{size / 2**20:.1f} MiB")
        moved = folder / "elsewhere" / "kit of another name"
        moved.parent.mkdir()
        kit.rename(moved)
        out = folder / "out"
        ran = without_checkout(folder, [moved / "run.sh", "--rehearse", out])
        print(ran.stdout, ran.stderr[-3000:], flush=True)
        check(ran.returncode == 0, ran.returncode)
        results = json.loads((out / "results.json").read_text())
        found = {name: (result, text) for name, _, result, _, text in results["steps"]}
        listed = without_checkout(folder, [moved / "run.sh", "--list"]).stdout
        check(list(found) == [line.split()[0] for line in listed.splitlines()] and len(found) >= 15, list(found), listed)
        for name, (result, text) in found.items():
            # What a CPU cannot show says so; all else has run.
            allowed = {"comparisons", "sanitizer", "counters"} | (set() if (PEERS / "bin/python").exists() else {"compiled", "tuned", "peaks"})
            check(result == "passed" or (result == "skipped" and name in allowed), name, result, text)
        check(str(SOURCE) not in (out / "results.md").read_text())
        # Losses of the layouts were compared, predictions stand beside measured steps, and a pretended rank's memory was found.
        check(len(results["layouts"]) == 9 and all(row["apart"] < row["limit"] for row in results["layouts"]), results["layouts"])
        check(len(results["predictions"]) == 4 and all(row["seconds"][0] > 0 for row in results["predictions"]), results["predictions"])
        check([row["measured_bytes"] > 0 for row in results["pretended"]] == [True], results["pretended"])
        files = list(out.iterdir())
        check(len(files) <= 8 and all(path.stat().st_size <= 16 << 20 for path in files), files)
        for name in ("results.md", "next.md", "log.txt", "kernels.csv"):
            check((out / name).stat().st_size > 100, name)
        # A rehearsal says so, and names the model that ran instead of those that a GPU would run.
        for name in ("results.md", "next.md"):
            text = (out / name).read_text()
            check("every step ran model mu at batch 4 on a CPU; the numbers say nothing about speed." in "\n".join(text.splitlines()[:5]), text)
            check(not re.search(r"B/16|S/16|L/16|H/14|\b0 passed", text), text)
        text = (out / "next.md").read_text()
        check("- sanitizer: needs a GPU" in text and "- comparisons: needs a GPU" in text, text)
        log = (out / "log.txt").read_text()
        check(log.count("$ LD_LIBRARY_PATH=") > 3 and f"ldd {moved}/bin/tessera" in log, log[:3000])
        # A library of the kit that misses one of its own is named in the first step.
        (folder / "a.c").write_text("int a;\n")
        subprocess.run(["gcc", "-shared", "-o", folder / "libgone.so", folder / "a.c"], check=True)
        subprocess.run(["gcc", "-shared", "-Wl,--no-as-needed", "-o", moved / "lib/libextra.so", folder / "a.c", f"-L{folder}", "-lgone"], check=True)
        ran = without_checkout(folder, [moved / "run.sh", "--rehearse", "--only", "facts", folder / "out-gone"])
        check(ran.returncode == 1 and "libraries are not found: lib/libextra.so: libgone.so" in ran.stdout, ran.stdout, ran.stderr)


def wrong_arguments_and_other_versions():
    with scratch() as folder:
        kit = make_kit(folder)
        for words, text in ((["--only", "nonsense", "out"], "no step is called 'nonsense'"), ([], "OUT is missing"),
                            (["--minutes", "0", "out"], "--minutes is 0.0: expected more than 0"), ([""], "OUT is the current folder or empty"),
                            (["--rehearse", "--minutes", "3", "out"], "--minutes limits no rehearsal"),
                            (["--only", "facts", "--skip", "facts", "out"], "--only and --skip leave no step")):
            ran = subprocess.run([kit / "run.sh", *words], cwd=folder, text=True, capture_output=True)
            check(ran.returncode == 2 and text in ran.stderr and ran.stderr.count("\n") <= 8, ran.stderr)
        # Where no step can run, one line says why and nothing is written: no GPU, no torch.
        ran = without_checkout(folder, [kit / "run.sh", "--only", "facts,number,peaks,tests", folder / "out"], {"PATH": "/usr/bin:/bin"})
        check(ran.returncode == 2 and ran.stdout == "", ran.stdout, ran.stderr)
        check(ran.stderr == "run.sh: error: no NVIDIA GPU or driver here (nvidia-smi not found); use --rehearse on a CPU\n", ran.stderr)
        check(not (folder / "out").exists())
        (folder / "bare").mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "bare"], check=True)
        ran = subprocess.run([kit / "run.sh", "--rehearse", folder / "out"], text=True, capture_output=True,
                             env={"PATH": "/usr/bin:/bin", "TESSERA_PYTHON": str(folder / "bare/bin/python")})
        check(ran.returncode == 2 and "has no torch: set TESSERA_PYTHON to a Python that has torch==" in ran.stderr, ran.stdout, ran.stderr)
        check(ran.stderr.count("\n") == 1 and not (folder / "out").exists(), ran.stderr)
        # A torch of another version is refused with the version that is needed.
        other = folder / "other/torch"
        (other / "lib").mkdir(parents=True)
        (other / "lib/libtorch_cpu.so").write_text("")
        (other / "version.py").write_text("__version__ = '2.9.0'\n")
        ran = without_checkout(folder, [kit / "run.sh", "--rehearse", "--only", "facts", folder / "out2"], {"TESSERA_TORCH_DIR": str(other)})
        check(ran.returncode == 2 and "holds torch 2.9.0: expected torch 2.11.0" in ran.stderr, ran.stdout, ran.stderr)
        check(not (folder / "out2").exists())
        # A folder that is no kit is not emptied.
        (folder / "mine").mkdir()
        (folder / "mine/letter").write_text("dear")
        ran = subprocess.run([SOURCE / "dev", "gpu-kit", folder / "mine"], text=True, capture_output=True)
        check(ran.returncode == 2 and "is not empty and holds no earlier kit" in ran.stderr, ran.stderr)
        check((folder / "mine/letter").read_text() == "dear")
        # Nor what somebody keeps in an earlier kit.
        (kit / "letter").write_text("dear")
        ran = subprocess.run([sys.executable, SOURCE / "bench/gpu/collect.py", kit], text=True, capture_output=True)
        check(ran.returncode == 1 and "holds letter, which is not a kit's" in ran.stderr, ran.stderr)
        check((kit / "letter").read_text() == "dear" and (kit / "run.sh").exists())
        (kit / "kit.json").write_text("[]")
        ran = subprocess.run([kit / "run.sh", "out3"], cwd=folder, text=True, capture_output=True)
        check(ran.returncode == 2 and "kit.json is not a kit's" in ran.stderr, ran.stderr)


if __name__ == "__main__":
    main(rehearsal, wrong_arguments_and_other_versions)
