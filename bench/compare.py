#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of Tessera beside PyTorch, in turn: A B A B ..., medians of the rounds.

    bench/compare.py --python .venv-peers/bin/python [--models Ti/16:32,S/16:16,B/16:16] [--dtype bf16]

The peer is bench/peers/vit_step.py (forward, backward, clipping at 1.0, fused AdamW, one batch of noise). Each of its settings runs once; the
fastest meets Tessera in the rounds. --tcmalloc names libtcmalloc_minimal.so.4, which doubles the settings.
--markdown appends the table to a file. Both run on the GPU where there is one, and memory is then that of the GPU's tensors.
"""
import argparse
import itertools
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import tempfile

TIMM = {"Ti/16": "vit_tiny_patch16_224", "S/16": "vit_small_patch16_224", "B/16": "vit_base_patch16_224",
        "L/16": "vit_large_patch16_224", "resnet50": "resnet50"}


def tessera(options, model, batch):
    """(images/s, peak GiB) of one process."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "step.json"
        sets = [word for key in options.set for word in ("--set", key)]
        subprocess.run([options.tessera, "bench", "step", "--model", model, "--batch", batch, "--dtype", options.dtype,
                        "--rounds", str(options.steps), "--output", output, "--quiet", *sets], check=True)
        found = json.loads(output.read_text())
        print("  " + json.dumps(found), flush=True)
        return found["images_per_second"], found.get("device_peak_bytes", found["peak_rss_bytes"]) / 2**30


def settings(options):
    """What the peer may choose from: mode, precision, preloaded allocator."""
    precisions = ["fp32"] if options.dtype == "fp32" else ["amp", "bf16"]
    return list(itertools.product(["eager", "compile"], precisions, [""] + ([options.tcmalloc] if options.tcmalloc else [])))


def peer(options, model, batch, setting, steps):
    mode, precision, allocator = setting
    environment = {**os.environ, **({"LD_PRELOAD": allocator} if allocator else {})}
    result = subprocess.run([options.python, options.peer, TIMM.get(model, model), batch, mode, precision, str(steps)],
                            env=environment, text=True, capture_output=True)
    found = re.search(r"median ([\d.]+) img/s.*peak ([\d.]+) GiB", result.stdout)
    if result.returncode != 0 or not found:
        print(f"  {describe(setting)} failed: exit {result.returncode}, {result.stderr.strip().splitlines()[-1:]}", flush=True)
        return 0.0, 0.0
    return float(found[1]), float(found[2])


def describe(setting):
    mode, precision, allocator = setting
    return f"{mode}, {precision}" + (", tcmalloc" if allocator else "")


def compare(options, model, batch):
    tried = {setting: peer(options, model, batch, setting, 3) for setting in settings(options)}
    for setting, (rate, _) in tried.items():
        print(f"  {model} batch {batch}, peer {describe(setting)}: {rate:.2f} images/s", flush=True)
    best = max(tried, key=lambda setting: tried[setting][0])
    if tried[best][0] == 0:
        raise SystemExit(f"compare: no setting of the peer ran {model}")
    ours, theirs = [], []
    for round_ in range(options.rounds):
        ours.append(tessera(options, model, batch))
        theirs.append(peer(options, model, batch, best, options.steps))
        print(f"  round {round_ + 1}: Tessera {ours[-1][0]:.2f}, peer {theirs[-1][0]:.2f} images/s", flush=True)
    rates = [statistics.median(rate for rate, _ in runs) for runs in (ours, theirs)]
    peaks = [max(peak for _, peak in runs) for runs in (ours, theirs)]
    return (f"| {model}, {batch} | {options.dtype} | {rates[0]:.2f} | {rates[1]:.2f} ({describe(best)}) | {rates[0] / rates[1]:.2f} "
            f"| {peaks[0]:.2f} | {peaks[1]:.2f} | {peaks[0] / peaks[1]:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default="build/dev/bin/tessera")
    parser.add_argument("--python", required=True, help="with PyTorch, timm, torchvision")
    parser.add_argument("--peer", default=pathlib.Path(__file__).parent / "peers/vit_step.py",
                        help="a script with the arguments and the last line of bench/peers/vit_step.py")
    parser.add_argument("--models", default="Ti/16:32,S/16:16,B/16:16", help="size:batch, ...")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="measured in each round")
    parser.add_argument("--tcmalloc", default="", help="libtcmalloc_minimal.so.4, if the peer may use it")
    parser.add_argument("--set", action="append", default=[], help="a key for Tessera, like run.cuda_graphs=pass (repeatable)")
    parser.add_argument("--markdown", help="a file to append the table to")
    options = parser.parse_args()
    options.tessera = os.path.abspath(options.tessera)
    rows = ["| model, batch | dtype | Tessera, images/s | peer, images/s (setting) | ratio | Tessera, GiB | peer, GiB | ratio |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for word in options.models.split(","):
        model, batch = word.rsplit(":", 1)
        rows.append(compare(options, model, batch))
    text = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; medians of {options.rounds} rounds in turn.\n\n" + "\n".join(rows)
    print(text)
    if options.markdown:
        with open(options.markdown, "a") as out:
            out.write(text + "\n")


main()
