#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tessera compare --layouts`: from the command line to the exit code, with bad input."""
import json

from harness import check, main, scratch, tessera, tiny_recipe, train


def compare(folder, *words, **more):
    return tessera("compare", "--layouts", *words, folder=folder, **more)


def last_line(run):
    return run.text().splitlines()[-1]


def layouts_that_agree():
    """Settings and plan files; text and JSON; exit code 0."""
    with scratch() as folder:
        recipe = tiny_recipe(folder)
        run = compare(folder, "ranks=1", "ranks=4,shard.level=zero3", recipe, "--set", "train.batch=8")
        text = run.done()
        check(text.startswith("A: ranks=1 (zero3, 4 units on 1 rank)\n"
                              "B: ranks=4,shard.level=zero3 (zero3, 4 units on 4 ranks)\n"
                              "1 step of 8 samples in fp32, tolerance 1e-05\n"), text)
        check(last_line(run).startswith("layouts agree: "), text)

        train(folder, "--procs", 2, "--set", "train.steps=1", "--set", "shard.level=zero2").done()  # makes a plan.json
        plan = json.loads((folder / "run/plan.json").read_text())
        for unit in plan["units"]:
            if unit["name"].startswith("blocks."):
                unit["tensor"] = 2
        (folder / "tensor.json").write_text(json.dumps(plan))
        for layout in ("run", "run/plan.json", "tensor.json"):
            run = compare(folder, "ranks=1", layout, recipe, "--float64", "--json", "--steps", 2)
            found = json.loads(run.done())
            check(found["agree"] and found["differing"] == 0 and found["first_difference"] is None, found)
            check(found["b"] == {"layout": layout, "ranks": 2, "plan": found["b"]["plan"]}, found)
            check(0 < found["largest_difference"]["largest_difference"] <= 1e-11, found)
            check(found["precision"] == "float64" and found["steps"] == 2 and found["batch"] == 32, found)
            check("all" not in found and found["tensors"] > 100, found)


def layouts_that_differ():
    """The first tensor with both values; exit code 1."""
    with scratch() as folder:
        recipe = tiny_recipe(folder)
        words = ("ranks=1,train.label_smoothing=0.1", "ranks=2", recipe, "--float64")
        run = compare(folder, *words)
        check(run.wait() == 1, run.text())
        check(" tensors differ\nfirst difference: loss: A " in run.text(), run.text())
        table = [line for line in run.text().splitlines() if line.endswith(" differs")]
        check(len(table) == 1 and table[0].startswith("loss "), run.text())
        value_a, value_b = (float(part.split()[1]) for part in last_line(run).split(": ")[2].split(", "))
        check(2 < value_a < 3 and 2 < value_b < 3 and abs(value_a - value_b) > 1e-4, last_line(run))

        run = compare(folder, *words, "--all", "--json")
        check(run.wait() == 1, run.text())
        found = json.loads(run.text())
        check(not found["agree"] and len(found["all"]) == found["tensors"], found)
        check([one["tensor"] for one in found["all"]][:1] == ["samples"], found["all"][0])
        check(found["first_difference"]["tensor"] == "loss" and found["first_difference"]["a"] == value_a, found)
        check(sum(one["status"] == "differs" for one in found["all"]) == found["differing"] > 1, found["differing"])

        check(compare(folder, *words, "--tolerance", "10").wait() == 0, "a tolerance above every difference")


def bad_input():
    with scratch() as folder:
        recipe = tiny_recipe(folder)
        (folder / "broken.json").write_text("{")
        for words, expected in (
                (("ranks=1", "nowhere", recipe), "layout 'nowhere' is neither a plan file nor a list of settings"),
                (("ranks=1", "ranks=3,train.batch_per_rank=5", recipe), "(layout 'ranks=3,train.batch_per_rank=5')"),
                (("ranks=1", "ranks=65", recipe), "layout 'ranks=65' has 65 ranks: expected 1 to 64"),
                (("ranks=1", "ranks=2,run.device=cuda", recipe), "run.device is cuda"),
                (("ranks=1", "ranks=2,shard.level=zero4", recipe), "zero4"),
                (("ranks=1", "broken.json", recipe), "broken.json"),
                (("ranks=1", "ranks=2", "missing.toml"), "missing.toml"),
                (("ranks=1", "ranks=2", recipe, "more"), "--layouts takes one recipe, and 'more' is given as well"),
                (("ranks=1", "ranks=2", recipe, "--steps", 0), "--steps"),
                (("ranks=1", "ranks=2", recipe, "--tolerance", "nan"), "--tolerance: value 'nan' is invalid"),
                (("ranks=1",), "--layouts"),
                (("ranks=1", "ranks=2"), "[compare] the recipe is missing: expected two run folders")):
            run = compare(folder, *words)
            check(run.wait(60) == 2, words, run.text())
            check(run.text().startswith("error: [") and run.text().count("\n") == 1, words, run.text())
            check(expected in run.text(), words, run.text())
        run = compare(folder, "ranks=1", "ranks=2", recipe,
                      env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
        check(run.wait(60) == 2 and "in one process, but environment has started 2 ranks" in run.text(), run.text())
        run = tessera("compare", "a", "b", "--float64", folder=folder)
        check(run.wait(60) == 2 and "--float64 has no effect on a comparison of runs" in run.text(), run.text())
        run = tessera("compare", "a", folder=folder)
        check(run.wait(60) == 2 and "[compare] b is missing" in run.text(), run.text())


main(layouts_that_agree, layouts_that_differ, bad_input)
