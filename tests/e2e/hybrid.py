#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hybrid sharding by shard.ranks: 4 ranks of which 2 hold one copy of the state."""
import json

from harness import check, check_same_losses, losses, main, scratch, settings, summary, tessera, train

TWO = settings(shard__ranks=2, train__steps=6, checkpoint__every_steps=3)


def trains_resumes_and_is_evaluated():
    """The curve of 1 rank; one copy of the state is saved; any other number of ranks reads it."""
    with scratch() as folder:
        text = train(folder, "--procs", 4, *TWO, "--dry-run").done()
        check("  layout: zero3 over 2 of 4 ranks, 4 units\n" in text, text)
        train(folder, "--procs", 4, *TWO).done()
        train(folder, *settings(train__steps=6), run="alone").done()
        check_same_losses(losses(folder / "run"), losses(folder / "alone"), 1e-5)
        plan = json.loads((folder / "run/plan.json").read_text())
        check(plan["version"] == 2 and [unit["shard"] for unit in plan["units"]] == [2] * 4, plan)
        found = summary(folder / "run")
        check(set(found["communication"]) == {"shard", "dp", "world"}, found["communication"])
        for words in ((), ("--procs", 3)):
            tessera("eval", "run", *words, "--json", "--output", "eval.json", folder=folder).done()
            loss = json.loads((folder / "eval.json").read_text())["loss"]
            check(abs(loss - found["val_loss"]) <= 1e-5 * found["val_loss"], words, loss, found["val_loss"])
        for more in ((), settings(shard__ranks=0)):  # the second half once more, as it was and over all ranks
            train(folder, "--procs", 4, *TWO, *more, "--resume", "3").done()
            check_same_losses(losses(folder / "run"), losses(folder / "alone"), 1e-5)


def refuses_what_does_not_divide():
    with scratch() as folder:
        for words, expected in (
                (settings(shard__ranks=3),
                 "[plan.set_shard_ranks] shard.ranks is 3: expected 0 or a divisor of the 4 ranks that train"),
                (settings(shard__units="head=zero3+ranks3"),
                 "[plan.unit_rules] shard.units has the rule 'head=zero3+ranks3', but 3 does not divide the 4 ranks that "
                 "train")):
            run = train(folder, "--procs", 4, *words)
            check(run.wait(60) == 2 and expected in run.text(), run.text())


def units_have_groups_of_their_own():
    """A message over a group without a name is counted under its ranks."""
    with scratch() as folder:
        train(folder, "--procs", 4, *TWO, *settings(shard__units="blocks.0=zero2+ranks4, head=replicate")).done()
        train(folder, *settings(train__steps=6), run="alone").done()
        check_same_losses(losses(folder / "run"), losses(folder / "alone"), 1e-5)
        groups = set(summary(folder / "run")["communication"])
        check(groups == {"shard", "dp", "ranks 0,1,2,3", "world"}, groups)


main(trains_resumes_and_is_evaluated, refuses_what_does_not_divide, units_have_groups_of_their_own)
