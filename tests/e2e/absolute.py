# SPDX-License-Identifier: Apache-2.0
"""What a run does, against values that are computed here: a change that all layouts share equally shows in no comparison of
two runs of the program."""
import json
import math
import struct

from harness import check, main, scratch, settings, tiny_recipe, train

PLAIN_SGD = settings(optimizer__name="sgd", optimizer__momentum=0, optimizer__weight_decay=0, optimizer__lr=0.5)


def rows(folder, kind):
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def parameters(checkpoint):
    """All float32 numbers of the model in a checkpoint of one rank, tensor after tensor."""
    (file,) = checkpoint.glob("*.safetensors")
    data = file.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    entries = {name: entry for name, entry in json.loads(data[8:8 + length]).items() if name.startswith("param/")}
    check(len(entries) > 20, "parameters of the checkpoint:", list(entries))
    numbers = []
    for _, entry in sorted(entries.items()):
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        numbers += struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return numbers


def moves(folder, steps):
    """The length of each step through the space of the parameters."""
    found, before = [], None
    for step in range(1, steps + 1):
        now = parameters(folder / f"run/checkpoints/step_{step:08d}")
        if before:
            found.append(math.dist(now, before))
        before = now
    return found


def a_step_of_sgd_is_rate_times_clipped_gradient():
    # Warmup over 3 steps from 0, then half a cosine down to 0 over the other 5.
    rate = [0.5 * s / 3 if s < 3 else 0.25 * (1 + math.cos(math.pi * (s - 3) / 5)) for s in range(8)]
    for clip in (0, 0.25):
        with scratch() as folder:
            train(folder, *PLAIN_SGD, *settings(train__steps=8, train__clip=clip, schedule__warmup_steps=3, checkpoint__every_steps=1,
                                                checkpoint__keep=100, train__eval_every_epochs=0)).done()
            steps = rows(folder, "step")
            check(len(steps) == 8, steps)
            for k, length in enumerate(moves(folder, 8), start=1):
                norm = steps[k]["gradient_norm"]
                check(abs(steps[k]["learning_rate"] - rate[k]) < 1e-9, f"step {k + 1}: rate", steps[k]["learning_rate"], rate[k])
                expected = rate[k] * (min(norm, clip) if clip else norm)
                check(norm > 0.3, f"a gradient that clipping shortens: {norm}")
                check(abs(length - expected) < 1e-3 * expected, f"clip {clip}, step {k + 1}: moved {length}, expected {expected}")


def rates_are_of_all_ranks():
    for procs in (1, 2):
        with scratch() as folder:
            train(folder, "--procs", procs, *settings(train__steps=6, train__eval_every_epochs=0)).done()
            steps = rows(folder, "step")
            for before, now in zip(steps, steps[1:]):
                rate = 32 / (now["seconds"] - before["seconds"])  # the recipe's batch, of all ranks
                check(abs(now["images_per_second"] - rate) < 0.01 * rate, procs, now, rate)


def fractions_of_an_epoch_are_rounded():
    # 8 steps an epoch: 0.7 epochs are 5.6 steps, so 6; 1.19 epochs of training are 9.52, so 10; 0.45 of warmup 3.6, so 4.
    with scratch() as folder:
        train(folder, *settings(train__steps=0, train__epochs=1.19, train__eval_every_epochs=0.7, schedule__warmup_epochs=0.45,
                                optimizer__lr=0.4)).done()
        steps = rows(folder, "step")
        check(len(steps) == 10, len(steps))
        check([row["step"] for row in rows(folder, "eval")] == [6, 10], rows(folder, "eval"))
        found = [row["learning_rate"] for row in steps[:5]]
        check(all(abs(a - b) < 1e-9 for a, b in zip(found, (0, 0.1, 0.2, 0.3, 0.4))), found)


def units_are_gathered_ahead():
    """With shard.prefetch = N, N units after the one that computes have been asked for before it begins."""
    for prefetch in (0, 1, 2):
        with scratch() as folder:
            train(folder, "--procs", 2, "--trace", "3:3", *settings(train__steps=3, shard__level="zero3", shard__prefetch=prefetch,
                                                                     model__depth=4, train__eval_every_epochs=0)).done()
            events = [event for event in json.loads((folder / "run/trace.json").read_text())["traceEvents"] if event["pid"] == 0]
            asked, begun, ended = {}, {}, {}
            for event in events:
                words = event["name"].split()
                if event["ph"] == "b" and words[0] == "all_gather":
                    asked.setdefault(words[1], event["ts"])
                if event.get("cat") == "forward":
                    begun[words[0]], ended[words[0]] = event["ts"], event["ts"] + event["dur"]
            units = sorted(begun, key=begun.get)
            check(units == ["stem", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"], units)
            for unit, later in zip(units, units[1 + prefetch:]):
                check(asked[later] > begun[unit], f"prefetch {prefetch}: {later} is asked for before {unit} computes")
                if prefetch > 0:
                    ahead = units[units.index(unit) + prefetch]
                    check(asked[ahead] < ended[unit], f"prefetch {prefetch}: {ahead} was not asked for while {unit} computed")


if __name__ == "__main__":
    main(a_step_of_sgd_is_rate_times_clipped_gradient, rates_are_of_all_ranks, fractions_of_an_epoch_are_rounded,
         units_are_gathered_ahead)
