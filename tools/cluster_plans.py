#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans for clusters that are not here: the table of docs/planner.md.

For each model and number of GPUs: tessera plan assume with a machine's description, tessera plan search, and a row of images
per second, MFU (3 x the forward FLOPs of an image x images per second, of the data sheet's peak of all GPUs), memory of a GPU,
the proven gap and the plan.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile
import tomllib

SOURCE = pathlib.Path(__file__).resolve().parents[1]
ROWS = (  # name, recipe, settings, GPUs
    ("G/14", "bv_s16_90ep", ["model.preset=G/14", "train.batch=1024"], (8, 64, 256)),
    ("`vit_10b`", "vit_10b", ["train.batch=1024"], (8, 64, 512)),
    ("`vit_60b`", "vit_60b", ["train.batch=2048"], (64, 512, 2048)),
    ("`vit_120b`", "vit_120b", ["train.batch=4096"], (256, 1024, 2048, 4096)),
)


def run(program, *words):
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)


def settings(sets):
    return [word for one in sets for word in ("--set", one)]


def row(program, machine, peak, folder, model, recipe, sets, gpus, seconds):
    path = SOURCE / "recipes" / f"{recipe}.toml"
    words = settings([*sets, "precision.compute=bf16"])
    profile, plan = folder / "profile.json", folder / "plan.json"
    made = run(program, "plan", "assume", path, "--machine", machine, "-o", profile, "--force", *words)
    if made.returncode != 0:
        raise SystemExit(made.stderr)
    host = min(gpus, 8)
    found = run(program, "plan", "search", path, "--profile", profile, "--hosts", f"{gpus // host}x{host}", "--seconds", seconds,
                "--json", "-o", "", *words)
    if found.returncode != 0:
        return f"| {model} | {gpus} | | | | | {found.stderr.strip().split(': ', 1)[1]} |"
    answer = json.loads(found.stdout)
    plan.write_text(json.dumps(answer["plans"][0]["plan"]))
    best = answer["plans"][0]
    rate = best["images_per_second"]
    mfu = 100 * 3 * answer["forward_flops"] * rate / (gpus * peak)
    return (f"| {model} | {gpus:,} | {rate:,.0f} | {mfu:.1f} % | {best['memory_bytes'] / 2**30:.1f} GiB | "
            f"{100 * answer['gap']:.2f} % in {answer['seconds']:.1f} s | {best['text']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=SOURCE / "build/dev/bin/tessera")
    parser.add_argument("--machine", type=pathlib.Path, default=SOURCE / "recipes/machines/h100_sxm.toml")
    parser.add_argument("--models", default=",".join(name for name, *_ in ROWS), help="of %(default)s")
    parser.add_argument("--seconds", type=float, default=60, help="time limit of a search (default: 60)")
    arguments = parser.parse_args()
    peak = tomllib.loads(arguments.machine.read_text())["accelerator"]["peak_flops"]
    print("| model | GPUs | images/s | MFU | memory | gap | plan |\n| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for model, recipe, sets, counts in ROWS:
            if model not in arguments.models.split(","):
                continue
            for gpus in counts:
                print(row(arguments.program, arguments.machine, peak, pathlib.Path(folder), model, recipe, sets, gpus,
                          arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
