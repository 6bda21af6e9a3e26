#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands of a run whose layers are cut over tensor groups, or whose model over stages: each gives the numbers of one rank."""
import json
import re
import struct
import subprocess
from xml.etree import ElementTree

from files import make_image_folder, shared_data
from finetune import SMALL_VIT, read_safetensors, tensors_of
from harness import TINY, check, check_same_losses, losses, main, rows, scratch, settings, summary, tessera, tiny_recipe, train

STRIDED = settings(parallel__tensor=2, parallel__tensor_adjacent="false")
STAGES = settings(parallel__pipeline=2, parallel__tensor=2, parallel__micro_batches=2)
STEPS = settings(train__steps=6, checkpoint__every_steps=3)


def json_of(*words, folder):
    out = tessera(*words, "--json", folder=folder, stderr=subprocess.DEVNULL).done()
    return json.loads(out[min(out.index(bracket) for bracket in "[{" if bracket in out):])


def floats(raw):
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def check_close(found, expected, tolerance, *label):
    check(len(found) == len(expected), *label, "lengths:", len(found), len(expected))
    worst = max(abs(a - b) for a, b in zip(found, expected))
    check(worst <= tolerance, *label, f"differ by {worst}, expected at most {tolerance}")


def a_resharded_checkpoint_continues_as_the_saved_one(layout=STRIDED):
    """Saved by 2 tensor x 2 data ranks, rewritten as 1 and 3 files, continued in the same layout: the same bits."""
    with scratch() as folder:
        average = settings(ema__decay=0.9)
        train(folder, "--procs", 4, *layout, *STEPS, *average, run="whole").done()
        whole = losses(folder / "whole")
        check([step for step, _ in whole] == [1, 2, 3, 4, 5, 6], whole)
        train(folder, *STEPS, *average, run="alone").done()
        check_same_losses(whole, losses(folder / "alone"), 2e-5)
        for files in (1, 3):
            place = folder / f"of_{files}"
            tessera("checkpoint", "reshard", "whole", "--which", 3, "-o", place, "--ranks", files, folder=folder).done()
            step = place / "step_00000003"
            check(len(list(step.glob("shard-*"))) == files, list(step.iterdir()))
            train(folder, "--procs", 4, *layout, *STEPS, *average, "--resume", step, run=f"rest_{files}").done()
            check_same_losses(losses(folder / f"rest_{files}"), whole[3:])
            check(tensors_of(folder / f"rest_{files}", folder) == tensors_of(folder / "whole", folder), "weights at the end")
            train(folder, *STEPS, *average, "--resume", step, run=f"alone_{files}").done()
            check_same_losses(losses(folder / f"alone_{files}"), whole[3:], 2e-5)


def evaluations_and_exports_are_one_ranks(layout=STRIDED):
    """eval with features, k-NN and linear probe, predict, export, and a run that begins with the exported weights."""
    with scratch() as folder:
        photos = make_image_folder(folder / "photos", images=21)
        keys = [*settings(data__source=f"folder:{photos}", train__batch=16, ema__decay=0.5, train__eval_every_epochs=0,
                          **{**SMALL_VIT, "model__classes": 2}), *STEPS]
        train(folder, "--procs", 4, *layout, *keys).done()
        expected = summary(folder / "run")
        out = {}
        stages = [(f"{ranks} ranks, {pipeline} stages {' '.join(more)}", ("--procs", ranks, *settings(parallel__pipeline=pipeline), *more))
                  for ranks, pipeline, more in ((2, 2, ()), (3, 3, ()), (4, 2, settings(parallel__tensor=2)),
                                                (4, 2, settings(parallel__tensor=1, shard__level="zero3")))]
        for name, words in (("one", ()), ("two", ("--procs", 2)), ("four", ("--procs", 4)), ("three", ("--procs", 3)), *stages):
            file = folder / f"{len(out)}.safetensors"
            out[name] = json_of("eval", "run", *words, "--features", file, "--units", "blocks.0", "--knn", 5, "--probe", folder=folder)
            tensors = read_safetensors(file)
            out[name]["features"] = floats(tensors["features"])
            out[name]["blocks.0"] = floats(tensors["blocks.0"])
            ema = json_of("eval", "run", *words, "--ema", folder=folder)
            out[name]["ema"] = ema["loss"]
        one = out["one"]
        for key, value in (("loss", "val_loss"), ("ema", "val_loss_ema"), ("samples", "val_samples")):
            check(abs(one[key] - expected[value]) < 1e-5, key, one[key], expected[value])
        for name, found in out.items():
            for key in ("samples", "top1", "knn_top1", "probe_top1"):
                check(found[key] == one[key], name, key, found[key], one[key])
            for key in ("loss", "ema"):
                check(abs(found[key] - one[key]) < 1e-5, name, key, found[key], one[key])
            for key in ("features", "blocks.0"):
                check_close(found[key], one[key], 1e-4, name, key)
        predictions_are_one_ranks(folder, photos, [words for _, words in stages])
        # A program without ranks reads the same weights.
        tessera("checkpoint", "export", "run", "weights.safetensors", folder=folder).done()
        transform = settings(data__source=f"folder:{photos}", model__heads=2, precision__compute="fp32", **{
            f"data__{key}": "[0.5, 0.5, 0.5]" for key in ("mean", "std")})
        file = json_of("eval", "weights.safetensors", *transform, folder=folder)
        own = json_of("eval", "run", *transform[:2], *transform[4:], folder=folder)
        check(abs(file["loss"] - own["loss"]) < 1e-5 and file["top1"] == own["top1"], file, own)
        image = photos / "val/dark/003.png"
        said = [json_of("predict", place, image, *words, folder=folder)[0]["predictions"]
                for place, words in (("run", transform[:2] + transform[4:]), ("weights.safetensors", transform))]
        check_close(*[sorted(one["probability"] for one in predictions) for predictions in said], 1e-5, "predictions")
        # And a run in a tensor layout begins with them, bit by bit.
        still = settings(train__init_from=folder / "weights.safetensors", optimizer__lr=0, schedule__name="constant")
        train(folder, "--procs", 4, *layout, *keys, *still, run="begun").done()
        check(tensors_of(folder / "begun", folder) == read_safetensors(folder / "weights.safetensors"), "weights on their way")


def predictions_are_one_ranks(folder, photos, layouts):
    """Images in uneven rounds, one of them broken; also where that is the only one."""
    (photos / "broken.png").write_bytes(b"no picture")
    images = [photos / "val/dark/003.png", photos / "broken.png", *sorted((photos / "val/light").glob("*"))[:5]]
    expected = tessera("predict", "run", *images, "--json", folder=folder, stderr=subprocess.DEVNULL)
    check(expected.wait() == 5, expected.text())
    expected = json.loads(expected.text())
    check([("error" in entry) for entry in expected] == [False, True, *[False] * 5], expected)
    for words in (("--procs", 2), ("--procs", 3), *layouts):
        found = tessera("predict", "run", *images, "--json", *words, folder=folder, stderr=subprocess.DEVNULL)
        check(found.wait() == 5, words, found.text())
        for one, wanted in zip(json.loads(found.text()), expected, strict=True):
            check(one["image"] == wanted["image"] and one.get("error") == wanted.get("error"), words, one, wanted)
            said = [{entry["class"]: entry["probability"] for entry in which["predictions"]} for which in (one, wanted)]
            check(said[0].keys() == said[1].keys(), words, said)
            if said[1]:
                check_close([said[0][name] for name in said[1]], list(said[1].values()), 1e-5, words, one["image"])
        alone = tessera("predict", "run", images[1], *words, folder=folder)
        check(alone.wait() == 2 and alone.text().count("error: ") == 1 and "broken.png" in alone.text(), words, alone.text())
    refused = tessera("predict", "run", images[0], "--procs", 2, folder=folder, env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                                                                  "MASTER_PORT": "29871"})
    check(refused.wait() == 2 and "[predict] --procs is 2, but environment has already started 2 ranks" in refused.text(), refused.text())


def a_student_in_tensor_groups_learns_from_a_teacher_of_one():
    """A teacher trained in a tensor layout teaches students in that layout and on one rank: the same losses."""
    with scratch() as folder:
        train(folder, "--procs", 4, *STRIDED, run="teacher").done()
        learn = [*settings(distill__teacher=folder / "teacher", distill__temperature=2, distill__alpha=0.7), *STEPS]
        train(folder, *learn, run="one").done()
        train(folder, "--procs", 4, *STRIDED, *learn, run="four").done()
        check_same_losses(losses(folder / "four"), losses(folder / "one"), 2e-5)
        train(folder, "--procs", 4, *STRIDED, *learn, "--resume", folder / "four/checkpoints/step_00000003", run="rest").done()
        check_same_losses(losses(folder / "rest"), losses(folder / "four")[3:])


def statistics_of(run_dir):
    """(step, kind, name) -> its values."""
    found = {}
    for row in map(json.loads, (run_dir / "statistics.jsonl").read_text().splitlines()):
        for kind in row.keys() - {"step"}:
            found |= {(row["step"], kind, name): values for name, values in row[kind].items()}
    return found


def statistics_and_trace_are_of_all_ranks(layout=STRIDED):
    """With layer decay, clipping, accumulation and a short last batch: the rows of one rank, and every rank's exchanges."""
    with scratch() as folder:
        keys = settings(run__statistics_every=3, run__trace="2:3", optimizer__layer_decay=0.8, train__clip=0.5,
                        train__accumulation=2, data__remainder="keep", data__source="fake:67")
        train(folder, *keys, run="one").done()
        train(folder, "--procs", 4, *layout, *keys, run="four").done()
        check_same_losses(losses(folder / "four"), losses(folder / "one"), 2e-5)
        one, four = statistics_of(folder / "one"), statistics_of(folder / "four")
        check(one.keys() == four.keys() and len(one) > 20, one.keys() ^ four.keys())
        for key, row in one.items():
            check(abs(four[key]["rms"] - row["rms"]) <= 1e-3 * row["rms"], key, four[key], row)
        events = json.loads((folder / "four/trace.json").read_text())["traceEvents"]
        for rank in range(4):
            names = {event["name"] for event in events if event.get("pid") == rank and event.get("cat") == "communication"}
            block = 1 if layout is STRIDED or rank > 1 else 0
            check(any(name.startswith(f"gather_rows blocks.{block}.mlp over axis tensor") for name in names), rank, names)
            # A stage waits for the other one, and that is part of what it waits for ranks.
            bubbles = [row.get("bubble") for row in rows(folder / "four")]
            check(all(0 < bubble <= row["comm_wait"] for bubble, row in zip(bubbles, rows(folder / "four"))) if layout is STAGES
                  else bubbles.count(None) == len(bubbles), bubbles)
            waits = [stage["waited_for_stages_seconds"] for stage in summary(folder / "four").get("stages", [])]
            check(len(waits) == (2 if layout is STAGES else 0) and all(0 < wait < 60 for wait in waits), waits)
            sends = any(name.startswith("send activations of micro-batch 1 over rank") for name in names)
            check(sends == (layout is STAGES and rank < 2), rank, names)
        tessera("trace", "four", folder=folder).done()
        check_picture(folder / "four/trace.svg", ranks=4, micro_batches=2)


SVG = "{http://www.w3.org/2000/svg}"


def check_picture(file, ranks, micro_batches):
    """A row for each rank, in each of them a box with a tip for every forward and backward pass."""
    rows = [group for group in ElementTree.parse(file).iter(f"{SVG}g") if group.get("class") == "rank"]
    check([row.get("id") for row in rows] == [f"rank-{rank}" for rank in range(ranks)], [row.get("id") for row in rows])
    for rank, row in enumerate(rows):
        boxes = [box for box in row.iter(f"{SVG}rect") if box.get("class")[:2] in ("f ", "b ")]
        names = sorted(box.find(f"{SVG}title").text.split(" of rank ")[0] for box in boxes)
        check(names == sorted(f"{letter}{i}" for letter in "FB" for i in range(micro_batches)), rank, names)
        places = [(float(box.get("x")), float(box.get("width"))) for box in boxes]
        check(all(width > 0 for _, width in places) and places == sorted(places), rank, places)


def bubbles_of(events):
    """Of the only traced step: percent of the time from the first pass to the last in which ranks 0 and 1 run none."""
    passes = [event for event in events if event.get("cat") == "pass"]
    whole = max(event["ts"] + event["dur"] for event in passes) - min(event["ts"] for event in passes)
    return [100 - 100 * sum(event["dur"] for event in passes if event["pid"] == rank) / whole for rank in range(2)]


def pictures_of_traced_steps():
    """2 stages, 4 micro-batches: boxes and bubbles are those of trace.json; what cannot be drawn is one line."""
    with scratch() as folder:
        keys = settings(parallel__pipeline=2, parallel__micro_batches=4, train__steps=3)
        train(folder, "--procs", 2, *keys, "--trace", "2", recipe=tiny_recipe(folder, TINY.replace('"tiny"', '"a<b & c"'))).done()
        said = tessera("trace", "run", folder=folder).done()
        time = re.fullmatch(r"wrote run/trace.svg \(step 2, 2 ranks\)\npasses: .+, (\d\.\d+) times what their schedule takes .+\n", said)
        check(time and float(time[1]) > 0.99, said)  # waits come on top
        picture = folder / "run/trace.svg"
        check_picture(picture, ranks=2, micro_batches=4)
        text = picture.read_text()
        found = [float(percent) for percent in re.findall(r">bubble ([\d.]+) %<", text)]
        expected = bubbles_of(json.loads((folder / "run/trace.json").read_text())["traceEvents"])
        check(len(found) == 2 and all(abs(a - b) < 0.06 for a, b in zip(found, expected)), found, expected)
        check("a&lt;b &amp; c: step 2, " in text and str(folder) not in text, text[:300])
        tessera("trace", "run", "--step", 2, "-o", "other.svg", folder=folder).done()
        check((folder / "other.svg").read_text() == text, "the same step, drawn differently")
        train(folder, run="untraced").done()
        for words, error in (
                (("run", "--step", 7), "[trace] --step is 7, which is not in run/trace.json: expected a traced step: 2"),
                (("untraced",), "[trace] there is no trace.json in untraced: expected the folder of a run that was trained with "
                                "--trace; train with --trace 10:12 to trace steps 10 to 12"),
                (("nowhere",), "[trace] there is no trace.json in nowhere"),
                (("run", "-o", "no/such/place.svg"), "no/such/place.svg"),
                (("run", "--step", "x"), "--step is x: expected an integer"),
                ((), "expected Run folder")):
            refused = tessera("trace", *words, folder=folder)
            check(refused.wait() == 2 and error in refused.text() and refused.text().count("\n") == 1, words, refused.text())
        (folder / "run/trace.json").write_text("{")
        refused = tessera("trace", "run", folder=folder)
        check(refused.wait() == 2 and "run/trace.json cannot be read as a trace" in refused.text(), refused.text())
        check(picture.read_text() == text, "a failure replaced the picture")


def two_hundred_steps_follow_one_rank(layout=STRIDED):
    """2 tensor x 2 data ranks, dropout on, MNIST where it is: the loss of each step within 1e-4 of one rank's."""
    mnist = shared_data("mnist")
    images = settings(data__source=f"idx:{mnist}", data__mean="[0.13]", data__std="[0.31]", model__channels=1) if mnist else []
    with scratch() as folder:
        keys = [*images, *settings(train__steps=200, train__batch=64, train__eval_every_epochs=0, data__crop="none",
                                   data__flip="false", model__image_size=28, model__patch_size=7, model__width=64,
                                   model__dropout=0.1, train__clip=1, optimizer__lr=0.002, schedule__warmup_steps=20)]
        train(folder, *keys, run="one").done()
        train(folder, "--procs", 4, *layout, *keys, run="four").done()
        one, four = losses(folder / "one"), losses(folder / "four")
        worst = max(abs(found - wanted) / wanted for (_, found), (_, wanted) in zip(four, one, strict=True))
        print(f"  {mnist or 'synthetic images'}: loss {one[0][1]:.3f} to {one[-1][1]:.3f}, at most {worst:.1e} apart", flush=True)
        check(one[-1][1] < 0.8 * one[0][1], "one rank learns:", one[0], one[-1])
        check_same_losses(four, one, 1e-4)


def schedule_of(stage, stages, micro_batches):
    """1F1B: as many forward passes as fill the pipeline, then a backward and a forward pass in turn."""
    ahead = min(micro_batches, stages - stage)
    actions = [("F", i) for i in range(ahead)]
    for i in range(micro_batches):
        actions.append(("B", i))
        if ahead + i < micro_batches:
            actions.append(("F", ahead + i))
    return actions


def times_of(costs, micro_batches):
    """{(stage, direction, micro-batch): (begin, end)} where a backward pass takes twice a forward pass, and messages no time."""
    stages, ends = len(costs), {}
    left = [schedule_of(stage, stages, micro_batches) for stage in range(stages)]
    free = [0.0] * stages
    while any(left):
        for stage in range(stages):
            while left[stage]:
                direction, i = left[stage][0]
                needs = (stage - 1, "F", i) if direction == "F" else (stage + 1, "B", i)
                if 0 <= needs[0] < stages and needs not in ends:
                    break
                begin = max(free[stage], ends[needs][1] if needs in ends else 0.0)
                free[stage] = begin + costs[stage] * (1 if direction == "F" else 2)
                ends[(stage, direction, i)] = (begin, free[stage])
                left[stage].pop(0)
    return ends


MIB = 1 << 20


def bytes_of(text):
    number, unit = re.fullmatch(r"([\d.]+) (B|KiB|MiB|GiB)", text).groups()
    return float(number) * {"B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}[unit]


def a_dry_run_says_what_each_stage_does():
    """3 stages of 1, 2 and 1 blocks: micro-batches, bubble, units, memory, messages and passes over time, computed here."""
    size, patch, width, mlp, heads, classes, batch = 32, 4, 192, 768, 4, 10, 96
    blocks, stages, micro_batches = [1, 2, 1], 3, 12  # the largest number up to 4 x 3 that divides 96
    tokens, images = (size // patch) ** 2, batch // micro_batches
    model = {"model__image_size": size, "model__patch_size": patch, "model__width": width, "model__mlp_width": mlp, "model__heads": heads,
             "model__depth": sum(blocks), "model__classes": classes, "train__batch": batch, "data__prefetch": 1}
    keys = settings(parallel__pipeline=stages, parallel__stages=blocks, **model)
    with scratch() as folder:
        text = train(folder, "--procs", stages, "--dry-run", *keys).done()
    check(f"batch: {batch} = 1 rank of a stage x {images} x {micro_batches} micro-batches\n" in text, text)
    # Products of a token with the matrices of a block, and scores and their sums.
    of_block = 2 * tokens * (4 * width * width + 2 * width * mlp) + 4 * tokens * tokens * width
    of_stem, of_head = 2 * tokens * 3 * patch * patch * width, 2 * width * classes
    costs = [of_stem + blocks[0] * of_block, blocks[1] * of_block, blocks[2] * of_block + of_head]
    times = times_of(costs, micro_batches)
    whole = max(end for _, end in times.values())
    idle = [1 - sum(end - begin for (stage, _, _), (begin, end) in times.items() if stage == s) / whole for s in range(stages)]
    said = re.search(r"pipeline: 3 stages, 1f1b, 12 micro-batches of 8 images per rank \(chosen; parallel\.micro_batches sets another number\): "
                     r"a stage is idle for (\d+) % of a step", text)
    check(said and abs(int(said[1]) - 100 * sum(idle) / stages) <= 0.5 + 1e-9, idle, text)
    units = ["stem to blocks.0", "blocks.1 to blocks.2", "blocks.3 to head"]
    message = batch * tokens * width * 4
    of_block_state = 12 * width * width + 13 * width
    states = [16 * (of_block_state * count + more) for count, more in zip(blocks, (3 * patch * patch * width, 0, 0))]
    kept = tokens * (4 * (6 * width + mlp) + 4 * (heads + 4))
    most = {}
    for stage in range(stages):
        row = re.search(rf"stage {stage}: rank {stage}: (.+); (.+ .iB), (\d+) in flight, sends (.+ .iB) to its neighbours\n  +over time: (\S+)\n", text)
        check(row, stage, text)
        check(row[1] == units[stage], row[1])
        check(int(row[3]) == stages - stage, row[0])  # of 1F1B, all that are ahead
        check(abs(bytes_of(row[4]) - message * (2 if 0 < stage < stages - 1 else 1)) <= 0.01 * message, row[4], message)
        # Weights, moments and gradients of the stage, activations of its blocks for each micro-batch in flight; the rest is
        # buffers, the images and the gradients of one block.
        least = 16 * MIB + states[stage] + (stages - stage) * images * blocks[stage] * kept
        most[stage] = bytes_of(row[2])
        check(least <= most[stage] <= 1.25 * least, "stage", stage, most[stage] / MIB, "at least", least / MIB)
        line = row[5]
        check(abs(line.count(".") / len(line) - idle[stage]) < 0.05, line, idle[stage])
        order = [sign for sign, before in zip(line, "." + line) if sign not in (before, ".")]
        signs = [str(i % 10) if direction == "F" else chr(ord("a") + i) for direction, i in schedule_of(stage, stages, micro_batches)]
        check(order == signs, line, signs)
    largest = re.search(r"predicted memory per rank: (\S+ .iB) ", text)
    check(largest and bytes_of(largest[1]) == max(most.values()), largest, most)


def a_run_says_what_each_stage_waited():
    """summary.json, report and last lines have times and memory of each stage, of training steps alone."""
    with scratch() as folder:
        text = train(folder, "--procs", 2, *settings(parallel__pipeline=2, parallel__micro_batches=4, train__steps=20,
                                                     train__eval_every_steps=1, train__eval_every_epochs=0)).done()
        stages = summary(folder / "run")["stages"]
        check([stage["stage"] for stage in stages] == ["stage 0 (stem to blocks.0)", "stage 1 (blocks.1 to head)"], stages)
        check(all(stage["waited_for_stages_seconds"] > 0 and stage["peak_rss_bytes"] > 10 * MIB for stage in stages), stages)
        slowest = min(stages, key=lambda stage: stage["waited_for_stages_seconds"])
        check(f"slowest stage: {slowest['stage']}, which computed " in text, text)
        done = summary(folder / "run")
        for stage in stages:  # no step takes longer than its stage computes and waits, for data as well
            spent = stage["computed_seconds"] + stage["waited_for_stages_seconds"] + stage["waited_for_ranks_seconds"]
            check(0 < stage["computed_seconds"] < done["train_seconds"], stage, done["train_seconds"])
            check(0.5 * done["train_seconds"] < spent < 1.02 * done["train_seconds"] + 0.05, stage, done["train_seconds"])
        check(all(f"{stage['stage']}" in (folder / "run/report.html").read_text() for stage in stages), "no rows in the report")


def pipelines_do_all_of_that():
    """2 stages, in each a tensor group of 2 ranks."""
    two_hundred_steps_follow_one_rank(STAGES)
    a_resharded_checkpoint_continues_as_the_saved_one(STAGES)
    evaluations_and_exports_are_one_ranks(STAGES)
    statistics_and_trace_are_of_all_ranks(STAGES)


if __name__ == "__main__":
    main(two_hundred_steps_follow_one_rank, a_resharded_checkpoint_continues_as_the_saved_one, evaluations_and_exports_are_one_ranks,
         a_student_in_tensor_groups_learns_from_a_teacher_of_one, statistics_and_trace_are_of_all_ranks,
         pictures_of_traced_steps, a_dry_run_says_what_each_stage_does, a_run_says_what_each_stage_waited, pipelines_do_all_of_that)
