#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check `tessera plan predict` on plans that are drawn by seed and predicted before any of them is measured.

    tools/blind_predictions.py draw --seed 7 --output trial/plans.json
    tools/blind_predictions.py predict --plans trial/plans.json     profiles of this machine, then trial/predictions.json
    tools/blind_predictions.py measure --plans trial/plans.json     call it again until it says that all is measured
    tools/blind_predictions.py report --plans trial/plans.json      tables in Markdown

All files lie in the folder of plans.json. Times are compared as multiples of the step of a reference plan of the same
model and transport, which is predicted from the same profile. A throttled link is the loopback interface of a network
namespace that `tc` slows (needs root and iproute2), both for profiles and for measurements. Nothing else should run on
the machine meanwhile.
Exit code: 0; 1 when `report` finds a limit exceeded; 2 for a wrong argument or state.
"""
import argparse
import contextlib
import json
import math
import pathlib
import random
import statistics
import sys
import time

from blind_plans import Refused, draw_plans, references
from blind_profiles import with_shared_passes
from blind_report import bootstrap, judged, ratios_of, stage_peaks
from measured_steps import (PROGRAM, SOURCE, THROTTLE, Training, available_bytes, digest, links, machine, now, recipe_of, said, sample,
                            set_words, write)

NOISE_RUNS = 12
PROGRAM_BYTES = 256 * 2**20  # of a rank, beside what is predicted


# ---- files

def read_plans(path):
    if not path.exists():
        raise Refused(f"there is no file {path}: expected what draw has written")
    return json.loads(path.read_text())


def records_of(folder):
    """The records of complete groups, and the beginning of every group."""
    path = folder / "measurements.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records, ended = [], {}
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):  # a line that an interruption cut off
            records.append(json.loads(line))
    for record in records:
        if record["kind"] == "complete":
            ended[record["group"]] = record["attempt"]
    return [record for record in records if record["kind"] == "begin" or ended.get(record["group"]) == record["attempt"]]


# ---- draw and predict

def reference_key(plan):
    """Plans of earlier versions have a reference for each model."""
    return plan.get("reference", plan["model"])


def draw(options):
    if options.output.exists():
        raise Refused(f"{options.output} exists already: expected a new file; use another folder")
    plans = draw_plans(options.seed, options.count, options.ranks)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write(options.output, {"seed": options.seed, "ranks": options.ranks, "references": references(options.ranks), "plans": plans})
    for plan in plans:
        print(f"{plan['name']}: {plan['text']}")


def profile_path(folder, model, transport):
    return folder / f"profile-{model.replace('/', '')}-{transport.replace(' ', '-')}.json"


def shared_profile_path(folder, model, transport):
    """The profile with the passes of all profiles of the model."""
    return folder / ("shared-" + profile_path(folder, model, transport).name)


def make_profiles(options, folder, ranks, asked):
    with links() as link:
        for model, transport in sorted({(plan["model"], plan["transport"]) for plan in asked}):
            path = profile_path(folder, model, transport)
            if path.exists() and not options.force:
                print(f"kept {path}; --force measures it again", flush=True)
                continue
            batches = sorted({plan["images_per_rank"] for plan in asked if plan["model"] == model})
            said(*link(transport), options.program, "plan", "profile", recipe_of(folder, model), "--procs", ranks,
                 "--rounds", options.rounds, "--patience", options.patience, "--batches", ",".join(map(str, batches)),
                 "--output", path, "--force", *set_words([], transport))
            print(f"wrote {path}", flush=True)


def share_passes(folder, asked):
    """Writes the profiles that predictions are made from."""
    for model in sorted({plan["model"] for plan in asked}):
        transports = sorted({plan["transport"] for plan in asked if plan["model"] == model})
        profiles = {transport: json.loads(profile_path(folder, model, transport).read_text()) for transport in transports}
        for transport, profile in with_shared_passes(profiles).items():
            write(shared_profile_path(folder, model, transport), profile)


def prediction(program, folder, plan, ranks):
    sets = [*plan["sets"], f"train.batch_per_rank={plan['images_per_rank']}"]
    output = said(program, "plan", "predict", recipe_of(folder, plan["model"]), "--profile",
                  shared_profile_path(folder, plan["model"], plan["transport"]), "--ranks", ranks, "--json",
                  *set_words(sets, plan["transport"]))
    found = json.loads(output[output.index("{"):])
    return {"name": plan["name"], "seconds": found["seconds"],
            "memory_bytes": [stage["memory"]["memory_bytes"] for stage in found["stages"]],
            "parts": [stage["seconds"] for stage in found["stages"]]}


def predict(options):
    folder, plans = options.plans.parent, read_plans(options.plans)
    if (folder / "measurements.jsonl").exists():
        raise Refused(f"{folder / 'measurements.jsonl'} exists: expected predictions before any measurement; use another folder")
    asked = [*plans["references"].values(), *plans["plans"]]
    make_profiles(options, folder, plans["ranks"], asked)
    share_passes(folder, asked)
    path = folder / "predictions.json"
    write(path, {"date": now(), "commit": said("git", "-C", SOURCE, "rev-parse", "HEAD").strip(),
                 "changed_files": said("git", "-C", SOURCE, "status", "--porcelain", "-uno").splitlines(),
                 "program": said(options.program, "--version").strip(), "machine": machine(), "throttle": THROTTLE,
                 "plans_sha256": digest(options.plans), "references": [plan["name"] for plan in plans["references"].values()],
                 "predictions": [prediction(options.program, folder, plan, plans["ranks"]) for plan in asked]})
    (folder / "predictions.sha256").write_text(digest(path) + "\n")
    print(f"wrote {path}, SHA-256 {digest(path)}: commit or publish it before measuring")


def sealed_predictions(folder, plans_file):
    """predictions.json, if predict wrote it for these plans, and before every measurement."""
    path, seal = folder / "predictions.json", folder / "predictions.sha256"
    if not path.exists() or not seal.exists():
        raise Refused(f"there is no {path} with its {seal.name}: expected what predict has written")
    found = json.loads(path.read_text())
    if digest(path) != seal.read_text().strip():
        raise Refused(f"{path} was changed after predict wrote it: its SHA-256 is {digest(path)}, expected {seal.read_text().strip()}")
    if digest(plans_file) != found["plans_sha256"]:
        raise Refused(f"{plans_file} was changed after the predictions: draw and predict again in another folder")
    begins = [record for record in records_of(folder) if record["kind"] == "begin"]
    for date in [record["date"] for record in begins] + [now()]:
        if date < found["date"]:
            raise Refused(f"{path} is of {found['date']}, after a measurement of {date}: predict and measure again in another folder")
    for record in begins:
        if record["predictions_sha256"] != digest(path):
            raise Refused(f"{folder / 'measurements.jsonl'} belongs to other predictions ({record['predictions_sha256']}): use another folder")
    return found


# ---- measure

def groups_of(plans, size, seed):
    """What is measured together: first the identical plans, then the others in random order."""
    first = next(iter(plans["references"].values()))
    identical = [{**first, "name": f"identical {i + 1}"} for i in range(NOISE_RUNS)]
    shuffled = list(plans["plans"])
    random.Random(seed).shuffle(shuffled)
    groups = []
    for runs in (identical, shuffled):
        count = math.ceil(len(runs) / size)
        groups += [runs[i::count] for i in range(count)]
    return groups


def check_memory(groups, plans, predictions):
    """The ranks of a group and of the references are in memory at the same time."""
    by_name = {one["name"]: max(one["memory_bytes"]) + PROGRAM_BYTES for one in predictions["predictions"]}
    by_name.update({f"identical {i + 1}": by_name[predictions["references"][0]] for i in range(NOISE_RUNS)})
    beside = sum(by_name[name] for name in predictions["references"])
    needed = plans["ranks"] * max(beside + sum(by_name[run["name"]] for run in runs) for runs in groups)
    if needed > available_bytes():
        raise Refused(f"a group of plans needs {needed / 2**30:.1f} GiB, but {available_bytes() / 2**30:.1f} GiB are free: expected a "
                      "smaller --group")


def measure_group(runs, plans, options, source, link, tell):
    """Each round takes the plans in random order. A step of its reference is measured before and after each."""
    with contextlib.ExitStack() as stack:
        def start(plan):
            training = Training(options.program, options.plans.parent, plan, plans["ranks"], link)
            stack.callback(training.close)
            training.steps(2)  # memory is found
            return training

        needed = {reference_key(run) for run in runs}
        reference = {key: start(plan) for key, plan in plans["references"].items() if key in needed}
        trainings = [(reference_key(run), start(run)) for run in runs]
        for turn in range(options.rounds):
            source.shuffle(trainings)
            key_before = None
            for key, training in trainings:
                if key_before != key:
                    tell({"kind": "sample", "round": turn, "of": "before", **sample(reference[key], options.steps, options.patience)})
                tell({"kind": "sample", "round": turn, "of": "plan", **sample(training, options.steps, options.patience)})
                tell({"kind": "sample", "round": turn, "of": "after", **sample(reference[key], options.steps, options.patience)})
                key_before = key
        for _, training in trainings:
            tell({"kind": "memory", "name": training.name, "bytes": training.finish()})


def measure(options):
    began = time.monotonic()
    folder, plans = options.plans.parent, read_plans(options.plans)
    predictions = sealed_predictions(folder, options.plans)
    program = said(options.program, "--version").strip()
    if program != predictions["program"]:
        raise Refused(f"{options.program} is \"{program}\": expected the program that predicted, \"{predictions['program']}\"")
    seed = digest(folder / "predictions.json")  # so that nobody chooses the order
    groups = groups_of(plans, options.group, seed)
    done = {record["group"] for record in records_of(folder) if record["kind"] == "complete"}
    left = [number for number in range(len(groups)) if number not in done]
    if left:
        check_memory([groups[number] for number in left], plans, predictions)
    longest = 0
    with links() as link, open(folder / "measurements.jsonl", "a", buffering=1) as file:
        for number in left:
            start = time.monotonic()
            if start - began + longest > options.seconds:
                print(f"stopped after {start - began:.0f} s: {len(left) - left.index(number)} of {len(groups)} groups are left; call measure again")
                return
            attempt = now()

            def tell(record):
                file.write(json.dumps({"group": number, "attempt": attempt, "date": now(), **record}) + "\n")

            tell({"kind": "begin", "predictions_sha256": seed, "machine": machine()})
            measure_group(groups[number], plans, options, random.Random(f"{seed} {number} {attempt}"), link, tell)
            tell({"kind": "complete"})
            longest = max(longest, time.monotonic() - start)
            print(f"group {number + 1} of {len(groups)}: {len(groups[number])} plans, {options.rounds} rounds, "
                  f"{time.monotonic() - start:.0f} s", flush=True)
    print("all is measured")


# ---- report

def slowed_text(samples):
    """Measurements of earlier versions do not say it."""
    known = [one["slowed"] for one in samples if "slowed" in one]
    return f" While something else slowed a core: {sum(known) / len(known):.1%} of the samples." if known else ""


def print_head(plans, predictions, samples, ratios, hash_of_predictions):
    measured = [ratio for name, ratio in ratios.items() if not name.startswith("identical")]
    print(f"Predicted at {predictions['date']} by {predictions['program']} (predictions.json: SHA-256 {hash_of_predictions}). Measured from "
          f"{samples[0]['date']} to {samples[-1]['date']} on {predictions['machine']['processor']}, {predictions['machine']['cores']} cores, "
          f"{plans['ranks']} ranks of one thread: {len(measured)} of {len(plans['plans'])} plans, at least {min(map(len, measured))} rounds. "
          f"Steal time of the samples: mean {statistics.mean(one['steal'] for one in samples):.2%}, largest "
          f"{max(one['steal'] for one in samples):.1%}; load {statistics.mean(one['load'] for one in samples):.2f}.{slowed_text(samples)}\n")
    references_text = ", ".join(plan["text"] for plan in plans["references"].values())
    print(f"Reference plans: {references_text}.\n")
    noise = [statistics.median(ratio) - 1 for name, ratio in ratios.items() if name.startswith("identical")]
    print(f"Noise floor, {len(noise)} identical plans beside their reference: mean deviation {statistics.mean(map(abs, noise)):.2%}, largest "
          f"{max(map(abs, noise)):.2%}.\n")


def row_of(plan, one, expected, ratio, peaks):
    """A line of the table, the error of the time and those of the memory of each stage."""
    median = statistics.median(ratio)
    low, high = bootstrap(ratio)
    of_stages = [guess / peak - 1 for guess, peak in zip(one["memory_bytes"], peaks)]
    guesses, found = (" / ".join(f"{value / 2**20:.0f}" for value in values) for values in (one["memory_bytes"], peaks))
    print(f"| {plan['name']} | {plan['text']} | {expected:.3f} | {median:.3f} | {expected / median - 1:+.1%} | {expected / high - 1:+.1%} to "
          f"{expected / low - 1:+.1%} | {guesses} | {found} | {' / '.join(f'{value:+.1%}' for value in of_stages)} |")
    return expected / median - 1, of_stages


def print_limits(ranks, cores, errors, memory_errors):
    """The exit code."""
    if ranks > cores:
        print("\nNo limits are set where ranks share cores.")
        return 0
    print("\n| | found | expected | |\n| --- | --- | --- | --- |")
    rows = judged(errors, memory_errors)
    for text, found, limit, met in rows:
        print(f"| {text} | {found} | {limit} | {'met' if met else 'not met'} |")
    return 0 if all(met for *_, met in rows) else 1


def report(options):
    folder, plans = options.plans.parent, read_plans(options.plans)
    predictions = sealed_predictions(folder, options.plans)
    records = records_of(folder)
    ratios, samples = ratios_of(records), [record for record in records if record["kind"] == "sample"]
    memory = {record["name"]: record["bytes"] for record in records if record["kind"] == "memory"}
    measured = [plan for plan in plans["plans"] if plan["name"] in ratios]
    if not measured:
        raise Refused(f"no plan of {options.plans} is measured yet: expected what measure has written")
    print_head(plans, predictions, samples, ratios, digest(folder / "predictions.json"))
    print("| | plan | predicted | measured | error | 95 % interval | MiB predicted | measured | error |\n|" + " --- |" * 9)
    by_name = {one["name"]: one for one in predictions["predictions"]}
    errors, memory_errors = [], []
    for plan in measured:
        one, reference = by_name[plan["name"]], by_name[plans["references"][reference_key(plan)]["name"]]
        peaks = stage_peaks(memory[plan["name"]], plan["stages"])
        error, of_stages = row_of(plan, one, one["seconds"] / reference["seconds"], ratios[plan["name"]], peaks)
        errors.append(error)
        memory_errors += of_stages
    return print_limits(plans["ranks"], predictions["machine"]["cores"], errors, memory_errors)


# ---- command line

def at_least_1(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: expected at least 1")
    return value


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name, function, text):
        command = verbs.add_parser(name, help=text, description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        command.set_defaults(run=function)
        return command

    one = verb("draw", draw, "Draw plans by seed")
    one.add_argument("--seed", type=int, required=True, help="the same seed draws the same plans")
    one.add_argument("--count", type=at_least_1, default=32, help="number of plans")
    one.add_argument("--ranks", type=at_least_1, default=2, help="ranks of each plan")
    one.add_argument("--output", type=pathlib.Path, required=True, help="file to write")
    two = verb("predict", predict, "Measure profiles of this machine and predict all plans")
    two.add_argument("--patience", type=float, default=3, help="of tessera plan profile")
    two.add_argument("--force", action="store_true", help="measure profiles again that exist")
    three = verb("measure", measure, "Measure the plans in random order, each beside the reference step")
    three.add_argument("--seconds", type=float, default=480, help="begin no group that would last beyond so many seconds")
    three.add_argument("--group", type=at_least_1, default=8, help="plans that are in memory at the same time")
    three.add_argument("--steps", type=at_least_1, default=2, help="steps of a sample")
    three.add_argument("--patience", type=float, default=10, help="seconds for which a slowed sample is taken again; 0: the first one counts")
    for command in (two, three, verb("report", report, "Print the tables")):
        command.add_argument("--plans", type=pathlib.Path, required=True, help="file that draw has written")
    for command in (two, three):
        command.add_argument("--program", type=pathlib.Path, default=PROGRAM, help="the tessera to use")
        command.add_argument("--rounds", type=at_least_1, default=9, help="measurements of each value")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parsed(arguments)
    try:
        return options.run(options) or 0
    except Refused as refused:
        print(f"error: [blind_predictions] {refused}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
