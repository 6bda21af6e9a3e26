#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism and pipelines as their user sees them before a run: --dry-run, plan files, refusals."""
import json
import re

from harness import check, main, rows, scratch, settings, tessera, tiny_recipe, train

TWO = settings(parallel__tensor=2)


def plan_file(path, world, units, **changed):
    """A plan of the tiny model whose blocks have `changed`."""
    blocks = [{"name": f"blocks.{i}", "level": "zero3", "recompute": "none", **changed} for i in range(units - 2)]
    ends = [{"name": name, "level": "zero3", "recompute": "none"} for name in ("stem", "head")]
    path.write_text(json.dumps({
        "format": "tessera.plan", "version": 2, "world": world, "stages": 1, "virtual_stages": 1, "micro_batches": 0,
        "schedule": "1f1b", "first_unit": [0], "prefetch": 1, "units": [ends[0], *blocks, ends[1]]}))
    return path


def dry_runs_show_the_layout():
    with scratch() as folder:
        text = train(folder, "--procs", 4, *TWO, "--dry-run").done()
        for line in (
                "layout: zero3 2 units, zero3 with tensor 2 2 units",
                "tensor parallelism of blocks.0-1: ranks 0,1 compute together; rank 0 has 1 of 2 heads and 32 of 64 hidden "
                "units; the state of this part is split over ranks 0,2 (stride 2)",
                # 8 images, 4 tokens, width 32, 4 bytes; forward and backward 8 times, 2 blocks
                "sent per rank and step: "):
            check(f"  {line}" in text, line, text)
        check("(activations between tensor ranks 64.00 KiB, " in text, text)
        check(re.search(r"zero3 in the place of tensor parallelism: would send .*; tensor parallelism sends less up to \d+ "
                        r"images per rank and micro-batch \(here 8\)\n", text), text)
        check("several hosts" not in text, text)
        check("tensor" not in train(folder, "--procs", 4, "--dry-run").done())
        uneven = settings(shard__units="blocks.0=tensor4+strided+replicate, blocks.1=recompute")
        text = train(folder, "--procs", 4, *uneven, "--dry-run").done()
        check("rank 0 has 0 of 2 heads and 0 of 64 hidden units" in text, text)
        check("heads over 4 ranks: 2 heads do not divide evenly (0, 1, 0, 1 in the group's order): attention takes 2 times as long" in text, text)


def any_batch_trains_and_says_who_holds_how_many():
    """The loss of the first step is the one that one rank gives."""
    losses = {}
    with scratch() as folder:
        for batch, procs, fact, warning in (
                (5, 1, "batch: 5 = 1 rank x 5 x 1 accumulated", ""),
                (5, 2, "batch: 5 over 2 ranks: 2 to 3 images per rank and step, at most 3 in each of 1 micro-batch", ""),
                (3, 1, "batch: 3 = 1 rank x 3 x 1 accumulated", ""),
                (3, 4, "batch: 3 over 4 ranks: 0 to 1 images per rank and step, at most 1 in each of 1 micro-batch",
                 "train.batch is 3 on 4 ranks, so 1 rank has no images to compute; use a larger batch or fewer ranks")):
            run = f"run-{batch}-{procs}"
            text = train(folder, *(("--procs", procs) if procs > 1 else ()), *settings(train__batch=batch, train__steps=2),
                         run=run).done()
            check(f"  {fact}\n" in text, fact, text)
            check(("no images" in text) == bool(warning) and warning in text, warning, text)
            loss = rows(folder / run)[0]["loss"]
            known = losses.setdefault(batch, loss)
            check(abs(loss - known) <= 1e-4 * known, batch, procs, loss, known)


def groups_over_several_hosts_warn():
    with scratch() as folder:
        launched = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "29876"}
        text = train(folder, *TWO, "--dry-run", env=launched).done()
        check("several hosts" not in text, text)
        text = train(folder, *TWO, *settings(parallel__tensor_adjacent="false"), "--dry-run", env=launched).done()
        check("warning: tensor groups have ranks of several hosts (blocks.0-1: ranks 0,2 (stride 2); 2 ranks per host): up to "
              "64.00 KiB of activations per rank and step go over the network; groups of 2 adjacent ranks stay inside a host\n"
              in text, text)


def a_plan_file_is_the_layout():
    with scratch() as folder:
        path = plan_file(folder / "plan.json", 4, 4, tensor=2, adjacent=False, keep_gathered=True)
        plan = settings(parallel__plan="plan.json")
        text = train(folder, "--procs", 4, *plan, "--dry-run").done()
        check("tensor parallelism of blocks.0-1: ranks 0,2 (stride 2) compute together" in text, text)
        # What training executes is executed: the run saves the plan that it read.
        plan_file(path, 2, 4, shard=1)
        train(folder, "--procs", 2, *plan).done()
        saved = json.loads((folder / "run/plan.json").read_text())
        check([unit.get("shard", 0) for unit in saved["units"]] == [0, 1, 1, 0], saved)
        # An evaluation on any ranks needs neither the file nor its world size.
        path.unlink()
        loss = json.loads((folder / "run/summary.json").read_text())["val_loss"]
        tessera("eval", "run", "--json", "--output", "eval.json", folder=folder).done()
        found = json.loads((folder / "eval.json").read_text())["loss"]
        check(abs(found - loss) <= 1e-5 * loss, found, loss)


def evaluations_name_keys_without_effect():
    """Keys of --set that lay out nothing of an evaluation; nothing is said of those that only the training had."""
    with scratch() as folder:
        train(folder, "--procs", 2, *settings(parallel__tensor=2, parallel__keep_gathered="false")).done()
        text = tessera("eval", "run", "--set", "parallel.schedule=gpipe", folder=folder).done()
        check("parallel.schedule has no effect: parallel.pipeline is 1" in text, text)
        check("no effect" not in tessera("eval", "run", folder=folder).done(), "a warning of keys that nobody gave")


def refusals():
    with scratch() as folder:
        plan_file(folder / "eight.json", 8, 4)
        plan_file(folder / "deep.json", 4, 5)
        plan_file(folder / "two.json", 4, 4, tensor=2)
        plan_file(folder / "three.json", 4, 4, tensor=3)
        for words, expected in (
                (settings(parallel__tensor=3), "[plan.set_tensor] parallel.tensor is 3: expected a divisor of the 4 ranks that train"),
                (settings(parallel__tensor=2, shard__ranks=4),
                 "[plan.set_shard_ranks] shard.ranks is 4: expected 0 or a divisor of the 2 data-parallel ranks of blocks.0"),
                (settings(shard__units="head=tensor2"),
                 "shard.units has the rule 'head=tensor2', but tensor parallelism cuts nothing of head"),
                (settings(shard__units="blocks.0-1=tensor2, blocks.1=zero2"), "blocks.1 has two rules, of which one gives tensorN"),
                (settings(model__preset="resnet18", parallel__tensor=2),
                 'parallel.tensor is 2, but model.family is "resnet" (--set parallel.tensor=2): expected 1'),
                (settings(model__depth=1, parallel__pipeline=4),
                 "[plan.set_pipeline] parallel.pipeline is 4: expected at most 3: the model has 3 units"),
                (settings(parallel__pipeline=2, parallel__schedule="interleaved", parallel__virtual_stages=2,
                          parallel__micro_batches=3),
                 '[plan.set_pipeline] parallel.micro_batches is 3 with parallel.schedule "interleaved": expected a multiple of '
                 "the 2 stages"),
                (settings(parallel__pipeline=2, parallel__stages="[2, 1]"),
                 "[plan.set_pipeline] parallel.stages is [2, 1], 3 blocks in all: expected the model's 2"),
                (settings(parallel__plan="eight.json"), '"world" is 8 (' + f"{folder}/eight.json): expected 4, the number of ranks of this run"),
                (settings(parallel__plan="deep.json"), f"the plan has 5 units ({folder}/deep.json): expected the 4 units of the model"),
                (settings(parallel__plan="three.json"),
                 f'"tensor" of "blocks.0" is 3 ({folder}/three.json): expected a divisor of the 4 ranks of a stage'),
                (settings(parallel__plan="nowhere.json"), f"cannot open {folder}/nowhere.json: No such file or directory (parallel.plan)"),
                (settings(parallel__plan="two.json", parallel__tensor=4),
                 'parallel.plan and parallel.tensor are both given, but "tensor" of unit "blocks.0" is 2 in the file (')):
            text = TINY_RESNET if "model.preset=resnet18" in words else None
            recipe = tiny_recipe(folder, text) if text else tiny_recipe(folder)
            run = train(folder, "--procs", 4, *words, "--dry-run", recipe=recipe)
            check(run.wait(60) == 2, words, run.text())
            lines = [line for line in run.text().splitlines() if line.startswith("error: ")]
            check(len(lines) == 1 and expected in lines[0], expected, run.text())


TINY_RESNET = """
[data]
source = "fake:64"
[train]
batch = 8
steps = 1
"""

if __name__ == "__main__":
    main(dry_runs_show_the_layout, any_batch_trains_and_says_who_holds_how_many, groups_over_several_hosts_warn,
         a_plan_file_is_the_layout, evaluations_name_keys_without_effect, refusals)
