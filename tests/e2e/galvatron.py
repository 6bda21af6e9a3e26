#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans of Galvatron are imported and train as laid out: the same losses as one rank. Its profiles predict step times.

TESSERA_E2E_GALVATRON: "small" (default), or "huge" for a step of one rank of ViT-Huge-32 at real size.
"""
import json
import os

from harness import SOURCE, TINY, check, check_same_losses, losses, main, scratch, settings, summary, tessera, train

SAMPLE = """
### A sample strategy
pp_deg = 1
tp_sizes_enc = [1]*32
tp_consecutive_flags = [1]*32
dp_types_enc = [0]*20+[1]*12
"""
STEPS = settings(train__steps=2)
TOKENS, BLOCKS = 4, 2  # of TINY


def model_of(folder, depth):
    path = folder / "vit.toml"
    path.write_text(TINY.replace("depth = 2", f"depth = {depth}"))
    return path


def imported(folder, *words):
    """Output of an import into plan.json, and the plan."""
    text = tessera("plan", "import", *words, "--recipe", "vit.toml", "-o", "plan.json", folder=folder).done()
    return text, json.loads((folder / "plan.json").read_text())


def the_sample_of_vit_huge_trains_as_one_rank():
    """20 layers DP and 12 layers SDP on 8 ranks, at a small width."""
    with scratch() as folder:
        recipe = model_of(folder, 32)
        (folder / "strategy.py").write_text(SAMPLE)
        text, plan = imported(folder, "strategy.py", "--ranks", 8)
        again = tessera("plan", "import", "strategy.py", "--ranks", 8, "--recipe", "vit.toml", "-o", "plan.json", folder=folder)
        check(again.wait(60) == 2 and "[cli.plan_import] the file plan.json exists already: expected a new file; use another --output, "
              "or --force to replace it" in again.text(), again.text())
        check(imported(folder, "strategy.py", "--ranks", 8, "--force")[1] == plan, "--force replaces it")
        for line in ("32 layers on 8 ranks", "layers 0-19, blocks.0-19: replicate", "layers 20-31, blocks.20-31: zero3",
                     "  data-parallel groups: 0,1,2,3,4,5,6,7",
                     "  tessera train vit.toml --procs 8 --set parallel.plan=plan.json"):
            check(f"{line}\n" in text, line, text)
        check([unit["level"] for unit in plan["units"]] == ["replicate"] * 21 + ["zero3"] * 12 + ["replicate"], plan)
        train(folder, *STEPS, recipe=recipe, run="one").done()
        train(folder, *STEPS, "--procs", 8, *settings(parallel__plan="plan.json"), recipe=recipe).done()
        check_same_losses(losses(folder / "run"), losses(folder / "one"), 1e-5)
        check(json.loads((folder / "run/plan.json").read_text()) == plan, "the run saves the plan that it was given")


def a_strategy_of_the_readme_trains_as_one_rank():
    """2-way PP, 2-way DP, 2-way TP on 8 ranks, from flags, with Galvatron's batch and micro-batches."""
    with scratch() as folder:
        recipe = model_of(folder, 4)
        flags = ["--nproc_per_node", 4, "--pp_deg", 2, "--global_tp_deg", 2, "--global_tp_consec", 0, "--fsdp", 0]
        text, plan = imported(folder, *flags, "--chunks", 2, "--global-train-batch-size", 16)
        check("  tensor groups: 0,2 | 1,3 | 4,6 | 5,7\n" in text, text)
        check("--procs 8 --set parallel.plan=plan.json --set train.batch=16\n" in text, text)
        check(plan["stages"] == 2 and plan["micro_batches"] == 2 and plan["schedule"] == "gpipe", plan)
        batch = settings(train__batch=16)
        train(folder, *STEPS, *batch, recipe=recipe, run="one").done()
        train(folder, *STEPS, *batch, "--procs", 8, *settings(parallel__plan="plan.json"), recipe=recipe).done()
        check_same_losses(losses(folder / "run"), losses(folder / "one"), 1e-5)


def refusals_are_one_line():
    with scratch() as folder:
        model_of(folder, 4)
        (folder / "bad.json").write_text('{"pp_deg": 1, "tp_sizes_enc": "1,1,1,1", "use_sp": "1,1,1,1"}')
        for words, expected in (
                (("bad.json", "--ranks", 4), "[plan.import_galvatron] entry 0 of use_sp is 1 (bad.json): expected 0, since"),
                (("nowhere.json",), "nowhere.json"),
                ((), "[cli.plan_import] no plan is given: expected a file, or Galvatron's flags"),
                (("pp_deg=1", "--pp-deg", 2), "[cli.plan_import] pp_deg=1 and --pp_deg are both given: expected either"),
                (("pp_deg=1, global_tp_deg=2",), "[plan.import_galvatron] the number of ranks is not given: expected --ranks,"),
                (("--pp_deg", 1, "--global_tp_deg", 2, "--use-ulysses", "--ranks", 8),
                 "[plan.import_galvatron] use_ulysses is '1': expected 0, since there is no sequence parallelism"),
                (("--pp_deg", 1, "--global_tp_deg", 2, "--vocab_tp", 2, "--ranks", 8),
                 "[plan.import_galvatron] vocab_tp is '2': expected 0 or 1, since stem and head are not cut over ranks"),
                (("--pp_deg", 2, "--global_tp_deg", 3, "--ranks", 8),
                 "[plan.import_galvatron] global_tp_deg is 3: expected a divisor of the 4 ranks of a pipeline stage")):
            run = tessera("plan", "import", *words, "--recipe", "vit.toml", "-o", "plan.json", folder=folder)
            check(run.wait(60) == 2, words, run.text())
            lines = run.text().splitlines()
            check(len(lines) == 1 and lines[0].startswith("error: ") and expected in lines[0], expected, run.text())
            check(not (folder / "plan.json").exists(), words, "a file was written")


def nothing_is_written_without_output():
    with scratch() as folder:
        model_of(folder, 4)
        text = tessera("plan", "import", "pp_deg=1, global_tp_deg=2, sdp=1", "--ranks", 4, "--recipe", "vit.toml",
                       folder=folder).done()
        check("layers 0-3, blocks.0-3: zero3, tensor 2 (adjacent)\n" in text and "No file was written" in text, text)
        check(not list(folder.glob("*.json")), list(folder.iterdir()))


def profile_files(folder):
    """One host of 4 ranks. Arguments of an import."""
    for name, numbers in (
            ("allreduce_bandwidth_1nodes_4gpus_per_node", {"allreduce_size_4_consec_1": 100.0, "allreduce_size_2_consec_1": 50.0,
                                                           "allreduce_size_2_consec_0": 80.0}),
            ("p2p_bandwidth_1nodes_4gpus_per_node", {"pp_size_2": 20.0, "pp_size_4": 40.0}),
            ("overlap_coefficient", {"overlap_coe": 1.25}),
            ("computation_profiling_fp32_vit_all", {f"layertype_0_bsz2_seq{TOKENS}": 3.0, f"layertype_other_bsz2_seq{TOKENS}": 4.0})):
        (folder / f"{name}.json").write_text(json.dumps(numbers))
    return ("--hardware", "allreduce_bandwidth_1nodes_4gpus_per_node.json", "p2p_bandwidth_1nodes_4gpus_per_node.json",
            "overlap_coefficient.json", "--computation", "computation_profiling_fp32_vit_all.json")


def profiles_are_imported_predicted_and_exported():
    with scratch() as folder:
        model_of(folder, 2)
        files = profile_files(folder)
        text = tessera("plan", "import-profile", "vit.toml", *files, folder=folder).done()
        for line in ("assumed: messages have no latency", "wrote profile.json; predict with it:",
                     "  tessera plan predict vit.toml --profile profile.json --ranks 4"):
            check(f"{line}\n" in text, line, text)
        for keys in ("shard.level=zero3", "parallel.tensor=2", "parallel.pipeline=2"):
            words = ("plan", "predict", "vit.toml", "--profile", "profile.json", "--ranks", 4, "--set", keys, "--json")
            found = json.loads(tessera(*words, folder=folder).done())
            check(found["seconds"] > 0 and found["assumptions"] == [], keys, found)
        alone = json.loads(tessera("plan", "predict", "vit.toml", "--profile", "profile.json", "--ranks", 1, "--json",
                                   folder=folder).done())
        images = alone["batch_per_rank"] * alone["micro_batches"]
        expected = 3e-3 * images * (4 + 3 * BLOCKS)
        check(abs(alone["seconds"] / expected - 1) < 1e-9, alone, expected)
        text = tessera("plan", "export-profile", "profile.json", "-o", "out", folder=folder).done()
        check("not written: memory_profiling_*.json" in text, text)
        for path in folder.glob("*_*.json"):
            before, after = json.loads(path.read_text()), json.loads((folder / "out" / path.name).read_text())
            check(set(before) == set(after), path, after)
            check(all(abs(after[key] / value - 1) < 1e-9 for key, value in before.items()), path, after)


def profiles_are_refused_in_one_line():
    with scratch() as folder:
        model_of(folder, 2)
        files = profile_files(folder)
        (folder / "mine.json").write_text("mine")
        (folder / "bad.json").write_text('{"allreduce_size_4_consec_1": 0}')
        one = ("import-profile", "vit.toml")
        for words, expected in (
                ((*one, *files, "-o", "mine.json"), "[cli.plan_import_profile] the file mine.json exists already"),
                ((*one, *files, "-o", "nowhere/p.json"), "[cli.plan_import_profile] --output is nowhere/p.json: expected"),
                ((*one, "--hardware", "bad.json", *files[-2:]),
                 '[planner.import_galvatron_profile] "allreduce_size_4_consec_1" is 0 (bad.json): expected a number between'),
                ((*one, *files[:-1], "nowhere.json"), "nowhere.json"),
                ((*one, *files[:-2]), "[cli] --computation is missing"),
                ((*one, *files, "--ranks-per-host", 2), "the number of ranks of a host is 2: expected 4"),
                (("export-profile", "mine.json", "-o", "out"), "[planner.profile_from_json] not valid JSON at byte 1"),
                (("export-profile", "mine.json", "-o", "out", "--model-name", "a/b"),
                 "[cli.plan_export_profile] --model-name is a/b: expected a part of a file's name, without /")):
            run = tessera("plan", *words, folder=folder)
            check(run.wait(60) == 2, words, run.text())
            lines = run.text().splitlines()
            check(len(lines) == 1 and lines[0].startswith("error: ") and expected in lines[0], expected, run.text())
        check(not (folder / "profile.json").exists() and not (folder / "out").exists(), list(folder.iterdir()))
        check((folder / "mine.json").read_text() == "mine")
        tessera("plan", *one, *files, folder=folder).done()
        tessera("plan", "export-profile", "profile.json", "-o", "out", folder=folder).done()
        again = tessera("plan", "export-profile", "profile.json", "-o", "out", folder=folder)
        check(again.wait(60) == 2 and "exists already: expected a folder without it" in again.text(), again.text())
        tessera("plan", "export-profile", "profile.json", "-o", "out", "--force", folder=folder).done()


def one_rank_of_vit_huge_makes_a_step():
    """The sample at real size: rank 0 of 8."""
    with scratch() as folder:
        recipe = SOURCE / "recipes/vit_huge.toml"
        (folder / "strategy.py").write_text(SAMPLE)
        tessera("plan", "import", "strategy.py", "--ranks", 8, "--recipe", recipe, "-o", "plan.json", folder=folder).done()
        keys = settings(parallel__plan="plan.json", precision__compute='"bf16"')
        train(folder, "--pretend-world", 8, *keys, recipe=recipe).done(1200)
        found = summary(folder / "run")
        check(found["pretended"] is True and found["world_size"] == 8 and found["steps"] == 1, found)
        check(0 < found["loss"] < 1e3 and 0 < found["gradient_norm"] < 1e9, found)
        check(found["training_memory_bytes"] <= 1.1 * found["predicted_memory_bytes"], found)
        print(f"  {found['train_seconds']:.0f} s, peak {found['peak_rss_bytes'] / 2**30:.2f} GiB, predicted "
              f"{found['predicted_memory_bytes'] / 2**30:.2f} GiB", flush=True)
        # Of the values of 12 layers (SDP), bf16: gathered for forward and backward, reduced once. Of all others (DP),
        # fp32: an all-reduce, which is a reduce-scatter and an all-gather.
        sharded = 12 * (12 * 1280**2 + 13 * 1280)
        others = found["parameters"] - sharded
        traffic = found["communication"]["shard"]
        for kind, expected in (("all_gather", 4 * others + 2 * 2 * sharded), ("reduce_scatter", 4 * others + 2 * sharded)):
            sent = traffic[kind]["bytes_sent"] / (expected * 7 / 8)
            check(1 <= sent < 1.001, kind, sent, traffic)


SMALL = (the_sample_of_vit_huge_trains_as_one_rank, a_strategy_of_the_readme_trains_as_one_rank, refusals_are_one_line,
         nothing_is_written_without_output, profiles_are_imported_predicted_and_exported, profiles_are_refused_in_one_line)
main(*((one_rank_of_vit_huge_makes_a_step,) if os.environ.get("TESSERA_E2E_GALVATRON") == "huge" else SMALL))
