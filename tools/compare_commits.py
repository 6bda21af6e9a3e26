#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check that two commits train the same numbers: for changes that must not change behaviour.

    tools/compare_commits.py BASE [HEAD]        HEAD: a commit, or the working tree (default)

Builds both on this machine (a worktree each under build/compare), runs the same small trainings with both, and compares
exit codes, every loss, learning rate and gradient norm bit for bit, and every tensor of the last checkpoint bit for bit.
Checkpoints are first rewritten by HEAD's `checkpoint reshard --ranks 1`, so that the way in which they are saved may differ.
Exit code: 0 when all runs are equal, 1 when one differs, 2 for a wrong argument or a failed build.
"""
import argparse
import json
import math
import pathlib
import shutil
import struct
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
WORK = SOURCE / "build/compare"
NUMBERS = ("step", "loss", "learning_rate", "gradient_norm")

RECIPE = """
name = "compare"
[model]
{model}
[data]
source = "fake:96"
workers = 1
[train]
batch = 48
steps = 6
seed = 5
clip = 0.05
log_every = 1
eval_every_epochs = 0
label_smoothing = 0.1
[optimizer]
lr = 1e-2
[schedule]
warmup_steps = 2
[precision]
compute = "fp32"
[checkpoint]
every_epochs = 0
[run]
threads = 1
timeout = 60
"""
VIT = """
image_size = 16
patch_size = 8
width = 24
depth = 3
heads = 2
mlp_width = 40
classes = 7
drop_path = 0.3
dropout = 0.2
layer_scale = 0.1
"""
RESNET = 'family = "resnet"\nblock = "basic"\nblocks = [1, 1]\nbase_width = 8\nimage_size = 32\nclasses = 7\n'
RESMLP = 'family = "resmlp"\nimage_size = 16\npatch_size = 8\nwidth = 24\ndepth = 3\nclasses = 7\ndrop_path = 0.2\n'

REFUSED = ["train.batch_per_rank=7"]
# name, model, ranks, settings; a later entry of a run continues or reads the run before it.
RUNS = [
    ("vit, one rank, adamw", VIT, 1, []),
    ("vit, zero3, clipping, adamw", VIT, 2, ["shard.level=zero3", "shard.prefetch=2"]),
    ("vit, zero1, accumulation, lamb", VIT, 2, ["shard.level=zero1", "train.accumulation=2", "optimizer.name=lamb"]),
    ("vit, zero2, recompute, sgd", VIT, 2, ["shard.level=zero2", "shard.recompute=true", "optimizer.name=sgd"]),
    ("vit, three ranks, levels by unit, muon, layer decay", VIT, 3,
     ["shard.level=zero3", "shard.units=blocks.0=replicate, head=zero1", "optimizer.name=muon", "optimizer.layer_decay=0.7"]),
    ("vit, average of weights, mixup, cutmix, erasing", VIT, 2,
     ["ema.decay=0.9", "train.mixup=0.8", "train.cutmix=1", "data.erasing=0.3", "shard.level=zero3"]),
    ("vit, bf16, recompute, lion", VIT, 2, ["precision.compute=bf16", "shard.recompute=true", "optimizer.name=lion"]),
    ("resnet, synchronised batch norms, lars", RESNET, 2, ["shard.level=zero2", "optimizer.name=lars"]),
    ("resmlp, zero3, adafactor", RESMLP, 2, ["shard.level=zero3", "optimizer.name=adafactor"]),
    ("vit, taught by the first run", VIT, 2, ["distill.teacher={first}", "shard.level=zero3"]),
    ("vit, resumed from two ranks on one", VIT, 1, ["train.steps=10"]),
    ("vit, a prime batch, tensor groups of two, zero3", VIT, 4, ["train.batch=47", "parallel.tensor=2", "shard.level=zero3"]),
    ("vit, two stages of two ranks", VIT, 4, ["parallel.pipeline=2", "parallel.tensor=2", "parallel.micro_batches=4"]),
    ("images of a rank that do not divide the batch", VIT, 2, REFUSED),
]
RESUMED, FROM = "vit, resumed from two ranks on one", "vit, zero3, clipping, adamw"


def said(command, **more):
    return subprocess.run([str(word) for word in command], check=True, text=True, stdout=subprocess.PIPE, **more).stdout.strip()


def built(commit):
    """The program of a commit; of the working tree where it is None."""
    if commit is None:
        tree = SOURCE
    else:
        tree = WORK / commit[:12]
        if not tree.exists():
            said(["git", "-C", SOURCE, "worktree", "add", "--detach", tree, commit])
        if not (tree / ".venv").exists():
            (tree / ".venv").symlink_to((SOURCE / ".venv").resolve())
    with open(WORK / "build.log", "w") as log:
        for command in (["cmake", "--preset", "dev"], ["nice", "ninja", "-C", "build/dev", "bin/tessera"]):
            if subprocess.run(command, cwd=tree, stdout=log, stderr=log).returncode != 0:
                sys.exit(f"compare_commits: {' '.join(command)} failed in {tree}: see {WORK / 'build.log'}")
    return tree / "build/dev/bin/tessera"


def trained(program, folder):
    """Runs all of RUNS: {name: (exit code, rows of numbers, folder of the run)}."""
    results = {}
    for name, model, ranks, settings in RUNS:
        place = folder / name.replace(" ", "_").replace(",", "")
        recipe = folder / f"{place.name}.toml"
        recipe.write_text(RECIPE.format(model=model.strip()))
        command = [program, "train", recipe, "--procs", ranks, "--set", f"run.dir={place}"]
        for setting in settings:
            command += ["--set", setting.format(first=folder / RUNS[0][0].replace(" ", "_").replace(",", ""))]
        if name == RESUMED:
            shutil.copytree(folder / FROM.replace(" ", "_").replace(",", ""), place)
            command += ["--resume", "latest"]
        with open(folder / f"{place.name}.log", "w") as log:
            code = subprocess.run([str(word) for word in command], stdout=log, stderr=log, timeout=300).returncode
        metrics = place / "metrics.jsonl"
        rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        results[name] = (code, [[row.get(key) for key in NUMBERS] for row in rows if row.get("kind") == "step"], place)
    return results


def tensors(program, run):
    """{name: (dtype, shape, bytes)} of the last checkpoint, as one rank would have saved it."""
    if not (run / "checkpoints").exists():
        return {}
    whole = run.with_name(run.name + "-whole")
    said([program, "checkpoint", "reshard", run, "-o", whole, "--ranks", 1], stderr=subprocess.STDOUT)
    found = {}
    for file in sorted(whole.rglob("*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        for name, entry in json.loads(data[8:8 + length]).items():
            if name != "__metadata__":
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                found[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return found


def difference(base, head, reader):
    """What differs between two results of a run; "" where nothing does. And what was compared."""
    (code, rows, run), (other_code, other_rows, other_run) = base, head
    if code != other_code:
        return f"exit code {code} before, {other_code} now", ""
    if len(rows) != len(other_rows):
        return f"{len(rows)} steps before, {len(other_rows)} now", ""
    for row, other in zip(rows, other_rows):
        for key, a, b in zip(NUMBERS, row, other):
            if a != b and not (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)):
                return f"step {row[0]}: {key} {a!r} before, {b!r} now", ""
    saved, other_saved = tensors(reader, run), tensors(reader, other_run)
    if saved.keys() != other_saved.keys():
        return f"tensors saved by one alone: {', '.join(sorted(saved.keys() ^ other_saved.keys())[:4])}", ""
    for name, value in saved.items():
        if value != other_saved[name]:
            return f"tensor {name} differs", ""
    return "", f"exit code {code}, {len(rows)} steps, {len(saved)} tensors"


def check_runs(results):
    """A run that should train and did not would compare nothing."""
    for name, _, _, settings in RUNS:
        code, rows, _ = results[name]
        refused = settings == REFUSED
        if (code != 0) != refused or (not refused and len(rows) < 4):
            return f"'{name}' ended with exit code {code} after {len(rows)} steps"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="commit to compare with")
    parser.add_argument("head", nargs="?", help="commit to check; default: the working tree")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        commits = [None if name is None else said(["git", "-C", SOURCE, "rev-parse", "--verify", f"{name}^{{commit}}"])
                   for name in (options.base, options.head)]
    except subprocess.CalledProcessError:
        return 2
    programs = [built(commit) for commit in commits]
    sides = []
    for side, program in zip(("base", "head"), programs):
        folder = WORK / f"runs-{side}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        began = time.monotonic()
        sides.append(trained(program, folder))
        print(f"{side}: {said([program, '--version'])}: {len(RUNS)} runs in {time.monotonic() - began:.0f} s", flush=True)
        fault = check_runs(sides[-1])
        if fault:
            print(f"compare_commits: {side}: {fault}: see {folder}", file=sys.stderr)
            return 2 if side == "base" else 1
    differ = 0
    print("| run | result |\n| --- | --- |")
    for name, _, _, _ in RUNS:
        fault, compared = difference(sides[0][name], sides[1][name], programs[1])
        differ += bool(fault)
        print(f"| {name} | {'DIFFERS: ' + fault if fault else 'bitwise equal: ' + compared} |", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
