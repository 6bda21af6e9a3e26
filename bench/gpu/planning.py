# SPDX-License-Identifier: Apache-2.0
"""The steps `plan` and `pretended`: what the planner predicts beside what this card measures."""
import json
import re

from kit import KIT, Failed, device_gib

FAR = 0.10  # of a prediction: farther off is a fault

RECIPE = """
name = "plan"
[model]
preset = "{model}"
[data]
source = "fake:4096"
crop = "none"
flip = false
[train]
batch_per_rank = {batch}
steps = 24
log_every = 1
eval_every_epochs = 0
clip = 1.0
[optimizer]
weight_decay = 0.1
[checkpoint]
every_epochs = 0
async = false
"""


class Sizes:
    """Of a model on a GPU, or of a rehearsal's."""

    def __init__(self, kit):
        self.model, self.trained = kit.sized("B/16", 64)
        self.measured, self.predicted = ((1, 4, 8), (2, 6)) if kit.rehearse else ((8, 32, 128), (16, 64, 96))
        self.tensor, self.hosts, self.batch = ((1, 2), "2x8", 64) if kit.rehearse else ((1, 4), "8x8", 4096)
        self.here = ["--set", "run.threads=1"] if kit.rehearse else []


def numbers(values):
    return ",".join(map(str, values))


def planned(kit, words, limit, what):
    """Output of `tessera plan`. A profile that is taken for another machine's is a fault, and accepted by force."""
    ran = kit.tessera(["plan", *words], limit)
    if ran.code == 2 and "the profile is of another" in ran.text:
        kit.faults.append(f"{what}: {ran.text.strip().splitlines()[-1]}")
        ran = kit.tessera(["plan", *words, "--force"], limit)
    return ran.check(what).text


def off(predicted, measured):
    return predicted / measured - 1


def add_prediction(kit, what, predicted, measured):
    """A row of the table. `predicted`, `measured`: (seconds of a step, bytes of the device or None)."""
    row = {"what": what, "seconds": [predicted[0], measured[0]], "bytes": [predicted[1], measured[1]]}
    kit.predictions.append(row)
    parts = []
    for name, values in (("step", row["seconds"]), ("memory", row["bytes"])):
        if None in values:
            continue
        error = off(*values)
        parts.append(f"{name} {100 * error:+.1f} %")
        if kit.gpu and abs(error) > FAR:
            kit.faults.append(f"{what}: {name} predicted {100 * error:+.1f} % off")
    return f"{what}: {', '.join(parts)}"


def bench_step(kit, sizes, batch, rounds, words):
    output = kit.scratch / "step.json"
    output.unlink(missing_ok=True)
    kit.tessera(["bench", "step", "--model", sizes.model, "--batch", batch, "--dtype", "auto", "--rounds", rounds, "--quiet", "--output", output,
                 *words], 60).check(f"bench step, batch {batch}")
    return json.loads(output.read_text())


def compare_step(kit, recipe, profile, sizes, batch, recompute):
    words = ["predict", recipe, "--profile", profile, "--ranks", 1, "--set", f"train.batch_per_rank={batch}", "--set",
             f"shard.recompute={'true' if recompute else 'false'}", *sizes.here, "--json"]
    text = planned(kit, words, 30, f"plan predict, batch {batch}")
    found, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
    stage = found["stages"][0]
    # bench step's images lie in memory.
    seconds = found["seconds"] - stage["seconds"]["data"]
    words = [*sizes.here, *(["--recompute"] if recompute else [])]
    measured = bench_step(kit, sizes, batch, 2 if kit.rehearse else 10, words)
    text = add_prediction(kit, f"{sizes.model} at batch {batch}{', recompute' if recompute else ''}",
                          (seconds, stage["memory"]["memory_bytes"]), (measured["step_seconds"], measured.get("device_peak_bytes")))
    if not kit.gpu:
        return text
    plain = bench_step(kit, sizes, batch, 10, [*words, "--set", "run.cuda_graphs=off"])
    return f"{text} ({1e3 * plain['step_seconds']:.2f} ms, {device_gib(plain):.2f} GiB without graphs)"


def plan(kit):
    """Profile of the card, predicted steps beside measured ones, a search for 64 GPUs, train --plan search."""
    sizes = Sizes(kit)
    recipe, profile = kit.scratch / "plan.toml", kit.scratch / "profile.json"
    recipe.write_text(RECIPE.format(model=sizes.model, batch=sizes.trained))
    kit.tessera(["plan", "profile", recipe, "--machine", KIT / "recipes/machines/h100_sxm.toml", "--tensor", numbers(sizes.tensor),
                 "--batches", numbers(sizes.measured), "--rounds", 3, "--output", profile, *sizes.here,
                 *(["--procs", 1] if kit.rehearse else [])], 300 if kit.rehearse else 120).check("plan profile")
    kit.facts["profile"] = json.loads(profile.read_text())
    device = kit.facts["profile"]["provenance"]["device"]
    if kit.gpu and not device.startswith("NVIDIA"):
        kit.faults.append(f"the profile is of {device}")
    lines = [compare_step(kit, recipe, profile, sizes, batch, recompute) for recompute in (False, True) for batch in sizes.predicted]
    found = planned(kit, ["search", recipe, "--profile", profile, "--hosts", sizes.hosts, "--batch", sizes.batch, "--seconds", 10,
                          *sizes.here, "--output", kit.scratch / "plan.json"], 60, "plan search")
    best = re.search(r"memory  plan\n(.*)", found)
    lines.append(f"searched for {sizes.hosts}: {best[1].strip() if best else found.strip().splitlines()[0]}")
    ran = kit.tessera(["train", recipe, "--plan", "search", "--procs", 1, "--set", f"run.dir={kit.scratch / 'searched'}", *sizes.here],
                      300 if kit.rehearse else 120).check("train --plan search")
    pace = re.search(r"a step takes .*", ran.text)
    if not pace:
        raise Failed("train --plan search did not compare its steps with their prediction")
    lines.append(f"train --plan search: {pace[0].split(': measure again')[0]}")
    return "; ".join(lines)


# Name, recipe, ranks, settings: one rank of them, at real size.
PRETENDED = [("ViT-10B, tensor 4, zero3 over 32", "vit_10b.toml", 128, ["parallel.tensor=4"]),
             ("ViT-120B, stage 0 of 8, tensor 8, zero3 over 32", "vit_120b.toml", 2048, [])]
REHEARSED = [("quickstart, tensor 4, zero3 over 2", "quickstart.toml", 8, ["parallel.tensor=4", "shard.level=zero3"])]


def pretended(kit):
    """One rank of ViT-10B and of ViT-120B at real size, with pretended peers: memory beside its prediction, seconds."""
    lines = []
    for number, (name, recipe, world, sets) in enumerate(REHEARSED if kit.rehearse else PRETENDED):
        run = kit.scratch / f"pretended-{number}"
        sets = [*sets, f"run.dir={run}", "train.log_every=1"]
        ran = kit.tessera(["train", KIT / "recipes" / recipe, "--fake-data=8192", "--pretend-world", world, "--pretend-steps", 3,
                           "--pretend-gbits", 400, "--pretend-latency", 10, *[w for key in sets for w in ("--set", key)]],
                          180 if kit.rehearse else 80)
        if number > 0 and ran.timed_out:
            lines.append(f"{name}: not finished in time")
            continue
        ran.check(name)
        found = json.loads((run / "summary.json").read_text())
        measured, predicted = ((found["training_memory_bytes"], found["predicted_memory_bytes"]) if kit.rehearse else
                               (found["device_peak_bytes"], found["predicted_device_bytes"]))
        kit.pretended.append({"what": name, "measured_bytes": measured, "predicted_bytes": predicted, "step_seconds": found["step_seconds"]})
        error = off(predicted, measured)
        if kit.gpu and abs(error) > FAR:
            kit.faults.append(f"{name}: memory predicted {100 * error:+.1f} % off")
        lines.append(f"{name}: {measured / 2**30:.2f} GiB, predicted {predicted / 2**30:.2f} ({100 * error:+.1f} %), "
                     f"{found['step_seconds'] or 0:.3f} s a step")
    return "; ".join(lines)
