# SPDX-License-Identifier: Apache-2.0
"""A sharded step of ViT-B/16 beside PyTorch's FSDP2: two processes of one thread, rounds in turn, medians.

    bench/fsdp_compare.py --python .venv-peers/bin/python [--rounds 3]

The peer is bench/peers/fsdp_step.py (fully_shard of each block and the root, bf16 parameters on the wire, fp32 reduction,
clipping at 1.0, AdamW).
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

RECIPE = """
name = "fsdp-compare"
[model]
preset = "B/16"
[data]
source = "fake:4096"
val = "val[:16]"
workers = 0
[train]
batch_per_rank = 8
steps = 9
log_every = 1
eval_every_epochs = 0
clip = 1.0
[optimizer]
weight_decay = 0.1
[precision]
compute = "bf16"
[checkpoint]
every_epochs = 0
[run]
threads = 1
"""


def tessera(program):
    """Median images/s of the steps after the second, and the larger peak of the two ranks in GiB."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        recipe = pathlib.Path(folder) / "recipe.toml"
        recipe.write_text(RECIPE)
        subprocess.run([program, "train", recipe, "--procs", "2", "--set", f"run.dir={run}"], check=True, cwd=folder,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rates = [line["images_per_second"] for line in lines if "images_per_second" in line and line["step"] > 2]
        return statistics.median(rates), json.loads((run / "summary.json").read_text())["peak_rss_bytes"] / 2**30


def fsdp2(python, peer):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run([python, "-m", "torch.distributed.run", "--nproc-per-node", "2", peer,
                             "vit_base_patch16_224", "8"], env=environment, check=True, text=True, capture_output=True)
    found = re.search(r"median ([\d.]+) img/s.*peak rss ([\d.]+) GiB", result.stdout)
    return float(found[1]), float(found[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default="build/dev/bin/tessera")
    parser.add_argument("--python", required=True, help="with PyTorch and timm")
    parser.add_argument("--peer", default=pathlib.Path(__file__).parent / "peers/fsdp_step.py")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ours, theirs = [], []
    for round_ in range(options.rounds):
        ours.append(tessera(os.path.abspath(options.tessera)))
        theirs.append(fsdp2(options.python, options.peer))
        print(f"round {round_ + 1}: Tessera {ours[-1][0]:.2f} images/s {ours[-1][1]:.2f} GiB, "
              f"FSDP2 {theirs[-1][0]:.2f} images/s {theirs[-1][1]:.2f} GiB", flush=True)
    rates = [statistics.median(rate for rate, _ in runs) for runs in (ours, theirs)]
    peaks = [max(peak for _, peak in runs) for runs in (ours, theirs)]
    print(f"medians: {rates[0]:.2f} and {rates[1]:.2f} images/s, ratio {rates[0] / rates[1]:.2f}; "
          f"peaks: {peaks[0]:.2f} and {peaks[1]:.2f} GiB, ratio {peaks[0] / peaks[1]:.2f}")


main()
