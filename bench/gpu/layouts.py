# SPDX-License-Identifier: Apache-2.0
"""The step `layouts`: trainings whose ranks share the one GPU, beside the training of one rank."""
import json

from kit import KIT, Failed, OutOfTime

# Of recipes/quickstart.toml, 6 blocks: name, ranks, settings.
FP32 = [("data 2", 2, []),
        ("tensor 2", 2, ["parallel.tensor=2"]),
        ("tensor 2, recompute", 2, ["parallel.tensor=2", "shard.recompute=true"]),
        ("pipeline 2", 2, ["parallel.pipeline=2", "parallel.micro_batches=4"]),
        ("interleaved 2 x 2", 2, ["parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.schedule=interleaved",
                                  "parallel.micro_batches=4"]),
        ("unit rules", 2, ["shard.units=stem=replicate, blocks.0-1=tensor2, blocks.2-3=zero3+recompute, "
                           "blocks.4=tensor2+keep_sums, head=zero2"]),
        ("pipeline 2 x tensor 2, zero3", 4, ["parallel.pipeline=2", "parallel.tensor=2", "parallel.micro_batches=2",
                                             "shard.level=zero3"])]
BF16 = [("tensor 2", 2, ["parallel.tensor=2"]),
        ("pipeline 2", 2, ["parallel.pipeline=2", "parallel.micro_batches=4"])]
# dtype, layouts, the largest relative difference of a loss from one rank's
TABLE = [("fp32", FP32, 1e-4), ("bf16", BF16, 2e-2)]
GPU_TABLE = [("fp16", BF16, 2e-2)]  # a CPU would take minutes for it
STEPS = 6


def losses(kit, dtype, number, procs, sets):
    run = kit.scratch / f"layout-{dtype}-{number}"
    words = [f"precision.compute={dtype}", f"train.steps={STEPS}", "train.log_every=1", "train.eval_every_epochs=0",
             "run.share_gpu=true", f"run.dir={run}", *sets]
    kit.tessera(["train", KIT / "recipes/quickstart.toml", "--fake-data", "--procs", procs, *[w for key in words for w in ("--set", key)]],
                180 if kit.rehearse else 40).check(f"a training on {procs} ranks {' '.join(sets)}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [row["loss"] for row in rows if "loss" in row and "images_per_second" in row]
    if len(found) != STEPS:
        raise Failed(f"{len(found)} losses of {STEPS} steps ({' '.join(sets)})")
    return found


def layouts(kit):
    """Trainings of quickstart.toml in other layouts, ranks sharing the GPU (run.share_gpu): the losses of one rank."""
    lines = []
    for dtype, table, limit in TABLE + (GPU_TABLE if kit.gpu else []):
        alone = losses(kit, dtype, 0, 1, [])
        passed = []
        for number, (name, procs, sets) in enumerate(table, 1):
            try:
                found = losses(kit, dtype, number, procs, sets)
            except OutOfTime:
                raise
            except Failed as why:
                kit.faults.append(f"{dtype}, {name}: {why}")
                continue
            apart = max(abs(a - b) / abs(b) for a, b in zip(found, alone))
            kit.layouts.append({"dtype": dtype, "layout": name, "ranks": procs, "settings": sets, "losses": found, "one_rank": alone,
                                "apart": apart, "limit": limit})
            if not apart < limit:
                kit.faults.append(f"{dtype}, {name}: losses {apart:.1e} from one rank's, at most {limit:.0e} is allowed")
            passed.append(f"{name} {apart:.1e}")
        lines.append(f"{dtype}: {', '.join(passed)}")
    return "losses from one rank's: " + "; ".join(lines)
