#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check that `tessera plan search` chooses a plan that nothing beats: many named plans are measured beside it.

    tools/choice_sweep.py list                              the settings and their plans
    tools/choice_sweep.py run --output trial/choice         call it again until it says that all is measured
    tools/choice_sweep.py report --output trial/choice      tables in Markdown

For each setting (model, memory of a rank, link): a profile of this machine, the search, then every named plan in a few
rounds by turns with the searched one. The five fastest that keep the memory, and the searched plan, are measured again in
many rounds. Two ranks of one thread. A plan keeps the memory if its measured peak does. Nothing else should run meanwhile.
Exit code: 0; 1 when `report` finds a searched plan more than 2 % behind the best; 2 for a wrong argument or state.
"""
import argparse
import contextlib
import json
import pathlib
import random
import statistics
import sys
import textwrap
import time

from blind_plans import Refused
from blind_report import bootstrap
from measured_steps import PROGRAM, Training, digest, links, machine, now, recipe_of, said, sample, set_words, write

RANKS = 2
WITHIN = 0.02  # of the best plan
FIRST_ROUNDS, LAST_ROUNDS, FASTEST = 3, 15, 5
STEPS = 2  # of a sample
IN_MEMORY = 8  # trainings at the same time
SLOW = 1.3  # times the fastest plan so far: not measured again in the first rounds
SEARCHED = "searched"
SETTINGS = {
    "S/16, 900 MiB, shared memory": {"model": "S/16", "images": 16, "memory": "900MiB", "transport": "shared memory"},
    "Ti/16, 200 MiB, TCP": {"model": "Ti/16", "images": 32, "memory": "200MiB", "transport": "TCP"},
    "S/16, 550 MiB, throttled": {"model": "S/16", "images": 16, "memory": "550MiB", "transport": "throttled"},
}


# ---- plans

def plan_of(setting, name, micro_batches, stages, sets):
    images = setting["images"] // (RANKS // stages * micro_batches)
    return {"name": name, "model": setting["model"], "transport": setting["transport"], "stages": stages, "images_per_rank": images,
            "sets": [*sets, f"train.batch={setting['images']}"]}


def named_plans(setting):
    """What one would write by hand: at most 48 plans. {name: plan}"""
    plans = []

    def add(name, micro_batches, stages, *sets):
        plans.append(plan_of(setting, f"{name}, m {micro_batches}", micro_batches, stages, sets))

    for recompute in (False, True):
        ending, common = (", recompute" if recompute else ""), f"shard.recompute={str(recompute).lower()}"
        for micro_batches in (1, 2, 4):
            for level in ("replicate", "zero1", "zero2", "zero3"):
                add(level + ending, micro_batches, 1, f"shard.level={level}", common)
        for micro_batches in (1, 2):
            add("tensor 2" + ending, micro_batches, 1, "parallel.tensor=2", common)
            add("tensor 2, regather" + ending, micro_batches, 1, "parallel.tensor=2", "parallel.keep_gathered=false", common)
        for micro_batches in (2, 4):
            for schedule in ("gpipe", "1f1b"):
                add(f"2 stages {schedule}" + ending, micro_batches, 2, "parallel.pipeline=2", f"parallel.micro_batches={micro_batches}",
                    f"parallel.schedule={schedule}", common)
            add("2 stages interleaved" + ending, micro_batches, 2, "parallel.pipeline=2", f"parallel.micro_batches={micro_batches}",
                "parallel.schedule=interleaved", "parallel.virtual_stages=2", common)
    for first, rest in (("zero2", "zero3+recompute"), ("zero3", "tensor2"), ("tensor2", "zero2")):
        add(f"6 blocks {first}, 6 {rest}", 1, 1, "shard.level=zero3", f"shard.units=blocks.0-5={first}, blocks.6-11={rest}")
    return {plan["name"]: plan for plan in plans}


# ---- measurements

def searched_plan(options, folder, setting, link):
    """What the search finds with a profile of this machine: the plan, and what the search said of it."""
    per_rank = sorted({plan["images_per_rank"] for plan in named_plans(setting).values()})
    profile, file = folder / "profile.json", folder / "plan.json"
    common = [*set_words([f"train.batch={setting['images']}"], setting["transport"])]
    recipe = recipe_of(folder, setting["model"])
    said(*link(setting["transport"]), options.program, "plan", "profile", recipe, "--procs", RANKS, "--rounds", 9, "--patience", 3,
         "--batches", ",".join(map(str, per_rank)), "--output", profile, "--force", *common)
    output = said(options.program, "plan", "search", recipe, "--profile", profile, "--ranks", RANKS, "--memory", setting["memory"],
                  "--output", file, "--force", "--json", *common)
    found = json.loads(output[output.index("{"):])["plans"][0]
    plan = plan_of(setting, SEARCHED, found["micro_batches"], found["plan"]["stages"], [f"parallel.plan={file}"])
    if plan["stages"] > 1:
        plan["sets"].append(f"parallel.micro_batches={found['micro_batches']}")
    return {**plan, "text": found["text"], "predicted_seconds": found["seconds"], "predicted_bytes": found["memory_bytes"]}


def measure(options, folder, plans, rounds, link):
    """{name: ([seconds of each round as multiples of the searched plan's], peak memory)}; records go to samples.jsonl."""
    searched = plans[SEARCHED]
    others = [plan for name, plan in plans.items() if name != SEARCHED]
    found = {}

    def is_slow(training):
        fastest_ratio = min(min(ratios) for ratios, _ in found.values())
        return rounds == FIRST_ROUNDS and min(found[training.name][0]) > SLOW * fastest_ratio

    source = random.Random(digest(folder / "searched.json"))
    source.shuffle(others)
    for begin in range(0, len(others), IN_MEMORY):
        with contextlib.ExitStack() as stack:
            def start(plan):
                training = Training(options.program, folder, plan, RANKS, link)
                stack.callback(training.close)
                training.steps(2)  # memory is found
                return training

            reference = start(searched)
            trainings = [start(plan) for plan in others[begin:begin + IN_MEMORY]]
            for turn in range(rounds):
                source.shuffle(trainings)
                before = sample(reference, STEPS)
                for training in [one for one in trainings if turn == 0 or not is_slow(one)]:
                    taken, after = sample(training, STEPS), sample(reference, STEPS)
                    ratio = statistics.mean(taken["seconds"]) / statistics.mean(before["seconds"] + after["seconds"])
                    with open(folder / "samples.jsonl", "a") as file:
                        file.write(json.dumps({"date": now(), "round": turn, "of": rounds, "ratio": ratio, "reference": after, **taken}) + "\n")
                    found.setdefault(training.name, ([], []))[0].append(ratio)
                    before = after
            for training in [*trainings, reference]:
                found.setdefault(training.name, ([1.0], []))[1].append(max(training.finish()))
    return {name: {"ratios": ratios, "bytes": max(peaks)} for name, (ratios, peaks) in found.items()}


def bytes_of(text):
    return int(text.removesuffix("MiB")) * 2**20


def fastest(setting, measured):
    """Names of the fastest plans that keep the memory, without the searched one."""
    fitting = [name for name, one in measured.items() if name != SEARCHED and one["bytes"] <= bytes_of(setting["memory"])]
    return sorted(fitting, key=lambda name: statistics.median(measured[name]["ratios"]))[:FASTEST]


def run_setting(options, name, setting, link):
    folder = options.output / name.replace("/", "").replace(", ", "-").replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "searched.json"
    if not state.exists():
        write(state, {"date": now(), "program": said(options.program, "--version").strip(), "machine": machine(),
                      **searched_plan(options, folder, setting, link)})
    plans = {**named_plans(setting), SEARCHED: json.loads(state.read_text())}
    for file, rounds in (("sweep.json", FIRST_ROUNDS), ("best.json", LAST_ROUNDS)):
        if (folder / file).exists():
            continue
        names = list(plans) if file == "sweep.json" else [*fastest(setting, json.loads((folder / "sweep.json").read_text())), SEARCHED]
        start = time.monotonic()
        write(folder / file, measure(options, folder, {one: plans[one] for one in names}, rounds, link))
        print(f"{name}: {len(names)} plans, {rounds} rounds, {time.monotonic() - start:.0f} s", flush=True)
        return False
    return True


def run(options):
    """One piece of work for each call, so that a call ends in some minutes."""
    with links() as link:
        if all(run_setting(options, name, setting, link) for name, setting in SETTINGS.items()):
            print("all is measured")


# ---- report

def judged(measured):
    """(name of the fastest, how far the searched plan is behind it and the interval of that), from ratios to the searched plan."""
    best = min((name for name in measured if name != SEARCHED), key=lambda name: statistics.median(measured[name]["ratios"]))
    ratios = [1 / ratio for ratio in measured[best]["ratios"]]  # searched / best
    return best, statistics.median(ratios) - 1, [bound - 1 for bound in bootstrap(ratios)]


def report(options):
    met = True
    for name, setting in SETTINGS.items():
        folder = options.output / name.replace("/", "").replace(", ", "-").replace(" ", "-")
        if not (folder / "best.json").exists():
            raise Refused(f"{name} is not measured yet: expected what run has written")
        searched, sweep, best = (json.loads((folder / file).read_text()) for file in ("searched.json", "sweep.json", "best.json"))
        fitting = sum(one["bytes"] <= bytes_of(setting["memory"]) for one in sweep.values()) - 1
        text = (f"**{name}**, {setting['images']} images a step: searched plan: {searched['text']}; predicted "
                f"{searched['predicted_seconds']:.3f} s and {searched['predicted_bytes'] / 2**20:.0f} MiB, measured "
                f"{best[SEARCHED]['bytes'] / 2**20:.0f} MiB. {fitting} of {len(sweep) - 1} named plans keep the memory.")
        print(f"{textwrap.fill(text, 120)}\n\n| plan | step, of the searched plan's | 95 % interval | MiB |\n|" + " --- |" * 4)
        for plan in sorted(best, key=lambda one: statistics.median(best[one]["ratios"])):
            ratios = best[plan]["ratios"]
            low, high = bootstrap(ratios)
            interval = "" if plan == SEARCHED else f"{low:.3f} to {high:.3f}"
            print(f"| {plan} | {statistics.median(ratios):.3f} | {interval} | {best[plan]['bytes'] / 2**20:.0f} |")
        fastest_name, behind, (low, high) = judged(best)
        met = met and low <= WITHIN
        print(f"\nSearched beside {fastest_name}: {behind:+.1%} ({low:+.1%} to {high:+.1%}): within {WITHIN:.0%}: {'yes' if low <= WITHIN else 'no'}.\n")
    return 0 if met else 1


def list_plans(_):
    for name, setting in SETTINGS.items():
        plans = named_plans(setting)
        print(f"{name}: {len(plans)} plans")
        for plan in plans.values():
            print(f"  {plan['name']}, {plan['images_per_rank']} images a rank")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, function, text in (("list", list_plans, "Print the settings and their plans"), ("run", run, "Measure; one piece of work a call"),
                                 ("report", report, "Print the tables")):
        verb = verbs.add_parser(name, help=text, description=text)
        verb.set_defaults(function=function)
        if name != "list":
            verb.add_argument("--output", type=pathlib.Path, required=True, help="folder of the measurements")
        if name == "run":
            verb.add_argument("--program", type=pathlib.Path, default=PROGRAM, help="the tessera to use")
    options = parser.parse_args(arguments)
    try:
        return options.function(options) or 0
    except Refused as refused:
        print(f"error: [choice_sweep] {refused}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
