#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `tessera plan search` plans with the profile of Galvatron's first release, beside what that release plans.

    tools/galvatron_v1_plans.py        a table in Markdown

ViT-Huge with 32 and 48 blocks in fp32 on 8 GPUs. The constants are those of its env_configs/*_8_gpus.json and
vit/configs/forward_profiling_config.json; test_planner reproduces its own predictions from them (GalvatronV1.*). Both columns
are predictions. Nothing is measured.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
RECIPE = SOURCE / "recipes/vit_huge.toml"
RANKS, CONTEXT_GB = 8, 1  # v1 sets 1 GB of each GPU aside
ALL_REDUCE_MS_PER_MB = {"8_consec_1": 0.21530878, "4_consec_0": 0.220138889, "4_consec_1": 0.226519097, "2_consec_0": 0.271614583,
                        "2_consec_1": 0.277994792}
SEND_MS_PER_MB = {2: 0.4948, 4: 0.2049, 8: 0.3791}
FORWARD_MS, NEARLY_0, OVERLAP = 0.750, 1e-4, 1.30  # of a layer and sample; v1 has no time of stem and head
# Blocks, GB, and v1's optimum: images of a step, samples/s, its layers in its notation and as its settings: stages, tensor
# degree, and how many layers of each stage are sharded.
OPTIMA = [(32, 8, 56, 37.7, "1 x 1-2*-4, 31 x 1-2*-4f", 1, 2, 31), (32, 12, 72, 53.3, "2-1-4", 2, 1, 0),
          (32, 16, 160, 67.5, "2 x 1-1-8, 30 x 1-1-8f", 1, 1, 30), (32, 20, 152, 75.4, "20 x 1-1-8, 12 x 1-1-8f", 1, 1, 12),
          (48, 8, 24, 19.9, "4-1-2", 4, 1, 0), (48, 12, 72, 26.4, "2-1-4f", 2, 1, 24),
          (48, 16, 64, 33.5, "23 x 2-1-4, 1 x 2-1-4f", 2, 1, 1), (48, 20, 136, 40.5, "1 x 1-1-8, 47 x 1-1-8f", 1, 1, 47)]


def galvatron_files(folder):
    """The constants in the names and units of Galvatron's later releases: the hardware files, the computation file."""
    hardware = {"allreduce_bandwidth_1nodes_8gpus_per_node.json": {f"allreduce_size_{key}": 1 / ms for key, ms in ALL_REDUCE_MS_PER_MB.items()},
                "p2p_bandwidth_1nodes_8gpus_per_node.json": {f"pp_size_{stages}": 1 / ms for stages, ms in SEND_MS_PER_MB.items()},
                "overlap_coefficient.json": {"overlap_coe": OVERLAP}}
    computation = {"layertype_0_bsz8_seq196": FORWARD_MS, "layertype_other_bsz8_seq196": NEARLY_0}
    for name, values in {**hardware, "computation_profiling_fp32_vit-huge_all.json": computation}.items():
        (folder / name).write_text(json.dumps(values))
    return [folder / name for name in hardware], folder / "computation_profiling_fp32_vit-huge_all.json"


def said(*words):
    result = subprocess.run([str(word) for word in words], text=True, capture_output=True)
    if result.returncode != 0:
        raise SystemExit(f"error: [galvatron_v1_plans] {' '.join(result.stderr.split())[-300:]}")
    return result.stdout


def sets_of(depth, *more):
    """As v1's ViT: 196 tokens, no class token."""
    sets = [f"model.depth={depth}", "model.class_token=false", "model.pool=gap", "precision.compute=fp32", *more]
    return [word for one in sets for word in ("--set", one)]


def searched(program, profile, depth, gigabytes, batch, *more):
    output = said(program, "plan", "search", RECIPE, *sets_of(depth, *more), "--profile", profile, "--ranks", RANKS, "--memory",
                  f"{gigabytes - CONTEXT_GB}GiB", "--batch", batch, "--output", "", "--show", 1, "--json")
    plan = json.loads(output[output.index("{"):])["plans"][0]
    return f"{plan['images_per_second']:.1f} | {plan['text']} | {plan['memory_bytes'] / 2**30:.1f}"


def predicted(program, folder, depth, batch, stages, tensor, sharded):
    """v1's plan in this model, as it would be imported. Behind a pipeline v1 has two micro-batches."""
    of_stage = depth // stages
    lists = folder / "plan.json"
    lists.write_text(json.dumps({
        "pp_deg": stages, "tp_sizes_enc": ",".join([str(tensor)] * depth), "tp_consecutive_flags": ",".join(["1"] * depth),
        "dp_types_enc": ",".join((["0"] * (of_stage - sharded) + ["1"] * sharded) * stages), "global_bsz": batch,
        "chunks": 2 if stages > 1 else 1, "default_dp_type": "ddp"}))
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.read_text().replace("[model]", f"[model]\ndepth = {depth}"))
    said(program, "plan", "import", lists, "--recipe", recipe, "--ranks", RANKS, "-o", folder / "imported.json")
    (folder / "imported.json").replace(folder / "v1.json")
    output = said(program, "plan", "predict", RECIPE, *sets_of(depth, f"parallel.plan={folder / 'v1.json'}", f"train.batch={batch}"),
                  "--profile", folder / f"{depth}.json", "--ranks", RANKS, "--json")
    found = json.loads(output[output.index("{"):])
    memory = max(stage["memory"]["memory_bytes"] for stage in found["stages"])
    return f"{batch / found['seconds']:.1f} | {memory / 2**30:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, default=SOURCE / "build/dev/bin/tessera", help="the tessera to use")
    program = parser.parse_args().program
    print("| blocks, GB, images | v1: samples/s | plan | here: images/s | GiB | one micro-batch: images/s | plan | GiB | any: images/s | plan | GiB |\n|" + " --- |" * 11)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        hardware, computation = galvatron_files(folder)
        for depth in (32, 48):
            said(program, "plan", "import-profile", RECIPE, *sets_of(depth), "--hardware", *hardware, "--computation", computation,
                 "--output", folder / f"{depth}.json")
        for depth, gigabytes, batch, rate, plan, *settings in OPTIMA:
            here = predicted(program, folder, depth, batch, *settings)
            one, free = (searched(program, folder / f"{depth}.json", depth, gigabytes, batch, *more) for more in (["train.accumulation=1"], []))
            print(f"| {depth}, {gigabytes}, {batch} | {rate} | {plan} | {here} | {one} | {free} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
