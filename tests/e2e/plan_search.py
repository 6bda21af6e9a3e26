#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tessera plan search and tessera train --plan search: the plan that is found is the one that trains."""
import json
import re
import shlex
import signal
import time

from harness import SOURCE, TINY, check, main, scratch, send, tessera

QUICK = ("--rounds", 1, "--batches", "1,2", "--patience", 0)


def assumed(folder):
    """A profile for a tiny model of a machine that is not here."""
    (folder / "tiny.toml").write_text(TINY.replace('"fp32"', '"bf16"'))
    machine = SOURCE / "recipes/machines/h100_sxm.toml"
    tessera("plan", "assume", "tiny.toml", "--machine", machine, "-o", "h100.json", folder=folder).done(30)


def search(folder, *words, **options):
    return tessera("plan", "search", "tiny.toml", "--profile", "h100.json", *words, folder=folder, **options)


def a_searched_plan_is_the_one_that_trains():
    with scratch() as folder:
        (folder / "tiny.toml").write_text(TINY)
        tessera("plan", "profile", "tiny.toml", *QUICK, "--procs", 2, folder=folder).done(60)
        text = tessera("plan", "search", "tiny.toml", "--profile", "profile.json", "--ranks", 2, "--memory", "4GiB",
                       folder=folder).done(60)
        command = shlex.split(re.search(r"train it with:\n  (tessera train .*)", text)[1])
        check("--expected-step" in command, command)
        check(command[command.index("--procs") + 1] == "2", command)
        tessera(*command[1:], "--set", 'run.dir="run"', folder=folder).done(120)
        trained = json.loads((folder / "run/plan.json").read_text())
        check(trained == json.loads((folder / "plan.json").read_text()), trained)
        check(json.loads((folder / "run/summary.json").read_text())["predicted_step_seconds"] == float(command[-1]))
        report = (folder / "run/report.html").read_text()
        for row in ("step", "memory of the largest rank"):
            check(re.search(f"<dt>{row}</dt><dd>[0-9.]+ [a-zA-Z]+ measured, [0-9.]+ [a-zA-Z]+ predicted ", report), row)


def a_search_needs_no_libtorch_and_says_what_it_proves():
    with scratch() as folder:
        assumed(folder)
        no_torch = {"TESSERA_TORCH_DIR": str(folder)}
        text = search(folder, "--hosts", "2x8", "--batch", "32,64", env=no_torch).done(60)
        for part in ("no plan of the space ", "plans simulated", "the space\n", "wrote plan.json"):
            check(part in text, part, "in", text)
        found = json.loads(search(folder, "--hosts", "2x8", "--json", "-o", "", "--batch", "64", env=no_torch).done(60))
        check(found["plans"] and found["plans"][0]["batch"] == 64 and found["plans"][0]["plan"]["world"] == 16, found)
        rates = [plan["images_per_second"] for plan in found["plans"]]
        check(rates == sorted(rates, reverse=True) and 0 <= found["gap"] < 1, rates)


def where_nothing_fits_the_smallest_is_named():
    with scratch() as folder:
        assumed(folder)
        run = search(folder, "--ranks", 2, "--memory", "1MiB", "-o", "")
        check(run.wait(60) == 2, run.tail())
        line = run.text().strip()
        size = re.search(r"no plan fits into 1.00 MiB of a rank: expected at least ([0-9.]+) MiB: ", line)
        check(size and line.count("\n") == 0, line)
        more = f"{float(size[1]) + 0.01:.2f}MiB"
        text = search(folder, "--ranks", 2, "--memory", more, "-o", "").done(60)
        check("the first of them" in text, text)


def the_fastest_of_three_tried_plans_is_chosen():
    with scratch() as folder:
        (folder / "tiny.toml").write_text(TINY)
        tessera("plan", "profile", "tiny.toml", *QUICK, "--procs", 2, folder=folder).done(60)
        words = ("plan", "search", "tiny.toml", "--profile", "profile.json", "--ranks", 2, "--memory", "4GiB", "--verify")
        text = tessera(*words, folder=folder).done(120)
        tried = re.findall(r"tried: ([0-9.]+) s a step, predicted [0-9.]+ s: (.*)", text)
        check(len(tried) == 3, text)
        first = re.search(r"memory  plan\n(.*)", text)[1]
        fastest = min(tried, key=lambda one: float(one[0]))
        ties = [plan for seconds, plan in tried if seconds == fastest[0]]
        check(any(first.endswith("  " + plan) for plan in ties), first, tried)
        run = tessera(*words[:-1], "--verify", "--force", "--set", "data.source=folder:nowhere", folder=folder)
        check(run.wait(60) == 2 and "a trial of" in run.text() and "nowhere" in run.text(), run.text())
        assumed(folder)
        run = search(folder, "--ranks", 2, "--verify", "-o", "")
        check(run.wait(60) == 2 and "--verify with a profile that was not measured here" in run.text(), run.text())


def a_trial_makes_steps_and_saves_nothing():
    with scratch() as folder:
        (folder / "tiny.toml").write_text(TINY)
        text = tessera("train", "tiny.toml", "--procs", 2, "--trial-steps", 3, "--expected-step", 1000, "--set", 'run.dir="run"',
                       folder=folder).done(60)
        check(re.search(r"warning: .*a step takes [0-9.]+ s measured, 1000.0000 s predicted \([0-9.]+ % too much\)", text), text)
        summary = json.loads((folder / "run/summary.json").read_text())
        check(summary["steps"] == 3 and summary["world_size"] == 2 and summary["step_seconds"] > 0, summary)
        check(summary["training_memory_bytes"] > 0 and "val_top1" not in summary, summary)
        check(not list((folder / "run").glob("checkpoints/step_*")), "a checkpoint")
        run = tessera("train", "--resume", "run", folder=folder)
        check(run.wait(60) == 2, run.text())
        run = tessera("train", "tiny.toml", "--trial-steps", 3, "--resume", "latest", folder=folder)
        check(run.wait(60) == 2 and "--trial-steps cannot resume" in run.text(), run.text())


def the_micro_batches_of_a_plan_are_those_that_train():
    with scratch() as folder:
        (folder / "tiny.toml").write_text(TINY)
        tessera("plan", "profile", "tiny.toml", *QUICK, "--procs", 2, folder=folder).done(60)
        words = ("--set", "train.batch=16", "--set", "train.accumulation=4")
        tessera("plan", "search", "tiny.toml", "--profile", "profile.json", "--ranks", 2, "--memory", "4GiB", *words,
                folder=folder).done(60)
        plan = ("tiny.toml", "--procs", 2, "--set", 'parallel.plan="plan.json"', "--set", "train.batch=16", "--dry-run")
        text = train(folder, *plan).done(60)
        check(re.search(r"batch: 16 = .* x 4 ", text), text)
        run = train(folder, *plan, "--set", "train.accumulation=2")
        says = "train.accumulation is 2, and (the pipeline|parallel.plan) has 4 micro-batches: expected the same number"
        check(run.wait(60) == 2 and re.search(says, run.text()), run.text())


def bad_input_is_refused_in_one_line():
    with scratch() as folder:
        assumed(folder)
        for words, says in (
            (("--ranks", 2, "--memory", "5 apples"), "--memory is 5 apples: expected a size such as 24GiB"),
            (("--ranks", 2, "--memory", "0"), "--memory is 0"),
            (("--ranks", 2, "--batch", "0"), "--batch has 0"),
            (("--ranks", 2, "--batch", "8,any"), "--batch has any"),
            ((), "the number of ranks is not given"),
            (("--hosts", "2y8"), "--hosts is 2y8"),
            (("--hosts", "2x8", "--ranks", 8), "--ranks is 8, and --hosts 2x8 are 16"),
            (("--ranks", 7, "--set", "train.batch=16", "--set", "train.batch_per_rank=2"),
             "train.batch is 16: expected a multiple of 7 ranks x batch_per_rank 2 = 14"),
            (("--ranks", 2, "-o", "nowhere/plan.json"), "--output is nowhere/plan.json"),
            (("--ranks", 2, "-o", "./h100.json", "--force"), "--output is ./h100.json, which the command reads"),
            (("--ranks", 2, "--memory", ""), "--memory is empty"),
            (("--hosts", ""), "--hosts is empty"),
            (("--ranks", 2, "--set", "model.depth=3"), "the profile is of another model"),
        ):
            run = search(folder, *words)
            check(run.wait(60) == 2, words, run.tail())
            lines = run.text().splitlines()
            check(len(lines) == 1 and says in lines[0], words, says, run.text())
        for trace, says in (("h100.json", "which the command reads"), ("trace.json", "the file trace.json exists already")):
            (folder / "trace.json").touch()
            run = tessera("plan", "simulate", "tiny.toml", "--profile", "h100.json", "--ranks", 2, "--trace", trace, folder=folder)
            check(run.wait(60) == 2 and says in run.text(), run.text())
        text = search(folder, "--ranks", 2, "--set", "train.batch=32", "--set", "train.batch_per_rank=4", "--batch", "64", "-o", "").done(60)
        check("kept: images of a rank in a micro-batch: 4 (train.batch_per_rank)" in text, text)


def train(folder, *words):
    return tessera("train", *words, folder=folder)


def a_run_keeps_its_plan_and_searches_anew_for_other_ranks():
    with scratch() as folder:
        (folder / "tiny.toml").write_text(TINY)
        tessera("plan", "profile", "tiny.toml", *QUICK, "--procs", 2, folder=folder).done(60)
        run = ("tiny.toml", "--set", 'run.dir="run"', "--set", "train.epochs=0")
        search = ("--plan", "search", "--profile", "profile.json", "--memory", "2GiB")
        text = train(folder, *run, *search, "--procs", 2, "--set", "train.steps=24").done(120)
        check("searched a plan: " in text and re.search(r"a step takes [0-9.]+ s measured, [0-9.]+ s predicted", text), text)
        record = json.loads((folder / "run/plan_search.json").read_text())
        check(record["ranks"] == 2 and record["seconds"] > 0 and record["memory_limit_bytes"] == 2 * 2**30, record)
        first = (folder / "run/searched_plan.json").read_text()
        check(json.loads((folder / "run/plan.json").read_text()) == json.loads(first))
        text = train(folder, "--resume", "run", *search, "--procs", 2, "--set", "train.steps=26").done(120)
        check("the plan that was searched before" in text and "resumed from" in text, text)
        check((folder / "run/searched_plan.json").read_text() == first)
        for words in (("--memory", "1GiB"), ("--set", "train.batch=8")):
            text = train(folder, "--resume", "run", *search[:4], *words, "--procs", 2, "--set", "train.steps=27").done(120)
            check("searched a plan: " in text and "that was searched before" not in text, words, text)
        record = json.loads((folder / "run/plan_search.json").read_text())
        check("train.batch=8" in record["settings_before"], record)
        text = train(folder, "--resume", "run", *search[:2], "--procs", 1, "--set", "train.steps=28").done(120)
        check("measuring the machine" in text and "searched a plan: " in text and "saved by 2 ranks, now 1" in text, text)
        check(json.loads((folder / "run/plan_search.json").read_text())["ranks"] == 1)


def a_search_is_made_by_the_process_that_starts_the_ranks():
    with scratch() as folder:
        (folder / "tiny.toml").write_text(TINY)
        for words, says in (
            (("--plan", "search", "--dry-run"), "search first with tessera plan search"),
            (("--plan", "search", "--pretend-world", 4), "search first with tessera plan search"),
            (("--profile", "p.json"), "--profile p.json has no effect without --plan search"),
            (("--plan", "nowhere.json"), "nowhere.json: No such file or directory (parallel.plan)"),
            (("--plan", "search", "--procs", 2, "--profile", "nowhere.json"), "nowhere.json"),
        ):
            run = train(folder, "tiny.toml", *words)
            check(run.wait(60) == 2, words, run.tail())
            check(says in run.text(), words, says, run.text())


def what_needs_no_measuring_is_refused_before_it():
    with scratch() as folder:
        (folder / "tiny.toml").write_text(TINY)
        for words, says in ((("--memory", "x"), "--memory is x: expected a size such as 24GiB"),
                            (("--set", "train.batch=31", "--set", "train.batch_per_rank=2"), "train.batch")):
            run = train(folder, "tiny.toml", "--plan", "search", "--procs", 2, *words)
            check(run.wait(60) == 2 and says in run.text(), words, run.tail())
            check("measuring" not in run.text() and not (folder / "runs").exists(), words, run.tail())


def a_refused_search_keeps_what_it_measured():
    with scratch() as folder:
        (folder / "tiny.toml").write_text(TINY)
        words = ("tiny.toml", "--plan", "search", "--procs", 2, "--memory", "1KiB", "--set", "run.dir=run")
        run = train(folder, *words)
        check(run.wait(120) == 2 and "no plan " in run.text(), run.tail())
        profile = str(folder / "run/profile.json")
        check(f"the measured profile is kept; use it again with --profile {profile}\n" in run.text(), run.tail())
        check([path.name for path in (folder / "run").iterdir()] == ["profile.json"], list((folder / "run").iterdir()))
        train(folder, *words[:5], "--profile", profile, "--set", "run.dir=run", "--set", "train.epochs=0",
              "--set", "train.steps=2").done(120)


def a_stop_while_it_measures_is_a_stop():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        with scratch() as folder:
            (folder / "tiny.toml").write_text(TINY)
            with train(folder, "tiny.toml", "--plan", "search", "--procs", 2) as run:
                run.wait_for_text("measuring the machine")
                run.wait_for(run.ranks, "the process that measures")
                time.sleep(1)
                send(run.pid, number)
                check(run.wait(30) == 128 + number, number, run.tail())
                check("error" not in run.text() and "stopped while the machine was measured" in run.text(), run.tail())
                check(not list((folder / "runs").glob("*")), list((folder / "runs").glob("*")))
                run.check_nothing_left()


if __name__ == "__main__":
    main(a_searched_plan_is_the_one_that_trains, a_search_needs_no_libtorch_and_says_what_it_proves,
         where_nothing_fits_the_smallest_is_named, the_fastest_of_three_tried_plans_is_chosen,
         a_trial_makes_steps_and_saves_nothing, the_micro_batches_of_a_plan_are_those_that_train, bad_input_is_refused_in_one_line,
         a_run_keeps_its_plan_and_searches_anew_for_other_ranks, a_search_is_made_by_the_process_that_starts_the_ranks,
         what_needs_no_measuring_is_refused_before_it, a_refused_search_keeps_what_it_measured,
         a_stop_while_it_measures_is_a_stop)
